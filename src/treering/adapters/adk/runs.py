"""Google ADK: each invocation of a runner is a run of its session's thread.

`TreeringPlugin` records agents, calls of models and tools with tokens and cost. A sub-agent is a span of the
agent that called it, and a runner that a tool starts is part of the run. `TreeringSessionService` asks here
which run an event belongs to, so its checkpoints are linked to that run. **Invariant:** an error in recording
never reaches the agent; only `BudgetExceeded` does, before the call that would exceed it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast
from weakref import WeakValueDictionary, finalize

from treering.adapters.shared import Opened, StoreOrUrl, checked_namespace
from treering.core.batch import Usage
from treering.errors import BudgetExceeded, MissingExtra
from treering.runs.run import Run
from treering.runs.span import ERROR, OK, RunNode, Span, current_node, model_call

try:
    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

    from treering.adapters.adk.sessions import SessionName
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "treering":
        raise
    raise MissingExtra("treering.adapters.adk", "adk") from error

_INTERRUPTED: Final = "interrupted"
_recorded: Final[WeakValueDictionary[str, RunNode]] = WeakValueDictionary()
"""What records each invocation of this process."""


@contextmanager
def run_of(invocation_id: str) -> Generator[None]:
    """What is saved inside is of the run that records this invocation, if there is one."""
    node = _recorded.get(invocation_id)
    if node is None:
        yield
        return
    token = current_node.set(node)
    try:
        yield
    finally:
        current_node.reset(token)


class _Invocation:
    """One invocation that is being recorded: its node, and its open spans by what ADK calls them."""

    def __init__(self, node: Run | Span) -> None:
        self.node = node
        self.spans: dict[tuple[str, ...], Span] = {}
        self.is_waiting = False

    def end(self, status: str | None = None, error: Exception | None = None) -> None:
        """End the node and what is open below it; a second call has no effect."""
        if error is not None:
            self.node.fail(error)
        status = status or (ERROR if error is not None else _INTERRUPTED if self.is_waiting else OK)
        for span in reversed(self.spans.values()):
            span.end(status=ERROR if error is not None else OK)
        self.node.end(status=status)


class TreeringPlugin(BasePlugin):
    """A plugin that records runs: ``Runner(..., plugins=[TreeringPlugin(store)])``.

    ``store`` is an open store, or where to open one, which `close` then closes; ``inputs`` says whether to
    record what is sent to models, which is the whole conversation at each call.
    """

    def __init__(self, store: StoreOrUrl | None = None, *, namespace: str = "", inputs: bool = False) -> None:
        super().__init__(name="treering")
        self._opened = Opened(store)
        self._namespace = checked_namespace(namespace)
        self._inputs = inputs
        self._invocations: dict[str, _Invocation] = {}

    # A run
    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> None:
        """Begin a run with what the user said."""
        self._safely(lambda: self._begin(invocation_context).node.message("user", _plain(user_message)))

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Begin a run that has no message, as one that is resumed."""
        self._safely(lambda: self._begin(invocation_context))

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Notice that the run waits: for a tool that takes long, or for a person to confirm a call."""

        def notice() -> None:
            known = self._invocations.get(invocation_context.invocation_id)
            if known is not None and not event.partial and event.author != "user":
                known.is_waiting = bool(event.long_running_tool_ids)

        self._safely(notice)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """End the run."""
        known = self._invocations.pop(invocation_context.invocation_id, None)
        if known is not None:
            self._safely(known.end)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        """End a run that failed."""
        known = self._invocations.pop(invocation_context.invocation_id, None)
        if known is not None:
            self._safely(lambda: known.end(error=error))

    # Agents
    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """Start the span of an agent; the first one is the run itself."""

        def begin() -> None:
            known = self._invocations.get(callback_context.invocation_id)
            if known is None or not _is_below(agent, known.node):
                return
            parent = agent.parent_agent
            above = None if parent is None else known.spans.get(_agent_key(parent.name))
            span = (above or known.node).span(agent.name, kind="agent")
            known.spans[_agent_key(agent.name)] = span.start()

        self._safely(begin)

    async def after_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """End the span of an agent."""
        self._end_span(callback_context, *_agent_key(agent.name))

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        """End the span of an agent that failed."""
        self._end_span(callback_context, *_agent_key(agent.name), error=error)

    # Models
    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Start the span of a call of a model."""

        def begin() -> None:
            known = self._invocations.get(callback_context.invocation_id)
            if known is None:
                return
            given: dict[str, Any] = {"input": _plain(llm_request.contents)} if self._inputs else {}
            above = known.spans.get(_agent_key(callback_context.agent_name), known.node)
            span = above.span(llm_request.model or "model", kind="llm", model=llm_request.model, **given)
            model_call.set(span.start())
            known.spans[_model_key(callback_context)] = span

        self._safely(begin)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> None:
        """Record a reply, and end the span; of a stream, its last piece is all of it."""

        def end() -> None:
            known = self._invocations.get(callback_context.invocation_id)
            key = _model_key(callback_context)
            span = None if known is None else known.spans.get(key)
            if known is None or span is None:
                return
            if llm_response.partial:
                for part in (llm_response.content.parts if llm_response.content else None) or ():
                    if part.text:
                        span.chunk(part.text)
                return
            del known.spans[key]
            span.model = llm_response.model_version or span.model
            usage = usage_of(llm_response.usage_metadata)
            if llm_response.content is not None or usage is not None:
                span.message("assistant", _plain(llm_response.content), model=span.model, usage=usage)
            if llm_response.error_code:
                span.note(
                    error={"type": llm_response.error_code, "message": llm_response.error_message or ""}
                )
            span.end(status=ERROR if llm_response.error_code else OK)

        self._safely(end)

    async def on_model_error_callback(
        self,
        *,
        callback_context: CallbackContext,
        llm_request: LlmRequest,  # noqa: ARG002 - ADK's signature
        error: Exception,
    ) -> None:
        """End the span of a call that failed."""
        self._end_span(callback_context, *_model_key(callback_context), error=error)

    # Tools
    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """Start the span of a tool; what it starts is part of it."""

        def begin() -> None:
            known = self._invocations.get(tool_context.invocation_id)
            if known is None:
                return
            above = known.spans.get(_agent_key(tool_context.agent_name), known.node)
            span = above.tool(tool.name, _plain(tool_args))
            span.note(tool_call_id=tool_context.function_call_id)
            known.spans[_tool_key(tool_context)] = span.start()
            current_node.set(span)  # ADK runs each call in a task of its own

        self._safely(begin)

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002 - ADK's signature
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
        result: dict[str, Any],
    ) -> None:
        """Record what a tool returned, and end its span."""
        self._end_span(tool_context, *_tool_key(tool_context), output=result)

    async def on_tool_error_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002 - ADK's signature
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
        error: Exception,
    ) -> None:
        """End the span of a tool that failed."""
        self._end_span(tool_context, *_tool_key(tool_context), error=error)

    # Closing
    async def close(self) -> None:
        """Wait until everything is durable, and close the store if it was opened here."""
        await self._opened.bridge.call(self._opened.store.flush)
        await self._opened.aclose()

    def _begin(self, context: InvocationContext) -> _Invocation:
        known = self._invocations.get(context.invocation_id)
        if known is not None:
            return known
        session, outer = context.session, current_node.get()
        agent = "agent" if context.agent is None else context.agent.name
        node: Run | Span
        if outer is not None:
            node = outer.span(agent, kind="agent").start()
        else:
            node = self._opened.store.run(
                agent=agent,
                thread=SessionName(session.app_name, session.user_id, session.id).thread_id,
                namespace=self._namespace or None,
                meta={"invocation": context.invocation_id},
            ).start()
        known = self._invocations[context.invocation_id] = _Invocation(node)
        _recorded[context.invocation_id] = node
        finalize(context, known.end, "cancelled")  # ADK tells nobody that an invocation was cancelled
        return known

    def _end_span(
        self, context: CallbackContext, *key: str, output: Any = None, error: Exception | None = None
    ) -> None:
        def end() -> None:
            known = self._invocations.get(context.invocation_id)
            span = None if known is None else known.spans.pop(key, None)
            if span is None:
                return
            if error is not None:
                span.fail(error)
            elif output is not None:
                span.output = _plain(output)
            span.end()

        self._safely(end)

    def _safely(self, record: Callable[[], object]) -> None:
        try:
            record()
        except BudgetExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - recording must not stop the agent
            warnings.warn(f"a step could not be recorded: {error!r}", RuntimeWarning, stacklevel=4)


def _is_below(agent: BaseAgent, node: RunNode) -> bool:
    """Whether an agent has a span of its own: the one that the run is named after is the run."""
    return agent.name != node.agent


def _agent_key(name: str) -> tuple[str, ...]:
    return "agent", name


def _model_key(context: CallbackContext) -> tuple[str, ...]:
    return "model", context.agent_name


def _tool_key(context: ToolContext) -> tuple[str, ...]:
    return "tool", context.function_call_id or ""


def usage_of(reported: types.GenerateContentResponseUsageMetadata | None) -> Usage | None:
    """Count tokens by disjoint class: Gemini's prompt includes cached tokens, and its output no thoughts."""
    if reported is None:
        return None
    cached, thoughts = reported.cached_content_token_count or 0, reported.thoughts_token_count or 0
    given = (reported.prompt_token_count or 0) + (reported.tool_use_prompt_token_count or 0)
    usage = Usage(
        input=max(given - cached, 0),
        cache_read=cached,
        output=(reported.candidates_token_count or 0) + thoughts,
        reasoning=thoughts,
    )
    return usage if usage.total else None


def _plain(value: Any) -> Any:
    """Return values of ADK as JSON values."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_none=True)
    return [_plain(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value
