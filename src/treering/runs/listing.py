"""Listing runs and their records, finding runs that crashed, and reading runs that another system holds.

**Invariant:** no run is ``running`` for ever, whatever way it came in. A run names the recorders of the
processes that write to it, and a recorder holds a lease for as long as its process is alive. A run that has
not ended

- is ``crashed`` when the leases of all its recorders are free (the recorder, the services, adapters);
- is ``unfinished`` when it names none and nothing was stored of it for `QUIET_SECONDS` (OTLP, imports).

It ended with its last sign of life, which is the last thing that it recorded. Reading a run says all this at
once; `Runs.mark_crashed` and `CrashSweep` write it down. A run that is heard of again is running again.

While a system moves to treering, its old runs are still in the old one. A store with a `LegacyRuns` asks it
for runs that it does not hold itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast, runtime_checkable

import msgspec
from msgspec import structs

from treering.core.batch import Draft, Usage
from treering.core.clock import SECOND_US, from_datetime, to_datetime
from treering.core.encoding import decode
from treering.core.query import EventQuery, ListQuery, each_listed, encode_list_cursor, readable
from treering.core.records import list_place
from treering.core.rollups import IN_CALL, SAID
from treering.errors import Corrupt, InvalidInput, NotFound, RefMoved
from treering.runs.compare import AgentComparison, RunComparison, compare_agents, compare_runs
from treering.runs.cost import Costs, is_event
from treering.runs.messages import preview, preview_of, preview_value, read_messages
from treering.runs.money import from_nanos
from treering.runs.recorder import lease_name
from treering.runs.replay import ReplayStep, replay
from treering.runs.run import (
    CRASHED,
    QUIET_SECONDS,
    RUN_LIST,
    RUNNING,
    RUNS,
    UNFINISHED,
    RunInfo,
    find_run,
    run_from_ref,
    run_not_found,
    run_ref,
    tag_listing,
    write_ref,
    write_state,
)
from treering.runs.span import ANNOUNCED, INPUT, MESSAGE, RunRow, open_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from treering.core.clock import Clock
    from treering.core.content import Address
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.runs.tree import RunTree

_MAX_SCANNED: Final = 1_000
"""How many runs one page reads before it returns what matched."""
_TAGS_AT_ONCE: Final = 200
_FEW_ROWS: Final = 12
"""How many of a run's first and last rows are looked at for its question and its answer."""

RunOrder = Literal["cost", "tokens", "duration"]
"""What runs can be sorted by, instead of by their start."""


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, newest first, and the cursor of the next page; ``None`` if there is none."""

    runs: tuple[RunInfo, ...]
    cursor: str | None


class RunPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a list shows of a run: its question and its answer, each the beginning of a text on one line.

    ``error`` is what the run failed with.
    """

    input: str | None = None
    output: str | None = None
    error: str | None = None


class Runs:
    """The runs of one namespace."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        *,
        clock: Clock,
        namespace: str = "",
        on_cancel: Callable[[Sequence[RunInfo], str | None, str | None], None] | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._namespace = namespace
        self._on_cancel = on_cancel
        """Is told which runs are cancelled, by whom and why: what waits for them is not needed any more."""

    def __repr__(self) -> str:
        return f"<Runs namespace={self._namespace!r}>"

    def load(self, run_id: str) -> RunInfo:
        """Return a run, by its id or a unique beginning of a generated id; raise `NotFound` if there is none.

        A run whose process died is ``crashed``, whether or not that was written down.
        """
        run = self.get(run_id)
        if run is None:
            raise run_not_found(run_id)
        return run

    def get(self, run_id: str) -> RunInfo | None:
        """Return what `load` returns, or ``None`` if there is no such run."""
        ref = find_run(self._engine, self._space, run_id)
        return None if ref is None else self._probe().check(ref)

    def tree(self, run_id: str) -> RunTree:
        """Return a run with all its attempts, and the runs of its sub-agents, with own and total cost."""
        from treering.runs.tree import run_tree

        return run_tree(self._engine, self._space, self.load(run_id), self._probe().check)

    def cancel(self, run_id: str, *, by: str | None = None, reason: str | None = None) -> list[RunInfo]:
        """Ask a run and everything below it to stop; return the runs that had not ended.

        Agents of `treering.agent` stop before their next step, or while they read a stream; other code asks
        `is_cancelled`. No effect of these runs begins from now on, and their open questions are closed. Runs
        that wait for a person, or whose process is gone, are ``cancelled`` at once.
        """
        from treering.runs.tree import cancel

        tree = self.tree(run_id)
        asked = cancel(self._engine, self._space, tree, clock=self._clock, by=by, reason=reason)
        if self._on_cancel is not None:
            ids = {each.id for each in asked}
            stopped = [
                attempt
                for _, node in tree.each()
                if node.is_cancelled or node.attempts[-1].id in ids
                for attempt in node.attempts
            ]
            self._on_cancel(stopped, by, reason)
        return asked

    def is_cancelled(self, run_id: str) -> bool:
        """Whether somebody has asked a run, or one that it belongs to, to stop."""
        from treering.runs.tree import is_cancelled

        return is_cancelled(self._engine, self._space, run_id)

    def in_namespace(self, namespace: str) -> Runs:
        """Return the runs of another namespace."""
        return Runs(
            self._engine, self._space, clock=self._clock, namespace=namespace, on_cancel=self._on_cancel
        )

    def page(
        self,
        *,
        first: int = 100,
        cursor: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        thread: str | None = None,
        tag: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> RunPage:
        """List runs, newest first, that match all filters and started in a range of time.

        A page takes the same time in a store of any size. So with ``tag`` and another filter, or for crashed
        and unfinished runs, it may be short or empty and still have a cursor.
        """
        query = ListQuery(
            list=RUN_LIST,
            namespace=self._namespace,
            agent=agent,
            status=status,
            thread=thread,
            since_us=since_us,
            until_us=until_us,
        )
        listed = self._listed(query, cursor, first) if tag is None else self._tagged(query, tag, cursor)
        probe = self._probe()
        runs: list[RunInfo] = []
        for scanned, (place, ref) in enumerate(listed, 1):
            info = None if ref is None else next(readable((ref,), probe.check), None)
            if info is not None and status in (None, info.status):
                runs.append(info)
            if len(runs) == first or scanned == _MAX_SCANNED:
                return RunPage(runs=tuple(runs), cursor=place)
        return RunPage(runs=tuple(runs), cursor=None)

    def _listed(self, query: ListQuery, cursor: str | None, first: int) -> Iterator[tuple[str, Ref]]:
        """Iterate over the runs that may match, with the cursor behind each."""
        queries = [query]
        if query.status in (CRASHED, UNFINISHED):  # which may not have been written down yet
            queries.append(structs.replace(query, status=RUNNING))
        lists = [each_listed(self._engine, self._space, each, after=cursor, limit=first) for each in queries]
        for ref in heapq.merge(*lists, key=list_place, reverse=True):
            yield encode_list_cursor(*list_place(ref)), ref

    def _tagged(self, query: ListQuery, tag: str, cursor: str | None) -> Iterator[tuple[str, Ref | None]]:
        """Iterate over the runs with a tag that match the rest; ``None`` for each that does not."""
        of_tag = tag_listing(tag, self._namespace)
        tags = each_listed(
            self._engine,
            self._space,
            structs.replace(query, list=of_tag.list, agent=None, status=None, thread=None),
            after=cursor,
            limit=_TAGS_AT_ONCE,
        )
        statuses = {query.status, RUNNING if query.status in (CRASHED, UNFINISHED) else query.status}
        while some := list(islice(tags, _TAGS_AT_ONCE)):
            names = [run_ref(each.value.decode()) for each in some]
            refs = self._engine.refs(self._space, names)
            for each, name in zip(some, names, strict=True):
                ref = refs.get(name)
                listing = None if ref is None else ref.listing
                is_match = (
                    listing is not None
                    and query.agent in (None, listing.agent)
                    and query.thread in (None, listing.thread)
                    and (query.status is None or listing.status in statuses)
                )
                yield encode_list_cursor(*list_place(each)), ref if is_match else None

    def each(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        thread: str | None = None,
        tag: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> Iterator[RunInfo]:
        """Iterate over all runs that match all filters, newest first, reading a page at a time."""
        cursor = None
        while True:
            page = self.page(
                cursor=cursor,
                agent=agent,
                status=status,
                thread=thread,
                tag=tag,
                since_us=since_us,
                until_us=until_us,
            )
            yield from page.runs
            if page.cursor is None:
                return
            cursor = page.cursor

    def top(
        self,
        by: RunOrder,
        *,
        first: int = 100,
        agent: str | None = None,
        status: str | None = None,
        thread: str | None = None,
        tag: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
    ) -> list[RunInfo]:
        """Return the runs with the highest cost, the most tokens or the longest duration.

        Amounts of several currencies are added up as if they were one.
        """
        matching = self.each(
            agent=agent, status=status, thread=thread, tag=tag, since_us=since_us, until_us=until_us
        )
        found = list(matching)
        if by == "duration":
            return sorted(found, key=lambda each: each.duration_us or 0, reverse=True)[:first]
        costs = {part.key: part for part in Costs(self._engine, self._space).of_runs().parts}

        def weight(run: RunInfo) -> int:
            cost = costs.get(run.id)
            return 0 if cost is None else cost.tokens if by == "tokens" else sum(cost.nanos.values())

        return sorted(found, key=weight, reverse=True)[:first]

    def previews(self, runs: Sequence[RunInfo]) -> dict[str, RunPreview]:
        """Return the question and the answer of each run, by its id.

        The question is the first message of the user, else the first input; the answer is the last message
        of the assistant, else what the outermost span returned. Only a few rows of each run are read.
        """
        wanted = {run.id: _ends(self._engine, self._space, run.id) for run in runs}
        addresses = {each.address for ends in wanted.values() for each in ends if each is not None}
        contents = _decoded(self._engine, self._space, list(addresses))
        return {
            run.id: RunPreview(
                input=_shown(question, contents),
                output=_shown(answer, contents),
                error=_failure(run),
            )
            for run in runs
            for question, answer in (wanted[run.id],)
        }

    def compare(self, one: str, other: str, *more: str, currency: str | None = None) -> RunComparison:
        """Compare runs by cost, tokens, time, steps and errors, and find where each leaves the first one.

        ``currency`` converts the costs (see `Costs.in_`); without it each currency is shown by itself.
        """
        infos = [self.load(run_id) for run_id in (one, other, *more)]
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
        run = self.load(run_id)
        return replay(self._engine, self._space, run.id, started_at_us=run.started_at_us, speed=speed)

    def mark_crashed(self, *, newest: int | None = None, dry_run: bool = False) -> list[RunInfo]:
        """Write down which runs (of the ``newest`` so many) have crashed or are unfinished; return them.

        With ``dry_run``, only return them.
        """
        probe = self._probe()
        listed = self.each() if newest is not None else self._running(probe)
        over = [info for info in islice(listed, newest) if info.status in (CRASHED, UNFINISHED)]
        marked: list[RunInfo] = []
        for start in range(0, len(over), _SWEEP_PAGE):
            names = [run_ref(info.id) for info in over[start : start + _SWEEP_PAGE]]
            for ref in self._engine.refs(self._space, names).values():
                marked += _mark_if_over(self._engine, self._space, ref, probe, dry_run=dry_run)
        return marked

    def _running(self, probe: _LifeProbe) -> Iterator[RunInfo]:
        """Iterate over the runs that are listed as running."""
        query = ListQuery(list=RUN_LIST, namespace=self._namespace, status=RUNNING)
        return map(probe.check, each_listed(self._engine, self._space, query))

    def _probe(self) -> _LifeProbe:
        return _LifeProbe(self._engine, self._space, self._clock)


_PROBE_HOLDER: Final = "probe"
_PROBE_SECONDS: Final = 5.0
_LAST_ROWS: Final = 500
"""How many of a run's rows, the last that started, are looked at for its last sign of life."""
_MAX_RECORDERS: Final = 8
"""How many recorders a run names: those that joined it last."""
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
        probe = _LifeProbe(self._engine, self._space, self._clock)
        while count > 0:
            page = self._engine.scan_refs(self._space, RUNS, after=self._after, limit=min(count, _SWEEP_PAGE))
            if not page:
                self._after = None
                break
            self._after = page[-1].name
            count -= len(page)
            for ref in page:
                marked += _mark_if_over(self._engine, self._space, ref, probe)
        return marked


class _LifeProbe:
    """Finds out which runs are over, asking once for each recorder; use one for one listing."""

    def __init__(self, engine: Engine, space: str, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._alive: dict[str, bool] = {}

    def check(self, ref: Ref) -> RunInfo:
        """Return the run at a ref: as it says, or ``crashed`` or ``unfinished`` at its last sign of life."""
        info = run_from_ref(ref)
        if info.status != RUNNING:
            return info
        has_leases = bool(info.recorders) and self._engine.caps.claim
        if has_leases and any(map(self._is_alive, info.recorders)):
            return info
        quiet_us = self._clock.now_us() - round(QUIET_SECONDS * SECOND_US)
        if not has_leases and ref.changed_at_us > quiet_us:
            return info
        query = EventQuery(run=info.id, order="time", newest_first=True)
        newest = self._engine.scan(self._space, query, limit=_LAST_ROWS).records
        if not has_leases and any(record.committed_at_us > quiet_us for record in newest):
            return info
        ends = [RunRow(record).end_us for record in newest]
        return structs.replace(
            info,
            status=CRASHED if has_leases else UNFINISHED,
            ended_at_us=max([info.started_at_us, *ends]),
        )

    def _is_alive(self, recorder: str) -> bool:
        if recorder not in self._alive:
            self._alive[recorder] = self._is_held(recorder)
        return self._alive[recorder]

    def _is_held(self, recorder: str) -> bool:
        # All probes share one holder, so that two of them do not take each other for the recorder.
        lease = self._engine.claim(
            self._space, lease_name(recorder), holder=_PROBE_HOLDER, seconds=_PROBE_SECONDS
        )
        if lease is None:
            return True
        self._engine.release(lease)
        return False


def _mark_if_over(
    engine: Engine, space: str, ref: Ref, probe: _LifeProbe, *, dry_run: bool = False
) -> Iterator[RunInfo]:
    """Write down that a run is over, and yield it; nothing if it is not, or if that is known already."""
    info = probe.check(ref)
    if info.status == run_from_ref(ref).status:
        return
    if not dry_run:
        draft = Draft(space)
        write_state(draft, info, expect=ref.version)
        try:
            engine.commit(draft.batch())
        except RefMoved:
            return  # another process was faster
    yield info


def join_run(engine: Engine, space: str, ref: Ref, recorder: str) -> Ref:
    """Add a recorder to a run that has not ended, so that its process keeps the run alive; return the ref.

    A run that was taken for dead is running again.
    """
    while True:
        info = run_from_ref(ref)
        if info.status not in (RUNNING, CRASHED, UNFINISHED) or (
            info.status == RUNNING and recorder in info.recorders
        ):
            return ref
        recorders = (*(each for each in info.recorders if each != recorder), recorder)[-_MAX_RECORDERS:]
        joined = structs.replace(info, status=RUNNING, ended_at_us=None, recorders=recorders)
        draft = Draft(space)
        write_ref(draft, joined, expect=ref.version)
        with suppress(RefMoved):  # another process joins, or ends the run
            engine.commit(draft.batch())
        found = engine.refs(space, [ref.name])
        if ref.name not in found:
            raise run_not_found(info.id)
        ref = found[ref.name]


class _End(msgspec.Struct, frozen=True):
    """Where a run's question or answer is stored; ``role`` if it is the content of a message."""

    address: Address
    role: str | None


def _ends(engine: Engine, space: str, run_id: str) -> tuple[_End | None, _End | None]:
    """Return where the question and the answer of a run are."""
    query = EventQuery(run=run_id, order="time")
    page = engine.scan(space, query, limit=_FEW_ROWS)
    first = list(map(RunRow, page.records))
    last = first[::-1]
    if page.cursor is not None:
        newest = engine.scan(space, structs.replace(query, newest_first=True), limit=_FEW_ROWS)
        last = list(map(RunRow, newest.records))
    questions = [_End(row.event.body, "user") for row in first if _is_said(row, "user") and row.event.body]
    questions += [_End(row.input, None) for row in first if row.input is not None]
    answers = [
        _End(row.event.body, "assistant") for row in last if _is_said(row, "assistant") and row.event.body
    ]
    answers += [
        _End(row.event.body, None)
        for row in (*first, *last)
        if row.is_span and row.event.parent is None and row.event.body is not None
    ]
    return next(iter(questions), None), next(iter(answers), None)


def _is_said(row: RunRow, role: str) -> bool:
    return row.event.kind == MESSAGE and row.event.role == role


def _decoded(engine: Engine, space: str, addresses: list[Address]) -> dict[Address, Any]:
    """Return the contents that can be read; what is missing or damaged is for `verify` to report."""
    if not addresses:
        return {}
    try:
        return {
            address: decode(each)
            for address, each in zip(addresses, engine.get(space, addresses), strict=True)
        }
    except (NotFound, Corrupt):
        if len(addresses) == 1:
            return {}
        return {
            address: value for each in addresses for address, value in _decoded(engine, space, [each]).items()
        }


def _shown(end: _End | None, contents: dict[Address, Any]) -> str | None:
    if end is None or end.address not in contents:
        return None
    value = contents[end.address]
    if end.role is not None:
        return preview({"role": end.role, "content": value})
    messages = read_messages(value)
    return preview_of(messages[-1]) if messages else preview_value(value)


def _failure(run: RunInfo) -> str | None:
    error = run.meta.get("error")
    if not isinstance(error, dict):
        return None if error is None else str(error)
    fields = cast("dict[str, Any]", error)
    return ": ".join(str(fields[name]) for name in ("type", "message") if fields.get(name)) or None


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

    @property
    def started_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.started_at_us)


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
    """Return a page of a run's records: its events as `Cost.events` counts them, and running spans.

    Unlike in a timeline, each span is listed once.
    """
    page = engine.scan(space, EventQuery(run=run_id, order="time"), after=cursor, limit=first)
    return RecordPage(records=records_of(engine, space, run_id, page.records), cursor=page.cursor)


def records_of(engine: Engine, space: str, run_id: str, page: Sequence[Record]) -> tuple[RunRecord, ...]:
    """Return the records of a run that a page of its rows, in order of time, holds."""
    rows = [RunRow(record) for record in page]
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
    return tuple(
        _run_record(row)
        for row in rows
        if is_event(row.event.kind) or (row.is_open and row.event.span not in ended)
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
        data={name: value for name, value in row.data.items() if name not in _OWN_DATA},
        has_input=row.input is not None or row.is_announced,
        has_output=event.body is not None and not row.is_open,
    )


_OWN_DATA: Final = frozenset({INPUT, ANNOUNCED, IN_CALL, SAID})

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
