"""The records of a run: every span, message and mark as it was written, for waterfalls and conversations.

Where the timeline shows a span twice (as it begins and as it ends), this shows it once. What went in and
what came out is read when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Usage
from treering.core.encoding import decode, decode_json
from treering.core.money import from_nanos
from treering.core.query import EventQuery
from treering.errors import NotFound
from treering.views.recording.given import input_of
from treering.views.recording.spans import OPEN, SPAN

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Record


_OPEN_ID: Final = ":open"
"""What the id of the row of a span's beginning ends with."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span, a message or a mark. ``is_open`` is a span that was still going on when this was written."""

    id: str
    seq: int
    kind: str
    """``span``, ``message``, or the kind of a mark."""
    type: str
    """A span's own kind: ``agent``, ``llm``, ``tool`` and so on; else as ``kind``."""
    name: str | None
    parent: str | None
    agent: str | None
    role: str | None
    status: str | None
    model: str | None
    started_at_us: int
    duration_us: int | None
    is_open: bool
    usage: Usage | None
    cost: float | None
    currency: str | None
    data: dict[str, Any]
    has_input: bool
    has_output: bool


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some records in the order of their beginning, and where the next page begins."""

    records: tuple[RunRecord, ...]
    cursor: str | None


class RecordContent(msgspec.Struct, frozen=True, kw_only=True):
    """A record with what it holds; a message's content is its ``output``."""

    record: RunRecord
    input: Any = None
    output: Any = None


def run_records(
    engine: Engine, space: str, run_id: str, *, first: int = 1000, cursor: str | None = None
) -> RecordPage:
    """A page of a run's records. A span that ended is told by its end alone, once that is written."""
    page = engine.scan(space, EventQuery(run=run_id, order="time"), after=cursor, limit=first)
    ended = {each.event.span for each in page.records if each.event.kind.startswith(SPAN)}
    begun = [
        each.event
        for each in page.records
        if each.event.kind.startswith(OPEN) and each.event.span not in ended
    ]
    if begun:  # an end has the time of its beginning, but may be the first on the next page
        times = [each.ts_us for each in begun]
        ends = EventQuery(
            run=run_id,
            ids=tuple(each.id.removesuffix(_OPEN_ID) for each in begun),
            since_us=min(times),
            until_us=max(times) + 1,
            order="time",
        )
        ended |= {each.event.span for each in engine.scan(space, ends, limit=len(begun)).records}
    return RecordPage(
        records=tuple(
            _told(each)
            for each in page.records
            if not (each.event.kind.startswith(OPEN) and each.event.span in ended)
        ),
        cursor=page.cursor,
    )


def record_content(engine: Engine, space: str, run_id: str, record_id: str) -> RecordContent:
    """One record, whole."""
    opened = record_id + _OPEN_ID
    query = EventQuery(run=run_id, ids=(record_id, opened), order="time")
    found = {each.event.id: each for each in engine.scan(space, query, limit=2).records}
    record = found.get(record_id) or found.get(opened)
    if record is None:
        raise NotFound(f"run {run_id!r} has no record {record_id!r}; /runs/<id>/spans lists them")
    data = _data(record)
    given = input_of(record.event, data)
    if given is None and opened in found:
        given = found[opened].event.body
    came = None if record.event.kind.startswith(OPEN) else record.event.body
    wanted = [each for each in (given, came) if each is not None]
    contents = iter([decode(each) for each in engine.get(space, wanted)] if wanted else [])
    return RecordContent(
        record=_told(record),
        input=None if given is None else next(contents),
        output=None if came is None else next(contents),
    )


def _told(record: Record) -> RunRecord:
    event = record.event
    form, _, kind = event.kind.partition(".")
    is_span = form + "." in (SPAN, OPEN)
    data = _data(record)
    return RunRecord(
        id=(event.span or event.id) if is_span else event.id,
        seq=record.seq,
        kind="span" if is_span else event.kind,
        type=kind if is_span else event.kind,
        name=event.name,
        parent=event.parent if is_span else event.span,
        agent=event.agent,
        role=event.role,
        status=event.status,
        model=event.model,
        started_at_us=event.ts_us,
        duration_us=event.duration_us,
        is_open=form + "." == OPEN,
        usage=event.usage,
        cost=None if event.cost_nanos is None else float(from_nanos(event.cost_nanos)),
        currency=event.currency,
        data={name: value for name, value in data.items() if name not in {"input", "announced"}},
        has_input="input" in data
        or bool(data.get("announced"))
        or (form + "." == OPEN and event.body is not None),
        has_output=event.body is not None and form + "." != OPEN,
    )


def _data(record: Record) -> dict[str, Any]:
    return decode_json(record.event.data) if record.event.data is not None else {}
