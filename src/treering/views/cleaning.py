"""Cleaning: remove a thread's transcript, its checkpoints, or all of it, and say so without saying whose.

The transcript is what was logged in the thread; its checkpoints take the head, the lists, the state and what
a graph's tasks wrote along. Runs that were recorded in the thread stay: they go with `delete` and `forget`.
Storage is wiped as `forget` wipes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treering.core.batch import Event
from treering.core.draft import Draft
from treering.core.encoding import encode_json
from treering.core.pages import each_record
from treering.core.query import Erasure, EventQuery
from treering.views.checkpoints import KIND, anchor, read_checkpoint
from treering.views.graphs import WRITES
from treering.views.journal import CLEANED, DELETED, LEDGER, REWIND

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.views.heads import Head


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """How much was removed; ``kept`` names shared content that had to stay, and why."""

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
    """Remove what was chosen of the thread behind a head; nothing there is nothing done."""
    events = _Events(engine, space, head.scope)
    chosen = (events.transcript if transcript else []) + (
        [*events.checkpoints, *events.rewinds, *events.writes] if checkpoints else []
    )
    has_head = checkpoints and head.ref in engine.refs(space, [head.ref])
    if not chosen and not has_head:
        return Cleaned()
    erased = engine.erase(
        space,
        Erasure(
            event_seqs=tuple(chosen),
            refs=(head.ref,) if has_head else (),
            lists=tuple(events.lists) if checkpoints else (),
            cascade=cascade,
            secure=True,
        ),
    )
    head.forget()
    cleaned = Cleaned(
        transcript_events=len(events.transcript) if transcript else 0,
        checkpoints=len(events.checkpoints) if checkpoints else 0,
        bytes=erased.bytes,
        kept=dict(erased.kept),
    )
    counts = {"transcript_events": cleaned.transcript_events, "checkpoints": cleaned.checkpoints}
    _say(engine, space, CLEANED, counts, clock)
    return cleaned


def delete(engine: Engine, space: str, head: Head, *, cascade: bool, clock: Clock) -> None:
    """Remove everything of the thread behind a head; nothing there is nothing done."""
    is_there = head.ref in engine.refs(space, [head.ref])
    if not is_there and not engine.scan(space, EventQuery(scope=head.scope), limit=1).records:
        return
    engine.erase(space, Erasure(scopes=(head.scope,), cascade=cascade))
    head.forget()
    _say(engine, space, DELETED, None, clock)


class _Events:
    """What is in the scope of a thread, by sequence number, and the lists that are its own."""

    def __init__(self, engine: Engine, space: str, scope: str) -> None:
        self.transcript: list[int] = []
        self.checkpoints: list[int] = []
        self.rewinds: list[int] = []
        self.writes: list[int] = []
        self.lists: dict[str, None] = {}
        named: set[str] = set()
        for record in each_record(engine, space, EventQuery(scope=scope)):
            kind = record.event.kind
            if kind == KIND:
                self.checkpoints.append(record.seq)
                stretches = read_checkpoint(engine, space, record).lists.values()
                named.update(stretch.list for stretch in stretches)
            elif kind == REWIND:
                self.rewinds.append(record.seq)
            elif kind == WRITES:
                self.writes.append(record.seq)
            elif record.event.run is None:
                self.transcript.append(record.seq)
        for list_id in sorted(named):
            for info in engine.lineage(space, list_id):
                if info.scope == scope:
                    self.lists[info.list] = None
        if engine.list_info(space, anchor(scope)) is not None:
            self.lists[anchor(scope)] = None


def _say(engine: Engine, space: str, kind: str, counts: dict[str, int] | None, clock: Clock) -> None:
    draft = Draft(space)
    data = None if counts is None else encode_json(counts)
    draft.event(Event(id=draft.id, kind=kind, ts_us=clock.now_us(), scope=LEDGER, data=data))
    engine.commit(draft.batch())
