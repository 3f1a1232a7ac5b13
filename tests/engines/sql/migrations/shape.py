"""What a database looks like, as plain data that two databases can be compared by."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import inspect

from tests.engines.sql.migrations.databases import Database
from treering.engines.sql.migrations.upgrade import connect

_CATALOGUE = {
    # The text of each CREATE: AUTOINCREMENT, WITHOUT ROWID and the conditions of partial indexes are in it.
    "sqlite": "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%' ORDER BY 1, 2",
    # What PostgreSQL made of it: indexes with conditions and methods; collations and identities of columns.
    "postgresql": """
        SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()
        UNION ALL
        SELECT 'column', table_name || '.' || column_name,
               concat_ws(' ', ordinal_position, udt_name, collation_name, identity_generation, column_default)
          FROM information_schema.columns WHERE table_schema = current_schema()
        ORDER BY 1, 2
    """,
}


def shape_of(database: Database) -> dict[str, Any]:
    """Tables, columns, types, keys, uniques and indexes, by reflection and from the catalogue."""
    with connect(database.place) as connection:
        inspector = inspect(connection)
        reflected = {name: _reflected(inspector, name) for name in sorted(inspector.get_table_names())}
    catalogue = {(kind, name): _plain(sql) for kind, name, sql in database.rows(_CATALOGUE[database.dialect])}
    return {"reflected": reflected, "catalogue": catalogue}


def _reflected(inspector: Any, table: str) -> dict[str, Any]:
    columns = {
        column["name"]: (
            str(column["type"]),
            column["nullable"],
            column.get("default"),
            column.get("identity"),
        )
        for column in inspector.get_columns(table)
    }
    indexes = {
        index["name"]: (index["column_names"], bool(index["unique"]), _conditions(index))
        for index in inspector.get_indexes(table)
    }
    uniques = sorted((each["name"], each["column_names"]) for each in inspector.get_unique_constraints(table))
    return {
        "columns": columns,
        "key": inspector.get_pk_constraint(table)["constrained_columns"],
        "indexes": indexes,
        "uniques": uniques,
    }


def _conditions(index: Any) -> dict[str, str]:
    return {name: str(value) for name, value in index.get("dialect_options", {}).items() if "where" in name}


def _plain(sql: str) -> str:
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", sql)).strip()
