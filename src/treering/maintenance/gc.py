"""Collection: drop what a policy no longer wants, then sweep what nothing can reach.

Retention works on journal events of the *retained kinds* (checkpoints, snapshots, versions of a memory),
group by group: a `Keep` never compares the checkpoints of one thread with those of another. Checkpoints of
sandboxes are one group, as in a bucket: most have a session to themselves. What a ref names
(``{"checkpoint": <event id>}`` or ``{"event": ...}``) is pinned, and pins are read again whenever the store
moved on between the decision and the removal. A graph's step that stays takes along those that it is read
with (see `core.deltas`). **Invariant:** before anything is dropped, the journal holds a ``retention`` event
that says what; a dry run decides in the same way and changes nothing.
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
from treering.core.paging import check_may_erase, each_record, each_ref
from treering.core.query import Erasure, EventQuery
from treering.core.records import Record, Swept
from treering.core.retention import DeltaStep, Keep, RetentionEntry, delta_dependencies, select
from treering.errors import NotFound
from treering.maintenance.audit_events import record
from treering.maintenance.stats import last_seq

MadeOf = Callable[[Engine, str, Record], DeltaStep | None]
"""Tells what a checkpoint is made of beside its own content."""

_BATCH: Final = 1000
_PINS: Final = ("checkpoint", "event")
_CHECKPOINT: Final = "checkpoint"

_RECORDED: Final = failpoints.declare(
    "gc.recorded", "the journal says what retention drops, nothing is dropped yet"
)
_DROPPED: Final = failpoints.declare("gc.dropped", "a batch of events was dropped by retention")


def by_thread(event: Event) -> str:
    """The checkpoints of one thread are decided together."""
    return event.thread or event.scope


def by_scope(event: Event) -> str:
    """What can be forgotten together is decided together."""
    return event.scope


def together(event: Event) -> str:  # noqa: ARG001 - as the others
    """All there are are decided together."""
    return ""


def listed_tags(fields: dict[str, Any]) -> frozenset[str]:
    """What an event's data says in ``tags``."""
    tags: Any = fields.get("tags")
    return frozenset(map(str, cast("list[object]", tags))) if isinstance(tags, list) else frozenset()


def session_tags(fields: dict[str, Any]) -> frozenset[str]:
    """The tag of a sandbox's session, what it begins with, and the comment of the checkpoint."""
    tag = str(fields.get("tag") or "")
    return frozenset(filter(None, (tag, tag.rpartition("-")[0], str(fields.get("comment") or ""))))


class RetainedKind(msgspec.Struct, frozen=True):
    """How events of a kind are subject to retention: each group by itself, with tags out of their data.

    The size is in the data, too: ``{"size_bytes": ...}``.
    """

    group: Callable[[Event], str] = by_thread
    tags: Callable[[dict[str, Any]], frozenset[str]] = listed_tags


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """What `gc` removed, or would remove in a dry run.

    ``dropped`` and ``kept`` count the events that retention decided on, by kind; ``event`` is the id of the
    journal event that lists the dropped ones (runs have one of their own, told if nothing else went).
    """

    dropped: dict[str, int]
    kept: dict[str, int]
    swept: Swept
    dry_run: bool
    event: str | None = None


def collect(
    engine: Engine,
    space: str,
    *,
    keep: Keep | None,
    dry_run: bool,
    grace_seconds: float,
    clock: Clock,
    made_of: MadeOf,
) -> Collection:
    """Drop by policy (only with ``keep``), then sweep; ``made_of`` tells what a checkpoint is read with."""
    dropped: dict[str, list[_Entry]] = {}
    kept: dict[str, int] = {}
    event = None
    if keep is not None:
        dropped, kept = _decide(engine, space, keep, made_of, now_us=clock.now_us())
        if dropped and not dry_run:
            event = _drop(engine, space, dropped, keep, clock)
    return Collection(
        dropped={kind: len(checkpoints) for kind, checkpoints in dropped.items()},
        kept=kept,
        swept=_sweep(engine, space, dry_run=dry_run, grace_seconds=grace_seconds),
        dry_run=dry_run,
        event=event,
    )


def _sweep(engine: Engine, space: str, *, dry_run: bool, grace_seconds: float) -> Swept:
    """Sweep also where nothing was committed yet: something may have been staged."""
    try:
        return engine.sweep(space, dry_run=dry_run, grace_seconds=grace_seconds)
    except NotFound:
        return Swept(dry_run=dry_run)


class _Entry(msgspec.Struct, frozen=True):
    """An event that retention decides on."""

    seq: int
    id: str


def _decide(
    engine: Engine, space: str, keep: Keep, made_of: MadeOf, *, now_us: int
) -> tuple[dict[str, list[_Entry]], dict[str, int]]:
    pins = _pins(engine, space)
    groups: dict[tuple[str, str], tuple[list[RetentionEntry], list[_Entry]]] = {}
    steps: dict[str, DeltaStep] = {}
    for each in each_record(engine, space, EventQuery(kinds=tuple(_retained))):
        seq, committed_at_us, event = each.seq, each.committed_at_us, each.event
        kind = _retained[event.kind]
        entries, checkpoints = groups.setdefault((event.kind, kind.group(event)), ([], []))
        data = event.data or b""
        fields = _fields(data)
        if event.kind == _CHECKPOINT and (made := made_of(engine, space, each)) is not None:
            steps[event.id] = made
        size: Any = fields.get("size_bytes")
        # An event's id is unique only within its day; its sequence number is unique, and sorts like time.
        entries.append(
            RetentionEntry(
                id=f"{seq:020}",
                ts_us=committed_at_us,
                tags=kind.tags(fields),
                size_bytes=size if isinstance(size, int) else len(data),
                pinned=event.id in pins,
            )
        )
        checkpoints.append(_Entry(seq, event.id))
    dropped: dict[str, list[_Entry]] = {}
    kept: dict[str, int] = {}
    for (kind, _), (entries, checkpoints) in sorted(groups.items()):
        decision = select(entries, keep, now_us=now_us)
        kept[kind] = kept.get(kind, 0) + len(decision.kept)
        gone = {int(entry.id) for entry in decision.dropped}
        if gone:
            dropped.setdefault(kind, []).extend(
                checkpoint for checkpoint in checkpoints if checkpoint.seq in gone
            )
    if steps and _CHECKPOINT in dropped:
        gone_ids = {checkpoint.id for checkpoint in dropped[_CHECKPOINT]}
        needed = delta_dependencies(steps.keys() - gone_ids, steps) & gone_ids
        kept[_CHECKPOINT] += len(needed)
        left = [checkpoint for checkpoint in dropped.pop(_CHECKPOINT) if checkpoint.id not in needed]
        dropped |= {_CHECKPOINT: left} if left else {}
    return dropped, kept


def _drop(engine: Engine, space: str, dropped: dict[str, list[_Entry]], keep: Keep, clock: Clock) -> str:
    check_may_erase(engine, space)
    event = record(
        engine,
        space,
        kind="retention",
        data={
            "keep": _rules(keep),
            "dropped": {kind: len(checkpoints) for kind, checkpoints in dropped.items()},
        },
        body=encode(
            {kind: [checkpoint.id for checkpoint in checkpoints] for kind, checkpoints in dropped.items()}
        ),
        clock=clock,
    )
    failpoints.hit(_RECORDED)
    checkpoints = [checkpoint for each in dropped.values() for checkpoint in each]
    pins: set[str] = set()
    read_at = -1
    for start in range(0, len(checkpoints), _BATCH):
        now_at = last_seq(engine, space)
        if now_at != read_at:
            pins, read_at = _pins(engine, space), now_at
        seqs = tuple(
            checkpoint.seq for checkpoint in checkpoints[start : start + _BATCH] if checkpoint.id not in pins
        )
        if seqs:
            engine.erase(space, Erasure(event_seqs=seqs))
        failpoints.hit(_DROPPED)
    return event


def _pins(engine: Engine, space: str) -> set[str]:
    """The ids of events that a ref names."""
    pins: set[str] = set()
    for ref in each_ref(engine, space, ""):
        named = _fields(ref.value)
        pins.update(named[key] for key in _PINS if isinstance(named.get(key), str))
    return pins


def _fields(value: bytes) -> dict[str, Any]:
    """A JSON object, or an empty one for anything else that a ref or an event may hold."""
    if not value.startswith(b"{"):
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _rules(keep: Keep) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(keep).items() if value}


_retained: Final[dict[str, RetainedKind]] = {
    _CHECKPOINT: RetainedKind(),
    "snapshot": RetainedKind(by_scope),
    "memory.version": RetainedKind(by_scope),
    "sandbox_checkpoint": RetainedKind(together, session_tags),
}
