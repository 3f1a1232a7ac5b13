"""Search among documents: by stemmed words, and by trigrams where a language has no spaces.

The index is the engine's and moves in the same commit as the document. Common words are left out of the
question and the rest is joined by OR (see `core.terms`). With an embedder, meaning counts as much as words
(see `mixing`). **Invariant:** what cannot be ranked is not passed off as an answer: `MemorySearch.ranked` is
false then, and the note says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from treering.core.query import MAX_PAGE, SearchQuery
from treering.core.text import query_terms
from treering.errors import InvalidInput
from treering.memory.documents import (
    TRIGRAMS,
    WORDS,
    MemoryHit,
    MemorySearch,
    Stored,
    TagMatch,
    contents,
    has_tags,
    is_wide,
    parse_name,
    stored,
)
from treering.memory.vectors import Embedder, Vectors

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.memory.vectors import Similar


# -----------------------------------------------------------------------------------------------------------
# Words and meaning in one score.
#
# The best match of words counts 1 and the others their share of it; the cosine of a vector is as it is. The
# score is the mean of both (a sum of ranks would throw away how much better one match is than the next, and
# finds less than words alone). **Invariant:** what shares no word with the question is found only when it is
# clearly similar: a search never fills up with what merely comes closest.


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


# -----------------------------------------------------------------------------------------------------------

_GRAM: Final = 3
_FIRST: Final = 50
_FIRST_OF_NEIGHBOURS: Final = 200
_LOOKED_AT: Final = 32
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,15})")


class Searcher:
    """Answers questions about one namespace, or about all (``None``)."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        namespace: str | None,
        *,
        now_us: int,
        embedder: Embedder | None = None,
        vectors: Vectors | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace
        self._now_us = now_us
        self._embedder = embedder
        self._vectors = vectors or Vectors()

    def ranked(
        self,
        text: str,
        *,
        tags: list[str],
        match: TagMatch,
        limit: int,
        neighbours: float,
        meaning: float = MEANING,
    ) -> MemorySearch:
        """The best matches; the index is asked for more until enough of them have the tags."""
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; use 1 or more")
        if not 0 <= meaning <= 1:
            raise InvalidInput(f"meaning is {meaning}; use 0 (words alone) to 1 (meaning alone)")

        def accepted(record: Stored) -> bool:
            return has_tags(record.tags, tags, match)

        is_wide_net = neighbours or self._embedder is not None
        asked = min(max(_FIRST_OF_NEIGHBOURS if is_wide_net else _FIRST, limit * 4), MAX_PAGE)
        while True:
            words, is_all = self._scores(text, asked)
            mixed = self._mixed(text, words, asked, meaning)
            scores = _supported(mixed.scores, neighbours) if neighbours else mixed.scores

            def final(name: str, record: Stored, score: float, mixed: Mixed = mixed) -> float | None:
                return mixed.without_stale(name, record.digest, score) if accepted(record) else None

            found = self._living(scores, final, limit)
            if len(found) >= limit or (is_all and mixed.is_all) or asked >= MAX_PAGE:
                return MemorySearch(hits=self._hits(found), note=mixed.note)
            asked = min(asked * 4, MAX_PAGE)

    def _mixed(self, text: str, words: dict[str, float], asked: int, meaning: float) -> Mixed:
        """Scores of words and, with an embedder, of meaning."""
        if self._embedder is None:
            return Mixed(words)
        similar = self._vectors.similar(
            self._engine, self._space, self._namespace, self._embedder, text, most=asked, also=words
        )
        if not similar.rows:
            note = f"no document here has a vector of {self._embedder.name!r}: ranked by words alone"
            return Mixed(words, note=f"{note}; memory.embed() makes them")
        return mixed_scores(words, similar, asked, meaning)

    def _scores(self, text: str, asked: int) -> tuple[dict[str, float], bool]:
        """Names and scores, and whether these are all that match."""
        collections = (WORDS, TRIGRAMS) if is_wide(text) else (WORDS,)
        merged: dict[str, float] = {}
        is_all = True
        for collection in collections:
            query = SearchQuery(collection=collection, text=text, namespace=self._namespace, limit=asked)
            hits = self._engine.search(self._space, query).hits
            is_all = is_all and len(hits) < asked
            # Two indexes count differently: each one's best is 1 when they are put together.
            top = hits[0].score if hits and len(collections) > 1 else 1.0
            for hit in hits:
                score = hit.score / top if top > 0 else hit.score
                merged[hit.name] = max(merged.get(hit.name, score), score)
        return dict(sorted(merged.items(), key=lambda pair: -pair[1])), is_all

    def _living(
        self, scores: dict[str, float], final: Callable[[str, Stored, float], float | None], limit: int
    ) -> list[tuple[Ref, Stored, float]]:
        """The best documents that are there and have a score in the end; only as many as needed are read."""
        names = list(scores)
        living: list[tuple[Ref, Stored, float]] = []
        step = max(_LOOKED_AT, limit + limit // 2)
        for start in range(0, len(names), step):
            page = names[start : start + step]
            refs = self._engine.refs(self._space, page)
            for name in page:
                ref = refs.get(name)
                if ref is None:
                    continue
                record = stored(ref.value)
                if record.is_expired(self._now_us):
                    continue
                score = final(name, record, scores[name])
                if score is not None:
                    living.append((ref, record, score))
            if len(living) >= limit:
                break
        living.sort(key=lambda found: -found[2])
        return living[:limit]

    def _hits(self, found: list[tuple[Ref, Stored, float]]) -> tuple[MemoryHit, ...]:
        texts = contents(self._engine, self._space, [record for _, record, _ in found])
        hits: list[MemoryHit] = []
        for (ref, record, score), text in zip(found, texts, strict=True):
            namespace, name = parse_name(ref.name)
            hits.append(
                MemoryHit(document=record.document(name, ref.version, text), namespace=namespace, score=score)
            )
        return tuple(hits)


def cannot_rank(text: str) -> str:
    """Why a question has no ranking, or nothing when it has."""
    terms = query_terms(text)
    if not terms:
        return "the question has no word to look for"
    if is_wide(text) and all(is_wide(term) and len(term) < _GRAM for term in terms):
        return f"words of a language without spaces are ranked from {_GRAM} characters on"
    return ""


def _supported(scores: dict[str, float], share: float) -> dict[str, float]:
    """Numbered documents (``turn-7``) get a share of the scores of the numbers before and behind them.

    An answer often stands next to the words of its question: the neighbours come into the list as well.
    """
    raised = dict(scores)
    for name, score in scores.items():
        for beside in _beside(name):
            raised[beside] = raised.get(beside, 0.0) + share * score
    return dict(sorted(raised.items(), key=lambda pair: -pair[1]))


def _beside(name: str) -> list[str]:
    found = _NUMBERED.fullmatch(name)
    if found is None:
        return []
    head, digits = found.groups()
    numbers = [number for number in (int(digits) - 1, int(digits) + 1) if number >= 0]
    return [
        f"{head}{number:0{len(digits)}d}" if digits[0] == "0" else f"{head}{number}" for number in numbers
    ]
