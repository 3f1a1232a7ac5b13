"""Full-text search with FTS5: one index per collection, with the namespace as a token of its own.

The tables hold no copy of the text (``content=''``), only its tokens. The namespace is hashed into one token,
so a search in one namespace is an AND over two columns and reads only the entries of that namespace.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from treering.engines.sql.search import TextIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Tokens
    from treering.core.query import SearchQuery
    from treering.engines.sql.session import Session

_TOKENIZERS: Final[dict[Tokens, str]] = {
    "words": "porter unicode61 remove_diacritics 2",
    "trigrams": "trigram",
}
_GRAM: Final = 3


class SqliteTextIndex(TextIndex):
    """Texts in FTS5 tables named ``fts_<collection>``."""

    def create(self, session: Session, collection: int, tokens: Tokens) -> None:
        """Create an FTS5 table."""
        session.run(
            f"CREATE VIRTUAL TABLE fts_{collection} "
            f"USING fts5(namespace, words, content='', tokenize='{_TOKENIZERS[tokens]}')"
        )

    def add(
        self, session: Session, collection: int, tokens: Tokens, texts: Sequence[tuple[int, str, str]]
    ) -> None:
        """Index texts, given as number, namespace and text."""
        del tokens  # the table has its tokenizer
        session.run_many(
            f"INSERT INTO fts_{collection} (rowid, namespace, words) VALUES (?, ?, ?)",
            [(no, _token(namespace), words) for no, namespace, words in texts],
        )

    def drop(self, session: Session, collection: int, text: tuple[int, str, str]) -> None:
        """Remove one text; as the index has no copy, it has to be given what it indexed."""
        no, namespace, words = text
        session.run(
            f"INSERT INTO fts_{collection} (fts_{collection}, rowid, namespace, words) "
            "VALUES ('delete', ?, ?, ?)",
            (no, _token(namespace), words),
        )

    def clear(self, session: Session, collection: int, tokens: Tokens) -> None:
        """Remove all texts of a collection."""
        session.run(f"DROP TABLE IF EXISTS fts_{collection}")
        self.create(session, collection, tokens)

    def optimize(self, session: Session, collections: Sequence[int]) -> None:
        """Merge each index into one segment: only then are the tokens of deleted texts really gone."""
        for collection in collections:
            session.run(f"INSERT INTO fts_{collection} (fts_{collection}) VALUES ('optimize')")

    def find(
        self, session: Session, collection: int, tokens: Tokens, terms: Sequence[str], query: SearchQuery
    ) -> list[tuple[int, float]]:
        """Return numbers and scores of texts that contain any of the terms, best first."""
        wanted = _grams(terms) if tokens == "trigrams" else terms
        if not wanted:
            return []
        match = "words : (" + " OR ".join(f'"{term}"' for term in wanted) + ")"
        if query.namespace is not None:
            match = f'namespace : "{_token(query.namespace)}" AND {match}'
        rows = session.rows(
            f"SELECT rowid, -bm25(fts_{collection}) AS score FROM fts_{collection} "
            f"WHERE fts_{collection} MATCH ? ORDER BY score DESC, rowid LIMIT ?",
            (match, query.limit),
        )
        return [(no, score) for no, score in rows]


def _token(namespace: str) -> str:
    return "n" + sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _grams(terms: Sequence[str]) -> list[str]:
    """Return all trigrams, for languages without spaces."""
    grams = {term[at : at + _GRAM]: None for term in terms for at in range(max(len(term) - _GRAM + 1, 0))}
    return list(grams)
