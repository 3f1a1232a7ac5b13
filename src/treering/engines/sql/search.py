"""The search index: which texts contain which words.

The rows of ``text`` are authoritative: they say where each text is stored. The words are derived from that
content and kept in an index of the database (FTS5 tables, or tsvector rows). Subclasses implement the index;
this class keeps it consistent with the rows, inside the commit that changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.core.content import Address
from treering.core.query import check_limit
from treering.core.records import Hit, SearchResult
from treering.core.text import query_terms, text_of
from treering.engines.sql.read import get
from treering.engines.sql.rows import text_checksum
from treering.engines.sql.session import query_in_chunks, rows_in_chunks
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Text, Tokens
    from treering.core.engine import OnWork
    from treering.core.query import SearchQuery
    from treering.engines.sql.commit.write import EncodedBatch
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.session import Database, Row, Session

_PAGE: Final = 500
_INSERT: Final = (
    "INSERT INTO text (space, no, collection, name, namespace, scope, source, salt, checksum) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


TEXT_SELECT: Final = (
    "SELECT t.no, c.name, c.tokens, t.name, t.namespace, s.name, t.source, t.salt, t.checksum FROM text t "
    "LEFT JOIN collection c ON c.space = t.space AND c.no = t.collection "
    "LEFT JOIN scope s ON s.space = t.space AND s.no = t.scope WHERE t.space = ?"
)


def check_text(space: int, row: Row) -> None:
    """Raise `Corrupt` if a row of `TEXT_SELECT` is not as it was written."""
    if text_checksum(space, *row[:8]) != row[8]:
        raise Corrupt(
            f"text {row[3]!r} of the search index is not as it was written: its checksum differs; "
            "run verify, then restore it from a backup or a copy"
        )


class TextIndex:
    """Keeps texts searchable. Subclasses implement the methods at the end."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def put(self, session: Session, space: int, scopes: dict[str, int], encoded: EncodedBatch) -> None:
        """Index (or remove) the texts of a batch; each name occurs once."""
        texts = encoded.batch.texts
        collections = self._collections(session, space, texts)
        self.remove(session, space, _standing(session, space, collections, texts))
        kept = [
            each
            for each in zip(texts, encoded.words, encoded.salts.texts, strict=True)
            if each[0].source is not None
        ]
        rows: list[tuple[Any, ...]] = []
        entries: dict[tuple[int, Tokens], list[tuple[int, str, str]]] = {}
        for no, (text, words, salt) in zip(session.numbers("text", len(kept)), kept, strict=True):
            assert text.source is not None  # noqa: S101 - chosen so
            if words is None:
                (content,) = get(session, space, self._objects, [text.source])
                words = text_of(content)  # noqa: PLW2901 - the words were not in the batch itself
            collection = collections[text.collection]
            name, namespace, source = text.name, text.namespace, text.source
            check = text_checksum(
                space, no, text.collection, collection[1], name, namespace, text.scope, source, salt
            )
            rows.append((space, no, collection[0], name, namespace, scopes[text.scope], source, salt, check))
            entries.setdefault(collection, []).append((no, text.namespace, words))
        session.execute_many(_INSERT, rows)
        for (collection, tokens), entry in entries.items():
            self.add(session, space, collection, tokens, entry)

    def search(self, session: Session, space: int, query: SearchQuery) -> SearchResult:
        """Return hits in one collection, best first."""
        check_limit(query.limit)
        ((seq,),) = session.rows("SELECT seq FROM space WHERE no = ?", (space,))
        terms = query_terms(query.text)
        rows = session.rows(
            "SELECT no, tokens FROM collection WHERE space = ? AND name = ?", (space, query.collection)
        )
        scored: list[tuple[int, float]] = []
        if rows and terms:
            collection, tokens = rows[0]
            scored = self.find(session, space, collection, tokens, terms, query)
        places: dict[int, tuple[str, str, str]] = {}
        numbers = [no for no, _ in scored]
        for row in rows_in_chunks(session, f"{TEXT_SELECT} AND t.no IN (@)", (space,), numbers):
            check_text(space, row)
            no, _, _, name, namespace, _, source, _, _ = row
            places[no] = name, namespace, source
        for no in numbers:
            if no not in places:
                raise Corrupt(f"the search index has a text {no}, whose row is missing; run reindex")
        hits = [
            Hit(
                collection=query.collection,
                name=name,
                namespace=namespace,
                source=Address(source),
                score=score,
            )
            for no, score in scored
            for name, namespace, source in [places[no]]
        ]
        return SearchResult(hits=tuple(hits), indexed_through=seq)

    def remove(self, session: Session, space: int, numbers: Sequence[int]) -> int:
        """Remove texts from the index and delete their rows; their content must still exist."""
        rows = list(
            rows_in_chunks(
                session,
                "SELECT no, collection, namespace, source FROM text WHERE space = ? AND no IN (@)",
                (space,),
                sorted(set(numbers)),
            )
        )
        for no, collection, namespace, source in {row[0]: row for row in rows}.values():
            (content,) = get(session, space, self._objects, [Address(source)])
            self.drop(session, space, collection, (no, namespace, text_of(content)))
            session.run("DELETE FROM text WHERE space = ? AND no = ?", (space, no))
        return len(set(numbers))

    def rebuild(self, database: Database, space: int, on_progress: OnWork | None = None) -> None:
        """Rebuild the whole index of a space, one page at a time."""
        done = total = 0
        with database.reading() as session:
            collections = session.rows("SELECT no, tokens FROM collection WHERE space = ?", (space,))
            if on_progress is not None:
                ((total,),) = session.rows("SELECT count(*) FROM text WHERE space = ?", (space,))
        for collection, tokens in collections:
            with database.writing(space) as session:
                self.clear(session, space, collection, tokens)
            after = 0
            while True:
                with database.writing(space) as session:
                    rows = session.rows(
                        "SELECT no, namespace, source FROM text WHERE space = ? AND collection = ? "
                        "AND no > ? "
                        "ORDER BY no LIMIT ?",
                        (space, collection, after, _PAGE),
                    )
                    contents = get(session, space, self._objects, [Address(row[2]) for row in rows])
                    self.add(
                        session,
                        space,
                        collection,
                        tokens,
                        [
                            (no, namespace, text_of(content))
                            for (no, namespace, _), content in zip(rows, contents, strict=True)
                        ],
                    )
                done += len(rows)
                if on_progress is not None:
                    on_progress("search index", done, max(done, total))
                if len(rows) < _PAGE:
                    break
                after = rows[-1][0]

    def _collections(
        self, session: Session, space: int, texts: Sequence[Text]
    ) -> dict[str, tuple[int, Tokens]]:
        """Return numbers and tokens of the named collections; the first text of a new one decides."""
        wanted: dict[str, Tokens] = {text.collection: text.tokens for text in reversed(texts)}
        found: dict[str, tuple[int, Tokens]] = {
            name: (no, tokens)
            for name, no, tokens in rows_in_chunks(
                session,
                "SELECT name, no, tokens FROM collection WHERE space = ? AND name IN (@)",
                (space,),
                list(wanted),
            )
        }
        new = [name for name in wanted if name not in found]
        for name, no in zip(new, session.numbers("collection", len(new)), strict=True):
            found[name] = no, wanted[name]
            session.execute(
                "INSERT INTO collection (space, no, name, tokens) VALUES (?, ?, ?, ?)",
                (space, no, name, wanted[name]),
            )
            self.create(session, no, wanted[name])
        return found

    # Implemented by subclasses
    def create(self, session: Session, collection: int, tokens: Tokens) -> None:
        """Create the index of a new collection."""
        raise NotImplementedError

    def add(
        self,
        session: Session,
        space: int,
        collection: int,
        tokens: Tokens,
        texts: Sequence[tuple[int, str, str]],
    ) -> None:
        """Index texts: number, namespace, words."""
        raise NotImplementedError

    def drop(self, session: Session, space: int, collection: int, text: tuple[int, str, str]) -> None:
        """Remove one text: number, namespace, words."""
        raise NotImplementedError

    def clear(self, session: Session, space: int, collection: int, tokens: Tokens) -> None:
        """Remove all texts of a collection."""
        raise NotImplementedError

    def find(
        self,
        session: Session,
        space: int,
        collection: int,
        tokens: Tokens,
        terms: Sequence[str],
        query: SearchQuery,
    ) -> list[tuple[int, float]]:
        """Return numbers and scores of texts that contain any of the terms, best first."""
        raise NotImplementedError

    def optimize(self, session: Session, collections: Sequence[int]) -> None:
        """Purge the words of removed texts from the index; no-op for an index that does so immediately."""

    def size(self, session: Session, space: int, collection: int) -> int:
        """Return how many texts of a collection are in the index."""
        raise NotImplementedError

    def lacking(self, session: Session, collection: int, numbers: Sequence[int]) -> set[int]:
        """Return which of these texts are missing from the index, as far as it can tell."""
        del session, collection, numbers
        return set()


def _standing(
    session: Session, space: int, collections: dict[str, tuple[int, Tokens]], texts: Sequence[Text]
) -> list[int]:
    """Return the numbers of the rows that currently have the names of these texts."""
    names: dict[int, list[str]] = {}
    for text in texts:
        names.setdefault(collections[text.collection][0], []).append(text.name)
    sql = "SELECT no FROM text WHERE space = ? AND collection = ? AND name IN (@)"
    asked = [
        query_in_chunks(session, sql, (space, collection), wanted) for collection, wanted in names.items()
    ]
    return [no for rows in asked for (no,) in rows]
