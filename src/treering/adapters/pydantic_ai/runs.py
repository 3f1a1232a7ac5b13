"""pydantic-ai: each run of an agent is a run of its conversation's thread.

`TreeringRuns` is a capability that records an agent's run with a span for each model request and tool call,
with tokens and cost. Inside of another run (a tool that asks a second agent, ``with store.run(...)``) it is a
span of that one. What is saved meanwhile, such as a checkpoint, belongs to the run. **Invariant:** an error
in recording never reaches the agent; only `BudgetExceeded` does, before the call that would exceed it.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar, cast

from treering.adapters.shared import Opened, StoreOrUrl, checked_namespace, thread_name
from treering.core.batch import Usage
from treering.errors import BudgetExceeded, MissingExtra
from treering.runs.run import Run
from treering.runs.span import OK, RunNode, Span, current_node

try:
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import DeferredToolRequests, RunContext, ToolDefinition

    from treering.adapters.pydantic_ai.records import dump_messages
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "treering":
        raise
    raise MissingExtra("treering.adapters.pydantic_ai", "pydantic-ai") from error

T = TypeVar("T")

_INTERRUPTED: Final = "interrupted"


class TreeringRuns(AbstractCapability[Any]):
    """A capability that records runs: ``Agent(model, capabilities=[TreeringRuns(store)])``.

    A run has pydantic-ai's own run id, and its conversation is the thread. `TreeringCheckpoints` records runs
    by itself. ``inputs`` says whether to record what is sent to models, which is the whole conversation at
    each request.
    """

    def __init__(self, store: StoreOrUrl | None = None, *, namespace: str = "", inputs: bool = False) -> None:
        self._recorder = Recorder(Opened(store), checked_namespace(namespace), inputs=inputs)

    async def for_run(self, ctx: RunContext[Any]) -> Self:  # noqa: ARG002 - pydantic-ai's signature
        """Return a new capability for each run, which remembers what it records."""
        own = object.__new__(type(self))
        own._recorder = self._recorder.fresh()
        return own

    async def wrap_run(
        self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Record a run of the agent."""
        return await self._recorder.run(ctx, handler)

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - pydantic-ai's signature
        *,
        request_context: Any,
        handler: Callable[[Any], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Record a request to the model, with its tokens."""
        return await self._recorder.request(request_context, handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - pydantic-ai's signature
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - pydantic-ai's signature
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Record a call of a tool."""
        return await self._recorder.tool(call, args, handler)


class Recorder:
    """Records one run of an agent; `fresh` returns the one for the next."""

    def __init__(self, opened: Opened, namespace: str, *, inputs: bool = False, is_on: bool = True) -> None:
        self._is_on = is_on
        self._opened = opened
        self._namespace = namespace
        self._inputs = inputs
        self._node: RunNode | None = None

    def fresh(self) -> Recorder:
        """Return a recorder for another run."""
        return Recorder(self._opened, self._namespace, inputs=self._inputs)

    @contextmanager
    def active(self) -> Generator[None]:
        """What is stored inside belongs to the run."""
        if self._node is None:
            yield
            return
        token = current_node.set(self._node)
        try:
            yield
        finally:
            current_node.reset(token)

    async def run(
        self, ctx: RunContext[Any], handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Record a run."""
        outer = current_node.get()
        if not self._is_on or (outer is not None and ctx.run_id in (outer.run_id, outer.id)):
            return await handler()  # it is not to be recorded, or another of these records it
        node = self._node = self._safely(lambda: self._begin(ctx, outer))
        if node is None:
            return await handler()
        with self.active():
            try:
                result = await handler()
            except BaseException as error:
                node.fail(error)
                if isinstance(node, Span):
                    node.end()
                raise
        is_waiting = isinstance(result.output, DeferredToolRequests)
        if isinstance(node, Span):
            self._safely(lambda: setattr(node, "output", result.output))
        node.end(status=_INTERRUPTED if is_waiting else OK)
        return result

    def _begin(self, ctx: RunContext[Any], outer: RunNode | None) -> Run | Span:
        agent = (ctx.agent.name if ctx.agent is not None else None) or "agent"
        if outer is not None:
            return outer.span(agent, kind="agent", id=ctx.run_id, input=_plain(ctx.prompt)).start()
        conversation = ctx.conversation_id
        run = self._opened.store.run(
            agent=agent,
            thread=None if conversation is None else thread_name(conversation, "conversation id"),
            namespace=self._namespace or None,
            id=ctx.run_id,
        ).start()
        if ctx.prompt is not None:
            run.message("user", _plain(ctx.prompt))
        return run

    async def request(
        self, request_context: Any, handler: Callable[[Any], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Record a request to a model."""
        node = self._node
        if node is None:
            return await handler(request_context)
        model: Any = getattr(request_context.model, "model_name", None)
        model = model if isinstance(model, str) else None
        messages = cast("Sequence[ModelMessage]", request_context.messages)
        given: dict[str, Any] = {"input": dump_messages(messages)} if self._inputs else {}
        span = self._safely(lambda: node.span(model or "model", kind="llm", model=model, **given))
        if span is None:
            return await handler(request_context)
        async with span:
            response = await handler(request_context)
            self._safely(lambda: _record_reply(span, response))
        return response

    async def tool(
        self, call: ToolCallPart, args: Mapping[str, Any], handler: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """Record a call of a tool."""
        node = self._node
        span = None if node is None else self._safely(lambda: node.tool(call.tool_name, _plain(args)))
        if span is None:
            return await handler(args)
        span.note(tool_call_id=call.tool_call_id)
        span.start()
        token = current_node.set(span)
        try:
            result = await handler(args)
        except (ApprovalRequired, CallDeferred):
            span.end(status=_INTERRUPTED)
            raise
        except BaseException as error:
            span.fail(error)
            span.end()
            raise
        finally:
            current_node.reset(token)
        self._safely(lambda: setattr(span, "output", _plain(result)))
        span.end()
        return result

    def _safely(self, record: Callable[[], T]) -> T | None:
        try:
            return record()
        except BudgetExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - recording must not stop the agent
            warnings.warn(f"a step could not be recorded: {error!r}", RuntimeWarning, stacklevel=4)
            return None


def _record_reply(span: Span, response: ModelResponse) -> None:
    (message,) = dump_messages([response])
    provider = response.provider_name
    span.model = response.model_name or span.model
    span.message(
        "assistant",
        message,
        model=span.model,
        usage=usage_of(response),
        metadata=None if provider is None else {"provider": provider},
    )


def usage_of(response: ModelResponse) -> Usage | None:
    """Count the tokens of a response by disjoint class; pydantic-ai's input includes cached tokens."""
    usage = response.usage
    if not usage.has_values():
        return None
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return Usage(
        input=max(usage.input_tokens - cached, 0),
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        output=usage.output_tokens,
        reasoning=min(usage.details.get("reasoning_tokens", 0), usage.output_tokens),
    )


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return value if isinstance(value, str) else to_jsonable_python(value, serialize_unknown=True)
