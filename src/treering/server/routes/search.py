"""Finding what was said and done by its words."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from treering.runs.search import MAX_HITS, Found
from treering.server.endpoints import Call, endpoint

TimestampUs = Annotated[int, Meta(ge=0, le=2**53)]


class SearchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which words, and where. Filters that are left out do not filter; times are microseconds since 1970."""

    q: Annotated[str, Meta(max_length=1000)]
    run: str | None = None
    agent: str | None = None
    kind: str | None = None
    since_us: TimestampUs | None = None
    until_us: TimestampUs | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = 20


@endpoint("GET", "/search", tag="runs")
def search(call: Call[SearchQuery, None]) -> Found:
    """Messages, inputs and outputs that hold the words, those with the most of them first."""
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


ENDPOINTS: Final = (search,)
