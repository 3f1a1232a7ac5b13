"""An agent of the OpenAI Agents SDK with a scripted model, in a process that can be killed.

    python -m tests.adapters.openai_agents.worker FOLDER [HANGING TOOL]

The model is a function of what it is shown: it asks for the squares of 1 to 4 that it has not got yet, one a
turn (or all at once), and then adds up. So its last answer is right only if every tool result is there, once.
Each tool notes in a file that it ran; the hanging one never returns. Every save is said on stdout.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

import treering
from treering.adapters.openai_agents import TreeringSession

NUMBERS = (1, 2, 3, 4)
QUESTION = "What do the squares of 1 to 4 add up to?"
ANSWER = "They add up to 30."


def respond(how: str):
    def answer(call):
        outputs = [item["output"] for item in call.input if is_square(item)]
        results = dict(map(int, output.split(":")) for output in outputs)
        assert len(results) == len(outputs), outputs
        missing = [number for number in NUMBERS if number not in results]
        if not missing:
            return [assistant_message(f"They add up to {sum(results.values())}.")]
        asked = missing if how == "parallel" else missing[:1]
        return [
            function_call("square", {"number": number}, call_id=f"call-{number}-{os.getpid()}")
            for number in asked
        ]

    return ModelStep.respond(answer)


def is_square(item) -> bool:
    return item.get("type") == "function_call_output" and item["call_id"].startswith("call-")


def make_agent(folder: Path, how: str, hanging: int | None = None) -> Agent:
    @function_tool
    async def square(number: int) -> str:
        """The square of a number."""
        with (folder / "ran.txt").open("a") as ran:
            ran.write(f"{number}\n")
        if number == hanging:
            await asyncio.Event().wait()
        return f"{number}:{number * number}"

    model = ScriptedModel([respond(how)] * 10)
    return Agent(name="adder", model=model, tools=[square])


async def main(folder: Path, hanging: int | None) -> None:
    async with treering.open_async(folder / "store") as store:
        store.hooks.add("post_checkpoint_save", lambda saved: print(saved.checkpoint.note, flush=True))
        session = TreeringSession("squares", store)
        is_new = await store.thread("squares").head() is None
        result = await Runner.run(
            make_agent(folder, "turns", hanging),
            QUESTION if is_new else [],
            session=session,
            run_config=RunConfig(tracing_disabled=True),
        )
        print("answer:", result.final_output, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None))
