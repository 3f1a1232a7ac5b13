"""The one place where errors of PostgreSQL and psycopg become ours.

The server reports an error with a five-character SQLSTATE, which decides the class; its message is passed on
for people to read. Without a SQLSTATE, the connection itself failed.
"""

from __future__ import annotations

from typing import Final

from psycopg import Error
from psycopg.errors import DataError, InterfaceError, ProgrammingError
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from treering.errors import (
    Busy,
    Corrupt,
    InvalidInput,
    ReadOnly,
    StoreFull,
    TreeringError,
    Unreachable,
    Unsupported,
)


class ConnectionLost(Unreachable):
    """The connection broke while it was in use; what had not been committed is rolled back."""


class AlreadyStored(TreeringError):
    """An event or batch that was assumed to be new exists already. Never leaves the engine."""


class StaleCache(TreeringError):
    """The space has changed since it was cached. Never leaves the engine."""


_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
"""The server went away or ended the session: shutdown, crash, start-up, idle too long."""

_UNIQUE_VIOLATION: Final = "23505"
_DIVISION_BY_ZERO: Final = "22012"
"""How a statement reports that its condition does not hold: nothing else divides (`guarded`)."""


def error_of_result(result: PGresult, where: str) -> TreeringError:
    """Return our error for a statement that the server refused; ``where`` names the database."""
    state = _field(result, DiagnosticField.SQLSTATE)
    message = _field(result, DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message().strip()
    if state == _UNIQUE_VIOLATION:  # the name of the key does not tell which: partitions have their own
        return AlreadyStored(f"{where}: {message}")
    if state == _DIVISION_BY_ZERO:
        return StaleCache(f"{where}: {message}")
    return _of_state(state, message, where)


def translate(error: Error, where: str) -> TreeringError:
    """Return our error for one that psycopg raised."""
    message = str(error).strip().replace("\n", " ")
    if error.sqlstate is None and isinstance(error, (DataError, ProgrammingError)):
        return InvalidInput(f"{where} cannot store this value: {message}; nothing was written")
    if error.sqlstate is None and isinstance(error, InterfaceError):
        return TreeringError(f"{where}: psycopg reports {message}")
    return _of_state(error.sqlstate or "", message, where)


def connection_refused(error: Error, where: str) -> Unreachable:
    """Return our error for a connection that could not be opened."""
    message = " ".join(str(error).split())
    return Unreachable(
        f"{where} cannot be opened: {message}; check that the server is running and that host, port, user, "
        "password and database in the URL are right"
    )


def _of_state(state: str, message: str, where: str) -> TreeringError:
    if not state or state in _LOST or (state.startswith("08") and state not in _KINDS):
        return ConnectionLost(f"{where}: connection lost ({message}); retry when the server is back")
    for prefix, (kind, advice) in _KINDS.items():
        if state.startswith(prefix):
            return kind(f"{where}: {message} ({state}); {advice}")
    return TreeringError(f"{where}: PostgreSQL reports {message} ({state})")


_POOL_MODE: Final = "set pool_mode = transaction or session in PgBouncer"
_KINDS: Final[dict[str, tuple[type[TreeringError], str]]] = {
    "25006": (ReadOnly, "connect to the primary, or as a role that may write"),
    "42501": (ReadOnly, "grant this role all rights on the tables and sequences of the store"),
    "53100": (StoreFull, "nothing was written; free space on the server and retry"),
    "53300": (Busy, "raise max_connections of the server or close other clients, then retry"),
    "53": (Unreachable, "the server is short of resources; retry later"),
    "40": (Busy, "the transaction conflicts with others; retry"),
    "55P03": (Busy, "another writer holds the space; retry"),
    "57014": (Busy, "the statement was cancelled or timed out; retry"),
    "58": (Unreachable, "the server's disk or system failed; see its log"),
    "XX001": (Corrupt, "restore the database from a backup"),
    "XX002": (Corrupt, "REINDEX the database, then run `treering verify`"),
    "22": (InvalidInput, "nothing was written"),
    "54": (InvalidInput, "a name or value is too large for PostgreSQL; nothing was written"),
    "26000": (Unsupported, f"a connection pooler lost a prepared statement; {_POOL_MODE}"),
    "42P05": (Unsupported, f"a connection pooler mixed up connections; {_POOL_MODE}"),
    "08P01": (Unsupported, f"a pooler or proxy broke the protocol; {_POOL_MODE}"),
}
"""By SQLSTATE or its prefix; the first that matches counts."""


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode("utf-8", "replace")
