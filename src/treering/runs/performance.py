"""Performance: latency percentiles, error rates, time to first token and tokens per second.

Percentiles cannot be kept as running totals, so they are computed from the journal, newest events first,
until the period is covered or enough events were read; a report says when there were more. An event is never
committed before it happens, so the first one that was committed before the period ends the scan.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.encoding import decode_json
from treering.core.query import EventQuery, each_record
from treering.core.rollups import ERROR
from treering.errors import InvalidInput
from treering.runs.run import CRASHED, RUN
from treering.runs.span import FIRST_TOKEN, MESSAGE, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.core.batch import Event
    from treering.core.engine import Engine
    from treering.core.records import Record

PerformanceBy = Literal["agent", "model", "tool", "kind", "run"]
"""What to group: agent spans, model calls, tool calls, spans of each kind, or whole runs (by agent)."""

_PAGE: Final = 2_000
_LLM: Final = SPAN + "llm"
_FAILED: Final = frozenset({ERROR, CRASHED})
_KINDS: Final[dict[PerformanceBy, tuple[str, ...]]] = {
    "agent": (SPAN + "agent",),
    "model": (_LLM, MESSAGE),
    "tool": (SPAN + "tool",),
    "kind": (),
    "run": (RUN,),
}
"""Which events to read; empty for all."""


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a time in microseconds. Each percentile is a measured value (nearest rank)."""

    p50_us: int
    p90_us: int
    p95_us: int
    p99_us: int
    max_us: int
    mean_us: int


class PerformanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """The performance of one agent, model or tool; ``key`` is its name, ``None`` for the total."""

    key: str | None
    calls: int
    errors: int
    error_rate: float
    """Failed calls divided by all calls."""
    latency: Percentiles | None
    """``None`` when no call has a duration."""
    first_token: Percentiles | None
    """Time to the first token, of streamed calls."""
    output_tokens: int
    tokens_per_second: float | None
    """Output tokens per second of generation, which starts at the first token where that is known."""


class PerformanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, the most called first. ``is_partial``: older events of the period were not read."""

    by: PerformanceBy
    total: PerformanceRow
    rows: tuple[PerformanceRow, ...]
    events: int
    is_partial: bool


class Performance:
    """Performance reports of one space."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def report(
        self,
        by: PerformanceBy = "model",
        *,
        since_us: int | None = None,
        until_us: int | None = None,
        agent: str | None = None,
        run: str | None = None,
        most: int = 50_000,
    ) -> PerformanceReport:
        """Report latency, failures and speed over a period, reading at most the newest ``most`` events."""
        if most < 1:
            raise InvalidInput(f"most={most}; read at least one event")
        calls = _Calls(by)
        scanned = 0
        is_partial = False
        for record in self._newest(run, by):
            if since_us is not None and record.committed_at_us < since_us:
                break
            if scanned == most:
                is_partial = True
                break
            scanned += 1
            event = record.event
            in_period = (since_us is None or event.ts_us >= since_us) and (
                until_us is None or event.ts_us < until_us
            )
            if in_period and agent in (None, event.agent):
                calls.add(event)
        return calls.report(scanned, is_partial=is_partial)

    def _newest(self, run: str | None, by: PerformanceBy) -> Iterator[Record]:
        order = "seq" if run is None else "time"
        query = EventQuery(kinds=_KINDS[by], run=run, order=order, newest_first=True)
        return each_record(self._engine, self._space, query, limit=_PAGE)


class _Call(msgspec.Struct):
    """One call; ``None`` for what is not known."""

    is_error: bool
    duration_us: int | None = None
    first_us: int | None = None
    output: int = 0


class _Calls:
    """Calls grouped by key, while the journal is read."""

    def __init__(self, by: PerformanceBy) -> None:
        self._by: PerformanceBy = by
        self._calls: dict[str, list[_Call]] = {}
        self._spans: dict[str, _Call] = {}
        self._runs: set[str] = set()
        self._messages: list[tuple[str | None, str | None, int]] = []
        """Messages with usage: parent span, model, output tokens."""

    def add(self, event: Event) -> None:
        """Count one event; newer ones come first."""
        if event.kind == MESSAGE and event.usage is not None:
            self._messages.append((event.span, event.model, event.usage.output))
            return
        key = _key(event, self._by)
        if key is None:
            return
        if self._by == "run" and event.run is not None:
            if event.run in self._runs:
                return  # it was found crashed, and went on
            self._runs.add(event.run)
        call = _Call(event.status in _FAILED, event.duration_us, _first_token(event))
        if event.usage is not None:
            call.output = event.usage.output
        self._calls.setdefault(key, []).append(call)
        if event.span is not None and event.kind == _LLM:
            self._spans[event.span] = call

    def report(self, events: int, *, is_partial: bool) -> PerformanceReport:
        """Return the report."""
        for span, model, output in self._messages:
            call = None if span is None else self._spans.get(span)
            if call is not None:
                call.output += output  # an answer recorded below its call
            elif self._by == "model" and model is not None:
                self._calls.setdefault(model, []).append(_Call(is_error=False, output=output))
        all_calls = [call for calls in self._calls.values() for call in calls]
        rows = [_row(key, calls) for key, calls in self._calls.items()]
        return PerformanceReport(
            by=self._by,
            total=_row(None, all_calls),
            rows=tuple(sorted(rows, key=lambda row: (-row.calls, row.key or ""))),
            events=events,
            is_partial=is_partial,
        )


def percentiles(times_us: Sequence[int]) -> Percentiles | None:
    """Return the percentiles of some times; ``None`` for no times."""
    if not times_us:
        return None
    ordered = sorted(times_us)
    at = [ordered[max(ceil(len(ordered) * share / 100) - 1, 0)] for share in (50, 90, 95, 99)]
    return Percentiles(
        p50_us=at[0],
        p90_us=at[1],
        p95_us=at[2],
        p99_us=at[3],
        max_us=ordered[-1],
        mean_us=round(sum(ordered) / len(ordered)),
    )


def _key(event: Event, by: PerformanceBy) -> str | None:
    if by == "run":
        return (event.agent or "") if event.kind == RUN and event.run is not None else None
    if not event.kind.startswith(SPAN):
        return None
    if by == "kind":
        return event.kind.removeprefix(SPAN)
    if by == "tool":
        return event.name if event.kind == SPAN + "tool" else None
    if by == "agent":
        return event.agent if event.kind == SPAN + "agent" else None
    return event.model if event.kind == _LLM else None


def _row(key: str | None, calls: Sequence[_Call]) -> PerformanceRow:
    generating_us = generated = 0
    for call in calls:
        if call.output and call.duration_us:
            generating_us += max(call.duration_us - (call.first_us or 0), 0)
            generated += call.output
    errors = sum(call.is_error for call in calls)
    return PerformanceRow(
        key=key,
        calls=len(calls),
        errors=errors,
        error_rate=errors / len(calls) if calls else 0.0,
        latency=percentiles([call.duration_us for call in calls if call.duration_us is not None]),
        first_token=percentiles([call.first_us for call in calls if call.first_us is not None]),
        output_tokens=sum(call.output for call in calls),
        tokens_per_second=generated * 1e6 / generating_us if generating_us else None,
    )


def _first_token(event: Event) -> int | None:
    if event.data is None or FIRST_TOKEN.encode() not in event.data:
        return None
    first: Any = decode_json(event.data).get(FIRST_TOKEN)
    return first if isinstance(first, int) else None
