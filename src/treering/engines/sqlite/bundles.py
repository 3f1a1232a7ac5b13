"""Bundles: the statements of a commit, run as one.

Every call of SQLite lets go of Python's lock, and where other threads wait for it, getting it back costs more
than the statement: LangGraph saves from threads of its own. So an ordinary commit is one call, which begins
the transaction, sees whether what is remembered holds, writes all rows and commits. SQLite runs several
statements in one call only inside of a trigger: each sequence of statements that comes again and again gets a
view on this connection, seen by nobody else, and a trigger that runs them with the values of a row that is
"inserted" there. **Invariant:** all of a bundle happens or nothing; one that is refused, for whatever reason,
is left to the long way, which finds out why.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_BUNDLES: Final = 64
"""Of a connection; commits of further forms take the long way."""
OFTEN: Final = 3
"""How often a sequence has to come before it is worth a trigger."""

_PARAMETER: Final = re.compile(r"\?")
_UNMOVED: Final = (
    "SELECT RAISE(ABORT, 'moved') WHERE NOT EXISTS ("
    "SELECT 1 FROM space WHERE no = ? AND seq = ? AND committed_at_us = ? AND scopes_dropped = ?)"
)


class Bundle:
    """Statements and their values, gathered to be run as one."""

    __slots__ = ("statements", "values")

    def __init__(self, space: int, counters: tuple[int, int, int]) -> None:
        self.statements: list[str] = [_UNMOVED]
        self.values: list[Any] = [space, *counters]

    def tell(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        self.statements.append(sql)
        self.values += parameters

    def tell_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        for row in rows:
            self.statements.append(sql)
            self.values += row


class Bundles:
    """The bundles that a connection knows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.cursor().execute
        self._known: dict[tuple[str, ...], str] = {}
        self._seen: dict[tuple[str, ...], int] = {}

    def run(self, bundle: Bundle) -> bool:
        """Run a bundle as a transaction of its own; whether it came through. A lock that is taken raises."""
        statements = tuple(bundle.statements)
        insert = self._known.get(statements)
        if insert is None:
            insert = self._learnt(statements, len(bundle.values))
            if insert is None:
                return False
        try:
            self._execute(insert, bundle.values)
        except sqlite3.IntegrityError:
            return False
        return True

    def _learnt(self, statements: tuple[str, ...], values: int) -> str | None:
        if len(self._known) >= MOST_BUNDLES:
            return None
        if len(self._seen) > MOST_BUNDLES:
            self._seen.clear()
        self._seen[statements] = self._seen.get(statements, 0) + 1
        if self._seen[statements] < OFTEN:
            return None
        name = f"bundle_{len(self._known)}"
        numbers = iter(range(values))
        body = _PARAMETER.sub(lambda _: f"NEW.v{next(numbers)}", "; ".join(statements))
        columns = ", ".join(f"v{number}" for number in range(values))
        self._execute(
            f"CREATE TEMP VIEW IF NOT EXISTS {name} ({columns}) AS SELECT {', '.join(['NULL'] * values)}"
        )
        self._execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS {name}_run INSTEAD OF INSERT ON {name} BEGIN {body}; END"
        )
        insert = self._known[statements] = f"INSERT INTO {name} VALUES ({', '.join('?' * values)})"
        return insert
