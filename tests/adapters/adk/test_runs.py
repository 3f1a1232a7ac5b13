"""Real runs of ADK on a store, with scripted models: whole, in parallel, killed and resumed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.runners import Runner
from google.genai import types

import treering
from tests.adapters.adk.talk import ENGINES, open_store
from tests.adapters.adk.worker import Scripted, numbers, run
from treering.adapters.adk import TreeringSessionService
from treering.store import Store


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store")
    request.applymarker("postgres")
    return request.getfixturevalue("postgres_url")


def test_a_run_stores_every_event(store: Store) -> None:
    async def go() -> None:
        sessions = TreeringSessionService(store)
        runner = numbers(sessions, [].append)
        names = {"app_name": "numbers", "user_id": "alice", "session_id": "s"}
        await sessions.create_session(**names)
        assert await run(runner, "s") == "the sum is 666"
        assert await run(runner, "s", "once more") == "the sum is 666"
        found = await sessions.get_session(**names)
        assert found is not None
        assert found.state == {"sum": "the sum is 666"}
        calls = [call.name for each in found.events for call in each.get_function_calls()]
        assert calls == ["number"] * 3
        await runner.close()

    asyncio.run(go())


@pytest.mark.filterwarnings("ignore:ParallelAgent is deprecated:DeprecationWarning")
def test_agents_in_parallel_share_a_session(store: Store) -> None:
    async def go() -> None:
        sessions = TreeringSessionService(store)
        lines: list[str] = []

        def number(which: int) -> int:
            """Give a number."""
            return which

        agents = [
            LlmAgent(
                name=f"agent{n}",
                model=Scripted(model="scripted", log=lines.append),
                tools=[number],
                output_key=f"sum{n}",
            )
            for n in range(4)
        ]
        runner = Runner(
            app_name="numbers",
            agent=ParallelAgent(name="all", sub_agents=agents),
            session_service=sessions,
        )
        names = {"app_name": "numbers", "user_id": "alice", "session_id": "s"}
        await sessions.create_session(**names)
        message = types.Content(role="user", parts=[types.Part(text="go")])
        async for _ in runner.run_async(user_id="alice", session_id="s", new_message=message):
            pass
        found = await sessions.get_session(**names)
        assert found is not None
        assert found.state == {f"sum{n}": "the sum is 6" for n in range(4)}
        assert len(found.events) == 1 + 4 * 7
        await runner.close()

    asyncio.run(go())


def test_a_killed_run_ends_as_one_that_was_not(place: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed = _worker(place, "s", log, 2)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = _worker(place, "s", log)
    assert resumed.stdout == "the sum is 666\n", resumed.stderr
    # Every model call happened once; only the tools that did not come back were called again.
    assert log.read_text().split("\n")[:-1] == [
        *("model 0", "tool 1", "model 1", "tool 2"),
        *("tool 2", "model 2", "tool 3", "model 3"),
    ]
    with treering.open(place) as store:
        assert store.verify().ok


def _worker(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.adapters.adk.worker", *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
