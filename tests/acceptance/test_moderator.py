"""Agentry Lab: the actions of a moderator."""

from __future__ import annotations

import pytest

from tests.acceptance.test_checkpoints import fresh, kinds, turn
from treering.errors import InvalidInput
from treering.limits.tool_budgets import Budget, Budgets


def test_continue_changes_nothing(store):
    state, thread = fresh(), store.thread("debate")
    saved = turn(state, thread)
    assert thread.apply({"type": "CONTINUE"}) == saved
    assert thread.apply(None) == saved
    assert store.thread("new").apply(None) is None


def test_stop_sets_the_flag(store):
    state, thread = fresh(), store.thread("debate")
    turn(state, thread)
    thread.apply({"type": "STOP"})
    assert store.thread("debate").load().state["stop_flag"] is True
    resumed = fresh()
    own_cfg = resumed.cfg
    thread.restore_state(resumed)
    assert resumed.stop_flag is True
    assert resumed.cfg is own_cfg
    assert resumed.history == state.history


def test_stop_is_saved_from_the_live_object(store):
    state, thread = fresh(), store.thread("debate")
    turn(state, thread)
    state.iter = 7
    thread.apply({"type": "STOP"}, to=state)
    assert state.stop_flag is True
    assert (thread.head.state["iter"], thread.head.state["stop_flag"]) == (7, True)


def test_step_back_restores_iteration_history_and_counters(store):
    state, thread = fresh(), store.thread("debate")
    for calls in (1, 2, 4):
        turn(state, thread, calls=calls)
    before = kinds(store, "/thread/debate")["checkpoint"]
    thread.apply({"type": "STEP_BACK", "rollback": 2}, to=state)
    assert state.iter == 1
    assert [each["content"] for each in state.history] == ["argument 0"]
    assert state._tool_calls_run_total == 1
    assert state._tool_calls_run_by_id == {"search": 1}
    assert state.running_summary == "after 0"
    assert thread.head.state["iter"] == 1
    assert kinds(store, "/thread/debate") == {"checkpoint": before, "rewind": 1}

    turn(state, thread)
    assert [each["content"] for each in thread.head.items("history")] == ["argument 0", "argument 1"]
    assert [checkpoint.state["iter"] for checkpoint in thread.history()] == [2, 1]


def test_step_back_clears_summaries_when_asked(store):
    state, thread = fresh(), store.thread("debate")
    for _ in range(3):
        turn(state, thread)
    thread.apply({"type": "STEP_BACK", "rollback": 1, "clear_summaries": True}, to=state)
    assert state.iter == 2
    assert state.running_summary is None
    assert thread.head.metadata["opaque"] == ["cfg", "contracts"]
    assert len(thread.head.items("history")) == 2


def test_step_back_goes_to_where_an_iteration_began(store):
    thread = store.thread("debate")
    for number, part in [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b")]:
        thread.snapshot_state({"iter": number, "part": part})
    assert thread.apply({"type": "STEP_BACK", "rollback": 1}).state == {"iter": 1, "part": "a"}


def test_step_back_past_the_beginning_is_the_beginning(store):
    state, thread = fresh(), store.thread("debate")
    for _ in range(3):
        turn(state, thread)
    assert thread.apply({"type": "STEP_BACK", "rollback": 99}).step == 0


def test_without_an_iteration_counter_steps_count(store):
    thread = store.thread("plain")
    for number in range(4):
        thread.append({"role": "user", "content": str(number)})
    assert thread.apply({"type": "STEP_BACK", "rollback": 2}).step == 1
    assert len(thread.head.messages) == 2


def test_step_back_gives_a_budget_its_counters_back(store):
    budgets = Budgets(Budget(run=3))
    thread = store.thread("debate")
    for number in range(2):
        budgets.spend("search")
        thread.snapshot_state({"iter": number}, budgets=budgets)
    budgets.spend("search")
    thread.apply({"type": "STEP_BACK", "rollback": 1}, budgets=budgets)
    assert budgets.counters().run == 1
    assert budgets.counters().run_by_tool == {"search": 1}


@pytest.mark.parametrize(
    "wrong", [{"type": "JUMP"}, {"type": "STEP_BACK", "rollback": -1}, {"rollback": "two"}, "STOP"]
)
def test_wrong_actions_are_refused(store, wrong):
    thread = store.thread("debate")
    saved = turn(fresh(), thread)
    with pytest.raises(InvalidInput):
        thread.apply(wrong)
    assert thread.head == saved
