"""Scratch: the memory of a walk over a whole space, kept on disk.

Garbage collection has to remember everything that it has seen; for millions of addresses that does not
belong into the process. A scratch is a private, unnamed SQLite database: it stays in a small cache until it
outgrows it, spills into a temporary file that nobody else can open, and is gone when it is closed or the
process dies. **Invariant:** memory stays flat, whatever is put in.
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


class Scratch:
    """A private database for one piece of work, of one thread at a time."""

    def __init__(self) -> None:
        # A generator that holds one may go on in another thread.
        self._connection = sqlite3.connect(
            "", isolation_level=None, check_same_thread=False, cached_statements=256
        )
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._connection.execute("BEGIN")  # one transaction for ever: nothing here needs to be undone

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query; also of a statement with RETURNING."""
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
        """Forget everything."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Seen:
    """A set of keys in a scratch. With each key it keeps a number: who was the first to bring it."""

    def __init__(self, scratch: Scratch, table: str, kind: Literal["number", "bytes", "text"]) -> None:
        self.table = table
        self._scratch = scratch
        # An integer primary key is the table itself; for other keys WITHOUT ROWID makes it so.
        tail = "" if kind == "number" else " WITHOUT ROWID"
        scratch.rows(f"CREATE TABLE {table} (key {_TYPES[kind]} NOT NULL PRIMARY KEY, owner INTEGER){tail}")

    def add(self, owners: dict[Any, int]) -> list[Any]:
        """Put keys in, each with its owner; those that were not there before."""
        new: list[Any] = []
        # In order of their keys, so that neighbours are written to one page while it is at hand.
        pairs = sorted(owners.items())
        for chunk in _padded(pairs):
            values = ",".join(["(?,?)"] * len(chunk))
            flat = [value for pair in chunk for value in pair]
            rows = self._scratch.rows(
                f"INSERT OR IGNORE INTO {self.table} VALUES {values} RETURNING key", flat
            )
            new += [key for (key,) in rows]
        return new

    def among(self, keys: Iterable[Any]) -> dict[Any, int]:
        """Which of these keys are in it, and their owners."""
        found: dict[Any, int] = {}
        for chunk in _padded(sorted(set(keys))):
            marks = ",".join("?" * len(chunk))
            found.update(
                self._scratch.rows(f"SELECT key, owner FROM {self.table} WHERE key IN ({marks})", chunk)
            )
        return found

    def page(self, after: Key | None, limit: int) -> list[Row]:
        """The next keys behind ``after`` with their owners, in order."""
        if after is None:
            return self._scratch.rows(f"SELECT key, owner FROM {self.table} ORDER BY key LIMIT ?", (limit,))
        return self._scratch.rows(
            f"SELECT key, owner FROM {self.table} WHERE key > ? ORDER BY key LIMIT ?",
            (after, limit),
        )

    def __len__(self) -> int:
        return self._scratch.rows(f"SELECT count(*) FROM {self.table}")[0][0]


class Todo:
    """What is still to be looked at: a stack in a scratch."""

    def __init__(self, scratch: Scratch, table: str) -> None:
        self._scratch = scratch
        self._push = f"INSERT INTO {table} (what, key, owner) VALUES (?, ?, ?)"
        self._pop = (
            f"DELETE FROM {table} WHERE no IN (SELECT no FROM {table} ORDER BY no DESC LIMIT ?) "
            "RETURNING what, key, owner"
        )
        scratch.rows(f"CREATE TABLE {table} (no INTEGER PRIMARY KEY, what TEXT, key, owner INTEGER)")

    def push(self, what: str, keys: Iterable[Key], owners: dict[Any, int]) -> None:
        """Put keys of a kind on top."""
        self._scratch.many(self._push, [(what, key, owners[key]) for key in keys])

    def pop(self, limit: int) -> dict[str, dict[Any, int]]:
        """Take the top off: owners by key by kind; empty when nothing is left."""
        found: dict[str, dict[Any, int]] = {}
        for what, key, owner in self._scratch.rows(self._pop, (limit,)):
            found.setdefault(what, {})[key] = owner
        return found


def _translated(error: sqlite3.OperationalError) -> Exception:
    if error.sqlite_errorcode & 0xFF in _NO_ROOM:
        return StoreFull(
            f"the folder for temporary files has no room ({error}); nothing more was deleted: "
            "free space there, or name another one in SQLITE_TMPDIR, and run it again"
        )
    return error


def _padded(values: Sequence[Any]) -> Iterable[list[Any]]:
    """Chunks as long as a power of two (the last value repeated), so that few statements are prepared."""
    for start in range(0, len(values), IN_LIMIT):
        chunk = list(values[start : start + IN_LIMIT])
        yield chunk + [chunk[-1]] * ((1 << (len(chunk) - 1).bit_length()) - len(chunk))
