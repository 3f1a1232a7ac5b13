"""A bundle is a commit in one call: all of it or nothing, and only where what is remembered holds."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.batch import ANY, Event
from treering.core.content import Content
from treering.core.draft import Draft
from treering.core.query import Erasure, EventQuery
from treering.engines.sqlite import bundles, open_sqlite
from treering.errors import Conflict, ListMoved

SPACE = "default"
SCOPE = "/thread/a"


def opened(folder):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability="fast")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "OFTEN", 1)
    made = opened(tmp_path)
    yield made
    made.close()


@pytest.fixture
def other(engine, tmp_path):
    """Another process, as far as SQLite can tell."""
    del engine  # made first
    made = opened(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ran(monkeypatch):
    """Whether each bundle came through."""
    answers = []
    run = bundles.Bundles.run

    def noted(self, bundle):
        answers.append(run(self, bundle))
        return answers[-1]

    monkeypatch.setattr(bundles.Bundles, "run", noted)
    return answers


def step(number, *, space=SPACE, event=None, items=1):
    draft = Draft(space)
    content = [Content("text", b"%d" % number)] * items
    draft.append("said", *content, scope=SCOPE, at=number)
    draft.event(Event(id=event or draft.id, kind="step", ts_us=number, scope=SCOPE, links=("l:said",)))
    draft.set_ref("head", b"%d" % number, scope=SCOPE, expect=ANY)
    return draft.batch()


def said(engine, space=SPACE):
    return [item.data for item in engine.read_list(space, "said", 0, 99)]


def problems(engine):
    return [each for each in engine.check(SPACE) if hasattr(each, "detail")]


def test_a_step_that_goes_on_is_one_call(engine, ran):
    for number in range(3):
        engine.commit(step(number))
    calls = []
    engine._sqlite.writer().set_trace_callback(calls.append)
    engine.commit(step(3))
    engine._sqlite.writer().set_trace_callback(None)
    assert ran == [True, True]  # the first makes the list, the second learns the number of the commit
    assert {call.partition(" VALUES")[0] for call in calls} == {"INSERT INTO bundle_0"}
    assert said(engine) == [b"0", b"1", b"2", b"3"]
    assert problems(engine) == []


def test_a_form_gets_a_trigger_when_it_comes_often(engine, ran, monkeypatch):
    monkeypatch.setattr(bundles, "OFTEN", 3)
    for number in range(6):
        engine.commit(step(number))
    assert ran == [False, False, True, True]
    assert len(said(engine)) == 6


def test_there_are_not_more_triggers_than_a_connection_should_hold(engine, ran, monkeypatch):
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 2)
    at = 0
    for items in (1, 1, 1, 2, 3, 4, 3, 2, 1):
        engine.commit(step(at, items=items))
        at += items
    assert ran == [True, True, False, False, False, True, True]
    assert len(said(engine)) == at
    assert problems(engine) == []


def test_what_another_process_wrote_is_seen(engine, other, ran):
    for number in range(3):
        engine.commit(step(number))
    other.commit(step(3))
    with pytest.raises(ListMoved):
        engine.commit(step(3))
    assert ran == [True, False]
    receipts = [engine.commit(step(number)) for number in range(4, 7)]
    assert [receipt.versions["head"] for receipt in receipts] == [5, 6, 7]
    assert ran == [True, False, True, True]
    assert said(engine) == said(other) == [b"%d" % number for number in range(7)]
    assert problems(engine) == []


def test_the_number_of_a_commit_is_free_in_all_spaces(engine, other, ran):
    for number in range(3):
        engine.commit(step(number))
    other.commit(step(0, space="elsewhere"))
    engine.commit(step(3))
    assert ran == [True, False]
    assert said(other, "elsewhere") == [b"0"]
    assert len(engine.scan(SPACE, EventQuery()).records) == 4
    assert problems(engine) == []


@pytest.mark.parametrize("plan", [Erasure(lists=("said",)), Erasure(refs=("head",))])
def test_what_another_process_erased_is_gone(engine, other, ran, plan):
    for number in range(3):
        engine.commit(step(number))
    with suppress(Conflict):
        other.erase(SPACE, plan)
    with suppress(Conflict):
        engine.commit(step(3))
    assert ran[:2] == [True, False]
    assert problems(engine) == []


def test_an_event_that_is_there_already_takes_the_long_way(engine, ran):
    for number in range(3):
        engine.commit(step(number, event=f"e{number}"))
    receipt = engine.commit(step(3, event="e0"))
    assert ran == [True, False]
    assert receipt.new_events == 0
    assert len(said(engine)) == 4
    assert len(engine.scan(SPACE, EventQuery()).records) == 3


def test_a_repeated_batch_gets_its_first_receipt(engine, ran):
    batches = [step(number) for number in range(3)]
    first = [engine.commit(batch) for batch in batches]
    again = [engine.commit(batch) for batch in batches]
    assert again == first
    assert ran == [True]
    assert len(said(engine)) == 3


def test_a_bundle_waits_for_whoever_holds_the_lock(engine, ran):
    for number in range(3):
        engine.commit(step(number))
    holder = sqlite3.connect(engine._sqlite.path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.1, lambda: holder.execute("ROLLBACK"))
    timer.start()
    engine.commit(step(3))
    timer.join()
    holder.close()
    assert ran == [True, True]
    assert len(said(engine)) == 4


def test_nothing_is_left_of_a_bundle_that_fails_in_the_middle(engine):
    for number in range(3):
        engine.commit(step(number))
    connection = engine._sqlite.writer()
    connection.execute(
        "CREATE TEMP TRIGGER nobody AFTER INSERT ON event BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(Exception, match="no"):
        engine.commit(step(3))
    assert not connection.in_transaction
    connection.execute("DROP TRIGGER nobody")
    assert said(engine) == [b"0", b"1", b"2"]
    assert engine.commit(step(3)).first_seq == 4
    assert problems(engine) == []
