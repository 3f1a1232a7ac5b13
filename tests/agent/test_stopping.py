"""A run that is stopped at any of its events continues in another process and repeats nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import treering
from tests.agent.scripted import Scripted, answered, asking, said, user
from treering.agent import create_agent, tool
from treering.compat import savers

ROOT = Path(__file__).resolve().parents[2]


def work(folder, *arguments):
    command = [sys.executable, "-m", "tests.agent.stopper", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("checkpoints, how", [("each", "die"), ("each", "close"), ("end", "close")])
def test_no_call_is_repeated_wherever_the_stream_was_stopped(tmp_path, mode, checkpoints, how) -> None:
    stopped = work(tmp_path, mode, checkpoints, how)
    threads = int(stopped.stdout or 0)
    assert threads > 10, stopped.stderr
    resumed = work(tmp_path, mode, checkpoints, "continue")
    assert resumed.returncode == 0, resumed.stderr
    calls = Counter((tmp_path / "log").read_text().splitlines())
    with treering.open(tmp_path / "store") as store:
        for number in range(1, threads + 1):
            thread = store.thread(f"t{number}")
            once = {what: calls[f"t{number} {what}"] for what in ("model", "look", "delete")}
            assert once == {"model": 2, "look": 1, "delete": 1}, number
            assert [each["role"] for each in thread.load().messages] == [
                "user",
                "assistant",
                "tool",
                "tool",
                "assistant",
            ]
            asked = [each for each in thread.history() if each.pending_interrupt is not None]
            assert len(asked) == 1, number
            assert thread.load().metadata["status"] == "done"


@pytest.mark.parametrize(
    "kind, status", [("message", "ok"), ("interrupt", "interrupted"), ("tool_call", "stopped")]
)
def test_the_timeline_says_how_far_a_run_had_come_when_it_was_stopped(store, kind, status) -> None:
    def look(n: int) -> int:
        return n

    reply = said("Done.") if kind == "message" else asking(("c1", "look", {"n": 1}))
    tools = [tool(look, needs_approval=kind == "interrupt")]
    stream = create_agent(model=Scripted(reply), tools=tools, checkpointer=store).stream(
        thread_id="t", prompt="?"
    )
    next(event for event in stream if event.kind == kind)
    stream.close()
    store.flush()
    assert [each.status for each in store.runs.page().runs] == [status]


SAVERS = {
    "store": treering.open,
    "files": savers.FileSaver,
    "sqlite": savers.SqliteSaver,
}


@pytest.mark.parametrize("kind", SAVERS)
def test_a_cancelled_run_keeps_the_results_that_it_has(tmp_path, kind) -> None:
    """The second tool is running when the task is cancelled; the first one is not called again."""
    made = []

    async def run() -> None:
        begun = asyncio.Event()

        async def look(n: int) -> int:
            made.append(n)
            if n == 2 and made.count(2) == 1:
                begun.set()
                await asyncio.Event().wait()
            return n

        calls = asking(("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}))
        saver = SAVERS[kind](tmp_path / "kept")
        tools = [tool(look, replay="safe")]
        agent = create_agent(model=Scripted(calls, "Done."), tools=tools, checkpointer=saver)
        task = asyncio.create_task(agent.agenerate(thread_id="t", prompt="Look"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await agent.agenerate(thread_id="t")).text == "Done."
        saver.close()

    asyncio.run(run())
    assert made == [1, 2, 2]


def test_a_cancelled_run_does_not_wait_for_a_sync_tool(store) -> None:
    begun, release = threading.Event(), threading.Event()

    def look(n: int) -> int:
        if n == 2:
            begun.set()
            release.wait(60)
        return n

    async def run() -> None:
        calls = asking(("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}))
        agent = create_agent(model=Scripted(calls), tools=[look], checkpointer=store)
        task = asyncio.create_task(agent.agenerate(thread_id="t", prompt="Look"))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(run())
        head = store.thread("t").load()
        assert (head.messages[-1], head.note) == (answered("c1", "1"), "stopped")
    finally:
        release.set()


def test_ctrl_c_in_a_tool_keeps_the_results_that_the_run_has(store) -> None:
    def look(n: int) -> int:
        if n == 2:
            raise KeyboardInterrupt
        return n

    calls = asking(("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}))
    agent = create_agent(model=Scripted(calls), tools=[look], checkpointer=store)
    with pytest.raises(KeyboardInterrupt):
        agent.generate(thread_id="t", prompt="Look")
    assert store.thread("t").load().messages == [user("Look"), calls, answered("c1", "1")]


def test_a_reply_that_is_still_arriving_is_not_stored(store) -> None:
    agent = create_agent(model=Scripted(iter(["Half ", "a reply"]), "Whole."), checkpointer=store)
    for event in agent.stream(thread_id="t", prompt="Hi"):
        if event.kind == "text":
            break
    assert store.thread("t").head is None
    agent.generate(thread_id="t", prompt="Hi")
    assert store.thread("t").load().messages == [user("Hi"), said("Whole.")]
