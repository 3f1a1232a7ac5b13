"""A pydantic-ai agent is killed in the middle of its second tool call, and another process resumes.

    python examples/pydantic_ai_agent.py

The model is scripted, so no key and no network are needed. It wants three rings measured, one by one. The
first process gets SIGKILL while it measures the second ring. The second process loads the conversation and
runs the agent without a prompt: the first ring is not measured again, and no model response is requested
twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import treering
from treering.adapters.pydantic_ai.conversations import TreeringCheckpoints, TreeringConversationStore

WIDTHS_MM = {1998: 4, 1999: 6, 2000: 5}


def scripted(messages, _info):
    """Ask for the next ring that is not measured yet, then add them up."""
    parts = [part for message in messages for part in message.parts]
    measured = [part.content for part in parts if part.part_kind == "tool-return"]
    if len(measured) < len(WIDTHS_MM):
        year = list(WIDTHS_MM)[len(measured)]
        print(f"  model: measure {year}", flush=True)
        return ModelResponse(parts=[ToolCallPart("measure", {"year": year})])
    return ModelResponse(parts=[TextPart(f"The tree grew {sum(measured)} mm.")])


def measure(year: int) -> int:
    """Measure the ring of a year, in millimetres."""
    print(f"  measuring {year}", flush=True)
    if os.environ.get("DIE") and year == 1999:
        os.kill(os.getpid(), signal.SIGKILL)
    return WIDTHS_MM[year]


async def work(folder: str) -> None:
    async with TreeringConversationStore(folder) as conversations:
        agent = Agent(
            FunctionModel(scripted), tools=[measure], capabilities=[TreeringCheckpoints(conversations)]
        )
        stored = await conversations.load("tree")
        if stored is None:
            new = Conversation(conversation_id="tree")
            result = await agent.run("How much did the tree grow?", conversation=new)
        else:
            result = await agent.run(conversation=stored)
        print(f"  {result.output}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="treering-example-") as folder:
        command = [sys.executable, __file__, folder]
        print("One process begins:", flush=True)
        killed = subprocess.run(command, env=os.environ | {"DIE": "1"}, check=False)
        print(f"  ended with {signal.Signals(-killed.returncode).name}")
        print("Another process resumes:", flush=True)
        subprocess.run(command, check=True)
        with treering.open(folder) as store:
            checkpoints = list(store.thread("tree").history())
            messages = len(checkpoints[0].messages)
            print(f"{len(checkpoints)} checkpoints, {messages} messages, verified: {store.verify().ok}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
