"""An agent of Google's ADK is killed in the middle of its second tool call, and another process resumes.

    python examples/adk_session.py

The model is scripted, so no key and no network are needed. It wants three rings measured, one by one. The
first process gets SIGKILL while it measures the second ring. The second process resumes the invocation that
the session's last event belongs to: the first ring is not measured again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

import treering
from treering.adapters.adk import TreeringSessionService

WIDTHS_MM = {1998: 4, 1999: 6, 2000: 5}
NAMES = {"app_name": "forest", "user_id": "alice", "session_id": "tree"}


class Scripted(BaseLlm):
    """Ask for the next ring that is not measured yet, then add them up."""

    async def generate_content_async(self, llm_request, stream=False):  # noqa: ARG002, FBT002 - ADK's signature
        parts = [part for content in llm_request.contents for part in content.parts or []]
        measured = [part.function_response.response["result"] for part in parts if part.function_response]
        if len(measured) < len(WIDTHS_MM):
            year = list(WIDTHS_MM)[len(measured)]
            print(f"  model: measure {year}", flush=True)
            part = types.Part.from_function_call(name="measure", args={"year": year})
        else:
            part = types.Part(text=f"The tree grew {sum(measured)} mm.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def measure(year: int) -> int:
    """Measure the ring of a year, in millimetres."""
    print(f"  measuring {year}", flush=True)
    if os.environ.get("DIE") and year == 1999:
        os.kill(os.getpid(), signal.SIGKILL)
    return WIDTHS_MM[year]


async def work(folder: str) -> None:
    async with TreeringSessionService(folder) as sessions:
        agent = LlmAgent(name="forester", model=Scripted(model="scripted"), tools=[measure])
        app = App(name="forest", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
        runner = Runner(app=app, session_service=sessions)
        session = await sessions.get_session(**NAMES)
        if session is None:
            await sessions.create_session(**NAMES)
            question = types.Content(role="user", parts=[types.Part(text="How much did the tree grow?")])
            what = {"new_message": question}
        else:
            what = {"invocation_id": session.events[-1].invocation_id}
        async for event in runner.run_async(user_id="alice", session_id="tree", **what):
            for part in (event.content and event.content.parts) or []:
                if part.text:
                    print(f"  {part.text}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="treering-example-") as folder:
        command = [sys.executable, __file__, folder]
        print("One process begins:", flush=True)
        killed = subprocess.run(command, env=os.environ | {"DIE": "1"}, check=False)
        print(f"  ended with {signal.Signals(-killed.returncode).name}")
        print("Another process resumes:", flush=True)
        subprocess.run(command, check=True)
        with treering.open(folder) as store:
            checkpoint = store.thread("forest/alice/tree").load()
            print(f"{len(checkpoint.messages)} events, verified: {store.verify().ok}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", r"\[EXPERIMENTAL\] ResumabilityConfig", UserWarning)
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
