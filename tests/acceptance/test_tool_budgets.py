"""Agentry Lab: tool-call budgets per run and per iteration, in total and per tool."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.errors import BudgetExceeded, InvalidInput
from treering.limits.tool_budgets import Budget, Budgets, Counters


def spent(budgets, *tools):
    for tool in tools:
        budgets.spend(tool)
    return budgets.counters()


@pytest.mark.parametrize(
    "budget, calls, denied, named, limit",
    [
        (Budget(run=2), ["a", "b"], "c", "run", 2),
        (Budget(iteration=1), ["a"], "b", "iteration", 1),
        (Budget(run_by_tool={"search": 1}), ["search", "a"], "search", "run_by_tool['search']", 1),
        (Budget(iteration_by_tool={"search": 1}), ["search"], "search", "iteration_by_tool['search']", 1),
        (Budget(run_by_tool={"rm": 0}), ["a"], "rm", "run_by_tool['rm']", 0),
    ],
)
def test_each_of_the_four_budgets_denies_by_its_name(budget, calls, denied, named, limit) -> None:
    budgets = Budgets(budget)
    before = spent(budgets, *calls)
    with pytest.raises(BudgetExceeded) as caught:
        budgets.spend(denied)
    assert (caught.value.budget, caught.value.limit, caught.value.count) == (named, limit, limit)
    assert repr(denied) in str(caught.value)
    assert f"raise {named}" in str(caught.value)
    assert budgets.counters() == before, "a denied call is not counted"


def test_another_tool_goes_on_when_one_is_used_up() -> None:
    budgets = Budgets(Budget(run=3, run_by_tool={"search": 1}))
    spent(budgets, "search")
    with pytest.raises(BudgetExceeded):
        budgets.spend("search")
    assert spent(budgets, "read", "read").run == 3
    assert budgets.remaining("read") == 0


def test_an_iteration_starts_again_and_a_run_goes_on() -> None:
    budgets = Budgets(Budget(run=3, iteration=2))
    spent(budgets, "a", "b")
    with pytest.raises(BudgetExceeded, match="wait for the next iteration"):
        budgets.spend("c")
    budgets.next_iteration()
    assert spent(budgets, "c") == Counters(
        run=3, iteration=1, run_by_tool={"a": 1, "b": 1, "c": 1}, iteration_by_tool={"c": 1}
    )
    budgets.next_iteration()
    with pytest.raises(BudgetExceeded, match="3 of 3 tool calls of this run are used up; start another run"):
        budgets.spend("d")
    budgets.next_run()
    assert spent(budgets, "d").run == 1


def test_the_counters_have_the_names_of_the_documented_snapshot() -> None:
    budgets = Budgets()
    state = spent(budgets, "search", "read").to_state()
    assert state == {
        "_tool_calls_run_total": 2,
        "_tool_calls_iteration": 2,
        "_tool_calls_run_by_id": {"search": 1, "read": 1},
        "_tool_calls_iter_by_id": {"search": 1, "read": 1},
    }
    again = Budgets(counters=Counters.from_state({**state, "iter": 3, "stop_flag": False}))
    assert again.counters() == budgets.counters()
    assert Counters.from_state({"iter": 3}) == Counters()


def test_stepping_back_gives_the_calls_back() -> None:
    budgets = Budgets(Budget(run=2))
    spent(budgets, "a")
    kept = msgspec.json.encode(budgets.counters())
    spent(budgets, "b")
    with pytest.raises(BudgetExceeded):
        budgets.spend("c")
    budgets.restore(msgspec.json.decode(kept))
    assert spent(budgets, "c").run_by_tool == {"a": 1, "c": 1}


@pytest.mark.parametrize("wrong", [{"run": "many"}, {"run_by_tool": {"a": None}}])
def test_what_are_no_counters_restores_nothing(wrong) -> None:
    budgets = Budgets()
    before = spent(budgets, "a")
    with pytest.raises(InvalidInput, match="nothing was restored"):
        budgets.restore(wrong)
    assert budgets.counters() == before


@pytest.mark.parametrize("limit", [-1, 1.5, True, "3"])
def test_a_limit_is_a_whole_number(limit) -> None:
    with pytest.raises(InvalidInput, match=r"run_by_tool\['a'\]"):
        Budget(run_by_tool={"a": limit})


def test_of_many_threads_exactly_as_many_get_a_call_as_there_are() -> None:
    budgets = Budgets(Budget(run=50))
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        got = 0
        for _ in range(20):
            try:
                budgets.spend("a")
            except BudgetExceeded:
                continue
            got += 1
        return got

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 50
    assert budgets.counters().run == 50


LIMITS = st.none() | st.integers(0, 4)
BY_TOOL = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3))


@given(
    budget=st.builds(Budget, run=LIMITS, iteration=LIMITS, run_by_tool=BY_TOOL, iteration_by_tool=BY_TOOL),
    steps=st.lists(st.sampled_from(["a", "b", "c", "next"]), max_size=30),
)
def test_no_order_of_calls_passes_a_limit(budget, steps) -> None:
    budgets = Budgets(budget)
    run: list[str] = []
    iteration: list[str] = []
    for step in steps:
        if step == "next":
            budgets.next_iteration()
            iteration = []
            continue
        room = budgets.remaining(step)
        fits = (
            (budget.run is None or len(run) < budget.run)
            and (budget.iteration is None or len(iteration) < budget.iteration)
            and run.count(step) < budget.run_by_tool.get(step, 99)
            and iteration.count(step) < budget.iteration_by_tool.get(step, 99)
        )
        assert (room is None or room > 0) == fits
        if fits:
            budgets.spend(step)
            run.append(step)
            iteration.append(step)
        else:
            with pytest.raises(BudgetExceeded):
                budgets.spend(step)
    counters = budgets.counters()
    assert (counters.run, counters.iteration) == (len(run), len(iteration))
    assert counters.run_by_tool == {tool: run.count(tool) for tool in set(run)}
    assert counters.iteration_by_tool == {tool: iteration.count(tool) for tool in set(iteration)}
