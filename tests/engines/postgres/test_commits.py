"""Commits to PostgreSQL that are decided from the cache: one round trip, and never a wrong result."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pytest
from hypothesis.stateful import run_state_machine_as_test

from treering.core.batch import ABSENT, Draft
from treering.core.content import Content
from treering.core.query import Erasure, EventQuery
from treering.engines.postgres import open_postgres
from treering.engines.postgres.engine import Announcer
from treering.engines.postgres.errors import ConnectionLost
from treering.engines.postgres.pipeline import FLUSH, PendingResult, Pipeline
from treering.engines.sql.commit import decide as decide_module
from treering.engines.sql.gc.mark import Mark
from treering.errors import ListMoved, MissingObjects, NotFound, RefMoved, TreeringError
from treering.testing import batches
from treering.testing.machine import engine_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.batch import Batch
    from treering.engines.postgres import PostgresEngine

SPACE = "default"
ANSWER_LOST = "the result was lost"


@pytest.fixture
def mine(postgres_url: str) -> Iterator[PostgresEngine]:
    engine = open_postgres(postgres_url)
    yield engine
    engine.close()


@pytest.fixture
def theirs(postgres_url: str) -> Iterator[PostgresEngine]:
    engine = open_postgres(postgres_url)
    yield engine
    engine.close()


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The statements of each round trip of a write transaction.

    Nothing is announced, because that would be another write transaction.
    """
    seen: list[list[str]] = []
    send = Pipeline.send

    def counted(self: Pipeline) -> None:
        statements = [due.sql for due in self._due if not isinstance(due, str)]
        if not statements[0].startswith("BEGIN ISOLATION LEVEL REPEATABLE") and statements != ["COMMIT"]:
            seen.append(statements)
        send(self)

    monkeypatch.setattr(Announcer, "announce", lambda *_: None)
    monkeypatch.setattr(Pipeline, "send", counted)
    return seen


@pytest.fixture(autouse=True, params=["plain events", "events with totals"])
def made_event(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without roll-ups to update."""
    if request.param == "plain events":
        monkeypatch.setattr(batches, "call", lambda: batches.event("note"))


def step(at: int, *, space: str = SPACE) -> Batch:
    """What a step of an agent does: append an item, add an event, move the head."""
    draft = Draft(space)
    draft.append("list", Content("text", b"item %d" % at), scope=batches.SCOPE, at=at)
    draft.set_ref("head", b"%d" % at, scope=batches.SCOPE, expect=at or ABSENT)
    draft.event(batches.call())
    return draft.batch()


def counted(engine: PostgresEngine, exchanges: list[list[str]], batch: Batch) -> int:
    exchanges.clear()
    engine.commit(batch)
    return len(exchanges)


def test_a_lone_writer_commits_in_one_round_trip(mine, exchanges):
    for at in range(3):
        mine.commit(step(at))
    for at in range(3, 10):
        assert counted(mine, exchanges, step(at)) == 1
        assert [each for each in exchanges[0] if each.startswith("SELECT")] == []


def test_links_to_content_of_earlier_commits_cost_no_query(mine, theirs, exchanges):

    def linking() -> Batch:
        draft = Draft(SPACE)
        draft.set_ref("head", b"", scope=batches.SCOPE, links=(slot, content))
        return draft.batch()

    draft = Draft(SPACE)
    slot = draft.put(Content("text", b"small"), scope=batches.SCOPE)
    content = draft.put(Content("bytes", b"large" * 5000), scope=batches.SCOPE)
    draft.set_ref("head", b"", scope=batches.SCOPE, links=(slot, content))
    mine.commit(draft.batch())
    assert [counted(mine, exchanges, linking()) for _ in range(3)] == [1, 1, 1]
    theirs.erase(SPACE, Erasure(scopes=(batches.SCOPE,)))
    with pytest.raises((NotFound, MissingObjects)):
        mine.commit(linking())


def test_a_commit_of_another_writer_to_something_else_costs_nothing(mine, theirs, exchanges):
    mine.commit(step(0))
    mine.commit(step(1))
    theirs.commit(batches.set_ref(SPACE, "other"))
    assert counted(mine, exchanges, step(2)) == 1
    assert mine.refs(SPACE, ["head"])["head"].version == 3


def test_writers_of_one_head_read_it_and_write_without_holding_the_lock_in_between(mine, theirs, exchanges):
    for at in range(10):
        (mine, theirs)[at % 2].commit(step(at))
    exchanges.clear()
    for at in range(10, 20):
        (mine, theirs)[at % 2].commit(step(at))
    assert len(exchanges) == 10  # reading is not counted
    assert not any("FOR UPDATE" in sql for statements in exchanges for sql in statements)


def test_the_lock_is_released_before_the_flush_while_there_are_other_writers(mine, theirs, exchanges):
    mine.commit(step(0))
    mine.commit(step(1))
    assert counted(mine, exchanges, step(2)) == 1
    assert FLUSH not in exchanges[0]
    theirs.commit(batches.set_ref(SPACE, "other"))
    mine.commit(step(3))  # notices the other one
    for at in range(4, 4 + decide_module.EXPECT_OTHERS):
        assert counted(mine, exchanges, step(at)) == 1
        assert exchanges[0][-2:] == ["COMMIT", FLUSH]
    assert counted(mine, exchanges, step(4 + decide_module.EXPECT_OTHERS)) == 1
    assert FLUSH not in exchanges[0]


def test_a_rejection_is_never_taken_from_the_cache(mine, theirs):
    mine.commit(batches.set_ref(SPACE, "head", b"1"))
    theirs.commit(batches.set_ref(SPACE, "head", b"2"))
    # The cache has version 1, the database version 2.
    assert mine.commit(batches.set_ref(SPACE, "head", b"3", expect=2)).versions == {"head": 3}
    with pytest.raises(RefMoved, match="version 3, expected version 2"):
        mine.commit(batches.set_ref(SPACE, "head", b"4", expect=2))


def test_a_batch_that_another_process_committed_returns_its_receipt(mine, theirs):
    batch = batches.set_ref(SPACE, "head", b"1")
    receipt = theirs.commit(batch)
    theirs.commit(batches.set_ref(SPACE, "head", b"2"))
    mine.commit(batches.set_ref(SPACE, "head", b"3"))
    assert mine.commit(batch) == receipt
    assert mine.refs(SPACE, ["head"])["head"].value == b"3"


def test_a_repeated_event_is_not_counted_again(mine):
    event = batches.call()
    mine.commit(batches.events(SPACE, event))
    mine.commit(batches.events(SPACE, batches.call()))
    assert mine.commit(batches.events(SPACE, event, batches.call())).new_events == 1
    assert len(mine.scan(SPACE, EventQuery()).records) == 3


def test_commit_times_increase_across_processes(mine, theirs, monkeypatch):
    monkeypatch.setattr(mine._postgres, "now_us", lambda: 1000)
    monkeypatch.setattr(theirs._postgres, "now_us", lambda: 2000)
    times = [
        engine.commit(batches.set_ref(SPACE, "head")).committed_at_us
        for engine in (mine, mine, mine, theirs, theirs, mine, mine, theirs)
    ]
    assert times == [1000, 1001, 1002, 2000, 2001, 2002, 2003, 2004]


def test_a_server_restored_to_an_earlier_state_is_noticed(mine, postgres_url):
    """As after a failover: commits are lost, and others have reached the same sequence number."""
    for at in range(3):
        mine.commit(step(at))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        before = connection.execute("SELECT length, seq, checksum FROM list").fetchone()
        mine.commit(step(3))
        connection.execute("UPDATE list SET length = %s, seq = %s, checksum = %s", before)
        connection.execute("UPDATE space SET committed_at_us = committed_at_us + 1")
    with pytest.raises(ListMoved, match="has 3 items, expected 4"):
        mine.commit(step(4))


def test_nothing_is_written_if_the_space_is_gone(mine, postgres_url):
    before = 3
    for at in range(before):
        mine.commit(step(at))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DELETE FROM space")
        with pytest.raises(Exception):  # noqa: B017, PT011 - a broken database
            mine.commit(step(before))
        assert connection.execute("SELECT count(*) FROM commits").fetchone() == (before,)
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (before,)


@pytest.mark.parametrize("arrives", [False, True])
def test_a_connection_lost_in_the_only_round_trip(mine, monkeypatch, arrives):
    for at in range(3):
        mine.commit(step(at))
    collect = Pipeline.collect

    def lost_once(self: Pipeline) -> None:
        if any(getattr(due, "sql", "").startswith("WITH moved") for due in self._due):
            monkeypatch.setattr(Pipeline, "collect", collect)
            if arrives:
                collect(self)
            self.dead = True
            raise ConnectionLost(ANSWER_LOST)
        collect(self)

    monkeypatch.setattr(Pipeline, "collect", lost_once)
    batch = step(3)
    receipt = mine.commit(batch)
    assert receipt.versions == {"head": 4}
    assert mine.commit(batch) == receipt
    mine.commit(step(4))
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 5


def test_an_empty_transaction_sends_nothing(mine, exchanges):
    mine.spaces()
    for _ in range(4):
        with mine._database.writing():
            pass
    assert exchanges == []


def test_a_commit_that_is_refused_at_its_very_end(mine, postgres_url):
    before = 3
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.batch = 'refused' THEN RAISE 'not this one'; END IF; RETURN NULL; END $$"
        )
        connection.execute(
            "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON commits DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    for at in range(before):
        mine.commit(step(at))
    with pytest.raises(TreeringError, match="not this one"):
        mine.commit(msgspec.structs.replace(step(before), id="refused"))
    assert mine.commit(step(before)).versions == {"head": before + 1}
    assert len(mine.read_list(SPACE, "list", 0, 99)) == before + 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_while_statements_are_queued_commits_nothing(mine, monkeypatch, error):
    for at in range(3):
        mine.commit(step(at))
    queue = Pipeline._queue

    def interrupted(self: Pipeline, pending: PendingResult, values: Any, formats: Any) -> None:
        if pending.sql.startswith("INSERT INTO item"):
            monkeypatch.setattr(Pipeline, "_queue", queue)
            raise error
        queue(self, pending, values, formats)

    monkeypatch.setattr(Pipeline, "_queue", interrupted)
    with pytest.raises(error):
        mine.commit(step(3))
    assert len(mine.scan(SPACE, EventQuery()).records) == 3
    assert mine.commit(step(3)).versions == {"head": 4}
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 4


def test_a_forked_child_and_its_parent_use_different_numbers(mine):
    for at in range(2):
        mine.commit(step(at))
    child = os.fork()
    if not child:
        code = 1
        try:
            mine.commit(step(2))
            mine.commit(step(3))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    mine.commit(step(4))
    mine.commit(step(5))
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 6
    assert [each for each in mine.check(SPACE) if hasattr(each, "detail")] == []


def test_commits_after_the_start_of_a_mark_have_higher_numbers(mine):
    mine.commit(step(0))
    mine.commit(step(1))
    mine.commit(step(0, space="other"))
    mark = Mark(mine._database, mine._spaces[SPACE], lambda *_: None, precise=False)  # type: ignore[arg-type]
    mark.begin()
    batch = step(2)
    mine.commit(batch)
    with mine._database.reading() as session:
        ((number,),) = session.rows("SELECT no FROM commits WHERE batch = ?", (batch.id,))
    assert number > mark.commit_no


class AlternatingEngines:
    """Two engines on one database behind one interface: each call goes to one of them."""

    def __init__(self, url: str, seed: int) -> None:
        self._engines = [open_postgres(url) for _ in range(2)]
        self._chance = random.Random(seed)
        self._engine = self._engines[0]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def __getattr__(self, name: str) -> Any:
        if self._chance.random() < 0.3:
            self._engine = self._chance.choice(self._engines)
        return getattr(self._engine, name)


@pytest.mark.timeout(600)  # shrinking a failure takes long
def test_random_histories_of_alternating_engines(postgres_url):
    seeds = iter(range(1_000_000))
    run_state_machine_as_test(
        engine_machine(lambda: AlternatingEngines(postgres_url, next(seeds)), max_examples=12)
    )  # type: ignore[arg-type, return-value]
