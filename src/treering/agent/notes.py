"""What the timeline hears of an agent's run: its messages, its model's answers, its tools, and how it ended.

Only an agent whose conversations are in a store has one. Every attempt is a run of its own: the first has the
id of `Result.run_id`, one that goes on after a crash or a decision says in ``meta["resumes"]`` which it
continues.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from treering.agent.shapes import text_of
from treering.errors import InvalidInput
from treering.views.recording.context import here

if TYPE_CHECKING:
    from treering.agent.shapes import Message, ToolCall
    from treering.store import Store
    from treering.views.recording.runs import Run
    from treering.views.recording.spans import Place, Span


class Notes:
    """Takes notes of one attempt; without a store it does nothing."""

    def __init__(self, store: Store | None, agent: str, *, thread_id: str | None, namespace: str) -> None:
        self._store = store
        self._agent = agent
        self._thread_id = thread_id
        self._namespace = namespace
        self._run: Run | None = None
        self._span: Span | None = None

    def begin(self, id: str, *, resumes: str | None) -> None:
        """The attempt begins."""
        if self._store is not None:
            self._run = self._store.run(
                self._agent,
                id=id,
                thread=self._thread_id,
                namespace=self._namespace,
                meta={} if resumes is None else {"resumes": resumes},
            ).start()

    def said(self, messages: list[Message]) -> None:
        """Someone said something: the prompt."""
        if self._run is not None:
            for each in messages:
                self._run.message(str(each.get("role")), each.get("content"))

    def ask(self) -> None:
        """The model is asked."""
        if self._run is not None:
            self._span = self._run.span("model", kind="llm").start()

    def chunk(self, text: str) -> None:
        """A piece of the model's answer came."""
        if self._span is not None:
            self._span.chunk(text)

    def answered(self, messages: list[Message]) -> None:
        """The model answered: its messages, with the tokens that they took where the provider says so."""
        span = self._end_span()
        if span is not None:
            for each in messages:
                model: Any = each.get("model")
                span.message(
                    str(each.get("role")),
                    each.get("content") or text_of(each),
                    model=model if isinstance(model, str) else None,
                    usage=_usage(each.get("usage")),
                )

    def call(self, call: ToolCall) -> None:
        """A tool is called."""
        if self._run is not None:
            self._span = self._run.tool(call.name, dict(call.arguments)).start()
            self._span.note(tool_call_id=call.id)

    def returned(self, text: str, *, is_error: bool) -> None:
        """It gave a result."""
        if self._span is not None:
            self._span.output = text
            self._end_span("error" if is_error else None)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, to be called as a part of what is just noted: what it saves is linked to it."""
        place = self._span or self._run
        return function if place is None else partial(_inside, place, function)

    def end(self, error: BaseException | None = None, *, status: str = "ok") -> None:
        """The attempt is over; a span that is still open failed with it."""
        if self._run is None:
            return
        if self._span is not None:
            if error is not None:
                self._span.fail(error)
            self._end_span()
        if error is not None:
            self._run.fail(error)
        else:
            self._run.end(status=status)
        self._run = None

    def _end_span(self, status: str | None = None) -> Span | None:
        span, self._span = self._span, None
        if span is not None:
            span.end(status=status)
        return span


def _inside(place: Place, function: Callable[..., Any], *arguments: Any) -> Any:
    before = here.set(place)
    try:
        result = function(*arguments)
    finally:
        here.reset(before)
    return _awaited(place, result) if inspect.isawaitable(result) else result


async def _awaited(place: Place, result: Awaitable[Any]) -> Any:
    before = here.set(place)
    try:
        return await result
    finally:
        here.reset(before)


def _usage(given: Any) -> Mapping[str, Any] | None:
    """A provider's own count, if it is one that is understood: a run is not lost over a strange word."""
    if not isinstance(given, Mapping):
        return None
    from treering.views.recording.usage import usage_of

    usage = cast("Mapping[str, Any]", given)
    with suppress(InvalidInput, TypeError):
        usage_of(usage)
        return usage
    return None
