"""Import spans that Phoenix exported.

Read are the spans of its REST API (``GET /v1/projects/{name}/spans``) and client (``get_spans``), of
``/spans/otlpv1``, of its command line (traces with a list of spans), and a table of spans
(``get_spans_dataframe().to_json(path, orient="records", lines=True)``): one a line, a list, or pages.
Their attributes are OpenInference's, so they are understood as spans that arrive over the network are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.errors import InvalidInput
from treering.importers.lines import BadLines
from treering.importers.traces.importing import (
    Item,
    each_document,
    import_traces,
    parse_micros,
    text_field,
)
from treering.runs.otlp.decode import STATUS_ERROR, OtlpSpan, Sender, decode_request

if TYPE_CHECKING:
    from treering.importers.registry import ImportReport
    from treering.store import Store

_SENDER: Final = Sender({}, "phoenix", {})
_ATTRIBUTES: Final = "attributes."


def import_phoenix(source: str | Path, store: Store, **options: Any) -> ImportReport:
    """Import a file of spans that Phoenix exported, or a folder of them."""
    return import_traces("phoenix", source, store, _read, **options)


def _read(path: Path, name: str, bad: BadLines) -> Iterator[Item]:
    for place, document in each_document(path, name, bad):
        rows: Any = document.get("spans", document.get("data", [document]))
        if not isinstance(rows, list):
            bad.add(place, "it has no list of spans")
            continue
        for number, row in enumerate(cast("list[Any]", rows), 1):
            span: OtlpSpan | None = None
            with bad.skipping(place if rows[0] is document else f"{place} span {number}"):
                span = _span(row)
            if span is not None:
                yield span


def _span(row: Any) -> OtlpSpan:
    if not isinstance(row, dict):
        raise InvalidInput(f"expected a span, not a {type(row).__name__}")
    fields = cast("dict[str, Any]", row)
    if "start_time_unix_nano" in fields:
        return _otlp_span(fields)
    if "context.span_id" in fields:
        fields = _of_table(fields)
    context = fields.get("context") or fields.get("spanContext")
    if not isinstance(context, Mapping):
        raise InvalidInput(
            "it has no context with the ids of its trace and span, so it is no span of Phoenix"
        )
    ids = cast("Mapping[str, Any]", context)
    trace, span = text_field(ids, "trace_id", "traceId"), text_field(ids, "span_id", "spanId")
    if not trace or not span:
        raise InvalidInput("it has no trace id or no span id")
    start_us = parse_micros(fields.get("start_time"), "start_time")
    ended: Any = fields.get("end_time")
    end_us = start_us if ended is None else parse_micros(ended, "end_time")
    attributes = flatten(fields.get("attributes") or {})
    kind = text_field(fields, "span_kind")
    if kind and kind != "UNKNOWN":
        attributes.setdefault("openinference.span.kind", kind)
    return OtlpSpan(
        trace=trace,
        id=span,
        parent=text_field(fields, "parent_id") or None,
        name=text_field(fields, "name"),
        kind=0,
        start_us=start_us,
        end_us=max(end_us, start_us),
        status=STATUS_ERROR if fields.get("status_code") == "ERROR" else 0,
        status_message=text_field(fields, "status_message"),
        flags=0,
        attributes=attributes,
        events=_events(fields.get("events") or []),
        links=[],
        extra={},
        sender=_SENDER,
    )


def _events(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise InvalidInput(f"its events are of type {type(given).__name__}, not a list")
    return [_event(each) for each in cast("list[Any]", given)]


def _event(event: Any) -> dict[str, Any]:
    if not isinstance(event, Mapping):
        raise InvalidInput("an event of it is no object")
    fields = cast("Mapping[str, Any]", event)
    return {
        "name": text_field(fields, "name"),
        "ts_us": parse_micros(fields.get("timestamp"), "timestamp of an event"),
        "attributes": flatten(fields.get("attributes") or {}),
    }


def _of_table(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table as a span. A column that is empty for this span has no value."""
    fields = {name: value for name, value in row.items() if value is not None}
    return {
        **fields,
        "context": {"trace_id": fields.get("context.trace_id"), "span_id": fields.get("context.span_id")},
        "attributes": {
            name.removeprefix(_ATTRIBUTES): value
            for name, value in fields.items()
            if name.startswith(_ATTRIBUTES)
        },
    }


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested attributes as OpenTelemetry has them: ``{"llm": {"a": 1}}`` as ``{"llm.a": 1}``.

    A list of objects is numbered, a list of plain values is one attribute.
    """
    if not isinstance(value, dict):
        raise InvalidInput("its attributes are no object")
    found: dict[str, Any] = {}
    stack: list[tuple[str, Any]] = [(prefix, cast("Any", value))]
    while stack:
        name, each = stack.pop()
        nested: list[tuple[str, Any]] | None = None
        if isinstance(each, dict) and each:
            nested = list(cast("dict[str, Any]", each).items())
        elif isinstance(each, list) and any(isinstance(item, dict) for item in cast("list[Any]", each)):
            nested = [(str(index), item) for index, item in enumerate(cast("list[Any]", each))]
        if nested is None:
            if each is not None:
                found[name] = each
        else:
            stack += [(f"{name}.{key}" if name else key, item) for key, item in reversed(nested)]
    return found


def _otlp_span(fields: Mapping[str, Any]) -> OtlpSpan:
    """Return a span of ``/spans/otlpv1``, which has the names of protobuf and empty fields."""
    request = {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "phoenix"}, "spans": [_camel(fields)]}]}]}
    found = decode_request(msgspec.json.encode(request), "traces", "json")
    if not found.spans:
        raise InvalidInput(found.rejected[0].reason if found.rejected else "it is no span")
    return found.spans[0]


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {_camel_name(name): _camel(each) for name, each in fields.items() if each is not None}


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)
