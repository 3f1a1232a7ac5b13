"""Removing a thread: all of it (`delete`), or only its transcript or its checkpoints (`clean`).

The checkpoints of a thread take along its heads, its lists, its state and what a graph's tasks wrote. Runs
that were recorded in the thread stay after `clean`; they go with `delete` and `forget`. `clean` wipes storage
as `forget` does. **Invariant:** the journal keeps that something was removed and how much, never whose it
was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treering.core.batch import Draft, Event
from treering.core.encoding import encode_json
from treering.core.ids import parse_scope
from treering.core.query import Erasure, EventQuery, each_record
from treering.runs.tree import below_thread
from treering.threads.checkpoint import KIND, REVISION, anchor, read_checkpoint, registered
from treering.threads.history import CLEANED, DELETED, LEDGER, REWIND
from treering.threads.line_files import CHECKPOINT_ROW, LINE_KINDS, erase_with_files

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.threads.head import Head


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """How much was removed; ``kept`` names shared content and files that had to stay, and why."""

    transcript_events: int = 0
    checkpoints: int = 0
    bytes: int = 0
    kept: dict[str, str] = {}


def clean(
    engine: Engine,
    space: str,
    head: Head,
    *,
    transcript: bool,
    checkpoints: bool,
    cascade: bool,
    clock: Clock,
) -> Cleaned:
    """Remove the transcript and/or the checkpoints of a thread, if there are any."""
    found = _Contents(engine, space, head.scope)
    seqs = [*(found.transcript if transcript else ()), *(found.checkpoint_events if checkpoints else ())]
    heads = engine.refs(space, [head.ref, *found.further_heads]) if checkpoints else {}
    if not seqs and not heads:
        return Cleaned()
    plan = Erasure(
        event_seqs=tuple(seqs),
        refs=tuple(heads),
        lists=tuple(found.lists) if checkpoints else (),
        cascade=cascade,
        secure=True,
    )
    kinds = (*(LINE_KINDS if transcript else ()), *((CHECKPOINT_ROW,) if checkpoints else ()))
    erased = erase_with_files(engine, space, plan, threads=(head.scope,), kinds=kinds)
    head.forget()
    cleaned = Cleaned(
        transcript_events=len(found.transcript) if transcript else 0,
        checkpoints=found.checkpoints if checkpoints else 0,
        bytes=erased.bytes,
        kept=dict(erased.kept),
    )
    counts = {"transcript_events": cleaned.transcript_events, "checkpoints": cleaned.checkpoints}
    _record(engine, space, CLEANED, counts, clock)
    return cleaned


def delete(engine: Engine, space: str, head: Head, *, cascade: bool, clock: Clock) -> Cleaned:
    """Remove everything of a thread, if it exists, and the threads and runs that exist only for it."""
    exists = head.ref in engine.refs(space, [head.ref])
    if not exists and not engine.scan(space, EventQuery(scope=head.scope), limit=1).records:
        return Cleaned()
    scope = parse_scope(head.scope)
    below = below_thread(engine, space, scope.id, scope.namespace)
    plan = Erasure(scopes=(head.scope, *below.scopes), cascade=cascade)
    erased = erase_with_files(engine, space, plan, threads=plan.scopes)
    head.forget()
    _record(engine, space, DELETED, None, clock)
    return Cleaned(bytes=erased.bytes, kept={**erased.kept, **below.elsewhere})


class _Contents:
    """What a thread's scope holds: events by sequence number, heads beside its own, and its own lists."""

    def __init__(self, engine: Engine, space: str, scope: str) -> None:
        self.transcript: list[int] = []
        self.checkpoint_events: list[int] = []
        self.checkpoints = 0
        self.further_heads: set[str] = set()
        self.lists: dict[str, None] = {}
        named: set[str] = set()
        extension = registered()
        further_kinds = () if extension is None else extension.event_kinds
        for record in each_record(engine, space, EventQuery(scope=scope)):
            kind = record.event.kind
            if kind in (KIND, REVISION):
                self.checkpoint_events.append(record.seq)
                self.checkpoints += kind == KIND
                checkpoint = read_checkpoint(engine, space, record)
                named.update(prefix.list for prefix in checkpoint.lists.values())
                if extension is not None and (further := extension.head_of(checkpoint)) is not None:
                    self.further_heads.add(further)
            elif kind == REWIND or kind in further_kinds:
                self.checkpoint_events.append(record.seq)
            elif record.event.run is None:
                self.transcript.append(record.seq)
        for list_id in sorted(named):
            for info in engine.lineage(space, list_id):
                if info.scope == scope:
                    self.lists[info.list] = None
        if engine.list_info(space, anchor(scope)) is not None:
            self.lists[anchor(scope)] = None


def _record(engine: Engine, space: str, kind: str, counts: dict[str, int] | None, clock: Clock) -> None:
    draft = Draft(space)
    data = None if counts is None else encode_json(counts)
    draft.event(Event(id=draft.id, kind=kind, ts_us=clock.now_us(), scope=LEDGER, data=data))
    engine.commit(draft.batch())
