"""How fast and how sound: latency, failures, speed, and how the store grows."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from treering.maintenance.stats import Growth
from treering.runs.performance import PerformanceBy, PerformanceReport
from treering.server.endpoints import Call, endpoint

Moment = Annotated[int, Meta(ge=0, le=2**53)]


class PerformanceQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what, of which agent or run, over which time (microseconds since 1970)."""

    by: PerformanceBy = "model"
    agent: str | None = None
    run: str | None = None
    since_us: Moment | None = None
    until_us: Moment | None = None
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000


class GrowthQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of how many days the trend is."""

    last_days: Annotated[int, Meta(ge=1, le=3650)] = 7


@endpoint("GET", "/performance", tag="performance")
def get_performance(call: Call[PerformanceQuery, None]) -> PerformanceReport:
    """Latency percentiles, time to first token, tokens a second and failures, of the newest events."""
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
    """What each day brought, and where that leads."""
    return call.store.growth(last_days=call.query.last_days)


ENDPOINTS: Final = (get_performance, get_growth)
