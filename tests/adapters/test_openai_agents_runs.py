"""Runs of the OpenAI Agents SDK that are kept as they go: tool by tool, through failures and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agents import Agent, RunHooks, Runner
from agents.testing import ScriptedModel, function_call

import treering
from tests.adapters import openai_worker
from tests.adapters.openai_items import QUIET, say
from treering.adapters.openai_agents import UNFINISHED, TreeringSession

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.mark.parametrize("streamed", [False, True])
def test_each_tool_result_is_saved_when_it_is_there(store, tmp_path, streamed):
    calls = []

    class Own(RunHooks):
        async def on_agent_start(self, _context, agent):
            calls.append(("agent", agent.name))

        async def on_llm_start(self, _context, _agent, _prompt, input_items):
            calls.append(("asked", len(input_items)))

        async def on_llm_end(self, _context, _agent, response):
            calls.append(("said", len(response.output)))

        async def on_tool_start(self, _context, _agent, tool):
            calls.append(("start", tool.name))

        async def on_tool_end(self, _context, _agent, _tool, result):
            calls.append(("end", result))

        async def on_handoff(self, _context, from_agent, to_agent):
            calls.append(("handoff", from_agent.name, to_agent.name))

        async def on_agent_end(self, _context, _agent, output):
            calls.append(("answer", output))

    async def main():
        session = TreeringSession("s", store)
        adder = openai_worker.make_agent(tmp_path, "parallel")
        desk = ScriptedModel([[function_call("transfer_to_adder", {}, call_id="c0")]])
        agent = Agent(name="desk", model=desk, handoffs=[adder])
        options = {
            "session": session,
            "hooks": session.checkpoint_after_tool_call(Own()),
            "run_config": QUIET,
        }
        if streamed:
            result = Runner.run_streamed(agent, openai_worker.QUESTION, **options)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, openai_worker.QUESTION, **options)
        assert result.final_output == openai_worker.ANSWER
        return await session.get_items()

    items = asyncio.run(main())
    assert [item.get("type", "message") for item in items] == [
        "message",
        "function_call",
        "function_call_output",
        *["function_call"] * 4,
        *["function_call_output"] * 4,
        "message",
    ]
    tools = [("start", "square")] * 4 + [("end", f"{number}:{number**2}") for number in (1, 2, 3, 4)]
    assert sorted(calls[7:15]) == sorted(tools)
    assert calls[:7] == [
        ("agent", "desk"),
        ("asked", 1),
        ("said", 1),
        ("handoff", "desk", "adder"),
        ("agent", "adder"),
        ("asked", 3),
        ("said", 4),
    ]
    assert calls[15:] == [("asked", 11), ("said", 1), ("answer", openai_worker.ANSWER)]
    moments = list(store.thread("s").history())
    assert [moment.note for moment in moments] == [None, None, *["tool: square"] * 4, None, None]
    assert [len(moment.state.get(UNFINISHED, {})) for moment in moments] == [0, 0, 5, 4, 3, 2, 0, 0]


def test_an_unfinished_turn_is_read_and_then_kept_once(store):
    response = [
        {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}
        for number in (1, 2)
    ]
    outputs = [
        {"type": "function_call_output", "call_id": f"c{number}", "output": str(number)} for number in (1, 2)
    ]

    async def begin(session_id):
        session = TreeringSession(session_id, store)
        await session.add_items([say("q")])
        store.thread(session_id).checkpoint(state={"own": 1})
        for output in outputs:
            await session.save_tool_result(response, output, tool="f")
        whole = [say("q"), *response, *outputs]
        assert await session.get_items() == whole
        assert await session.get_items(limit=3) == whole[-3:]
        assert await session.get_items(limit=5) == whole
        return TreeringSession(session_id, store), whole

    async def main():
        session, whole = await begin("same turn")
        await session.add_items([*response, *outputs])
        assert await session.get_items() == whole == store.thread("same turn").head.messages
        assert store.thread("same turn").head.state == {"own": 1}

        session, whole = await begin("another turn")
        await session.add_items([say("never mind")])
        assert await session.get_items() == [*whole, say("never mind")]
        assert store.thread("another turn").head.messages == [*whole, say("never mind")]

        session, whole = await begin("next response")
        other = [{"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}]
        output = {"type": "function_call_output", "call_id": "c3", "output": "3"}
        await session.save_tool_result(other, output, tool="f")
        assert await session.get_items() == [*whole, *other, output]

        session, whole = await begin("pop")
        assert await session.pop_item() == outputs[1]
        assert await session.get_items() == whole[:-1]

        session, whole = await begin("clear")
        await session.clear_session()
        assert await session.get_items() == []
        assert store.thread("clear").head.state == {"own": 1}

    asyncio.run(main())


@pytest.mark.faults
@pytest.mark.timeout(300)  # importing the SDK in each process takes most of it
def test_a_run_that_was_killed_goes_on_in_another_process(tmp_path):
    """Killed while its third tool runs; the first two are not run again and the answer is right.

    That is between turns; the example is killed within one.
    """
    command = [sys.executable, "-m", "tests.adapters.openai_worker", str(tmp_path)]
    with subprocess.Popen([*command, "3"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline().strip() for _ in range(3)]
        os.kill(worker.pid, signal.SIGKILL)
    assert said == ["None"] * 3
    first = (tmp_path / "ran.txt").read_text().split()
    assert first in (["1", "2"], ["1", "2", "3"])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"answer: {openai_worker.ANSWER}"
    assert (tmp_path / "ran.txt").read_text().split() == [*first, "3", "4"]
    with treering.open(tmp_path / "store") as store:
        messages = store.thread("squares").load().messages
        outputs = [item["output"] for item in messages if item.get("type") == "function_call_output"]
        assert outputs == ["1:1", "2:4", "3:9", "4:16"]
        assert store.verify().ok


@pytest.mark.faults
@pytest.mark.timeout(300)  # importing the SDK in each process takes most of it
def test_the_example_goes_on_after_the_kill():
    command = [sys.executable, str(ROOT / "examples" / "openai_agents_session.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  looking up bark",
        "  looking up rings",
        "  ended with SIGKILL",
        "Another one goes on:",
        "  looking up roots",
        "  Read: bark, rings, roots.",
        "6 moments, 9 items, verified: True",
    ]
