"""Text that any record and any reader can hold: a file's name may be bytes that are no UTF-8."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.encoding import decode
from treering.errors import Corrupt

if TYPE_CHECKING:
    from treering.core.content import Content


def readable(text: str) -> str:
    r"""The same text, with each byte that is no UTF-8 (a surrogate, as the system gives it) as ``\xff``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def readable_json(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON, whatever the names in it are."""
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


# -----------------------------------------------------------------------------------------------------------
# Words and their stems, cut the same way as SQLite's index cuts them.
#
# PostgreSQL's own dictionaries depend on how the server was set up, drop words that a question may consist
# of, and see a host name as one word; so the words are cut here: letters and digits, lower case, without
# accents, English endings removed by Porter's algorithm (1980, with the revised rules of its author, as in
# FTS5's ``porter unicode61 remove_diacritics 2``). A test compares every stem with FTS5's.


_WORD: Final = re.compile(r"[^\W_]+")
_LONGEST: Final = 64
"""Longer words have no endings to speak of."""

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
    """The words of a text, folded but whole, in order."""
    return (found.group() for found in _WORD.finditer(folded(text)))


def folded(text: str) -> str:
    """Lower case, without accents."""
    text = text.lower().replace("\u03c2", "\u03c3")  # one sigma for both
    if text.isascii():
        return text
    bare = "".join(char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", bare)


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """What an English word has in common with its other forms; most other words as they are."""
    if not word.isascii():
        # FTS5 looks at bytes, and takes all that are not English letters for consonants.
        return _stem(word.encode().decode("latin-1")).encode("latin-1").decode(errors="ignore")
    return _stem(word)


def _stem(word: str) -> str:
    if not 2 < len(word) <= _LONGEST:  # noqa: PLR2004 - "as" and "is" have no ending
        return word
    return _step_5(_step_4(_step_3(_step_2(_step_1(word)))))


def _step_1(word: str) -> str:
    """Plurals, -ed, -ing, and y."""
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
    """The word that -ed or -ing was put to: hop(p), fil(e)."""
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
    """A silent e, and ll."""
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_short(rest)):
            word = rest
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


def _shape(word: str) -> str:
    """``c`` for each consonant and ``v`` for each vowel; y is a vowel behind a consonant."""
    shape = ""
    for char in word:
        vowel = char in "aeiou" or (char == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How often a consonant follows a vowel: what makes a beginning long enough to lose its ending."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return any(char in "aeiou" or (char == "y" and at > 0) for at, char in enumerate(word))


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant, the last not w, x or y: as in *hop*."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


# -----------------------------------------------------------------------------------------------------------
# From content to searchable text, and from a person's words to search terms.
#
# Both directions are decided here once, so that every engine indexes the same words and answers the same
# question. Common words are left out of questions (they match everything), and the rest is joined by OR:
# asking for all words at once finds almost nothing in conversation.


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
    """The words in content: text itself, or every string inside JSON; bytes and trees have none.

    Nor has JSON that does not parse: it is the reader's to complain, and one such content must not keep
    an index from being built.
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
    """The words of a question that are worth looking for, lower case, each once, in order."""
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
