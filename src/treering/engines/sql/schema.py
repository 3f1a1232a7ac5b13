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

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from treering import __version__
from treering.core.failpoints import declare, hit
from treering.engines.sql.rows import encode_phrases
from treering.errors import InvalidInput, MissingExtra, NewerStore

Dialect = Literal["sqlite", "postgresql"]

SCHEMA_VERSION: Final = "0001"
"""The newest migration, which the tables in `engines.sql.tables` match."""

FORMAT: Final = "1"
"""The format of the bytes inside rows and packs."""

LOCK_KEY: Final = 0x7472_6565_7269_6E67  # "treering"
"""The advisory lock on PostgreSQL that guards every change of tables."""

LOCK_SECONDS: Final = 60
"""How long an opener waits while another creates or upgrades the tables."""

SQLITE_FILE: Final = "treering.db"
"""The database file in the folder of a store."""

AFTER_STEP: Final = declare("migrate.after_step", "tables were changed, their version not committed")
BEFORE_COMMIT: Final = declare("migrate.before_commit", "tables and version are new, nothing is committed")

# Enough of our tables to tell a store from another database that uses Alembic.
_LANDMARKS: Final = frozenset({"alembic_version", "commits", "event", "item", "meta", "ref", "space"})

_TABLES: Final[dict[Dialect, str]] = {
    # There is a search table per collection; they are not needed to recognise a store.
    "sqlite": (
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        " AND substr(name, 1, 7) <> 'sqlite_' AND substr(name, 1, 4) <> 'fts_'"
    ),
    # Tables of extensions do not count.
    "postgresql": (
        "SELECT relname FROM pg_catalog.pg_class AS c WHERE relkind IN ('r', 'p')"
        " AND relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = current_schema())"
        " AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend WHERE objid = c.oid AND deptype = 'e')"
    ),
}
_INFO: Final = (
    "SELECT version_num, (SELECT value FROM meta WHERE key = 'format'),"
    " (SELECT value FROM meta WHERE key = 'store_id'),"
    " (SELECT value FROM meta WHERE key = 'dictionary') FROM alembic_version"
)
_SQL_FILES: Final[dict[Dialect, str]] = {"sqlite": "sqlite.sql", "postgresql": "postgres.sql"}
_PLACEHOLDERS: Final[dict[Dialect, str]] = {"sqlite": "?", "postgresql": "%s"}


class Connection(Protocol):
    """What `ensure_schema` needs of a connection: outside of a transaction, and starting none by itself.

    A `sqlite3.Connection` with ``isolation_level=None`` and a psycopg connection with ``autocommit=True``
    qualify.
    """

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterable[Sequence[Any]]:
        """Run one statement; return its rows, if it has any."""
        ...


class StoreInfo(msgspec.Struct, frozen=True):
    """What a store says about itself."""

    version: str
    format: str
    store_id: str | None
    dictionary: str | None
    """Its phrases (see `rows`). Like the id, missing in a store that Alembic has just created."""


def ensure_schema(
    connection: Connection,
    dialect: Dialect,
    *,
    location: str,
    store_id: str,
    phrases: Callable[[], Sequence[str]] = tuple,
) -> StoreInfo:
    """Make sure that the tables exist and are at this version; return what the store says about itself.

    ``location`` is what Alembic opens if the store has to be upgraded: the path of the database file on
    SQLite, the URL on PostgreSQL; no message shows a URL. A store that has no id and dictionary yet gets
    ``store_id`` and what ``phrases`` returns. Errors of the driver are left to the caller; then nothing is
    half done.
    """
    with _waiting(connection, dialect):
        info = read_info(connection, dialect) or _create(connection, dialect)
        if info.version != SCHEMA_VERSION or info.format != FORMAT:
            name = _name(connection, dialect)
            _check_not_newer(info, name)
            _upgrade(location, name, info.version)
            info = read_info(connection, dialect)
        if info is None or info.store_id is None or info.dictionary is None:
            return _initialize(connection, dialect, store_id, phrases)
        return info


def initial_sql(dialect: Dialect) -> str:
    """Return the generated SQL that creates a store."""
    return (Path(__file__).parent / _SQL_FILES[dialect]).read_text(encoding="utf-8")


def statements(script: str) -> list[str]:
    """Return the single statements of a generated script."""
    lines = [line for line in script.splitlines() if line and not line.startswith("--")]
    return ("\n".join(lines) + "\n").split(";\n")[:-1]


def read_info(connection: Connection, dialect: Dialect) -> StoreInfo | None:
    """Return what a store says about itself, or ``None`` if the database is empty.

    Raises `InvalidInput` if it is not a store.
    """
    # One query for all names: between two, another opener might create its tables.
    tables = {name for (name,) in connection.execute(_TABLES[dialect])}
    if not tables:
        return None
    if tables >= _LANDMARKS:
        for row in connection.execute(_INFO):
            info = StoreInfo(*row)
            if info.format is not None:  # pyright: ignore[reportUnnecessaryComparison] - in a foreign database
                return info
    raise InvalidInput(_foreign(_name(connection, dialect), dialect, sorted(tables)))


def _foreign(name: str, dialect: Dialect, tables: list[str]) -> str:
    shown = ", ".join(tables[:5]) + (", ..." if len(tables) > 5 else "")  # noqa: PLR2004 - enough to recognise
    place = {
        "sqlite": "a folder",
        "postgresql": "a database or a schema (?options=-csearch_path%3D<schema> in the URL)",
    }[dialect]
    return f"{name} is not a treering store; it holds {shown}. Give treering {place} of its own"


def _name(connection: Connection, dialect: Dialect) -> str:
    """The name of the database in messages; a URL may contain a password."""
    if dialect == "sqlite":
        return next(file for _, name, file in connection.execute("PRAGMA database_list") if name == "main")
    ((database, user),) = connection.execute("SELECT current_database(), current_user")
    return f"the PostgreSQL database {database!r} of {user!r}"


def _create(connection: Connection, dialect: Dialect) -> StoreInfo:
    """Create the tables, unless another process just did."""
    if dialect == "postgresql" and [*connection.execute("SELECT current_schema()")] == [(None,)]:
        name = _name(connection, dialect)
        raise InvalidInput(f"{name} has no schema of the search_path; CREATE SCHEMA it, then open again")
    with _locked(connection, dialect):
        if info := read_info(connection, dialect):
            return info
        for statement in statements(initial_sql(dialect)):
            connection.execute(statement)
        hit(AFTER_STEP)
        _set_meta(connection, dialect, "created_by", f"treering {__version__}")
        hit(BEFORE_COMMIT)
    return StoreInfo(SCHEMA_VERSION, FORMAT, None, None)


def _check_not_newer(info: StoreInfo, name: str) -> None:
    is_ours = len(info.version) == len(SCHEMA_VERSION) and info.version.isdecimal()
    if info.format != FORMAT or not is_ours or info.version > SCHEMA_VERSION:
        raise NewerStore(
            f"{name} has schema {info.version} (format {info.format}), but treering {__version__} "
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


def _initialize(
    connection: Connection, dialect: Dialect, store_id: str, phrases: Callable[[], Sequence[str]]
) -> StoreInfo:
    """Give a new store its id and dictionary, unless another opener was first."""
    with _locked(connection, dialect):
        keys = {key for (key,) in connection.execute("SELECT key FROM meta")}
        if "store_id" not in keys:
            _set_meta(connection, dialect, "store_id", store_id)
        if "dictionary" not in keys:
            _set_meta(connection, dialect, "dictionary", encode_phrases(phrases()))
        info = read_info(connection, dialect)
    assert info is not None  # noqa: S101 - its tables exist
    return info


def _set_meta(connection: Connection, dialect: Dialect, key: str, value: str) -> None:
    mark = _PLACEHOLDERS[dialect]
    connection.execute(f"INSERT INTO meta (key, value) VALUES ({mark}, {mark})", (key, value))


@contextmanager
def _locked(connection: Connection, dialect: Dialect) -> Generator[None]:
    """A transaction with exclusive access to the tables."""
    # Read committed, so that statements after the wait see what the previous opener did.
    connection.execute("BEGIN IMMEDIATE" if dialect == "sqlite" else "BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        if dialect == "postgresql":
            connection.execute(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After a full disk or a lost connection it has ended already, and the first error counts.
        with suppress(Exception):
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _waiting(connection: Connection, dialect: Dialect) -> Generator[None]:
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
