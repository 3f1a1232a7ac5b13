"""Latency, failures and speed, read off the journal and equal to what was recorded."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.clock import ManualClock
from treering.errors import InvalidInput
from treering.runs.performance import percentiles
from treering.store import Store


@pytest.fixture
def slow_time():
    """A store in memory whose clock moves only when it is told to."""
    clock = ManualClock()
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        yield store, clock
        store.close()


def answered(run, clock, *, first, then, tokens, model="gpt-5", below=False):
    with run.span(model, kind="llm", model=model) as span:
        clock.advance(seconds=first)
        span.chunk("a")
        clock.advance(seconds=then)
        if below:
            span.message("assistant", "a", model=model, usage={"input": 5, "output": tokens}, cost=0)
        else:
            span.use({"input": 5, "output": tokens}, cost=0)


def test_a_model_has_latency_first_token_and_speed(slow_time):
    store, clock = slow_time
    with store.run(agent="writer") as run:
        answered(run, clock, first=0.5, then=2, tokens=100)
        answered(run, clock, first=1.5, then=2, tokens=300, below=True)
        answered(run, clock, first=0.1, then=0.1, tokens=7, model="small")
    store.flush()
    report = store.performance.report("model")
    assert [row.key for row in report.rows] == ["gpt-5", "small"]
    row = report.rows[0]
    assert (row.calls, row.errors, row.output_tokens) == (2, 0, 400)
    assert row.tokens_per_second == 100.0
    assert (row.latency.p50_us, row.latency.max_us, row.latency.mean_us) == (2_500_000, 3_500_000, 3_000_000)
    assert (row.first_token.p50_us, row.first_token.p99_us) == (500_000, 1_500_000)
    assert report.total.calls == 3
    assert not report.is_partial


def test_a_message_without_a_span_is_a_call_whose_time_nobody_knows(store):
    with store.run() as run:
        run.message("assistant", "a", model="gpt-5", usage={"output": 9}, cost=0)
    store.flush()
    (row,) = store.performance.report("model").rows
    assert (row.calls, row.output_tokens, row.latency, row.tokens_per_second) == (1, 9, None, None)


def failing(run, clock, number):
    with run.span("planner") as span, span.tool("divide", number) as call:
        clock.advance(seconds=1)
        call.output = 1 / number


def test_tools_agents_and_runs_fail_at_a_rate(slow_time):
    store, clock = slow_time
    for number in range(4):
        with suppress(ZeroDivisionError), store.run(agent="planner") as run:
            failing(run, clock, number)
    store.flush()
    for by, key in (("tool", "divide"), ("agent", "planner"), ("run", "planner")):
        (row,) = store.performance.report(by).rows
        assert (row.key, row.calls, row.errors, row.error_rate) == (key, 4, 1, 0.25)
        assert row.latency.p50_us == 1_000_000
    assert {row.key for row in store.performance.report("kind").rows} == {"tool", "agent"}


def test_a_period_an_agent_or_a_run_may_be_chosen(slow_time):
    store, clock = slow_time
    moments = []
    runs = []
    for agent in ("a", "b", "a"):
        clock.advance(seconds=100)
        moments.append(clock.now_us())
        with store.run(agent=agent) as run, run.span(agent), run.tool("t"):
            clock.advance(seconds=1)
        store.flush()
        runs.append(run.id)
    report = store.performance.report
    assert report("tool").total.calls == 3
    assert report("tool", since_us=moments[1]).total.calls == 2
    assert report("tool", until_us=moments[2]).total.calls == 2
    assert report("tool", since_us=moments[1], until_us=moments[2]).total.calls == 1
    assert report("agent", agent="a").total.calls == 2
    assert report("tool", run=runs[0]).total.calls == 1


def test_only_the_newest_events_are_read_and_the_report_says_so(store):
    with store.run() as run:
        for _ in range(20):
            with run.tool("t"):
                pass
    store.flush()
    report = store.performance.report("tool", most=10)
    assert report.is_partial
    assert report.events == 10
    assert report.total.calls < 20
    with pytest.raises(InvalidInput, match="most=0"):
        store.performance.report(most=0)


def test_an_empty_store_has_no_figures(store):
    report = store.performance.report()
    assert report.rows == ()
    assert report.total.latency is None
    assert report.total.error_rate == 0.0


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300))
def test_percentiles_are_the_nearest_ranks(times):
    found = percentiles(times)
    for share, value in ((50, found.p50_us), (90, found.p90_us), (95, found.p95_us), (99, found.p99_us)):
        assert value in times
        assert sum(each <= value for each in times) * 100 >= share * len(times)
        assert sum(each < value for each in times) * 100 < share * len(times)
    assert found.max_us == max(times)
