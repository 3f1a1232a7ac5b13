"""Latency, failures and speed, equal to what was recorded; percentiles within the stated error."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.clock import DAY_US, ManualClock
from treering.core.rollups import RELATIVE_ERROR, bucket_of
from treering.runs.performance import Sketch
from treering.store import Store


@pytest.fixture
def slow_time():
    """A store in memory whose clock moves only when it is told to."""
    clock = ManualClock()
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        yield store, clock
        store.close()


def near(time_us):
    return pytest.approx(time_us, rel=RELATIVE_ERROR, abs=0.5)


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
    assert (row.latency.p50_us, row.latency.max_us) == (near(2_500_000), near(3_500_000))
    assert row.latency.mean_us == 3_000_000
    assert (row.first_token.p50_us, row.first_token.p99_us) == (near(500_000), near(1_500_000))
    assert report.total.calls == 3


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
        assert row.latency.p50_us == near(1_000_000)
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


def test_a_report_looks_at_everything_that_is_left_after_forgetting(slow_time):
    store, clock = slow_time
    chance = random.Random(3)
    took = {}
    for number in range(30):
        clock.advance(seconds=18_000)
        with store.run(agent=chance.choice("ab"), thread=store.thread(f"t{number % 7}")) as run:
            for _ in range(chance.randint(1, 5)):
                with run.tool("search"):
                    clock.advance(seconds=(seconds := chance.uniform(0.001, 30)))
                took.setdefault(number % 7, []).append((run.agent, clock.now_us(), seconds))
    store.flush()
    store.forget(thread="t3")
    del took[3]
    calls = [each for some in took.values() for each in some]
    begin = min(ended for _, ended, _ in calls)
    for agent in (None, "a", "b"):
        for days in ((0, 9), (0.3, 4.6), (1.5, 1.7), (2, 3)):
            since, until = (begin + int(day * DAY_US) for day in days)
            expected = sorted(
                seconds
                for name, ended, seconds in calls
                if agent in (None, name) and since <= ended - round(seconds * 1e6) < until
            )
            found = store.performance.report("tool", agent=agent, since_us=since, until_us=until).total
            assert found.calls == len(expected)
            if expected:
                assert found.latency.max_us == near(expected[-1] * 1e6)
                assert found.latency.p50_us == near(expected[-(-len(expected) // 2) - 1] * 1e6)
                assert found.latency.mean_us == pytest.approx(sum(expected) / len(expected) * 1e6, abs=1)
    store.reindex()
    assert store.performance.report("tool").total.calls == len(calls)


def test_an_empty_store_has_no_figures(store):
    report = store.performance.report()
    assert report.rows == ()
    assert report.total.latency is None
    assert report.total.error_rate == 0.0


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.data())
def test_percentiles_are_near_the_nearest_ranks_however_they_are_added_up(times, data):
    whole = Sketch()
    for part in (times[: (cut := data.draw(st.integers(0, len(times))))], times[cut:]):
        sketch = Sketch()
        for each in part:
            sketch.add(bucket_of(each), 1, each)
        whole.merge(sketch)
    found = whole.percentiles()
    ordered = sorted(times)
    for share, value in ((50, found.p50_us), (90, found.p90_us), (95, found.p95_us), (99, found.p99_us)):
        assert value == near(ordered[-(-len(times) * share // 100) - 1])
    assert found.max_us == near(max(times))
    assert found.mean_us == round(sum(times) / len(times))
