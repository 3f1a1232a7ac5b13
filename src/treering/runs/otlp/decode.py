"""Decode OTLP export requests, in protobuf or JSON, to plain values.

Both encodings give the same `ExportRequest`. In JSON, ids are hex, 64-bit numbers may be strings, and unknown
fields are ignored, as the protocol requires; it is decoded by hand because protobuf's own `json_format` takes
nine times as long and reads ids as base64. A span that is malformed is rejected by itself. A body that is no
OTLP at all raises `InvalidInput`.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal, cast

import msgspec
import orjson

from treering.core.batch import NUMBER_BITS
from treering.errors import InvalidInput, MissingExtra, TooLarge

Signal = Literal["traces", "logs", "metrics"]
Encoding = Literal["protobuf", "json"]

STATUS_ERROR: Final = 2
"""The status code of a failed span."""
KIND_CLIENT: Final = 3
"""The kind of a span that calls something remote."""
_HAS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
MAX_MESSAGES: Final = 1_000_000
"""How many messages (spans, attributes, values, ...) a protobuf request may have.

An empty one takes two bytes to send and a hundred in memory.
"""
MAX_METRICS_BYTES: Final = 2_000_000
"""How large a protobuf request with metrics may be, which is decoded in a slower way."""
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class Sender(msgspec.Struct, frozen=True):
    """Where spans come from: the attributes of the resource, and the instrumentation with its version."""

    resource: dict[str, Any]
    scope: str
    scope_attributes: dict[str, Any]

    @property
    def service(self) -> str | None:
        """The name of the service; ``None`` if it has none of its own."""
        name = self.resource.get("service.name")
        return name if isinstance(name, str) and name and not name.startswith("unknown_service") else None


class OtlpSpan(msgspec.Struct, gc=False):
    """A span. Ids are lowercase hex, times are microseconds."""

    trace: str
    id: str
    parent: str | None
    name: str
    kind: int
    start_us: int
    end_us: int
    status: int
    status_message: str
    flags: int
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    links: list[dict[str, Any]]
    extra: dict[str, Any]
    """Counts of dropped attributes, events and links, and the trace state."""
    sender: Sender

    @property
    def is_entry(self) -> bool:
        """Whether it is the first span of its trace, or the first in this process."""
        return self.parent is None or self.flags & (_HAS_REMOTE | _IS_REMOTE) == _HAS_REMOTE | _IS_REMOTE


LOG: Final = "log"
METRIC: Final = "metric"
"""The kinds of rows with a plain log record, and with a data point of a metric."""


class OtlpLog(msgspec.Struct, gc=False):
    """A log record, or a data point of a metric; ``event`` is empty if it names none."""

    trace: str | None
    span: str | None
    ts_us: int
    severity: str
    event: str
    body: Any
    attributes: dict[str, Any]
    sender: Sender
    kind: str = LOG
    id: str = ""
    """The id of its row, assigned by `assign_log_ids`."""


class Rejected(msgspec.Struct, frozen=True):
    """Something that cannot be stored, and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class ExportRequest(msgspec.Struct):
    """The content of one request."""

    spans: list[OtlpSpan] = []
    logs: list[OtlpLog] = []
    rejected: list[Rejected] = []

    def __len__(self) -> int:
        return len(self.spans) + len(self.logs)


def decode_request(data: bytes, signal: Signal, encoding: Encoding) -> ExportRequest:
    """Decode the body of an export request."""
    return _DECODERS[signal, encoding](data)


def _problem(span: OtlpSpan) -> str | None:
    """Return why a span cannot be stored; ``None`` when it can."""
    if len(span.trace) != 32 or span.trace == _NO_TRACE:  # noqa: PLR2004 - 16 bytes in hex
        return "the trace id is not 16 bytes, or all zero"
    if len(span.id) != 16 or span.id == _NO_SPAN:  # noqa: PLR2004 - 8 bytes in hex
        return "the span id is not 8 bytes, or all zero"
    if not span.start_us:
        return "there is no start time"
    if span.start_us >> NUMBER_BITS or span.end_us >> NUMBER_BITS:
        return "the times are after the year 2255"
    return None


# Protobuf, with the message classes of `opentelemetry-proto`.
_DROPPED_COUNTS: Final = ("dropped_attributes_count", "dropped_events_count", "dropped_links_count")


def _protobuf_traces(data: bytes) -> ExportRequest:
    message: Any = _parse_protobuf(_message_types()[0], data, _TRACES)
    request = ExportRequest()
    for resource_spans in message.resource_spans:
        resource = _protobuf_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            sender = _protobuf_sender(resource, scope_spans.scope)
            for each in scope_spans.spans:
                span = _protobuf_span(each, sender)
                problem = _problem(span)
                if problem is None:
                    request.spans.append(span)
                else:
                    request.rejected.append(Rejected(f"span {span.name[:80]!r} ({span.id})", problem))
    return request


def _protobuf_logs(data: bytes) -> ExportRequest:
    message: Any = _parse_protobuf(_message_types()[1], data, _LOGS)
    request = ExportRequest()
    for resource_logs in message.resource_logs:
        resource = _protobuf_attributes(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            sender = _protobuf_sender(resource, scope_logs.scope)
            request.logs += [_protobuf_log(each, sender) for each in scope_logs.log_records]
    return request


def _protobuf_metrics(data: bytes) -> ExportRequest:
    from google.protobuf.json_format import MessageToDict

    if len(data) > MAX_METRICS_BYTES:
        raise TooLarge(
            f"the request has more than {MAX_METRICS_BYTES:,} bytes of metrics; send fewer at once "
            "(nothing was written)"
        )
    # The few data points of a metric need no fast way of their own.
    return _metrics_of(MessageToDict(_parse_protobuf(_message_types()[2], data)))


_Fields = dict[int, "_Fields"]
"""Which fields of a message are messages, and theirs."""

_VALUE: Final[_Fields] = {}
_ATTRIBUTE: Final[_Fields] = {2: _VALUE}
_VALUE.update({5: {1: _VALUE}, 6: {1: _ATTRIBUTE}})
_RESOURCE: Final[_Fields] = {1: _ATTRIBUTE, 3: {}}
_SCOPE: Final[_Fields] = {3: _ATTRIBUTE}
_SPAN: Final[_Fields] = {9: _ATTRIBUTE, 11: {3: _ATTRIBUTE}, 13: {4: _ATTRIBUTE}, 15: {}}
_LOG: Final[_Fields] = {5: _VALUE, 6: _ATTRIBUTE}
_TRACES: Final[_Fields] = {1: {1: _RESOURCE, 2: {1: _SCOPE, 2: _SPAN}}}
_LOGS: Final[_Fields] = {1: {1: _RESOURCE, 2: {1: _SCOPE, 2: _LOG}}}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _check_messages(data: bytes, fields: _Fields) -> None:
    """Raise `TooLarge` if protobuf has more than `MAX_MESSAGES` messages, without making any of them.

    What this cannot follow is refused, since the parser might.
    """
    count = 0
    stack = [(0, len(data), fields)]
    while stack:
        at, end, fields = stack.pop()
        while at < end:
            tag, at = _varint(data, at)
            wire = tag & 7
            if wire == _BYTES:
                length, at = _varint(data, at)
                below = fields.get(tag >> 3)
                if below is not None:
                    count += 1
                    if count > MAX_MESSAGES:
                        raise TooLarge(
                            f"the request has more than {MAX_MESSAGES:,} messages; send fewer spans at once "
                            "(nothing was written)"
                        )
                    if below and length:
                        stack.append((at, at + length, below))
                at += length
            elif wire == _VARINT:
                _, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            else:
                raise InvalidInput("the body is not OTLP in protobuf (a group); nothing was written")
        if at > end:
            raise InvalidInput("the body is not OTLP in protobuf (a length); nothing was written")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follow
            return number, at
        shift += 7
    raise InvalidInput("the body is not OTLP in protobuf (it is truncated); nothing was written")


def _parse_protobuf(message_type: Any, data: bytes, fields: _Fields | None = None) -> Any:
    from google.protobuf.message import DecodeError

    if fields is not None and len(data) > 2 * MAX_MESSAGES:
        _check_messages(data, fields)
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the body is not OTLP in protobuf ({error}); nothing was written") from None


@cache
def _message_types() -> tuple[Any, Any, Any]:
    try:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ModuleNotFoundError:
        raise MissingExtra("OTLP in protobuf", "server") from None
    return ExportTraceServiceRequest, ExportLogsServiceRequest, ExportMetricsServiceRequest


def _protobuf_sender(resource: dict[str, Any], scope: Any) -> Sender:
    return Sender(resource, f"{scope.name} {scope.version}".strip(), _protobuf_attributes(scope.attributes))


def _protobuf_attributes(pairs: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for pair in pairs:
        value = pair.value
        # Most values are text, and trying that first is faster than asking which it is.
        attributes[pair.key] = value.string_value or _protobuf_value(value, value.WhichOneof("value"))
    return attributes


def _protobuf_value(value: Any, which: str | None) -> Any:
    if which is None:
        return None
    if which == "array_value":
        return [_protobuf_value(each, each.WhichOneof("value")) for each in value.array_value.values]
    if which == "kvlist_value":
        return _protobuf_attributes(value.kvlist_value.values)
    return getattr(value, which)


def _protobuf_span(message: Any, sender: Sender) -> OtlpSpan:
    start_us = message.start_time_unix_nano // 1000
    end_us = message.end_time_unix_nano // 1000
    parent = message.parent_span_id
    events, links = message.events, message.links
    code, status_message = 0, ""
    if message.HasField("status"):
        code, status_message = message.status.code, message.status.message
    extra: dict[str, Any] = {}
    if message.dropped_attributes_count or message.dropped_events_count or message.dropped_links_count:
        extra = {name: count for name in _DROPPED_COUNTS if (count := getattr(message, name))}
    if message.trace_state:
        extra["trace_state"] = message.trace_state
    return OtlpSpan(  # by position, because keywords are slow and spans are many
        message.trace_id.hex(),
        message.span_id.hex(),
        parent.hex() if parent.strip(b"\0") else None,
        message.name,
        message.kind,
        start_us or end_us,
        max(start_us, end_us),
        code,
        status_message,
        message.flags,
        _protobuf_attributes(message.attributes),
        [_protobuf_event(each) for each in events] if events else [],
        [_protobuf_link(each) for each in links] if links else [],
        extra,
        sender,
    )


def _protobuf_event(message: Any) -> dict[str, Any]:
    return {
        "name": message.name,
        "ts_us": message.time_unix_nano // 1000,
        "attributes": _protobuf_attributes(message.attributes),
    }


def _protobuf_link(message: Any) -> dict[str, Any]:
    link: dict[str, Any] = {"trace": message.trace_id.hex(), "span": message.span_id.hex()}
    if message.attributes:
        link["attributes"] = _protobuf_attributes(message.attributes)
    return link


def _protobuf_log(message: Any, sender: Sender) -> OtlpLog:
    trace, span = message.trace_id, message.span_id
    return OtlpLog(
        trace=trace.hex() if len(trace) == 16 and trace.strip(b"\0") else None,  # noqa: PLR2004
        span=span.hex() if len(span) == 8 and span.strip(b"\0") else None,  # noqa: PLR2004
        ts_us=(message.time_unix_nano or message.observed_time_unix_nano) // 1000,
        severity=message.severity_text,
        event=message.event_name,
        body=_protobuf_value(message.body, message.body.WhichOneof("value")),
        attributes=_protobuf_attributes(message.attributes),
        sender=sender,
    )


# JSON.
_DROPPED_JSON: Final = {
    "droppedAttributesCount": "dropped_attributes_count",
    "droppedEventsCount": "dropped_events_count",
    "droppedLinksCount": "dropped_links_count",
}
_SHAPE_ERRORS: Final = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
_ENUMS: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2} | {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
}


def _json_traces(data: bytes) -> ExportRequest:
    request = ExportRequest()
    for sender, message in _json_items(_parse_json(data), "resourceSpans", "scopeSpans", "spans"):
        try:
            span = _json_span(message, sender)
            problem = _problem(span)
        except _SHAPE_ERRORS as error:
            problem = f"it is not a valid span ({error!r:.120})"
            request.rejected.append(Rejected(_describe_json(message), problem))
            continue
        if problem is None:
            request.spans.append(span)
        else:
            request.rejected.append(Rejected(_describe_json(message), problem))
    return request


def _json_logs(data: bytes) -> ExportRequest:
    request = ExportRequest()
    for sender, message in _json_items(_parse_json(data), "resourceLogs", "scopeLogs", "logRecords"):
        try:
            request.logs.append(_json_log(message, sender))
        except _SHAPE_ERRORS as error:
            request.rejected.append(Rejected("a log record", f"it is not valid ({error!r:.120})"))
    return request


def _json_metrics(data: bytes) -> ExportRequest:
    return _metrics_of(_parse_json(data))


_TEMPORALITIES: Final = {1: "delta", 2: "cumulative"} | {
    f"AGGREGATION_TEMPORALITY_{name.upper()}": name for name in ("delta", "cumulative")
}
_METRIC_TYPES: Final = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")
_NOT_VALUES: Final = frozenset({"attributes", "timeUnixNano", "startTimeUnixNano", "exemplars", "flags"})


def _metrics_of(body: Any) -> ExportRequest:
    """Return the data points of a request, in JSON, as records."""
    request = ExportRequest()
    for sender, metric in _json_items(body, "resourceMetrics", "scopeMetrics", "metrics"):
        try:
            request.logs += _data_points(metric, sender)
        except _SHAPE_ERRORS as error:
            request.rejected.append(Rejected("a metric", f"it is not valid ({error!r:.120})"))
    return request


def _data_points(metric: dict[str, Any], sender: Sender) -> list[OtlpLog]:
    points: list[OtlpLog] = []
    for kind in (each for each in _METRIC_TYPES if each in metric):
        data = metric[kind]
        about = {"type": kind, "unit": metric.get("unit")}
        about["temporality"] = _TEMPORALITIES.get(data.get("aggregationTemporality"))
        about = {name: each for name, each in about.items() if each}
        points += [
            OtlpLog(
                trace=None,
                span=None,
                ts_us=_json_micros(point.get("timeUnixNano")),
                severity="",
                event=str(metric["name"]),
                body={**_point_value(point), **about},
                attributes=_json_attributes(point.get("attributes")),
                sender=sender,
                kind=METRIC,
            )
            for point in data.get("dataPoints") or ()
        ]
    return points


def _point_value(point: dict[str, Any]) -> dict[str, Any]:
    if "asInt" in point:
        return {"value": int(point["asInt"])}
    if "asDouble" in point:
        return {"value": float(point["asDouble"])}
    return {name: _plain_number(each) for name, each in point.items() if name not in _NOT_VALUES}


def _plain_number(value: Any) -> Any:
    """Return numbers that are text, as 64-bit numbers are in JSON, as numbers."""
    if isinstance(value, list):
        return [_plain_number(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _plain_number(each) for name, each in cast("dict[str, Any]", value).items()}
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def _json_items(request: Any, outer: str, middle: str, inner: str) -> list[tuple[Sender, Any]]:
    """Return the spans, log records or metrics of a request, each with its sender."""
    items: list[tuple[Sender, Any]] = []
    try:
        for by_resource in request.get(outer) or ():
            described: dict[str, Any] = by_resource.get("resource") or {}
            resource = _json_attributes(described.get("attributes"))
            for by_scope in by_resource.get(middle) or ():
                scope: dict[str, Any] = by_scope.get("scope") or {}
                name = f"{scope.get('name') or ''} {scope.get('version') or ''}".strip()
                sender = Sender(resource, name, _json_attributes(scope.get("attributes")))
                items += [(sender, item) for item in by_scope.get(inner) or ()]
    except _SHAPE_ERRORS as error:
        raise InvalidInput(f"the body is not an OTLP request ({error!r:.120}); nothing was written") from None
    return items


def _parse_json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        strict_error = error
    # Senders that cut text inside a character write half of it. The rest of the request is still good.
    try:
        text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False, allow_nan=False)
        return orjson.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise InvalidInput(f"the body is not JSON ({strict_error}); nothing was written") from None


def _json_span(message: dict[str, Any], sender: Sender) -> OtlpSpan:
    start_us = _json_micros(message.get("startTimeUnixNano"))
    end_us = _json_micros(message.get("endTimeUnixNano"))
    status: dict[str, Any] = message.get("status") or {}
    extra: dict[str, Any] = {
        ours: int(message[theirs]) for theirs, ours in _DROPPED_JSON.items() if message.get(theirs)
    }
    if message.get("traceState"):
        extra["trace_state"] = str(message["traceState"])
    return OtlpSpan(
        trace=_json_id(message.get("traceId")),
        id=_json_id(message.get("spanId")),
        parent=_json_id(message.get("parentSpanId")) or None,
        name=str(message.get("name") or ""),
        kind=_json_enum(message.get("kind")),
        start_us=start_us or end_us,
        end_us=max(end_us, start_us),
        status=_json_enum(status.get("code")),
        status_message=str(status.get("message") or ""),
        flags=int(message.get("flags") or 0),
        attributes=_json_attributes(message.get("attributes")),
        events=[_json_event(each) for each in message.get("events") or ()],
        links=[_json_link(each) for each in message.get("links") or ()],
        extra=extra,
        sender=sender,
    )


def _json_event(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": str(message.get("name") or ""),
        "ts_us": _json_micros(message.get("timeUnixNano")),
        "attributes": _json_attributes(message.get("attributes")),
    }


def _json_link(message: dict[str, Any]) -> dict[str, Any]:
    link: dict[str, Any] = {
        "trace": _json_id(message.get("traceId")),
        "span": _json_id(message.get("spanId")),
    }
    if message.get("attributes"):
        link["attributes"] = _json_attributes(message["attributes"])
    return link


def _json_log(message: dict[str, Any], sender: Sender) -> OtlpLog:
    return OtlpLog(
        trace=_json_id(message.get("traceId")) or None,
        span=_json_id(message.get("spanId")) or None,
        ts_us=_json_micros(message.get("timeUnixNano")) or _json_micros(message.get("observedTimeUnixNano")),
        severity=str(message.get("severityText") or ""),
        event=str(message.get("eventName") or ""),
        body=_json_value(message.get("body") or {}),
        attributes=_json_attributes(message.get("attributes")),
        sender=sender,
    )


def _json_attributes(pairs: Any) -> dict[str, Any]:
    return {str(pair["key"]): _json_value(pair.get("value") or {}) for pair in pairs or ()}


def _json_value(value: dict[str, Any]) -> Any:
    for form, inner in value.items():
        if form in ("stringValue", "boolValue"):
            return inner
        if form == "intValue":
            return int(inner)
        if form == "doubleValue":
            return float(inner)
        if form == "arrayValue":
            return [_json_value(each) for each in inner.get("values") or ()]
        if form == "kvlistValue":
            return _json_attributes(inner.get("values"))
        if form == "bytesValue":
            return b64decode(inner)
    return None


def _json_id(digits: Any) -> str:
    """Return an id in lowercase hex; ``""`` for one that is missing or all zero."""
    text = str(digits or "").lower()
    if not text:
        return ""
    return text if bytes.fromhex(text).strip(b"\0") else ""


def _json_micros(nanos: Any) -> int:
    micros = int(nanos or 0) // 1000
    if micros < 0:
        raise ValueError("a time is negative")
    return micros


def _json_enum(value: Any) -> int:
    return _ENUMS.get(value, 0) if isinstance(value, str) else int(value or 0)


def _describe_json(message: Any) -> str:
    if not isinstance(message, dict):
        return "a span"
    fields = cast("dict[str, Any]", message)
    return f"span {str(fields.get('name'))[:80]!r} ({str(fields.get('spanId'))[:16]})"


_DECODERS: Final[dict[tuple[Signal, Encoding], Callable[[bytes], ExportRequest]]] = {
    ("traces", "protobuf"): _protobuf_traces,
    ("traces", "json"): _json_traces,
    ("logs", "protobuf"): _protobuf_logs,
    ("logs", "json"): _json_logs,
    ("metrics", "protobuf"): _protobuf_metrics,
    ("metrics", "json"): _json_metrics,
}
