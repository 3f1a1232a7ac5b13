"""A session: the few things that the shared statements ask of a database driver.

Statements are written once, with ``?`` for parameters, in the SQL that SQLite (3.35 or later) and PostgreSQL
have in common. A driver runs them inside a transaction, and translates its own errors into `treering.errors`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from treering.engines.sql.rows import Dictionary

Dialect = Literal["sqlite", "postgresql"]
Row = tuple[Any, ...]

IN_LIMIT: Final = 512
"""The most values that one statement compares with."""


RECEIPTS: Final = """\
SELECT batch, no, first_seq, last_seq, committed_at_us, receipt, checksum FROM commits
WHERE space = ? AND batch IN (@)"""
"""The receipts of batches that are committed already."""


_INSERT: Final = re.compile(
    r"(?P<head>INSERT INTO .*? VALUES )(?P<row>\(.*?\))(?P<tail> ?(?:ON CONFLICT .*)?)", re.DOTALL
)


class Executor(Protocol):
    """Runs statements whose result nobody waits for."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement; an error may surface only at the end of the transaction."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row, likewise; no two rows may have the same key."""
        ...


class Session(Executor, Protocol):
    """An open transaction."""

    @property
    def dictionary(self) -> Dictionary:
        """The phrases of the store."""
        ...

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query, or of a statement with RETURNING."""
        ...

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; return how many rows it changed."""
        ...

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; return how many rows were changed in all."""
        ...

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a query, to be iterated over before anything is written.

        Over a network, queries made before any of their rows is looked at share a round trip.
        """
        ...

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Lock a space against other commits until the transaction ends.

        Returns its counters (``seq``, ``committed_at_us``, ``scopes_dropped``), and the `RECEIPTS` of those
        batches that are committed already.
        """
        ...

    def numbers(self, table: str, count: int) -> list[int]:
        """Return numbers for new rows of a table whose key is ``no``."""
        ...


def rows_in_chunks(session: Session, sql: str, before: Sequence[Any], values: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of a query with ``IN (@)``, for any number of values.

    The value list is padded to a power of two, so that few distinct statements have to be prepared.
    """
    for statement, parameters in _chunks(sql, before, values):
        yield from session.rows(statement, parameters)


def query_in_chunks(
    session: Session, sql: str, before: Sequence[Any], values: Sequence[Any]
) -> Iterable[Row]:
    """Do the same with `Session.query`: all queries are made when this returns."""
    if len(values) == 1:
        return session.query(sql.replace("@", "?"), (*before, *values))
    return chain.from_iterable([session.query(*each) for each in _chunks(sql, before, values)])


def _chunks(sql: str, before: Sequence[Any], values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    for start in range(0, len(values), IN_LIMIT):
        chunk = list(values[start : start + IN_LIMIT])
        size = 1 << (len(chunk) - 1).bit_length()
        chunk += [chunk[-1]] * (size - len(chunk))
        yield sql.replace("@", ",".join("?" * size)), [*before, *chunk]


@lru_cache(maxsize=1024)
def for_rows(sql: str, rows: int, *, distinct: bool) -> str | None:
    """Return an INSERT for ``rows`` rows in one statement; ``None`` if that has another meaning.

    ``DO UPDATE`` may not change a row twice in one statement, so rows have to be ``distinct`` for it.
    """
    found = _INSERT.fullmatch(sql)
    if found is None or "?" in found["tail"] or ("DO UPDATE" in found["tail"] and not distinct):
        return None
    return found["head"] + ", ".join([found["row"]] * rows) + found["tail"]


class Database(Protocol):
    """Where sessions come from: what `SqlEngine` and its modules ask of a driver."""

    @property
    def dialect(self) -> Dialect:
        """Which database it is, for the few statements that differ."""
        ...

    @property
    def dictionary(self) -> Dictionary:
        """The phrases of the store."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """A short read transaction, which sees one moment. Never held across user code."""
        ...

    def single_query(self) -> AbstractContextManager[Session]:
        """A session for one query, which is cheaper, because one query sees one moment anyway."""
        ...

    def writing(self, space: int | None = None) -> AbstractContextManager[Session]:
        """A write transaction, committed on leaving and rolled back on an exception.

        With a space, its row is locked first, so no commit to that space runs concurrently.
        """
        ...

    def reclaim_space(self, *, secure: bool) -> None:
        """Return free space after a removal; when ``secure``, leave no deleted byte in any file."""
        ...

    def now_us(self) -> int:
        """Return the time by the database's clock, which leases and grace periods use."""
        ...
