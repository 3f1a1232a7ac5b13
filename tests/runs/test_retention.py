"""Old runs go by policy, whole and with a note; a dry run says what would go."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

import pytest

from treering.core.clock import DAY_US, ManualClock
from treering.core.encoding import decode
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.engines.memory.engine import MemoryEngine
from treering.errors import InvalidInput, NotFound
from treering.runs.search import EventIndex
from treering.store import Store


def recorded(store, *, agent="a", thread=None, tags=(), word="parcel"):
    with store.run(agent=agent, thread=thread, tags=tags) as run:
        run.message("user", f"where is my {word}", usage={"input": 3}, cost=1)
        with run.tool("search", {"q": word}) as call:
            call.output = "x" * 5000
    store.flush()
    return run.id


def test_the_last_runs_of_each_agent_stay(store):
    runs = [recorded(store, thread="t" if n % 2 else None, word=f"word{n}") for n in range(5)]
    other = recorded(store, agent="b")
    EventIndex(store.engine, store.space).catch_up(everything=True)
    planned = store.gc(keep_runs=Keep(last=2), dry_run=True)
    assert (planned.dropped, planned.kept) == ({"run": 3}, {"run": 3})
    assert len(list(store.runs.each())) == 6

    done = store.gc(keep_runs=Keep(last=2), grace_seconds=0)
    assert (done.dropped, done.kept) == ({"run": 3}, {"run": 3})
    assert {info.id for info in store.runs.each()} == {*runs[3:], other}
    for run in runs[:3]:
        with pytest.raises(NotFound):
            store.runs.load(run)
        assert store.timeline.of_run(run).events == ()
        assert not store.engine.scan_refs(store.space, f"index/block/{run}/")
    assert store.timeline.search("word1").hits == ()
    assert len(store.timeline.search("word3").hits) == 2
    assert store.cost.of_days().total.amount("USD") == Decimal(3)
    assert store.verify().ok
    assert store.gc(keep_runs=Keep(last=2)).dropped == {}


def test_the_journal_says_which_runs_went(store):
    runs = [recorded(store) for _ in range(3)]
    result = store.gc(keep_runs=Keep(last=1)).event
    (record,) = store.engine.scan(store.space, EventQuery(kinds=("retention",))).records
    assert record.event.id == result
    (body,) = store.engine.get(store.space, [record.event.body])
    assert decode(body) == {"run": runs[:2]}


def test_checkpoints_are_not_touched_by_the_policy_of_runs(store):
    thread = store.thread("t")
    for number in range(3):
        thread.append({"role": "user", "content": str(number)})
        recorded(store, thread="t")
    store.gc(keep_runs=Keep(last=1), grace_seconds=0)
    assert len(thread.load().messages) == 3
    assert len(list(thread.history())) == 3
    store.gc(keep=Keep(last=1), grace_seconds=0)
    assert len(list(store.runs.each())) == 1
    assert store.verify().ok


def test_what_was_saved_inside_of_a_run_outlives_it(store):
    thread = store.thread("t")
    for number in range(3):
        with store.run(agent="a", thread="t") as run, run.span("work"):
            thread.append({"n": number})
            store.memory.save("note", f"version {number}")
    store.flush()
    store.gc(keep_runs=Keep(last=1), grace_seconds=0)
    assert len(list(store.runs.each())) == 1
    assert [moment.messages[-1] for moment in thread.history()] == [{"n": 2}, {"n": 1}, {"n": 0}]
    assert [version.document.content for version in store.memory.history("note")] == [
        "version 2",
        "version 1",
        "version 0",
    ]
    assert store.verify().ok


def test_tagged_and_recent_runs_are_kept():
    clock = ManualClock()
    store = Store(MemoryEngine(clock=clock), clock=clock)
    tagged = recorded(store, tags=["release"])
    recorded(store)
    clock.advance(seconds=40 * DAY_US / 1e6)
    young = recorded(store)
    store.gc(keep_runs=Keep(within="30d", tagged=("release",)))
    assert {info.id for info in store.runs.each()} == {tagged, young}
    store.close()


def test_a_run_that_is_running_stays(store):
    with store.run(agent="a") as running:
        store.flush()
        recorded(store)
        last = recorded(store)
        store.gc(keep_runs=Keep(last=1))
        assert {info.id for info in store.runs.each()} == {running.id, last}


def test_runs_of_namespaces_are_decided_for_themselves(store):
    for namespace in ("alice", "bob"):
        for _ in range(2):
            with store.run(agent="a", thread="t", namespace=namespace):
                pass
    store.flush()
    assert store.gc(keep_runs=Keep(last=1)).kept == {"run": 2}
    for namespace in ("alice", "bob"):
        assert len(list(store.runs.in_namespace(namespace).each())) == 1


def test_a_run_that_was_dropped_by_half_goes_next_time(store, monkeypatch):
    runs = [recorded(store, thread="t") for _ in range(3)]
    EventIndex(store.engine, store.space).catch_up(everything=True)

    def dies(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, suppress(RuntimeError):
        patch.setattr(store.engine, "erase", dies)
        store.gc(keep_runs=Keep(last=1))
    assert len(list(store.runs.each())) == 3
    store.gc(keep_runs=Keep(last=1))
    assert [info.id for info in store.runs.each()] == runs[2:]
    assert store.verify().ok


def test_max_bytes_does_not_apply_to_runs(store):
    with pytest.raises(InvalidInput, match="max_bytes cannot be applied to runs"):
        store.gc(keep_runs=Keep(max_bytes=1))
