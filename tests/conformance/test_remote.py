"""The remote engine passes the suite over a running server, on SQLite, on PostgreSQL and on memory.

Server and client are one process here, so the failpoints of the server's engine can be armed; nothing else is
shared, every call goes through a socket. Forked children reach the parent's server.
"""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test
from tests.server.running import running

import treering
from treering.engines.remote.engine import open_remote
from treering.server.settings import Settings
from treering.testing.engine_suite import EngineSuite
from treering.testing.machine import engine_machine

PLENTY = Settings(calls_per_second=1e6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("remote") / "store"


@pytest.fixture(scope="module")
def sqlite_url(folder):
    with running(treering.open(folder), PLENTY) as url:
        yield url


@pytest.fixture(scope="module")
def postgres_backed_url(postgres_server):
    database = postgres_server.create_database()
    with running(treering.open(database), PLENTY) as url:
        yield url
    postgres_server.drop_database(database)


@pytest.fixture(scope="module")
def memory_url():
    with running(treering.open("memory:"), PLENTY) as url:
        yield url


class TestRemote(EngineSuite):
    skips = frozenset({"test_a_snapshot_is_a_consistent_store"})

    @pytest.fixture
    def storage(self, folder):
        return folder

    @pytest.fixture
    def make_engine(self, sqlite_url):
        return lambda: open_remote(sqlite_url)


@pytest.mark.soak
class TestRemotePostgres(EngineSuite):
    """The same with another engine behind the server; it takes a minute and runs in `make soak`."""

    skips = frozenset({"test_a_snapshot_is_a_consistent_store"})

    @pytest.fixture
    def make_engine(self, postgres_backed_url):
        return lambda: open_remote(postgres_backed_url)


class TestRemoteMemory(EngineSuite):
    skips = frozenset(
        {
            # Nothing outlives the server.
            "test_acknowledged_commits_survive_reopening",
            "test_close_finishes_submitted_batches",
            "test_a_replay_after_reopening_is_a_replay",
            "test_sequence_numbers_continue_after_reopening",
            "test_a_snapshot_is_a_consistent_store",
        }
    )

    @pytest.fixture
    def make_engine(self, memory_url):
        return lambda: open_remote(memory_url)


def test_random_histories(tmp_path):
    with running(treering.open(tmp_path / "store", durability="fast"), PLENTY) as url:
        run_state_machine_as_test(engine_machine(lambda: open_remote(url), max_examples=6))
