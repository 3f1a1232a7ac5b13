"""A LangChain agent is killed in the middle of a tool, and another process goes on with the same
checkpointer.

    python examples/langgraph_agent.py

The model is scripted, so no key and no network are needed. It looks up three pages, one after the other.
The first process gets SIGKILL while it looks up the last one. The second one is given no new input:
LangGraph finds the thread where it was, and only the page that is missing is looked up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import treering
from treering.adapters.langgraph import TreeringSaver

PAGES = ("bark", "rings", "roots")
READING = {"configurable": {"thread_id": "reading"}}


class Scripted(BaseChatModel):
    """Asks for the pages one by one, then tells."""

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):  # noqa: ARG002
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):  # noqa: ARG002
        found = sum(isinstance(message, ToolMessage) for message in messages)
        answer = AIMessage(f"Read: {', '.join(PAGES)}.")
        if found < len(PAGES):
            call = {
                "name": "look_up",
                "args": {"page": PAGES[found]},
                "id": PAGES[found],
                "type": "tool_call",
            }
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def look_up(page: str) -> str:
    """Look a page up."""
    print(f"  looking up {page}", flush=True)
    if os.environ.get("DIE") and page == PAGES[-1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"what there is to say about {page}"


def work(folder: str) -> None:
    with treering.open(folder) as store:
        agent = create_agent(Scripted(), [look_up], checkpointer=TreeringSaver(store))
        is_new = store.thread("reading").head is None
        begin = {"messages": [HumanMessage("Read about trees.")]} if is_new else None
        state = agent.invoke(begin, READING, durability="sync")
        print(f"  {state['messages'][-1].content}")


def main() -> None:
    if len(sys.argv) > 1:
        work(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, folder]
        print("One process begins:", flush=True)
        first = subprocess.run(command, check=False, env=os.environ | {"DIE": "1"})
        print(
            "  killed" if first.returncode == -signal.SIGKILL else f"  ended: {first.returncode}", flush=True
        )
        print("Another process resumes:", flush=True)
        subprocess.run(command, check=True)
        with treering.open(folder) as store:
            thread = store.thread("reading")
            print(f"{len(thread.load().messages)} messages in {len(list(thread.history()))} checkpoints")


if __name__ == "__main__":
    main()
