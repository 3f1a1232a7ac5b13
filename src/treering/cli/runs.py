"""Commands about runs: what they did, and what they cost.

``treering runs``, ``tree``, ``cancel``, ``timeline``, ``replay``, ``compare``, ``search``, ``tail``,
``cost``, ``performance``, ``growth``.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from treering.cli.console import (
    clean,
    clean_json,
    clock_time,
    counted,
    dim,
    each_of,
    limited,
    money,
    one_line,
    plain,
    raw,
    rows,
    said_value,
    say,
    show,
    size,
    status_text,
    when,
)
from treering.cli.options import (
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.runs.compare import ComparedStep, Divergence, RunFigures
    from treering.runs.cost import Cost, CostReport
    from treering.runs.follow import LiveEvent
    from treering.runs.listing import RunPreview, Runs
    from treering.runs.performance import Percentiles, PerformanceRow
    from treering.runs.replay import ReplayStep
    from treering.runs.run import RunInfo
    from treering.runs.search import Hit, SearchResult
    from treering.runs.timeline import TimelineEvent
    from treering.store import Store
    from treering.threads.search import Found


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run, or 'last'.")]
AgentOption = Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Filter by agent.")]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="Filter by kind (message, tool, llm, agent, ...)."),
]
DaysOption = Annotated[
    int | None, typer.Option("--days", metavar="N", min=1, help="Only the last N days (UTC) [all].")
]

_COLOURS: Final = {"llm": "cyan", "tool": "yellow", "agent": "magenta", "message": "green", "run": "blue"}
_MAX_LINE: Final = 100


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (runs, tree, cancel, timeline, replay, compare, search, tail, cost, performance, growth):
        app.command()(command)


@takes_store
def runs(
    *,
    agent: AgentOption = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Filter by status (ok, error, running, crashed, unfinished)."),
    ] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Filter by tag.")] = None,
    limit: LimitOption = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first, with their question and answer.

    Examples:
        treering runs
        treering runs --agent planner --status error
        treering runs --limit 100 --json
    """
    from treering.core.ids import short_ids
    from treering.runs.cost import format_cost

    with place.existing() as opened:
        listing = opened.runs.in_namespace(user_namespace)
        infos = limited(listing.each(agent=agent, status=status, tag=tag), limit)
        costs = {info.id: opened.cost.of_run(info.id).total for info in infos}
        previews = listing.previews(infos)
        values = run_values(opened, listing, infos) if as_json else []
    ids = short_ids(info.id for info in infos)
    table = [("RUN", "AGENT", "STATUS", "STARTED", "TOOK", "TOKENS", "COST", "THREAD", "SAID")]
    table += [
        (
            clean(ids[info.id]),
            clean(info.agent or ""),
            status_text(info.status),
            when(info.started_at),
            seconds(info.duration_us),
            f"{costs[info.id].tokens:,}",
            format_cost(costs[info.id]),
            clean(info.thread or ""),
            _gist(previews[info.id]),
        )
        for info in infos
    ]
    show(values, rows(table) if infos else ["no runs"], as_json=as_json)


def run_values(opened: Store, listing: Runs, infos: Sequence[RunInfo]) -> list[dict[str, Any]]:
    """Return runs for JSON, each with what it was asked, what came of it, and its cost."""
    from treering.threads.directory import saved_threads

    previews = listing.previews(infos)
    saved = saved_threads(opened.engine, opened.space, {(each.thread, each.namespace) for each in infos})
    values: list[dict[str, Any]] = []
    for info in infos:
        total = opened.cost.of_run(info.id, by="kind").total
        values.append(
            {
                **{name: value for name, value in plain(info).items() if name != "recorders"},
                "duration_us": info.duration_us,
                "has_thread": (info.thread, info.namespace) in saved,
                **plain(previews[info.id]),
                **_cost(total),
            }
        )
    return values


def _cost(cost: Cost) -> dict[str, Any]:
    """Return a cost for JSON."""
    return {
        "tokens": cost.tokens,
        "usage": plain(cost.usage),
        "cost": money(cost.nanos),
        "unpriced_tokens": cost.unpriced_tokens,
        "events": cost.events,
        "errors": cost.errors,
    }


def _part(cost: Cost, by: str) -> dict[str, Any]:
    """Return a row of a report for JSON."""
    return {
        "key": _key(cost, by),
        **_cost(cost),
        "unpriced_events": cost.unpriced_events,
        "unconverted": money(cost.unconverted),
        "rates": plain(cost.rates),
    }


def _key(cost: Cost, by: str) -> str | None:
    from treering.core.clock import DAY_US, to_iso

    if by == "day" and isinstance(cost.key, int):
        return to_iso(cost.key * DAY_US)[:10]
    return None if cost.key is None else str(cost.key)


def _gist(found: RunPreview) -> str:
    """Return what a run was asked, and what came of it."""
    answer = typer.style(clean(found.error), fg="red") if found.error else clean(found.output or "")
    return " → ".join(filter(None, (clean(one_line(found.input or "", 48)), answer)))


@takes_store
def tree(
    run: RunArgument,
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show a run with its sub-agents, attempts and costs.

    Examples:
        treering tree last
        treering tree 01m7npw --json
    """
    from treering.core.ids import short_ids
    from treering.runs.cost import format_cost

    with place.existing() as opened:
        found = opened.runs.tree(run_id(opened, run))
    nodes = list(found.each())
    ids = short_ids(each.run.id for _, each in nodes)
    table = [("RUN", "AGENT", "STATUS", "ATTEMPTS", "OWN", "TOTAL", "THREAD")]
    table += [
        (
            "  " * depth + clean(ids[each.run.id]),
            clean(each.run.agent or ""),
            status_text(each.status),
            str(len(each.attempts)),
            format_cost(each.own),
            format_cost(each.total),
            clean(each.run.thread or _sandbox_of(each.run)),
        )
        for depth, each in nodes
    ]
    show(found.to_dict(), rows(table), as_json=as_json)


def _sandbox_of(run: RunInfo) -> str:
    sandbox = run.meta.get("sandbox_id")
    return "" if sandbox is None else f"sandbox {sandbox}"


@takes_store
def cancel(
    run: RunArgument,
    *,
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Who cancels [the user of this machine].")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Ask a run and its sub-agents to stop.

    Agents of treering stop before their next step, and no further effect starts. Open questions are closed.
    Runs that wait, or whose process is gone, are cancelled at once.

    Examples:
        treering cancel last --reason "wrong customer"
    """
    import getpass

    with place.existing() as opened:
        asked = opened.runs.cancel(run_id(opened, run), by=by or getpass.getuser(), reason=reason)
    lines = [f"{clean(each.id)}  {clean(each.agent or '')}  {status_text(each.status)}" for each in asked]
    show([plain(each) for each in asked], lines or ["nothing to cancel: the run has ended"], as_json=as_json)


@takes_store
def timeline(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The id of a run, or 'last'.", show_default=False)
    ] = None,
    *,
    thread: Annotated[
        str | None, typer.Option(metavar="THREAD", help="Show all runs of this thread.")
    ] = None,
    span: Annotated[
        str | None, typer.Option(metavar="ID", help="Filter by span and its descendants.")
    ] = None,
    agent: AgentOption = None,
    kind: KindOption = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Filter spans by status (ok, error, running).")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Filter by words.")] = None,
    limit: LimitOption = 500,
    everything: Annotated[bool, typer.Option("--everything", help="Show everything recorded.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the timeline of a run or a thread.

    Examples:
        treering timeline last
        treering timeline last --kind tool --status error
        treering timeline --thread support/alice
    """
    from treering.core.ids import short_ids
    from treering.runs.timeline import TimelineFilter

    if (run is None) == (thread is None):
        raise typer.BadParameter("name a run, or a thread with --thread")
    timeline_filter = TimelineFilter(span=span, agent=agent, kind=kind, status=status, text=text)
    with place.existing() as opened:
        start_us: int | None = None
        if run is None:
            read = partial(opened.timeline.of_thread, thread or "", namespace=user_namespace)
        else:
            info = opened.runs.load(run_id(opened, run))
            read, start_us = partial(opened.timeline.of_run, info.id), info.started_at_us
        pages = each_of(partial(read, everything=everything, filter=timeline_filter))
        events = limited((event for page in pages for event in page.events), limit)
        contents = _contents(opened, events)
    if start_us is None:
        start_us = events[0].ts_us if events else 0
    spans = short_ids(filter(None, map(_span_of, events)))
    table = [
        (
            f"{(event.ts_us - start_us) / 1e6:.3f}",
            clean(spans.get(_span_of(event), "")),
            clean(event.agent or ""),
            _what(event, contents[index]),
        )
        for index, event in enumerate(events)
    ]
    lines = rows([("AT", "SPAN", "AGENT", "WHAT"), *table])
    values = [
        {**_event_to_plain(event), "content": raw(contents[index])} for index, event in enumerate(events)
    ]
    show(values, lines if events else ["no events"], as_json=as_json)


@takes_store
def replay(
    run: RunArgument,
    *,
    speed: Annotated[
        float | None, typer.Option(metavar="X", help="Replay in real time, X times as fast [no wait].")
    ] = None,
    limit: LimitOption = 0,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Replay a run step by step, with the chunks of streams.

    With --json, print one line per step.

    Examples:
        treering replay last
        treering replay last --speed 4
    """
    from treering.cli.console import words

    with place.existing() as opened:
        for step in islice(opened.runs.replay(run_id(opened, run), speed=speed), limit or None):
            if as_json:
                typer.echo(_step_to_json(step))
                continue
            content = "" if step.content is None else f": {one_line(words(step.content), 100)}"
            label = f"  {step.chunk!r}" if step.chunk is not None else f"{step.label}{content}"
            typer.echo(f"{step.offset_us / 1e6:>10.3f}  {clean(label)}")


@takes_store
def compare(
    one: RunArgument,
    other: RunArgument,
    *,
    currency: Annotated[
        str | None, typer.Option(metavar="CODE", help="Convert amounts to a currency, such as EUR.")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs and find the first difference.

    Examples:
        treering compare run_01k9abcdefgh run_01k9xyabcdef --currency EUR
    """
    from treering.core.ids import short_ids

    with place.existing() as opened:
        found = opened.runs.compare(run_id(opened, one), run_id(opened, other), currency=currency)
    ids = short_ids(each.run.id for each in found.runs)
    lines = rows([("", *(clean(ids[each.run.id]) for each in found.runs)), *_figures(found.runs)])
    show(plain(found), [*lines, *_difference(found.divergence)], as_json=as_json)


@takes_store
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words to search for.")],
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Filter by run.")] = None,
    agent: AgentOption = None,
    kind: KindOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Show at most N hits.")
    ] = 20,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Search threads, runs and memory; with a filter, runs only.

    Examples:
        treering search "refund page"
        treering search timeout --kind tool --agent planner
    """
    with place.existing() as opened:
        if run is None and agent is None and kind is None:
            everything = opened.search(text, limit=min(limit, 100))
            lines = _everything(everything)
            show(plain(everything), lines, as_json=as_json)
            _warn(everything)
            return
        run = None if run is None else opened.runs.load(run_id(opened, run)).id
        found = opened.timeline.search(text, run=run, agent=agent, kind=kind, limit=limit)
    show(plain(found), _hits(found.hits), as_json=as_json)
    if not found.hits:
        say("no hits")
    _warn(found)


def _everything(found: Found) -> list[str]:
    """Return the lines of hits, grouped by kind."""
    lines: list[str] = []
    if found.threads:
        lines.append("threads")
        for each in found.threads:
            where = f"  {clean(each.namespace)}" if each.namespace else ""
            lines.append(f"  {when(each.updated_at)}  {clean(each.thread)}{where}")
            if each.snippet:
                lines.append(f"      {clean(each.role or 'message')}: {one_line(clean(each.snippet), 160)}")
    if found.runs:
        lines += ["runs", *(f"  {line}" for line in _hits(found.runs))]
    if found.memory:
        lines.append("memory")
        for hit in found.memory:
            where = f"  {clean(hit.namespace)}" if hit.namespace else ""
            lines.append(f"  {clean(hit.document.id)}{where}")
            lines.append(f"      {one_line(clean(hit.document.content), 160)}")
    if not found:
        say("no hits")
    return lines


def _hits(hits: Sequence[Hit]) -> list[str]:
    from treering.core.ids import short_ids

    lines: list[str] = []
    ids = short_ids(hit.run for hit in hits)
    for hit in hits:
        what = hit.role if hit.kind == "message" else f"{hit.name} {hit.part}"
        lines.append(
            f"{when(hit.ts)}  {clean(ids[hit.run])}  {clean(hit.agent or '-')}  {clean(what or hit.kind)}"
        )
        lines.append(f"    {one_line(clean(hit.snippet), 160)}")
    return lines


def _warn(found: Found | SearchResult) -> None:
    if found.is_partial:
        say("results are incomplete: too many events contain these words; use rarer words or --run")
    if found.not_indexed:
        say(f"{found.not_indexed:,} older events are not indexed yet, run: treering index")


@takes_store
def tail(
    *,
    place: StorePlace,
    after: Annotated[
        int | None, typer.Option("--after", metavar="SEQ", help="Start after this sequence number [now].")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Filter by run.")] = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="THREAD", help="Filter by thread.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="AGENT", help="Filter by agent.")] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Filter by kind, such as span, span.tool or message."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="N", help="Stop after N seconds without an event.")
    ] = None,
    shape: Annotated[
        Literal["journal", "timeline"],
        typer.Option("--shape", help="Print rows as they are stored, or the events of a timeline."),
    ] = "journal",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Stop after N events; 0 for never.")
    ] = 0,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Follow new events of all processes, until Ctrl-C.

    With --json, print one line per event.

    Examples:
        treering tail
        treering tail --thread support/alice --shape timeline
        treering tail --kind span --json --limit 1
    """
    import msgspec

    with place.existing() as opened:
        follow = opened.timeline.live if shape == "timeline" else opened.timeline.follow
        events: Iterable[LiveEvent | TimelineEvent] = follow(
            after=after,
            run=None if run is None else _id_if_known(opened, run),
            thread=thread,
            namespace=user_namespace,
            agent=agent,
            kinds=kinds or (),
            seconds=seconds,
        )
        last_day = ""
        for event in islice(events, limit or None):
            thread, content = _live_content(opened, event)
            if as_json:
                value = {**_event_to_plain(event), "content": raw(content)}
                typer.echo(clean_json(msgspec.json.encode(value)))
            else:
                day, time = clock_time(event.ts_us)
                if day != last_day:
                    typer.echo(dim(day))
                    last_day = day
                typer.echo(_live_line(event, time, content, thread))
            sys.stdout.flush()


@takes_store
def cost(
    *,
    by: Annotated[
        Literal["agent", "model", "kind", "day", "tag", "run", "thread"],
        typer.Option(help="Group by this."),
    ] = "agent",
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Filter by run.")] = None,
    days: DaysOption = None,
    currency: Annotated[
        str | None, typer.Option(metavar="CODE", help="Convert amounts to a currency, such as EUR.")
    ] = None,
    limit: LimitOption = 50,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show tokens and cost.

    Examples:
        treering cost
        treering cost --by day --days 7
        treering cost --by model --run last --currency EUR
    """
    from treering.runs.cost import format_cost

    with place.existing() as opened:
        report = _cost_report(opened, by, run, days, currency)
    table = [(by.upper(), "TOKENS", "COST", "EVENTS", "ERRORS")]
    parts = limited(report.parts, limit)
    for part in (*parts, report.total):
        shown = "total" if part is report.total else clean(_key(part, by) or "-")
        table.append((shown, f"{part.tokens:,}", format_cost(part), str(part.events), str(part.errors)))
    values = {"total": _part(report.total, by), "parts": [_part(each, by) for each in parts]}
    show(values, rows(table), as_json=as_json)
    if report.total.unpriced_tokens:
        say(f"?: {counted(report.total.unpriced_tokens, 'tokens')} without a price are not included")
    for rate in report.total.rates:
        say(f"1 {rate.currency} = {rate.rate:.4f} {rate.into} on {rate.date}")


@takes_store
def performance(
    *,
    by: Annotated[
        Literal["model", "tool", "agent", "kind", "run"], typer.Option(help="Group by this.")
    ] = "model",
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by agent.")] = None,
    days: DaysOption = None,
    limit: LimitOption = 50,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show latency, error rates and tokens per second.

    Examples:
        treering performance
        treering performance --by tool --days 7
    """
    from treering.core.clock import day_of
    from treering.core.query import day_start_us

    with place.existing() as opened:
        since_us = None if days is None else day_start_us(day_of(opened.clock.now_us()) - days + 1)
        report = opened.performance.report(by, agent=agent, since_us=since_us)
    table = [(by.upper(), "CALLS", "FAILED", "P50", "P95", "P99", "FIRST TOKEN", "TOKENS/S")]
    shown = limited(report.rows, limit)
    table += [_performance_row(row) for row in shown]
    show(
        {**plain(report), "rows": plain(shown)}, rows(table) if report.rows else ["no calls"], as_json=as_json
    )


@takes_store
def growth(
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Show the last N days; 0 for all.")
    ] = 30,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show how the store grows.

    Examples:
        treering growth
        treering growth --limit 7
    """
    import msgspec

    with place.existing() as opened:
        found = opened.growth()
    found = msgspec.structs.replace(found, days=found.days[-limit:])
    table = [("DAY", "RUNS", "EVENTS", "GREW", "TOTAL")]
    table += [
        (day.date, str(day.runs), f"{day.events:,}", size(day.bytes), size(day.total_bytes))
        for day in found.days
    ]
    rate, later = size(round(found.bytes_per_day)), size(found.in_30_days_bytes)
    trend = f"{rate} per day over the last {found.days_looked_at} days; {later} in 30 days at this rate"
    show(plain(found), [*rows(table), trend] if found.days else ["the store is empty"], as_json=as_json)


def _cost_report(opened: Any, by: str, run: str | None, days: int | None, currency: str | None) -> CostReport:
    from treering.core.clock import day_of
    from treering.errors import InvalidInput

    costs = opened.cost if currency is None else opened.cost.in_(currency)
    groups = {"tag": costs.of_tags, "run": costs.of_runs, "thread": costs.of_threads}
    since_day = None if days is None else day_of(opened.clock.now_us()) - days + 1
    if run is not None:
        if by in groups or days is not None:
            raise InvalidInput(
                "--run cannot be combined with --days, and groups by agent, model or kind only"
            )
        return costs.of_run(opened.runs.load(run_id(opened, run)).id, by=by)
    if by in groups:
        return groups[by](since_day=since_day)
    return costs.of_days(by=by, since_day=since_day)


def _span_of(event: TimelineEvent) -> str:
    """Return the id that --span accepts; messages, checkpoints and runs are not spans."""
    from treering.runs.timeline import RESULT

    if ".span." not in event.type and not event.type.startswith("tool."):
        return ""
    found = (event.ref.get(name, "") for name in ("span_id", "tool_call_id", "tool_result_id"))
    return next(filter(None, found), "").removesuffix(RESULT)


def _performance_row(row: PerformanceRow) -> tuple[str, ...]:
    def at(times: Percentiles | None, name: str) -> str:
        return "" if times is None else f"{getattr(times, name) / 1e6:.3f}s"

    return (
        clean(row.key or "-"),
        str(row.calls),
        f"{row.error_rate:.1%}",
        at(row.latency, "p50_us"),
        at(row.latency, "p95_us"),
        at(row.latency, "p99_us"),
        at(row.first_token, "p50_us"),
        "" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}",
    )


def seconds(duration_us: int | None) -> str:
    """Return a duration as text."""
    return "" if duration_us is None else f"{duration_us / 1e6:.2f}s"


def run_id(store: Any, run: str) -> str:
    """Return the id of a run; that of the newest for ``last``."""
    if run != "last":
        return run
    from treering.errors import NotFound

    newest = next(iter(store.runs.page(first=1).runs), None)
    if newest is None:
        raise NotFound("the store has no runs")
    return newest.id


def _id_if_known(store: Any, run: str) -> str:
    """Return the id of a run; one that does not exist yet may be followed as well."""
    from treering.errors import NotFound

    try:
        return store.runs.load(run_id(store, run)).id
    except NotFound:
        return run


def _figures(found: tuple[RunFigures, ...]) -> list[tuple[str, ...]]:
    from treering.runs.cost import format_cost

    kinds = sorted({kind for each in found for kind in each.steps})
    usage = ("input", "cache_read", "cache_write", "cache_write_1h", "output", "reasoning", "other")
    lines = [
        ("agent", *(clean(each.run.agent or "") for each in found)),
        ("status", *(status_text(each.run.status) for each in found)),
        ("took", *(seconds(each.duration_us) for each in found)),
        ("cost", *(format_cost(each.cost) for each in found)),
    ]
    lines += [
        (f"{name} tokens", *(f"{getattr(each.usage, name):,}" for each in found))
        for name in usage
        if any(getattr(each.usage, name) for each in found)
    ]
    lines += [(f"{kind} steps", *(str(each.steps.get(kind, 0)) for each in found)) for kind in kinds]
    lines.append(("errors", *(str(each.errors) for each in found)))
    return lines


def _difference(divergence: Divergence | None) -> list[str]:
    if divergence is None:
        return ["no differences"]
    lines = [f"{divergence.index} equal steps, then a different {divergence.what}:"]
    for sign, step in (("-", divergence.one), ("+", divergence.other)):
        lines.append(f"{sign} {_describe_step(step)}")
    return lines


def _describe_step(step: ComparedStep | None) -> str:
    if step is None:
        return "(end of the run)"
    who = step.role or step.name or ""
    return f"{step.offset_us / 1e6:.3f}  {step.kind} {clean(who)}: {one_line(clean(step.text), 100)}"


def _step_to_json(step: ReplayStep) -> str:
    import msgspec

    event = plain(step.event)
    fields = {
        "offset_us": step.offset_us,
        "wait_us": step.wait_us,
        "type": event["type"],
        "label": step.label,
        "agent": event["agent"],
        "ref": event["ref"],
        "meta": event["meta"],
        "chunk": step.chunk,
        "content": raw(step.content),
    }
    return clean_json(msgspec.json.encode(fields))


def _event_to_plain(event: LiveEvent | TimelineEvent) -> Any:
    return plain(event)


def _contents(opened: Store, events: Sequence[LiveEvent | TimelineEvent]) -> list[Any]:
    """Return what each event says: a message, an input or an output; ``None`` if it says nothing."""
    addresses = [event.body for event in events if event.body is not None]
    found = iter(opened.timeline.content(*addresses) if addresses else ())
    return [None if event.body is None else next(found) for event in events]


def _live_content(opened: Store, event: LiveEvent | TimelineEvent) -> tuple[str | None, Any]:
    """Return what an event says; for a checkpoint, the thread and the last message."""
    from treering.errors import NotFound
    from treering.runs.timeline import TimelineEvent
    from treering.threads.checkpoint import KIND, last_messages
    from treering.threads.history import find_by_beginning

    if isinstance(event, TimelineEvent) or event.kind != KIND:
        return None, _contents(opened, [event])[0]
    try:
        checkpoint = find_by_beginning(opened.engine, opened.space, event.id)
    except NotFound:  # it was deleted meanwhile
        return event.thread, None
    return checkpoint.thread, last_messages(opened.engine, opened.space, [checkpoint]).get(checkpoint.id)


def _what(event: TimelineEvent, content: Any) -> str:
    """Return a line of a timeline: what happened, and the beginning of what was said."""
    kind = "message" if event.type == "message" else event.type.partition(".")[0]
    failed = event.meta.get("status") not in (None, "ok")
    label = typer.style(clean(event.label), fg="red" if failed else _COLOURS.get(kind))
    return label if content is None else f"{label}: {_said(kind, content)}"


def _said(kind: str, content: Any) -> str:
    """Return the beginning of a message, or of an input or output."""
    from treering.runs.messages import preview

    if kind in {"message", "checkpoint"}:
        return clean(preview(content, _MAX_LINE))
    return said_value(content, _MAX_LINE)


def _live_line(event: LiveEvent | TimelineEvent, time: str, content: Any, thread: str | None = None) -> str:
    """Time, agent, what happened and was said, duration and cost."""
    from treering.runs.timeline import TimelineEvent

    who = typer.style(f"{clean(event.agent or '-')[:16]:<16}", bold=True)
    if isinstance(event, TimelineEvent):
        return "  ".join((dim(time), who, _what(event, content), dim(f"#{event.seq}")))
    form, _, kind = event.kind.partition(".")
    word = kind or form
    said = "" if content is None else f": {_said(form, content)}"
    parts = [
        dim(time),
        who,
        typer.style(f"{clean(word)[:12]:<12}", fg=_COLOURS.get(word)),
        clean(f"{thread}  " if thread else "") + clean(_describe_event(event))[:_MAX_LINE] + said,
    ]
    totals = _totals(event)
    if totals:
        parts.append(dim(totals))
    if event.status not in (None, "ok"):
        parts.append(status_text(event.status, clean(event.status)))
    parts.append(dim(f"#{event.seq}"))
    return "  ".join(parts)


def _describe_event(event: LiveEvent) -> str:
    if event.role is not None:
        return f"{event.role}: {event.model or event.name or ''}".rstrip(": ")
    dots = "..." if event.kind.startswith("open.") else ""
    from treering.core.ids import short_id

    return f"{event.name or short_id(event.run or event.id.removesuffix(':listed'))}{dots}"


def _totals(event: LiveEvent) -> str:
    totals: list[str] = []
    if event.duration_us is not None:
        totals.append(f"{event.duration_us / 1e6:.2f}s")
    if event.usage is not None:
        totals.append(f"{counted(event.usage.total, 'tokens')}")
    if event.cost is not None:
        totals.append(f"{event.cost.rstrip('0').rstrip('.') or '0'} {event.currency}")
    return ", ".join(totals)
