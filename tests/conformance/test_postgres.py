"""The PostgreSQL engine passes the suite, with objects in rows and with objects in packs."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from treering.blobs.folder import FolderBlobs
from treering.engines.postgres import open_postgres
from treering.testing.engine_suite import CopyTests, EngineSuite, ErasureTests, ObjectTests, SweepTests
from treering.testing.machine import engine_machine


class TestPostgres(EngineSuite):
    skips = frozenset({"test_a_snapshot_is_a_consistent_store"})

    @pytest.fixture
    def make_engine(self, postgres_url):
        return lambda: open_postgres(postgres_url)


@pytest.fixture
def make_packing(postgres_url, tmp_path):
    return lambda: open_postgres(postgres_url, blobs=FolderBlobs(tmp_path / "packs"))


class TestPacks(ObjectTests, SweepTests, ErasureTests, CopyTests):
    """The tests affected by storing objects in packs; `make soak` runs the whole suite."""

    skips = TestPostgres.skips

    @pytest.fixture
    def make_engine(self, make_packing):
        return make_packing


@pytest.mark.soak
class TestPostgresWithPacks(TestPostgres):
    @pytest.fixture
    def make_engine(self, make_packing):
        return make_packing


@pytest.mark.timeout(600)  # shrinking a failure takes long
def test_random_histories(postgres_url):
    run_state_machine_as_test(engine_machine(lambda: open_postgres(postgres_url)))
