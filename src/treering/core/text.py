"""Text: readable file names and JSON, and the words that search indexes and queries are made of.

A file name may contain bytes that are not UTF-8. Python represents them as surrogates, which JSON cannot
hold, so `readable` escapes them.

Words are tokenized as SQLite's FTS5 does with ``porter unicode61 remove_diacritics 2``: letters and digits,
lower case, without accents, with English endings removed by Porter's algorithm (1980, with its author's later
rules). PostgreSQL needs this because its own dictionaries depend on the configuration of the server, drop
words that a query may consist of, and treat a host name as a single word. A test compares every stem with
FTS5.

What text content has, and which terms a query has, is also decided here once for all engines. Common words
are dropped from queries (they match everything) and the remaining terms are joined by OR: requiring all of
them finds almost nothing in conversations.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.encoding import decode
from treering.errors import Corrupt

if TYPE_CHECKING:
    from treering.core.content import Content


def readable(text: str) -> str:
    r"""Escape each byte that is not UTF-8 (a surrogate in ``text``) as ``\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def counted(number: int, plural: str) -> str:
    """Return a number with its noun, given in the plural: ``1 entry``, ``1,200 objects of files``."""
    if number != 1:
        return f"{number:,} {plural}"
    noun, of, whole = plural.partition(" of ")
    return f"1 {f'{noun[:-3]}y' if noun.endswith('ies') else noun.removesuffix('s')}{of}{whole}"


def plain(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> Any:
    """Return structs as plain data, and beside each time in microseconds the same time as ISO 8601 text.

    A time is a field ``<name>_us`` of a class with a property ``<name>``.
    """
    built = msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)
    return _with_times(value, built)


def _with_times(value: Any, built: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        fields: dict[str, Any] = {}
        times = times_of(type(value))
        for name, each in built.items():
            if name in times:
                time = getattr(value, times[name])
                fields[times[name]] = None if time is None else time.isoformat()
            fields[name] = _with_times(getattr(value, name), each)
        return fields
    if isinstance(value, list | tuple):
        return [_with_times(*both) for both in zip(cast("list[Any]", value), built, strict=True)]
    if isinstance(value, dict):
        each = zip(cast("dict[Any, Any]", value).values(), built.items(), strict=True)
        return {key: _with_times(one, other) for one, (key, other) in each}
    return built


@cache
def times_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the fields of a class that are times in microseconds, and the property that is the datetime."""
    names = {each: each.removesuffix("_us") for each in kind.__struct_fields__ if each.endswith("_us")}
    return {us: name for us, name in names.items() if isinstance(getattr(kind, name, None), property)}


@cache
def structs_in(kind: Any) -> frozenset[type[msgspec.Struct]]:
    """Return the struct classes that values of a type can hold."""
    from msgspec.inspect import StructType, type_info  # loads much that most stores never need

    found: set[type[msgspec.Struct]] = set()
    left: list[Any] = [type_info(kind)]
    while left:
        each = left.pop()
        if isinstance(each, StructType):
            if each.cls in found:
                continue
            found.add(each.cls)
            left += [field.type for field in each.fields]
        else:
            for name in ("item_type", "key_type", "value_type", "type"):
                left += [getattr(each, name)] if hasattr(each, name) else []
            left += [*getattr(each, "item_types", ()), *getattr(each, "types", ())]
    return frozenset(found)


def readable_json(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Encode a value as JSON, a struct as `plain` returns it, and escape names that are not UTF-8."""
    if isinstance(value, msgspec.Struct) and any(map(times_of, structs_in(type(value)))):
        value = plain(value, enc_hook=enc_hook)
    try:
        return msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(value, enc_hook=enc_hook)))


def _readable(plain: Any) -> Any:
    if isinstance(plain, str):
        return readable(plain)
    if isinstance(plain, list | tuple):
        return [_readable(each) for each in cast("list[Any]", plain)]
    if isinstance(plain, dict):
        return {_readable(key): _readable(each) for key, each in cast("dict[Any, Any]", plain).items()}
    return plain


_WORD: Final = re.compile(r"[^\W_]+")
_LONGEST: Final = 64
"""Longer words are not stemmed."""

_STEP_2: Final = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"),
    ("logi", "log"), ("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"),
    ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive"),
    ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"),
)  # fmt: skip
_STEP_3: Final = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""),
    ("ness", ""),
)  # fmt: skip
_STEP_4: Final = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism",
    "ate", "iti", "ous", "ive", "ize",
)  # fmt: skip


def words(text: str) -> Iterator[str]:
    """Yield the words of a text in order, folded but not stemmed."""
    return (found.group() for found in _WORD.finditer(folded(text)))


def folded(text: str) -> str:
    """Lower the case and remove accents."""
    text = text.lower().replace("\u03c2", "\u03c3")  # one sigma for both
    if text.isascii():
        return text
    bare = "".join(char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", bare)


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the stem of an English word; most other words are returned unchanged."""
    if not word.isascii():
        # FTS5 works on bytes, and treats everything but English letters as consonants.
        return _stem(word.encode().decode("latin-1")).encode("latin-1").decode(errors="ignore")
    return _stem(word)


def _stem(word: str) -> str:
    if not 2 < len(word) <= _LONGEST:  # noqa: PLR2004 - "as" and "is" have no ending
        return word
    return _step_5(_step_4(_step_3(_step_2(_step_1(word)))))


def _step_1(word: str) -> str:
    """Remove plurals, -ed and -ing; turn y into i."""
    if word.endswith(("sses", "ies")) and len(word) > 3:  # noqa: PLR2004 - "ies" alone is a word
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed") and len(word) > 3:  # noqa: PLR2004
        if _measure(word[:-3]) > 0:
            word = word[:-1]
    elif word.endswith("ing") and len(word) > 3 and _has_vowel(word[:-3]):  # noqa: PLR2004
        word = _mended(word[:-3])
    elif word.endswith("ed") and len(word) > 2 and _has_vowel(word[:-2]):  # noqa: PLR2004
        word = _mended(word[:-2])
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _mended(word: str) -> str:
    """Restore the word that -ed or -ing was added to: hop(p), fil(e)."""
    if word.endswith(("at", "bl", "iz")) and len(word) > 2:  # noqa: PLR2004
        return word + "e"
    if word[-2:-1] == word[-1] and word[-1] not in "aeioulsz":
        return word[:-1]
    if _measure(word) == 1 and _ends_short(word):
        return word + "e"
    return word


def _step_2(word: str) -> str:
    return _replaced(word, _STEP_2)


def _step_3(word: str) -> str:
    return _replaced(word, _STEP_3)


def _replaced(word: str, endings: tuple[tuple[str, str], ...]) -> str:
    for ending, instead in endings:
        if word.endswith(ending) and len(word) > len(ending):
            rest = word[: -len(ending)]
            return rest + instead if _measure(rest) > 0 else word
    return word


def _step_4(word: str) -> str:
    for ending in _STEP_4:
        if word.endswith(ending) and len(word) > len(ending):
            rest = word[: -len(ending)]
            if ending == "ion" and rest[-1] not in "st":
                return word
            return rest if _measure(rest) > 1 else word
    return word


def _step_5(word: str) -> str:
    """Remove a silent e, and reduce ll."""
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            word = rest
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


def _shape(word: str) -> str:
    """Return ``c`` for each consonant and ``v`` for each vowel; y is a vowel after a consonant."""
    shape = ""
    for char in word:
        vowel = char in "aeiou" or (char == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Count vowel-consonant sequences: whether the stem is long enough to lose its ending."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return any(char in "aeiou" or (char == "y" and at > 0) for at, char in enumerate(word))


def _ends_short(word: str) -> bool:
    """Whether it ends in consonant, vowel, consonant, the last not w, x or y: as in *hop*."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


STOP_WORDS: Final = frozenset(
    """
    a about after all also am an and any are as at be because been before being but by can could did do does
    doing for from had has have having he her here hers him his how i if in into is it its just me more most
    my no nor not now of off on once only or other our out over own same she should so some such than that
    the their them then there these they this those to too up us very was we were what when where which
    while who whom why will with would you your yours
    """.split()
)

_TERMS_WORD: Final = re.compile(r"\w+")
_MAX_TERMS: Final = 64


def text_of(content: Content) -> str:
    """Return the words in content: a text, or every string in JSON; nothing for bytes and trees.

    JSON that does not parse has none either: readers report it, and it must not prevent indexing.
    """
    if content.kind == "text":
        return content.data.decode("utf-8", errors="replace")
    if content.kind == "json":
        try:
            return "\n".join(_strings(decode(content)))
        except Corrupt:
            return ""
    return ""


def query_terms(text: str) -> list[str]:
    """Return the significant words of a query: lower case, without duplicates, in order."""
    words = list(dict.fromkeys(match.group().lower() for match in _TERMS_WORD.finditer(text)))
    telling = [word for word in words if word not in STOP_WORDS]
    return (telling or words)[:_MAX_TERMS]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        return
    members: Any = ()
    if isinstance(value, dict):
        members = chain.from_iterable(cast("dict[Any, Any]", value).items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        members = cast("Any", value)
    for each in members:
        yield from _strings(each)
