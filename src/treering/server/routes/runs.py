"""Runs: listing, records, comparison and replay."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.core.batch import Usage
from treering.errors import NotFound
from treering.runs.compare import AgentComparison, RunComparison
from treering.runs.listing import RecordContent, RunRecord, legacy_run, record_content, run_records
from treering.runs.prices import EUR
from treering.runs.run import RunInfo
from treering.server.endpoints import Call, endpoint
from treering.server.routes.cost import Currency, Date, Money, day_from_text, money
from treering.store import Store


class RunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs to list. Unset filters do not filter."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None
    agent: str | None = None
    status: str | None = None
    thread: str | None = None
    tag: str | None = None
    namespace: str = ""


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
    """Runs, newest first. A page may be short: continue as long as there is a cursor."""

    runs: tuple[RunLine, ...]
    next_cursor: str | None


class SpansQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of a run's records."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    cursor: str | None = None


class SpanList(Struct, frozen=True, kw_only=True):
    """Spans, messages and other records in the order of their start."""

    records: tuple[RunRecord, ...]
    next_cursor: str | None


class CompareQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The currency of amounts; unset for each in its own."""

    currency: Currency | None = None


class AgentsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which agents, over which days (``2026-11-16``)."""

    agent: Annotated[tuple[str, ...], Meta(min_length=1, max_length=50)]
    since: Date | None = None
    until: Date | None = None
    currency: Currency | None = None


class ReplayQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which steps: ``limit`` of them after the first ``skip``; with their contents if ``contents=true``."""

    contents: bool = False
    skip: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=5000)] = 1000


class ReplayLine(Struct, frozen=True, kw_only=True):
    """A step of a run; ``chunk`` is a piece of a stream, ``content`` a message, an input or an output."""

    offset_us: int
    wait_us: int
    type: str
    label: str
    agent: str | None
    ref: dict[str, str]
    meta: dict[str, Any]
    chunk: str | None
    content: Any = None


class Replay(Struct, frozen=True, kw_only=True):
    """Steps, and the ``skip`` of the next page; ``None`` on the last one."""

    steps: tuple[ReplayLine, ...]
    next_skip: int | None


@endpoint("GET", "/runs", tag="runs")
def list_runs(call: Call[RunsQuery, None]) -> RunList:
    """List runs, newest first."""
    query = call.query
    page = call.store.runs.in_namespace(query.namespace).page(
        first=query.limit,
        cursor=query.cursor,
        agent=query.agent,
        status=query.status,
        thread=query.thread,
        tag=query.tag,
    )
    return RunList(runs=tuple(_run_line(call.store, each) for each in page.runs), next_cursor=page.cursor)


@endpoint("GET", "/runs/{id}", tag="runs")
def get_run(call: Call[None, None]) -> RunLine:
    """Return a run with its status and cost."""
    store, run_id = call.store, call.path["id"]
    try:
        return _run_line(store, store.runs.get(run_id))
    except NotFound:
        info = None if store.legacy is None else legacy_run(store.legacy, run_id)
        if info is None or store.legacy is None:
            raise
        return _legacy_line(info, store.legacy.cost(run_id))


@endpoint("GET", "/runs/{id}/spans", tag="runs")
def list_spans(call: Call[SpansQuery, None]) -> SpanList:
    """List the spans, messages and other records of a run, by start, without their content."""
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
    """Return a span or message with its input and output."""
    return record_content(call.store.engine, call.store.space, call.path["id"], call.path["span"])


@endpoint("GET", "/runs/{id}/compare/{other}", tag="runs")
def compare_runs(call: Call[CompareQuery, None]) -> RunComparison:
    """Compare two runs, and return the first step at which they differ."""
    return call.store.runs.compare(call.path["id"], call.path["other"], currency=call.query.currency)


@endpoint("GET", "/compare/agents", tag="runs")
def compare_agents(call: Call[AgentsQuery, None]) -> AgentComparison:
    """Compare agents over all days, or over a range of days."""
    query = call.query
    return call.store.runs.compare_agents(
        *query.agent,
        since_day=day_from_text(query.since),
        until_day=day_from_text(query.until),
        currency=query.currency,
    )


@endpoint("GET", "/runs/{id}/replay", tag="runs")
def replay(call: Call[ReplayQuery, None]) -> Replay:
    """Return a run as it happened: starts, ends, messages, and the chunks of streams with their times."""
    query = call.query
    steps = islice(call.store.runs.replay(call.path["id"]), query.skip, query.skip + query.limit + 1)
    lines = [
        ReplayLine(
            offset_us=step.offset_us,
            wait_us=step.wait_us,
            type=step.event.type if step.chunk is None else "chunk",
            label=step.label,
            agent=step.event.agent,
            ref=step.event.ref,
            meta=step.event.meta,
            chunk=step.chunk,
            content=step.content if query.contents else None,
        )
        for step in steps
    ]
    has_more = len(lines) > query.limit
    return Replay(steps=tuple(lines[: query.limit]), next_skip=query.skip + query.limit if has_more else None)


ENDPOINTS: Final = (list_runs, get_run, list_spans, get_span, compare_runs, compare_agents, replay)


def _run_line(store: Store, info: RunInfo) -> RunLine:
    total = store.cost.of_run(info.id, by="kind").total
    return _line(
        info,
        tokens=total.tokens,
        usage=total.usage,
        cost=money(total.nanos),
        unpriced_tokens=total.unpriced_tokens,
        events=total.events,
        errors=total.errors,
    )


def _legacy_line(info: RunInfo, cost: dict[str, Any] | None) -> RunLine:
    """A legacy run: its tokens are one sum, and its cost is in euros."""
    total: dict[str, Any] = {} if cost is None else cost["total"]
    euros = total.get("cost_eur")
    return _line(
        info,
        tokens=total.get("tokens", 0),
        usage=Usage(),
        cost=() if euros is None else (Money(currency=EUR, amount=euros),),
        unpriced_tokens=total.get("unpriced", {}).get("tokens", 0),
        events=0,
        errors=0,
    )


def _line(info: RunInfo, **totals: Any) -> RunLine:
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
        **totals,
    )
