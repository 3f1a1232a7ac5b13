"""A process that runs an agent on a LangGraph checkpointer; the tests kill it.

``python langgraph_worker.py STORE NOTES ROUNDS KILL_AT``: counts with a tool, noting every call in the file
NOTES, and kills itself (SIGKILL) in the middle of call KILL_AT, as a machine dies. Prints the final state.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from tests.adapters.langgraph_scripts import Scripted, config
from treering.adapters.langgraph import TreeringSaver


def count(store, notes: str | Path, rounds: int, kill_at: int) -> str:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        if a == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(notes).open("a", encoding="utf-8") as file:
            file.write(f"{a}\n")
        return a + b

    with TreeringSaver(store) as saver:
        agent = create_agent(Scripted(rounds=rounds), [add], checkpointer=saver)
        is_new = saver.get_tuple(config()) is None
        given = {"messages": [HumanMessage("count", id="first")]} if is_new else None
        state = agent.invoke(given, config(), durability="sync")
        return str([(message.type, message.content) for message in state["messages"]])


if __name__ == "__main__":
    print(count(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
