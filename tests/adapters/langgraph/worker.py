"""A process that runs a graph on a LangGraph checkpointer; the tests kill it.

``python worker.py STORE NOTES ROUNDS KILL_AT``: counts with a tool, noting every call in the file
NOTES, and kills itself (SIGKILL) in the middle of call KILL_AT, as a machine dies. Prints the final state.
Given a STORE alone, it asks a question and dies; when it is run again, the question is answered.
"""

from __future__ import annotations

import operator
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, TypedDict

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import treering
from tests.adapters.langgraph.scripts import Scripted, config
from treering.adapters.langgraph import TreeringSaver


class Seen(TypedDict):
    seen: Annotated[list, operator.add]


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


def ask(store) -> None:
    """Ask a person beside a task that is done, and die as soon as the question is out."""

    def question(state: Seen):  # noqa: ARG001
        return {"seen": [interrupt("send it?")]}

    builder = StateGraph(Seen)
    builder.add_node("done", lambda state: {"seen": ["done"]})  # noqa: ARG005
    builder.add_node("question", question)
    builder.add_edge(START, "done")
    builder.add_edge(START, "question")
    graph = builder.compile(checkpointer=TreeringSaver(store))
    if store.thread("alice").head is not None:
        print(graph.get_state(config()).tasks[-1].interrupts[0].value)
        print(sorted(graph.invoke(Command(resume="yes"), config())["seen"]))
        return
    graph.invoke({"seen": []}, config())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__" and len(sys.argv) == 2:
    with treering.open(sys.argv[1]) as opened:
        ask(opened)
elif __name__ == "__main__":
    print(count(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
