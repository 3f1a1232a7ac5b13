"""Retention of runs: those that a policy does not want go, with everything that was recorded of them.

The runs of one agent are decided together, by the time at which the store first heard of them. A run that is
still running stays. Of a dropped run nothing is left but its id in the journal's note of what was dropped:
its events, its ref, its words in the index, and with its events their share of every total. Content that
nothing else names goes with the next sweep. **Invariant:** the note is written before anything is dropped,
and a run that was dropped by half is dropped whole next time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Draft, Event
from treering.core.encoding import encode, encode_json
from treering.core.ids import MAINTENANCE_SCOPE, parse_scope
from treering.core.paging import each_record, each_scope
from treering.core.query import Erasure, EventQuery
from treering.core.retention import Keep, RetentionEntry, select
from treering.errors import InvalidInput
from treering.runs.directory import Runs
from treering.runs.otlp.logs import LOG
from treering.runs.otlp.spans import ATTRIBUTES
from treering.runs.run import RUN, RUNNING, RunInfo, ledger_scope, run_ref
from treering.runs.search import EventIndex
from treering.runs.span import MESSAGE, OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record

_LISTED: Final = ":listed"
_OWN: Final = frozenset({RUN, MESSAGE, LOG, ATTRIBUTES})
_AT_ONCE: Final = 20_000
"""Events that one erasure takes: each of them looks at the whole store once."""


class DroppedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that went (or would go, in a dry run), and how many stay."""

    dropped: tuple[str, ...]
    kept: int
    event: str | None = None
    """The journal event that lists them."""


def drop_runs(
    engine: Engine,
    space: str,
    keep: Keep,
    *,
    dry_run: bool,
    clock: Clock,
    further_kinds: tuple[str, ...] = (),
) -> DroppedRuns:
    """Apply retention to the runs of every namespace, and drop those that no rule keeps.

    ``further_kinds`` are events of other layers that belong to a run and are dropped with it.
    """
    if keep.max_bytes is not None:
        raise InvalidInput(
            "keep max_bytes is not for runs: their contents are shared; use last, daily, within"
        )
    listed = list(_listed(engine, space, clock))
    groups: dict[tuple[str, str], list[tuple[Record, RunInfo]]] = {}
    for record, info in listed:
        groups.setdefault((info.namespace, info.agent or ""), []).append((record, info))
    gone: set[int] = set()
    for group in groups.values():
        entries = [_entry(record, info) for record, info in group]
        gone.update(int(entry.id) for entry in select(entries, keep, now_us=clock.now_us()).dropped)
    dropped = [(record, info) for record, info in listed if record.seq in gone]
    event = None
    if dropped and not dry_run:
        event = _note(engine, space, keep, [info.id for _, info in dropped], clock)
        _drop(engine, space, dropped, _OWN.union(further_kinds))
    return DroppedRuns(
        dropped=tuple(info.id for _, info in dropped), kept=len(listed) - len(dropped), event=event
    )


def _listed(engine: Engine, space: str, clock: Clock) -> Iterator[tuple[Record, RunInfo]]:
    """Every run that has a line in a ledger and a ref."""
    for namespace in _namespaces(engine, space):
        infos = {info.id: info for info in Runs(engine, space, clock=clock, namespace=namespace).each()}
        query = EventQuery(scope=ledger_scope(namespace), kinds=(RUN,))
        for record in each_record(engine, space, query):
            info = infos.get(record.event.id.removesuffix(_LISTED))
            if info is not None:
                yield record, info


def _namespaces(engine: Engine, space: str) -> Iterator[str]:
    for text in each_scope(engine, space, ""):
        scope = parse_scope(text)
        if (scope.kind, scope.id) == ("ledger", "runs"):
            yield scope.namespace


def _entry(record: Record, info: RunInfo) -> RetentionEntry:
    return RetentionEntry(
        id=f"{record.seq:020}",
        ts_us=record.committed_at_us,
        tags=frozenset(info.tags),
        pinned=info.status == RUNNING,
    )


def _note(engine: Engine, space: str, keep: Keep, ids: list[str], clock: Clock) -> str:
    rules: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(keep).items() if value}
    draft = Draft(space)
    draft.event(
        Event(
            id=draft.id,
            kind="retention",
            ts_us=clock.now_us(),
            scope=MAINTENANCE_SCOPE,
            data=encode_json({"keep": rules, "dropped": {RUN: len(ids)}}),
            body=draft.put(encode({RUN: ids}), scope=MAINTENANCE_SCOPE),
        )
    )
    engine.commit(draft.batch())
    return draft.id


def _drop(engine: Engine, space: str, runs: list[tuple[Record, RunInfo]], kinds: frozenset[str]) -> None:
    index = EventIndex(engine, space)
    seqs: list[int] = []
    refs: list[str] = []
    for record, info in runs:
        refs += [run_ref(info.id), *index.take_out(info.id)]
        seqs += [record.seq, *_events(engine, space, info.id, kinds)]
        if len(seqs) >= _AT_ONCE:
            engine.erase(space, Erasure(event_seqs=tuple(seqs), refs=tuple(refs)))
            seqs, refs = [], []
    if seqs:
        engine.erase(space, Erasure(event_seqs=tuple(seqs), refs=tuple(refs)))


def _events(engine: Engine, space: str, run: str, kinds: frozenset[str]) -> Iterator[int]:
    for record in each_record(engine, space, EventQuery(run=run, order="time")):
        if _is_recorded(record.event.kind, kinds):
            yield record.seq


def _is_recorded(kind: str, kinds: frozenset[str]) -> bool:
    """Whether an event is the run's own. Checkpoints, memories and snapshots that were saved inside of it
    are only linked to it: they stay, and go by their own policies.
    """
    return kind in kinds or kind.startswith((SPAN, OPEN))
