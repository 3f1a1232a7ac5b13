"""Timelines: what happened in a run, or in a thread with all its runs, whole or narrowed."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from treering.runs.reports import MAX_LINES, plain_page, timeline_report
from treering.runs.timeline import Only
from treering.server.endpoints import Call, endpoint


class TimelineQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of a timeline; ``types=all`` shows more than the five usual kinds.

    Filters that are left out do not filter: ``span`` (and all below it), ``agent``, ``kind`` (``message`` or
    the kind of a span), ``status`` (of a span; ``running`` if it has not ended) and ``text`` (all its words).
    """

    limit: Annotated[int, Meta(ge=1, le=MAX_LINES)] = MAX_LINES
    cursor: str | None = None
    types: Literal["all"] | None = None
    span: str | None = None
    agent: str | None = None
    kind: str | None = None
    status: str | None = None
    text: Annotated[str, Meta(max_length=1000)] | None = None

    @property
    def only(self) -> Only:
        """What it is narrowed to."""
        return Only(span=self.span, agent=self.agent, kind=self.kind, status=self.status, text=self.text)


class ThreadTimelineQuery(TimelineQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of a thread's timeline, as that of a run."""

    namespace: str = ""


@endpoint("GET", "/runs/{id}/timeline", tag="runs")
def get_timeline(call: Call[TimelineQuery, None]) -> dict[str, Any]:
    """What happened in a run, in order, oldest first."""
    query = call.query
    return timeline_report(
        call.store.engine,
        call.store.space,
        call.path["id"],
        limit=query.limit,
        cursor=query.cursor,
        everything=query.types == "all",
        only=query.only,
        legacy=call.store.legacy,
    )


@endpoint("GET", "/threads/{id}/timeline", tag="threads")
def get_thread_timeline(call: Call[ThreadTimelineQuery, None]) -> dict[str, Any]:
    """What happened in all runs of a thread, in order, oldest first; nothing for one without runs."""
    query = call.query
    page = call.store.timeline.of_thread(
        call.path["id"],
        namespace=query.namespace,
        first=query.limit,
        cursor=query.cursor,
        everything=query.types == "all",
        span=query.span,
        agent=query.agent,
        kind=query.kind,
        status=query.status,
        text=query.text,
    )
    return plain_page(page)


ENDPOINTS: Final = (get_timeline, get_thread_timeline)
