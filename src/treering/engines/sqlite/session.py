"""An open transaction of SQLite, as the shared statements use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.engines.relational.session import RECEIPTS, ask_in_chunks

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from treering.engines.relational.session import Row

_LOCK: Final = (
    "SELECT seq, committed_at_us, scopes_dropped, (SELECT coalesce(max(no), 0) FROM commits), "
    "EXISTS (SELECT 1 FROM commits WHERE space = ?1 AND batch = ?2) FROM space WHERE no = ?1"
)
"""One question for all: a lone batch is the ordinary case, and a question costs more than its answer."""


class SqliteSession:
    """An open transaction on a connection."""

    __slots__ = ("_connection", "_largest_commit")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._largest_commit: int | None = None

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return self._connection.execute(sql, parameters).fetchall()

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        return self._connection.execute(sql, parameters).rowcount

    def many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; how many rows were changed in all."""
        if len(rows) == 1:
            return self._connection.execute(sql, rows[0]).rowcount
        return self._connection.executemany(sql, rows).rowcount

    def ask(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """The rows of a query, read as they are looked at."""
        return self._connection.execute(sql, parameters)

    def tell(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        self._connection.execute(sql, parameters)

    def tell_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        if len(rows) == 1:
            self._connection.execute(sql, rows[0])
        else:
            self._connection.executemany(sql, rows)

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """The counters of a space; a write transaction has locked everything already."""
        first = batches[0] if batches else None
        row = self._connection.execute(_LOCK, (space, first)).fetchone()
        seq, committed_at_us, removals, self._largest_commit, is_there = row
        is_repeated = is_there or len(batches) > 1
        receipts = ask_in_chunks(self, RECEIPTS, (space,), batches) if is_repeated else ()
        return [(seq, committed_at_us, removals)], receipts

    def numbers(self, table: str, count: int) -> list[int]:
        """Fresh numbers: behind the largest in use, and behind all that were ever given out."""
        if table == "commits" and self._largest_commit is not None:
            return list(range(self._largest_commit + 1, self._largest_commit + 1 + count))
        sql = f"SELECT max(no) FROM {table}"
        ((largest,),) = self._connection.execute(sql)
        if table != "commits":  # rows of commits are never deleted
            for (given,) in self._connection.execute(
                "SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)
            ):
                largest = max(largest or 0, given)
        return list(range((largest or 0) + 1, (largest or 0) + 1 + count))
