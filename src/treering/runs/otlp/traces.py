"""Write OTLP spans into the journal, one trace at a time: a trace is a run.

The spans of a trace come in any order and in many requests, mostly children before their parents, so the run
is put together bit by bit: it has started when its first span did, it has an end once a span without a parent
here has ended, and spans that come later still count. A `Trace` is what is known of a run so far. It can be
read back from the journal at any time, so only recent traces are kept in memory.

The id of a row is made from the ids of trace and span, so a request that is sent again writes nothing twice.
Attributes that have no column are in the row's data; if they are large, they are in a row of their own
(``attributes``).
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import structs

from treering.core.batch import ABSENT, Event
from treering.core.encoding import encode
from treering.core.ids import RUN_MOVED
from treering.core.query import EventQuery, each_record
from treering.core.rollups import MOVED
from treering.errors import InvalidInput
from treering.runs.money import to_cost
from treering.runs.otlp.attributes import AGENT, LLM, clean_word, parse_span
from treering.runs.otlp.attribution import Attribution
from treering.runs.otlp.decode import STATUS_ERROR
from treering.runs.prices import CURRENCY, MODALITIES
from treering.runs.run import (
    RUNNING,
    UNFINISHED,
    RunInfo,
    run_from_ref,
    run_ref,
    run_writer,
    write_end,
    write_listing,
    write_ref,
)
from treering.runs.span import COMPACTED, ERROR, FIRST_TOKEN, OK, OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.batch import Draft, Expect
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.runs.otlp.attributes import ParsedSpan
    from treering.runs.otlp.decode import OtlpSpan, Sender
    from treering.runs.span import SpanWriter

ATTRIBUTES: Final = "attributes"
"""The kind of a row with attributes that did not fit into the row of their span."""
SOURCE: Final = "otlp"

_PREFIX_BYTES: Final = 6
_MAX_CACHED_ROWS: Final = 20_000
"""Rows of all traces that are kept in memory."""
_NAMED: Final = "names_agent"
"""In the data of a row: its agent is not that of another span."""
_NAMED_MARK: Final = f'"{_NAMED}":true'.encode()
_MAX_SENDERS_SIZE: Final = 8_000
"""How much a run's metadata says about senders; further ones are described with each of their spans."""
_PENDING: Final = "pending_span"
_MAX_VALUE: Final = 400
"""Longer attributes go into a row of their own."""
_MAX_INLINE: Final = 1500
_MAX_TEXT: Final = 2000
_MAX_TRACEBACK: Final = 8000
_FIRST_TOKEN_SECONDS: Final = ("gen_ai.response.time_to_first_chunk", "gen_ai.response.time_to_first_token")
_FIRST_TOKEN_MS: Final = ("ai.response.msToFirstChunk", "ai.stream.msToFirstChunk")
_FIRST_TOKEN_EVENTS: Final = frozenset({"First Token Stream Event", "llm.content.completion.chunk"})
"""The events by which OpenInference and OpenLLMetry mark the first token."""


class Trace:
    """A run that is arriving."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.info: RunInfo | None = None
        self.version: Expect = ABSENT
        self.is_listed = False
        self.is_changed = False
        self.seen_at = 0.0
        self.last_us = 0
        self.spans = Attribution()
        self.announced: set[str] = set()
        self.resources: list[dict[str, Any]] = []
        self.scopes: list[str] = []
        # Of the whole id: those that other tools choose may begin or end alike, and their spans' as well.
        digest = blake2b(id.encode(), digest_size=_PREFIX_BYTES).digest()
        self._prefix = urlsafe_b64encode(digest).decode() + "."
        self._is_moved = False
        self._writer: SpanWriter | None = None
        self._sender: Sender | None = None
        self._sender_fields: dict[str, Any] = {}

    def row_id(self, span: str) -> str:
        """Return the id of a span in the journal; its own id is only unique within its trace.

        The trace comes first, so that the spans of a trace are adjacent in the index of ids.
        """
        return self._prefix + span

    @property
    def writer(self) -> SpanWriter:
        """Writes the rows of the run."""
        if self._writer is None:
            raise AssertionError("the trace has not started")
        return self._writer

    def start(self, ts_us: int, *, thread: str | None, agent: str | None) -> None:
        """Record that something of it happened at this time."""
        info = self.info
        if info is None:
            info = RunInfo(id=self.id, started_at_us=ts_us, thread=thread, agent=agent)
        else:
            if ts_us < info.started_at_us:
                info = structs.replace(info, started_at_us=ts_us)
            if info.thread is None and thread is not None:
                info = structs.replace(info, thread=thread)
                self._is_moved = self.is_listed
                self.spans.change_thread()
            if info.agent is None and agent is not None:
                info = structs.replace(info, agent=agent)
            if info.status == UNFINISHED:
                info = structs.replace(info, status=RUNNING, ended_at_us=None)
        self._set(info)

    def extend(self, ts_us: int) -> None:
        """Record that something of it lasted until this time."""
        self.last_us = max(self.last_us, ts_us)
        info = self.info
        if info is not None and info.ended_at_us is not None and ts_us > info.ended_at_us:
            self._set(structs.replace(info, ended_at_us=ts_us))

    def end(self, ts_us: int, *, name: str, agent: str | None, failed: bool) -> None:
        """Record the end of a span that has no parent here: as far as is known, the run has ended."""
        info = self.info
        if info is None:
            return
        status = ERROR if failed or info.status == ERROR else OK
        self._set(
            structs.replace(
                info,
                status=status,
                ended_at_us=max(info.ended_at_us or 0, ts_us, self.last_us),
                agent=agent or info.agent,
                meta=info.meta if info.meta.get("name") else {**info.meta, "name": name[:512]},
            )
        )

    def note(self, **meta: Any) -> None:
        """Add to the metadata of the run, once it has started."""
        if self.info is not None:
            self._set(structs.replace(self.info, meta={**self.info.meta, **meta}))

    def give_up(self) -> None:
        """End a run that went quiet before its end was seen."""
        info = self.info
        if info is not None and info.status == RUNNING:
            ended_us = max(self.last_us, info.started_at_us)
            self._set(structs.replace(info, status=UNFINISHED, ended_at_us=ended_us))

    def sender_fields(self, sender: Sender) -> dict[str, Any]:
        """Return what a row's data says about its sender; nothing for the first sender of the run.

        Senders are described in the run's metadata, and a row refers to them by number.
        """
        if self._sender is not sender:  # one sender sends many spans
            self._sender_fields = self._describe_sender(sender)
            self._sender = sender
        return self._sender_fields.copy()

    def _describe_sender(self, sender: Sender) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, known, value in (
            ("resource", self.resources, sender.resource),
            ("scope", self.scopes, sender.scope),
        ):
            listed: list[Any] = known
            if value not in listed:
                if len(repr(listed)) + len(repr(value)) > _MAX_SENDERS_SIZE:
                    fields[name] = value
                    continue
                listed.append(value)
                self.is_changed = True
            if listed[0] != value:
                fields[name] = listed.index(value)
        if sender.scope_attributes:
            fields["scope_attributes"] = sender.scope_attributes
        return fields

    def agent_above(self, span: str | None, sender: Sender) -> str | None:
        """Return the agent of the nearest ancestor that names one and has arrived, or the service."""
        return self.spans.agent_at(span) or clean_word(sender.service)

    def add_rows(self, draft: Draft, events: Iterable[Event]) -> None:
        """Count new rows of the run, and move what earlier ones added to where it belongs by now."""
        if self.spans.add_rows(events):
            self.is_changed = True  # so that another server that writes to this run reads it again
            for event in self.spans.moves(run=self.id, thread=self.writer.thread, scope=self.writer.scope):
                draft.event(event)

    def write_to(self, draft: Draft) -> None:
        """Write the state of the run, if it has changed."""
        info = self.info
        if info is None or not self.is_changed:
            return
        meta = {"source": SOURCE, **info.meta, "resources": self.resources, "scopes": self.scopes}
        info = self.info = structs.replace(info, meta=meta)
        if not self.is_listed:
            write_listing(draft, info)
        write_ref(draft, info, expect=self.version)
        if self._is_moved:
            draft.event(
                Event(
                    id=f"{self.id}:moved",
                    kind=RUN_MOVED,
                    ts_us=info.started_at_us,
                    scope=self.writer.scope,
                    run=self.id,
                    thread=self.writer.thread,
                )
            )

    def mark_written(self, version: int | None) -> None:
        """Record that `write_to` is durable, under this version of the run's ref."""
        if version is not None:
            self.version = version
            self.is_listed = True
            self.is_changed = False
            self._is_moved = False

    def load(self, ref: Ref, records: Iterable[Record]) -> None:
        """Take over the state of the run, and its spans, from the store."""
        info = run_from_ref(ref)
        self.version = ref.version
        self.is_listed = True
        self._set(info)
        self.is_changed = False
        self.resources = [each for each in info.meta.get("resources", ()) if isinstance(each, dict)]
        self.scopes = [each for each in info.meta.get("scopes", ()) if isinstance(each, str)]
        self.last_us = info.ended_at_us or info.started_at_us
        events = [record.event for record in records if record.event.kind != MOVED]
        for event in events:
            self._load_span(event)
        self.spans.add_rows(events)
        self.spans.settle(thread=self.writer.thread)

    def _load_span(self, event: Event) -> None:
        span = event.span
        if span is None:
            return
        is_named = event.kind in (SPAN + AGENT, OPEN + AGENT) or _NAMED_MARK in (event.data or b"")
        agent = event.agent if is_named else None
        if event.kind.startswith(OPEN):
            self.announced.add(span)
            self.spans.name_agent(span, agent)
        elif event.kind.startswith(SPAN):
            self.spans.add_span(span, parent=event.parent, agent=agent)
            self.last_us = max(self.last_us, event.ts_us + (event.duration_us or 0))

    def _set(self, info: RunInfo) -> None:
        if info != self.info:
            self.info = info
            self.is_changed = True
            self._writer = run_writer(info)


class Traces:
    """The recent traces of one space."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._cached: OrderedDict[str, Trace] = OrderedDict()

    def get(self, ids: Iterable[str]) -> dict[str, Trace]:
        """Return traces as far as they have arrived, at this server or another one."""
        names = list(dict.fromkeys(ids))
        refs = self._engine.refs(self._space, [run_ref(each) for each in names]) if names else {}
        found: dict[str, Trace] = {}
        for each in names:
            trace, ref = self._cached.get(each), refs.get(run_ref(each))
            if trace is None or trace.version != (ABSENT if ref is None else ref.version):
                trace = self._cached[each] = Trace(each)
                if ref is not None:
                    query = EventQuery(run=each, order="time")
                    trace.load(ref, each_record(self._engine, self._space, query))
            self._cached.move_to_end(each)
            found[each] = trace
        return found

    def mark_seen(self, traces: Iterable[Trace]) -> None:
        """Record that these were just written, and evict the oldest traces when there are too many."""
        now = time.monotonic()
        for trace in traces:
            trace.seen_at = now
        rows = sum(1 + trace.spans.size for trace in self._cached.values())
        while rows > _MAX_CACHED_ROWS and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            rows -= 1 + oldest.spans.size

    def evict(self, ids: Iterable[str]) -> None:
        """Read these from the store again, the next time."""
        for each in ids:
            self._cached.pop(each, None)

    def quiet(self, seconds: float) -> list[Trace]:
        """Return running traces that nothing came of for so long."""
        before = time.monotonic() - seconds
        return [
            trace
            for trace in self._cached.values()
            if trace.info is not None and trace.info.status == RUNNING and trace.seen_at < before
        ]


_NewSpan: TypeAlias = "tuple[str, OtlpSpan, ParsedSpan]"
"""A span with its id in the journal and its meaning."""


def write_spans(draft: Draft, trace: Trace, spans: Iterable[OtlpSpan]) -> None:
    """Write the spans of one trace that have not arrived before."""
    new: list[_NewSpan] = []
    pending: list[OtlpSpan] = []
    for span in spans:
        row_id = trace.row_id(span.id)
        if span.attributes.get("logfire.span_type") == _PENDING:
            pending.append(span)
        elif row_id not in trace.spans.parents:
            parsed = parse_span(span)
            parent = None if span.parent is None else trace.row_id(span.parent)
            trace.spans.add_span(row_id, parent=parent, agent=parsed.agent)
            new.append((row_id, span, parsed))
    if new:
        _update_trace(trace, new)
        counted = _counted(trace, new)
        for row_id, span, parsed in new:
            _write_span(draft, trace, row_id, span, parsed, is_counted=row_id in counted)
    for span in pending:
        _write_pending(draft, trace, span)


def _update_trace(trace: Trace, new: list[_NewSpan]) -> None:
    thread = next((parsed.thread for _, _, parsed in new if parsed.thread), None)
    sender = new[0][1].sender
    trace.start(
        min(span.start_us for _, span, _ in new),
        thread=thread or clean_word(sender.resource.get("session.id")),
        agent=clean_word(sender.service),
    )
    trace.extend(max(span.end_us for _, span, _ in new))
    for _, span, parsed in new:
        if span.is_entry:
            failed = span.status == STATUS_ERROR
            trace.end(span.end_us, name=parsed.name, agent=parsed.agent, failed=failed)


def _counted(trace: Trace, new: list[_NewSpan]) -> set[str]:
    """Return the spans whose tokens count: when two instrumentations report one call, the inner one does.

    Spans are visited from the latest start to the earliest, so children mostly come before their parents.
    """
    with_usage = [(row_id, span) for row_id, span, parsed in new if parsed.usage is not None]
    if len(with_usage) > 1:
        with_usage.sort(key=lambda each: (each[1].start_us, -each[1].end_us), reverse=True)
    counted: set[str] = set()
    for row_id, _ in with_usage:
        if row_id not in trace.spans.covered:
            counted.add(row_id)
            trace.spans.cover(trace.spans.parents[row_id])
    return counted - trace.spans.covered


def _write_span(
    draft: Draft, trace: Trace, row_id: str, span: OtlpSpan, parsed: ParsedSpan, *, is_counted: bool
) -> None:
    parent = trace.spans.parents[row_id]
    agent = parsed.agent or trace.agent_above(parent, span.sender)
    data: dict[str, Any] = trace.sender_fields(span.sender)
    if parsed.agent is not None and parsed.kind != AGENT:
        data[_NAMED] = True
    if parsed.provider is not None:
        data["provider"] = parsed.provider
    if parsed.service_tier is not None:
        data["service_tier"] = parsed.service_tier
    if parsed.modalities:
        data[MODALITIES] = parsed.modalities
    if parsed.is_compacted:
        data[COMPACTED] = True
    if span.status == STATUS_ERROR or span.events:
        _add_error(data, span)
    if parsed.kind == LLM and (first_us := _first_token_us(span)) is not None:
        data[FIRST_TOKEN] = first_us
    overflow = _add_attributes(trace, data, span, parsed, is_counted=is_counted)
    usage = parsed.usage if is_counted else None
    cost_nanos, currency = _reported_cost(data, parsed) if is_counted else (None, None)
    status = ERROR if span.status == STATUS_ERROR else OK
    trace.writer.write_span(
        draft,
        id=row_id,
        kind=parsed.kind,
        name=parsed.name,
        ts_us=span.start_us,
        duration_us=span.end_us - span.start_us,
        status=status,
        parent=parent,
        agent=agent,
        model=parsed.model,
        role="assistant" if parsed.kind == LLM else None,
        usage=usage,
        cost_nanos=cost_nanos,
        currency=currency,
        input=parsed.input,
        output=parsed.output,
        data=data,
        is_announced=row_id in trace.announced,
    )
    if overflow:
        draft.event(
            Event(
                id=row_id + ":more",
                kind=ATTRIBUTES,
                ts_us=span.start_us,
                scope=trace.writer.scope,
                run=trace.id,
                span=row_id,
                parent=parent,
                thread=trace.writer.thread,
                agent=agent,
                body=draft.put(encode(overflow, keep_order=True), scope=trace.writer.scope),
            )
        )
    if span.parent is None and trace.info is not None:
        ended = structs.replace(
            trace.info, started_at_us=span.start_us, ended_at_us=span.end_us, status=status
        )
        write_end(draft, ended)


def _write_pending(draft: Draft, trace: Trace, span: OtlpSpan) -> None:
    """Write the open row of a span that is running. Logfire announces spans in this way."""
    if span.parent is None:
        return
    row_id = trace.row_id(span.parent)
    if row_id in trace.spans.parents or row_id in trace.announced:
        return
    parsed = parse_span(span)
    trace.start(span.start_us, thread=parsed.thread, agent=clean_word(span.sender.service))
    trace.announced.add(row_id)
    trace.spans.name_agent(row_id, parsed.agent)
    above = str(span.attributes.get("logfire.pending_parent_id") or "")
    parent = trace.row_id(above) if above.strip("0") else None
    trace.writer.write_open(
        draft,
        id=row_id,
        kind=parsed.kind,
        name=parsed.name,
        ts_us=span.start_us,
        parent=parent,
        agent=parsed.agent or trace.agent_above(parent, span.sender),
        model=parsed.model,
        input=parsed.input,
        data={_NAMED: True} if parsed.agent is not None and parsed.kind != AGENT else None,
    )


def _add_attributes(
    trace: Trace, data: dict[str, Any], span: OtlpSpan, parsed: ParsedSpan, *, is_counted: bool
) -> dict[str, Any]:
    """Add the remaining attributes to a row's data; return what is too large for it."""
    rest = parsed.rest
    if not is_counted and parsed.usage is not None:
        data["usage_counted_below"] = {
            name: getattr(parsed.usage, name) for name in ("input", "cache_read", "cache_write", "output")
        }
    thread = None if trace.info is None else trace.info.thread
    if thread is not None and parsed.thread == thread:
        for name in ("gen_ai.conversation.id", "session.id"):
            if rest.get(name) == thread:
                del rest[name]
    large: dict[str, Any] = {}
    small: dict[str, Any] = {}
    room = _MAX_INLINE
    for name, value in rest.items():
        size = _size(value)
        room -= size + len(name)
        (small if size <= _MAX_VALUE and room >= 0 else large)[name] = value
    if small:
        data[ATTRIBUTES] = small
    overflow: dict[str, Any] = {ATTRIBUTES: large} if large else {}
    for name in ("resource", "scope", "scope_attributes"):  # a sender that the run does not describe
        if name in data and not isinstance(data[name], int):
            overflow[name] = data.pop(name)
    if span.events:
        events = [each for each in span.events if not _is_recorded_error(data, each)]
        if events:
            overflow["events"] = events
    if span.links:
        overflow["links"] = span.links
    return overflow | span.extra if span.extra else overflow


def _first_token_us(span: OtlpSpan) -> int | None:
    """Return when the first piece of a streamed answer came, after the start of the span."""
    duration_us = span.end_us - span.start_us
    for names, unit_us in ((_FIRST_TOKEN_SECONDS, 1e6), (_FIRST_TOKEN_MS, 1e3)):
        for name in names:
            waited = span.attributes.get(name)
            if isinstance(waited, (int, float)) and 0 <= waited * unit_us <= duration_us:
                return round(waited * unit_us)
    times = [event["ts_us"] for event in span.events if event["name"] in _FIRST_TOKEN_EVENTS]
    if not times:
        return None
    first_us = min(times) - span.start_us
    return first_us if 0 <= first_us <= duration_us else None


def _add_error(data: dict[str, Any], span: OtlpSpan) -> None:
    """Add the error of a span to its data, in the form of `describe_error`."""
    for event in span.events:
        if event["name"] == "exception":
            attributes = event["attributes"]
            data["error"] = {
                "type": str(attributes.get("exception.type") or "")[:_MAX_TEXT],
                "message": str(attributes.get("exception.message") or "")[:_MAX_TEXT],
                "traceback": str(attributes.get("exception.stacktrace") or "")[-_MAX_TRACEBACK:],
            }
    if span.status == STATUS_ERROR and "error" not in data:
        kind = span.attributes.get("error.type")
        if span.status_message or kind:
            data["error"] = {"type": str(kind or "")[:_MAX_TEXT], "message": span.status_message[:_MAX_TEXT]}


def _is_recorded_error(data: dict[str, Any], event: dict[str, Any]) -> bool:
    """Return whether an event is the exception that the row's data has in full."""
    error: dict[str, Any] = data.get("error", {})
    values = {str(value) for value in event["attributes"].values() if value not in ("False", False)}
    return event["name"] == "exception" and values <= set(error.values())


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return 8 if isinstance(value, (int, float)) or value is None else len(repr(value))


def _reported_cost(data: dict[str, Any], parsed: ParsedSpan) -> tuple[int | None, str | None]:
    """Return the cost that a span reports; an invalid one is kept in the row's data."""
    if parsed.cost is None:
        return None, None
    try:
        return to_cost(parsed.cost), CURRENCY
    except InvalidInput:
        data["reported_cost"] = parsed.cost
        return None, None
