"""B11: what the document of the orchestrator names as its future, with its own planner and list_items."""

from __future__ import annotations

from decimal import Decimal

import pytest

import treering
from treering.core.clock import ManualClock
from treering.core.rollups import RELATIVE_ERROR
from treering.engines.memory.engine import MemoryEngine
from treering.errors import BudgetExceeded
from treering.store import Store


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    opened = Store(MemoryEngine(clock=clock), clock=clock)
    yield opened
    opened.close()


def planned(store, clock, *, agent="planner", seconds=2.0, tokens=100, cost="0.01", answer="3 items"):
    """A planner that lists items with a tool, thinks with a model, and asks a helper below it."""
    with store.run(agent=agent) as run, run.span(agent, input={"goal": "list"}) as span:
        clock.advance(seconds=0.1)
        with span.tool("list_items", {"project": 7}) as call:
            clock.advance(seconds=0.25)
            call.output = ["a", "b", "c"]
        with span.span("helper") as helper:
            clock.advance(seconds=0.1)
            with helper.span("gpt-5", kind="llm", model="gpt-5") as model:
                clock.advance(seconds=0.5)
                model.chunk(answer)
                clock.advance(seconds=seconds)
                model.use({"input": 400, "output": tokens}, cost=cost)
    store.flush()
    return run.id


def test_nested_spans_of_any_depth(store, clock):
    run = planned(store, clock)
    lines = store.timeline.of_run(run, everything=True).events
    assert [
        line.label.split(" (")[0] for line in lines if line.type.endswith((".start", ".call", ".end"))
    ] == [
        "▶ planner",
        "call list_items",
        "▶ helper",
        "▶ gpt-5",
        "■ gpt-5",
        "■ helper",
        "■ planner",
    ]


def test_cost_budgets_and_alerting(store, clock):
    store.budgets.set("daily", per="agent", every="day", money="0.025", agent="helper")
    planned(store, clock)
    assert store.alerts.page().alerts == ()
    planned(store, clock)
    planned(store, clock)
    with pytest.raises(BudgetExceeded, match=r"of agent 'helper': 0\.03 of 0\.025 USD"):
        planned(store, clock)
    levels = [(alert.level, alert.agent) for alert in store.alerts.page().alerts]
    assert levels == [("critical", "helper"), ("warning", "helper")]
    clock.advance(seconds=86_400)
    planned(store, clock)


def near(time_us):
    """Percentiles are read from buckets."""
    return pytest.approx(time_us, rel=RELATIVE_ERROR)


def test_performance_metrics(store, clock):
    planned(store, clock)
    planned(store, clock, seconds=4.0)
    (row,) = store.performance.report("model").rows
    assert (row.key, row.calls) == ("gpt-5", 2)
    assert row.tokens_per_second == pytest.approx(200 / 6)
    assert row.first_token.p50_us == near(500_000)
    assert (row.latency.p50_us, row.latency.p95_us) == (near(2_500_000), near(4_500_000))
    tool = store.performance.report("tool").rows[0]
    assert (tool.key, tool.latency.max_us, tool.error_rate) == ("list_items", near(250_000), 0.0)


def test_agent_comparison_across_runs(store, clock):
    one = planned(store, clock)
    other = planned(store, clock, agent="writer", cost="0.05", answer="no items")
    planner, writer = store.runs.compare_agents("planner", "writer").agents
    assert (planner.runs, writer.runs) == (1, 1)
    assert planner.latency.p50_us == writer.latency.p50_us == near(2_950_000)
    compared = store.runs.compare(one, other)
    assert [each.cost.amount("USD") for each in compared.runs] == [Decimal("0.01"), Decimal("0.05")]
    assert (compared.divergence.index, compared.divergence.what) == (0, "name")


def test_events_can_be_followed(tmp_path):
    """The stream itself is the server's (tests/server/test_live.py); this is the number it resumes by."""
    with treering.open(tmp_path / "store") as store:
        before = store.engine.wait(store.space, 0, seconds=0)
        with store.run(agent="planner") as run:
            run.message("user", "hi")
        store.flush()
        assert store.engine.wait(store.space, before, seconds=30) > before
