"""A process that runs an ADK agent with a scripted model and may die in one of its tools.

``python -m tests.adapters.adk.worker URL SESSION LOG [DIE_IN]``: the agent asks its tool for three numbers,
one after the other, and answers with their sum. Every call of the model and of the tool goes to LOG. With
DIE_IN, the process is killed while the tool works for that time. Started again, it resumes the invocation.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.genai import types

from treering.adapters.adk import TreeringSessionService

STEPS = 3


class Scripted(BaseLlm):
    """A model that asks for the next number until it has three, then adds them up."""

    log: Callable[[str], None]

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        parts = [part for each in llm_request.contents for part in each.parts or []]
        found = [part.function_response.response["result"] for part in parts if part.function_response]
        self.log(f"model {len(found)}")
        if len(found) < STEPS:
            part = types.Part.from_function_call(name="number", args={"which": len(found) + 1})
        else:
            part = types.Part(text=f"the sum is {sum(found)}")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def numbers(sessions: BaseSessionService, log: Callable[[str], None], *, die_in: int = 0) -> Runner:
    def number(which: int) -> int:
        """Give a number."""
        log(f"tool {which}")
        if which == die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return which * 111

    agent = LlmAgent(
        name="adder", model=Scripted(model="scripted", log=log), tools=[number], output_key="sum"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\[EXPERIMENTAL\] ResumabilityConfig", UserWarning)
        resumability = ResumabilityConfig(is_resumable=True)
    app = App(name="numbers", root_agent=agent, resumability_config=resumability)
    return Runner(app=app, session_service=sessions)


async def run(runner: Runner, session_id: str, prompt: str | None = "add them up") -> str:
    """Run an invocation, or without a prompt go on with the last one; gives the last text."""
    session = await runner.session_service.get_session(
        app_name="numbers", user_id="alice", session_id=session_id
    )
    assert session is not None
    answer = ""
    stream = runner.run_async(
        user_id="alice",
        session_id=session_id,
        invocation_id=session.events[-1].invocation_id if prompt is None else None,
        new_message=types.Content(role="user", parts=[types.Part(text=prompt)]) if prompt else None,
    )
    async for event in stream:
        for part in (event.content and event.content.parts) or []:
            answer = part.text or answer
    return answer


async def work(url: str, session_id: str, log: Callable[[str], None], die_in: int) -> str:
    async with TreeringSessionService(url) as sessions:
        runner = numbers(sessions, log, die_in=die_in)
        names = {"app_name": "numbers", "user_id": "alice", "session_id": session_id}
        if await sessions.get_session(**names) is not None:
            return await run(runner, session_id, None)
        await sessions.create_session(**names)
        return await run(runner, session_id)


def main() -> None:
    url, session_id, path, *die_in = sys.argv[1:]
    log = Path(path)

    def note(line: str) -> None:
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    print(asyncio.run(work(url, session_id, note, int(die_in[0]) if die_in else 0)))


if __name__ == "__main__":
    main()
