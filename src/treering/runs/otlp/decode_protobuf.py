"""OTLP in protobuf: from the messages of `opentelemetry-proto` to plain values, in one pass."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from treering.errors import InvalidInput, MissingExtra
from treering.runs.otlp.records import Received, ReceivedLog, ReceivedSpan, Refused, Source, fault_of

_DROPPED: Final = ("dropped_attributes_count", "dropped_events_count", "dropped_links_count")


def read_traces(data: bytes) -> Received:
    """The spans of an ``ExportTraceServiceRequest``."""
    request: Any = _parsed(_messages()[0], data)
    found = Received()
    for resource_spans in request.resource_spans:
        resource = attributes_of(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            source = _source(resource, scope_spans.scope)
            for message in scope_spans.spans:
                span = _span(message, source)
                fault = fault_of(span)
                if fault is None:
                    found.spans.append(span)
                else:
                    found.refused.append(Refused(f"span {span.name[:80]!r} ({span.id})", fault))
    return found


def read_logs(data: bytes) -> Received:
    """The records of an ``ExportLogsServiceRequest``."""
    request: Any = _parsed(_messages()[1], data)
    found = Received()
    for resource_logs in request.resource_logs:
        resource = attributes_of(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            source = _source(resource, scope_logs.scope)
            found.logs += [_log(message, source) for message in scope_logs.log_records]
    return found


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    found: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        # Most values are text: looking first saves asking which it is.
        found[pair.key] = value.string_value or _value(value, value.WhichOneof("value"))
    return found


def _value(value: Any, which: str | None) -> Any:
    if which is None:
        return None
    if which == "array_value":
        return [_value(each, each.WhichOneof("value")) for each in value.array_value.values]
    if which == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, which)


def _span(message: Any, source: Source) -> ReceivedSpan:
    start_us = message.start_time_unix_nano // 1000
    end_us = message.end_time_unix_nano // 1000
    parent = message.parent_span_id
    events, links = message.events, message.links
    code, told = 0, ""
    if message.HasField("status"):
        status = message.status
        code, told = status.code, status.message
    more: dict[str, Any] = {}
    if message.dropped_attributes_count or message.dropped_events_count or message.dropped_links_count:
        more = {name: count for name in _DROPPED if (count := getattr(message, name))}
    if message.trace_state:
        more["trace_state"] = message.trace_state
    return ReceivedSpan(  # in the order of its fields: there are many spans, and words take time
        message.trace_id.hex(),
        message.span_id.hex(),
        parent.hex() if parent.strip(b"\0") else None,
        message.name,
        message.kind,
        start_us or end_us,
        max(start_us, end_us),
        code,
        told,
        message.flags,
        attributes_of(message.attributes),
        [_event(each) for each in events] if events else [],
        [_link(each) for each in links] if links else [],
        more,
        source,
    )


def _event(message: Any) -> dict[str, Any]:
    return {
        "name": message.name,
        "ts_us": message.time_unix_nano // 1000,
        "attributes": attributes_of(message.attributes),
    }


def _link(message: Any) -> dict[str, Any]:
    link: dict[str, Any] = {"trace": message.trace_id.hex(), "span": message.span_id.hex()}
    if message.attributes:
        link["attributes"] = attributes_of(message.attributes)
    return link


def _log(message: Any, source: Source) -> ReceivedLog:
    attributes = attributes_of(message.attributes)
    trace, span = message.trace_id, message.span_id
    return ReceivedLog(
        trace=trace.hex() if len(trace) == 16 and trace.strip(b"\0") else None,  # noqa: PLR2004
        span=span.hex() if len(span) == 8 and span.strip(b"\0") else None,  # noqa: PLR2004
        ts_us=(message.time_unix_nano or message.observed_time_unix_nano) // 1000,
        severity=message.severity_text,
        event=message.event_name,
        body=_value(message.body, message.body.WhichOneof("value")),
        attributes=attributes,
        source=source,
    )


def _source(resource: dict[str, Any], scope: Any) -> Source:
    return Source(resource, f"{scope.name} {scope.version}".strip(), attributes_of(scope.attributes))


def _parsed(kind: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the body is no OTLP in protobuf ({error}); nothing was written") from None


@cache
def _messages() -> tuple[Any, Any]:
    try:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ModuleNotFoundError:
        raise MissingExtra("OTLP in protobuf", "server") from None
    return ExportTraceServiceRequest, ExportLogsServiceRequest
