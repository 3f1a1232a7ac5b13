"""The SQLite engine passes the whole suite, at both durabilities, and agrees with the reference model."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from treering.blobs.folder import FolderBlobs
from treering.engines.sqlite import open_sqlite
from treering.testing.engine_suite import EngineSuite
from treering.testing.machine import engine_machine


def _open(folder, durability="full"):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability=durability)


class TestSqlite(EngineSuite):
    durability = "full"

    @pytest.fixture
    def storage(self, tmp_path):
        return tmp_path / "store"

    @pytest.fixture
    def make_engine(self, storage):
        return lambda: _open(storage, self.durability)

    def open_snapshot(self, folder):
        return _open(folder)


class TestSqliteFast(TestSqlite):
    durability = "fast"


@pytest.mark.timeout(600)  # shrinking a failure takes long
def test_random_histories(tmp_path):
    run_state_machine_as_test(engine_machine(lambda: _open(tmp_path / "store", "fast")))
