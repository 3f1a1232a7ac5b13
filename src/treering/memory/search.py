"""Search in memory: by stemmed words, by trigrams for scripts without spaces, and by meaning.

The text index belongs to the engine and is updated in the same commit as the document. Common words of the
query are ignored, the others are joined by OR (see `treering.core.text`).

With an embedder the score is the weighted mean of two parts: the word score relative to the best match, and
the cosine of the vectors. (Adding ranks instead would discard how much better one match is than the next,
and finds less than words alone.)

**Invariant:** a result is never presented as ranked when it is not: `MemorySearch.ranked` is then false and
its note says why. A document that shares no word with the query is found only if it is clearly similar, so a
search does not fill up with whatever is least dissimilar.
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
    DocumentRecord,
    MemoryHit,
    MemorySearch,
    TagMatch,
    decode_record,
    matches_tags,
    needs_trigrams,
    parse_ref_name,
    read_contents,
)
from treering.memory.vectors import Embedder, VectorIndex

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.memory.vectors import Similarities

MIN_COSINE: Final = 0.15
"""Least similarity of a document that shares no word with the query."""

_TRIGRAM: Final = 3
_CANDIDATES: Final = 50
_WIDE_CANDIDATES: Final = 200
"""Candidates to start with when neighbours or vectors can move a document up."""
_MIN_BATCH: Final = 32
_NUMBERED: Final = re.compile(r"(.*?)(\d{1,15})")


class Searcher:
    """Searches one namespace, or all (``None``)."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        namespace: str | None,
        *,
        now_us: int,
        embedder: Embedder | None = None,
        vectors: VectorIndex | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace
        self._now_us = now_us
        self._embedder = embedder
        self._vectors = vectors or VectorIndex()

    def search(
        self,
        text: str,
        *,
        tags: list[str],
        match: TagMatch,
        limit: int,
        neighbours: float,
        semantic_weight: float,
    ) -> MemorySearch:
        """Return the best matches, fetching more candidates until enough of them have the tags."""
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; use 1 or more")
        if not 0 <= semantic_weight <= 1:
            raise InvalidInput(
                f"semantic_weight is {semantic_weight}; use 0 (words only) to 1 (meaning only)"
            )
        is_wide = neighbours or self._embedder is not None
        candidates = min(max(_WIDE_CANDIDATES if is_wide else _CANDIDATES, limit * 4), MAX_PAGE)
        while True:
            words, is_complete = self._word_scores(text, candidates)
            hybrid = self._hybrid_scores(text, words, candidates, semantic_weight)
            scores = _add_neighbours(hybrid.scores, neighbours) if neighbours else hybrid.scores

            def final_score(
                name: str, record: DocumentRecord, score: float, hybrid: HybridScores = hybrid
            ) -> float | None:
                if not matches_tags(record.tags, tags, match):
                    return None
                return hybrid.without_stale_vector(name, record.digest, score)

            found = self._load(scores, final_score, limit)
            if len(found) >= limit or (is_complete and hybrid.is_complete) or candidates >= MAX_PAGE:
                return MemorySearch(hits=self._hits(found), note=hybrid.note)
            candidates = min(candidates * 4, MAX_PAGE)

    def _word_scores(self, text: str, limit: int) -> tuple[dict[str, float], bool]:
        """Return scores by ref name, best first, and whether they include every match."""
        collections = (WORDS, TRIGRAMS) if needs_trigrams(text) else (WORDS,)
        merged: dict[str, float] = {}
        is_complete = True
        for collection in collections:
            query = SearchQuery(collection=collection, text=text, namespace=self._namespace, limit=limit)
            hits = self._engine.search(self._space, query).hits
            is_complete = is_complete and len(hits) < limit
            # Scores of different indexes are not comparable; normalise them by the best one of each.
            best = hits[0].score if hits and len(collections) > 1 else 1.0
            for hit in hits:
                score = hit.score / best if best > 0 else hit.score
                merged[hit.name] = max(merged.get(hit.name, score), score)
        return _best_first(merged), is_complete

    def _hybrid_scores(
        self, text: str, words: dict[str, float], limit: int, semantic_weight: float
    ) -> HybridScores:
        if self._embedder is None:
            return HybridScores(words)
        similar = self._vectors.compare(
            self._engine, self._space, self._namespace, self._embedder, text, limit=limit, include=words
        )
        if not similar.rows:
            note = f"no document here has a vector of {self._embedder.name!r}: ranked by words only"
            return HybridScores(words, note=f"{note}; create vectors with memory.embed()")
        return combine_scores(words, similar, limit, semantic_weight)

    def _load(
        self,
        scores: dict[str, float],
        final_score: Callable[[str, DocumentRecord, float], float | None],
        limit: int,
    ) -> list[tuple[Ref, DocumentRecord, float]]:
        """Return the best existing documents with a final score, reading no more than needed."""
        names = list(scores)
        found: list[tuple[Ref, DocumentRecord, float]] = []
        step = max(_MIN_BATCH, limit + limit // 2)
        for start in range(0, len(names), step):
            page = names[start : start + step]
            refs = self._engine.refs(self._space, page)
            for name in page:
                ref = refs.get(name)
                if ref is None:
                    continue
                record = decode_record(ref.value)
                if record.is_expired(self._now_us):
                    continue
                score = final_score(name, record, scores[name])
                if score is not None:
                    found.append((ref, record, score))
            if len(found) >= limit:
                break
        found.sort(key=lambda each: -each[2])
        return found[:limit]

    def _hits(self, found: list[tuple[Ref, DocumentRecord, float]]) -> tuple[MemoryHit, ...]:
        texts = read_contents(self._engine, self._space, [record for _, record, _ in found])
        hits: list[MemoryHit] = []
        for (ref, record, score), text in zip(found, texts, strict=True):
            namespace, name = parse_ref_name(ref.name)
            document = record.to_document(name, ref.version, text)
            hits.append(MemoryHit(document=document, namespace=namespace, score=score))
        return tuple(hits)


class HybridScores:
    """Scores by ref name, best first, from words and optionally vectors."""

    def __init__(
        self,
        scores: dict[str, float],
        *,
        words: dict[str, float] | None = None,
        semantic_weight: float = 0.0,
        similar: Similarities | None = None,
        is_complete: bool = True,
        note: str = "",
    ) -> None:
        self.scores = scores
        self.is_complete = is_complete
        self.note = note
        self._words = words or {}
        self._similar = similar
        self._semantic_weight = semantic_weight

    def without_stale_vector(self, name: str, digest: str, score: float) -> float | None:
        """Return the score without a vector of an older text; ``None`` if nothing else matched."""
        if self._similar is None or self._similar.digests.get(name, digest) == digest:
            return score
        if name not in self._words:
            return None
        return score - self._semantic_weight * max(self._similar.scores[name], 0.0)


def combine_scores(
    words: dict[str, float],
    similar: Similarities,
    limit: int,
    semantic_weight: float,
) -> HybridScores:
    """Return the weighted mean of word scores and similarities."""
    best = max(words.values(), default=0.0)
    scores: dict[str, float] = {}
    for name, score in words.items():
        relative = score / best if best > 0 else 0.0
        cosine = max(similar.scores.get(name, 0.0), 0.0)
        scores[name] = (1 - semantic_weight) * relative + semantic_weight * cosine
    for name, cosine in similar.scores.items():
        if name not in words and cosine >= MIN_COSINE:
            scores[name] = semantic_weight * cosine
    return HybridScores(
        _best_first(scores),
        words=words,
        semantic_weight=semantic_weight,
        similar=similar,
        is_complete=similar.rows <= limit,
    )


def why_unrankable(text: str) -> str:
    """Return why a query has no terms to rank by, or an empty string if it has."""
    terms = query_terms(text)
    if not terms:
        return "the query has no words to search for"
    if needs_trigrams(text) and all(needs_trigrams(term) and len(term) < _TRIGRAM for term in terms):
        return f"terms in a script without spaces need at least {_TRIGRAM} characters to be ranked"
    return ""


def _add_neighbours(scores: dict[str, float], share: float) -> dict[str, float]:
    """Add a share of each score to the documents numbered before and after it (``turn-6`` and ``turn-8``).

    In a conversation the answer is often next to the words of the question.
    """
    raised = dict(scores)
    for name, score in scores.items():
        for neighbour in _neighbours(name):
            raised[neighbour] = raised.get(neighbour, 0.0) + share * score
    return _best_first(raised)


def _neighbours(name: str) -> list[str]:
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return []
    head, digits = match.groups()
    numbers = [number for number in (int(digits) - 1, int(digits) + 1) if number >= 0]
    return [
        f"{head}{number:0{len(digits)}d}" if digits[0] == "0" else f"{head}{number}" for number in numbers
    ]


def _best_first(scores: dict[str, float]) -> dict[str, float]:
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))
