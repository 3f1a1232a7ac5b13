"""Compare runs and agents: cost, tokens, time and errors, and where two runs first diverge.

The numbers come from roll-ups. The divergence is found by reading both runs side by side in order of time:
messages and spans are compared by kind, name and role, then by content, until one differs.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.batch import Usage
from treering.core.query import EventQuery, SumQuery, day_start_us, record_pages
from treering.core.text import text_of
from treering.errors import InvalidInput
from treering.runs.cost import Cost, Costs, is_step
from treering.runs.performance import Percentiles, Performance
from treering.runs.run import RunInfo
from treering.runs.span import MESSAGE, SPAN, RunRow, open_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.core.content import Address, Content
    from treering.core.engine import Engine

_PAGE: Final = 200
_MAX_TEXT: Final = 120

Difference = Literal["kind", "name", "role", "input", "content", "length"]


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one run. ``steps`` counts messages and spans by kind, ``errors`` failed spans."""

    run: RunInfo
    cost: Cost
    usage: Usage
    duration_us: int | None
    steps: dict[str, int]
    errors: int
    busy_us: dict[str, int]
    """Total time in spans by kind; parallel and nested spans each count in full."""

    @property
    def step_count(self) -> int:
        """All messages and spans."""
        return sum(self.steps.values())


class ComparedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run, with as much as is needed to recognise it."""

    event: str
    kind: str
    name: str | None
    role: str | None
    offset_us: int
    text: str


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first step that differs, and in what. A run that ended earlier has no step."""

    index: int
    """How many steps before it are the same."""
    what: Difference
    one: ComparedStep | None
    other: ComparedStep | None


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Runs side by side. ``divergences`` has one item for each run but the first, compared with the first."""

    runs: tuple[RunFigures, ...]
    divergences: tuple[Divergence | None, ...]

    @property
    def divergence(self) -> Divergence | None:
        """Where the second run diverges from the first; ``None`` when they are the same."""
        return self.divergences[0]


class AgentFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one agent over a period. ``runs`` counts ended runs that this agent started."""

    agent: str
    cost: Cost
    runs: int
    failed_runs: int
    steps: int
    errors: int
    latency: Percentiles | None
    """The duration of its runs."""

    @property
    def tokens_per_run(self) -> float | None:
        """``None`` without runs."""
        return self.cost.tokens / self.runs if self.runs else None


class AgentComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Agents side by side."""

    agents: tuple[AgentFigures, ...]


def compare_runs(
    engine: Engine, space: str, runs: Sequence[RunInfo], *, currency: str | None
) -> RunComparison:
    """Compare runs with the first one."""
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
    """Compare agents over a range of days (counted from 1970-01-01, UTC)."""
    if not agents:
        raise InvalidInput("no agents to compare. List agents with: treering cost --by agent")
    costs = Costs(engine, space) if currency is None else Costs(engine, space).in_(currency)
    figures: list[AgentFigures] = []
    for agent in agents:
        query = SumQuery(grain="day", by=("kind",), agent=agent, since_day=since_day, until_day=until_day)
        sums = [each for each in engine.sums(space, query) if is_step(str(each.group[0]))]
        report = Performance(engine, space).report(
            "run", agent=agent, since_us=_day_us(since_day), until_us=_day_us(until_day, 1)
        )
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
    return AgentComparison(agents=tuple(figures))


def _figures(engine: Engine, space: str, info: RunInfo, currency: str | None) -> RunFigures:
    sums = engine.sums(space, SumQuery(grain="run", by=("kind",), key=info.id))
    steps = {str(each.group[0]).removeprefix(SPAN): each for each in sums if is_step(str(each.group[0]))}
    costs = Costs(engine, space) if currency is None else Costs(engine, space).in_(currency)
    total = costs.of_run(info.id).total
    return RunFigures(
        run=info,
        cost=total,
        usage=total.usage,
        duration_us=info.duration_us,
        steps={kind: each.events for kind, each in steps.items()},
        errors=total.errors,
        busy_us={kind: each.duration_us for kind, each in steps.items() if kind != MESSAGE},
    )


def _divergence(engine: Engine, space: str, one: RunInfo, other: RunInfo) -> Divergence | None:
    pairs = zip_longest(_steps(engine, space, one.id), _steps(engine, space, other.id))
    for index, (first, second) in enumerate(pairs):
        what = _difference(first, second)
        if what is not None:
            return Divergence(
                index=index,
                what=what,
                one=None if first is None else first.describe(one),
                other=None if second is None else second.describe(other),
            )
    return None


class _Step:
    """A row with its input and output."""

    __slots__ = ("input", "output", "row")

    def __init__(self, row: RunRow, input: Content | None, output: Content | None) -> None:
        self.row = row
        self.input = input
        self.output = output

    def describe(self, info: RunInfo) -> ComparedStep:
        """Return the step for display."""
        event = self.row.event
        content = self.output or self.input
        return ComparedStep(
            event=event.id,
            kind=self.row.span_kind,
            name=event.name,
            role=event.role,
            offset_us=event.ts_us - info.started_at_us,
            text="" if content is None else " ".join(text_of(content).split())[:_MAX_TEXT],
        )


def _difference(one: _Step | None, other: _Step | None) -> Difference | None:
    if one is None or other is None:
        return "length"
    first, second = one.row.event, other.row.event
    if first.kind != second.kind:
        return "kind"
    if first.name != second.name:
        return "name"
    if first.role != second.role:
        return "role"
    if one.input != other.input:
        return "input"
    return "content" if one.output != other.output else None


def _steps(engine: Engine, space: str, run_id: str) -> Iterator[_Step]:
    for records in record_pages(engine, space, EventQuery(run=run_id, order="time"), limit=_PAGE):
        rows = [RunRow(record) for record in records if is_step(record.event.kind)]
        inputs = {row.seq: _input(engine, space, row) for row in rows}
        addresses = dict.fromkeys(
            each for row in rows for each in (inputs[row.seq], row.event.body) if each is not None
        )
        contents = dict(zip(addresses, engine.get(space, list(addresses)) if addresses else [], strict=True))
        for row in rows:
            input_address, body = inputs[row.seq], row.event.body
            yield _Step(
                row,
                None if input_address is None else contents[input_address],
                None if body is None else contents[body],
            )


def _input(engine: Engine, space: str, row: RunRow) -> Address | None:
    """Return the address of a span's input, which for an announced span is in its open row."""
    if row.input is not None or not (row.is_span and row.is_announced):
        return row.input
    query = EventQuery(
        run=row.event.run,
        ids=(open_id(row.event.id),),
        since_us=row.event.ts_us,
        until_us=row.event.ts_us + 1,
        order="time",
    )
    found = engine.scan(space, query, limit=1).records
    return found[0].event.body if found else None


def _day_us(day: int | None, offset: int = 0) -> int | None:
    return None if day is None else day_start_us(day + offset)
