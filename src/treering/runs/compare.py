"""Comparing runs and agents: what they took, and where two runs first went apart.

Figures come from the roll-ups. The divergence is found by walking both runs side by side in the order of
time: messages and spans are compared by kind, name and role, then by their content, a page at a time, and
the walk ends at the first step that differs.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.batch import Usage
from treering.core.content import Address
from treering.core.encoding import decode_json
from treering.core.paging import record_pages
from treering.core.query import EventQuery, SumQuery, day_start_us
from treering.core.text import text_of
from treering.errors import InvalidInput
from treering.runs.cost import Cost, Costs
from treering.runs.performance import Percentiles, Performance
from treering.runs.run import RunInfo
from treering.runs.span import MESSAGE, SPAN, input_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.core.records import Record

_PAGE: Final = 200
_SHOWN: Final = 120

Difference = Literal["kind", "name", "role", "input", "content", "length"]


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run took. ``steps`` counts messages and spans by kind; ``errors`` the spans that failed."""

    run: RunInfo
    cost: Cost
    usage: Usage
    duration_us: int | None
    steps: dict[str, int]
    errors: int
    busy_us: dict[str, int]
    """Time in spans by kind, added up: parallel and nested ones count each for itself."""

    @property
    def step_count(self) -> int:
        """Messages and spans together."""
        return sum(self.steps.values())


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run, as much as is needed to recognise it."""

    event: str
    kind: str
    name: str | None
    role: str | None
    offset_us: int
    text: str


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first step that differs, and in what; a run that ends earlier has no step there."""

    index: int
    """How many steps are the same before it."""
    what: Difference
    one: Step | None
    other: Step | None


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs side by side. ``divergences`` are those of the second, third, ... run from the first one."""

    runs: tuple[RunFigures, ...]
    divergences: tuple[Divergence | None, ...]

    @property
    def divergence(self) -> Divergence | None:
        """Where the second run goes another way than the first; ``None`` when they are the same."""
        return self.divergences[0]


class AgentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent took over a period. ``runs`` are those that it was started as, and that are over."""

    agent: str
    cost: Cost
    runs: int
    failed_runs: int
    steps: int
    errors: int
    latency: Percentiles | None
    """Of its runs."""

    @property
    def tokens_per_run(self) -> float | None:
        """``None`` without any run."""
        return self.cost.tokens / self.runs if self.runs else None


class AgentComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Agents side by side. ``is_partial``: latencies and failures are those of the newest events only."""

    agents: tuple[AgentFigures, ...]
    is_partial: bool


def compare_runs(
    engine: Engine, space: str, runs: Sequence[RunInfo], *, currency: str | None
) -> RunComparison:
    """Figures of all, and where each goes another way than the first."""
    return RunComparison(
        runs=tuple(_figures(engine, space, info, currency) for info in runs),
        divergences=tuple(_divergence(engine, space, runs[0], info) for info in runs[1:]),
    )


def compare_agents(
    engine: Engine,
    space: str,
    agents: Sequence[str],
    *,
    since_day: int | None,
    until_day: int | None,
    currency: str | None,
) -> AgentComparison:
    """What each agent took over some days (counted from 1970-01-01, UTC)."""
    if not agents:
        raise InvalidInput("name the agents to compare; cost.of_days(by='agent') lists them")
    costs = Costs(engine, space) if currency is None else Costs(engine, space).in_(currency)
    figures: list[AgentFigures] = []
    is_partial = False
    for agent in agents:
        query = SumQuery(grain="day", by=("kind",), agent=agent, since_day=since_day, until_day=until_day)
        sums = [each for each in engine.sums(space, query) if _is_step(str(each.group[0]))]
        report = Performance(engine, space).report(
            "run", agent=agent, since_us=_day_us(since_day), until_us=_day_us(until_day, 1)
        )
        is_partial = is_partial or report.is_partial
        figures.append(
            AgentFigures(
                agent=agent,
                cost=costs.of_days(since_day=since_day, until_day=until_day, agent=agent).total,
                runs=report.total.calls,
                failed_runs=report.total.errors,
                steps=sum(each.events for each in sums),
                errors=sum(each.errors for each in sums),
                latency=report.total.latency,
            )
        )
    return AgentComparison(agents=tuple(figures), is_partial=is_partial)


def _figures(engine: Engine, space: str, info: RunInfo, currency: str | None) -> RunFigures:
    sums = engine.sums(space, SumQuery(grain="run", by=("kind",), key=info.id))
    steps = {str(each.group[0]).removeprefix(SPAN): each for each in sums if _is_step(str(each.group[0]))}
    costs = Costs(engine, space) if currency is None else Costs(engine, space).in_(currency)
    total = costs.of_run(info.id).total
    return RunFigures(
        run=info,
        cost=total,
        usage=total.usage,
        duration_us=info.duration_us,
        steps={kind: each.events for kind, each in steps.items()},
        errors=sum(each.errors for each in steps.values()),
        busy_us={kind: each.duration_us for kind, each in steps.items() if kind != MESSAGE},
    )


def _divergence(engine: Engine, space: str, one: RunInfo, other: RunInfo) -> Divergence | None:
    both = zip_longest(_steps(engine, space, one.id), _steps(engine, space, other.id))
    for index, (mine, theirs) in enumerate(both):
        what = _difference(mine, theirs)
        if what is not None:
            return Divergence(
                index=index,
                what=what,
                one=None if mine is None else mine.shown(one),
                other=None if theirs is None else theirs.shown(other),
            )
    return None


class _Walked:
    """A step on the way: its row, what went in and what came out."""

    __slots__ = ("content", "given", "record")

    def __init__(self, record: Record, given: Content | None, content: Content | None) -> None:
        self.record = record
        self.given = given
        self.content = content

    def shown(self, info: RunInfo) -> Step:
        """For people."""
        event = self.record.event
        told = self.content or self.given
        return Step(
            event=event.id,
            kind=event.kind.removeprefix(SPAN),
            name=event.name,
            role=event.role,
            offset_us=event.ts_us - info.started_at_us,
            text="" if told is None else " ".join(text_of(told).split())[:_SHOWN],
        )


def _difference(one: _Walked | None, other: _Walked | None) -> Difference | None:
    if one is None or other is None:
        return "length"
    mine, theirs = one.record.event, other.record.event
    if mine.kind != theirs.kind:
        return "kind"
    if mine.name != theirs.name:
        return "name"
    if mine.role != theirs.role:
        return "role"
    if one.given != other.given:
        return "input"
    return "content" if one.content != other.content else None


def _steps(engine: Engine, space: str, run_id: str) -> Iterator[_Walked]:
    for records in record_pages(engine, space, EventQuery(run=run_id, order="time"), limit=_PAGE):
        rows = [record for record in records if _is_step(record.event.kind)]
        inputs = {record.seq: _given(engine, space, record) for record in rows}
        wanted = [each for record in rows for each in (inputs[record.seq], record.event.body) if each]
        unique = list(dict.fromkeys(wanted))
        found = dict(zip(unique, engine.get(space, unique) if unique else [], strict=True))
        for record in rows:
            given, body = inputs[record.seq], record.event.body
            yield _Walked(record, found[given] if given else None, found[body] if body else None)


def _given(engine: Engine, space: str, record: Record) -> Address | None:
    """Where the input of a span is; an announced one has it in the row of its beginning."""
    event = record.event
    if event.data is None or not event.kind.startswith(SPAN):
        return None
    data = decode_json(event.data)
    told = input_of(event, data)
    if told is not None:
        return told
    if not data.get("announced"):
        return None
    query = EventQuery(
        run=event.run,
        ids=(f"{event.id}:open",),
        since_us=event.ts_us,
        until_us=event.ts_us + 1,
        order="time",
    )
    found = engine.scan(space, query, limit=1).records
    return found[0].event.body if found else None


def _is_step(kind: str) -> bool:
    return kind == MESSAGE or kind.startswith(SPAN)


def _day_us(day: int | None, more: int = 0) -> int | None:
    return None if day is None else day_start_us(day + more)
