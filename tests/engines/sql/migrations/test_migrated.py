"""Alembic, the generated SQL and `tables` define the same schema."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from tests.engines.sql.migrations.databases import Database
from tests.engines.sql.migrations.shape import shape_of
from treering.engines.sql import schema
from treering.engines.sql.migrations.upgrade import VERSION_FOLDERS, connect, options, upgrade
from treering.errors import InvalidInput


def test_a_fresh_schema_equals_a_migrated_one(database: Database, second_database: Database):
    database.ensure_schema()
    upgrade(second_database.place)
    fresh, migrated = shape_of(database), shape_of(second_database)
    assert fresh["reflected"] == migrated["reflected"]
    assert fresh["catalogue"] == migrated["catalogue"]
    assert {"event", "item", "alembic_version"} <= set(fresh["reflected"])
    assert database.version() == second_database.version()
    same = "SELECT key, value FROM meta WHERE key = 'format'"
    assert database.rows(same) == second_database.rows(same)


@pytest.mark.parametrize("way", ["generated", "migrated"])
def test_autogenerate_on_head_is_empty(database: Database, way):
    if way == "generated":
        database.ensure_schema()
    else:
        upgrade(database.place)
    assert differences(database) == []


def test_autogenerate_sees_a_lost_column_index_and_condition(database: Database):
    database.ensure_schema()
    database.run("DROP INDEX event_run")
    database.run("DROP INDEX list_parent")
    database.run("CREATE INDEX list_parent ON list (parent)")
    database.run("ALTER TABLE lease DROP COLUMN holder")
    kinds = [each[0] if isinstance(each, tuple) else each[0][0] for each in differences(database)]
    assert {"add_index", "add_column"} <= set(kinds)


def test_autogenerate_leaves_search_tables_alone(tmp_path):
    database = Database("sqlite", str(tmp_path / "treering.db"))
    database.ensure_schema()
    database.run("CREATE VIRTUAL TABLE fts_12 USING fts5(namespace, text)")
    assert database.rows("SELECT count(*) FROM sqlite_master WHERE name LIKE 'fts%'") == [(6,)]
    assert differences(database) == []


def test_the_version_of_the_package_is_the_newest_migration():
    (folder,) = VERSION_FOLDERS
    script = ScriptDirectory(folder.parent, version_locations=[folder])
    assert script.get_heads() == [schema.SCHEMA_VERSION]
    for revision in script.walk_revisions():
        assert revision.path.rpartition("/")[2].startswith(f"{revision.revision}_")


def test_a_store_created_by_alembic_gets_its_id_when_it_is_opened(database: Database):
    upgrade(database.place)
    assert database.ensure_schema("adopted") == "adopted"
    assert database.ensure_schema("later") == "adopted"


def test_a_program_may_hand_over_its_own_connection(database: Database):
    if database.dialect == "sqlite":
        engine = create_engine(f"sqlite:///{database.location}")
    else:
        engine = create_engine(database.location.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        upgrade(connection)
        assert not connection.closed
    engine.dispose()
    assert database.version() == schema.SCHEMA_VERSION


@pytest.mark.parametrize("form", ["{folder}", "sqlite:///{folder}"])
def test_a_sqlite_store_is_named_by_folder_or_url(tmp_path, form):
    upgrade(form.format(folder=tmp_path / "a % folder?"))
    database = Database("sqlite", str(tmp_path / "a % folder?" / schema.SQLITE_FILE))
    assert database.version() == schema.SCHEMA_VERSION
    assert database.rows("PRAGMA auto_vacuum") == [(2,)]


def test_alembic_leaves_a_foreign_database_alone(database: Database):
    database.run("CREATE TABLE customer (number integer)")
    with pytest.raises(InvalidInput, match="customer"):
        upgrade(database.place)
    assert database.tables() == {"customer"}


def test_another_kind_of_url_is_refused():
    with pytest.raises(InvalidInput, match="mysql"):
        upgrade("mysql://localhost/db")


def differences(database: Database) -> list:
    with connect(database.place) as connection:
        given = options(database.dialect)
        context = MigrationContext.configure(connection, opts=given)
        return compare_metadata(context, given["target_metadata"])
