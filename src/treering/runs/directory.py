"""The directory of runs: which there are, how they stand, and which of them died."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec import structs

from treering.core.batch import Draft
from treering.core.clock import from_datetime
from treering.core.ids import thread_key
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.runs.compare import AgentComparison, RunComparison, compare_agents, compare_runs
from treering.runs.recorder import lease_name
from treering.runs.replay import ReplayStep, replay
from treering.runs.run import (
    CRASHED,
    RUN,
    RUNNING,
    RUNS,
    RunInfo,
    ledger_scope,
    run_info,
    run_ref,
    write_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref


# -----------------------------------------------------------------------------------------------------------
# Runs whose process died: who is asked, and how it is written down.
#
# A recorder holds a lease for as long as its process lives. A run that says that it runs, and whose
# recorder's lease is free, has crashed. `Rounds` goes over all runs of a space, whatever their namespace, a
# few at a time and again from the start, so that each is asked after some day at a cost that does not grow
# with them.


_PROBE: Final = "probe"
_PROBE_SECONDS: Final = 5.0
_PAGE: Final = 500


class Pulse:
    """Whether recorders live; each is asked once, so it is for one look."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._alive: dict[str, bool] = {}

    def told(self, info: RunInfo) -> RunInfo:
        """A run as it stands: one that still says that it runs is asked after."""
        if info.status != RUNNING or info.recorder is None or not self._engine.caps.claim:
            return info
        if info.recorder not in self._alive:
            self._alive[info.recorder] = self._is_alive(info.recorder)
        return info if self._alive[info.recorder] else structs.replace(info, status=CRASHED)

    def _is_alive(self, recorder: str) -> bool:
        # All who ask are one holder: two who ask at once must not take each other for the recorder.
        lease = self._engine.claim(self._space, lease_name(recorder), holder=_PROBE, seconds=_PROBE_SECONDS)
        if lease is None:
            return True
        self._engine.release(lease)
        return False


class Rounds:
    """One who goes over the runs of a space."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._after: str | None = None

    def go_on(self, count: int) -> list[RunInfo]:
        """Ask after the next so many runs, in the order of their ids; gives those that are marked now."""
        marked: list[RunInfo] = []
        pulse = Pulse(self._engine, self._space)
        while count > 0:
            page = self._engine.scan_refs(self._space, RUNS, after=self._after, limit=min(count, _PAGE))
            if not page:
                self._after = None
                break
            self._after = page[-1].name
            count -= len(page)
            found = (mark(self._engine, self._space, ref, pulse, self._clock) for ref in page)
            marked += [each for each in found if each is not None]
        return marked


def mark(engine: Engine, space: str, ref: Ref, pulse: Pulse, clock: Clock) -> RunInfo | None:
    """Write down that a run crashed, if it did and nobody has; gives it back then."""
    info = pulse.told(run_info(ref))
    if info.status != CRASHED or info.ended_at_us is not None:
        return None
    over = structs.replace(info, ended_at_us=clock.now_us())
    draft = Draft(space)
    write_state(draft, over, thread_key=thread_key(over.thread, over.namespace), expect=ref.version)
    try:
        engine.commit(draft.batch())
    except RefMoved:
        return None  # someone else was quicker
    return over


# -----------------------------------------------------------------------------------------------------------

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


# -----------------------------------------------------------------------------------------------------------
# Runs that the store does not hold, read from where they were kept before.
#
# While a system moves to treering, its old runs are still in the old one. A store that knows a `LegacyRuns`
# asks it for the timeline and the cost of a run that it does not have itself, in the shapes of the endpoints;
# what neither has is `NotFound`. How such a run stands is read off its timeline, unless the reader also has a
# method ``run(run_id)`` that gives a `RunInfo` (or ``None``). `Archive` makes a reader of another treering
# store: a backup, or a copy that keeps what retention drops.


MAX_LINES: Final = 1000
"""Lines of a timeline that are read at once."""
UNKNOWN: Final = "unknown"
"""How a run stands that only its timeline tells of."""


@runtime_checkable
class LegacyRuns(Protocol):
    """Whoever knows runs of before, for any thread; ``None`` for a run that it does not know either."""

    def timeline(self, run_id: str, *, limit: int, cursor: str | None) -> dict[str, Any] | None:
        """``{"events": [...], "next_cursor": ...}``, as `run_reports.timeline_report` gives it."""
        ...

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """``{"by_agent": [...], "total": {...}}``, as `run_reports.cost_report` gives it."""
        ...


class Archive:
    """Runs of another store."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def timeline(self, run_id: str, *, limit: int, cursor: str | None) -> dict[str, Any] | None:
        """A run's timeline, if that store has it."""
        from treering.runs.reports import timeline_report

        try:
            return timeline_report(self._engine, self._space, run_id, limit=limit, cursor=cursor)
        except NotFound:
            return None

    def run(self, run_id: str) -> RunInfo | None:
        """A run as it stood, if that store has it."""
        found = self._engine.refs(self._space, [run_ref(run_id)])
        return run_info(found[run_ref(run_id)]) if found else None

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """A run's cost, if that store has it."""
        from treering.runs.reports import cost_report

        try:
            return cost_report(self._engine, self._space, run_id)
        except NotFound:
            return None


def legacy_run(legacy: LegacyRuns, run_id: str) -> RunInfo | None:
    """A run of before, as far as it can be told; ``None`` when nobody knows it."""
    told: Callable[[str], RunInfo | None] | None = getattr(legacy, "run", None)
    if told is not None:
        return told(run_id)
    page = legacy.timeline(run_id, limit=MAX_LINES, cursor=None)
    if page is None:
        return None
    events: list[dict[str, Any]] = page["events"]
    times = [from_datetime(datetime.fromisoformat(event["ts"])) for event in events]
    return RunInfo(
        id=run_id,
        agent=next((event["agent"] for event in events if event["agent"] is not None), None),
        status=UNKNOWN,
        started_at_us=times[0] if times else 0,
        ended_at_us=times[-1] if times and page["next_cursor"] is None else None,
    )


def load_legacy(name: str) -> LegacyRuns:
    """The reader at ``package.module:attribute``; a class is called without arguments."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidInput(f"{name!r} names no reader of legacy runs; write package.module:attribute")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name!r} cannot be loaded: {error}") from error
    reader = found() if isinstance(found, type) else found
    if not isinstance(reader, LegacyRuns):
        raise InvalidInput(f"{name!r} is no reader of legacy runs; it needs timeline(...) and cost(...)")
    return reader
