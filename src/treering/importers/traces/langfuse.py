"""Import traces that Langfuse exported.

Read are the exports to a bucket (enriched observations; or traces and observations, which are joined if they
are imported as one folder), the answers of its API (pages with ``data``, a trace with its observations), and
the download of a trace from its pages, in JSON and JSON lines. Names may be in either style (``trace_id``,
``traceId``), inputs and outputs may be text that is JSON.

An observation becomes a span with the attributes that Langfuse's SDK sends (``langfuse.observation.*``), so
both ways lead to the same run. Scores are counted and left out.
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
from treering.runs.otlp.decode import STATUS_ERROR, OtlpSpan, Sender

if TYPE_CHECKING:
    from treering.importers.registry import ImportReport
    from treering.store import Store

_SENDER: Final = Sender({}, "langfuse", {})
_OBSERVATION: Final = "langfuse.observation."
_ERROR_LEVEL: Final = "ERROR"
_SNAKE: Final = {
    "traceId": "trace_id",
    "parentObservationId": "parent_observation_id",
    "startTime": "start_time",
    "endTime": "end_time",
    "completionStartTime": "completion_start_time",
    "statusMessage": "status_message",
    "modelParameters": "model_parameters",
    "providedModelName": "provided_model_name",
    "usageDetails": "usage_details",
    "costDetails": "cost_details",
    "totalCost": "total_cost",
    "calculatedTotalCost": "total_cost",
    "sessionId": "session_id",
    "userId": "user_id",
    "traceName": "trace_name",
    "promptTokens": "prompt_tokens",
    "completionTokens": "completion_tokens",
    "totalTokens": "total_tokens",
    "dataType": "data_type",
}
_OF_TRACE: Final = {
    "user_id": "user.id",
    "trace_name": "langfuse.trace.name",
    "environment": "langfuse.environment",
    "release": "langfuse.release",
    "version": "langfuse.version",
}
_IGNORED: Final = frozenset(
    {"id", "project_id", "trace_id", "parent_observation_id", "created_at", "updated_at"}
)
_Fields = dict[str, Any]


def import_langfuse(source: str | Path, store: Store, **options: Any) -> ImportReport:
    """Import a file that Langfuse exported, or a folder of them."""
    return import_traces("langfuse", source, store, _Reader(Path(source)).read, **options)


class _Reader:
    """Reads observations; a folder's traces are read first, so that their sessions and users are known."""

    def __init__(self, source: Path) -> None:
        self._traces: dict[str, _Fields] = {}
        if source.is_dir():
            for path in sorted(source.rglob("*.json*")):
                for _, document in each_document(path, path.name, BadLines()):
                    if _is_trace(fields := _named(document)):
                        self._remember(fields)

    def read(self, path: Path, name: str, bad: BadLines) -> Iterator[Item]:
        """Yield the spans of a file."""
        for place, document in each_document(path, name, bad):
            if "data" in document and isinstance(document["data"], list):
                for number, row in enumerate(cast("list[Any]", document["data"]), 1):
                    yield from self._each(row, f"{place} entry {number}", bad)
            else:
                yield from self._each(document, place, bad)

    def _each(self, row: Any, place: str, bad: BadLines) -> Iterator[Item]:
        if not isinstance(row, dict):
            bad.add(place, f"expected an object, not a {type(row).__name__}")
            return
        fields = _named(cast("_Fields", row))
        if isinstance(fields.get("trace"), dict) and "observations" in fields:  # the download of a trace
            fields = {**_named(fields["trace"]), "observations": fields["observations"]}
        if "data_type" in fields and "value" in fields:
            bad.add(place, "a score; scores are not imported")
            return
        if not _is_trace(fields):
            span: OtlpSpan | None = None
            with bad.skipping(place):
                span = self._span(fields)
            if span is not None:
                yield span
            return
        yield from self._trace(fields, place, bad)

    def _trace(self, fields: _Fields, place: str, bad: BadLines) -> Iterator[Item]:
        """Yield the observations of a trace, and the trace itself where no observation is its root."""
        with bad.skipping(place):
            self._remember(fields)
        given: Any = fields.get("observations")
        rows: list[Any] = cast("list[Any]", given) if isinstance(given, list) else []
        if any(isinstance(each, str) for each in rows):
            bad.add(place, "it names its observations without their content; export the trace with details")
            return
        roots, last_us = 0, 0
        for number, row in enumerate(rows, 1):
            where = f"{place} observation {number}"
            if not isinstance(row, dict):
                bad.add(where, f"expected an object, not a {type(row).__name__}")
                continue
            span: OtlpSpan | None = None
            with bad.skipping(where):
                observation = _named(cast("_Fields", row))
                observation.setdefault("trace_id", fields["id"])
                span = self._span(observation)
            if span is not None:
                roots += span.parent is None
                last_us = max(last_us, span.end_us)
                yield span
        if not rows and "observations" in fields and fields.get("input") is not None:
            root: OtlpSpan | None = None
            with bad.skipping(place):
                root = self._span(
                    {
                        **fields,
                        "trace_id": fields["id"],
                        "type": "SPAN",
                        "start_time": fields.get("timestamp"),
                    }
                )
            if root is not None:
                yield root

    def _remember(self, fields: _Fields) -> None:
        self._traces[text_field(fields, "id")] = {
            "session_id": fields.get("session_id"),
            "user_id": fields.get("user_id"),
            "trace_name": fields.get("name"),
            "tags": fields.get("tags"),
            "release": fields.get("release"),
        }

    def _span(self, fields: _Fields) -> OtlpSpan:
        trace = text_field(fields, "trace_id")
        if not trace or not text_field(fields, "id"):
            raise InvalidInput("it has no id or no trace id, so it is no observation of Langfuse")
        known = {name: each for name, each in self._traces.get(trace, {}).items() if each is not None}
        fields = {**known, **{name: each for name, each in fields.items() if each is not None}}
        start_us = parse_micros(fields.get("start_time"), "start_time")
        ended: Any = fields.get("end_time")
        end_us = start_us if ended is None else parse_micros(ended, "end_time")
        attributes = _attributes(fields)
        first: Any = fields.get("completion_start_time")
        events: list[dict[str, Any]] = []
        if first is not None:
            at_us = parse_micros(first, "completion_start_time")
            events.append({"name": "First Token Stream Event", "ts_us": at_us, "attributes": {}})
        return OtlpSpan(
            trace=trace,
            id=text_field(fields, "id"),
            parent=text_field(fields, "parent_observation_id") or None,
            name=text_field(fields, "name"),
            kind=0,
            start_us=start_us,
            end_us=max(end_us, start_us),
            status=STATUS_ERROR if fields.get("level") == _ERROR_LEVEL else 0,
            status_message=text_field(fields, "status_message"),
            flags=0,
            attributes=attributes,
            events=events,
            links=[],
            extra={},
            sender=_SENDER,
        )


def _named(row: Mapping[str, Any]) -> _Fields:
    """Return a row with the names of the export to a bucket."""
    fields: _Fields = {}
    for name, value in row.items():
        fields.setdefault(_SNAKE.get(name, name), value)
    return fields


def _is_trace(fields: Mapping[str, Any]) -> bool:
    return "observations" in fields or (
        "trace_id" not in fields and "timestamp" in fields and "start_time" not in fields
    )


def _attributes(fields: _Fields) -> dict[str, Any]:
    """Return what Langfuse's SDK would have sent for an observation, and all else under its own name."""
    rest = {name: value for name, value in fields.items() if name not in _IGNORED}
    for name in ("name", "start_time", "end_time", "status_message", "observations", "timestamp"):
        rest.pop(name, None)
    found: dict[str, Any] = {_OBSERVATION + "type": text_field(rest, "type").lower() or "span"}
    rest.pop("type", None)
    model = rest.pop("provided_model_name", None) or rest.pop("model", None)
    usage = rest.pop("usage_details", None) or _old_usage(rest)
    costs: Any = rest.pop("cost_details", None) or {}
    total = rest.pop("total_cost", None)
    if total is not None and isinstance(costs, dict) and "total" not in costs:
        costs = {**cast("_Fields", costs), "total": total}
    kept: list[tuple[str, Any]] = [
        ("input", rest.pop("input", None)),
        ("output", rest.pop("output", None)),
        ("model.name", model),
        ("model.parameters", rest.pop("model_parameters", None)),
        ("usage_details", usage),
        ("cost_details", costs),
        ("completion_start_time", rest.pop("completion_start_time", None)),
        ("level", None if rest.get("level") == "DEFAULT" else rest.get("level")),
    ]
    for name, value in kept:
        if value not in (None, {}, ""):
            found[_OBSERVATION + name] = (
                value if isinstance(value, str) else msgspec.json.encode(value).decode()
            )
    rest.pop("level", None)
    session = text_field(rest, "session_id")
    if session:
        found["session.id"] = session
    rest.pop("session_id", None)
    for name, attribute in _OF_TRACE.items():
        if rest.get(name):
            found[attribute] = rest[name]
        rest.pop(name, None)
    if rest.get("tags"):
        found["langfuse.trace.tags"] = rest["tags"]
    rest.pop("tags", None)
    return found | {
        f"langfuse.{name}": value for name, value in rest.items() if value not in (None, "", {}, [])
    }


def _old_usage(rest: _Fields) -> Any:
    """Return the counts of exports before ``usageDetails``: a ``usage`` object, or fields of their own."""
    names = {"prompt_tokens": "input", "completion_tokens": "output", "total_tokens": "total"}
    flat = {ours: rest.pop(theirs, None) for theirs, ours in names.items()}
    usage = rest.pop("usage", None)
    if isinstance(usage, dict):
        given = cast("_Fields", usage)
        flat |= {name: given[name] for name in ("input", "output", "total") if given.get(name) is not None}
        flat |= {
            ours: given[theirs]
            for theirs, ours in (("promptTokens", "input"), ("completionTokens", "output"))
            if given.get(theirs) is not None
        }
    return {name: count for name, count in flat.items() if count}
