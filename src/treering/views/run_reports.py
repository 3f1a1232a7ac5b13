"""Reports of one run as plain data: its timeline and its cost in the shapes of the REST endpoints.

``cost_eur`` is the sum of all amounts in euros, each at the rate of its day. It is ``None`` where something
was used and nothing of it has a price, and 0 only where nothing was used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from treering.core.clock import day_of
from treering.core.money import from_nanos, to_nanos
from treering.errors import InvalidInput, MissingExtra, NotFound
from treering.views.costs import Costs
from treering.views.exchange import EUR, exchange
from treering.views.legacy import MAX_LINES, LegacyRuns
from treering.views.recording.runs import run_ref
from treering.views.timeline import MESSAGE, Timeline

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.views.costs import Cost
    from treering.views.sieve import Only
    from treering.views.timeline import TimelineEvent, TimelinePage


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
