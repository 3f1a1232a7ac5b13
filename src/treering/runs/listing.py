"""Listing runs and their records, finding runs that crashed, and reading runs that another system holds.

A recorder holds a lease for as long as its process is alive. A run that says it is running while the lease of
its recorder is free has crashed: reading it says so at once, and `Runs.mark_crashed` and `CrashSweep` write
it down.

While a system moves to treering, its old runs are still in the old one. A store with a `LegacyRuns` asks it
for runs that it does not hold itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec import structs

from treering.core.batch import Draft, Usage
from treering.core.clock import from_datetime
from treering.core.encoding import decode
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound, RefMoved
from treering.runs.compare import AgentComparison, RunComparison, compare_agents, compare_runs
from treering.runs.money import from_nanos
from treering.runs.recorder import lease_name
from treering.runs.replay import ReplayStep, replay
from treering.runs.run import (
    CRASHED,
    RUN,
    RUNNING,
    RUNS,
    RunInfo,
    ledger_scope,
    listed_run,
    run_from_ref,
    run_not_found,
    run_ref,
    write_state,
)
from treering.runs.span import ANNOUNCED, INPUT, RunRow, open_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref

_MAX_SCANNED: Final = 5_000
"""How many runs one page reads before it returns what matched."""


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, newest first, and the cursor of the next page; ``None`` if there is none."""

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
        """Return a run. A run whose process died is ``crashed``, whether or not that was written down."""
        refs = self._engine.refs(self._space, [run_ref(run_id)])
        if not refs:
            raise run_not_found(run_id)
        return _LeaseProbe(self._engine, self._space).check(run_from_ref(refs[run_ref(run_id)]))

    def in_namespace(self, namespace: str) -> Runs:
        """Return the runs of another namespace."""
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
        """List runs, newest first, that match all filters.

        With filters, a page may be short or empty and still have a cursor.
        """
        filters = {"agent": agent, "status": status, "thread": thread}
        filters = {name: value for name, value in filters.items() if value is not None}
        query = EventQuery(scope=ledger_scope(self._namespace), kinds=(RUN,), newest_first=True)
        probe = _LeaseProbe(self._engine, self._space)
        runs: list[RunInfo] = []
        scanned = 0
        while True:
            listed = self._engine.scan(self._space, query, after=cursor, limit=first - len(runs))
            cursor = listed.cursor
            scanned += len(listed.records)
            names = [run_ref(listed_run(record.event)) for record in listed.records]
            refs = self._engine.refs(self._space, names)
            infos = (probe.check(run_from_ref(refs[name])) for name in names if name in refs)
            runs += [
                info
                for info in infos
                if all(getattr(info, name) == value for name, value in filters.items())
                if tag is None or tag in info.tags
            ]
            if cursor is None or len(runs) >= first or scanned >= _MAX_SCANNED:
                return RunPage(runs=tuple(runs), cursor=cursor)

    def each(self) -> Iterator[RunInfo]:
        """Iterate over all runs, newest first, reading a page at a time."""
        cursor = None
        while True:
            page = self.page(cursor=cursor)
            yield from page.runs
            if page.cursor is None:
                return
            cursor = page.cursor

    def compare(self, one: str, other: str, *more: str, currency: str | None = None) -> RunComparison:
        """Compare runs by cost, tokens, time, steps and errors, and find where each leaves the first one.

        ``currency`` converts the costs (see `Costs.in_`); without it each currency is shown by itself.
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
        """Compare agents over all days, or over a range of days (counted from 1970-01-01, UTC)."""
        return compare_agents(
            self._engine,
            self._space,
            agents,
            since_day=since_day,
            until_day=until_day,
            currency=currency,
        )

    def replay(self, run_id: str, *, speed: float | None = None) -> Iterator[ReplayStep]:
        """Iterate over a run as it happened: starts, ends, messages, and the chunks of streams.

        Without ``speed`` it does not wait; ``speed=1`` takes as long as the run did, 10 a tenth of it.
        """
        started_at_us = self.get(run_id).started_at_us
        return replay(self._engine, self._space, run_id, started_at_us=started_at_us, speed=speed)

    def mark_crashed(self, *, newest: int | None = None) -> list[RunInfo]:
        """Write down which runs (of the ``newest`` so many) have crashed, and return them."""
        probe = _LeaseProbe(self._engine, self._space)
        crashed = [info for info in islice(self.each(), newest) if info.status == CRASHED]
        names = [run_ref(info.id) for info in crashed if info.ended_at_us is None]
        refs = [ref for name in names for ref in self._engine.refs(self._space, [name]).values()]
        marked = [_mark_if_crashed(self._engine, self._space, ref, probe, self._clock) for ref in refs]
        return [info for info in marked if info is not None]


_PROBE_HOLDER: Final = "probe"
_PROBE_SECONDS: Final = 5.0
_SWEEP_PAGE: Final = 500


class CrashSweep:
    """Checks the runs of a space, of all namespaces, a few at a time and then from the start again."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._after: str | None = None

    def check_next(self, count: int) -> list[RunInfo]:
        """Check the next ``count`` runs, in the order of their ids; return those that are now marked."""
        marked: list[RunInfo] = []
        probe = _LeaseProbe(self._engine, self._space)
        while count > 0:
            page = self._engine.scan_refs(self._space, RUNS, after=self._after, limit=min(count, _SWEEP_PAGE))
            if not page:
                self._after = None
                break
            self._after = page[-1].name
            count -= len(page)
            found = (_mark_if_crashed(self._engine, self._space, ref, probe, self._clock) for ref in page)
            marked += [info for info in found if info is not None]
        return marked


class _LeaseProbe:
    """Finds out whether recorders are alive, asking once for each; use one for one listing."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._alive: dict[str, bool] = {}

    def check(self, info: RunInfo) -> RunInfo:
        """Return the run, as ``crashed`` if it says that it is running and its recorder is dead."""
        if info.status != RUNNING or info.recorder is None or not self._engine.caps.claim:
            return info
        if info.recorder not in self._alive:
            self._alive[info.recorder] = self._is_alive(info.recorder)
        return info if self._alive[info.recorder] else structs.replace(info, status=CRASHED)

    def _is_alive(self, recorder: str) -> bool:
        # All probes share one holder, so that two of them do not take each other for the recorder.
        lease = self._engine.claim(
            self._space, lease_name(recorder), holder=_PROBE_HOLDER, seconds=_PROBE_SECONDS
        )
        if lease is None:
            return True
        self._engine.release(lease)
        return False


def _mark_if_crashed(
    engine: Engine, space: str, ref: Ref, probe: _LeaseProbe, clock: Clock
) -> RunInfo | None:
    """Write down that a run crashed and return it; ``None`` if it did not, or if that is known already."""
    info = probe.check(run_from_ref(ref))
    if info.status != CRASHED or info.ended_at_us is not None:
        return None
    ended = structs.replace(info, ended_at_us=clock.now_us())
    draft = Draft(space)
    write_state(draft, ended, expect=ref.version)
    try:
        engine.commit(draft.batch())
    except RefMoved:
        return None  # another process was faster
    return ended


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span, a message or another record of a run. An ``is_open`` span was running when it was written."""

    id: str
    seq: int
    kind: str
    """``span``, ``message``, or the kind of another record."""
    type: str
    """The kind of a span: ``agent``, ``llm``, ``tool``, ...; otherwise the same as ``kind``."""
    name: str | None
    parent: str | None
    agent: str | None
    role: str | None
    status: str | None
    model: str | None
    started_at_us: int
    duration_us: int | None
    is_open: bool
    usage: Usage | None
    cost: float | None
    currency: str | None
    data: dict[str, Any]
    has_input: bool
    has_output: bool


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records in the order of their start, and the cursor of the next page."""

    records: tuple[RunRecord, ...]
    cursor: str | None


class RecordContent(msgspec.Struct, frozen=True, kw_only=True):
    """A record with its content; that of a message is its ``output``."""

    record: RunRecord
    input: Any = None
    output: Any = None


def run_records(
    engine: Engine, space: str, run_id: str, *, first: int = 1000, cursor: str | None = None
) -> RecordPage:
    """Return a page of a run's records. Unlike in a timeline, each span is listed once."""
    page = engine.scan(space, EventQuery(run=run_id, order="time"), after=cursor, limit=first)
    rows = [RunRow(record) for record in page.records]
    ended = {row.event.span for row in rows if row.is_span}
    open_rows = [row for row in rows if row.is_open and row.event.span not in ended]
    if open_rows:  # the end has the same time as the start, but may be the first row of the next page
        times = [row.event.ts_us for row in open_rows]
        ends = EventQuery(
            run=run_id,
            ids=tuple(row.span_id for row in open_rows),
            since_us=min(times),
            until_us=max(times) + 1,
            order="time",
        )
        ended |= {record.event.span for record in engine.scan(space, ends, limit=len(open_rows)).records}
    return RecordPage(
        records=tuple(_run_record(row) for row in rows if not (row.is_open and row.event.span in ended)),
        cursor=page.cursor,
    )


def record_content(engine: Engine, space: str, run_id: str, record_id: str) -> RecordContent:
    """Return one record of a run with its input and output."""
    query = EventQuery(run=run_id, ids=(record_id, open_id(record_id)), order="time")
    rows = {record.event.id: RunRow(record) for record in engine.scan(space, query, limit=2).records}
    open_row = rows.get(open_id(record_id))
    row = rows.get(record_id) or open_row
    if row is None:
        raise NotFound(
            f"record {record_id!r} not found in run {run_id!r}. List its records with: GET /runs/{{id}}/spans"
        )
    input_address = row.input or (None if open_row is None else open_row.input)
    output_address = None if row.is_open else row.event.body
    wanted = [each for each in (input_address, output_address) if each is not None]
    contents = iter([decode(each) for each in engine.get(space, wanted)] if wanted else [])
    return RecordContent(
        record=_run_record(row),
        input=None if input_address is None else next(contents),
        output=None if output_address is None else next(contents),
    )


def _run_record(row: RunRow) -> RunRecord:
    event = row.event
    is_span = row.is_span or row.is_open
    return RunRecord(
        id=row.span_id,
        seq=row.seq,
        kind="span" if is_span else event.kind,
        type=row.span_kind,
        name=event.name,
        parent=event.parent if is_span else event.span,
        agent=event.agent,
        role=event.role,
        status=event.status,
        model=event.model,
        started_at_us=event.ts_us,
        duration_us=event.duration_us,
        is_open=row.is_open,
        usage=event.usage,
        cost=None if event.cost_nanos is None else float(from_nanos(event.cost_nanos)),
        currency=event.currency,
        data={name: value for name, value in row.data.items() if name not in {INPUT, ANNOUNCED}},
        has_input=row.input is not None or row.is_announced,
        has_output=event.body is not None and not row.is_open,
    )


UNKNOWN: Final = "unknown"
"""The status of a run of which only the timeline is known."""


@runtime_checkable
class LegacyRuns(Protocol):
    """Reads runs of another system. It returns ``None`` for a run that it does not know.

    It may also have a method ``run(run_id) -> RunInfo | None``; without it, the state of a run is derived
    from its timeline.
    """

    def timeline(self, run_id: str, *, limit: int, cursor: str | None) -> dict[str, Any] | None:
        """Return ``{"events": [...], "next_cursor": ...}``, like `timeline_report`."""
        ...

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """Return ``{"by_agent": [...], "total": {...}}``, like `cost_report`."""
        ...


class Archive:
    """Reads the runs of another treering store, such as a backup or a copy without retention."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def timeline(self, run_id: str, *, limit: int, cursor: str | None) -> dict[str, Any] | None:
        """Return a page of a run's timeline."""
        from treering.runs.timeline import timeline_report

        try:
            return timeline_report(self._engine, self._space, run_id, limit=limit, cursor=cursor)
        except NotFound:
            return None

    def run(self, run_id: str) -> RunInfo | None:
        """Return the state of a run."""
        refs = self._engine.refs(self._space, [run_ref(run_id)])
        return run_from_ref(refs[run_ref(run_id)]) if refs else None

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """Return the cost of a run."""
        from treering.runs.cost import cost_report

        try:
            return cost_report(self._engine, self._space, run_id)
        except NotFound:
            return None


def legacy_run(legacy: LegacyRuns, run_id: str) -> RunInfo | None:
    """Return the state of a legacy run, as far as it is known; ``None`` for an unknown run."""
    from treering.runs.timeline import MAX_EVENTS

    read_run: Callable[[str], RunInfo | None] | None = getattr(legacy, "run", None)
    if read_run is not None:
        return read_run(run_id)
    page = legacy.timeline(run_id, limit=MAX_EVENTS, cursor=None)
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
    """Load the reader at ``package.module:attribute``; a class is called without arguments."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidInput(f"{name!r} does not name a reader of legacy runs; use package.module:attribute")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name!r} cannot be loaded: {error}") from error
    reader = found() if isinstance(found, type) else found
    if not isinstance(reader, LegacyRuns):
        raise InvalidInput(f"{name!r} is not a reader of legacy runs; it needs timeline(...) and cost(...)")
    return reader
