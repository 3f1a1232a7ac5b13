"""Agentry Lab: checkpoints and cleaning (moderator actions and budgets are in files of their own)."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import treering
from treering.core.query import EventQuery
from treering.errors import Conflict, InvalidInput
from treering.threads.state_object import attributes


class Preset:
    """A loaded configuration: complex, and nothing that could be stored."""

    def __init__(self, name):
        self.name = name
        self.check = lambda output: output is not None


class State:
    """The state object of the document, with its typical keys."""

    def __init__(self, thread_id, cfg, contracts):
        self.thread_id = thread_id
        self.cfg = cfg
        self.iter = 0
        self.stop_flag = False
        self.contracts = contracts
        self.history = []
        self.running_summary = None
        self._tool_calls_run_total = 0
        self._tool_calls_iteration = 0
        self._tool_calls_run_by_id = {}
        self._tool_calls_iter_by_id = {}


def fresh():
    return State("debate", Preset("solo"), Preset("contracts"))


def turn(state, thread, *, calls=0):
    """One iteration: something is said, tools are called, the engine saves at its end."""
    state.history.append({"agent_id": "pro", "role": "agent", "content": f"argument {state.iter}"})
    state._tool_calls_iteration = calls
    state._tool_calls_iter_by_id = {"search": calls} if calls else {}
    state._tool_calls_run_total += calls
    state._tool_calls_run_by_id = {"search": state._tool_calls_run_total}
    state.running_summary = f"after {state.iter}"
    state.iter += 1
    return thread.snapshot_state(state)


# A4: one checkpoint per thread, the newest
def test_load_gives_the_newest_and_threads_come_newest_first(store):
    for name in ("a", "b", "a"):
        thread = store.thread(name)
        thread.get()
        thread.snapshot_state({"thread_id": name, "iter": 0 if thread.head is None else 1})
    assert store.thread("a").load().state["iter"] == 1
    assert [info.id for info in store.threads()] == ["a", "b"]
    assert store.thread("never").get() is None


# A5: the attributes of a state object
def test_a_state_object_is_restored_on_resume(store):
    state, thread = fresh(), store.thread("debate")
    for calls in (1, 0, 2):
        turn(state, thread, calls=calls)

    resumed = fresh()
    own_cfg = resumed.cfg
    checkpoint = store.thread("debate").restore_state(resumed)
    assert checkpoint.step == 2
    assert resumed.iter == 3
    assert resumed.history == state.history
    assert resumed.running_summary == "after 2"
    assert resumed.stop_flag is False
    assert resumed._tool_calls_run_total == 3
    assert resumed._tool_calls_iteration == 2
    assert resumed._tool_calls_run_by_id == {"search": 3}
    assert resumed._tool_calls_iter_by_id == {"search": 2}
    assert resumed.cfg is own_cfg


def test_the_snapshot_has_the_documented_keys(store):
    thread = store.thread("debate")
    known = attributes(thread.snapshot_state(fresh()))
    assert set(known) == {
        "thread_id", "cfg", "iter", "stop_flag", "contracts", "history", "running_summary",
        "_tool_calls_run_total", "_tool_calls_iteration", "_tool_calls_run_by_id", "_tool_calls_iter_by_id",
    }  # fmt: skip


def test_a_thread_that_was_never_saved_changes_nothing(store):
    state = fresh()
    before = dict(vars(state))
    assert store.thread("new").restore_state(state) is None
    assert vars(state) == before


def test_history_grows_by_what_is_new(store):
    state, thread = fresh(), store.thread("debate")
    for _ in range(12):
        turn(state, thread)
    assert store.engine.stats(store.space).items == 12


def test_an_attribute_that_the_snapshot_does_not_know_stays(store):
    thread = store.thread("t")
    thread.snapshot_state({"iter": 4})
    state = SimpleNamespace(iter=0, added_later="kept")
    thread.restore_state(state)
    assert vars(state) == {"iter": 4, "added_later": "kept"}


def test_containers_of_a_special_type_are_filled_anew(store):
    calls = defaultdict(int, {"search": 2})
    thread = store.thread("t")
    thread.snapshot_state(SimpleNamespace(calls=calls, votes=Counter("aab")))
    state = SimpleNamespace(calls=defaultdict(int, {"old": 1}), votes=Counter())
    thread.restore_state(state)
    assert state.calls == {"search": 2}
    assert state.calls["new"] == 0
    assert state.votes == Counter("aab")
    assert type(state.votes) is Counter


def test_slots_and_dataclasses_have_attributes_too(store):
    @dataclass(slots=True)
    class Small:
        iter: int = 0
        seen: set = field(default_factory=set)

    thread = store.thread("t")
    thread.snapshot_state(Small(iter=3, seen={"a"}))
    small = Small()
    thread.restore_state(small)
    assert small == Small(iter=3, seen={"a"})
    with pytest.raises(InvalidInput, match="no attributes"):
        thread.snapshot_state(3)


def test_an_earlier_checkpoint_can_be_restored(store):
    state, thread = fresh(), store.thread("debate")
    for _ in range(3):
        turn(state, thread)
    thread.restore_state(state, at=0)
    assert (state.iter, len(state.history)) == (1, 1)
    assert thread.head.step == 2


def test_a_frozen_object_says_that_it_cannot_be_restored(store):
    @dataclass(frozen=True)
    class Still:
        iter: int = 0

    thread = store.thread("t")
    thread.snapshot_state(Still())
    with pytest.raises(InvalidInput, match=r"Still\.iter"):
        thread.restore_state(Still())


# A6: the fallback is a marker, never a pickle
def test_what_has_no_encoding_is_marked_and_listed(store):
    thread = store.thread("debate")
    checkpoint = thread.snapshot_state(fresh(), metadata={"by": "engine"})
    assert checkpoint.metadata["opaque"] == ["cfg", "contracts"]
    assert checkpoint.metadata["by"] == "engine"
    assert checkpoint.state["cfg"] == {"_opaque": f"{Preset.__module__}.Preset"}


def test_a_value_that_looks_like_a_marker_is_a_value(store):
    thread = store.thread("t")
    thread.snapshot_state({"cfg": {"_opaque": "mine"}})
    state = {"cfg": None}
    thread.restore_state(state)
    assert state == {"cfg": {"_opaque": "mine"}}


def test_a_history_that_cannot_be_kept_is_opaque_as_a_whole(store):
    thread = store.thread("t")
    checkpoint = thread.snapshot_state({"history": [{"said": object()}], "iter": 1})
    assert checkpoint.metadata["opaque"] == ["history"]
    state = {"history": ["live"], "iter": 0}
    thread.restore_state(state)
    assert state == {"history": ["live"], "iter": 1}


def test_nothing_is_pickled(store):
    class Trap:
        def __reduce__(self):
            pytest.fail("somebody pickles")

    assert store.thread("t").snapshot_state({"trap": Trap()}).metadata["opaque"] == ["trap"]


# A7, cleaning up
def say_something(store, thread_id):
    store.transcript(thread_id).append("pro", "an argument", iter=0)


def kinds(store, scope=None):
    page = store.engine.scan(store.space, EventQuery(scope=scope), limit=1000)
    return Counter(record.event.kind for record in page.records)


def test_clean_removes_transcript_and_checkpoint_of_its_own_thread(store):
    for name in ("debate", "other"):
        turn(fresh(), store.thread(name))
        say_something(store, name)
    cleaned = store.thread("debate").clean()
    assert (cleaned.transcript_events, cleaned.checkpoints) == (1, 1)
    assert store.thread("debate").get() is None
    assert not kinds(store, "/thread/debate")
    assert kinds(store, "/thread/other") == {"checkpoint": 1, "transcript": 1}
    assert kinds(store)["thread.cleaned"] == 1
    assert store.verify().ok


def test_clean_takes_only_the_checkpoint(store):
    thread, state = store.thread("debate"), fresh()
    turn(state, thread)
    turn(state, thread)
    thread.rewind(0)
    say_something(store, "debate")
    assert thread.clean(delete_transcript=False).checkpoints == 2
    assert thread.get() is None
    assert kinds(store, "/thread/debate") == {"transcript": 1}
    assert store.engine.stats(store.space).items == 0
    assert store.verify().ok
    turn(fresh(), thread)
    assert thread.head.step == 0


def test_clean_takes_only_the_transcript(store):
    thread = store.thread("debate")
    turn(fresh(), thread)
    say_something(store, "debate")
    assert thread.clean(delete_checkpoint=False).transcript_events == 1
    assert thread.load().state["iter"] == 1
    assert kinds(store, "/thread/debate") == {"checkpoint": 1}


def test_clean_leaves_the_runs_of_the_thread(store):
    with store.run(agent="pro", thread="debate") as run:
        run.message("user", "go")
    turn(fresh(), store.thread("debate"))
    say_something(store, "debate")
    store.flush()
    before = kinds(store, "/thread/debate")
    store.thread("debate").clean()
    assert store.thread("debate").get() is None
    assert store.transcript("debate").read() == []
    assert kinds(store, "/thread/debate") == before - Counter(["checkpoint", "transcript"])
    assert before["message"] == 1
    assert store.verify().ok


def test_clean_of_another_thread_leaves_this_one(store):
    turn(fresh(), store.thread("debate"))
    turn(fresh(), store.thread("other"))
    store.thread("debate").clean("other")
    assert store.thread("other").get() is None
    assert store.thread("debate").get() is not None


def test_clean_of_nothing_does_nothing(store):
    turn(fresh(), store.thread("debate"))
    cleaned = store.thread("never").clean()
    assert (cleaned.transcript_events, cleaned.checkpoints) == (0, 0)
    assert store.thread("debate").get() is not None
    assert "thread.cleaned" not in kinds(store)


def test_clean_does_not_pull_the_past_from_under_a_fork(store):
    thread = store.thread("debate")
    turn(fresh(), thread)
    thread.fork("other")
    for choice in ({}, {"delete_transcript": False}):
        with pytest.raises(Conflict):
            thread.clean(**choice)
    assert len(store.thread("other").load().items("history")) == 1


def test_the_async_twin_does_the_same(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "store") as store:
            thread, state = store.thread("debate"), fresh()
            for number in range(3):
                state.iter = number
                state.history.append({"n": number})
                await thread.snapshot_state(state)
            await thread.apply({"type": "STEP_BACK", "rollback": 1}, to=state)
            resumed = fresh()
            await thread.restore_state(resumed)
            await thread.clean()
            return state.iter, resumed.history, await thread.get()

    assert asyncio.run(main()) == (1, [{"n": 0}, {"n": 1}], None)
