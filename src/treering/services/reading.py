"""A run, read back: what the endpoints ``/runs/{id}/timeline`` and ``/runs/{id}/cost`` give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.services.stores import current
from treering.views.run_reports import MAX_LINES, cost_report, timeline_report

if TYPE_CHECKING:
    from treering.services.sessions import Session


def get_run_timeline(
    run_id: str, limit: int = MAX_LINES, cursor: str | None = None, session: Session | None = None
) -> dict[str, Any]:
    """``{"events": [...], "next_cursor": ...}``: what happened, oldest first, at most ``limit`` lines.

    Pass ``next_cursor`` as ``cursor`` to go on. What a session has not committed is not in it.
    """
    store = current() if session is None else session.store
    store.flush()
    return timeline_report(store.engine, store.space, run_id, limit=limit, cursor=cursor, legacy=store.legacy)


def get_run_cost(run_id: str, session: Session | None = None) -> dict[str, Any]:
    """``{"by_agent": [...], "total": {...}}``: tokens and euros, each amount at the rate of its day."""
    store = current() if session is None else session.store
    store.flush()
    return cost_report(store.engine, store.space, run_id, legacy=store.legacy)
