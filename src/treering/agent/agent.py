"""An agent: a model, tools, and conversations that survive the process.

Every method exists twice, plain and with an ``a`` in front for asyncio; model, tools, middleware, hooks and
saver may each be plain or async whichever of the two is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from inspect import signature
from typing import Any, Final, cast

from treering.agent.conversations import Keeper
from treering.agent.driver import Steps, drive, drive_async
from treering.agent.loop import AgentRun, Setup, Told
from treering.agent.messages import Prompt
from treering.agent.middleware import Middleware
from treering.agent.results import Part, Result
from treering.agent.tools import toolbox
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.limits.tool_budgets import Budget
from treering.sync_async import Closing
from treering.threads.hooks import HookName
from treering.threads.interrupts import Decision

_METHODS: Final = ("before_model", "after_model", "wrap_tool", "needs_approval", "tools")


def create_agent(
    *,
    model: Callable[..., Any],
    name: str = "agent",
    tools: Iterable[Any] = (),
    checkpointer: Any = None,
    namespace: str = "",
    middleware: Iterable[Middleware] = (),
    hooks: Mapping[HookName, Any] | None = None,
    budgets: Budget | None = None,
    max_iterations: int = 100,
    on_over_budget: Told = "tell",
    on_tool_error: Told = "tell",
    record: bool = True,
) -> Agent:
    """An agent whose conversations are kept by thread id.

    ``model(messages, tools)`` gives a message, a text or a stream (see `treering.agent.loop`). ``tools``
    are functions or `Tool` objects. ``checkpointer`` is a `Store`, a URL or folder of one, a saver, or
    nothing. ``hooks`` are added to the checkpointer's own. ``budgets`` limits the tool calls,
    ``max_iterations`` how often the model is asked in one run. A call over budget and a tool that raises are
    told to the model as the call's result (``"tell"``), or end the run with the error (``"raise"``). With a
    store, every run is in its timeline under ``name``: messages, tool calls, tokens and cost, unless
    ``record=False`` leaves that to someone else.
    """
    if not callable(cast("object", model)):
        raise InvalidInput(f"model is {model!r}; give a function of (messages, tools), plain or async")
    if not _takes_two(model):
        raise InvalidInput(f"model {model!r} cannot be called with (messages, tools); let it take both")
    around = _each("middleware", middleware)
    for each in around:
        if not any(hasattr(each, name) for name in _METHODS):
            raise InvalidInput(
                f"{type(each).__name__} is no middleware; it has none of {', '.join(_METHODS)}"
            )
    if max_iterations < 1:
        raise InvalidInput(f"max_iterations={max_iterations} lets the model say nothing; use 1 or more")
    brought = [tool for each in around for tool in cast("Iterable[Any]", getattr(each, "tools", ()))]
    setup = Setup(
        model=model,
        tools=toolbox([*_each("tools", tools), *brought]),
        keeper=Keeper(checkpointer, namespace=namespace),
        middleware=around,
        budget=budgets or Budget(),
        max_iterations=max_iterations,
        on_over_budget=on_over_budget,
        on_tool_error=on_tool_error,
        name=check_id(name, "agent name"),
        records=record,
    )
    setup.keeper.attach(hooks or {})
    return Agent(setup)


class Agent(Closing):
    """Made by `create_agent`. It keeps nothing of a run itself, so any number of them may go on at once."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def generate(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Result:
        """Answer a prompt, going on from where the thread is; without one, finish what was left unfinished.

        Tool calls that were left without a result are made first. The thread is saved at the end, when a
        person has to decide, and as far as it got when the run fails; with ``checkpoint_after_tool_call``
        also after every answer that wants tools and after every tool's result. The prompt is saved with the
        first answer: a run that got none leaves no trace and may simply be repeated. ``metadata`` goes
        with every checkpoint of the run.
        """
        return _finished(
            self.stream(
                thread_id=thread_id,
                prompt=prompt,
                checkpoint_after_tool_call=checkpoint_after_tool_call,
                metadata=metadata,
            )
        )

    def stream(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Iterator[Part]:
        """`generate`, part by part as it happens; the last part has the result.

        The run goes on only while it is iterated over: one that is left half-way stays where it is.
        """
        return drive(self._run(thread_id, prompt, checkpoint_after_tool_call, metadata))

    def resume(
        self,
        *,
        thread_id: str,
        decision: Decision,
        value: Mapping[str, Any] | None = None,
        interrupt_id: str | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Result:
        """Decide about the tool call that the thread waits for, and go on.

        ``approve`` makes it, ``deny`` tells the model that it was denied, ``edit`` makes it with the
        arguments in ``value``. Raises `Conflict` when the thread waits for nothing, or for another
        ``interrupt_id``.
        """
        for _ in drive(_Answering(self._setup.keeper, thread_id, decision, value, interrupt_id)):
            pass
        return self.generate(
            thread_id=thread_id, checkpoint_after_tool_call=checkpoint_after_tool_call, metadata=metadata
        )

    # The same, awaited
    async def agenerate(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Result:
        """`generate`, awaited."""
        parts = drive_async(self._run(thread_id, prompt, checkpoint_after_tool_call, metadata))
        result: Result | None = None
        async with aclosing(cast("Any", parts)):
            async for part in parts:
                result = part.result
        return cast("Result", result)

    def astream(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Part]:
        """`stream`, for ``async for``."""
        return drive_async(self._run(thread_id, prompt, checkpoint_after_tool_call, metadata))

    async def aresume(
        self,
        *,
        thread_id: str,
        decision: Decision,
        value: Mapping[str, Any] | None = None,
        interrupt_id: str | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> Result:
        """`resume`, awaited."""
        async for _ in drive_async(_Answering(self._setup.keeper, thread_id, decision, value, interrupt_id)):
            pass
        return await self.agenerate(
            thread_id=thread_id, checkpoint_after_tool_call=checkpoint_after_tool_call, metadata=metadata
        )

    # Letting go
    def close(self) -> None:
        """Close the store, if the agent opened it by its URL. May be called twice."""
        self._setup.keeper.close()

    async def aclose(self) -> None:
        """As `close`, for async code."""
        await asyncio.to_thread(self.close)

    def _run(
        self,
        thread_id: str | None,
        prompt: Prompt | None,
        saves_often: bool,  # noqa: FBT001 - it is a keyword on every public method
        metadata: Mapping[str, Any] | None,
    ) -> AgentRun:
        return AgentRun(self._setup, thread_id, prompt, saves_often=saves_often, metadata=metadata)


class _Answering:
    """Keeps a person's decision; a step for the drivers like any other."""

    def __init__(
        self, keeper: Keeper, thread_id: str, decision: Decision, value: Any, interrupt_id: str | None
    ) -> None:
        if value is not None and not isinstance(value, Mapping):
            raise InvalidInput(f"value= has to be the new arguments as a dict, not {type(value).__name__}")
        book = keeper.book(thread_id)
        if book is None:
            raise InvalidInput("an agent without a checkpointer has no pending interrupt")
        self.stream: Any = None
        self._book = book
        self._answer: tuple[Decision, str | None, Any] = (decision, interrupt_id, value)

    def steps(self) -> Steps:
        yield from self._book.answer(*self._answer)


def _finished(parts: Iterator[Part]) -> Result:
    result: Result | None = None
    for part in parts:
        result = part.result
    return cast("Result", result)


def _each(what: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        kind = type(cast("object", given)).__name__
        raise InvalidInput(f"{what} is of type {kind}; give a list of them")
    return tuple(cast("Iterable[Any]", given))


def _takes_two(model: Callable[..., Any]) -> bool:
    """Whether a model can be called with messages and tools, as far as its signature says."""
    try:
        signature(model).bind([], [])
    except ValueError:  # some that are written in C have none
        return True
    except TypeError:
        return False
    return True
