"""Generate the SQL of a new store for each database from `treering.engines.sql.tables`."""

from __future__ import annotations

from operator import attrgetter

from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from treering.engines.sql.schema import FORMAT, SCHEMA_VERSION
from treering.engines.sql.tables import SQLITE_STATISTICS, metadata_for

HEADER = """\
-- A new treering store on {name}, schema {version}. Generated from src/treering/engines/sql/tables.py;
-- do not edit: change the tables, write a migration, and run: python scripts/generate.py
"""


def sqlite() -> str:
    rows = [f"INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES {each};\n" for each in SQLITE_STATISTICS]
    # Analysing an empty table creates the statistics table.
    return "\n".join([_render("SQLite", sqlite_dialect.dialect()), "".join(["ANALYZE meta;\n", *rows])])


def postgres() -> str:
    return _render("PostgreSQL", postgresql.dialect())


def _render(name, dialect) -> str:
    parts = [HEADER.format(name=name, version=SCHEMA_VERSION)]
    for table in metadata_for(dialect.name).tables.values():
        creates = [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=attrgetter("name")))]
        parts.append("".join(_statement(create.compile(dialect=dialect)) for create in creates))
    # Alembic's own table, so that a store knows its version in one place however it was made.
    parts.append(
        "CREATE TABLE alembic_version (\n"
        "  version_num VARCHAR(32) NOT NULL,\n"
        "  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)\n"
        ");\n"
        f"INSERT INTO alembic_version (version_num) VALUES ('{SCHEMA_VERSION}');\n"
    )
    parts.append(f"INSERT INTO meta (key, value) VALUES ('format', '{FORMAT}');\n")
    return "\n".join(parts)


def _statement(compiled) -> str:
    lines = [line.rstrip().replace("\t", "  ") for line in str(compiled).strip().splitlines()]
    return "\n".join(lines).replace("\n)\n ", "\n) ") + ";\n"
