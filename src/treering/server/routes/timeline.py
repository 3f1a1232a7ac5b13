"""Timelines of runs and threads, and search."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from treering.runs.search import MAX_HITS, SearchResult
from treering.runs.timeline import MAX_EVENTS, TimelineFilter, page_to_dict, timeline_report
from treering.server.endpoints import Call, endpoint

TimestampUs = Annotated[int, Meta(ge=0, le=2**53)]


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


ENDPOINTS: Final = (get_timeline, get_thread_timeline, search)
