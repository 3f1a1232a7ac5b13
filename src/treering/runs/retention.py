"""Retention of runs: delete the runs that a policy does not keep, with everything recorded in them.

The policy is applied to the runs of each agent separately, by the time at which the store first saw them.
Running runs are kept. All that is left of a deleted run is its id in a journal event that lists what was
deleted: its events, its ref, its entries in the search index and its share of every total are gone. Content
that nothing else refers to goes with the next garbage collection. **Invariant:** the event is written before
anything is deleted, and a run whose deletion was interrupted is deleted completely next time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Draft, Event
from treering.core.encoding import encode, encode_json
from treering.core.ids import MAINTENANCE_SCOPE, parse_scope
from treering.core.query import Erasure, EventQuery, each_record, each_scope
from treering.core.retention import Keep, RetentionEntry, select
from treering.errors import InvalidInput
from treering.runs.listing import Runs
from treering.runs.otlp.decode import LOG, METRIC
from treering.runs.otlp.traces import ATTRIBUTES
from treering.runs.run import RUN, RUNNING, RunInfo, ledger_scope, listed_run, run_ref, tag_ref
from treering.runs.search import EventIndex
from treering.runs.span import MESSAGE, OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record

_OWN_KINDS: Final = frozenset({RUN, MESSAGE, LOG, METRIC, ATTRIBUTES})
_ERASE_LIMIT: Final = 20_000
"""Events in one erasure. Each erasure reads the whole store once."""


class DroppedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that were deleted (or would be, in a dry run), and how many were kept."""

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
    """Apply a policy to the runs of all namespaces, and delete those that it does not keep.

    ``further_kinds`` are events of other layers that belong to a run and are deleted with it.
    """
    if keep.max_bytes is not None:
        raise InvalidInput(
            "max_bytes cannot be applied to runs, because they share content; use last, daily or within"
        )
    listed = list(_listed(engine, space, clock))
    groups: dict[tuple[str, str], list[tuple[Record, RunInfo]]] = {}
    for record, info in listed:
        groups.setdefault((info.namespace, info.agent or ""), []).append((record, info))
    dropped_seqs: set[int] = set()
    for group in groups.values():
        entries = [_entry(record, info) for record, info in group]
        dropped_seqs.update(int(entry.id) for entry in select(entries, keep, now_us=clock.now_us()).dropped)
    dropped = [(record, info) for record, info in listed if record.seq in dropped_seqs]
    event = None
    if dropped and not dry_run:
        event = _write_event(engine, space, keep, [info.id for _, info in dropped], clock)
        _erase(engine, space, dropped, _OWN_KINDS.union(further_kinds))
    return DroppedRuns(
        dropped=tuple(info.id for _, info in dropped), kept=len(listed) - len(dropped), event=event
    )


def _listed(engine: Engine, space: str, clock: Clock) -> Iterator[tuple[Record, RunInfo]]:
    """All runs, each with its ledger entry."""
    for namespace in _namespaces(engine, space):
        infos = {info.id: info for info in Runs(engine, space, clock=clock, namespace=namespace).each()}
        query = EventQuery(scope=ledger_scope(namespace), kinds=(RUN,))
        for record in each_record(engine, space, query):
            info = infos.get(listed_run(record.event))
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


def _write_event(engine: Engine, space: str, keep: Keep, ids: list[str], clock: Clock) -> str:
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


def _erase(engine: Engine, space: str, runs: list[tuple[Record, RunInfo]], kinds: frozenset[str]) -> None:
    index = EventIndex(engine, space)
    seqs: list[int] = []
    refs: list[str] = []
    for record, info in runs:
        refs += [run_ref(info.id), *(tag_ref(tag, info.id) for tag in info.tags), *index.remove(info.id)]
        seqs += [record.seq, *_event_seqs(engine, space, info.id, kinds)]
        if len(seqs) >= _ERASE_LIMIT:
            engine.erase(space, Erasure(event_seqs=tuple(seqs), refs=tuple(refs)))
            seqs, refs = [], []
    if seqs:
        engine.erase(space, Erasure(event_seqs=tuple(seqs), refs=tuple(refs)))


def _event_seqs(engine: Engine, space: str, run: str, kinds: frozenset[str]) -> Iterator[int]:
    for record in each_record(engine, space, EventQuery(run=run, order="time")):
        kind = record.event.kind
        # Checkpoints, memories and snapshots that were saved in the run are kept: they have their own
        # policies.
        if kind in kinds or kind.startswith((SPAN, OPEN)):
            yield record.seq
