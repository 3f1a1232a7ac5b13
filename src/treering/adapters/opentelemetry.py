"""OpenTelemetry in this process: `TreeringSpanExporter` writes the spans of the OpenTelemetry SDK to a store.

    provider.add_span_processor(BatchSpanProcessor(TreeringSpanExporter("./agents")))

Every instrumentation that reports to the SDK (OpenInference, OpenLLMetry, Logfire, those of OpenTelemetry
itself) leaves runs, spans, tokens and cost, without a server in between. Spans take the way of those that
come over OTLP, so they mean the same and are stored once, however often they are exported.
**Invariant:** `export` reports success only when its spans are durable.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, cast

import orjson

from treering.adapters.shared import Opened, StoreOrUrl, replace_surrogates
from treering.errors import MissingExtra, TreeringError
from treering.sync_async import Closing

try:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "opentelemetry":
        raise MissingExtra("treering.adapters.opentelemetry", "opentelemetry") from error
    raise

_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200
"""In the flags of a span: whether it is known if its parent is in another process, and whether it is."""


class TreeringSpanExporter(SpanExporter, Closing):
    """Exports spans to a store; give it to a span processor of the OpenTelemetry SDK.

    ``store_or_url`` is an open store, which you close, or where to open one, which `shutdown` then closes.
    ``timeout_seconds`` is how long an export waits until its spans are durable. What could not be stored is
    reported as a failure and a `RuntimeWarning`.
    """

    def __init__(self, store_or_url: StoreOrUrl | None = None, *, timeout_seconds: float = 30.0) -> None:
        self._opened = Opened(store_or_url)
        self._timeout_seconds = timeout_seconds

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write spans, and return when they are durable."""
        try:
            ingest = self._opened.store.otlp
            future = ingest.submit(encode_spans(spans), signal="traces", encoding="json")
            result = future.result(self._timeout_seconds)
        except (TreeringError, FutureTimeout) as error:
            warnings.warn(f"{len(spans)} spans could not be stored: {error!r}", RuntimeWarning, stacklevel=2)
            return SpanExportResult.FAILURE
        if result.rejected:
            warnings.warn(f"spans were rejected: {result.message}", RuntimeWarning, stacklevel=2)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        """Return ``True``: what was exported is durable already."""
        return True

    def shutdown(self) -> None:
        """Close the store if it was opened here. May be called twice."""
        self._opened.close()

    def close(self) -> None:
        """Same as `shutdown`."""
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._opened.aclose()


def encode_spans(spans: Sequence[ReadableSpan]) -> bytes:
    """Return spans as the JSON of an OTLP request."""
    return orjson.dumps(
        {"resourceSpans": [_resource_spans(span) for span in spans if span.context is not None]}
    )


def _resource_spans(span: ReadableSpan) -> dict[str, Any]:
    """Return a span as the JSON of an OTLP request, with its resource and instrumentation."""
    scope = span.instrumentation_scope
    described: dict[str, Any] = {}
    if scope is not None:
        described = {
            "name": scope.name,
            "version": scope.version or "",
            "attributes": _attributes(scope.attributes),
        }
    return {
        "resource": {"attributes": _attributes(span.resource.attributes)},
        "scopeSpans": [{"scope": described, "spans": [_span(span)]}],
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    context, parent = span.context, span.parent
    assert context is not None  # noqa: S101 - for the type checker
    is_remote = parent is not None and parent.is_remote
    fields: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "name": replace_surrogates(span.name),
        "flags": _HAS_REMOTE | (_IS_REMOTE if is_remote else 0),
        "kind": span.kind.value + 1,  # OTLP counts from "unspecified"
        "startTimeUnixNano": span.start_time or 0,
        "endTimeUnixNano": span.end_time or span.start_time or 0,
        "attributes": _attributes(span.attributes),
        "events": [
            {"name": event.name, "timeUnixNano": event.timestamp, "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "links": [
            {
                "traceId": f"{link.context.trace_id:032x}",
                "spanId": f"{link.context.span_id:016x}",
                "attributes": _attributes(link.attributes),
            }
            for link in span.links
        ],
        "status": {
            "code": span.status.status_code.value,
            "message": replace_surrogates(span.status.description or ""),
        },
        "droppedAttributesCount": span.dropped_attributes,
        "droppedEventsCount": span.dropped_events,
        "droppedLinksCount": span.dropped_links,
    }
    if context.trace_state:
        fields["traceState"] = context.trace_state.to_header()
    if parent is not None:
        fields["parentSpanId"] = f"{parent.span_id:016x}"
    return fields


def _attributes(given: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {"key": replace_surrogates(str(key)), "value": _value(value)} for key, value in (given or {}).items()
    ]


def _value(value: Any) -> dict[str, Any]:
    """Return a value as OTLP's JSON writes it."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value if math.isfinite(value) else str(value)}
        case bytes():
            return {"bytesValue": base64.b64encode(value).decode()}
        case Mapping():
            return {"kvlistValue": {"values": _attributes(cast("Mapping[str, Any]", value))}}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(each) for each in cast("Sequence[Any]", value)]}}
        case None:
            return {}
        case _:
            return {"stringValue": replace_surrogates(str(value))}
