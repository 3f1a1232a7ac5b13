"""Run the migrations on a database, from a program or from Alembic's command line.

Both run `env.py`, which puts `locked` around all steps: one transaction, and the lock that every opener of a
store takes (`engines.sql.schema`), before Alembic even reads the version. So a second upgrade finds
nothing to do, and a crash at any moment leaves the previous version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.operations import MigrationScript
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from treering.core.failpoints import hit
from treering.engines.sql.schema import (
    AFTER_STEP,
    BEFORE_COMMIT,
    LOCK_KEY,
    LOCK_SECONDS,
    SQLITE_FILE,
    read_info,
)
from treering.engines.sql.tables import metadata_for
from treering.errors import InvalidInput, MissingExtra

_HERE: Final = Path(__file__).parent
VERSION_FOLDERS: Final = (_HERE / "versions",)


def upgrade(target: Connection | str | Path, *, revision: str = "head") -> None:
    """Upgrade a database to a revision: all steps, or none.

    ``target`` is an open SQLAlchemy connection, or the location of the store, as `connect` takes it. Errors
    of the driver are raised as they are.
    """
    config = Config()
    config.set_main_option("script_location", _escaped(_HERE))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(_escaped, VERSION_FOLDERS)))
    try:
        with nullcontext(target) if isinstance(target, Connection) else connect(target) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    except DBAPIError as error:
        raise error.orig or error from error


@contextmanager
def connect(location: str | Path) -> Generator[Connection]:
    """Open the database of a store: a folder, ``sqlite:///folder``, ``postgresql://...``, or the file itself.

    A missing folder is created, with an empty database.
    """
    scheme, separator, rest = str(location).partition("://")
    if not separator:
        engine = _sqlite(Path(location))
    elif scheme == "sqlite":
        engine = _sqlite(Path(rest.removeprefix("/")))
    elif scheme in {"postgresql", "postgres"}:
        engine = _postgres(f"postgresql://{rest}")
    else:
        raise InvalidInput(
            f"cannot migrate a {scheme}:// store; give a folder, sqlite:///folder or postgresql://..."
        )
    with engine.connect() as connection:
        yield connection


@contextmanager
def locked(connection: Connection) -> Generator[None]:
    """One transaction with exclusive access to the tables; a foreign database is refused."""
    with nullcontext() if connection.in_transaction() else connection.begin():
        raw: Any = connection.connection.driver_connection
        if not isinstance(raw, sqlite3.Connection):
            raw.execute(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
            read_info(raw, "postgresql")
        else:
            if not raw.in_transaction:
                # The sqlite3 module does not begin a transaction before DDL.
                raw.execute("BEGIN IMMEDIATE")
            read_info(raw, "sqlite")
        yield
        hit(BEFORE_COMMIT)


def options(dialect: str) -> dict[str, Any]:
    """Return how Alembic compares and writes migrations here."""

    def include_name(name: str | None, kind: str, _parents: object) -> bool:
        # FTS5 tables belong to collections, and have four shadow tables each.
        return not (kind == "table" and dialect == "sqlite" and (name or "").startswith("fts_"))

    return {
        "target_metadata": metadata_for(dialect),
        "include_name": include_name,
        "render_as_batch": True,
        "transactional_ddl": True,
        "on_version_apply": _after_step,
        "process_revision_directives": _number_revision,
    }


def _after_step(**_: object) -> None:
    hit(AFTER_STEP)


def _number_revision(context: MigrationContext, _heads: object, directives: list[MigrationScript]) -> None:
    """Number revisions, so that their names show their order: 0001, 0002, ..."""
    if directives and context.config is not None:
        head = ScriptDirectory.from_config(context.config).get_current_head()
        directives[0].rev_id = f"{int(head or 0) + 1:04d}"


def _sqlite(path: Path) -> Engine:
    path = path.expanduser()
    file = path if path.is_file() else path / SQLITE_FILE

    def create() -> sqlite3.Connection:
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file, timeout=LOCK_SECONDS)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the first table
        return connection

    return create_engine("sqlite://", creator=create, poolclass=NullPool)


def _postgres(url: str) -> Engine:
    try:
        import psycopg
    except ModuleNotFoundError:
        raise MissingExtra("PostgreSQL", "postgres") from None

    # libpq reads the URL: it knows forms (several hosts, service files) that SQLAlchemy does not.
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
