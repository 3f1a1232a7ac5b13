"""Export requests for tests, written the short way."""

from __future__ import annotations

import json
from typing import Any

START_NS = 1_760_000_000_000_000_000
"""2025-10-09 08:53:20 UTC."""
TRACE = "0af7651916cd43dd8448eb211c80319c"


def span(name: str, *, id: int, parent: int | None = None, at_ms: int = 0, ms: int = 10, **more: Any) -> dict:
    """A span in OTLP's JSON; ``attributes`` may be a plain dict."""
    begun = START_NS + at_ms * 1_000_000
    made = {
        "traceId": more.pop("trace", TRACE),
        "spanId": f"{id:016x}",
        "name": name,
        "kind": more.pop("kind", 1),
        "startTimeUnixNano": str(begun),
        "endTimeUnixNano": str(begun + ms * 1_000_000),
        "attributes": attributes(more.pop("attributes", {})),
        **more,
    }
    if parent is not None:
        made["parentSpanId"] = f"{parent:016x}"
    return made


def log(
    event: str = "", *, body: Any = None, at_ms: int = 0, attributes: dict[str, Any], **more: Any
) -> dict:
    """A log record in OTLP's JSON."""
    made = {"timeUnixNano": str(START_NS + at_ms * 1_000_000), "attributes": _attributes(attributes), **more}
    if event:
        made["eventName"] = event
    if body is not None:
        made["body"] = value(body)
    return made


def traces(*spans: dict, resource: dict[str, Any] | None = None, scope: str = "test") -> bytes:
    """A request with these spans."""
    return json.dumps(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": attributes(resource or {"service.name": "shop"})},
                    "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}],
                }
            ]
        }
    ).encode()


def logs(*records: dict, resource: dict[str, Any] | None = None) -> bytes:
    """A request with these records."""
    return json.dumps(
        {
            "resourceLogs": [
                {
                    "resource": {"attributes": attributes(resource or {"service.name": "shop"})},
                    "scopeLogs": [{"scope": {"name": "test"}, "logRecords": list(records)}],
                }
            ]
        }
    ).encode()


def metrics(*given: dict, resource: dict[str, Any] | None = None) -> bytes:
    """A request with these metrics."""
    return json.dumps(
        {
            "resourceMetrics": [
                {
                    "resource": {"attributes": attributes(resource or {"service.name": "shop"})},
                    "scopeMetrics": [{"scope": {"name": "test"}, "metrics": list(given)}],
                }
            ]
        }
    ).encode()


def total(name: str, number: int, *, at_ms: int = 0, delta: bool = False, **plain: Any) -> dict:
    """A metric with one data point of a sum."""
    time = str(START_NS + at_ms * 1_000_000)
    point = {"timeUnixNano": time, "asInt": str(number), "attributes": attributes(plain)}
    return {"name": name, "sum": {"dataPoints": [point], "aggregationTemporality": 1 if delta else 2}}


def attributes(plain: dict[str, Any]) -> list[dict]:
    return [{"key": key, "value": value(each)} for key, each in plain.items()]


_attributes = attributes


def value(plain: Any) -> dict[str, Any]:
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, list):
        return {"arrayValue": {"values": [value(each) for each in plain]}}
    if isinstance(plain, dict):
        return {"kvlistValue": {"values": attributes(plain)}}
    return {"stringValue": plain}
