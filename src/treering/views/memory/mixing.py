"""Words and meaning in one score.

The best match of words counts 1 and the others their share of it; the cosine of a vector is as it is. The
score is the mean of both (a sum of ranks would throw away how much better one match is than the next, and
finds less than words alone). **Invariant:** what shares no word with the question is found only when it is
clearly similar: a search never fills up with what merely comes closest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from treering.views.memory.vectors import Similar

MEANING: Final = 0.5
"""How much of the score is meaning, unless the caller says otherwise."""
LEAST_COSINE: Final = 0.15
"""How similar a document that shares no word with the question has to be."""


class Mixed:
    """Scores by the names of documents' refs, best first."""

    def __init__(
        self,
        scores: dict[str, float],
        *,
        words: dict[str, float] | None = None,
        meaning: float = MEANING,
        similar: Similar | None = None,
        is_all: bool = True,
        note: str = "",
    ) -> None:
        self.scores = scores
        self.is_all = is_all
        self.note = note
        self._words = words or {}
        self._similar = similar
        self._meaning = meaning

    def without_stale(self, name: str, digest: str, score: float) -> float | None:
        """The score without the vector of a text that the document no longer has; nothing if that was all."""
        if self._similar is None or self._similar.digests.get(name, digest) == digest:
            return score
        if name not in self._words:
            return None
        return score - self._meaning * max(self._similar.scores[name], 0.0)


def mixed_scores(words: dict[str, float], similar: Similar, asked: int, meaning: float = MEANING) -> Mixed:
    """The weighted mean of both scores; what shares no word counts only when it is similar enough."""
    best = max(words.values(), default=0.0)
    scores: dict[str, float] = {}
    for name, score in words.items():
        share = score / best if best > 0 else 0.0
        scores[name] = (1 - meaning) * share + meaning * max(similar.scores.get(name, 0.0), 0.0)
    for name, cosine in similar.scores.items():
        if name not in words and cosine >= LEAST_COSINE:
            scores[name] = meaning * cosine
    return Mixed(
        dict(sorted(scores.items(), key=lambda pair: -pair[1])),
        words=words,
        meaning=meaning,
        similar=similar,
        is_all=similar.rows <= asked,
    )
