"""A chat agent as in CianaParrot: LangGraph behind, chats in front, everything in a treering store.

python -m tests.acceptance.chat_agent STORE

Reads ``channel chat_id text`` lines and prints one JSON line for each. Its files lie beside the store:
``workspace/`` (memory files, and what it writes), ``Documents/`` (which it may only read) and ``sessions/``.
The model is scripted: it repeats all that the person said in this session, and tells what its memory files
say when it is asked ``/who``. ``/new`` begins the next session, ``/code`` makes the person work on a project,
``/write`` writes a file, ``/later`` schedules a prompt (its answer is sent into ``workspace/sent/``).
``/hang`` is a message whose answer takes for ever, for whoever wants to kill it in the middle of a turn.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import treering
from treering import UserSession
from treering.adapters.langgraph import TreeringSaver
from treering.compat.memory import AgentFiles
from treering.errors import TreeringError


def build(memory: AgentFiles | None = None) -> StateGraph:
    def model(state):
        said = [message.content for message in state["messages"] if isinstance(message, HumanMessage)]
        if said[-1] == "/hang":
            print(json.dumps({"hangs": len(said)}), flush=True)
            time.sleep(600)
        if said[-1] == "/who" and memory is not None:
            return {"messages": [AIMessage(" / ".join(each.content.strip() for each in memory.query()))]}
        return {"messages": [AIMessage(f"You said: {', '.join(said)}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder


class Agent:
    """What answers one line after the other, and in between what is due."""

    def __init__(self, store: treering.Store, home: Path) -> None:
        self._store = store
        self._home = home
        memory = AgentFiles(home / "workspace")
        memory.ensure()
        self._graph = build(memory).compile(checkpointer=TreeringSaver(store))
        (home / "Documents").mkdir(exist_ok=True)
        self._files = store.workspace.files(
            home / "workspace", mounts={"host/documents": (home / "Documents", "ro")}
        )
        self._people = store.state.sessions(UserSession)

    def run(self) -> None:
        working = self._people.restore().sessions
        self._tell({"ready": {user: session.active_project_path for user, session in working.items()}})
        with self._files, self._store.schedules.worker(self._due, deliver=self._send):
            for line in sys.stdin:
                try:
                    self._tell(self._answer(*line.rstrip("\n").split(" ", 2)))
                except TreeringError as error:
                    self._tell({"refused": type(error).__name__})

    def _answer(self, channel: str, chat_id: str, text: str) -> dict[str, str]:
        chat = self._store.chat(channel, chat_id)
        match text.split(" ", 2):
            case ["/new"]:
                return {"thread": chat.reset().id}
            case ["/code", path]:
                self._people.save(chat_id, UserSession(mode="claude_code", active_project_path=path))
                return {"works on": path}
            case ["/write", path, content]:
                self._files.write(path, content)
                return {"wrote": path}
            case ["/later", when, prompt]:
                task = self._store.schedules.schedule_task(
                    prompt, "once", when, channel=channel, chat_id=chat_id
                )
                return {"task": task.id}
        log = chat.log(self._home / "sessions")
        log.append("user", text, user_id=chat_id)
        says = self._said(chat.thread.id, text)
        log.append("assistant", says)
        return {"thread": chat.thread.id, "says": says}

    def _said(self, thread_id: str, text: str) -> str:
        config = {"configurable": {"thread_id": thread_id}}
        state = self._graph.invoke({"messages": [HumanMessage(text)]}, config, durability="sync")
        return state["messages"][-1].content

    def _due(self, occurrence):
        return self._said(occurrence.thread_id, occurrence.prompt)

    def _send(self, occurrence, result: str) -> None:
        self._files.write(f"sent/{occurrence.channel}_{occurrence.chat_id}.txt", result)

    def _tell(self, answer: dict[str, object]) -> None:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with treering.open(sys.argv[1]) as opened:
        Agent(opened, Path(sys.argv[1]).parent).run()
