"""An agent: a model, tools, and conversations that survive the process.

Every method exists twice, sync and (with an ``a`` in front) async. Model, tools, middleware, hooks and
saver may each be sync or async, whichever of the two is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing
from inspect import signature
from typing import Any, Final, cast

from treering.agent.conversations import Conversations
from treering.agent.loop import (
    AgentConfig,
    AgentRun,
    Middleware,
    OnError,
    OnPartial,
    Steps,
    drive,
    drive_async,
)
from treering.agent.messages import AgentEvent, Prompt, Result
from treering.agent.subagents import subagent_tool
from treering.agent.tools import Tool, tools_by_name
from treering.approvals.policy import Decision
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.limits.tool_budgets import Budget
from treering.sync_async import Closing
from treering.threads.hooks import HooksLike

_METHODS: Final = ("before_model", "after_model", "wrap_tool", "needs_approval", "tools")


def create_agent(
    *,
    model: Callable[..., Any],
    name: str = "agent",
    tools: Iterable[Any] = (),
    checkpointer: Any = None,
    namespace: str = "",
    middleware: Iterable[Middleware] = (),
    hooks: HooksLike | None = None,
    budgets: Budget | None = None,
    max_iterations: int = 100,
    on_over_budget: OnError = "tell",
    on_tool_error: OnError = "tell",
    record: bool = True,
) -> Agent:
    """Create an agent whose conversations are stored by thread id.

    Args:
        model: a function ``(messages, tools)`` that returns a message, a text or a stream of them.
        name: the agent's name in timelines.
        tools: functions or `Tool` objects.
        checkpointer: a `Store`, the URL or folder of one, a saver, or ``None`` to store nothing.
        namespace: the tenant of the conversations in a store.
        middleware: objects with one or more methods of `Middleware`.
        hooks: run around this agent's own loads and saves, by name: ``{"post_checkpoint_save": notify}``.
        budgets: limits the tool calls.
        max_iterations: how often the model may be called in one run.
        on_over_budget: ``"tell"`` makes the error the result of the call, which the model reads; ``"raise"``
            ends the run with it.
        on_tool_error: the same for a tool that raises.
        record: with a store, record every run in its timeline: messages, tool calls, tokens and cost.
    """
    if not callable(cast("object", model)):
        raise InvalidInput(f"model is {model!r}; give a function of (messages, tools), sync or async")
    if not _accepts_two_arguments(model):
        raise InvalidInput(
            f"model {model!r} cannot be called with (messages, tools); give it both parameters"
        )
    around = _as_tuple("middleware", middleware)
    for each in around:
        if not any(hasattr(each, name) for name in _METHODS):
            raise InvalidInput(
                f"{type(each).__name__} is no middleware; it has none of {', '.join(_METHODS)}"
            )
    if max_iterations < 1:
        raise InvalidInput(f"max_iterations is {max_iterations}; give 1 or more")
    brought = [tool for each in around for tool in cast("Iterable[Any]", getattr(each, "tools", ()))]
    config = AgentConfig(
        model=model,
        tools=tools_by_name([*_as_tuple("tools", tools), *brought]),
        conversations=Conversations(checkpointer, namespace=namespace, hooks=hooks),
        middleware=around,
        budget=budgets or Budget(),
        max_iterations=max_iterations,
        on_over_budget=on_over_budget,
        on_tool_error=on_tool_error,
        name=check_id(name, "agent name"),
        record=record,
    )
    return Agent(config)


class Agent(Closing):
    """Created by `create_agent`. It holds no state of a run, so any number of runs may be active at once."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    def generate(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
        partial: OnPartial = "discard",
    ) -> Result:
        """Continue a thread with a prompt; without one, finish a run that was interrupted.

        Tool calls that have no result yet are made first. The thread is saved at the end, when a person has
        to decide, and when the run fails or is stopped; with ``checkpoint_after_tool_call`` also after every
        model reply that calls tools and after every tool result. The prompt is saved with the first reply: a
        run that got none is not stored and can be repeated. ``metadata`` is added to every checkpoint of the
        run.

        A streamed reply is kept chunk by chunk (`Thread.partial`). If its process died, a call without a
        prompt asks the model anew, or with ``partial="continue"`` lets it go on behind what it had said.
        """
        return _last_result(
            self.stream(
                thread_id=thread_id,
                prompt=prompt,
                checkpoint_after_tool_call=checkpoint_after_tool_call,
                metadata=metadata,
                partial=partial,
            )
        )

    def stream(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
        partial: OnPartial = "discard",
    ) -> Generator[AgentEvent]:
        """Run as `generate` does, and yield events as they happen; the last one has the result.

        The run advances only while it is iterated over. Closing the iterator stops it: complete replies and
        tool results are saved, and a run without a prompt continues there. With
        ``checkpoint_after_tool_call``, an event about a reply or a result is yielded after that was saved.
        """
        return drive(self._run(thread_id, prompt, checkpoint_after_tool_call, metadata, partial))

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
        """Decide about the pending tool call of a thread, and continue the run.

        ``approve`` makes the call, ``deny`` tells the model that it was denied, ``edit`` makes it with the
        arguments in ``value``. Raises `Conflict` if no call is pending, or if ``interrupt_id`` is another
        one.
        """
        for _ in drive(_Answer(self._config.conversations, thread_id, decision, value, interrupt_id)):
            pass
        return self.generate(
            thread_id=thread_id, checkpoint_after_tool_call=checkpoint_after_tool_call, metadata=metadata
        )

    async def agenerate(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
        partial: OnPartial = "discard",
    ) -> Result:
        """Async twin of `generate`."""
        events = drive_async(self._run(thread_id, prompt, checkpoint_after_tool_call, metadata, partial))
        result: Result | None = None
        async with aclosing(events):
            async for event in events:
                result = event.result
        return cast("Result", result)

    def astream(
        self,
        *,
        thread_id: str | None = None,
        prompt: Prompt | None = None,
        checkpoint_after_tool_call: bool = False,
        metadata: Mapping[str, Any] | None = None,
        partial: OnPartial = "discard",
    ) -> AsyncGenerator[AgentEvent]:
        """Async twin of `stream`."""
        return drive_async(self._run(thread_id, prompt, checkpoint_after_tool_call, metadata, partial))

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
        """Async twin of `resume`."""
        async for _ in drive_async(
            _Answer(self._config.conversations, thread_id, decision, value, interrupt_id)
        ):
            pass
        return await self.agenerate(
            thread_id=thread_id, checkpoint_after_tool_call=checkpoint_after_tool_call, metadata=metadata
        )

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> Tool:
        """Return a tool that runs this agent, for another agent's ``tools=``.

        The model of the other agent passes a ``prompt`` and reads the answer. Each call is a conversation of
        its own, whose run is a child of the run that calls (see `Runs.tree`). When the parent is resumed, an
        unfinished sub-agent goes on where it stopped, once.
        """
        name = name or self._config.name
        conversations = self._config.conversations
        return subagent_tool(
            self,
            conversations.store,
            name,
            conversations.namespace,
            description or f"Ask the agent {name}; give it everything that it has to know.",
        )

    def close(self) -> None:
        """Close the store, if the agent opened it by its URL. May be called twice."""
        self._config.conversations.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await asyncio.to_thread(self.close)

    def _run(
        self,
        thread_id: str | None,
        prompt: Prompt | None,
        checkpoint_after_tool_call: bool,  # noqa: FBT001 - it is a keyword on every public method
        metadata: Mapping[str, Any] | None,
        partial: OnPartial,
    ) -> AgentRun:
        return AgentRun(
            self._config,
            thread_id,
            prompt,
            checkpoint_after_tool_call=checkpoint_after_tool_call,
            metadata=metadata,
            partial=partial,
        )


class _Answer:
    """Saves a person's decision, as steps for a driver."""

    def __init__(
        self,
        conversations: Conversations,
        thread_id: str,
        decision: Decision,
        value: Any,
        interrupt_id: str | None,
    ) -> None:
        if value is not None and not isinstance(value, Mapping):
            raise InvalidInput(f"value= is a {type(value).__name__}; give the new arguments as a dict")
        conversation = conversations.open(thread_id)
        if conversation is None:
            raise InvalidInput("an agent without a checkpointer has no pending interrupt")
        self.stream: Any = None
        self._conversation = conversation
        self._answer: tuple[Decision, str | None, Any] = (decision, interrupt_id, value)

    def steps(self) -> Steps:
        yield from self._conversation.answer(*self._answer)


def _last_result(events: Iterator[AgentEvent]) -> Result:
    result: Result | None = None
    for event in events:
        result = event.result
    return cast("Result", result)


def _as_tuple(what: str, given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        kind = type(cast("object", given)).__name__
        raise InvalidInput(f"{what} is of type {kind}; give a list of them")
    return tuple(cast("Iterable[Any]", given))


def _accepts_two_arguments(model: Callable[..., Any]) -> bool:
    """Whether a model can be called with messages and tools, as far as its signature is known."""
    try:
        signature(model).bind([], [])
    except ValueError:  # some functions written in C have no signature
        return True
    except TypeError:
        return False
    return True
