"""Runs of the OpenAI Agents SDK that are saved tool by tool, through failures and kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agents import Agent, RunHooks, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

import treering
from tests.adapters.openai_agents import worker as openai_worker
from tests.adapters.openai_agents.items import QUIET, say
from treering.adapters.openai_agents.session import UNFINISHED, TreeringSession

ROOT = Path(__file__).resolve().parents[3]


class Order(BaseModel):
    number: int
    sent: bool


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.mark.parametrize("streamed", [False, True])
def test_each_tool_result_is_saved_at_once(store, tmp_path, streamed):
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
    checkpoints = list(store.thread("s").history())
    assert [checkpoint.note for checkpoint in checkpoints] == [None, None, *["tool: square"] * 4, None, None]
    assert [len(checkpoint.state.get(UNFINISHED, {})) for checkpoint in checkpoints] == [
        0,
        0,
        5,
        4,
        3,
        2,
        0,
        0,
    ]


@pytest.mark.parametrize("is_another_process", [False, True])
def test_tools_that_a_person_allowed_are_saved_as_they_end_and_kept_once(store, is_another_process):
    """The turn is stored already when a run goes on after an approval; only the new results are missing."""

    @function_tool
    def look_up(order: int) -> str:
        """Look an order up."""
        return f"order {order}"

    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        """Send the money back."""
        return f"order {order} refunded"

    found = []

    class Own(RunHooks):
        async def on_tool_end(self, *_):
            items = await TreeringSession("s", store).get_items()
            found.append([(item["type"][13:], item["call_id"]) for item in items[1:]])

    async def main():
        calls = [
            function_call("look_up", {"order": 1}, call_id="a"),
            function_call("refund", {"order": 2}, call_id="b"),
            function_call("refund", {"order": 3}, call_id="c"),
        ]
        model = ScriptedModel([calls, [assistant_message("Done.")]])
        agent = Agent(name="desk", model=model, tools=[look_up, refund])
        session = TreeringSession("s", store)
        options = {
            "session": session,
            "hooks": session.checkpoint_after_tool_call(Own()),
            "run_config": QUIET,
        }
        state = (await Runner.run(agent, "Refund 2 and 3.", **options)).to_state()
        for waiting in state.get_interruptions():
            state.approve(waiting)
        if is_another_process:
            session = options["session"] = TreeringSession("s", store)
            options["hooks"] = session.checkpoint_after_tool_call(Own())
        assert (await Runner.run(agent, state, **options)).final_output == "Done."
        return await session.get_items()

    items = asyncio.run(main())
    said = [("", "a"), ("", "b"), ("", "c")]
    first, *others = found
    assert first == [*said, ("_output", "a")]
    assert set(max(others, key=len)[4:]) == {("_output", "b"), ("_output", "c")}
    assert all(each[:4] == first and len(each) in (5, 6) for each in others)
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert outputs == ["a", "b", "c"]
    assert len(items) == 1 + 3 + 3 + 1
    assert UNFINISHED not in store.thread("s").load().state


def test_a_result_of_a_declared_type_is_saved_as_the_runner_saves_it(store):
    @function_tool(output_type=Order)
    def look_up(number: int) -> Order:
        """Look an order up."""
        if number == 8:
            raise LookupError(number)
        return Order(number=number, sent=True)

    early = {}

    class Own(RunHooks):
        async def on_tool_end(self, *_):
            for item in await TreeringSession("s", store).get_items():
                if "output" in item:
                    early[item["call_id"]] = item["output"]

    async def main():
        calls = [function_call("look_up", {"number": number}, call_id=str(number)) for number in (7, 8)]
        agent = Agent(
            name="desk", model=ScriptedModel([calls, [assistant_message("Done.")]]), tools=[look_up]
        )
        session = TreeringSession("s", store)
        hooks = session.checkpoint_after_tool_call(Own())
        await Runner.run(agent, "Where are 7 and 8?", session=session, hooks=hooks, run_config=QUIET)
        return {item["call_id"]: item["output"] for item in await session.get_items() if "output" in item}

    late = asyncio.run(main())
    assert early["7"] == late["7"] == '{"number":7,"sent":true}'
    assert "error" in early["8"]


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
def test_a_killed_run_is_resumed_in_another_process(tmp_path):
    """Killed while its third tool runs; the first two are not run again and the answer is right.

    That is between turns; the example is killed within one.
    """
    command = [sys.executable, "-m", "tests.adapters.openai_agents.worker", str(tmp_path)]
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
def test_the_example_resumes_after_the_kill():
    command = [sys.executable, str(ROOT / "examples" / "openai_agents_session.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  looking up bark",
        "  looking up rings",
        "  ended with SIGKILL",
        "Another process resumes:",
        "  looking up roots",
        "  Read: bark, rings, roots.",
        "6 checkpoints, 9 items, verified: True",
    ]
