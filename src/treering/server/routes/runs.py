"""Runs, their spans and what they cost."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from treering.core.batch import Usage
from treering.core.clock import DAY_US
from treering.core.money import from_nanos
from treering.errors import InvalidInput, NotFound
from treering.runs.cost import By, Cost, CostReport
from treering.runs.directory import legacy_run
from treering.runs.prices import EUR
from treering.runs.reports import RecordContent, RunRecord, cost_report, record_content, run_records
from treering.runs.run import RunInfo
from treering.server.endpoints import Call, endpoint
from treering.store import Store

CostBy = By | Literal["run", "thread", "tag"]


class RunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs. Filters that are left out do not filter."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None
    agent: str | None = None
    status: str | None = None
    thread: str | None = None
    tag: str | None = None
    namespace: str = ""


class Money(Struct, frozen=True, kw_only=True):
    """An amount in one currency."""

    currency: str
    amount: float


class RunLine(Struct, frozen=True, kw_only=True):
    """A run in a list."""

    id: str
    agent: str | None
    thread: str | None
    namespace: str
    status: str
    started_at: str
    started_at_us: int
    ended_at_us: int | None
    duration_us: int | None
    tokens: int
    usage: Usage
    cost: tuple[Money, ...]
    unpriced_tokens: int
    events: int
    errors: int
    tags: tuple[str, ...]
    meta: dict[str, Any]


class RunList(Struct, frozen=True, kw_only=True):
    """Runs, newest first. A page may be short: go on as long as there is a cursor."""

    runs: tuple[RunLine, ...]
    next_cursor: str | None


class SpansQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of a run."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    cursor: str | None = None


class SpanList(Struct, frozen=True, kw_only=True):
    """Spans, messages and marks in the order of their beginning."""

    records: tuple[RunRecord, ...]
    next_cursor: str | None


class CostQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to add up: by which group, over which days (``2026-11-16``), in which currency."""

    by: CostBy = "day"
    since: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    until: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    agent: str | None = None
    model: str | None = None
    thread: str | None = None
    namespace: str = ""
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] | None = None


class CostLine(Struct, frozen=True, kw_only=True):
    """What one group took; ``key`` is its day, agent, model, kind, run, thread or tag."""

    key: str | None
    usage: Usage
    tokens: int
    cost: tuple[Money, ...]
    events: int
    errors: int
    unpriced_tokens: int
    unpriced_events: int
    unconverted: tuple[Money, ...]
    rates: tuple[dict[str, Any], ...]


class CostTable(Struct, frozen=True, kw_only=True):
    """A total and its parts."""

    total: CostLine
    parts: tuple[CostLine, ...]


@endpoint("GET", "/runs", tag="runs")
def list_runs(call: Call[RunsQuery, None]) -> RunList:
    """The runs, newest first."""
    query = call.query
    page = call.store.runs.in_namespace(query.namespace).page(
        first=query.limit,
        cursor=query.cursor,
        agent=query.agent,
        status=query.status,
        thread=query.thread,
        tag=query.tag,
    )
    return RunList(runs=tuple(_line(call.store, each) for each in page.runs), next_cursor=page.cursor)


@endpoint("GET", "/runs/{id}", tag="runs")
def get_run(call: Call[None, None]) -> RunLine:
    """One run: how it stands and what it took."""
    store, run_id = call.store, call.path["id"]
    try:
        return _line(store, store.runs.get(run_id))
    except NotFound:
        info = None if store.legacy is None else legacy_run(store.legacy, run_id)
        if info is None or store.legacy is None:
            raise
        return _legacy_line(info, store.legacy.cost(run_id))


@endpoint("GET", "/runs/{id}/cost", tag="runs")
def get_cost(call: Call[None, None]) -> dict[str, Any]:
    """What a run cost, by agent, in tokens and euros."""
    store = call.store
    return cost_report(store.engine, store.space, call.path["id"], legacy=store.legacy)


@endpoint("GET", "/runs/{id}/spans", tag="runs")
def list_spans(call: Call[SpansQuery, None]) -> SpanList:
    """Every span, message and mark of a run, in the order of their beginning, without their content."""
    call.store.runs.get(call.path["id"])
    page = run_records(
        call.store.engine,
        call.store.space,
        call.path["id"],
        first=call.query.limit,
        cursor=call.query.cursor,
    )
    return SpanList(records=page.records, next_cursor=page.cursor)


@endpoint("GET", "/runs/{id}/spans/{span}", tag="runs")
def get_span(call: Call[None, None]) -> RecordContent:
    """One span or message with what went in and what came out."""
    return record_content(call.store.engine, call.store.space, call.path["id"], call.path["span"])


@endpoint("GET", "/cost", tag="cost")
def get_costs(call: Call[CostQuery, None]) -> CostTable:
    """What everything took, or one thread, by day, agent, model, kind, run, thread or tag."""
    query = call.query
    costs = call.store.cost if query.currency is None else call.store.cost.in_(query.currency)
    since_day, until_day = day_of_text(query.since), day_of_text(query.until)
    if query.by in ("run", "thread", "tag"):
        if query.agent or query.model or query.thread:
            raise InvalidInput(f"by={query.by} is of everything; leave agent, model and thread out")
        sums = {"run": costs.of_runs, "thread": costs.of_threads, "tag": costs.of_tags}[query.by]
        report = sums(since_day=since_day, until_day=until_day)
    elif query.thread is not None:
        report = costs.of_thread(query.thread, namespace=query.namespace, by=query.by)
    else:
        report = costs.of_days(
            by=query.by,
            since_day=since_day,
            until_day=until_day,
            agent=query.agent,
            model=query.model,
        )
    return _table(report, query.by)


ENDPOINTS: Final = (list_runs, get_run, get_cost, list_spans, get_span, get_costs)


def _line(store: Store, info: RunInfo) -> RunLine:
    total = store.cost.of_run(info.id, by="kind").total
    return _told(
        info,
        tokens=total.tokens,
        usage=total.usage,
        cost=_money(total.nanos),
        unpriced_tokens=total.unpriced_tokens,
        events=total.events,
        errors=total.errors,
    )


def _legacy_line(info: RunInfo, cost: dict[str, Any] | None) -> RunLine:
    """A run of before; what it used is one sum, and its cost is in euros."""
    total: dict[str, Any] = {} if cost is None else cost["total"]
    euros = total.get("cost_eur")
    return _told(
        info,
        tokens=total.get("tokens", 0),
        usage=Usage(),
        cost=() if euros is None else (Money(currency=EUR, amount=euros),),
        unpriced_tokens=total.get("unpriced", {}).get("tokens", 0),
        events=0,
        errors=0,
    )


def _told(info: RunInfo, **took: Any) -> RunLine:
    return RunLine(
        id=info.id,
        agent=info.agent,
        thread=info.thread,
        namespace=info.namespace,
        status=info.status,
        started_at=info.started_at,
        started_at_us=info.started_at_us,
        ended_at_us=info.ended_at_us,
        duration_us=info.duration_us,
        tags=info.tags,
        meta=info.meta,
        **took,
    )


def _table(report: CostReport, by: CostBy) -> CostTable:
    parts = [_cost(each, by) for each in report.parts]
    if by == "day":
        parts.sort(key=lambda each: each.key or "")
    return CostTable(total=_cost(report.total, by), parts=tuple(parts))


def _cost(cost: Cost, by: CostBy) -> CostLine:
    key = cost.key
    return CostLine(
        key=_date(key) if by == "day" and isinstance(key, int) else None if key is None else str(key),
        usage=cost.usage,
        tokens=cost.tokens,
        cost=_money(cost.nanos),
        events=cost.events,
        errors=cost.errors,
        unpriced_tokens=cost.unpriced_tokens,
        unpriced_events=cost.unpriced_events,
        unconverted=_money(cost.unconverted),
        rates=tuple(msgspec.to_builtins(each, str_keys=True) for each in cost.rates),
    )


def _money(nanos: dict[str, int]) -> tuple[Money, ...]:
    return tuple(
        Money(currency=currency, amount=float(from_nanos(each))) for currency, each in sorted(nanos.items())
    )


def _date(day: int) -> str:
    from treering.core.clock import to_iso

    return to_iso(day * DAY_US)[:10]


def day_of_text(text: str | None) -> int | None:
    """A date of a query as a day since 1970."""
    from datetime import date

    if text is None:
        return None
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise InvalidInput(f"{text!r} is no date; write it like 2026-11-16") from None
