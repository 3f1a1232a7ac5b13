"""What an agent's run shows while it goes, and what it gives back at its end."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treering.agent.messages import Message, ToolCall
from treering.limits.tool_budgets import Counters

PartKind = Literal[
    "text", "piece", "message", "tool_call", "tool_result", "checkpoint", "interrupt", "finish"
]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Where in its work an agent is. A tool with a parameter of this type gets one, middleware always does.

    ``state`` is the thread's state: ``todos`` (a list), ``files`` (a dict) and whatever else the tools keep;
    changes to it are saved with the next checkpoint. ``call`` is the tool call, where there is one.
    """

    thread_id: str | None
    namespace: str
    run_id: str
    iteration: int
    state: dict[str, Any]
    call: ToolCall | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    ``messages`` are those that this run added. ``checkpoint`` is where the thread is now: ``None`` when it
    could not be saved, a hook vetoed it, or the agent has no checkpointer. ``interrupt`` is what a person has
    to decide before the run can go on (see `Agent.resume`).
    """

    run_id: str
    text: str
    messages: list[Message]
    state: dict[str, Any]
    checkpoint: Any
    interrupt: dict[str, Any] | None
    iterations: int
    counters: Counters


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a run.

    - ``text``: more of the answer, in ``text``; ``piece``: whatever else the model streamed, in ``value``;
    - ``message``: a whole message of the model;
    - ``tool_call``, ``tool_result``: a call that is being made, and its result in ``message`` and ``text``;
    - ``checkpoint``: the thread was saved; ``interrupt``: a person has to decide;
    - ``finish``: the last part, with the ``result``.
    """

    kind: PartKind
    text: str = ""
    value: Any = None
    message: Message | None = None
    call: ToolCall | None = None
    is_error: bool = False
    checkpoint: Any = None
    interrupt: dict[str, Any] | None = None
    result: Result | None = None
