"""The events of a run, its result, and the context that tools and middleware get."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treering.agent.messages import Message, ToolCall
from treering.limits.tool_budgets import Counters

AgentEventKind = Literal[
    "text", "piece", "message", "tool_call", "tool_result", "checkpoint", "interrupt", "finish"
]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, for tools with a parameter of this type, and for middleware.

    ``state`` is the thread's state: ``todos`` (a list), ``files`` (a dict) and whatever else the tools store;
    changes to it are saved with the next checkpoint. ``call`` is the tool call, if there is one.
    """

    thread_id: str | None
    namespace: str
    run_id: str
    iteration: int
    state: dict[str, Any]
    call: ToolCall | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    ``messages`` are those that this run added. ``checkpoint`` is the thread's newest one; ``None`` if it
    could not be saved, a hook vetoed it, or the agent has no checkpointer. ``interrupt`` is what a person
    has to decide before the run can continue (see `Agent.resume`).
    """

    run_id: str
    text: str
    messages: list[Message]
    state: dict[str, Any]
    checkpoint: Any
    interrupt: dict[str, Any] | None
    iterations: int
    counters: Counters


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a run.

    - ``text``: more of the reply, in ``text``; ``piece``: anything else that the model streamed, in
      ``value``;
    - ``message``: a complete message of the model;
    - ``tool_call``, ``tool_result``: a call that is about to be made, and its result in ``message`` and
      ``text``;
    - ``checkpoint``: the thread was saved; ``interrupt``: a person has to decide;
    - ``finish``: the last event, with the ``result``.
    """

    kind: AgentEventKind
    text: str = ""
    value: Any = None
    message: Message | None = None
    call: ToolCall | None = None
    is_error: bool = False
    checkpoint: Any = None
    interrupt: dict[str, Any] | None = None
    result: Result | None = None
