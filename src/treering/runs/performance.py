"""Performance: latency percentiles, error rates, time to first token and tokens per second.

Reports come from the roll-ups (the grains ``call``, ``first_token`` and ``generation`` of `core.rollups`), so
they look at everything and cost as much as there are days, names and buckets of times, not events. Only what
the roll-ups do not tell apart is counted from events: one run, and the parts of days at the ends of a period.
**Invariant:** both go through `deltas`, so a report is the same wherever its figures come from.

A run that was found crashed or unfinished may still end, and would then count twice. So the roll-ups count
the runs that ended themselves, and the others are those that are listed with such a status now.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from treering.core.clock import DAY_US
from treering.core.query import (
    MAX_PAGE,
    EventQuery,
    ListQuery,
    SumQuery,
    day_start_us,
    each_listed,
    each_record,
)
from treering.core.rollups import (
    FAILED,
    MESSAGE,
    NO_TIME,
    SPAN,
    TOOL,
    bucket_of,
    deltas,
    merge,
    summarise,
    time_of_bucket,
)
from treering.runs.run import CRASHED, RUN, RUN_LIST, UNFINISHED, find_run, run_from_ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from treering.core.engine import Engine
    from treering.core.query import Dimension, Grain
    from treering.core.records import Ref, Sum
    from treering.core.rollups import Measures, RollupKey
    from treering.runs.run import RunInfo

PerformanceBy = Literal["agent", "model", "tool", "kind", "run"]
"""What to group: agent spans, model calls, tool calls, spans of each kind, or whole runs (by agent)."""

_LLM: Final = SPAN + "llm"


class _Group(NamedTuple):
    """What a report groups: calls of these kinds (none: all spans), by this dimension."""

    dimension: Dimension
    kinds: tuple[str, ...]


_GROUPS: Final[dict[PerformanceBy, _Group]] = {
    "agent": _Group("agent", (SPAN + "agent",)),
    "model": _Group("model", (_LLM, MESSAGE)),
    "tool": _Group("key", (TOOL,)),
    "kind": _Group("kind", ()),
    "run": _Group("agent", (RUN,)),
}


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of a time in microseconds. The mean is exact; each percentile and the maximum is
    within 2 % of the measured value that has this rank (`core.rollups.RELATIVE_ERROR`).
    """

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
    """Rows, the most called first."""

    by: PerformanceBy
    total: PerformanceRow
    rows: tuple[PerformanceRow, ...]


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
    ) -> PerformanceReport:
        """Report latency, failures and speed of all calls that began in a period."""
        source = _Source(
            self._engine, self._space, since_us=since_us, until_us=until_us, agent=agent, run=run
        )
        group = _GROUPS[by]
        calls: dict[str, _Calls] = {}
        for grain in ("call", "first_token", "generation"):
            for each in source.sums(grain, group):
                key, kind, bucket = str(each.group[0]), str(each.group[1]), int(each.group[2])
                if by == "kind":
                    if not kind.startswith(SPAN):
                        continue
                    key = kind.removeprefix(SPAN)
                if key or by == "run":
                    calls.setdefault(key, _Calls()).add(grain, bucket, each)
        if by == "run":
            for info in source.concluded_runs():
                calls.setdefault(info.agent or "", _Calls()).add_run(info)
        total = _Calls()
        for each in calls.values():
            total.merge(each)
        rows = [each.row(key) for key, each in calls.items()]
        return PerformanceReport(
            by=by,
            total=total.row(None),
            rows=tuple(sorted(rows, key=lambda row: (-row.calls, row.key or ""))),
        )


class _Source:
    """Where the figures of a report come from: whole days of the roll-ups, and events for the rest."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        *,
        since_us: int | None,
        until_us: int | None,
        agent: str | None,
        run: str | None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._since_us = since_us
        self._until_us = until_us
        self._agent = agent
        self._run = run
        self._first_day = None if since_us is None else -(-since_us // DAY_US)
        """The first whole day of the period, and the last."""
        self._last_day = None if until_us is None else until_us // DAY_US - 1
        self._counted: dict[RollupKey, Measures] | None = None

    def sums(self, grain: Grain, group: _Group) -> Iterator[Sum]:
        """Yield sums by the dimension of the group, kind and bucket."""
        kinds = group.kinds or (None,)
        if self._counted is None:
            self._counted = self._count_events(group.kinds)
        for kind in kinds:
            query = SumQuery(
                grain=grain,
                by=(group.dimension, "kind", "bucket"),
                kind=kind,
                agent=self._agent,
                since_day=self._first_day,
                until_day=self._last_day,
            )
            if self._run is None:
                yield from self._engine.sums(self._space, query)
            yield from summarise(
                self._counted, msgspec.structs.replace(query, since_day=None, until_day=None)
            )

    def _count_events(self, kinds: tuple[str, ...]) -> dict[RollupKey, Measures]:
        """Return the totals of the events that roll-ups cannot tell apart from others."""
        counted: dict[RollupKey, Measures] = {}
        for since_us, until_us in self._parts_of_days():
            query = EventQuery(run=self._run, kinds=kinds, since_us=since_us, until_us=until_us, order="time")
            for record in each_record(self._engine, self._space, query, limit=MAX_PAGE):
                merge(counted, deltas([record.event]))
        return counted

    def _parts_of_days(self) -> list[tuple[int | None, int | None]]:
        """Return the parts of the period that are not whole days; for one run all of it."""
        since_us, until_us = self._since_us, self._until_us
        if self._run is not None or (
            self._first_day is not None and self._last_day is not None and self._first_day > self._last_day
        ):
            return [(since_us, until_us)]
        parts: list[tuple[int | None, int | None]] = []
        if since_us is not None and self._first_day is not None and since_us % DAY_US:
            parts.append((since_us, day_start_us(self._first_day)))
        if until_us is not None and self._last_day is not None and until_us % DAY_US:
            parts.append((day_start_us(self._last_day + 1), until_us))
        return parts

    def concluded_runs(self) -> Iterator[RunInfo]:
        """Yield the runs of the period that did not end themselves and are known to be over."""
        for ref in self._concluded_refs():
            info = run_from_ref(ref)
            if (
                info.status in (CRASHED, UNFINISHED)
                and self._agent in (None, info.agent)
                and (self._since_us is None or info.started_at_us >= self._since_us)
                and (self._until_us is None or info.started_at_us < self._until_us)
            ):
                yield info

    def _concluded_refs(self) -> Iterable[Ref]:
        if self._run is not None:
            ref = find_run(self._engine, self._space, self._run)
            yield from () if ref is None else (ref,)
            return
        for status in (CRASHED, UNFINISHED):
            query = ListQuery(list=RUN_LIST, status=status, since_us=self._since_us, until_us=self._until_us)
            yield from each_listed(self._engine, self._space, query)


class _Calls:
    """The calls of one key, added up."""

    def __init__(self) -> None:
        self.calls = self.errors = self.output_tokens = self.generated = self.generating_us = 0
        self.latency = Sketch()
        self.first_token = Sketch()

    def add(self, grain: Grain, bucket: int, total: Sum) -> None:
        """Add a sum of one bucket."""
        if grain == "call":
            self.calls += total.events
            self.errors += total.errors
            self.output_tokens += total.usage.output
            if bucket != NO_TIME:
                self.latency.add(bucket, total.events, total.duration_us)
        elif grain == "first_token":
            self.first_token.add(bucket, total.events, total.duration_us)
        else:
            self.generated += total.usage.output
            self.generating_us += total.duration_us

    def add_run(self, info: RunInfo) -> None:
        """Add a run that did not end itself."""
        self.calls += 1
        self.errors += info.status in FAILED
        if info.duration_us is not None:
            self.latency.add(bucket_of(info.duration_us), 1, info.duration_us)

    def merge(self, more: _Calls) -> None:
        """Add the calls of another key."""
        self.calls += more.calls
        self.errors += more.errors
        self.output_tokens += more.output_tokens
        self.generated += more.generated
        self.generating_us += more.generating_us
        self.latency.merge(more.latency)
        self.first_token.merge(more.first_token)

    def row(self, key: str | None) -> PerformanceRow:
        """Return the row of a report."""
        return PerformanceRow(
            key=key,
            calls=self.calls,
            errors=self.errors,
            error_rate=self.errors / self.calls if self.calls else 0.0,
            latency=self.latency.percentiles(),
            first_token=self.first_token.percentiles(),
            output_tokens=self.output_tokens,
            tokens_per_second=self.generated * 1e6 / self.generating_us if self.generating_us else None,
        )


class Sketch:
    """A distribution of times: how many are in each bucket, and their sum."""

    def __init__(self, counts: Mapping[int, int] | None = None, sum_us: int = 0) -> None:
        self._counts = dict(counts or {})
        self._sum_us = sum_us

    def add(self, bucket: int, count: int, sum_us: int) -> None:
        """Add times of one bucket."""
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self._sum_us += sum_us

    def merge(self, more: Sketch) -> None:
        """Add all times of another sketch."""
        for bucket, count in more._counts.items():
            self.add(bucket, count, 0)
        self._sum_us += more._sum_us

    def percentiles(self) -> Percentiles | None:
        """Return the percentiles (nearest rank); ``None`` for no times."""
        count = sum(self._counts.values())
        if not count:
            return None
        ranks = [max(ceil(count * share / 100), 1) for share in (50, 90, 95, 99, 100)]
        found: list[int] = []
        below = 0
        for bucket in sorted(self._counts):
            below += self._counts[bucket]
            while len(found) < len(ranks) and below >= ranks[len(found)]:
                found.append(time_of_bucket(bucket))
        return Percentiles(
            p50_us=found[0],
            p90_us=found[1],
            p95_us=found[2],
            p99_us=found[3],
            max_us=found[4],
            mean_us=round(self._sum_us / count),
        )
