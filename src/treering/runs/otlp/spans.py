"""Spans into the journal: one row each, in the same form that the recorder writes.

A row's id is made of the ids of span and trace, so a request that is sent again writes nothing twice. A call
of a model is a span whose role says that a message came out of it. Attributes that no column tells are in the
row's data; where they are many, they are in a row of their own behind it (``attributes``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from treering.core.batch import Event
from treering.core.encoding import encode, encode_json
from treering.core.money import to_cost
from treering.errors import InvalidInput
from treering.runs.otlp.attributes import LLM, meaning_of, word
from treering.runs.otlp.records import ERROR as FAILED
from treering.runs.prices import CURRENCY, prices
from treering.runs.span import ERROR, FIRST_TOKEN, INPUT_SIZE, OK, OPEN, SPAN, input_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.batch import Draft
    from treering.core.content import Address
    from treering.runs.otlp.attributes import Meaning
    from treering.runs.otlp.records import ReceivedSpan
    from treering.runs.otlp.traces import Trace

ATTRIBUTES: Final = "attributes"
"""The kind of a row that holds what did not fit into the row of its span."""

_PENDING: Final = "pending_span"
_VALUE_LIMIT: Final = 400
"""Attributes longer than this many characters go into a row of their own."""
_INLINE_LIMIT: Final = 1500
_TEXT: Final = 2000
_TRACEBACK: Final = 8000
_PROVIDERS: Final = {
    "aws.bedrock": "aws", "az.ai.openai": "azure", "az.ai.inference": "azure", "azure.ai.openai": "azure",
    "azure.ai.inference": "azure", "gcp.gemini": "google", "gcp.gen_ai": "google", "gcp.vertex_ai": "google",
    "vertex_ai": "google", "gemini": "google", "google-gla": "google", "google-vertex": "google",
    "google_genai": "google", "mistral_ai": "mistral", "x_ai": "x-ai", "xai": "x-ai",
}  # fmt: skip
"""Providers as the conventions call them, and as the price table does."""
_PLAIN: Final = frozenset({str, int, bool})
_FIRST_TOKEN_SECONDS: Final = ("gen_ai.response.time_to_first_chunk", "gen_ai.response.time_to_first_token")
"""How long a stream took to begin, as attributes tell it."""
_FIRST_TOKEN_MS: Final = ("ai.response.msToFirstChunk", "ai.stream.msToFirstChunk")
_FIRST_TOKEN_EVENTS: Final = frozenset({"First Token Stream Event", "llm.content.completion.chunk"})
"""What OpenInference and OpenLLMetry call the moment in which it began."""

_Fresh: TypeAlias = "tuple[str, ReceivedSpan, Meaning]"
"""A span with its id in the journal and what it means."""


def write_spans(draft: Draft, trace: Trace, spans: Iterable[ReceivedSpan]) -> None:
    """Write the spans of one trace that have not arrived before."""
    fresh: list[_Fresh] = []
    pending: list[ReceivedSpan] = []
    name_of = trace.name_of
    for span in spans:
        own = name_of(span.id)
        if span.attributes.get("logfire.span_type") == _PENDING:
            pending.append(span)
        elif own not in trace.parents:
            meaning = meaning_of(span)
            trace.parents[own] = None if span.parent is None else name_of(span.parent)
            trace.agents[own] = meaning.agent
            fresh.append((own, span, meaning))
    if fresh:
        _begin(trace, fresh)
        counted = _counted(trace, fresh)
        for own, span, meaning in fresh:
            _write(draft, trace, own, span, meaning, counts=own in counted)
    for span in pending:
        _announce(draft, trace, span)


def _begin(trace: Trace, fresh: list[_Fresh]) -> None:
    thread = next((meaning.thread for _, _, meaning in fresh if meaning.thread), None)
    source = fresh[0][1].source
    trace.begin(
        min(span.start_us for _, span, _ in fresh),
        thread=thread or word(source.resource.get("session.id")),
        agent=word(source.service),
    )
    trace.reach(max(span.end_us for _, span, _ in fresh))
    for _, span, meaning in fresh:
        if span.is_entry:
            failed = span.status == FAILED
            trace.end(span.end_us, name=meaning.name, agent=meaning.agent, failed=failed)


def _counted(trace: Trace, fresh: list[_Fresh]) -> set[str]:
    """Whose tokens count: where two instrumentations tell of one call, the inner one is believed.

    What begins later is never above, so children come before their parents here.
    """
    using = [(own, span) for own, span, meaning in fresh if meaning.usage is not None]
    if len(using) > 1:
        using.sort(key=lambda each: (each[1].start_us, -each[1].end_us), reverse=True)
    counted: set[str] = set()
    for own, _ in using:
        if own not in trace.covered:
            counted.add(own)
            trace.cover(trace.parents[own])
    return counted


def _write(
    draft: Draft, trace: Trace, own: str, span: ReceivedSpan, meaning: Meaning, *, counts: bool
) -> None:
    parent = trace.parents[own]
    run = trace.info
    agent = meaning.agent or trace.agent_above(parent) or (None if run is None else run.agent)
    scope = trace.scope
    data: dict[str, Any] = trace.place_of(span.source)
    links: tuple[Address, ...] = ()
    if own in trace.announced:
        data["announced"] = True
    if meaning.input is not None:
        data |= input_fields(len(meaning.input.data))
        links = (draft.put(meaning.input, scope=scope),)
    if meaning.provider is not None:
        data["provider"] = meaning.provider
    if meaning.service_tier is not None:
        data["service_tier"] = meaning.service_tier
    if span.status == FAILED or span.events:
        _tell_error(data, span)
    if meaning.kind == LLM and (first_us := _first_token_us(span)) is not None:
        data[FIRST_TOKEN] = first_us
    more = _rest(trace, data, span, meaning, counts=counts)
    usage = meaning.usage if counts else None
    cost_nanos, currency = _cost(data, meaning) if counts else (None, None)
    if usage is not None and meaning.model is not None and usage.total:
        cost_nanos, currency = _priced(data, meaning, span.start_us, cost_nanos, currency)
    status = ERROR if span.status == FAILED else OK
    draft.event(
        Event(
            id=own,
            kind=SPAN + meaning.kind,
            ts_us=span.start_us,
            scope=scope,
            run=trace.id,
            span=own,
            parent=parent,
            thread=trace.thread,
            agent=agent,
            name=meaning.name,
            model=meaning.model,
            role="assistant" if meaning.kind == LLM else None,
            status=status,
            usage=usage,
            cost_nanos=cost_nanos,
            currency=currency,
            duration_us=span.end_us - span.start_us,
            data=_encoded(data) if data else None,
            body=None if meaning.output is None else draft.put(meaning.output, scope=scope),
            links=links,
        )
    )
    if more:
        draft.event(
            Event(
                id=own + ":more",
                kind=ATTRIBUTES,
                ts_us=span.start_us,
                scope=scope,
                run=trace.id,
                span=own,
                parent=parent,
                thread=trace.thread,
                agent=agent,
                body=draft.put(encode(more, keep_order=True), scope=scope),
            )
        )
    if span.parent is None:
        trace.write_end(draft, ts_us=span.start_us, duration_us=span.end_us - span.start_us, status=status)


def _rest(
    trace: Trace, data: dict[str, Any], span: ReceivedSpan, meaning: Meaning, *, counts: bool
) -> dict[str, Any]:
    """Put what is left into the row's data; gives back what does not fit there."""
    rest = meaning.rest
    if not counts and meaning.usage is not None:
        data["usage_counted_below"] = {
            name: getattr(meaning.usage, name) for name in ("input", "cache_read", "cache_write", "output")
        }
    known = None if trace.info is None else trace.info.thread
    if known is not None and meaning.thread == known:
        for name in ("gen_ai.conversation.id", "session.id"):
            if rest.get(name) == known:
                del rest[name]
    more: dict[str, Any] = {}
    small: dict[str, Any] = {}
    room = _INLINE_LIMIT
    for name, value in rest.items():
        size = _size(value)
        room -= size + len(name)
        (small if size <= _VALUE_LIMIT and room >= 0 else more)[name] = value
    if small:
        data[ATTRIBUTES] = small
    told: dict[str, Any] = {ATTRIBUTES: more} if more else {}
    for name in ("resource", "scope", "scope_attributes"):  # a sender that the run does not describe
        if name in data and not isinstance(data[name], int):
            told[name] = data.pop(name)
    if span.events:
        events = [each for each in span.events if not _is_told(data, each)]
        if events:
            told["events"] = events
    if span.links:
        told["links"] = span.links
    return told | span.more if span.more else told


def _first_token_us(span: ReceivedSpan) -> int | None:
    """When the first piece of a streamed answer came, after the start of its span."""
    for names, unit_us in ((_FIRST_TOKEN_SECONDS, 1e6), (_FIRST_TOKEN_MS, 1e3)):
        for name in names:
            waited = span.attributes.get(name)
            if isinstance(waited, (int, float)) and 0 <= waited * unit_us <= span.end_us - span.start_us:
                return round(waited * unit_us)
    if not span.events:
        return None
    began = [event["ts_us"] for event in span.events if event["name"] in _FIRST_TOKEN_EVENTS]
    first_us = min(began, default=-1) - span.start_us
    return first_us if began and 0 <= first_us <= span.end_us - span.start_us else None


def _tell_error(data: dict[str, Any], span: ReceivedSpan) -> None:
    """What went wrong, as the recorder tells it."""
    for event in span.events:
        if event["name"] == "exception":
            told = event["attributes"]
            data["error"] = {
                "type": str(told.get("exception.type") or "")[:_TEXT],
                "message": str(told.get("exception.message") or "")[:_TEXT],
                "traceback": str(told.get("exception.stacktrace") or "")[-_TRACEBACK:],
            }
    if span.status == FAILED and "error" not in data:
        kind = span.attributes.get("error.type")
        if span.status_message or kind:
            data["error"] = {"type": str(kind or "")[:_TEXT], "message": span.status_message[:_TEXT]}


def _is_told(data: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether an event is the exception that the row's data tells in full."""
    error: dict[str, Any] = data.get("error", {})
    told = {str(value) for value in event["attributes"].values() if value not in ("False", False)}
    return event["name"] == "exception" and told <= set(error.values())


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return 8 if isinstance(value, (int, float)) or value is None else len(repr(value))


def _cost(data: dict[str, Any], meaning: Meaning) -> tuple[int | None, str | None]:
    if meaning.cost is None:
        return None, None
    try:
        return to_cost(meaning.cost), CURRENCY
    except InvalidInput:
        data["told_cost"] = meaning.cost
        return None, None


def _priced(
    data: dict[str, Any], meaning: Meaning, ts_us: int, told_nanos: int | None, currency: str | None
) -> tuple[int | None, str | None]:
    """The cost of a call, as `prices.fill_in` finds it: what was told stays, the computed one beside it."""
    usage, model = meaning.usage, meaning.model
    if usage is None or model is None:
        return told_nanos, currency
    tier = meaning.service_tier
    priced = prices.price(
        model,
        usage,
        ts_us,
        provider=_PROVIDERS.get(meaning.provider or "", meaning.provider),
        context=None if tier is None else {"service_tier": tier},
    )
    if priced is None:
        return told_nanos, currency
    if told_nanos is None:
        data["priced_by"] = priced.price
        return priced.nanos, priced.currency
    data["computed_cost"] = {"nanos": priced.nanos, "currency": priced.currency, "price": priced.price}
    return told_nanos, currency


def _announce(draft: Draft, trace: Trace, span: ReceivedSpan) -> None:
    """A span that has begun and is not over: Logfire sends one for those who look on."""
    if span.parent is None:
        return
    own = trace.name_of(span.parent)
    if own in trace.parents or own in trace.announced:
        return
    above = str(span.attributes.get("logfire.pending_parent_id") or "")
    meaning = meaning_of(span)
    trace.begin(span.start_us, thread=meaning.thread, agent=word(span.source.service))
    trace.announced.add(own)
    parent = trace.name_of(above) if above.strip("0") else None
    agent = meaning.agent or trace.agent_above(parent) or (None if trace.info is None else trace.info.agent)
    body = None if meaning.input is None else draft.put(meaning.input, scope=trace.scope)
    size = 0 if meaning.input is None else len(meaning.input.data)
    draft.event(
        Event(
            id=own + ":open",
            kind=OPEN + meaning.kind,
            ts_us=span.start_us,
            scope=trace.scope,
            run=trace.id,
            span=own,
            parent=parent,
            thread=trace.thread,
            agent=agent,
            name=meaning.name,
            model=meaning.model,
            data=encode_json({INPUT_SIZE: size}) if size else None,
            body=body,
        )
    )


def _encoded(data: dict[str, Any]) -> bytes:
    """Canonical JSON; small attributes that are text and whole numbers need no second look."""
    attributes: dict[str, Any] = data.get(ATTRIBUTES, {})
    is_plain = _PLAIN.issuperset(map(type, attributes.values())) and "$" not in "".join(attributes)
    if is_plain:
        try:
            return orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            pass  # a number that is too large for JSON has a form of its own
    return encode_json(data)
