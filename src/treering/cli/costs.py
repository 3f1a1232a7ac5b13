"""Commands that count: ``treering cost``, ``performance`` and ``growth``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, rows, say, show, size
from treering.cli.options import (
    JsonOption,
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from treering.runs.cost import CostReport
    from treering.runs.performance import Figures, Percentiles

DaysOption = Annotated[
    int | None, typer.Option("--days", metavar="N", min=1, help="Only the last N days (UTC) [all].")
]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    for command in (cost, performance, growth):
        app.command()(command)


@takes_store
def cost(
    *,
    by: Annotated[
        Literal["agent", "model", "kind", "day", "tag", "run", "thread"],
        typer.Option(help="What to group by."),
    ] = "agent",
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only this run.")] = None,
    days: DaysOption = None,
    currency: Annotated[
        str | None, typer.Option(metavar="CODE", help="Convert amounts, like EUR [each in its own].")
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show what runs took, in tokens and money."""
    from treering.cli.runs import money
    from treering.core.clock import DAY_US, to_iso

    with place.existing() as opened:
        report = _report(opened, by, run, days, currency)
    table = [(by.upper(), "TOKENS", "COST", "EVENTS", "ERRORS")]
    for part in (*report.parts, report.total):
        key = part.key
        name = to_iso(key * DAY_US)[:10] if by == "day" and isinstance(key, int) else str(key or "-")
        shown = "total" if part is report.total else clean(name)
        table.append((shown, f"{part.tokens:,}", money(part), str(part.events), str(part.errors)))
    show(_plain(report), rows(table), as_json=as_json)
    if report.total.unpriced_tokens:
        say(f"?: {report.total.unpriced_tokens:,} tokens have no price and are in no sum")
    for rate in report.total.rates:
        say(f"1 {rate.currency} = {rate.rate:.4f} {rate.into} on {rate.date}")


@takes_store
def performance(
    *,
    by: Annotated[
        Literal["model", "tool", "agent", "kind", "run"], typer.Option(help="What to group by.")
    ] = "model",
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this agent.")] = None,
    days: DaysOption = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Show latency, failures and speed."""
    from treering.core.clock import DAY_US

    with place.existing() as opened:
        since_us = None if days is None else opened.clock.now_us() - days * DAY_US
        report = opened.performance.report(by, agent=agent, since_us=since_us)
    table = [(by.upper(), "CALLS", "FAILED", "P50", "P95", "P99", "FIRST TOKEN", "TOKENS/S")]
    table += [_figures(row) for row in report.rows]
    show(_plain(report), rows(table) if report.rows else ["nothing to measure"], as_json=as_json)
    if report.is_partial:
        say(f"of the newest {report.events:,} events only")


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
    trend = f"{rate} a day in the last {found.days_looked_at} days; {later} in 30 days like these"
    show(_plain(found), [*rows(table), trend] if found.days else ["nothing is stored"], as_json=as_json)


def _report(opened: Any, by: str, run: str | None, days: int | None, currency: str | None) -> CostReport:
    from treering.core.clock import day_of
    from treering.errors import InvalidInput

    costs = opened.cost if currency is None else opened.cost.in_(currency)
    groups = {"tag": costs.of_tags, "run": costs.of_runs, "thread": costs.of_threads}
    since_day = None if days is None else day_of(opened.clock.now_us()) - days + 1
    if run is not None:
        if by in groups or days is not None:
            raise InvalidInput(
                "--run is one run as a whole; leave --days out, and group by agent, model or kind"
            )
        opened.runs.get(run)
        return costs.of_run(run, by=by)
    if by in groups:
        return groups[by](since_day=since_day)
    return costs.of_days(by=by, since_day=since_day)


def _figures(row: Figures) -> tuple[str, ...]:
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


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)
