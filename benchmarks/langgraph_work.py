"""The work that the LangGraph benchmarks share.

1,000 steps with one message of 1-2 KB each, every 20th also with a 50 KB tool result (about 4.2 MB of
JSON). One step is what LangGraph does in one superstep: `put_writes` with the new messages, then `put`
with the whole state. With a `DeltaChannel` LangGraph leaves the list out of the state, and stores it whole
every 100th time.
"""

from __future__ import annotations

import random
import sqlite3
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState, _messages_delta_reducer
from typing_extensions import TypedDict

from benchmarks.work import SYNCHRONOUS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from langchain_core.messages import BaseMessage

THREAD = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
SNAPSHOT_EVERY = 100
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def new_messages(steps: int) -> list[list[BaseMessage]]:
    """What each step adds; the same for everyone."""
    chance = random.Random(4)
    words = ["".join(chance.choices(LETTERS, k=chance.randint(2, 10))) for _ in range(4000)]

    def text(length: int) -> str:
        return " ".join(chance.choices(words, k=length // 6))[:length]

    def made_id() -> str:
        return str(uuid.UUID(int=chance.getrandbits(128)))

    added: list[list[BaseMessage]] = []
    for step in range(steps):
        messages: list[BaseMessage] = [AIMessage(text(chance.randint(900, 1900)), id=made_id())]
        if step % 20 == 19:
            messages.append(ToolMessage(text(50_000), tool_call_id=f"call-{step}", id=made_id()))
        added.append(messages)
    return added


def save_steps(saver: Any, added: list[list[BaseMessage]], *, delta: bool = False) -> float:
    """Put all steps; how many seconds it took."""
    started = time.perf_counter()
    for _ in steps_of(saver, added, delta=delta):
        pass
    return time.perf_counter() - started


def steps_of(saver: Any, added: list[list[BaseMessage]], *, delta: bool = False) -> Iterator[int]:
    """Put one step after the other."""
    config: Any = THREAD
    state: list[BaseMessage] = []
    version = None
    for step, messages in enumerate(added):
        if step:
            writes = [("messages", messages), ("branch:to:agent", None)]
            saver.put_writes(config, writes, str(uuid.UUID(int=step)), "~__pregel_pull, agent")
        state = state + messages
        version = saver.get_next_version(version, None)
        versions = {"messages": version, "branch:to:agent": version}
        values: dict[str, Any] = {"branch:to:agent": None}
        metadata: dict[str, Any] = {"source": "loop", "step": step, "parents": {}}
        if not delta:
            values["messages"] = state
        elif step % SNAPSHOT_EVERY == 0:
            values["messages"] = _DeltaSnapshot(state)
        else:
            since = step % SNAPSHOT_EVERY
            metadata["counters_since_delta_snapshot"] = {"messages": (since, since)}
        checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=step)),
            "ts": "2026-11-16T07:00:00.000000+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {"__input__": {}, "agent": {"branch:to:agent": version}},
            "updated_channels": ["branch:to:agent", "messages"],
            "pending_sends": [],
        }
        config = saver.put(config, checkpoint, metadata, dict(versions))
        yield step


class DeltaState(TypedDict):
    """Messages in a channel that stores changes only."""

    messages: Annotated[list, DeltaChannel(_messages_delta_reducer)]


def loop_of(saver: Any, added: list[list[BaseMessage]], *, delta: bool = False) -> float:
    """Run a real graph that adds the messages, one superstep each; how many seconds it took."""

    def agent(state: Any) -> Any:
        return {"messages": [message.model_copy() for message in added[_steps_in(state["messages"])]]}

    def is_done(state: Any) -> str:
        return END if _steps_in(state["messages"]) >= len(added) else "agent"

    builder = StateGraph(DeltaState if delta else MessagesState)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", is_done)
    graph = builder.compile(checkpointer=saver)
    config: Any = {**THREAD, "recursion_limit": 10 * len(added)}
    started = time.perf_counter()
    graph.invoke({"messages": added[0]}, config)
    return time.perf_counter() - started


def _steps_in(messages: list[BaseMessage]) -> int:
    """How many steps made these: every 20th adds two messages."""
    whole, rest = divmod(len(messages), 21)
    return whole * 20 + min(rest, 19)


def open_sqlite_saver(path: Path, durability: str) -> SqliteSaver:
    """LangGraph's saver at the same durability."""
    connection = sqlite3.connect(path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    return saver


def size_of(path: Path) -> int:
    """Bytes on disk of a file or folder."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(path.name + "*")
    return sum(file.stat().st_size for file in files if file.is_file())
