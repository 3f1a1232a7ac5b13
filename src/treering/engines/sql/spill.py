"""Spilling: sets and queues that outgrow memory are kept in a private temporary database.

Garbage collection has to remember every address that it has visited, which for millions of addresses does not
fit into the process. A `SpillDatabase` is an unnamed SQLite database: it stays in a small cache until it
outgrows it, spills to a temporary file that no other process can open, and disappears when it is closed or
the process dies. **Invariant:** memory use is bounded, whatever is added.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from treering.engines.sql.session import IN_LIMIT
from treering.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from treering.engines.sql.session import Row

Key = int | bytes | str

_CACHE_KIB: Final = 16 * 1024
_NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_TYPES: Final = {"number": "INTEGER", "bytes": "BLOB", "text": "TEXT"}


class SpillDatabase:
    """A private temporary database, used by one thread at a time."""

    def __init__(self) -> None:
        # A generator that holds one may be resumed on another thread.
        self._connection = sqlite3.connect(
            "", isolation_level=None, check_same_thread=False, cached_statements=256
        )
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._connection.execute("BEGIN")  # one transaction throughout: nothing is ever rolled back

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query, or of a statement with RETURNING."""
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            raise _translated(error) from error

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        try:
            self._connection.executemany(sql, rows)
        except sqlite3.OperationalError as error:
            raise _translated(error) from error

    def close(self) -> None:
        """Discard everything."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SpillSet:
    """A set of keys on disk, each with its owner: a number stored with the key when it was first added."""

    def __init__(self, spill: SpillDatabase, table: str, kind: Literal["number", "bytes", "text"]) -> None:
        self.table = table
        self._spill = spill
        # An integer primary key is the table itself; for other keys, WITHOUT ROWID has the same effect.
        tail = "" if kind == "number" else " WITHOUT ROWID"
        spill.rows(f"CREATE TABLE {table} (key {_TYPES[kind]} NOT NULL PRIMARY KEY, owner INTEGER){tail}")

    def add(self, owners: dict[Any, int]) -> list[Any]:
        """Add keys with their owners; return those that were not in the set."""
        new: list[Any] = []
        # Sorted, so that neighbouring keys are written to the same page.
        pairs = sorted(owners.items())
        for chunk in _padded(pairs):
            values = ",".join(["(?,?)"] * len(chunk))
            flat = [value for pair in chunk for value in pair]
            rows = self._spill.rows(f"INSERT OR IGNORE INTO {self.table} VALUES {values} RETURNING key", flat)
            new += [key for (key,) in rows]
        return new

    def among(self, keys: Iterable[Any]) -> dict[Any, int]:
        """Return those of the keys that are in the set, with their owners."""
        found: dict[Any, int] = {}
        for chunk in _padded(sorted(set(keys))):
            marks = ",".join("?" * len(chunk))
            found.update(
                self._spill.rows(f"SELECT key, owner FROM {self.table} WHERE key IN ({marks})", chunk)
            )
        return found

    def page(self, after: Key | None, limit: int) -> list[Row]:
        """Return the next keys after ``after``, sorted, with their owners."""
        if after is None:
            return self._spill.rows(f"SELECT key, owner FROM {self.table} ORDER BY key LIMIT ?", (limit,))
        return self._spill.rows(
            f"SELECT key, owner FROM {self.table} WHERE key > ? ORDER BY key LIMIT ?",
            (after, limit),
        )

    def __len__(self) -> int:
        return self._spill.rows(f"SELECT count(*) FROM {self.table}")[0][0]


class SpillQueue:
    """The work that is left: a stack on disk."""

    def __init__(self, spill: SpillDatabase, table: str) -> None:
        self._spill = spill
        self._push = f"INSERT INTO {table} (what, key, owner) VALUES (?, ?, ?)"
        self._pop = (
            f"DELETE FROM {table} WHERE no IN (SELECT no FROM {table} ORDER BY no DESC LIMIT ?) "
            "RETURNING what, key, owner"
        )
        spill.rows(f"CREATE TABLE {table} (no INTEGER PRIMARY KEY, what TEXT, key, owner INTEGER)")

    def push(self, what: str, keys: Iterable[Key], owners: dict[Any, int]) -> None:
        """Push keys of a kind."""
        self._spill.many(self._push, [(what, key, owners[key]) for key in keys])

    def pop(self, limit: int) -> dict[str, dict[Any, int]]:
        """Pop entries: owners by key, by kind; empty if nothing is left."""
        found: dict[str, dict[Any, int]] = {}
        for what, key, owner in self._spill.rows(self._pop, (limit,)):
            found.setdefault(what, {})[key] = owner
        return found


def _translated(error: sqlite3.OperationalError) -> Exception:
    if error.sqlite_errorcode & 0xFF in _NO_ROOM:
        return StoreFull(
            f"the folder for temporary files is full ({error}); nothing more was deleted: "
            "free some space there, or set SQLITE_TMPDIR to another folder, and run it again"
        )
    return error


def _padded(values: Sequence[Any]) -> Iterable[list[Any]]:
    """Split into chunks with a power of two as length (the last value repeated): fewer statements."""
    for start in range(0, len(values), IN_LIMIT):
        chunk = list(values[start : start + IN_LIMIT])
        yield chunk + [chunk[-1]] * ((1 << (len(chunk) - 1).bit_length()) - len(chunk))
