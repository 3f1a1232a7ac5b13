"""One interface to both kinds of database, so that every test runs on both."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from treering.engines.sql import schema

REPOSITORY = Path(__file__).resolve().parents[4]


@dataclass(frozen=True)
class Database:
    """A database that may hold a store: ``location`` is what `schema.ensure_schema` takes."""

    dialect: Literal["sqlite", "postgresql"]
    location: str

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.location if self.dialect == "sqlite" else self.location.rpartition("/")[2]

    @property
    def place(self) -> str:
        """What a user calls it: the folder, or the URL."""
        return str(Path(self.location).parent) if self.dialect == "sqlite" else self.location

    @contextmanager
    def connection(self):
        """A raw connection as the engines open it: no transaction of its own, no waiting."""
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.location, isolation_level=None, timeout=0)
            _use_wal(connection)
        else:
            import psycopg

            connection = psycopg.connect(self.location, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()

    def ensure_schema(self, store_id: str = "the-id", phrases: tuple[str, ...] = ()) -> str:
        with self.connection() as connection:
            info = schema.ensure_schema(
                connection, self.dialect, location=self.location, store_id=store_id, phrases=lambda: phrases
            )
        return info.store_id

    def rows(self, sql: str) -> list[tuple]:
        with self.connection() as connection:
            return list(connection.execute(sql))

    def run(self, sql: str) -> None:
        with self.connection() as connection:
            connection.execute(sql)

    def version(self) -> str:
        ((version,),) = self.rows("SELECT version_num FROM alembic_version")
        return version

    def tables(self) -> set[str]:
        return {name for (name,) in self.rows(schema._TABLES[self.dialect])}

    def columns(self, table: str) -> list[str]:
        with self.connection() as connection:
            cursor = connection.execute(f"SELECT * FROM {table} WHERE false")
            return [column[0] for column in cursor.description]

    def opener(self, *arguments: str) -> subprocess.Popen[str]:
        """Another process that prepares this database; see `tests.engines.sql.migrations.opener`."""
        command = [
            sys.executable,
            "-m",
            "tests.engines.sql.migrations.opener",
            self.dialect,
            self.location,
            *arguments,
        ]
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def open_together(openers: list[subprocess.Popen[str]]) -> list[str]:
    """Let processes that were started with ``--wait`` go at the same moment; the ids that they found."""
    for opener in openers:
        assert opener.stdout.readline() == "ready\n", opener.communicate()
    for opener in openers:
        opener.stdin.write("go\n")
        opener.stdin.flush()
    results = [(*opener.communicate(timeout=110), opener.returncode) for opener in openers]
    assert [error for _, error, code in results if code] == []
    return [out.strip() for out, _, _ in results]


def _use_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait here, whatever the busy timeout: an engine has to try again by itself.
    deadline = time.monotonic() + 30
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        else:
            return
