"""A store of an older version is upgraded when it is opened: completely, once, and only forward.

The later versions are synthetic (see `future` in conftest): one adds a column, the next a table and an index.
"""

from __future__ import annotations

import builtins
import sys

import pytest

from tests.engines.sql.migrations import rows
from tests.engines.sql.migrations.conftest import LAST, NOW
from tests.engines.sql.migrations.databases import Database, open_together
from treering.core import failpoints
from treering.engines.sql import schema
from treering.errors import MissingExtra, NewerStore

OPENERS = 3
MOMENTS = [f"{schema.AFTER_STEP}=kill:1", f"{schema.AFTER_STEP}=kill:2", f"{schema.BEFORE_COMMIT}=kill"]


@pytest.fixture
def old(database: Database) -> Database:
    """A store of this version with rows in every table."""
    database.ensure_schema("old-store")
    with database.connection() as connection:
        rows.fill(connection, database.dialect)
    return database


def test_a_store_of_this_version_opens_unchanged(old: Database):
    before = all_rows(old)
    assert old.ensure_schema() == "old-store"
    assert all_rows(old) == before
    assert rows.holds_all(before)


@pytest.mark.usefixtures("later")
def test_opening_an_older_store_upgrades_it(old: Database):
    assert old.ensure_schema() == "old-store"
    assert old.version() == LAST
    assert old.rows("SELECT DISTINCT colour FROM ref") == [("green",)]
    assert "leaf" in old.tables()
    assert rows.holds_all(all_rows(old))


@pytest.mark.usefixtures("later")
def test_an_upgraded_store_opens_as_cheaply_as_any(old: Database, monkeypatch):
    old.ensure_schema()
    monkeypatch.setattr(schema, "_upgrade", None)
    assert old.ensure_schema() == "old-store"


@pytest.mark.usefixtures("later")
def test_an_upgraded_store_is_refused_by_the_older_treering(old: Database, monkeypatch):
    old.ensure_schema()
    monkeypatch.setattr(schema, "SCHEMA_VERSION", NOW)
    with pytest.raises(NewerStore, match=f"schema {LAST}"):
        old.ensure_schema()


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("failpoint", [schema.AFTER_STEP, schema.BEFORE_COMMIT])
def test_a_failed_upgrade_leaves_the_old_version_working(old: Database, failpoint):
    before = all_rows(old)
    failpoints.arm(failpoint, "raise")
    try:
        with pytest.raises(failpoints.Injected):
            old.ensure_schema()
    finally:
        failpoints.disarm()
    is_untouched(old, before)
    old.ensure_schema()
    assert old.version() == LAST


@pytest.mark.faults
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_upgrade_leaves_the_old_version_working(old: Database, future, moment, monkeypatch, request):
    before = all_rows(old)
    monkeypatch.setenv(failpoints.ENVIRONMENT, moment)
    killed = old.opener("x", "--versions", str(future), "--to", LAST)
    killed.communicate(timeout=110)
    assert killed.returncode == -9
    is_untouched(old, before)
    assert old.ensure_schema() == "old-store"
    old.run("UPDATE space SET seq = seq + 1")

    request.getfixturevalue("later")
    assert old.ensure_schema() == "old-store"
    assert old.version() == LAST


@pytest.mark.usefixtures("later")
def test_a_migration_that_fails_leaves_the_old_version_working(old: Database, future):
    third = future / f"{LAST}_leaf.py"
    third.write_text(third.read_text() + '    op.execute("INSERT INTO nowhere VALUES (1)")\n')
    before = all_rows(old)
    with pytest.raises(driver_error(old)):
        old.ensure_schema()
    is_untouched(old, before)


@pytest.mark.slow
def test_openers_of_an_old_store_wait_and_upgrade_it_once(old: Database, future, monkeypatch):
    # Each step takes a while, so that all openers meet during it.
    monkeypatch.setenv(failpoints.ENVIRONMENT, f"{schema.AFTER_STEP}=sleep:100")
    arguments = ("--wait", "--versions", str(future), "--to", LAST)
    openers = [old.opener(f"id-{n}", *arguments) for n in range(OPENERS)]
    assert set(open_together(openers)) == {"old-store"}
    assert old.version() == LAST
    assert rows.holds_all(all_rows(old))


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("missing", ["alembic", "sqlalchemy"])
def test_without_alembic_an_upgrade_names_what_to_install(old: Database, missing, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    for name in [*sys.modules]:
        if name.startswith(("treering.engines.sql.migrations", "treering.engines.sql.tables")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=rf"{NOW}.*{LAST}.*treering\[migrate\]"):
        old.ensure_schema()
    assert old.version() == NOW


def all_rows(database: Database) -> dict:
    with database.connection() as connection:
        return rows.stored(connection)


def is_untouched(database: Database, before: dict) -> None:
    assert database.version() == NOW
    assert "colour" not in database.columns("ref")
    assert "leaf" not in database.tables()
    assert all_rows(database) == before


def driver_error(database: Database) -> type[Exception]:
    if database.dialect == "sqlite":
        import sqlite3

        return sqlite3.OperationalError
    import psycopg

    return psycopg.errors.UndefinedTable
