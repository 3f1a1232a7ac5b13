"""The words of a question, looked for in a text: by their stems, without accents, common words left out.

A script without spaces has no words to stem; what is asked in it is found wherever its characters stand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from treering.core.stems import folded, stem, words
from treering.core.terms import query_terms
from treering.views.event_index import is_unspaced

if TYPE_CHECKING:
    from collections.abc import Iterable


class AskedWords:
    """What a person typed, ready to be compared with many texts. Nothing worth looking for: ``not stems``."""

    def __init__(self, text: str) -> None:
        self.terms = tuple(query_terms(folded(text)))
        asked = [word for term in self.terms for word in words(term)]
        self.stems = frozenset(word if is_unspaced(word) else stem(word) for word in asked)
        self._candidates = _candidates(self.stems)
        self._unspaced = [each for each in self.stems if is_unspaced(each)]

    def found_in(self, text: str) -> frozenset[str]:
        """Those of the ``stems`` that a text holds."""
        plain = folded(text)
        matched = self.stems.intersection(map(stem, self._candidates.findall(plain)))
        return matched.union(each for each in self._unspaced if each in plain)


def _candidates(stems: Iterable[str]) -> re.Pattern[str]:
    """Words that may have one of the stems; cutting and stemming every word takes ten times as long."""
    beginnings = "|".join(sorted({re.escape(_beginning(each)) for each in stems}))
    return re.compile(rf"(?<![^\W_])(?:{beginnings})[^\W_]*")


def _beginning(word: str) -> str:
    """Letters that every word of a stem begins with: a stem is its words' beginning but for its last two."""
    return word[:-2] if word.isascii() else word if is_unspaced(word) else ""
