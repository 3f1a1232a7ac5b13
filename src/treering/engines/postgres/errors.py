"""The one place where errors of PostgreSQL and of psycopg become ours.

The server says what went wrong by a five-character SQLSTATE, which decides the class; its words are
passed on for people. Where there is no SQLSTATE, the connection itself failed.
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


class Lost(Unreachable):
    """The connection broke while it was used; what had not been committed is undone."""


class Repeated(TreeringError):
    """An event or a batch that was taken for new is there already. Never leaves the engine."""


class Moved(TreeringError):
    """The space is not any more as it was remembered. Never leaves the engine."""


_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
"""The server went away or ended the session: shutdown, crash, start-up, idle too long."""

_TAKEN_FOR_NEW: Final = frozenset({"event_space_day_id_key", "commits_space_batch_key"})
_DIVISION_BY_ZERO: Final = "22012"
"""How a statement says that its condition does not hold: nothing else divides (`Current.advanced`)."""


def of_result(result: PGresult, where: str) -> TreeringError:
    """Our error for a statement that the server refused; ``where`` names the database."""
    state = _field(result, DiagnosticField.SQLSTATE)
    words = _field(result, DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message().strip()
    if state == "23505" and _field(result, DiagnosticField.CONSTRAINT_NAME) in _TAKEN_FOR_NEW:
        return Repeated(f"{where}: {words}")
    if state == _DIVISION_BY_ZERO:
        return Moved(f"{where}: {words}")
    return _of_state(state, words, where)


def translated(error: Error, where: str) -> TreeringError:
    """Our error for one that psycopg raised."""
    words = str(error).strip().replace("\n", " ")
    if error.sqlstate is None and isinstance(error, (DataError, ProgrammingError)):
        return InvalidInput(f"{where} cannot take this value: {words}; nothing was written")
    if error.sqlstate is None and isinstance(error, InterfaceError):
        return TreeringError(f"{where}: psycopg says {words}")
    return _of_state(error.sqlstate or "", words, where)


def refused(error: Error, where: str) -> Unreachable:
    """Our error for a connection that could not be made."""
    words = " ".join(str(error).split())
    return Unreachable(
        f"{where} cannot be opened: {words}; check that the server runs and that host, port, user, password "
        "and database in the URL are right"
    )


def _of_state(state: str, words: str, where: str) -> TreeringError:
    if not state or state in _LOST or state.startswith("08"):
        return Lost(f"{where}: the connection was lost ({words}); try again when the server is back")
    for prefix, (kind, advice) in _KINDS.items():
        if state.startswith(prefix):
            return kind(f"{where}: {words} ({state}); {advice}")
    return TreeringError(f"{where}: PostgreSQL says {words} ({state})")


_KINDS: Final[dict[str, tuple[type[TreeringError], str]]] = {
    "25006": (ReadOnly, "connect to the primary, or as a role that may write"),
    "42501": (ReadOnly, "grant this role all rights on the tables and sequences of the store"),
    "53100": (StoreFull, "nothing of this write was kept; free space on the server and retry"),
    "53300": (Busy, "raise max_connections of the server or close other clients, then try again"),
    "53": (Unreachable, "the server is short of resources; try again later"),
    "40": (Busy, "other transactions were in the way; try again"),
    "55P03": (Busy, "another writer holds the space; try again"),
    "57014": (Busy, "the statement was cancelled or took longer than the server allows; try again"),
    "58": (Unreachable, "the server's disk or system fails; look at its log"),
    "XX001": (Corrupt, "restore the database from a backup"),
    "XX002": (Corrupt, "REINDEX the database, then run `treering verify`"),
    "22": (InvalidInput, "nothing was written"),
    "54": (InvalidInput, "a name or a value is too large for PostgreSQL; nothing was written"),
    "26000": (
        Unsupported,
        "a pooler in between loses prepared statements; use PgBouncer 1.21 or newer, or none",
    ),
    "42P05": (
        Unsupported,
        "a pooler in between mixes up prepared statements; use PgBouncer 1.21 or newer, or none",
    ),
}
"""By SQLSTATE or its beginning; the first that fits counts."""


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode("utf-8", "replace")
