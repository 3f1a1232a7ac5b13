"""LangSmith's own server (``langgraph dev``), whose checkpointer in ``langgraph.json`` is a `TreeringSaver`.

The server runs in an environment of its own, since it pins other versions of what the tests use. That is made
once for all runs, of the dependency group `langgraph-server`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import tomllib
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client

import treering
from tests.servers.environment import ROOT, environment

AGENT = """
import asyncio

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


async def answer(state: MessagesState):
    said = state["messages"][-1].content
    if said == "wait for ever":
        await asyncio.Event().wait()
    if said == "may I?":
        return {"messages": [AIMessage(f"decided: {interrupt('may I?')}")]}
    return {"messages": [AIMessage(f"{len(state['messages'])} messages")]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(name="clerk")
"""

SAVER = """
import os
from contextlib import asynccontextmanager

from treering.adapters.langgraph import TreeringSaver


@asynccontextmanager
async def checkpointer():
    async with TreeringSaver(os.environ["STORE"]) as saver:
        yield saver
"""

CONFIG = {
    "dependencies": ["."],
    "graphs": {"clerk": "./agent.py:graph"},
    "checkpointer": {"path": "./saver.py:checkpointer"},
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server_python() -> Path:
    """The interpreter of an environment with the server and what treering needs, but not treering."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [
        *project["dependency-groups"]["langgraph-server"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["langgraph"],
        *(
            each
            for each in project["dependency-groups"]["test"]
            if each.startswith(("langgraph==", "langgraph-checkpoint=="))
        ),
    ]
    return environment("langgraph-server", wanted)


@pytest.fixture
def url(server_python, tmp_path) -> Iterator[str]:
    for name, text in {"agent.py": AGENT, "saver.py": SAVER, "langgraph.json": json.dumps(CONFIG)}.items():
        (tmp_path / name).write_text(text)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LANG", "TREERING"))}
    own = {"STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT / "src"), "LANGSMITH_TRACING": "false"}
    words = ["dev", "--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(
            [server_python.parent / "langgraph", *words],
            cwd=tmp_path,
            env={**kept, **own, "LANGGRAPH_CLI_NO_ANALYTICS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _answering(f"http://127.0.0.1:{port}", server, tmp_path / "server.log")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answering(url: str, server: subprocess.Popen, log: Path) -> str:
    until = time.monotonic() + 100
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ok", timeout=5):
                return url
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def texts(client: Any, thread: str) -> list[str]:
    state = await client.threads.get_state(thread)
    return [each["content"] for each in state["values"].get("messages", [])]


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(600):
        if await check():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it never came to that")


@pytest.mark.timeout(300)
def test_the_server_keeps_its_threads_in_treering(url, tmp_path):
    async def go() -> tuple[str, str]:
        async with get_client(url=url) as client:
            return await use(client)

    async def use(client: Any) -> tuple[str, str]:
        thread = (await client.threads.create())["thread_id"]
        for text in ("hi", "again"):
            await client.runs.wait(thread, "clerk", input=said(text))
        assert await texts(client, thread) == ["hi", "1 messages", "again", "3 messages"]

        await client.runs.wait(thread, "clerk", input=said("may I?"))
        state = await client.threads.get_state(thread)
        assert (state["next"], state["interrupts"][0]["value"]) == (["answer"], "may I?")
        await client.runs.wait(thread, "clerk", command={"resume": "yes"})
        assert (await texts(client, thread))[-1] == "decided: yes"

        copied = (await client.threads.copy(thread))["thread_id"]  # acopy_thread
        assert await texts(client, copied) == await texts(client, thread)

        stuck = await client.runs.create(thread, "clerk", input=said("wait for ever"))

        async def is_stuck() -> bool:
            return "wait for ever" in await texts(client, thread)

        await until(is_stuck)
        await client.runs.wait(thread, "clerk", input=said("instead"), multitask_strategy="rollback")
        assert "wait for ever" not in await texts(client, thread)  # adelete_for_runs
        assert (await texts(client, thread))[-2:] == ["instead", "7 messages"]
        assert stuck["run_id"] not in [run["run_id"] for run in await client.runs.list(thread)]

        newest, *_, oldest = await client.threads.get_history(thread, limit=100)
        assert len(newest["values"]["messages"]) == 8
        assert oldest["values"].get("messages", []) == []
        gone = (await client.threads.copy(thread))["thread_id"]
        await client.threads.delete(gone)  # adelete_thread
        return thread, copied

    thread, copied = asyncio.run(go())
    with treering.open(tmp_path / "store") as store:
        assert {each.id for each in store.threads()} == {thread, copied}
        runs = list(store.runs.each())
        assert {run.agent for run in runs} == {"clerk"}
        assert {run.thread for run in runs} <= {thread, copied}
        assert "interrupted" in {run.status for run in runs}
        assert store.verify().ok
    assert (
        "missing"
        not in (tmp_path / "server.log")
        .read_text()
        .partition("Using custom checkpointer")[2]
        .partition("Application started")[0]
    )
