"""A store of before 0003 spells its runs out; after the upgrade they are numbers, and everything is found."""

from __future__ import annotations

import treering
from tests.engines.sql.migrations import rows
from tests.engines.sql.migrations.databases import Database
from treering.core.query import EventQuery, SumQuery
from treering.core.records import Problem
from treering.engines.sql import schema
from treering.engines.sql.migrations.upgrade import upgrade
from treering.engines.sql.rows import run_number

BEFORE = "0002"


def spelt(row: dict) -> dict:
    """A row as it was before: the run by its name."""
    named = {"run": "r1"} if row.get("run") == run_number("r1") else {}
    return row | named | ({"key": "r1"} if row.get("grain") == "run" else {})


def fill_as_before(database: Database) -> None:
    mark = "?" if database.dialect == "sqlite" else "%s"
    with database.connection() as connection:
        for table, each in rows.ROWS.items():
            for row in map(spelt, each) if table != "run" else ():
                columns, marks = ", ".join(f'"{name}"' for name in row), ", ".join([mark] * len(row))
                connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))


def test_the_runs_of_an_old_store_become_numbers(database: Database):
    upgrade(database.place, revision=BEFORE)
    fill_as_before(database)
    database.ensure_schema()
    assert database.version() == schema.SCHEMA_VERSION
    with database.connection() as connection:
        assert rows.holds_all(rows.stored(connection))


def test_an_old_store_is_asked_for_its_runs_by_name(database: Database):
    upgrade(database.place, revision=BEFORE)
    fill_as_before(database)
    with treering.open(database.place) as store:
        found = store.engine.scan("default", EventQuery(run="r1")).records
        assert [record.event.id for record in found] == ["e1", "e2"]
        assert {record.event.run for record in found} == {"r1"}
        (total,) = store.engine.sums("default", SumQuery(grain="run", by=("key",)))
        assert (total.group, total.cost_nanos) == (("r1",), 1_500_000)
        assert store.engine.sums("default", SumQuery(grain="run", key="r1"))[0].events == 1
        store.engine.reindex("default")
        found = [each for each in store.engine.check("default") if isinstance(each, Problem)]
        assert not [problem for problem in found if problem.kind == "derived"]
