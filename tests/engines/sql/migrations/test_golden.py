"""A dump of a store of every schema version: each must open, upgrade and return all of its data."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import treering
from tests.engines.sql.migrations import rows
from tests.engines.sql.migrations.databases import Database
from treering.core.content import object_address
from treering.core.query import EventQuery, SumQuery
from treering.core.records import Problem
from treering.engines.sql import schema
from treering.engines.sql.migrations.upgrade import VERSION_FOLDERS

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.sqlite.sql"))


def test_there_is_a_golden_store_of_every_version():
    (folder,) = VERSION_FOLDERS
    assert sorted(path.name[:4] for path in folder.glob("[0-9]*.py")) == VERSIONS


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A store as that version left it."""
    database = Database("sqlite", str(tmp_path / schema.SQLITE_FILE))
    loaded = sqlite3.connect(database.location)
    loaded.executescript((GOLDEN / f"{request.param}.sqlite.sql").read_text(encoding="utf-8"))
    loaded.close()
    assert database.version() == request.param
    return database


def test_a_golden_store_comes_to_this_version_with_all_its_rows(golden: Database):
    assert golden.ensure_schema("other") == "golden"
    assert golden.version() == schema.SCHEMA_VERSION
    with golden.connection() as connection:
        assert rows.holds_all(rows.stored(connection))
    assert golden.rows("PRAGMA integrity_check") == [("ok",)]


def test_a_golden_store_can_be_read(golden: Database):
    with treering.open(golden.place) as store:
        engine = store.engine
        assert engine.read_list("default", "list-1", 0, 9) == list(rows.MESSAGES)
        assert [record.event.id for record in engine.scan("default", EventQuery()).records] == [
            "e1",
            "e2",
            "e3",
        ]
        assert engine.scan("default", EventQuery(ids=("e1",))).records[0].event.data == b'{"topic":"refund"}'
        assert engine.get("default", [object_address(rows.LARGE.name)]) == [rows.LARGE]
        assert engine.refs("default", ["thread/support/alice", "gone"]).keys() == {"thread/support/alice"}


def test_the_runs_of_a_golden_store_are_found_by_name(golden: Database):
    with treering.open(golden.place) as store:
        engine = store.engine
        found = engine.scan("default", EventQuery(run="r1")).records
        assert [record.event.id for record in found] == ["e1", "e2"]
        assert {record.event.run for record in found} == {"r1"}
        (total,) = engine.sums("default", SumQuery(grain="run", by=("key",)))
        assert (total.group, total.cost_nanos) == (("r1",), 1_500_000)
        assert engine.sums("default", SumQuery(grain="run", key="r1"))[0].events == 1


def test_a_golden_store_can_be_reindexed(golden: Database):
    with treering.open(golden.place) as store:
        store.engine.reindex("default")
        problems = [each for each in store.engine.check("default") if isinstance(each, Problem)]
    assert not [problem for problem in problems if problem.kind == "derived"]
