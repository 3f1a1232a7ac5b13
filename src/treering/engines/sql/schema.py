"""Create, check and upgrade the tables of a store when it is opened.

An empty database gets the generated SQL in one transaction. A database at this version costs two small
reads. An older one is upgraded by Alembic, which is imported only then. A newer or foreign one is refused
before anything is touched. The version is the row in Alembic's own table, however the tables were created,
so ``alembic upgrade head`` and `ensure_schema` always agree.

**Invariant:** a database is at one version or the next, never in between. Tables and version change in one
transaction, under the lock that every opener takes (SQLite's write lock, an advisory lock on PostgreSQL),
and whatever was decided before the lock was taken is decided again under it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from treering import __version__
from treering.core.failpoints import declare, hit
from treering.errors import InvalidInput, MissingExtra, NewerStore

Dialect = Literal["sqlite", "postgresql"]

SCHEMA_VERSION: Final = "0001"
"""The newest migration; what the tables in `engines.tables` are."""

FORMAT: Final = "1"
"""How the bytes inside rows and packs are laid out."""

LOCK_KEY: Final = 0x7472_6565_7269_6E67  # "treering"
"""The advisory lock of PostgreSQL that guards every change of tables."""

LOCK_SECONDS: Final = 60
"""How long an opener waits for another that is creating or upgrading the tables."""

SQLITE_FILE: Final = "treering.db"
"""The database in the folder of a store."""

AFTER_STEP: Final = declare("migrate.after_step", "tables were changed, their version not committed")
BEFORE_COMMIT: Final = declare("migrate.before_commit", "tables and version are new, nothing is committed")

# Some of our tables, enough to tell a store from any other database that has an alembic_version.
_LANDMARKS: Final = frozenset({"alembic_version", "commits", "event", "item", "meta", "ref", "space"})

_TABLES: Final[dict[Dialect, str]] = {
    # Search tables are as many as there are collections; they are not needed to know a store.
    "sqlite": (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        " AND substr(name, 1, 7) <> 'sqlite_' AND substr(name, 1, 4) <> 'fts_'"
    ),
    # Tables that came with an extension are nobody's data.
    "postgresql": (
        "SELECT relname FROM pg_catalog.pg_class AS c WHERE relkind IN ('r', 'p')"
        " AND relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema())"
        " AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend WHERE objid = c.oid AND deptype = 'e')"
    ),
}
_STATE: Final = (
    "SELECT version_num, (SELECT value FROM meta WHERE key = 'format'),"
    " (SELECT value FROM meta WHERE key = 'store_id') FROM alembic_version"
)
_SQL_FILES: Final[dict[Dialect, str]] = {"sqlite": "sqlite.sql", "postgresql": "postgres.sql"}
_PLACEHOLDERS: Final[dict[Dialect, str]] = {"sqlite": "?", "postgresql": "%s"}


class Connection(Protocol):
    """What `ensure_schema` needs of a connection: outside of a transaction, and opening none by itself.

    A `sqlite3.Connection` with ``isolation_level=None`` and a psycopg connection with ``autocommit=True``
    are such connections.
    """

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        """Run one statement; gives back its rows, if it has any."""
        ...


def ensure_schema(connection: Connection, dialect: Dialect, *, location: str, store_id: str) -> str:
    """Make sure that the tables are there and of this version; gives back the id of the store.

    ``location`` is what Alembic opens when there is something to upgrade: the path of the database file on
    SQLite, the URL on PostgreSQL; no message shows a URL. ``store_id`` becomes the id of a store that has
    none yet. Errors of the driver are left to the caller; nothing is half done when one is raised.
    """
    with _patience(connection, dialect):
        state = read(connection, dialect) or _create(connection, dialect, store_id)
        if state.version != SCHEMA_VERSION or state.format != FORMAT:
            name = _name(connection, dialect)
            _check_not_newer(state, name)
            _upgrade(location, name, state.version)
        # A store that Alembic made from nothing has no id yet.
        return state.store_id or _adopt(connection, dialect, store_id)


def initial_sql(dialect: Dialect) -> str:
    """The generated SQL that makes a fresh store."""
    return (Path(__file__).parent / _SQL_FILES[dialect]).read_text(encoding="utf-8")


def statements(script: str) -> list[str]:
    """The single statements of a generated script."""
    lines = [line for line in script.splitlines() if line and not line.startswith("--")]
    return ("\n".join(lines) + "\n").split(";\n")[:-1]


class State(msgspec.Struct, frozen=True):
    """What a store says of itself."""

    version: str
    format: str
    store_id: str | None


def read(connection: Connection, dialect: Dialect) -> State | None:
    """The state of a store; ``None`` when the database is empty, `InvalidInput` when it is not a store."""
    # One question for all names: between two, another opener might make its tables.
    tables = {name for (name,) in connection.execute(_TABLES[dialect])}
    if not tables:
        return None
    if tables >= _LANDMARKS:
        for version, format, store_id in connection.execute(_STATE):  # noqa: A001 - the stored key
            if format is not None:
                return State(version, format, store_id)
    raise InvalidInput(_foreign(_name(connection, dialect), dialect, sorted(tables)))


def _foreign(name: str, dialect: Dialect, tables: list[str]) -> str:
    shown = ", ".join(tables[:5]) + (", ..." if len(tables) > 5 else "")  # noqa: PLR2004 - enough to recognise
    place = {
        "sqlite": "a folder",
        "postgresql": "a database or a schema (?options=-csearch_path%3D<schema> in the URL)",
    }[dialect]
    return f"{name} is no treering store but holds {shown}; give treering {place} of its own"


def _name(connection: Connection, dialect: Dialect) -> str:
    """The database in words that may stand in a message: a URL may hold a password."""
    if dialect == "sqlite":
        return next(file for _, name, file in connection.execute("PRAGMA database_list") if name == "main")
    ((database, user),) = connection.execute("SELECT current_database(), current_user")
    return f"the PostgreSQL database {database!r} of {user!r}"


def _create(connection: Connection, dialect: Dialect, store_id: str) -> State:
    """Make the tables, unless someone else just did; gives back what is there now."""
    if dialect == "postgresql" and [*connection.execute("SELECT current_schema()")] == [(None,)]:
        name = _name(connection, dialect)
        raise InvalidInput(f"{name} has no schema of the search_path; CREATE SCHEMA it, then open again")
    with _locked(connection, dialect):
        if state := read(connection, dialect):
            return state
        for statement in statements(initial_sql(dialect)):
            connection.execute(statement)
        hit(AFTER_STEP)
        _set_meta(connection, dialect, "created_by", f"treering {__version__}")
        _set_meta(connection, dialect, "store_id", store_id)
        hit(BEFORE_COMMIT)
    return State(SCHEMA_VERSION, FORMAT, store_id)


def _check_not_newer(state: State, name: str) -> None:
    is_ours = len(state.version) == len(SCHEMA_VERSION) and state.version.isdecimal()
    if state.format != FORMAT or not is_ours or state.version > SCHEMA_VERSION:
        raise NewerStore(
            f"{name} has schema {state.version} (format {state.format}), but treering {__version__} "
            f"knows only up to {SCHEMA_VERSION} (format {FORMAT}); "
            "upgrade it (pip install --upgrade treering) or open another store"
        )


def _upgrade(location: str, name: str, version: str) -> None:
    try:
        from treering.engines.sql.migrations.upgrade import upgrade
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"alembic", "sqlalchemy"}:
            raise
        raise MissingExtra(f"upgrading {name} from schema {version} to {SCHEMA_VERSION}", "migrate") from None
    upgrade(location)


def _adopt(connection: Connection, dialect: Dialect, store_id: str) -> str:
    """Give the store an id, unless another opener was first; gives back the id that it has."""
    with _locked(connection, dialect):
        for (value,) in connection.execute("SELECT value FROM meta WHERE key = 'store_id'"):
            return value
        _set_meta(connection, dialect, "store_id", store_id)
    return store_id


def _set_meta(connection: Connection, dialect: Dialect, key: str, value: str) -> None:
    mark = _PLACEHOLDERS[dialect]
    connection.execute(f"INSERT INTO meta (key, value) VALUES ({mark}, {mark})", (key, value))


@contextmanager
def _locked(connection: Connection, dialect: Dialect) -> Generator[None]:
    """A transaction that has the tables for itself."""
    # Read committed, so that what comes after the wait sees what the one before us did.
    connection.execute("BEGIN IMMEDIATE" if dialect == "sqlite" else "BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        if dialect == "postgresql":
            connection.execute(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
        yield
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk or a lost connection it is done already, and the first error is the one that counts.
        with suppress(Exception):
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _patience(connection: Connection, dialect: Dialect) -> Generator[None]:
    """Wait for other openers, also on a connection that otherwise never waits."""
    if dialect == "postgresql":
        yield
        return
    ((before,),) = connection.execute("PRAGMA busy_timeout")
    connection.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {before}")
