"""Run the migrations on a database, from a program or from Alembic's command line.

Both ways run `env.py`, which puts `locked` around all steps: one transaction, and the lock that every opener
of a store takes (`engines.schema`), before Alembic even reads the version. So a second upgrader finds nothing
left to do, and a crash at any moment leaves the version from before.
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
    """Bring a database to a revision: all steps, or none.

    ``target`` is an open connection of SQLAlchemy, or where the store is, as `connect` takes it. What the
    driver raises comes through as it is.
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

    A folder that is not there yet is made, with an empty database.
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
    """One transaction that has the tables for itself; a database of someone else is refused."""
    with nullcontext() if connection.in_transaction() else connection.begin():
        raw: Any = connection.connection.driver_connection
        if not isinstance(raw, sqlite3.Connection):
            raw.execute(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
            read_info(raw, "postgresql")
        else:
            if not raw.in_transaction:
                # The sqlite3 module begins nothing by itself before DDL.
                raw.execute("BEGIN IMMEDIATE")
            read_info(raw, "sqlite")
        yield
        hit(BEFORE_COMMIT)


def options(dialect: str) -> dict[str, Any]:
    """How Alembic compares and writes migrations here."""

    def include_name(name: str | None, kind: str, _parents: object) -> bool:
        # FTS5 tables come and go with their collections, each with four more behind it.
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
    """Count revisions up, so that their order is their name: 0001, 0002, ..."""
    if directives and context.config is not None:
        head = ScriptDirectory.from_config(context.config).get_current_head()
        directives[0].rev_id = f"{int(head or 0) + 1:04d}"


def _sqlite(path: Path) -> Engine:
    path = path.expanduser()
    file = path if path.is_file() else path / SQLITE_FILE

    def create() -> sqlite3.Connection:
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file, timeout=LOCK_SECONDS)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before the first table
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
