"""Opening a database for the first time, and refusing one that is not a store."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from tests.engines.sql.migrations.conftest import NEXT
from tests.engines.sql.migrations.databases import REPOSITORY, Database, open_together
from treering.core import failpoints
from treering.engines.sql import schema
from treering.errors import InvalidInput, NewerStore

OPENERS = 8


def test_an_empty_database_becomes_a_store(database: Database):
    assert database.ensure_schema("store-1") == "store-1"
    assert database.version() == schema.SCHEMA_VERSION
    meta = dict(database.rows("SELECT key, value FROM meta"))
    assert meta["format"] == schema.FORMAT
    assert meta["store_id"] == "store-1"
    assert meta["created_by"].startswith("treering ")


def test_a_store_keeps_its_id(database: Database):
    database.ensure_schema("first")
    assert database.ensure_schema("second") == "first"


def test_opening_a_current_store_takes_two_reads_and_no_lock(database: Database):
    database.ensure_schema()
    asked: list[str] = []
    with database.connection() as connection:

        class Spy:
            def execute(self, sql, parameters=()):
                asked.append(sql)
                return connection.execute(sql, parameters)

        schema.ensure_schema(Spy(), database.dialect, location=database.location, store_id="other")
    statements = [sql for sql in asked if not sql.startswith("PRAGMA")]
    assert len(statements) == 2
    assert all(sql.startswith("SELECT") for sql in statements)


def test_a_connection_that_never_waits_still_does_not_afterwards(tmp_path):
    database = Database("sqlite", str(tmp_path / "treering.db"))
    with database.connection() as connection:
        schema.ensure_schema(connection, "sqlite", location=database.location, store_id="x")
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (0,)


def test_opening_loads_neither_an_orm_nor_the_migrations(tmp_path):
    script = (
        "import sys; from tests.engines.sql.migrations.databases import Database;"
        f"Database('sqlite', {str(tmp_path / 'treering.db')!r}).ensure_schema();"
        "print(sorted({'sqlalchemy', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_processes_that_open_a_fresh_store_at_once_make_one(database: Database):
    openers = [database.opener(f"id-{n}", "--wait") for n in range(OPENERS)]
    (given,) = set(open_together(openers))
    assert database.rows("SELECT value FROM meta WHERE key = 'store_id'") == [(given,)]
    assert database.rows("SELECT count(*) FROM alembic_version") == [(1,)]


@pytest.mark.parametrize("failpoint", [schema.AFTER_STEP, schema.BEFORE_COMMIT])
def test_a_failure_while_creating_leaves_an_empty_database(database: Database, failpoint):
    failpoints.arm(failpoint, "raise")
    try:
        with pytest.raises(failpoints.Injected):
            database.ensure_schema("torn")
    finally:
        failpoints.disarm()
    assert database.tables() == set()
    assert database.ensure_schema("whole") == "whole"


def test_a_full_disk_while_creating_is_what_the_caller_sees(tmp_path):
    database = Database("sqlite", str(tmp_path / "treering.db"))
    with database.connection() as connection:
        connection.execute("PRAGMA max_page_count = 8")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            schema.ensure_schema(connection, "sqlite", location=database.location, store_id="x")
        assert not connection.in_transaction
    assert database.tables() == set()


@pytest.mark.faults
@pytest.mark.parametrize("failpoint", [schema.AFTER_STEP, schema.BEFORE_COMMIT])
def test_a_kill_while_creating_leaves_an_empty_database(database: Database, failpoint, monkeypatch):
    monkeypatch.setenv(failpoints.ENVIRONMENT, f"{failpoint}=kill")
    killed = database.opener("torn")
    killed.communicate(timeout=110)
    assert killed.returncode == -9
    assert database.tables() == set()
    assert database.ensure_schema("whole") == "whole"


@pytest.mark.parametrize("version", [NEXT, "9999", "ae1027a6acf", ""])
def test_a_newer_or_unknown_version_is_refused_by_name(database: Database, version):
    database.ensure_schema()
    database.run(f"UPDATE alembic_version SET version_num = '{version}'")
    with pytest.raises(NewerStore) as refused:
        database.ensure_schema()
    for word in (f"schema {version}", schema.SCHEMA_VERSION, "pip install --upgrade treering", database.name):
        assert word in str(refused.value)
    assert database.version() == version


def test_a_newer_format_is_refused(database: Database):
    database.ensure_schema()
    database.run("UPDATE meta SET value = '2' WHERE key = 'format'")
    with pytest.raises(NewerStore, match="format 2"):
        database.ensure_schema()


@pytest.mark.parametrize(
    "tables",
    [
        ["customer"],
        ["alembic_version"],
        ["alembic_version", "meta"],
        sorted(schema._LANDMARKS - {"event"}),
    ],
)
def test_a_foreign_database_is_left_alone(database: Database, tables):
    for name in tables:
        database.run(f"CREATE TABLE {name} (number integer)")
    with pytest.raises(InvalidInput, match="not a treering store") as refused:
        database.ensure_schema()
    assert tables[0] in str(refused.value)
    assert database.tables() == set(tables)


def test_a_message_names_the_database_without_the_password(empty_postgres_url):
    database = Database("postgresql", empty_postgres_url)
    database.run("CREATE TABLE customer (number integer)")
    secret = empty_postgres_url.replace("treering@", "treering:hunter2@")
    with pytest.raises(InvalidInput) as refused:
        Database("postgresql", secret).ensure_schema()
    assert "hunter2" not in str(refused.value)
    assert database.name in str(refused.value)


def test_two_stores_live_in_two_schemas_of_one_database(empty_postgres_url):
    whole = Database("postgresql", empty_postgres_url)
    whole.run("CREATE SCHEMA oak")
    whole.run("CREATE TABLE customer (number integer)")
    oak = Database("postgresql", empty_postgres_url + "?options=-csearch_path%3Doak")
    assert oak.ensure_schema("in-oak") == "in-oak"
    assert whole.rows("SELECT to_regclass('oak.event') IS NOT NULL, to_regclass('public.event') IS NULL") == [
        (True, True)
    ]


def test_a_search_path_without_a_schema_is_named(empty_postgres_url):
    lost = Database("postgresql", empty_postgres_url + "?options=-csearch_path%3Dnowhere")
    with pytest.raises(InvalidInput, match="CREATE SCHEMA"):
        lost.ensure_schema()


def test_a_script_is_cut_into_its_statements():
    for dialect in ("sqlite", "postgresql"):
        script = schema.initial_sql(dialect)
        statements = schema.statements(script)
        verbs = ("CREATE ", "INSERT ", "ANALYZE ")
        assert len(statements) == sum(script.count("\n" + verb) for verb in verbs)
        assert all(statement.startswith(verbs) for statement in statements)


def test_numbers_that_other_rows_hold_are_never_given_twice(tmp_path):
    database = Database("sqlite", str(tmp_path / "treering.db"))
    database.ensure_schema()
    with database.connection() as connection:
        for table, columns in {
            "space": "(name, seq, committed_at_us, created_at_us) VALUES ('a', 0, 0, 0)",
            "scope": "(space, name) VALUES (1, 'a')",
            "pack": "(space, name, size, created_at_us) VALUES (1, 'a', 0, 0)",
            "list": "(space, id, scope, start, length, depth, seq, salt, checksum) "
            "VALUES (1, 'a', 1, 0, 0, 0, 1, x'00', 0)",
            "collection": "(space, name, tokens) VALUES (1, 'a', 'words')",
        }.items():
            numbers = []
            for _ in range(2):
                numbers.append(connection.execute(f"INSERT INTO {table} {columns}").lastrowid)
                connection.execute(f"DELETE FROM {table}")
            assert numbers == [1, 2], table
