"""Runs, spans, messages and tools: recorded without waiting, read back in order, on every engine."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal

import pytest

import treering
from treering.core.clock import ManualClock
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.runs.span import carry
from treering.store import Store


@pytest.fixture
def slow_time():
    """A store in memory whose clock moves only when it is told to."""
    clock = ManualClock()
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        yield store, clock
        store.close()


def planned(store):
    with store.run(agent="planner", thread="support/alice", meta={"why": "test"}) as run:
        run.message("user", "Where is my refund?")
        with run.span("planner", input={"goal": "refund"}) as span:
            with span.tool("search", {"q": "refunds"}) as call:
                call.output = ["page 3"]
            span.message(
                "assistant", "On page 3.", model="gpt-5", usage={"input": 412, "output": 96}, cost="0.0045"
            )
            span.output = "done"
    store.flush()
    return run


def test_a_run_is_read_back_as_it_happened(store):
    run = planned(store)
    page = store.timeline.of_run(run.id)
    assert [event.label.split(" (")[0] for event in page.events] == [
        "user message",
        "▶ planner",
        "call search",
        "search result",
        "assistant message",
        "■ planner",
    ]
    assert page.cursor is None
    assert [event.ts_us for event in page.events] == sorted(event.ts_us for event in page.events)
    bodies = store.timeline.content(*(event.body for event in page.events if event.body is not None))
    assert bodies == [
        "Where is my refund?",
        {"goal": "refund"},
        {"q": "refunds"},
        ["page 3"],
        "On page 3.",
        "done",
    ]
    assert page.events[3].meta == {"status": "ok"}
    assert page.events[4].meta["tokens"] == 508
    assert {event.agent for event in page.events} == {"planner"}
    assert store.runs.load(run.id).status == "ok"


def test_a_running_run_has_a_timeline_and_a_cost(store):
    with store.run(agent="planner") as run:
        run.message("user", "Hi")
        assert [event.label for event in run.timeline()] == ["user message"]
        with run.span("writer") as span:
            span.message("assistant", "Yes.", model="gpt-5", usage={"output": 2}, cost="0.5", currency="EUR")
        run.message("assistant", "Done.", model="mine", usage={"output": 3}, cost="0.25", currency="EUR")
    took = run.cost()
    assert took.total == store.cost.of_run(run.id).total
    assert [(name, part.tokens) for name, part in took.by_agent.items()] == [("writer", 2), ("planner", 3)]
    assert {name: part.tokens for name, part in took.by_model.items() if part.tokens} == {
        "gpt-5": 2,
        "mine": 3,
    }
    assert [*run.timeline(everything=True)] == [*store.timeline.each_of_run(run.id, everything=True)]
    assert [*run.timeline()] == [*store.timeline.of_run(run.id).events]


def test_pages_of_any_size_give_the_same_timeline(store):
    with store.run(agent="a") as run, run.span("outer") as outer:
        for number in range(7):
            with outer.span(f"inner {number}") as inner:
                inner.message("assistant", f"{number}")
    store.flush()
    whole = store.timeline.of_run(run.id).events
    assert len(whole) == 2 + 7 * 3
    for size in (1, 2, 3, 5, 22):
        paged, cursor = [], None
        while True:
            page = store.timeline.of_run(run.id, first=size, cursor=cursor)
            paged += page.events
            assert len(page.events) <= size
            cursor = page.cursor
            if cursor is None:
                break
        assert tuple(paged) == whole
    assert list(store.timeline.each_of_run(run.id)) == list(whole)
    with pytest.raises(InvalidInput, match="cursor"):
        store.timeline.of_run(run.id, cursor="not one")


def test_an_open_span_is_seen_while_it_runs_and_once_when_it_ended(store):
    with store.run(agent="a") as run:
        with run.span("long", input="what went in") as span:
            store.flush()
            seen = store.timeline.of_run(run.id).events
            assert [event.type for event in seen] == ["agent.span.start"]
            assert store.timeline.content(seen[0].body) == ["what went in"]
            assert store.runs.load(run.id).status == "running"
        span.end()
    store.flush()
    assert [event.type for event in store.timeline.of_run(run.id).events] == [
        "agent.span.start",
        "agent.span.end",
    ]


def test_costs_are_kept_by_agent_and_currency(store):
    run = planned(store)
    with store.run(agent="writer", thread="support/alice") as other:
        other.message("assistant", "x", model="m", usage={"input": 10}, cost=Decimal("0.1"), currency="EUR")
        other.message("assistant", "y", model="m", usage={"output": 5}, agent="free")
    store.flush()
    report = store.cost.of_run(run.id)
    assert report.total.tokens == 508
    assert report.total.amounts == {"USD": Decimal("0.0045")}
    assert [part.key for part in report.parts] == ["planner"]
    thread = store.cost.of_thread("support/alice")
    assert thread.total.amounts == {"USD": Decimal("0.0045"), "EUR": Decimal("0.1")}
    assert {part.key: part.unpriced_tokens for part in thread.parts} == {"writer": 0, "planner": 0, "free": 5}
    assert store.cost.of_days(by="model").total.tokens == 523
    assert store.cost.of_run("unknown").total.tokens == 0


def test_errors_are_recorded_and_go_on(store):
    with pytest.raises(ZeroDivisionError), store.run(agent="a") as run, run.tool("divide", (1, 0)):
        1 / 0  # noqa: B018
    store.flush()
    call, result = store.timeline.of_run(run.id).events
    assert (call.type, result.type, result.meta) == ("tool.call", "tool.result", {"status": "error"})
    info = store.runs.load(run.id)
    assert info.status == "error"
    assert info.meta["error"]["type"] == "ZeroDivisionError"
    (record,) = [
        record
        for record in store.engine.scan(store.space, treering.core.query.EventQuery(run=run.id)).records
        if record.event.kind == "span.tool"
    ]
    assert b"1 / 0" in record.event.data


def test_runs_are_listed_newest_first_and_forgotten_with_their_thread(store):
    runs = [planned(store).id for _ in range(3)]
    assert [info.id for info in store.runs.each()] == runs[::-1]
    page = store.runs.page(first=2)
    assert [info.id for info in page.runs] == runs[:0:-1]
    assert [info.id for info in store.runs.page(cursor=page.cursor).runs] == runs[:1]
    assert store.runs.load(runs[0]).thread == "support/alice"
    store.forget(thread="support/alice")
    assert list(store.runs.each()) == []
    with pytest.raises(NotFound):
        store.runs.load(runs[0])
    assert store.timeline.of_run(runs[0]).events == ()


@pytest.mark.parametrize(
    "wrong", [{"project_id": "p"}, {"agent": 7}, {"tags": [1]}, {"tags": "demo"}, {"meta": {1: 2}}]
)
def test_a_run_that_could_not_be_read_again_is_refused(store, wrong):
    with pytest.raises(InvalidInput):
        store.run(**wrong)
    assert store.runs.page().runs == ()


def test_an_error_is_recorded_with_the_place_that_raised_it(store):
    def deeper(depth):
        if not depth:
            raise RuntimeError("no route")
        deeper(depth - 1)

    with suppress(RuntimeError), store.run(agent="a") as run, run.tool("send"):
        deeper(50)
    store.flush()
    (record,) = store.engine.scan(store.space, EventQuery(kinds=("span.tool",))).records
    for found in (json.loads(record.event.data)["error"], store.runs.load(run.id).meta["error"]):
        assert (found["type"], found["message"]) == ("RuntimeError", "no route")
        assert 'raise RuntimeError("no route")' in found["traceback"]


def test_a_decorated_function_is_recorded_under_its_own_name_by_default(store):
    @store.tool
    def double(number):
        return 2 * number

    @store.agent()
    async def writer(number):
        return double(number)

    assert asyncio.run(writer(4)) == 8
    store.flush()
    (info,) = store.runs.each()
    assert info.agent == "writer"
    labels = [event.label.split(" (")[0] for event in store.timeline.of_run(info.id).events]
    assert labels == ["▶ writer", "call double", "double result", "■ writer"]


def test_decorated_functions_find_their_place(store):
    @store.tool("add")
    def add(one, other):
        return one + other

    @store.agent("planner")
    def plan(goal):
        return add(goal, 1)

    @store.agent("async planner")
    async def plan_async(goal):
        await asyncio.sleep(0)
        return await asyncio.create_task(later(goal))

    @store.tool("later")
    async def later(goal):
        return add(goal, 2)

    assert add(1, 1) == 2
    assert plan(1) == 2
    assert asyncio.run(plan_async(1)) == 3
    store.flush()
    runs = list(store.runs.each())
    labels = [
        [event.label.split(" (")[0] for event in store.timeline.of_run(info.id).events] for info in runs
    ]
    assert labels == [
        ["▶ async planner", "call later", "call add", "add result", "later result", "■ async planner"],
        ["▶ planner", "call add", "add result", "■ planner"],
    ]
    with pytest.raises(InvalidInput, match="generator"):
        store.tool("stream")(lambda: (yield))


def test_threads_take_their_place_along(store):
    @store.tool("work")
    def work(number):
        return number

    with store.run(agent="a") as run, ThreadPoolExecutor(4) as pool:
        list(pool.map(carry(work), range(20)))
        list(pool.map(work, range(3)))  # these are in no run
    store.flush()
    calls = [event for event in store.timeline.of_run(run.id).events if event.type == "tool.call"]
    assert len(calls) == 20


def test_values_are_recorded_as_they_are_at_the_call(store):
    history = [{"n": 1}]
    with store.run(agent="a") as run:
        run.message("user", history)
        history[0]["n"] = 2
        run.message("user", object())
    store.flush()
    first, second = store.timeline.of_run(run.id).events
    assert store.timeline.content(first.body) == [[{"n": 1}]]
    assert store.timeline.content(second.body)[0]["_opaque"] == "object"


def test_invalid_arguments_raise_at_the_call(store):
    with store.run(agent="a") as run:
        for wrong in ({"inptu": 3}, {"input": -1}, {"output": 1.5}):
            with pytest.raises(InvalidInput, match="usage"):
                run.message("user", "x", usage=wrong)
        with pytest.raises(InvalidInput, match="in usage is no token count"):
            run.message("user", "x", usage={"input": 1 << 60})
        for dear in ("dear", "1e999999999"):
            with pytest.raises(InvalidInput, match="money"):
                run.message("user", "x", cost=dear)
        with pytest.raises(InvalidInput, match=r"limit of .* for one event"):
            run.message("user", "x", cost=1e10)
        run.message("assistant", "x", model="gpt-5", usage={"output": 1 << 49})  # no price for so many
        with pytest.raises(InvalidInput, match="currency"):
            run.message("user", "x", cost=1, currency="euro")
        with pytest.raises(InvalidInput, match="span name"):
            run.span("")
        span = run.span("twice").start()
        with pytest.raises(InvalidInput, match="already started"):
            span.start()
        span.end()
    store.flush()
    assert len(store.timeline.of_run(run.id).events) == 3
    assert store.cost.of_run(run.id).total.unpriced_tokens == 1 << 49


class Mute:
    def __repr__(self):
        raise RuntimeError("no words")


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_what_has_no_text_at_all_fails_no_run_and_hides_no_error(store):
    deep = []
    for _ in range(3000):
        deep = [deep]

    @store.tool
    def use(*_):
        raise MuteError

    def talk():
        with store.run(agent="a") as run:
            talks.append(run.id)
            run.message("user", Mute())
            run.message("user", deep)
            use(Mute(), deep)

    talks = []
    with pytest.raises(MuteError):
        talk()
    store.flush()
    first, second, *_, result = store.timeline.of_run(talks[0]).events
    assert store.timeline.content(first.body)[0] == {"_opaque": "Mute", "text": "(no repr: RuntimeError)"}
    assert store.timeline.content(second.body)[0]["_opaque"] == "list"
    assert result.type == "tool.result"
    assert store.runs.load(talks[0]).status == "error"


def test_times_are_the_clock_s(slow_time):
    store, clock = slow_time
    with store.run(agent="a") as run, run.span("step"):
        clock.advance(seconds=8.23)
    store.flush()
    assert [event.label for event in store.timeline.of_run(run.id).events] == ["▶ step", "■ step (8.23s)"]


def test_the_async_api(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "store") as store:
            async with store.run(agent="a", thread=store.thread("t")) as run, run.tool("look", 1) as call:
                call.output = 2
            await store.flush()
            page = await store.timeline.of_run(run.id)
            assert [event.type for event in page.events] == ["tool.call", "tool.result"]
            assert (await store.runs.load(run.id)).thread == "t"
            assert [info.id async for info in store.runs.each()] == [run.id]
            assert (await store.cost.of_run(run.id)).total.events > 0

    asyncio.run(main())
