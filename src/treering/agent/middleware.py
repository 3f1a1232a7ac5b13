"""Middleware: code of your own inside the agent's loop.

Any object with one or more of the methods below is middleware; each method may be async. ``before_model``
runs in list order and ``after_model`` in reverse order; the first ``wrap_tool`` is the outermost. If the
object has ``tools``, they are added to the agent's.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from treering.agent.driver import WorkerThread
from treering.agent.messages import Message, ToolCall
from treering.agent.results import Context
from treering.sync_async import call as call_and_wait

Proceed = Callable[[ToolCall], Any]
"""Calls the next middleware or the tool and returns its value; awaited in an async `wrap_tool`."""


@runtime_checkable
class BeforeModel(Protocol):
    """Changes what the model sees."""

    def before_model(
        self, messages: list[Message], context: Context
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Return the messages to send instead, or ``None`` for these. They are not saved."""
        ...


@runtime_checkable
class AfterModel(Protocol):
    """Changes the model's reply before it is saved and acted on."""

    def after_model(
        self, messages: list[Message], context: Context
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Return the messages to keep instead of the new ones, or ``None`` for these."""
        ...


@runtime_checkable
class WrapTool(Protocol):
    """Wraps every tool call: may change, time, repeat or replace it."""

    def wrap_tool(self, call: ToolCall, context: Context, proceed: Proceed) -> Any:
        """Return the tool's value: that of ``proceed(call)``, or another one."""
        ...


@runtime_checkable
class NeedsApproval(Protocol):
    """Decides which calls need a person's approval."""

    def needs_approval(self, call: ToolCall, context: Context) -> bool | Awaitable[bool]:
        """Whether this call needs approval."""
        ...


Middleware = BeforeModel | AfterModel | WrapTool | NeedsApproval


def apply_middleware(
    execute: Proceed, context: Context, middleware: Sequence[Middleware]
) -> Callable[[ToolCall], Any]:
    """Return a function that makes a tool call through all middleware."""
    for each in reversed(middleware):
        if isinstance(each, WrapTool):
            execute = _layer(each.wrap_tool, context, execute)
    return execute


def _layer(wrap: Callable[..., Any], context: Context, inner: Proceed) -> Proceed:
    if inspect.iscoroutinefunction(wrap):

        async def proceed_async(call: ToolCall) -> Any:
            worker = WorkerThread()  # not the run's own, which may be waiting for this call
            try:
                return await worker.awaited(inner, call)
            finally:
                worker.close()

        async def outer_async(call: ToolCall) -> Any:
            return await wrap(call, context, proceed_async)

        return outer_async

    def proceed(call: ToolCall) -> Any:
        return call_and_wait(inner, call)

    def outer(call: ToolCall) -> Any:
        return wrap(call, context, proceed)

    return outer
