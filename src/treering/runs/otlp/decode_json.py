"""OTLP in JSON: ids are hex, 64-bit numbers may be text, names are in camel case.

Fields that are not known are passed over, as the protocol asks; a value of the wrong shape refuses the span
that it stands in, and a body that is no OTLP at all is refused whole.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, Final, cast

import orjson

from treering.errors import InvalidInput
from treering.runs.otlp.records import Received, ReceivedLog, ReceivedSpan, Refused, Source, fault_of

_DROPPED: Final = {
    "droppedAttributesCount": "dropped_attributes_count",
    "droppedEventsCount": "dropped_events_count",
    "droppedLinksCount": "dropped_links_count",
}
_SHAPE: Final = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
_ENUMS: Final = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2} | {
    f"SPAN_KIND_{name}": number
    for number, name in enumerate(("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"))
}


def read_traces(data: bytes) -> Received:
    """The spans of an export request."""
    found = Received()
    for source, message in _leaves(data, "resourceSpans", "scopeSpans", "spans"):
        try:
            span = _span(message, source)
            fault = fault_of(span)
        except _SHAPE as error:
            found.refused.append(Refused(_told(message), f"it is not shaped like a span ({error!r:.120})"))
            continue
        if fault is None:
            found.spans.append(span)
        else:
            found.refused.append(Refused(_told(message), fault))
    return found


def read_logs(data: bytes) -> Received:
    """The records of an export request."""
    found = Received()
    for source, message in _leaves(data, "resourceLogs", "scopeLogs", "logRecords"):
        try:
            found.logs.append(_log(message, source))
        except _SHAPE as error:
            found.refused.append(Refused("a log record", f"it is not shaped like one ({error!r:.120})"))
    return found


def _leaves(data: bytes, outer: str, middle: str, inner: str) -> list[tuple[Source, Any]]:
    request = _parsed(data)
    leaves: list[tuple[Source, Any]] = []
    try:
        for each in request.get(outer) or ():
            described: dict[str, Any] = each.get("resource") or {}
            resource = _attributes(described.get("attributes"))
            for part in each.get(middle) or ():
                scope: dict[str, Any] = part.get("scope") or {}
                name = f"{scope.get('name') or ''} {scope.get('version') or ''}".strip()
                source = Source(resource, name, _attributes(scope.get("attributes")))
                leaves += [(source, leaf) for leaf in part.get(inner) or ()]
    except _SHAPE as error:
        raise InvalidInput(f"the body is no OTLP request ({error!r:.120}); nothing was written") from None
    return leaves


def _parsed(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        strict = error
    # Senders that cut text in the middle of a character write half of it: that is no reason to lose the rest.
    try:
        text = json.dumps(json.loads(data.decode("utf-8", "replace")), ensure_ascii=False, allow_nan=False)
        return orjson.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise InvalidInput(f"the body is not JSON ({strict}); nothing was written") from None


def _span(message: dict[str, Any], source: Source) -> ReceivedSpan:
    start_us, end_us = _micros(message.get("startTimeUnixNano")), _micros(message.get("endTimeUnixNano"))
    status: dict[str, Any] = message.get("status") or {}
    more: dict[str, Any] = {
        ours: int(message[theirs]) for theirs, ours in _DROPPED.items() if message.get(theirs)
    }
    if message.get("traceState"):
        more["trace_state"] = str(message["traceState"])
    return ReceivedSpan(
        trace=_hex(message.get("traceId")),
        id=_hex(message.get("spanId")),
        parent=_hex(message.get("parentSpanId")) or None,
        name=str(message.get("name") or ""),
        kind=_enum(message.get("kind")),
        start_us=start_us or end_us,
        end_us=max(end_us, start_us),
        status=_enum(status.get("code")),
        status_message=str(status.get("message") or ""),
        flags=int(message.get("flags") or 0),
        attributes=_attributes(message.get("attributes")),
        events=[_event(each) for each in message.get("events") or ()],
        links=[_link(each) for each in message.get("links") or ()],
        more=more,
        source=source,
    )


def _event(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": str(message.get("name") or ""),
        "ts_us": _micros(message.get("timeUnixNano")),
        "attributes": _attributes(message.get("attributes")),
    }


def _link(message: dict[str, Any]) -> dict[str, Any]:
    link: dict[str, Any] = {"trace": _hex(message.get("traceId")), "span": _hex(message.get("spanId"))}
    if message.get("attributes"):
        link["attributes"] = _attributes(message["attributes"])
    return link


def _log(message: dict[str, Any], source: Source) -> ReceivedLog:
    return ReceivedLog(
        trace=_hex(message.get("traceId")) or None,
        span=_hex(message.get("spanId")) or None,
        ts_us=_micros(message.get("timeUnixNano")) or _micros(message.get("observedTimeUnixNano")),
        severity=str(message.get("severityText") or ""),
        event=str(message.get("eventName") or ""),
        body=_value(message.get("body") or {}),
        attributes=_attributes(message.get("attributes")),
        source=source,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {str(pair["key"]): _value(pair.get("value") or {}) for pair in pairs or ()}


def _value(value: dict[str, Any]) -> Any:
    for form, inner in value.items():
        if form in ("stringValue", "boolValue"):
            return inner
        if form == "intValue":
            return int(inner)
        if form == "doubleValue":
            return float(inner)
        if form == "arrayValue":
            return [_value(each) for each in inner.get("values") or ()]
        if form == "kvlistValue":
            return _attributes(inner.get("values"))
        if form == "bytesValue":
            return b64decode(inner)
    return None


def _hex(digits: Any) -> str:
    """An id in lowercase hex; ``""`` for one that is absent or all zero."""
    text = str(digits or "").lower()
    if not text:
        return ""
    return text if bytes.fromhex(text).strip(b"\0") else ""


def _micros(nanos: Any) -> int:
    micros = int(nanos or 0) // 1000
    if micros < 0:
        raise ValueError("a time is below zero")
    return micros


def _enum(value: Any) -> int:
    return _ENUMS.get(value, 0) if isinstance(value, str) else int(value or 0)


def _told(message: Any) -> str:
    if not isinstance(message, dict):
        return "a span"
    told = cast("dict[str, Any]", message)
    return f"span {str(told.get('name'))[:80]!r} ({str(told.get('spanId'))[:16]})"
