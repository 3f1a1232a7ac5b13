"""A commit to PostgreSQL that is decided from memory: one exchange, and never anything wrong."""

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
from treering.engines.postgres import follow, open_postgres, pipeline
from treering.engines.postgres.errors import Lost
from treering.engines.postgres.pipeline import _BUNDLED_FROM, Answer, Pipeline
from treering.engines.sql.commit import state as state_module
from treering.engines.sql.commit.state import recall_current
from treering.engines.sql.gc.mark import Mark
from treering.errors import ListMoved, MissingObjects, NotFound, RefMoved, TreeringError
from treering.testing import batches
from treering.testing.machine import engine_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.batch import Batch
    from treering.engines.postgres import PostgresEngine

SPACE = "default"
ANSWER_LOST = "the answer never came"


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
    """The statements of each exchange of a transaction that writes, all on one connection.

    Nothing is announced: whoever announces borrows a connection, and a commit that comes meanwhile takes
    another, which has not yet seen what the first one has.
    """
    seen: list[list[str]] = []
    send = Pipeline.send

    def counted(self: Pipeline) -> None:
        statements = [due.sql for due in self._due if not isinstance(due, str)]
        if not statements[0].startswith("BEGIN ISOLATION LEVEL REPEATABLE") and statements != ["COMMIT"]:
            seen.append(statements)
        send(self)

    monkeypatch.setattr(follow.Announcer, "say", lambda *_: None)
    monkeypatch.setattr(Pipeline, "send", counted)
    return seen


@pytest.fixture(autouse=True, params=["ordinary", "with totals"])
def made_event(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are ordinary commits (`engines.relational.ordinary`), or ones that have to be decided."""
    if request.param == "ordinary":
        monkeypatch.setattr(batches, "call", lambda: batches.event("note"))


def step(at: int, *, space: str = SPACE) -> Batch:
    """What an agent's step does: an item, an event, and the head moves."""
    draft = Draft(space)
    draft.append("list", Content("text", b"item %d" % at), scope=batches.SCOPE, at=at)
    draft.set_ref("head", b"%d" % at, scope=batches.SCOPE, expect=at or ABSENT)
    draft.event(batches.call())
    return draft.batch()


def counted(engine: PostgresEngine, exchanges: list[list[str]], batch: Batch) -> int:
    exchanges.clear()
    engine.commit(batch)
    return len(exchanges)


def test_a_lone_writer_commits_in_one_exchange(mine, exchanges):
    for at in range(3):
        mine.commit(step(at))
    for at in range(3, 10):
        assert counted(mine, exchanges, step(at)) == 1
        assert [each for each in exchanges[0] if each.startswith("SELECT")] == []


def test_what_is_ordinary_is_not_read_into_a_state(mine, exchanges, monkeypatch, request):
    for at in range(3):
        mine.commit(step(at))
    recalled: list[object] = []
    recall = recall_current
    monkeypatch.setattr(
        "treering.engines.postgres.engine.recall_current", lambda *state: recalled.append(1) or recall(*state)
    )
    assert counted(mine, exchanges, step(3)) == 1
    assert bool(recalled) is ("totals" in request.node.name)
    receipt = mine.commit(batch := step(4))
    assert (receipt.first_seq, receipt.last_seq, receipt.versions) == (5, 5, {"head": 5})
    assert mine.commit(batch) == receipt


def test_what_was_brought_before_is_pointed_at_in_one_exchange(mine, theirs, exchanges):
    """State that stays the same from step to step is not asked for at every step."""

    def pointing() -> Batch:
        draft = Draft(SPACE)
        draft.set_ref("head", b"", scope=batches.SCOPE, links=(slot, content))
        return draft.batch()

    draft = Draft(SPACE)
    slot = draft.put(Content("text", b"small"), scope=batches.SCOPE)
    content = draft.put(Content("bytes", b"large" * 5000), scope=batches.SCOPE)
    draft.set_ref("head", b"", scope=batches.SCOPE, links=(slot, content))
    mine.commit(draft.batch())
    assert [counted(mine, exchanges, pointing()) for _ in range(3)] == [1, 1, 1]
    theirs.erase(SPACE, Erasure(scopes=(batches.SCOPE,)))
    with pytest.raises((NotFound, MissingObjects)):
        mine.commit(pointing())


def test_numbers_in_reserve_run_out_and_come_again(mine, exchanges, monkeypatch):
    monkeypatch.setattr("treering.engines.sql.commit.state.RESERVE", 4)
    mine.commit(step(0))
    assert [counted(mine, exchanges, step(at)) for at in range(1, 12)] == [1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 1]


def test_another_writer_is_noticed_and_costs_one_exchange(mine, theirs, exchanges):
    mine.commit(step(0))
    mine.commit(step(1))
    theirs.commit(batches.set_ref(SPACE, "other"))
    assert counted(mine, exchanges, step(2)) == 1 + 2  # in vain, and with care
    assert mine.refs(SPACE, ["head"])["head"].version == 3


def test_writers_in_turns_do_not_guess(mine, theirs, exchanges):
    for at in range(10):
        (mine, theirs)[at % 2].commit(step(at))
    exchanges.clear()
    for at in range(10, 20):
        (mine, theirs)[at % 2].commit(step(at))
    assert len(exchanges) == 20


def test_a_writer_that_is_alone_again_guesses_again(mine, theirs, exchanges):
    mine.commit(step(0))
    theirs.commit(step(1))
    mine.commit(step(2))
    asked = [counted(mine, exchanges, step(at)) for at in range(3, 3 + state_module.PATIENCE)]
    assert asked == [2] * state_module.PATIENCE
    mine.commit(step(11))  # takes numbers again
    assert counted(mine, exchanges, step(12)) == 1


def test_a_rejection_is_never_taken_from_memory(mine, theirs):
    mine.commit(batches.set_ref(SPACE, "head", b"1"))
    theirs.commit(batches.set_ref(SPACE, "head", b"2"))
    # Memory has version 1, which is not what is expected; the truth is.
    assert mine.commit(batches.set_ref(SPACE, "head", b"3", expect=2)).versions == {"head": 3}
    with pytest.raises(RefMoved, match="version 3, expected version 2"):
        mine.commit(batches.set_ref(SPACE, "head", b"4", expect=2))


def test_a_batch_that_was_committed_by_another_process_is_answered_by_its_receipt(mine, theirs):
    batch = batches.set_ref(SPACE, "head", b"1")
    receipt = theirs.commit(batch)
    theirs.commit(batches.set_ref(SPACE, "head", b"2"))
    mine.commit(batches.set_ref(SPACE, "head", b"3"))
    assert mine.commit(batch) == receipt
    assert mine.refs(SPACE, ["head"])["head"].value == b"3"


def test_an_event_that_is_there_already_is_not_counted_again(mine):
    event = batches.call()
    mine.commit(batches.events(SPACE, event))
    mine.commit(batches.events(SPACE, batches.call()))
    assert mine.commit(batches.events(SPACE, event, batches.call())).new_events == 1
    assert len(mine.scan(SPACE, EventQuery()).records) == 3


def test_an_event_that_is_there_already_is_found_in_one_statement_too(mine, exchanges):
    event = batches.call()
    mine.commit(batches.events(SPACE, event))
    for _ in range(_BUNDLED_FROM + 2):
        mine.commit(batches.events(SPACE, batches.call()))
    exchanges.clear()
    assert mine.commit(batches.events(SPACE, event)).new_events == 0
    assert len(exchanges[0]) == 1
    assert len(mine.scan(SPACE, EventQuery()).records) == _BUNDLED_FROM + 3
    assert [each for each in mine.check(SPACE) if hasattr(each, "detail")] == []


def test_times_go_on_from_what_is_remembered(mine, theirs, monkeypatch):
    monkeypatch.setattr(state_module, "PATIENCE", 0)
    monkeypatch.setattr(mine._postgres, "now_us", lambda: 1000)
    monkeypatch.setattr(theirs._postgres, "now_us", lambda: 2000)
    times = [
        engine.commit(batches.set_ref(SPACE, "head")).committed_at_us
        for engine in (mine, mine, mine, theirs, theirs, mine, mine, theirs)
    ]
    assert times == [1000, 1001, 1002, 2000, 2001, 2002, 2003, 2004]


def test_a_server_that_was_set_back_is_noticed(mine, postgres_url):
    """As after a failover: commits are lost, and others have come to the same sequence number."""
    for at in range(4):
        mine.commit(step(at))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE list SET length = 3")
        connection.execute("UPDATE space SET committed_at_us = committed_at_us + 1")
    with pytest.raises(ListMoved, match="has 3 items where 4"):
        mine.commit(step(4))


@pytest.mark.parametrize("before", [2, _BUNDLED_FROM + 3])
def test_the_space_may_be_gone_and_nothing_is_written(mine, postgres_url, before):
    for at in range(before):
        mine.commit(step(at))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DELETE FROM space")
        with pytest.raises(Exception):  # noqa: B017, PT011 - a database that somebody broke
            mine.commit(step(before))
        assert connection.execute("SELECT count(*) FROM commits").fetchone() == (before,)
        assert connection.execute("SELECT count(*) FROM event").fetchone() == (before,)


@pytest.mark.parametrize("arrives", [False, True])
def test_a_connection_lost_in_the_only_exchange(mine, monkeypatch, arrives):
    for at in range(3):
        mine.commit(step(at))
    collect = Pipeline.collect

    def lost_once(self: Pipeline) -> None:
        if any(getattr(due, "sql", "").startswith("WITH moved") for due in self._due):
            monkeypatch.setattr(Pipeline, "collect", collect)
            if arrives:
                collect(self)
            self.dead = True
            raise Lost(ANSWER_LOST)
        collect(self)

    monkeypatch.setattr(Pipeline, "collect", lost_once)
    batch = step(3)
    receipt = mine.commit(batch)
    assert receipt.versions == {"head": 4}
    assert mine.commit(batch) == receipt
    mine.commit(step(4))
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 5


def test_statements_that_come_together_often_become_one(mine, exchanges):
    for at in range(_BUNDLED_FROM + 2):
        mine.commit(step(at))
    mine.commit(step(at + 1))
    assert len(exchanges[-1]) == 1
    assert mine.refs(SPACE, ["head"])["head"].version == at + 2
    assert [each for each in mine.check(SPACE) if hasattr(each, "detail")] == []


def test_a_transaction_of_nothing_is_nothing(mine, exchanges):
    mine.spaces()
    for _ in range(2 * _BUNDLED_FROM):
        with mine._database.writing():
            pass
    assert exchanges == []


@pytest.mark.parametrize("others", [0, 5])
def test_only_so_many_become_one(mine, monkeypatch, others):
    monkeypatch.setattr(pipeline, "_BUNDLES_LIMIT", 2)
    taken = mine._postgres._pool.take()

    def sent(table: str) -> int:
        guard, first = state_module._ADVANCE_IF, f"INSERT INTO {table} (space) VALUES (?)"
        return len(taken._bundled([Answer(guard, (1,) * 6), Answer(first, (1,))]))

    for number in range(others):
        assert sent(f"seldom{number}") == 2
    for table in ("one", "another"):
        assert [sent(table) for _ in range(_BUNDLED_FROM + 1)] == [2] * _BUNDLED_FROM + [1]
    assert [sent("third") for _ in range(9)] == [2] * 9
    assert sent("one") == 1
    assert len(taken._sightings) <= 2
    mine._postgres._pool.give_back(taken)


@pytest.mark.parametrize("before", [2, _BUNDLED_FROM + 3])
def test_a_commit_that_is_refused_at_its_very_end(mine, postgres_url, before):
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
def test_an_interrupt_while_statements_are_queued_commits_no_part(mine, monkeypatch, error):
    monkeypatch.setattr(pipeline, "_BUNDLED_FROM", 99)
    for at in range(3):
        mine.commit(step(at))
    queue = Pipeline._queue

    def interrupted(self: Pipeline, answer: Answer, values: Any, formats: Any) -> None:
        if answer.sql.startswith("INSERT INTO item"):
            monkeypatch.setattr(Pipeline, "_queue", queue)
            raise error
        queue(self, answer, values, formats)

    monkeypatch.setattr(Pipeline, "_queue", interrupted)
    with pytest.raises(error):
        mine.commit(step(3))
    assert len(mine.scan(SPACE, EventQuery()).records) == 3
    assert mine.commit(step(3)).versions == {"head": 4}
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_behind_the_only_statement_commits_nothing(mine, monkeypatch, error):
    for at in range(_BUNDLED_FROM + 2):
        mine.commit(step(at))
    queue = Pipeline._queue

    def interrupted(self: Pipeline, answer: Answer, values: Any, formats: Any) -> None:
        queue(self, answer, values, formats)
        self._due.clear()  # as if it came just before it was noted
        monkeypatch.setattr(Pipeline, "_queue", queue)
        raise error

    monkeypatch.setattr(Pipeline, "_queue", interrupted)
    with pytest.raises(error):
        mine.commit(step(at + 1))
    assert len(mine.scan(SPACE, EventQuery()).records) == at + 1
    assert mine.commit(step(at + 1)).versions == {"head": at + 2}


def test_a_forked_child_and_its_parent_do_not_use_a_number_twice(mine):
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


def test_commits_after_a_mark_began_have_greater_numbers(mine):
    """Numbers are the database's, reserves are a space's: another space may be ahead of one's reserve."""
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


class InTurns:
    """Several engines on one database as one: each call goes to any of them, often to the same again."""

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


@pytest.mark.timeout(600)  # a failure takes its time to shrink
def test_random_histories_of_engines_in_turns(postgres_url, monkeypatch):
    monkeypatch.setattr(state_module, "PATIENCE", 0)
    monkeypatch.setattr(pipeline, "_BUNDLED_FROM", 1)
    monkeypatch.setattr(pipeline, "_BUNDLES_LIMIT", 1000)
    seeds = iter(range(1_000_000))
    run_state_machine_as_test(engine_machine(lambda: InTurns(postgres_url, next(seeds)), max_examples=12))  # type: ignore[arg-type, return-value]
