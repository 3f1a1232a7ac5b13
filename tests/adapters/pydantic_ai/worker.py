"""A process that runs a pydantic-ai agent with a scripted model and may die in one of its tools.

``python -m tests.adapters.pydantic_ai.worker URL CONVERSATION LOG [DIE_IN]``: the agent asks its tool for
three numbers, one after the other, and answers with their sum. Every call of the model and of the tool goes
to LOG. With DIE_IN, the process is killed while the tool works for that time. Started again, it resumes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from treering.adapters.pydantic_ai.conversations import TreeringCheckpoints, TreeringConversationStore

STEPS = 3


def scripted(log: Callable[[str], None]) -> FunctionModel:
    """A model that asks for the next number until it has three, then adds them up."""

    def decide(messages: list[ModelMessage]) -> int | str:
        found = [part.content for each in messages for part in each.parts if part.part_kind == "tool-return"]
        log(f"model {len(found)}")
        return len(found) + 1 if len(found) < STEPS else f"the sum is {sum(found)}"

    def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        decided = decide(messages)
        if isinstance(decided, str):
            return ModelResponse(parts=[TextPart(decided)])
        return ModelResponse(
            parts=[ToolCallPart("number", {"which": decided}, tool_call_id=f"call-{decided}")]
        )

    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        decided = decide(messages)
        if isinstance(decided, str):
            for word in decided.split(" "):
                yield word if word == "the" else f" {word}"
        else:
            yield {
                0: DeltaToolCall(
                    name="number", json_args=f'{{"which": {decided}}}', tool_call_id=f"call-{decided}"
                )
            }

    return FunctionModel(answer, stream_function=stream)


def numbers(
    log: Callable[[str], None], checkpoints: TreeringCheckpoints | None = None, *, die_in: int = 0
) -> Agent[None, str]:
    agent = Agent(scripted(log), capabilities=[checkpoints] if checkpoints else [])

    @agent.tool_plain
    def number(which: int) -> int:
        log(f"tool {which}")
        if which == die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return which * 111

    return agent


async def work(url: str, conversation_id: str, log: Callable[[str], None], die_in: int) -> str:
    async with TreeringConversationStore(url) as conversations:
        agent = numbers(log, TreeringCheckpoints(conversations), die_in=die_in)
        stored = await conversations.load(conversation_id)
        if stored is None:
            begun = await agent.run("add them up", conversation=Conversation(conversation_id=conversation_id))
            return begun.output
        return (await agent.run(conversation=stored)).output


def main() -> None:
    url, conversation_id, path, *die_in = sys.argv[1:]
    log = Path(path)

    def note(line: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    print(asyncio.run(work(url, conversation_id, note, int(die_in[0]) if die_in else 0)))


if __name__ == "__main__":
    main()
