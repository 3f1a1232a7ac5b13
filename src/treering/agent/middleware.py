"""Middleware: code of your own inside the agent's loop.

Any object with one or more of the methods below is middleware; each of them may be async. Those around the
model run in the order of the list before it and in reverse order after it; of those around a tool the first
one is the outermost. ``tools``, if the object has any, are added to the agent's.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from treering.agent.driver import Worker
from treering.agent.messages import Message, ToolCall
from treering.agent.results import Context
from treering.sync_async import call as waited

Proceed = Callable[[ToolCall], Any]
"""Calls the tool (or the next middleware around it) and gives its value; awaited in an async `wrap_tool`."""


@runtime_checkable
class BeforeModel(Protocol):
    """Changes what the model is shown."""

    def before_model(
        self, messages: list[Message], context: Context
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """The messages to show instead; ``None`` for these. What is shown is not what is saved."""
        ...


@runtime_checkable
class AfterModel(Protocol):
    """Changes what the model answered, before it is kept and acted on."""

    def after_model(
        self, messages: list[Message], context: Context
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """The messages to keep instead of the model's new ones; ``None`` for these."""
        ...


@runtime_checkable
class WrapTool(Protocol):
    """Stands around every tool call: may change it, time it, repeat it, or answer in its place."""

    def wrap_tool(self, call: ToolCall, context: Context, proceed: Proceed) -> Any:
        """The tool's value, as ``proceed(call)`` gives it, or another one."""
        ...


@runtime_checkable
class AsksFirst(Protocol):
    """Decides which calls a person has to agree to."""

    def needs_approval(self, call: ToolCall, context: Context) -> bool | Awaitable[bool]:
        """Whether this call has to wait for a person."""
        ...


Middleware = BeforeModel | AfterModel | WrapTool | AsksFirst


def wrapped(
    execute: Proceed, context: Context, middleware: Sequence[Middleware]
) -> Callable[[ToolCall], Any]:
    """The function that makes a call through all middleware around it."""
    for each in reversed(middleware):
        if isinstance(each, WrapTool):
            execute = _layer(each.wrap_tool, context, execute)
    return execute


def _layer(wrap: Callable[..., Any], context: Context, inner: Proceed) -> Proceed:
    if inspect.iscoroutinefunction(wrap):

        async def proceed_async(call: ToolCall) -> Any:
            worker = Worker()  # of its own: the run's may be waiting for this very call
            try:
                return await worker.awaited(inner, call)
            finally:
                worker.close()

        async def outer_async(call: ToolCall) -> Any:
            return await wrap(call, context, proceed_async)

        return outer_async

    def proceed(call: ToolCall) -> Any:
        return waited(inner, call)

    def outer(call: ToolCall) -> Any:
        return wrap(call, context, proceed)

    return outer
