"""Garbage collection: drop history by policy, then sweep whatever is unreachable.

Retention decides about journal events of the *retained kinds* (checkpoints, snapshots, versions of a memory),
separately for each group: a `Keep` never compares the checkpoints of one thread with those of another. An
event named by a ref (``{"checkpoint": <event id>}`` or ``{"event": ...}``) is pinned, and pins are read again
whenever something was committed between the decision and the removal. A kept checkpoint also keeps the ones
that it is stored as a delta of (see `core.retention`). **Invariant:** before anything is dropped, the journal
has a ``retention`` event that lists it. A dry run decides in the same way and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from treering.core import failpoints
from treering.core.batch import Event
from treering.core.clock import Clock
from treering.core.encoding import encode
from treering.core.engine import Engine
from treering.core.query import Erasure, EventQuery, check_may_erase, each_record, each_ref, last_seq
from treering.core.records import Record, SweepProgress, Swept
from treering.core.retention import DeltaStep, Keep, RetentionEntry, delta_dependencies, select
from treering.errors import NotFound
from treering.maintenance.forget import record_audit_event

DeltaOf = Callable[[Engine, str, Record], DeltaStep | None]
"""Returns how a checkpoint depends on others, or None if it does not."""

_BATCH: Final = 1000
_PINS: Final = ("checkpoint", "event")
_CHECKPOINT: Final = "checkpoint"
_REVISION: Final = "checkpoint.revision"
"""Replaces what the checkpoint ``parent`` says, and is dropped with it."""

_RECORDED: Final = failpoints.declare(
    "gc.recorded", "the journal lists what retention drops, nothing is dropped yet"
)
_DROPPED: Final = failpoints.declare("gc.dropped", "a batch of events was dropped by retention")


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """What `gc` removed, or would remove in a dry run.

    ``dropped`` and ``kept`` count the events that retention decided about, by kind. ``event`` is the id of
    the journal event that lists the dropped ones (for runs there is a separate event, returned only if
    nothing else was dropped).
    """

    dropped: dict[str, int]
    kept: dict[str, int]
    swept: Swept
    dry_run: bool
    event: str | None = None


class _Candidate(msgspec.Struct, frozen=True):
    """An event that retention decides about."""

    seq: int
    id: str


def collect(
    engine: Engine,
    space: str,
    *,
    keep: Keep | None,
    dry_run: bool,
    grace_seconds: float,
    clock: Clock,
    delta_of: DeltaOf,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> Collection:
    """Drop by policy (only with ``keep``), then sweep; ``delta_of`` finds dependencies of checkpoints."""
    dropped: dict[str, list[_Candidate]] = {}
    kept: dict[str, int] = {}
    event = None
    if keep is not None:
        dropped, kept = _decide(engine, space, keep, delta_of, now_us=clock.now_us())
        if dropped and not dry_run:
            event = _drop(engine, space, dropped, keep, clock)
    return Collection(
        dropped={kind: len(events) for kind, events in dropped.items()},
        kept=kept,
        swept=_sweep(engine, space, on_progress, dry_run=dry_run, grace_seconds=grace_seconds),
        dry_run=dry_run,
        event=event,
    )


def _decide(
    engine: Engine, space: str, keep: Keep, delta_of: DeltaOf, *, now_us: int
) -> tuple[dict[str, list[_Candidate]], dict[str, int]]:
    """Return the events to drop and the number of events kept, each by kind."""
    pins = _pins(engine, space)
    groups: dict[tuple[str, str], tuple[list[RetentionEntry], list[_Candidate]]] = {}
    deltas: dict[str, DeltaStep] = {}
    revisions: list[_Candidate] = []
    for record in each_record(engine, space, EventQuery(kinds=(*_retained, _REVISION))):
        event = record.event
        if event.kind == _REVISION:
            revised = event.parent or ""
            revisions.append(_Candidate(record.seq, revised))
            delta = delta_of(engine, space, record)
            if delta is not None and revised in deltas:
                deltas[revised] = deltas[revised].revised(delta)
            continue
        kind = _retained[event.kind]
        entries, candidates = groups.setdefault((event.kind, kind.group(event)), ([], []))
        data = event.data or b""
        fields = _fields(data)
        if event.kind == _CHECKPOINT and (delta := delta_of(engine, space, record)) is not None:
            deltas[event.id] = delta
        size: Any = fields.get("size_bytes")
        # An event's id is unique only within its day; its sequence number is unique and sorts by time.
        entries.append(
            RetentionEntry(
                id=f"{record.seq:020}",
                ts_us=record.committed_at_us,
                tags=kind.tags(fields),
                size_bytes=size if isinstance(size, int) else len(data),
                pinned=event.id in pins,
            )
        )
        candidates.append(_Candidate(record.seq, event.id))
    dropped: dict[str, list[_Candidate]] = {}
    kept: dict[str, int] = {}
    for (kind, _), (entries, candidates) in sorted(groups.items()):
        decision = select(entries, keep, now_us=now_us)
        kept[kind] = kept.get(kind, 0) + len(decision.kept)
        gone = {int(entry.id) for entry in decision.dropped}
        if gone:
            dropped.setdefault(kind, []).extend(each for each in candidates if each.seq in gone)
    if deltas and _CHECKPOINT in dropped:
        gone_ids = {each.id for each in dropped[_CHECKPOINT]}
        needed = delta_dependencies(deltas.keys() - gone_ids, deltas) & gone_ids
        kept[_CHECKPOINT] += len(needed)
        left = [each for each in dropped.pop(_CHECKPOINT) if each.id not in needed]
        dropped |= {_CHECKPOINT: left} if left else {}
    gone_ids = {each.id for each in dropped.get(_CHECKPOINT, ())}
    if gone := [each for each in revisions if each.id in gone_ids]:
        dropped[_REVISION] = gone
    return dropped, kept


def _drop(engine: Engine, space: str, dropped: dict[str, list[_Candidate]], keep: Keep, clock: Clock) -> str:
    check_may_erase(engine, space)
    event = record_audit_event(
        engine,
        space,
        kind="retention",
        data={"keep": _rules(keep), "dropped": {kind: len(events) for kind, events in dropped.items()}},
        body=encode({kind: [each.id for each in events] for kind, events in dropped.items()}),
        clock=clock,
    )
    failpoints.hit(_RECORDED)
    candidates = [each for events in dropped.values() for each in events]
    pins: set[str] = set()
    read_at = -1
    for start in range(0, len(candidates), _BATCH):
        now_at = last_seq(engine, space)
        if now_at != read_at:
            pins, read_at = _pins(engine, space), now_at
        seqs = tuple(each.seq for each in candidates[start : start + _BATCH] if each.id not in pins)
        if seqs:
            engine.erase(space, Erasure(event_seqs=seqs))
        failpoints.hit(_DROPPED)
    return event


def _sweep(
    engine: Engine,
    space: str,
    on_progress: Callable[[SweepProgress], None] | None,
    *,
    dry_run: bool,
    grace_seconds: float,
) -> Swept:
    """Sweep even a space without commits: it may hold staged objects."""
    try:
        return engine.sweep(space, dry_run=dry_run, grace_seconds=grace_seconds, on_progress=on_progress)
    except NotFound:
        return Swept(dry_run=dry_run)


def _pins(engine: Engine, space: str) -> set[str]:
    """Return the ids of all events that refs name."""
    pins: set[str] = set()
    for ref in each_ref(engine, space, ""):
        named = _fields(ref.value)
        pins.update(named[key] for key in _PINS if isinstance(named.get(key), str))
    return pins


def _fields(value: bytes) -> dict[str, Any]:
    """Decode a JSON object; return an empty one for any other value."""
    if not value.startswith(b"{"):
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _rules(keep: Keep) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(keep).items() if value}


def _by_thread(event: Event) -> str:
    return event.thread or event.scope


def _by_scope(event: Event) -> str:
    return event.scope


def _one_group(event: Event) -> str:  # noqa: ARG001 - same signature as the others
    return ""


def _listed_tags(fields: dict[str, Any]) -> frozenset[str]:
    """Return the ``tags`` in an event's data."""
    tags: Any = fields.get("tags")
    return frozenset(map(str, cast("list[object]", tags))) if isinstance(tags, list) else frozenset()


def _session_tags(fields: dict[str, Any]) -> frozenset[str]:
    """Return the tag of a sandbox session, its prefix, and the checkpoint's comment."""
    tag = str(fields.get("tag") or "")
    return frozenset(filter(None, (tag, tag.rpartition("-")[0], str(fields.get("comment") or ""))))


class _RetainedKind(msgspec.Struct, frozen=True):
    """How retention treats a kind of event: which ones it compares, and which tags they have.

    Their size is ``size_bytes`` in the event's data.
    """

    group: Callable[[Event], str] = _by_thread
    tags: Callable[[dict[str, Any]], frozenset[str]] = _listed_tags


_retained: Final[dict[str, _RetainedKind]] = {
    _CHECKPOINT: _RetainedKind(),
    "snapshot": _RetainedKind(_by_scope),
    "memory.version": _RetainedKind(_by_scope),
    # One group for all sessions, as in a bucket: most sessions have only one.
    "sandbox_checkpoint": _RetainedKind(_one_group, _session_tags),
}
