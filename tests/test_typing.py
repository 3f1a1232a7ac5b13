"""What the public API returns. `tests/docs/test_types.py` runs pyright in strict mode over this file.

As tests, they show that the calls work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import assert_type

import pytest

import treering
from treering.agent import AgentEvent, Message, Result, Tool, create_agent, tool
from treering.aio import AsyncCheckpoint, AsyncThread
from treering.memory.documents import MemoryDocument, MemoryHit, MemorySearch
from treering.runs.run import Run, RunInfo
from treering.runs.span import Span
from treering.threads.checkpoint import Checkpoint
from treering.threads.diff import Difference
from treering.threads.thread import Thread


def test_threads(tmp_path: Path):
    with treering.open(tmp_path / "data") as store:
        assert_type(store, treering.Store)
        thread = assert_type(store.thread("t"), Thread)
        assert_type(thread.get(), Checkpoint | None)
        assert_type(thread.head, Checkpoint | None)
        assert_type(thread.append({"role": "user", "content": "hi"}), Checkpoint)
        assert_type(thread.load(), Checkpoint)
        assert_type(thread.at("~0"), Checkpoint)
        assert_type(thread.history(last=2), Iterator[Checkpoint])
        fork = assert_type(thread.fork("u"), Thread)
        assert_type(fork.append({"role": "user", "content": "more"}), Checkpoint)
        assert_type(thread.rewind(0), Checkpoint)
        assert_type(thread.diff(0), Difference)
        assert [message["content"] for _, message in thread.diff(0, fork).added] == ["more"]


def test_a_recorded_function_keeps_its_signature(tmp_path: Path):
    with treering.open(tmp_path / "data") as store:

        @store.tool
        def add(one: int, other: int = 2) -> int:
            return one + other

        @store.agent("planner")
        async def plan(goal: str) -> list[str]:
            return [goal, str(add(1))]

        needs_int: Callable[[int], int] = add
        needs_coroutine: Callable[[str], Awaitable[list[str]]] = plan
        assert_type(add(1, other=3), int)
        with pytest.raises(TypeError):
            add("1")  # pyright: ignore[reportArgumentType]
        assert needs_int(1) == 3

        async def call() -> list[str]:
            return assert_type(await plan("tea"), list[str])

        assert asyncio.run(call()) == ["tea", "3"]
        assert needs_coroutine is plan


def test_runs(tmp_path: Path):
    with treering.open(tmp_path / "data") as store:
        with store.run("planner", thread="t") as run:
            assert_type(run, Run)
            with run.tool("search", input={"q": "tea"}) as span:
                assert_type(span, Span)
        store.flush()
        assert_type(store.runs.load(run.id), RunInfo)


def test_memory(tmp_path: Path):
    with treering.open(tmp_path / "data") as store:
        assert_type(store.memory.save("tone", "short"), MemoryDocument)
        assert_type(store.memory.get("tone"), MemoryDocument | None)
        found = assert_type(store.memory.search("short"), MemorySearch)
        assert_type(found.hits[0].document, MemoryDocument)


def test_agents(tmp_path: Path):
    @tool
    def look_up(order: str) -> str:
        return f"{order} was sent"

    @tool(name="other", replay="safe")
    def other(order: str) -> str:
        return order

    def model(messages: list[Message], tools: list[Tool]) -> str:
        return f"{len(messages)} messages, {len(tools)} tools"

    assert_type(look_up, Tool)
    assert_type(other, Tool)
    with treering.open(tmp_path / "data") as store:
        agent = create_agent(model=model, tools=[look_up, other], checkpointer=store)
        assert_type(agent.generate(thread_id="t", prompt="hi"), Result)
        events = assert_type(agent.stream(thread_id="t", prompt="hi"), Generator[AgentEvent, None, None])
        events.close()


async def use_async(path: Path) -> None:
    async with treering.open_async(path) as store:
        assert_type(store, treering.AsyncStore)
        thread = assert_type(store.thread("t"), AsyncThread)
        assert_type(await thread.append({"role": "user", "content": "hi"}), AsyncCheckpoint)
        assert_type(await thread.load(), AsyncCheckpoint)
        assert_type(await thread.get(), AsyncCheckpoint | None)
        assert_type(thread.history(), AsyncIterator[AsyncCheckpoint])
        fork = assert_type(await thread.fork("u"), AsyncThread)
        assert_type(await thread.diff(0, fork), Difference)
        assert_type((await store.memory.search("short")).hits, tuple[MemoryHit, ...])


def test_the_async_twins(tmp_path: Path):
    asyncio.run(use_async(tmp_path / "data"))
