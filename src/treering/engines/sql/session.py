"""A session: the few things that the shared statements ask of a database driver.

Statements are written once, with ``?`` for parameters and in the SQL that SQLite (3.35 or later) and
PostgreSQL have in common. A driver runs them inside a transaction that it opened, and translates its
own errors into `treering.errors` before they get here.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from treering.engines.sql.dictionary import Dictionary

Dialect = Literal["sqlite", "postgresql"]
Row = tuple[Any, ...]

IN_LIMIT: Final = 512
"""How many values one statement compares with at most."""


RECEIPTS: Final = """\
SELECT batch, first_seq, last_seq, committed_at_us, receipt FROM commits
WHERE space = ? AND batch IN (@)"""
"""What a repeated batch is answered from."""


_INSERT: Final = re.compile(
    r"(?P<head>INSERT INTO .* VALUES )(?P<row>\((?:\?, )*\?\))(?P<tail>.*)", re.DOTALL
)


class Executor(Protocol):
    """Where statements go whose outcome nobody waits for."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement: an error shows at the end of the transaction."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row, in the same way; no two rows may stand for the same key."""
        ...


class Session(Executor, Protocol):
    """An open transaction."""

    @property
    def dictionary(self) -> Dictionary:
        """The phrases of the store."""
        ...

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query; also of a statement with RETURNING."""
        ...

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        ...

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; how many rows were changed in all."""
        ...

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """The rows of a query, to be looked at before anything is written.

        Over a network, questions that are asked before any answer is looked at travel together.
        """
        ...

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Let no other commit to this space run until the transaction ends.

        Asks for its counters (``seq``, ``committed_at_us``, ``scopes_dropped``), and for the rows of those
        of these batches that are committed already (see `RECEIPTS`).
        """
        ...

    def numbers(self, table: str, count: int) -> list[int]:
        """Fresh numbers for new rows of a table whose key is ``no``."""
        ...


def rows_in_chunks(session: Session, sql: str, before: Sequence[Any], values: Sequence[Any]) -> Iterator[Row]:
    """Rows of a query with ``IN (@)``, however many values there are.

    The value list is filled up to a power of two, so that few distinct statements have to be prepared.
    """
    for statement, parameters in _chunks(sql, before, values):
        yield from session.rows(statement, parameters)


def query_in_chunks(
    session: Session, sql: str, before: Sequence[Any], values: Sequence[Any]
) -> Iterable[Row]:
    """The same by `Session.query`: the questions are under way when this returns."""
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
    """The same INSERT for ``rows`` rows in one statement; ``None`` where that would mean something else.

    ``DO UPDATE`` may not touch a row twice in one statement, so rows have to be ``distinct`` for it.
    """
    found = _INSERT.fullmatch(sql)
    if found is None or "?" in found["tail"] or ("DO UPDATE" in found["tail"] and not distinct):
        return None
    return found["head"] + ", ".join([found["row"]] * rows) + found["tail"]


class Database(Protocol):
    """Where sessions come from: what `SqlEngine` and the caretakers ask of an engine's driver."""

    @property
    def dialect(self) -> Dialect:
        """Which database this is, for the few statements that differ."""
        ...

    @property
    def dictionary(self) -> Dictionary:
        """The phrases of the store."""
        ...

    def reading(self) -> AbstractContextManager[Session]:
        """A short read transaction, one consistent moment. Never held across user code."""
        ...

    def single_query(self) -> AbstractContextManager[Session]:
        """The same for a single question, which costs less where each is of one moment anyway."""
        ...

    def writing(self, space: int | None = None) -> AbstractContextManager[Session]:
        """A write transaction, committed on leaving and rolled back on an exception.

        With a space, its row is locked first: no commit of that space runs beside it.
        """
        ...

    def reclaim_space(self, *, secure: bool) -> None:
        """After a removal: give free space back; when ``secure``, leave no deleted byte in any file."""
        ...

    def now_us(self) -> int:
        """The database's clock, which leases and grace times go by."""
        ...
