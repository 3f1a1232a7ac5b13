"""An open transaction of SQLite, as the shared statements use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.engines.relational.session import RECEIPTS, ask_in_chunks
from treering.engines.sqlite.fresh import IS_FRESH

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from treering.engines.relational.session import Row

_LOCK: Final = (
    "SELECT seq, committed_at_us, scopes_dropped, (SELECT coalesce(max(no), 0) FROM commits), "
    "EXISTS (SELECT 1 FROM commits WHERE space = ?1 AND batch = ?2) FROM space WHERE no = ?1"
)
"""One question for all: a lone batch is the ordinary case, and a question costs more than its answer."""

_FRESH: Final = f"SELECT 1 FROM fresh WHERE slot = ? AND {IS_FRESH}"


class SqliteSession:
    """An open transaction on a connection.

    Whatever is over when its call returns goes through one cursor: making one costs as much as a statement.
    """

    __slots__ = ("_execute", "_execute_many", "_largest_commit", "connection")

    def __init__(self, connection: sqlite3.Connection) -> None:
        cursor = connection.cursor()
        self.connection = connection
        self._execute = cursor.execute
        self._execute_many = cursor.executemany
        self._largest_commit: int | None = None

    def begin(self) -> None:
        """Begin a write transaction; what the one before has learnt does not count any more."""
        self._largest_commit = None
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End the transaction, and make it durable."""
        self._execute("COMMIT")

    def roll_back(self) -> None:
        """Undo the transaction, if there still is one: some errors end it."""
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def is_fresh(self, slot: int = 0) -> bool:
        """Whether the commits in a slot have not settled; by the first one, whether any have not."""
        return bool(self._execute(_FRESH, (slot,)).fetchall())

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return self._execute(sql, parameters).fetchall()

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        return self._execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; how many rows were changed in all."""
        if len(rows) == 1:
            return self._execute(sql, rows[0]).rowcount
        return self._execute_many(sql, rows).rowcount

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """The rows of a query, read as they are looked at."""
        return self.connection.execute(sql, parameters)

    def tell(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        self._execute(sql, parameters)

    def tell_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        if len(rows) == 1:
            self._execute(sql, rows[0])
        else:
            self._execute_many(sql, rows)

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """The counters of a space; a write transaction has locked everything already."""
        first = batches[0] if batches else None
        ((seq, committed_at_us, removals, largest, is_there),) = self._execute(
            _LOCK, (space, first)
        ).fetchall()
        self._largest_commit = largest
        is_repeated = is_there or len(batches) > 1
        receipts = ask_in_chunks(self, RECEIPTS, (space,), batches) if is_repeated else ()
        return [(seq, committed_at_us, removals)], receipts

    def numbers(self, table: str, count: int) -> list[int]:
        """Fresh numbers: behind the largest in use, and behind all that were ever given out."""
        if table == "commits" and self._largest_commit is not None:
            return list(range(self._largest_commit + 1, self._largest_commit + 1 + count))
        ((largest,),) = self._execute(f"SELECT max(no) FROM {table}").fetchall()
        if table != "commits":  # rows of commits are never deleted
            given = self._execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchall()
            largest = max([largest or 0, *(seq for (seq,) in given)])
        return list(range((largest or 0) + 1, (largest or 0) + 1 + count))
