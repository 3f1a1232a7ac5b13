"""Words and their stems, cut the same way as SQLite's index cuts them.

PostgreSQL's own dictionaries depend on how the server was set up, drop words that a question may consist
of, and see a host name as one word; so the words are cut here: letters and digits, lower case, without
accents, English endings removed by Porter's algorithm (1980, with the revised rules of its author, as in
FTS5's ``porter unicode61 remove_diacritics 2``). A test compares every stem with FTS5's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

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
