"""Commands about totals: ``treering cost``, ``performance`` and ``growth``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, plain, rows, say, show, size
from treering.cli.options import (
    JsonOption,
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from treering.runs.cost import CostReport
    from treering.runs.performance import Percentiles, PerformanceRow

DaysOption = Annotated[
    int | None, typer.Option("--days", metavar="N", min=1, help="Only the last N days (UTC) [all].")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (cost, performance, growth):
        app.command()(command)


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
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show tokens and cost."""
    from treering.core.clock import DAY_US, to_iso
    from treering.runs.cost import format_cost

    with place.existing() as opened:
        report = _report(opened, by, run, days, currency)
    table = [(by.upper(), "TOKENS", "COST", "EVENTS", "ERRORS")]
    for part in (*report.parts, report.total):
        key = part.key
        name = to_iso(key * DAY_US)[:10] if by == "day" and isinstance(key, int) else str(key or "-")
        shown = "total" if part is report.total else clean(name)
        table.append((shown, f"{part.tokens:,}", format_cost(part), str(part.events), str(part.errors)))
    show(plain(report), rows(table), as_json=as_json)
    if report.total.unpriced_tokens:
        say(f"?: {report.total.unpriced_tokens:,} tokens without a price are not included")
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
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show latency, error rates and tokens per second."""
    from treering.core.clock import DAY_US

    with place.existing() as opened:
        since_us = None if days is None else opened.clock.now_us() - days * DAY_US
        report = opened.performance.report(by, agent=agent, since_us=since_us)
    table = [(by.upper(), "CALLS", "FAILED", "P50", "P95", "P99", "FIRST TOKEN", "TOKENS/S")]
    table += [_table_row(row) for row in report.rows]
    show(plain(report), rows(table) if report.rows else ["no calls"], as_json=as_json)
    if report.is_partial:
        say(f"only the newest {report.events:,} events were read")


@takes_store
def growth(
    *,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show how the store grows."""
    with place.existing() as opened:
        found = opened.growth()
    table = [("DAY", "RUNS", "EVENTS", "GREW", "TOTAL")]
    table += [
        (day.date, str(day.runs), f"{day.events:,}", size(day.bytes), size(day.total_bytes))
        for day in found.days[-30:]
    ]
    rate, later = size(round(found.bytes_per_day)), size(found.in_30_days_bytes)
    trend = f"{rate} per day over the last {found.days_looked_at} days; {later} in 30 days at this rate"
    show(plain(found), [*rows(table), trend] if found.days else ["the store is empty"], as_json=as_json)


def _report(opened: Any, by: str, run: str | None, days: int | None, currency: str | None) -> CostReport:
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
        opened.runs.get(run)
        return costs.of_run(run, by=by)
    if by in groups:
        return groups[by](since_day=since_day)
    return costs.of_days(by=by, since_day=since_day)


def _table_row(row: PerformanceRow) -> tuple[str, ...]:
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
