"""Cost, performance and the growth of the store."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from treering.core.batch import Usage
from treering.core.clock import DAY_US, to_iso
from treering.core.money import from_nanos
from treering.errors import InvalidInput
from treering.maintenance.stats import Growth
from treering.runs.cost import By, Cost, CostReport, cost_report
from treering.runs.performance import PerformanceBy, PerformanceReport
from treering.server.endpoints import Call, endpoint

CostBy = By | Literal["run", "thread", "tag"]
Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$")]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
TimestampUs = Annotated[int, Meta(ge=0, le=2**53)]


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
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000


class GrowthQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many days the trend covers."""

    last_days: Annotated[int, Meta(ge=1, le=3650)] = 7


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
    since_day, until_day = day_from_text(query.since), day_from_text(query.until)
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
    return _table(report, query.by)


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
        most=query.most,
    )


@endpoint("GET", "/store/growth", tag="store")
def get_growth(call: Call[GrowthQuery, None]) -> Growth:
    """Return the growth of the store by day, with the trend."""
    return call.store.growth(last_days=call.query.last_days)


ENDPOINTS: Final = (get_cost, get_costs, get_performance, get_growth)


def money(nanos: dict[str, int]) -> tuple[Money, ...]:
    """Return nano-units by currency as amounts."""
    return tuple(
        Money(currency=currency, amount=float(from_nanos(each))) for currency, each in sorted(nanos.items())
    )


def day_from_text(text: str | None) -> int | None:
    """Return a date such as ``2026-11-16`` as a day since 1970."""
    if text is None:
        return None
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError:
        raise InvalidInput(f"{text!r} is not a date; write it like 2026-11-16") from None


def _table(report: CostReport, by: CostBy) -> CostTable:
    parts = [_line(each, by) for each in report.parts]
    if by == "day":
        parts.sort(key=lambda each: each.key or "")
    return CostTable(total=_line(report.total, by), parts=tuple(parts))


def _line(cost: Cost, by: CostBy) -> CostLine:
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
