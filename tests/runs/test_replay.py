"""Streams keep when their pieces came, and a run can be stepped through as it happened."""

from __future__ import annotations

import asyncio

import pytest

import treering
from treering.core.clock import ManualClock
from treering.core.encoding import decode
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.runs.replay import replay
from treering.runs.span import Chunks, split_chunks
from treering.store import Store


@pytest.fixture
def slow_time():
    """A store in memory whose clock moves only when it is told to."""
    clock = ManualClock()
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        yield store, clock
        store.close()


def streamed(store, clock):
    with store.run(agent="writer") as run:
        run.message("user", "Write.")
        clock.advance(seconds=0.5)
        with run.span("gpt-5", kind="llm", model="gpt-5", input="Write.") as span:
            for pause, piece in ((0.4, "On"), (0.1, "ce up"), (0.25, "on a time")):
                clock.advance(seconds=pause)
                span.chunk(piece)
            clock.advance(seconds=0.05)
            with span.tool("save", {"name": "story"}) as call:
                clock.advance(seconds=0.1)
                call.output = "saved"
    store.flush()
    return run


def test_the_chunks_of_a_stream_are_one_event(slow_time):
    store, clock = slow_time
    run = streamed(store, clock)
    rows = [each.event for each in store.engine.scan(store.space, EventQuery(run=run.id)).records]
    (row,) = [event for event in rows if event.kind == "span.llm"]
    assert len(rows) == 4  # the message, the model, the tool, the run itself
    assert store.timeline.content(row.body) == ["Once upon a time"]
    (end,) = [e for e in store.timeline.of_run(run.id, everything=True).events if e.type == "llm.span.end"]
    assert end.meta["first_token"] == 0.4


def test_a_replay_goes_through_a_run_as_it_happened(slow_time):
    store, clock = slow_time
    run = streamed(store, clock)
    steps = [
        (step.offset_us // 1000, step.label.split(" (")[0], step.content)
        for step in store.runs.replay(run.id)
    ]
    assert steps == [
        (0, "user message", "Write."),
        (500, "▶ gpt-5", "Write."),
        (900, "On", None),
        (1000, "ce up", None),
        (1250, "on a time", None),
        (1300, "call save", {"name": "story"}),
        (1400, "save result", "saved"),
        (1400, "■ gpt-5", "Once upon a time"),
    ]
    waits = [step.wait_us for step in store.runs.replay(run.id)]
    assert sum(waits) == 1_400_000


def test_a_replay_waits_according_to_speed(slow_time):
    store, clock = slow_time
    run = streamed(store, clock)
    began = store.runs.load(run.id).started_at_us
    slept = []

    def played(speed):
        slept.clear()
        steps = replay(
            store.engine, store.space, run.id, started_at_us=began, speed=speed, sleep=slept.append
        )
        return len(list(steps))

    assert played(None) == 8
    assert slept == []
    assert played(10) == 8
    assert sum(slept) == pytest.approx(0.14)
    with pytest.raises(InvalidInput, match="speed=0"):
        store.runs.replay(run.id, speed=0)


def test_an_announced_span_is_shown_once(store):
    with store.run(agent="writer") as run, run.span("gpt-5", kind="llm", input="Write.") as span:
        store.flush()
        span.chunk("On")
        span.chunk("ce")
    store.flush()
    labels = [step.label.split(" (")[0] for step in store.runs.replay(run.id)]
    assert labels == ["▶ gpt-5", "On", "ce", "■ gpt-5"]


def test_many_steps_are_read_in_pages(store):
    with store.run(agent="writer") as run:
        for number in range(450):
            with run.tool("count", number) as call:
                call.output = number + 1
    store.flush()
    steps = list(store.runs.replay(run.id))
    assert [step.content for step in steps] == [
        each for number in range(450) for each in (number, number + 1)
    ]
    assert all(step.wait_us >= 0 for step in steps)


def test_an_output_of_its_own_is_kept_and_so_is_the_first_token(slow_time):
    store, clock = slow_time
    with store.run() as run, run.span("gpt-5", kind="llm") as span:
        clock.advance(seconds=1)
        span.chunk("half of ")
        span.output = {"text": "all of it"}
    store.flush()
    (end,) = [e for e in store.timeline.of_run(run.id, everything=True).events if e.type == "llm.span.end"]
    assert end.meta["first_token"] == 1.0
    assert store.timeline.content(end.body) == [{"text": "all of it"}]
    assert len(list(store.runs.replay(run.id))) == 2


def test_chunks_belong_between_start_and_end(store):
    with store.run() as run:
        span = run.span("gpt-5", kind="llm")
        with pytest.raises(InvalidInput, match="not running"):
            span.chunk("early")
        with span:
            pass
        with pytest.raises(InvalidInput, match="not running"):
            span.chunk("late")


def test_replaying_an_unknown_run_raises(store):
    with pytest.raises(NotFound, match="run 'nobody' not found"):
        store.runs.replay("nobody")


def test_chunks_are_cut_where_they_were_joined():
    chunks = Chunks()
    for at, piece in ((5, "ä"), (5, ""), (9, "bc\n")):
        chunks.add(piece, at)
    pieces = split_chunks(chunks.text, decode(chunks.times()))
    assert [(each.offset_us, each.text) for each in pieces] == [(5, "ä"), (5, ""), (9, "bc\n")]


def test_the_async_store_replays_too(tmp_path):
    async def replayed():
        async with treering.open_async(tmp_path / "store") as store:
            with store.run() as run:
                run.message("user", "Hi")
            await store.flush()
            return [step.content async for step in store.runs.replay(run.id)]

    assert asyncio.run(replayed()) == ["Hi"]
