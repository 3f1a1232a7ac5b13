"""Reports of one run as plain data: its timeline and its cost in the shapes of the REST endpoints.

``cost_eur`` is the sum of all amounts in euros, each at the rate of its day. It is ``None`` where something
was used and nothing of it has a price, and 0 only where nothing was used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from treering.core.batch import Usage
from treering.core.clock import day_of
from treering.core.encoding import decode, decode_json
from treering.core.money import from_nanos, to_nanos
from treering.core.query import EventQuery
from treering.errors import InvalidInput, MissingExtra, NotFound
from treering.runs.cost import Costs
from treering.runs.directory import MAX_LINES, LegacyRuns
from treering.runs.prices import EUR, exchange
from treering.runs.run import run_ref
from treering.runs.span import OPEN, SPAN, input_of
from treering.runs.timeline import MESSAGE, Timeline

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.runs.cost import Cost
    from treering.runs.timeline import Only, TimelineEvent, TimelinePage


def timeline_report(
    engine: Engine,
    space: str,
    run_id: str,
    *,
    limit: int = MAX_LINES,
    cursor: str | None = None,
    everything: bool = False,
    only: Only | None = None,
    legacy: LegacyRuns | None = None,
) -> dict[str, Any]:
    """``{"events": [...], "next_cursor": ...}``, forward from the oldest; ``None`` where nothing follows.

    A run that is not in the store is asked of ``legacy``, as a whole.
    """
    if not 1 <= limit <= MAX_LINES:
        raise InvalidInput(f"limit is {limit}; use 1 to {MAX_LINES} and continue with next_cursor")
    if not _is_there(engine, space, run_id):
        found = None if legacy is None else legacy.timeline(run_id, limit=limit, cursor=cursor)
        return _from(found, run_id)
    narrow = {} if only is None else structs.asdict(only)
    page = Timeline(engine, space).of_run(run_id, first=limit, cursor=cursor, everything=everything, **narrow)
    return plain_page(page)


def plain_page(page: TimelinePage) -> dict[str, Any]:
    """A page of a timeline as the endpoints give it."""
    return {"events": [_line(event) for event in page.events], "next_cursor": page.cursor}


def cost_report(
    engine: Engine, space: str, run_id: str, *, legacy: LegacyRuns | None = None
) -> dict[str, Any]:
    """``{"by_agent": [...], "total": {...}}`` in tokens and euros, the most expensive agent first.

    Where amounts were converted, ``rates`` says how; where usage has no price, the row says how much
    in ``unpriced``. A run that is not in the store is asked of ``legacy``.
    """
    if not _is_there(engine, space, run_id):
        return _from(None if legacy is None else legacy.cost(run_id), run_id)
    report = Costs(engine, space).in_(EUR).of_run(run_id)
    found: dict[str, Any] = {
        # An agent is listed when it used something; what only happened is in the timeline.
        "by_agent": [_row(part) for part in report.parts if part.tokens or part.nanos or part.unconverted],
        "total": _row(report.total),
    }
    if report.total.rates:
        found["rates"] = [
            {"currency": rate.currency, "rate": float(rate.rate), "date": rate.date}
            for rate in report.total.rates
        ]
    return found


def _is_there(engine: Engine, space: str, run_id: str) -> bool:
    return bool(engine.refs(space, [run_ref(run_id)]))


def _from(legacy: dict[str, Any] | None, run_id: str) -> dict[str, Any]:
    if legacy is None:
        raise NotFound(f"there is no run {run_id!r}; runs.page() lists those that there are")
    return legacy


def _line(event: TimelineEvent) -> dict[str, Any]:
    meta = event.meta
    if event.type == MESSAGE:
        meta = {"model": meta["model"], "tokens": meta["tokens"], "cost_eur": _euros(event)}
    return {
        "type": event.type,
        "ts": event.ts,
        "run_id": event.run_id,
        "agent": event.agent,
        "label": event.label,
        "ref": event.ref,
        "meta": meta,
    }


def _euros(event: TimelineEvent) -> float | None:
    amount, currency = event.meta["cost"], event.meta["currency"]
    if amount is None:
        return None
    if currency == EUR:
        return amount
    try:
        rate = exchange.rate(currency, day_of(event.ts_us))
    except MissingExtra:
        return None  # a timeline is no bill: the cost report says what is missing
    return None if rate is None else float(from_nanos(rate.convert(to_nanos(amount))))


def _row(cost: Cost) -> dict[str, Any]:
    amount = cost.amount(EUR)
    row: dict[str, Any] = {
        "agent": cost.key or None,
        "tokens": cost.tokens,
        "cost_eur": None if amount is None else float(amount),
    }
    if cost.unpriced_tokens:
        row["unpriced"] = {"tokens": cost.unpriced_tokens, "messages": cost.unpriced_events}
    if cost.unconverted:
        row["unconverted"] = {name: float(from_nanos(nanos)) for name, nanos in cost.unconverted.items()}
    return row


# -----------------------------------------------------------------------------------------------------------
# The records of a run: every span, message and mark as it was written, for waterfalls and conversations.
#
# Where the timeline shows a span twice (as it begins and as it ends), this shows it once. What went in and
# what came out is read when it is asked for.


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
