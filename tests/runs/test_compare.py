"""Runs and agents side by side, and the step at which two runs first went apart."""

from __future__ import annotations

from decimal import Decimal

import pytest

from treering.core.clock import day_of
from treering.errors import InvalidInput, NotFound


def played(
    store, *, answer="On page 3.", query="refunds", tool="search", more=0, agent="planner", cost="0.002"
):
    with store.run(agent=agent) as run:
        run.message("user", "Where is my refund?")
        with run.span("planner", agent=agent) as span:
            with span.tool(tool, {"q": query}) as call:
                call.output = ["page 3"]
            span.message(
                "assistant",
                answer,
                model="m",
                usage={"input": 400, "cache_read": 12, "output": 96},
                cost=cost,
            )
        for number in range(more):
            run.message("user", f"more {number}")
    store.flush()
    return run.id


def test_equal_runs_do_not_diverge(store):
    comparison = store.runs.compare(played(store), played(store))
    assert comparison.divergence is None
    one, other = comparison.runs
    assert one.steps == other.steps == {"message": 2, "agent": 1, "tool": 1}
    assert one.step_count == 4
    assert one.usage.cache_read == 12
    assert one.cost.amount("USD") == Decimal("0.002")
    assert one.duration_us >= one.busy_us["agent"] >= one.busy_us["tool"]


@pytest.mark.parametrize(
    "change, index, what, texts",
    [
        ({"answer": "Nowhere."}, 3, "content", ("On page 3.", "Nowhere.")),
        ({"query": "money"}, 2, "input", ("page 3", "page 3")),
        ({"tool": "lookup"}, 2, "name", ("page 3", "page 3")),
        ({"more": 2}, 4, "length", (None, "more 0")),
    ],
)
def test_the_first_step_that_differs_is_named(store, change, index, what, texts):
    divergence = store.runs.compare(played(store), played(store, **change)).divergence
    assert (divergence.index, divergence.what) == (index, what)
    shown = tuple(None if step is None else step.text for step in (divergence.one, divergence.other))
    assert shown == texts


def test_a_divergence_far_behind_is_found(store):
    def long(odd):
        with store.run() as run:
            for number in range(450):
                run.message("user", "odd" if number == odd else f"message {number}")
        store.flush()
        return run.id

    divergence = store.runs.compare(long(None), long(431)).divergence
    assert divergence.index == 431
    assert (divergence.one.text, divergence.other.text) == ("message 431", "odd")


def test_the_input_of_an_announced_span_counts(store):
    def announced(given):
        with store.run() as run, run.tool("t", given):
            store.flush()
        store.flush()
        return run.id

    assert store.runs.compare(announced("a"), announced("a")).divergence is None
    assert store.runs.compare(announced("a"), announced("b")).divergence.what == "input"


def test_many_runs_are_compared_with_the_first(store):
    first = played(store)
    comparison = store.runs.compare(first, played(store), played(store, answer="No."))
    assert [each and each.what for each in comparison.divergences] == [None, "content"]
    assert len(comparison.runs) == 3
    with pytest.raises(NotFound, match="run 'gone' not found"):
        store.runs.compare(first, "gone")


def test_agents_are_compared_over_days(store):
    for _ in range(3):
        played(store, agent="cheap", cost="0.001")
    played(store, agent="dear", cost="0.5")
    with pytest.raises(RuntimeError), store.run(agent="dear"):
        raise RuntimeError("no")
    store.flush()
    today = day_of(store.clock.now_us())
    cheap, dear = store.runs.compare_agents("cheap", "dear", since_day=today, until_day=today).agents
    assert (cheap.runs, cheap.failed_runs, dear.runs, dear.failed_runs) == (3, 0, 2, 1)
    assert (cheap.cost.amount("USD"), dear.cost.amount("USD")) == (Decimal("0.003"), Decimal("0.5"))
    assert cheap.tokens_per_run == 508
    assert cheap.steps == 12
    assert cheap.latency.max_us >= cheap.latency.p50_us
    assert store.runs.compare_agents("cheap", until_day=today - 1).agents[0].runs == 0
    with pytest.raises(InvalidInput, match="no agents to compare"):
        store.runs.compare_agents()
