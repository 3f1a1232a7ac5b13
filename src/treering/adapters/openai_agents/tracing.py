"""A tracing processor for the OpenAI Agents SDK: traces become runs.

    agents.set_trace_processors([TreeringTracingProcessor("./agents")])

A trace becomes a run with the same id, in the thread that its ``group_id`` names, or a part of the run that
is being recorded already. Spans keep their ids, times and nesting. A model's reply is a message below its
call, with tokens and price. The SDK reports the input of a call only when the call has ended, so calls of
models and tools are recorded then.

`SessionRuns` does the same for traces in which a `TreeringSession` is used, without being asked: the SDK
tells a session nothing of the run that uses it, and begins the trace first. So every trace is held until a
session claims it, and dropped if it ends before. **Invariant:** an error in recording never breaks the run.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from threading import RLock
from typing import Any, ClassVar, Final, cast

from treering.adapters.shared import Opened, StoreOrUrl, is_plain, thread_name
from treering.core.batch import Usage
from treering.core.clock import from_datetime
from treering.errors import MissingExtra
from treering.runs.run import Run
from treering.runs.span import RunNode, Span, current_node, model_call
from treering.sync_async import Closing

try:
    from agents.tracing import Span as TracedSpan
    from agents.tracing import (
        Trace,
        TracingProcessor,
        add_trace_processor,
        get_current_trace,
        get_trace_provider,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"agents", "openai"}:
        raise MissingExtra("treering.adapters.openai_agents", "openai-agents") from error
    raise

_KINDS: Final = {"function": "tool", "generation": "llm", "response": "llm"}
_LATE: Final = frozenset({"tool", "llm"})
"""Kinds of which the SDK tells the input at their end."""
_MOST_HELD: Final = 1_000


class TreeringTracingProcessor(TracingProcessor, Closing):
    """Records traces in a store; any number of them at once, from any thread.

    ``store_or_url`` is an open store, which you close, or the URL of one, which `close` closes. ``inputs``
    says whether to record what is sent to models, which is the whole conversation at each call.
    """

    _recorded: ClassVar[set[str]] = set()
    """The traces that any of these is recording."""

    def __init__(
        self,
        store_or_url: StoreOrUrl | None = None,
        *,
        namespace: str | None = None,
        inputs: bool = True,
    ) -> None:
        self._opened = Opened(store_or_url)
        self._namespace = namespace
        self._inputs = inputs
        self._runs: dict[str, RunNode] = {}
        self._failed: set[str] = set()
        self._asked: set[str] = set()
        self._spans: dict[str, Span] = {}

    def on_trace_start(self, trace: Trace) -> None:
        """Start a run."""
        group = (trace.export() or {}).get("group_id")
        self.begin(trace, thread_name(group, "group_id") if isinstance(group, str) and group else None)

    def begin(self, trace: Trace, thread: str | None) -> None:
        """Start a run of a thread."""
        self._recorded.add(trace.trace_id)

        def begin() -> None:
            current = current_node.get()
            if current is not None:
                self._runs[trace.trace_id] = current
                return
            exported = trace.export() or {}
            run = self._opened.store.run(
                agent=_named(trace.name, "agent"),
                thread=thread,
                namespace=self._namespace,
                id=trace.trace_id,
                meta=_encodable(exported.get("metadata")),
            )
            self._runs[trace.trace_id] = run.start()

        self._safely(begin)

    def on_trace_end(self, trace: Trace) -> None:
        """End a run."""
        self._recorded.discard(trace.trace_id)
        run = self._runs.pop(trace.trace_id, None)
        self._asked.discard(trace.trace_id)
        status = "error" if trace.trace_id in self._failed else "ok"
        self._failed.discard(trace.trace_id)
        if isinstance(run, Run) and run.id == trace.trace_id:
            self._safely(lambda: run.end(status=status))

    def on_span_start(self, span: TracedSpan[Any]) -> None:
        """Start a span."""

        def begin() -> None:
            above = self._above(span)
            if above is None:
                return
            made = self._made(span, above)
            self._spans[span.span_id] = made
            if made.kind == "llm":
                model_call.set(made)
            if made.kind not in _LATE:
                made.start(ts_us=_time_us(span.started_at))

        self._safely(begin)

    def on_span_end(self, span: TracedSpan[Any]) -> None:
        """End a span."""
        begun = self._spans.pop(span.span_id, None)
        if begun is not None and begun is model_call.get():
            model_call.set(None)
        if begun is not None:
            self._safely(lambda: self._end(span, begun))

    def run_of(self, trace_id: str) -> RunNode | None:
        """Return the run that a trace is recorded as or in, until it ends."""
        return self._runs.get(trace_id)

    @classmethod
    def records(cls, trace_id: str) -> bool:
        """Whether any processor of this class is recording a trace."""
        return trace_id in cls._recorded

    def force_flush(self) -> None:
        """Return when everything recorded so far is durable."""
        self._opened.store.flush()

    def shutdown(self) -> None:
        """Make everything durable before the process ends."""
        self._safely(self._opened.store.flush)

    def close(self) -> None:
        """Make everything durable, and close the store if it was opened here."""
        self._opened.store.flush()
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._opened.bridge.call(self._opened.store.flush)
        await self._opened.aclose()

    def _safely(self, record: Callable[[], None]) -> None:
        try:
            record()
        except Exception as error:  # noqa: BLE001 - an error in recording must not stop the agent
            warnings.warn(f"a step could not be recorded: {error!r}", RuntimeWarning, stacklevel=4)

    def _above(self, span: TracedSpan[Any]) -> RunNode | None:
        known = self._spans.get(span.parent_id) if span.parent_id is not None else None
        return known or self._runs.get(span.trace_id)

    def _made(self, span: TracedSpan[Any], above: RunNode, **given: Any) -> Span:
        data = span.span_data
        kind: str = _KINDS.get(data.type) or str(data.type)
        name = _named(getattr(data, "name", None) or getattr(data, "agent_name", None), data.type)
        agent = name if kind == "agent" else getattr(data, "agent_name", None) or above.agent
        return above.span(name, kind=kind, agent=agent, id=span.span_id, **given)

    def _end(self, span: TracedSpan[Any], begun: Span) -> None:
        ended_us = _time_us(span.ended_at)
        made = begun
        if begun.kind in _LATE:
            above = self._above(span) or begun
            data = span.span_data
            input_ = getattr(data, "input", None)
            if begun.kind == "tool":
                input_ = _decoded(input_)
            elif not self._inputs:
                input_ = None
            given = {} if input_ is None else {"input": input_}
            made = self._made(span, above, **given)
            if begun.kind == "llm":
                self._record_reply(span, made)
            elif data.output is not None:
                made.output = data.output
            made.start(ts_us=_time_us(span.started_at))
        else:
            made.note(**_details(span.span_data.export()))
        if span.error is not None:
            made.note(error={"message": span.error["message"], "data": span.error.get("data")})
            if span.parent_id is None:
                self._failed.add(span.trace_id)
        made.end(status="ok" if span.error is None else "error", ts_us=ended_us)

    def _record_reply(self, span: TracedSpan[Any], made: Span) -> None:
        """Record a model's reply as a message below its call."""
        data = span.span_data
        response = getattr(data, "response", None)
        model = getattr(data, "model", None) or getattr(response, "model", None)
        made.model = model
        input_ = getattr(data, "input", None)
        if input_ and span.trace_id not in self._asked:
            self._asked.add(span.trace_id)
            asked = _last_message(input_)
            if asked is not None:
                made.message("user", asked, ts_us=_time_us(span.started_at))
        output: Any = getattr(data, "output", None)
        if response is not None:
            output = [item.model_dump(exclude_none=True) for item in response.output]
        usage = _usage_of(data.usage)
        if output is not None or usage is not None:
            made.message("assistant", output, model=model, usage=usage, ts_us=_time_us(span.ended_at))


class SessionRuns(TracingProcessor):
    """Records each trace in which a session is used as a run of the session's thread."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._held: dict[str, list[tuple[str, Any]]] = {}
        """What happened so far in the traces that no session has claimed."""
        self._claimed: dict[str, TreeringTracingProcessor] = {}

    def register(self) -> None:
        """Be one of the SDK's processors, also after `set_trace_processors` has replaced them all."""
        used = getattr(get_trace_provider(), "_multi_processor", None)
        if self not in getattr(used, "_processors", ()):
            add_trace_processor(self)

    def claim(self, opened: Opened, thread: str, namespace: str) -> RunNode | None:
        """Return the run of the trace that the calling code is in, and begin it if that is not yet done."""
        trace = get_current_trace()
        if trace is None or trace.trace_id == "no-op":
            return None
        with self._lock:
            self.register()
            claimed = self._claimed.get(trace.trace_id)
            if claimed is None:
                held = self._held.pop(trace.trace_id, [])
                if TreeringTracingProcessor.records(trace.trace_id):
                    return None
                claimed = TreeringTracingProcessor(opened.store, namespace=namespace, inputs=False)
                claimed.begin(trace, thread)
                self._claimed[trace.trace_id] = claimed
                for name, span in held:
                    getattr(claimed, name)(span)
            return claimed.run_of(trace.trace_id)

    def on_trace_start(self, trace: Trace) -> None:
        """Hold what happens in the trace."""
        with self._lock:
            self._held[trace.trace_id] = []

    def on_trace_end(self, trace: Trace) -> None:
        """End the run, if it is one."""
        with self._lock:
            self._held.pop(trace.trace_id, None)
            claimed = self._claimed.pop(trace.trace_id, None)
        if claimed is not None:
            claimed.on_trace_end(trace)

    def on_span_start(self, span: TracedSpan[Any]) -> None:
        """Record or hold the start of a span."""
        self._pass_on("on_span_start", span)

    def on_span_end(self, span: TracedSpan[Any]) -> None:
        """Record or hold the end of a span."""
        self._pass_on("on_span_end", span)

    def _pass_on(self, name: str, span: TracedSpan[Any]) -> None:
        with self._lock:
            claimed, held = self._claimed.get(span.trace_id), self._held.get(span.trace_id)
            if claimed is not None:
                getattr(claimed, name)(span)
            elif held is not None and len(held) < _MOST_HELD:
                held.append((name, span))

    def force_flush(self) -> None:
        """Return when everything recorded so far is durable."""
        with self._lock:
            claimed = list(self._claimed.values())
        for each in claimed:
            each.force_flush()

    def shutdown(self) -> None:
        """Make everything durable before the process ends."""
        with self._lock:
            claimed = list(self._claimed.values())
        for each in claimed:
            each.shutdown()


session_runs: Final = SessionRuns()


def _usage_of(reported: Mapping[str, Any] | None) -> Usage | None:
    """Return tokens by disjoint class: the SDK's input tokens include cached ones."""
    if not reported:
        return None
    given = cast("dict[str, Any]", reported.get("input_tokens_details") or {})
    made = cast("dict[str, Any]", reported.get("output_tokens_details") or {})
    whole = reported.get("input_tokens") or reported.get("prompt_tokens") or 0
    cached, written = given.get("cached_tokens") or 0, given.get("cache_write_tokens") or 0
    tokens = Usage(
        input=max(whole - cached - written, 0),
        cache_read=cached,
        cache_write=written,
        output=reported.get("output_tokens") or reported.get("completion_tokens") or 0,
        reasoning=made.get("reasoning_tokens") or 0,
    )
    return tokens if tokens.total else None


def _last_message(given: Any) -> Any:
    if isinstance(given, str):
        return given
    items = cast("list[Any]", given) if isinstance(given, list) else []
    for item in reversed(items):
        if isinstance(item, dict) and cast("dict[str, Any]", item).get("role") == "user":
            return cast("dict[str, Any]", item).get("content")
    return None


def _details(exported: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a span has beyond its name."""
    fields = {} if exported is None else dict(exported)
    return _encodable({name: each for name, each in fields.items() if name not in {"type", "name"} and each})


def _encodable(value: Any) -> dict[str, Any]:
    """Return metadata as JSON values; other values become text."""
    return {} if not isinstance(value, dict) else json.loads(json.dumps(value, default=str))


def _decoded(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(name: Any, otherwise: str) -> str:
    return name if isinstance(name, str) and is_plain(name) else otherwise


def _time_us(text: str | None) -> int | None:
    return None if text is None else from_datetime(datetime.fromisoformat(text))
