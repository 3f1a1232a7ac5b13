"""Runs and agents side by side, and a run step by step."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.runs.compare import AgentComparison, RunComparison
from treering.server.endpoints import Call, endpoint
from treering.server.routes.runs import day_of_text

Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$")]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]


class CompareQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """In which currency amounts are; without it, each in its own."""

    currency: Currency | None = None


class AgentsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which agents, over which days (``2026-11-16``)."""

    agent: Annotated[tuple[str, ...], Meta(min_length=1, max_length=50)]
    since: Date | None = None
    until: Date | None = None
    currency: Currency | None = None


class ReplayQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which steps: ``limit`` of them behind the first ``skip``; ``contents=true`` says what they held."""

    contents: bool = False
    skip: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=5000)] = 1000


class ReplayLine(Struct, frozen=True, kw_only=True):
    """A moment of a run; ``chunk`` is a piece of a stream, ``content`` what was said, given or returned."""

    offset_us: int
    wait_us: int
    type: str
    label: str
    agent: str | None
    ref: dict[str, str]
    meta: dict[str, Any]
    chunk: str | None
    content: Any = None


class Replay(Struct, frozen=True, kw_only=True):
    """The steps, and how many to skip for the next ones (``None``: that was all)."""

    steps: tuple[ReplayLine, ...]
    next_skip: int | None


@endpoint("GET", "/runs/{id}/compare/{other}", tag="runs")
def compare_runs(call: Call[CompareQuery, None]) -> RunComparison:
    """What two runs took, and the first step at which they differ."""
    return call.store.runs.compare(call.path["id"], call.path["other"], currency=call.query.currency)


@endpoint("GET", "/compare/agents", tag="runs")
def compare_agents(call: Call[AgentsQuery, None]) -> AgentComparison:
    """What agents took over all days or some."""
    query = call.query
    return call.store.runs.compare_agents(
        *query.agent,
        since_day=day_of_text(query.since),
        until_day=day_of_text(query.until),
        currency=query.currency,
    )


@endpoint("GET", "/runs/{id}/replay", tag="runs")
def replay(call: Call[ReplayQuery, None]) -> Replay:
    """A run as it happened: beginnings, ends, messages, and the chunks of streams with their times."""
    query = call.query
    steps = islice(call.store.runs.replay(call.path["id"]), query.skip, query.skip + query.limit + 1)
    lines = [
        ReplayLine(
            offset_us=step.offset_us,
            wait_us=step.wait_us,
            type=step.event.type if step.chunk is None else "chunk",
            label=step.label,
            agent=step.event.agent,
            ref=step.event.ref,
            meta=step.event.meta,
            chunk=step.chunk,
            content=step.content if query.contents else None,
        )
        for step in steps
    ]
    is_more = len(lines) > query.limit
    return Replay(steps=tuple(lines[: query.limit]), next_skip=query.skip + query.limit if is_more else None)


ENDPOINTS: Final = (compare_runs, compare_agents, replay)
