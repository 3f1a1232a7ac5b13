"""Commits of many writers: decided before the lock, in one order, and followed only once they are durable.

Nothing here depends on timing. `Gate` holds the lock of a space from outside until as many writers as a test
wants wait for it, each with a decision that the others are about to overtake.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest

from tests.servers.postgres import PostgresServer, own_cluster
from treering.core.batch import ABSENT, Add, Draft
from treering.core.content import Content
from treering.core.query import EventQuery, SumQuery
from treering.engines.postgres import open_postgres
from treering.errors import ListMoved, RefMoved
from treering.testing import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from treering.core.batch import Batch, Receipt
    from treering.engines.postgres import PostgresEngine

SPACE = "default"
WRITERS = 4
PATIENCE = 60
"""Seconds until a test gives up."""


@pytest.fixture
def writers(postgres_url: str) -> Iterator[list[PostgresEngine]]:
    engines = [open_postgres(postgres_url) for _ in range(WRITERS)]
    yield engines
    for engine in engines:
        engine.close()


class Gate:
    """Holds the lock of a space until writers wait for it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Self:
        self._holder = psycopg.connect(self._url)
        self._holder.execute("SELECT 1 FROM space WHERE name = %s FOR UPDATE", (SPACE,))
        self._watcher = psycopg.connect(self._url, autocommit=True)
        return self

    def wait_for(self, count: int) -> None:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'treering' AND wait_event_type = 'Lock'"
        )
        until(lambda: self._watcher.execute(waiting).fetchone() == (count,))

    def __exit__(self, *_: object) -> None:
        self._holder.close()
        self._watcher.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def together(
    postgres_url: str, writers: list[PostgresEngine]
) -> Callable[..., list[Receipt | BaseException]]:
    """Commit one batch per writer at the same moment, each decided before any of the others is written."""

    def commit(made: list[Batch]) -> list[Receipt | BaseException]:
        with Gate(postgres_url) as gate:
            futures = [engine.submit(batch) for engine, batch in zip(writers, made, strict=True)]
            gate.wait_for(len(futures))
        return [outcome(future) for future in futures]

    return commit


def outcome(future: Future[Receipt]) -> Receipt | BaseException:
    return future.exception(PATIENCE) or future.result()


def warm(writers: list[PostgresEngine], make: Callable[[], Batch]) -> None:
    for engine in writers:
        engine.commit(make())


def counting(name: str = "sum") -> Batch:
    draft = Draft(SPACE)
    draft.add_to_ref(name, Add(delta=1), scope=batches.SCOPE)
    return draft.batch()


def appending(at: int, number: int) -> Batch:
    draft = Draft(SPACE)
    draft.append("list", Content("text", b"item %d" % number), scope=batches.SCOPE, at=at)
    return draft.batch()


def test_one_of_several_writers_wins_a_compare_and_swap(writers, together):
    version = writers[0].commit(batches.set_ref(SPACE, "head", b"0")).versions["head"]
    for round_ in range(3):  # the first is decided on what was read, the others on what is cached
        found = together(
            [batches.set_ref(SPACE, "head", b"%d %d" % (round_, n), expect=version) for n in range(WRITERS)]
        )
        assert sorted(type(each).__name__ for each in found) == ["Receipt"] + ["RefMoved"] * (WRITERS - 1)
        assert all(isinstance(each, RefMoved) for each in found if isinstance(each, BaseException))
        (version,) = (each.versions["head"] for each in found if not isinstance(each, BaseException))
    assert writers[0].refs(SPACE, ["head"])["head"].version == version == 4


def test_one_of_several_writers_creates_a_ref(writers, together):
    writers[0].commit(batches.set_ref(SPACE, "other"))
    found = together([batches.set_ref(SPACE, "new", b"%d" % n, expect=ABSENT) for n in range(WRITERS)])
    assert sorted(type(each).__name__ for each in found) == ["Receipt"] + ["RefMoved"] * (WRITERS - 1)


@pytest.mark.parametrize("is_cached", [False, True])
def test_sums_of_writers_that_overtake_each_other_add_up(writers, together, is_cached):
    if is_cached:
        warm(writers, counting)
    before = WRITERS if is_cached else 0
    writers[0].commit(batches.set_ref(SPACE, "other"))
    found = together([counting() for _ in range(WRITERS)])
    assert sorted(each.sums["sum"] for each in found) == list(range(before + 1, before + WRITERS + 1))


def test_one_of_several_writers_appends_at_a_position(writers, together):
    writers[0].commit(appending(0, 0))
    found = together([appending(1, number) for number in range(WRITERS)])
    assert sorted(type(each).__name__ for each in found) == ["ListMoved"] * (WRITERS - 1) + ["Receipt"]
    assert any(isinstance(each, ListMoved) for each in found)
    assert len(writers[0].read_list(SPACE, "list", 0, 9)) == 2


def test_several_writers_create_the_same_scope_and_run(writers, together):
    writers[0].commit(batches.set_ref(SPACE, "other"))
    found = together([batches.events(SPACE, batches.call()) for _ in range(WRITERS)])
    assert sorted(each.first_seq for each in found) == list(range(2, 2 + WRITERS))
    (total,) = writers[0].sums(SPACE, SumQuery(grain="day"))
    assert total.events == WRITERS


def test_a_batch_submitted_by_several_writers_is_committed_once(writers, together):
    writers[0].commit(batches.set_ref(SPACE, "other"))
    batch = counting()
    first, *others = together([batch] * WRITERS)
    assert others == [first] * (WRITERS - 1)
    assert writers[0].refs(SPACE, ["sum"])["sum"].value == b"1"


def test_predicted_numbers_are_corrected_in_every_row(writers, together):
    """Including their checksums, which every read and `check` compare."""

    def step(writer: int, at: int) -> Batch:
        draft = Draft(SPACE)
        scope = f"/thread/{writer}"
        body = draft.put(Content("text", b"body of %d" % writer), scope=scope)
        draft.append(f"list {writer}", Content("text", b"item %d" % at), scope=scope, at=at)
        draft.set_ref(f"head {writer}", b"%d" % at, scope=scope, links=(body,))
        draft.event(batches.event("note"))
        draft.event(batches.event("note"))
        return draft.batch()

    receipts: list[Any] = [engine.commit(step(number, 0)) for number, engine in enumerate(writers)]
    for at in range(1, 4):
        receipts += together([step(number, at) for number in range(WRITERS)])
    receipts.sort(key=lambda receipt: receipt.first_seq)
    assert [(receipt.first_seq, receipt.last_seq) for receipt in receipts] == [
        (2 * at + 1, 2 * at + 2) for at in range(4 * WRITERS)
    ]
    times = [receipt.committed_at_us for receipt in receipts]
    assert times == sorted(set(times))
    records = writers[0].scan(SPACE, EventQuery()).records
    assert [(record.batch, record.committed_at_us) for record in records[::2]] == [
        (receipt.batch, receipt.committed_at_us) for receipt in receipts
    ]
    last = {receipt.batch: receipt for receipt in receipts}[records[-1].batch]
    heads = writers[0].refs(SPACE, [f"head {number}" for number in range(WRITERS)]).values()
    assert max((head.seq, head.changed_at_us) for head in heads) == (last.last_seq, last.committed_at_us)
    assert [each for each in writers[0].check(SPACE) if hasattr(each, "detail")] == []


def test_a_long_transaction_elsewhere_delays_neither_writers_nor_followers(writers, postgres_url):
    writers[0].commit(counting())
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE elsewhere (a int)")  # it has a transaction id, and does not end
        receipts = [engine.commit(counting()) for engine in writers]
        last = receipts[-1].last_seq
        assert writers[0].wait(SPACE, last - 1, seconds=PATIENCE) == last
        assert len(writers[1].scan(SPACE, EventQuery()).records) == 0


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A cluster whose settings a test may change."""
    request.applymarker("postgres")
    with own_cluster() as server:
        yield server


class Standby:
    """A synchronous standby that never answers: a commit is written, but not acknowledged."""

    def __init__(self, server: PostgresServer) -> None:
        self._admin = psycopg.connect(server.url("postgres"), autocommit=True)
        self._url = server.url("postgres")
        self._is_over = threading.Event()
        self._probe = threading.Thread(target=self._commit_until_one_waits)

    def __enter__(self) -> Self:
        self._require("away")
        self._probe.start()
        self.wait_for(0)
        return self

    def wait_for(self, count: int) -> None:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        until(lambda: self._admin.execute(waiting).fetchone() == (1 + count,))  # with the probe

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._require("")
        self._admin.close()
        self._probe.join()

    def _require(self, name: str) -> None:
        self._admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        self._admin.execute("SELECT pg_reload_conf()")

    def _commit_until_one_waits(self) -> None:
        """A server takes note of its new settings in its own time."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._is_over.is_set():
                connection.execute("SELECT pg_logical_emit_message(true, 'probe', '')")


def test_a_commit_that_is_not_durable_holds_up_no_writer_and_is_not_followed(own_server):
    url = own_server.create_database()
    engines = [open_postgres(url) for _ in range(3)]
    for _ in range(2):
        warm(engines, counting)  # they notice each other
    made = [counting(f"sum {number}") for number in range(2)]
    with ThreadPoolExecutor() as pool, psycopg.connect(url, autocommit=True) as connection:
        with Standby(own_server) as standby:
            futures = [engine.submit(batch) for engine, batch in zip(engines[:2], made, strict=True)]
            standby.wait_for(2)  # both are written: the first did not keep the lock while it waits
            assert connection.execute("SELECT seq FROM space").fetchone() == (8,)
            follower = pool.submit(engines[2].wait, SPACE, 6, seconds=PATIENCE)
            standby.wait_for(3)
            assert not follower.done()
            assert not any(future.done() for future in futures)
        receipts = [future.result(PATIENCE) for future in futures]
        assert follower.result(PATIENCE) == 8
    assert sorted(receipt.last_seq for receipt in receipts) == [7, 8]
    for engine in engines:
        engine.close()


def test_a_repeated_batch_is_acknowledged_only_when_it_is_durable(own_server):
    url = own_server.create_database()
    engines = [open_postgres(url) for _ in range(2)]
    for _ in range(2):
        warm(engines, counting)
    batch = counting()
    with Standby(own_server) as standby:
        futures = [engines[0].submit(batch)]
        standby.wait_for(1)
        futures.append(engines[1].submit(batch))  # as a client does that lost the answer
        standby.wait_for(2)
        assert not any(future.done() for future in futures)
    first, second = (future.result(PATIENCE) for future in futures)
    assert first == second
    for engine in engines:
        engine.close()
