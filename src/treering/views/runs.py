"""The directory of runs: which there are, how they stand, and which of them died."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.query import EventQuery
from treering.errors import NotFound
from treering.views.comparison import AgentComparison, RunComparison, compare_agents, compare_runs
from treering.views.crashes import Pulse, mark
from treering.views.recording.runs import (
    CRASHED,
    RUN,
    RunInfo,
    ledger_scope,
    run_info,
    run_ref,
)
from treering.views.replaying import ReplayStep, replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.clock import Clock
    from treering.core.engine import Engine

_LISTED: Final = ":listed"
_LOOKED_AT: Final = 5_000
"""How many runs one page looks at before it gives back what it found."""


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, newest first, and where the next page begins (``None``: nothing more)."""

    runs: tuple[RunInfo, ...]
    cursor: str | None


class Runs:
    """The runs of one namespace."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock, namespace: str = "") -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._namespace = namespace

    def get(self, run_id: str) -> RunInfo:
        """One run; a run whose process died is `crashed`, whether or not someone has written that down."""
        found = self._engine.refs(self._space, [run_ref(run_id)])
        if not found:
            raise NotFound(f"there is no run {run_id!r}; runs.page() lists those that there are")
        return Pulse(self._engine, self._space).told(run_info(found[run_ref(run_id)]))

    def in_namespace(self, namespace: str) -> Runs:
        """The runs of another namespace."""
        return Runs(self._engine, self._space, clock=self._clock, namespace=namespace)

    def page(
        self,
        *,
        first: int = 100,
        cursor: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        thread: str | None = None,
        tag: str | None = None,
    ) -> RunPage:
        """Runs in the order in which they began, newest first, of those that all filters hold for.

        With filters a page may be short, or empty, and still have a cursor: so far nothing else was found.
        """
        wanted = {"agent": agent, "status": status, "thread": thread}
        given = {name: value for name, value in wanted.items() if value is not None}
        query = EventQuery(scope=ledger_scope(self._namespace), kinds=(RUN,), newest_first=True)
        pulse = Pulse(self._engine, self._space)
        runs: list[RunInfo] = []
        looked_at = 0
        while True:
            listed = self._engine.scan(self._space, query, after=cursor, limit=first - len(runs))
            cursor = listed.cursor
            looked_at += len(listed.records)
            names = [run_ref(record.event.id.removesuffix(_LISTED)) for record in listed.records]
            refs = self._engine.refs(self._space, names)
            told = (pulse.told(run_info(refs[name])) for name in names if name in refs)
            runs += [each for each in told if _matches(each, given) and (tag is None or tag in each.tags)]
            if cursor is None or len(runs) >= first or looked_at >= _LOOKED_AT:
                return RunPage(runs=tuple(runs), cursor=cursor)

    def each(self) -> Iterator[RunInfo]:
        """All runs, newest first, read a page at a time."""
        cursor = None
        while True:
            page = self.page(cursor=cursor)
            yield from page.runs
            if page.cursor is None:
                return
            cursor = page.cursor

    def compare(self, one: str, other: str, *more: str, currency: str | None = None) -> RunComparison:
        """Runs side by side: cost, tokens, time, steps, errors, and where each first leaves the first one.

        ``currency`` converts what they cost (see `Costs.in_`); without it every currency stands for itself.
        """
        infos = [self.get(run_id) for run_id in (one, other, *more)]
        return compare_runs(self._engine, self._space, infos, currency=currency)

    def compare_agents(
        self,
        *agents: str,
        since_day: int | None = None,
        until_day: int | None = None,
        currency: str | None = None,
    ) -> AgentComparison:
        """Agents side by side over all days or some (counted from 1970-01-01, UTC)."""
        return compare_agents(
            self._engine,
            self._space,
            agents,
            since_day=since_day,
            until_day=until_day,
            currency=currency,
        )

    def replay(self, run_id: str, *, speed: float | None = None) -> Iterator[ReplayStep]:
        """Step through a run as it happened: beginnings, ends, messages, and the chunks of streams.

        Without ``speed`` it does not wait; ``speed=1`` takes the time that the run took, 10 a tenth of it.
        """
        started_at_us = self.get(run_id).started_at_us
        return replay(self._engine, self._space, run_id, started_at_us=started_at_us, speed=speed)

    def mark_crashed(self, *, newest: int | None = None) -> list[RunInfo]:
        """Write down which runs (of the ``newest`` so many) died with their process; gives them back."""
        pulse = Pulse(self._engine, self._space)
        crashed = [info for info in islice(self.each(), newest) if info.status == CRASHED]
        names = [run_ref(info.id) for info in crashed if info.ended_at_us is None]
        refs = [ref for name in names for ref in self._engine.refs(self._space, [name]).values()]
        found = [mark(self._engine, self._space, ref, pulse, self._clock) for ref in refs]
        return [each for each in found if each is not None]


def _matches(info: RunInfo, wanted: dict[str, str]) -> bool:
    return all(getattr(info, name) == value for name, value in wanted.items())
