"""A PostgreSQL primary dies under load, and its synchronous standby takes over: nothing acknowledged is lost.

Writers, follower and reader know both servers by one URL and are told nothing of the failover.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import treering
from tests.faults.loads import SPACE
from tests.faults.stores import postgres_location
from tests.faults.test_followers import is_complete, start, watch
from tests.servers.postgres import PostgresServer, kill_machine, replicated_cluster
from treering.core.query import EventQuery
from treering.testing import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.process import Started

pytestmark = pytest.mark.postgres
WRITERS = 4
PATIENCE = 60
"""Seconds until a test gives up."""


@pytest.fixture
def pair(server: Callable[..., object]) -> Iterator[tuple[Started, Started]]:
    server(PostgresServer, kind="postgres", marker="postgres")  # or skip, or say why there is none
    with replicated_cluster() as servers:
        yield servers


def url_of(*servers: Started) -> str:
    hosts = ",".join(f"127.0.0.1:{each.address['port']}" for each in servers)
    return f"postgresql://treering@{hosts}/postgres"


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(server: Started, sql: str) -> object:
    with psycopg.connect(url_of(server), autocommit=True) as connection:
        cursor = connection.execute(sql)
        found = cursor.fetchone() if cursor.description else None
    return found and found[0]


def promote(standby: Started) -> None:
    assert ask(standby, "SELECT pg_promote()")


def wait_for_standby(primary: Started) -> None:
    until(lambda: ask(primary, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1)


def test_no_acknowledged_write_is_lost_when_the_primary_dies(pair, tmp_path: Path):
    _fail_over(pair, tmp_path, 80)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_no_acknowledged_write_is_lost_under_long_load(pair, tmp_path: Path):
    _fail_over(pair, tmp_path, 1500)


def _fail_over(pair, folder: Path, commits: int) -> None:
    primary, standby = pair
    wait_for_standby(primary)
    location = postgres_location(url_of(standby, primary), folder / "packs")
    with location.open() as store:
        assert store.engine.scan(SPACE, EventQuery()).records == ()
        writers = [start(location, f"v{number}", folder / f"v{number}", commits) for number in range(WRITERS)]
        with ThreadPoolExecutor(1) as pool:
            try:
                following = pool.submit(watch, store, writers)
                until(lambda: all(len(each.acknowledged()) >= commits // 2 for each in writers))
                kill_machine(primary)
                promote(standby)
                seen = following.result()
            finally:
                for writer in writers:
                    writer.end()
        assert [writer.process.returncode for writer in writers] == [0] * WRITERS, (
            "they recover by themselves"
        )
        is_complete(store, seen, writers)
        assert store.verify().problems == ()
    acknowledged = sum(len(each.acknowledged()) for each in writers)
    assert acknowledged == len(seen)
    print(f"checked {acknowledged} acknowledged events")


def test_a_commit_whose_outcome_died_with_the_primary_is_found_by_its_batch_id(pair):
    primary, standby = pair
    wait_for_standby(primary)
    ask(primary, "ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
    ask(primary, "SELECT pg_reload_conf()")
    until(
        lambda: ask(primary, "SHOW synchronous_commit") == "remote_apply"
    )  # connections that open from now on
    with treering.open(url_of(primary, standby)) as store, ThreadPoolExecutor(1) as pool:
        store.commit(batches.set_ref(SPACE, "r", b"before"))
        # The standby has the commit but does not show it, so the primary does not acknowledge it.
        ask(standby, "SELECT pg_wal_replay_pause()")
        with psycopg.connect(url_of(primary), autocommit=True) as connection:
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            committing = pool.submit(store.commit, batches.set_ref(SPACE, "r", b"after", expect=1))
            until(lambda: connection.execute(waiting).fetchone() == (1,))
            arrived = "SELECT flush_lsn >= pg_current_wal_insert_lsn() FROM pg_stat_replication"
            until(lambda: connection.execute(arrived).fetchone() == (True,))
        assert not committing.done()
        kill_machine(primary)
        promote(standby)
        receipt = committing.result(PATIENCE)
        assert receipt.versions == {"r": 2}
        assert store.engine.refs(SPACE, ["r"])["r"].value == b"after"
        assert store.engine.stats(SPACE).commits == 2, "once, although it was sent twice"
