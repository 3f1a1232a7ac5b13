"""Orchestrator: the async services have the same functions and sessions, and block no event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

import treering
from treering.compat import services
from treering.compat.services import aio
from treering.errors import Conflict, NotFound


@pytest.fixture(autouse=True)
def store():
    with treering.open("memory:") as opened:
        services.use(opened)
        yield opened
        services.use(None)


def test_they_are_the_same_functions():
    assert set(aio.__all__) == set(services.__all__)
    for name in aio.__all__:
        function, awaited = getattr(services, name), getattr(aio, name)
        if name not in ("Session", "get_session", "use"):
            assert inspect.iscoroutinefunction(awaited)
            assert inspect.signature(awaited) == inspect.signature(function)
            assert awaited.__doc__ == function.__doc__


def test_a_run_is_written_and_read_back():
    async def tell():
        run_id = await aio.create_run(project_id=7)
        span_id = await aio.start_span(run_id, "planner", input_ref=await aio.save_blob("text", "goal"))
        call_id = await aio.save_tool_call(run_id, "planner", "search", span_id=span_id)
        await aio.save_tool_result(call_id)
        await aio.save_message(run_id, "user", "Hello", tokens={"total": 3}, cost_eur=1)
        await aio.end_span(span_id)
        await aio.end_run(run_id)
        with pytest.raises(Conflict):
            await aio.end_run(run_id)
        return await aio.get_run_timeline(run_id), await aio.get_run_cost(run_id)

    timeline, cost = asyncio.run(tell())
    assert [event["type"] for event in timeline["events"]] == [
        "agent.span.start", "tool.call", "tool.result", "message", "agent.span.end",
    ]  # fmt: skip
    assert cost["total"]["cost_eur"] == 1.0


def test_a_session_is_all_or_nothing():
    async def tell(*, commits):
        async with aio.get_session() as session:
            run_id = await aio.create_run(session=session)
            await aio.save_message(run_id, "user", "Hello", session=session)
            if commits:
                await session.acommit()
        return run_id

    kept = asyncio.run(tell(commits=True))
    assert len(services.get_run_timeline(kept)["events"]) == 1
    with pytest.raises(NotFound):
        services.get_run_timeline(asyncio.run(tell(commits=False)))


def test_the_loop_goes_on_while_the_store_waits(store, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    commit = type(store.engine).commit

    def slow(engine, batch):
        asked.set()
        answer.wait(60)
        return commit(engine, batch)

    monkeypatch.setattr(type(store.engine), "commit", slow)

    async def tell():
        waiting = asyncio.create_task(aio.create_run())
        await asyncio.to_thread(asked.wait, 60)
        assert not waiting.done()  # and this line is reached
        answer.set()
        return await waiting

    assert services.get_run_timeline(asyncio.run(tell()))["events"] == []
