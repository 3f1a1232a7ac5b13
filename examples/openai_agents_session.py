"""An agent of the OpenAI Agents SDK is killed between two of its tools, and another process resumes.

    python examples/openai_agents_session.py

The model is scripted, so no key and no network are needed. It wants three pages looked up in one turn. The
first process is killed when two results are saved. The second one gets no new input: it reads the session,
sees two results, and requests the missing one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

import treering
from treering.adapters.openai_agents import TreeringSession

PAGES = ("bark", "rings", "roots")


@function_tool
async def look_up(page: str) -> str:
    """Look a page up."""
    if os.environ.get("DIE") and page == PAGES[-1]:
        await asyncio.Event().wait()  # this one takes too long
    print(f"  looking up {page}", flush=True)
    return f"what there is to say about {page}"


def scripted(call):
    """Ask for the pages that are not there yet, then tell."""
    found = [item["output"].split()[-1] for item in call.input if item.get("type") == "function_call_output"]
    missing = [page for page in PAGES if page not in found]
    if not missing:
        return [assistant_message(f"Read: {', '.join(sorted(found))}.")]
    return [function_call("look_up", {"page": page}, call_id=f"{page}-{os.getpid()}") for page in missing]


async def work(folder: str) -> None:
    async with treering.open_async(folder) as store:
        store.hooks.add("post_checkpoint_save", die_after_two_pages)
        session = TreeringSession("reading", store)
        is_new = not await session.get_items(limit=1)
        result = await Runner.run(
            Agent(name="reader", model=ScriptedModel([ModelStep.respond(scripted)] * 4), tools=[look_up]),
            "Read about trees." if is_new else [],
            session=session,
            hooks=session.checkpoint_after_tool_call(),
            run_config=RunConfig(tracing_disabled=True),
        )
        print(f"  {result.final_output}")


def die_after_two_pages(saved) -> None:
    results = saved.checkpoint.state.get("unfinished_turn", {})
    if os.environ.get("DIE") and len(results) == 1 + 2:  # what the model said, and two results
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="treering-example-") as folder:
        command = [sys.executable, __file__, folder]
        print("One process begins:", flush=True)
        killed = subprocess.run(command, env=os.environ | {"DIE": "1"}, check=False)
        print(f"  ended with {signal.Signals(-killed.returncode).name}")
        print("Another process resumes:", flush=True)
        subprocess.run(command, check=True)
        with treering.open(folder) as store:
            checkpoints = list(store.thread("reading").history())
            items = len(checkpoints[0].messages)
            print(f"{len(checkpoints)} checkpoints, {items} items, verified: {store.verify().ok}")


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
