"""Runs: listing, records, timelines, search, comparison, replay, cost and performance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from treering.core.batch import Usage
from treering.core.clock import DAY_US, to_iso
from treering.core.query import Unreadable
from treering.errors import InvalidInput, NotFound
from treering.lake.engine import archived_runs
from treering.runs.compare import AgentComparison, RunComparison
from treering.runs.cost import By, Cost, CostReport, cost_report
from treering.runs.listing import (
    RecordContent,
    RunOrder,
    RunPreview,
    RunRecord,
    legacy_run,
    record_content,
    run_records,
)
from treering.runs.messages import ReadMessage, read_message, read_messages
from treering.runs.money import from_nanos
from treering.runs.performance import PerformanceBy, PerformanceReport
from treering.runs.prices import EUR
from treering.runs.run import RunInfo
from treering.runs.search import MAX_HITS, SearchResult
from treering.runs.timeline import MAX_EVENTS, TimelineFilter, page_to_dict, timeline_report
from treering.runs.tree import RunTree
from treering.server.endpoints import Call, endpoint
from treering.store import Store
from treering.threads.directory import saved_threads

TimestampUs = Annotated[int, Meta(ge=0, le=2**53)]
CostBy = By | Literal["run", "thread", "tag"]
Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$")]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]


class RunsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs to list. Unset filters do not filter."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None
    agent: str | None = None
    status: str | None = None
    thread: str | None = None
    tag: str | None = None
    since_us: TimestampUs | None = None
    until_us: TimestampUs | None = None
    sort: RunOrder | None = None
    """The most of this first, instead of the newest; then there is only one page."""
    namespace: str = ""


class RunLine(Struct, frozen=True, kw_only=True):
    """A run in a list.

    ``input`` and ``output`` are the beginnings of its question and answer, ``error`` is what it failed with.
    ``has_thread``: whether the thread that it names was saved; a run may name one that never was.
    """

    id: str
    agent: str | None
    thread: str | None
    has_thread: bool
    namespace: str
    input: str | None
    output: str | None
    error: str | None
    status: str
    started_at: str
    started_at_us: int
    ended_at: str | None
    ended_at_us: int | None
    duration_us: int | None
    tokens: int
    usage: Usage
    cost: tuple[Money, ...]
    unpriced_tokens: int
    events: int
    errors: int
    archived: bool = False
    """Whether its events are in the archive, in Parquet files."""
    tags: tuple[str, ...]
    meta: dict[str, Any]
    project_id: int | None
    parent: str | None
    """The run that started this one, if one did."""


class RunList(Struct, frozen=True, kw_only=True):
    """Runs, newest first. A page may be short: continue as long as there is a cursor."""

    runs: tuple[RunLine, ...]
    next_cursor: str | None
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class AttemptLine(Struct, frozen=True, kw_only=True):
    """A run of a tree, without its cost."""

    id: str
    agent: str | None
    thread: str | None
    status: str
    started_at: str


class TreeCost(Struct, frozen=True, kw_only=True):
    """What a run, or everything below it, has cost."""

    tokens: int
    cost: tuple[Money, ...]
    unpriced_tokens: int
    events: int
    errors: int


class TreeLine(Struct, frozen=True, kw_only=True):
    """A run with all its attempts (it was resumed by the later ones), and the runs that it started."""

    id: str
    agent: str | None
    thread: str | None
    sandbox: str | None
    """The sandbox that it ran in, if it did."""
    namespace: str
    status: str
    """That of the last attempt."""
    is_cancelled: bool
    is_over: bool
    started_at: str
    attempts: tuple[AttemptLine, ...]
    own: TreeCost
    total: TreeCost
    children: tuple[TreeLine, ...]


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who cancels a run, and why."""

    by: str | None = None
    reason: str | None = None


class Cancelled(Struct, frozen=True, kw_only=True):
    """The runs that had not ended: those that wait or whose process is gone are ``cancelled``."""

    runs: tuple[AttemptLine, ...]


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


class SpanQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to add the messages of the input and output as roles and parts."""

    readable: bool = False


class SpanContent(Struct, frozen=True, kw_only=True):
    """A record with its content; that of a message is its ``output``.

    If the request asked for it, ``readable_input`` and ``readable_output`` have the messages that the input
    and output consist of, as roles and parts, whatever their format.
    """

    record: RunRecord
    input: Any = None
    output: Any = None
    readable_input: list[ReadMessage] | None = None
    readable_output: list[ReadMessage] | None = None


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


class TimelineQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events to return. ``types=all`` returns more than the five usual types.

    Unset filters do not filter: ``span`` (and its descendants), ``agent``, ``kind`` (``message`` or a kind of
    span), ``status`` (of a span; ``running`` if it has not ended) and ``text`` (all its words).
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_EVENTS)] = MAX_EVENTS
    cursor: str | None = None
    types: Literal["all"] | None = None
    span: str | None = None
    agent: str | None = None
    kind: str | None = None
    status: str | None = None
    text: Annotated[str, Meta(max_length=1000)] | None = None

    @property
    def filter(self) -> TimelineFilter:
        """The filter of the request."""
        return TimelineFilter(
            span=self.span, agent=self.agent, kind=self.kind, status=self.status, text=self.text
        )


class ThreadTimelineQuery(TimelineQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events of a thread to return; see the timeline of a run."""

    namespace: str = ""


class TimelineSearchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to search for. Unset filters do not filter. Times are microseconds since 1970."""

    q: Annotated[str, Meta(max_length=1000)]
    run: str | None = None
    agent: str | None = None
    kind: str | None = None
    since_us: TimestampUs | None = None
    until_us: TimestampUs | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = 20


class CostQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to sum up: by which group, over which days (``2026-11-16``), in which currency."""

    by: CostBy = "day"
    since: Date | None = None
    until: Date | None = None
    agent: str | None = None
    model: str | None = None
    thread: str | None = None
    namespace: str = ""
    currency: Currency | None = None


class Money(Struct, frozen=True, kw_only=True):
    """An amount in one currency."""

    currency: str
    amount: float


class CostLine(Struct, frozen=True, kw_only=True):
    """The cost of one group; ``key`` is its day, agent, model, kind, run, thread or tag."""

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


class PerformanceQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to group by, of which agent or run, over which time (microseconds since 1970)."""

    by: PerformanceBy = "model"
    agent: str | None = None
    run: str | None = None
    since_us: TimestampUs | None = None
    until_us: TimestampUs | None = None


@endpoint("GET", "/runs", tag="runs")
def list_runs(call: Call[RunsQuery, None]) -> RunList:
    """List runs, newest first."""
    query = call.query
    runs = call.store.runs.in_namespace(query.namespace)
    if query.sort is None:
        page = runs.page(
            first=query.limit,
            cursor=query.cursor,
            agent=query.agent,
            status=query.status,
            thread=query.thread,
            tag=query.tag,
            since_us=query.since_us,
            until_us=query.until_us,
        )
        return RunList(runs=_run_lines(call.store, page.runs), next_cursor=page.cursor)
    if query.cursor is not None:
        raise InvalidInput("sort= cannot be combined with cursor; raise limit instead")
    found = runs.top(
        query.sort,
        first=query.limit,
        agent=query.agent,
        status=query.status,
        thread=query.thread,
        tag=query.tag,
        since_us=query.since_us,
        until_us=query.until_us,
    )
    return RunList(runs=_run_lines(call.store, found), next_cursor=None)


@endpoint("GET", "/runs/{id}", tag="runs")
def get_run(call: Call[None, None]) -> RunLine:
    """Return a run with its status and cost."""
    store, run_id = call.store, call.path["id"]
    try:
        return _run_lines(store, [store.runs.load(run_id)])[0]
    except NotFound:
        info = None if store.legacy is None else legacy_run(store.legacy, run_id)
        if info is None or store.legacy is None:
            raise
        return _legacy_line(info, store.legacy.cost(run_id))


@endpoint("GET", "/runs/{id}/tree", tag="runs")
def get_tree(call: Call[None, None]) -> TreeLine:
    """Return a run with its attempts and the runs of its sub-agents, with own and total cost."""
    return _tree_line(call.store.runs.tree(call.path["id"]))


@endpoint("POST", "/runs/{id}/cancel", tag="runs")
def cancel_run(call: Call[None, CancelBody]) -> Cancelled:
    """Ask a run and everything below it to stop; return the runs that had not ended."""
    by = call.access.speaks_as(call.body.by)
    asked = call.store.runs.cancel(call.path["id"], by=by, reason=call.body.reason)
    return Cancelled(runs=tuple(_line_of_attempt(each) for each in asked))


@endpoint("GET", "/runs/{id}/spans", tag="runs")
def list_spans(call: Call[SpansQuery, None]) -> SpanList:
    """List the spans, messages and other records of a run, by start, without their content."""
    run = call.store.runs.load(call.path["id"])
    page = run_records(
        call.store.engine, call.store.space, run.id, first=call.query.limit, cursor=call.query.cursor
    )
    return SpanList(records=page.records, next_cursor=page.cursor)


@endpoint("GET", "/runs/{id}/spans/{span}", tag="runs")
def get_span(call: Call[SpanQuery, None]) -> SpanContent:
    """Return a span or message with its input and output."""
    run = call.store.runs.load(call.path["id"])
    found = record_content(call.store.engine, call.store.space, run.id, call.path["span"])
    return _span_content(found, readable=call.query.readable)


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
        since_day=_day_from_text(query.since),
        until_day=_day_from_text(query.until),
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


@endpoint("GET", "/runs/{id}/timeline", tag="runs")
def get_timeline(call: Call[TimelineQuery, None]) -> dict[str, Any]:
    """Return the timeline of a run, oldest first."""
    query = call.query
    return timeline_report(
        call.store.engine,
        call.store.space,
        call.path["id"],
        limit=query.limit,
        cursor=query.cursor,
        everything=query.types == "all",
        filter=query.filter,
        legacy=call.store.legacy,
    )


@endpoint("GET", "/threads/{id}/timeline", tag="threads")
def get_thread_timeline(call: Call[ThreadTimelineQuery, None]) -> dict[str, Any]:
    """Return the timeline of all runs of a thread, oldest first; empty for a thread without runs."""
    query = call.query
    page = call.store.timeline.of_thread(
        call.path["id"],
        namespace=query.namespace,
        first=query.limit,
        cursor=query.cursor,
        everything=query.types == "all",
        filter=query.filter,
    )
    return page_to_dict(page)


@endpoint("GET", "/search", tag="runs")
def search(call: Call[TimelineSearchQuery, None]) -> SearchResult:
    """Find messages, inputs and outputs by their words, those with the most of them first."""
    query = call.query
    return call.store.timeline.search(
        query.q,
        run=query.run,
        agent=query.agent,
        kind=query.kind,
        since_us=query.since_us,
        until_us=query.until_us,
        limit=query.limit,
    )


@endpoint("GET", "/runs/{id}/cost", tag="runs")
def get_cost(call: Call[None, None]) -> dict[str, Any]:
    """Return the cost of a run, by agent, in tokens and euros."""
    store = call.store
    return cost_report(store.engine, store.space, call.path["id"], legacy=store.legacy)


@endpoint("GET", "/cost", tag="cost")
def get_costs(call: Call[CostQuery, None]) -> CostTable:
    """Return the cost of everything, or of one thread, by day, agent, model, kind, run, thread or tag."""
    query = call.query
    costs = call.store.cost if query.currency is None else call.store.cost.in_(query.currency)
    since_day, until_day = _day_from_text(query.since), _day_from_text(query.until)
    if query.by in ("run", "thread", "tag"):
        if query.agent or query.model or query.thread:
            raise InvalidInput(f"by={query.by} cannot be combined with agent, model or thread")
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
    return _cost_table(report, query.by)


@endpoint("GET", "/performance", tag="performance")
def get_performance(call: Call[PerformanceQuery, None]) -> PerformanceReport:
    """Return latency percentiles, time to first token, tokens per second and failures."""
    query = call.query
    return call.store.performance.report(
        query.by,
        agent=query.agent,
        run=query.run,
        since_us=query.since_us,
        until_us=query.until_us,
    )


ENDPOINTS: Final = (
    list_runs,
    get_run,
    get_tree,
    cancel_run,
    list_spans,
    get_span,
    compare_runs,
    compare_agents,
    replay,
    get_timeline,
    get_thread_timeline,
    search,
    get_cost,
    get_costs,
    get_performance,
)


def _tree_line(tree: RunTree) -> TreeLine:
    run = tree.run
    return TreeLine(
        id=run.id,
        agent=run.agent,
        thread=run.thread,
        sandbox=run.meta.get("sandbox_id"),
        namespace=run.namespace,
        status=tree.status,
        is_cancelled=tree.is_cancelled,
        is_over=tree.is_over,
        started_at=to_iso(run.started_at_us),
        attempts=tuple(map(_line_of_attempt, tree.attempts)),
        own=_tree_cost(tree.own),
        total=_tree_cost(tree.total),
        children=tuple(map(_tree_line, tree.children)),
    )


def _tree_cost(cost: Cost) -> TreeCost:
    return TreeCost(
        tokens=cost.tokens,
        cost=money(cost.nanos),
        unpriced_tokens=cost.unpriced_tokens,
        events=cost.events,
        errors=cost.errors,
    )


def _line_of_attempt(run: RunInfo) -> AttemptLine:
    return AttemptLine(
        id=run.id, agent=run.agent, thread=run.thread, status=run.status, started_at=to_iso(run.started_at_us)
    )


def _run_lines(store: Store, runs: Sequence[RunInfo]) -> tuple[RunLine, ...]:
    previews = store.runs.previews(runs)
    saved = saved_threads(store.engine, store.space, {(each.thread, each.namespace) for each in runs})
    archived = archived_runs(store.engine, store.space, [each.id for each in runs])
    lines: list[RunLine] = []
    for info in runs:
        total = store.cost.of_run(info.id, by="kind").total
        line = _line(
            info,
            previews[info.id],
            has_thread=(info.thread, info.namespace) in saved,
            tokens=total.tokens,
            usage=total.usage,
            cost=money(total.nanos),
            unpriced_tokens=total.unpriced_tokens,
            events=total.events,
            errors=total.errors,
            archived=info.id in archived,
        )
        lines.append(line)
    return tuple(lines)


def _legacy_line(info: RunInfo, cost: dict[str, Any] | None) -> RunLine:
    """A legacy run: its tokens are one sum, and its cost is in euros."""
    total: dict[str, Any] = {} if cost is None else cost["total"]
    euros = total.get("cost_eur")
    return _line(
        info,
        RunPreview(),
        has_thread=False,
        tokens=total.get("tokens", 0),
        usage=Usage(),
        cost=() if euros is None else (Money(currency=EUR, amount=euros),),
        unpriced_tokens=total.get("unpriced", {}).get("tokens", 0),
        events=0,
        errors=0,
    )


def _line(info: RunInfo, preview: RunPreview, **totals: Any) -> RunLine:
    return RunLine(
        id=info.id,
        agent=info.agent,
        thread=info.thread,
        namespace=info.namespace,
        input=preview.input,
        output=preview.output,
        error=preview.error,
        status=info.status,
        started_at=to_iso(info.started_at_us),
        started_at_us=info.started_at_us,
        ended_at=to_iso(info.ended_at_us),
        ended_at_us=info.ended_at_us,
        duration_us=info.duration_us,
        tags=info.tags,
        meta=info.meta,
        project_id=info.project_id,
        parent=info.parent,
        **totals,
    )


def _span_content(found: RecordContent, *, readable: bool) -> SpanContent:
    record, output = found.record, found.output
    content = SpanContent(record=record, input=found.input, output=output)
    if not readable:
        return content
    if record.kind == "message":
        shown = [read_message({"role": record.role or "message", "content": output})]
    else:
        shown = read_messages(output)
    return msgspec.structs.replace(content, readable_input=read_messages(found.input), readable_output=shown)


def money(nanos: dict[str, int]) -> tuple[Money, ...]:
    """Return nano-units by currency as amounts."""
    return tuple(
        Money(currency=currency, amount=float(from_nanos(each))) for currency, each in sorted(nanos.items())
    )


def _day_from_text(text: str | None) -> int | None:
    """Return a date such as ``2026-11-16`` as a day since 1970."""
    if text is None:
        return None
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise InvalidInput(f"{text!r} is not a date; write it like 2026-11-16") from None


def _cost_table(report: CostReport, by: CostBy) -> CostTable:
    parts = [_cost_line(each, by) for each in report.parts]
    if by == "day":
        parts.sort(key=lambda each: each.key or "")
    return CostTable(total=_cost_line(report.total, by), parts=tuple(parts))


def _cost_line(cost: Cost, by: CostBy) -> CostLine:
    key = cost.key
    if by == "day" and isinstance(key, int):
        key = to_iso(key * DAY_US)[:10]
    return CostLine(
        key=None if key is None else str(key),
        usage=cost.usage,
        tokens=cost.tokens,
        cost=money(cost.nanos),
        events=cost.events,
        errors=cost.errors,
        unpriced_tokens=cost.unpriced_tokens,
        unpriced_events=cost.unpriced_events,
        unconverted=money(cost.unconverted),
        rates=tuple(msgspec.to_builtins(each, str_keys=True) for each in cost.rates),
    )
