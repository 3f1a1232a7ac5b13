"""The ordinary commit: one batch that moves and grows only what this process remembers.

Most commits are like that: a step of an agent goes behind its lists, moves its head and adds an event, and
nobody else has written meanwhile. Such a batch is accepted from memory alone. Whether the memory holds is
told by the one question that locks the space; or, in a bundle (see `bundles`), all of it fails if it does
not. **Invariant:** what is accepted here `decide` would accept, with the same receipt; nothing is rejected
here. Whatever is not ordinary goes the long way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.batch import ANY, Receipt, Set
from treering.engines.relational.current import RefState
from treering.engines.relational.decision import Accepted
from treering.engines.relational.remembered import VALUE_BYTES

if TYPE_CHECKING:
    from treering.core.batch import Append, RefChange
    from treering.engines.relational.current import ListState
    from treering.engines.relational.prepared import Prepared
    from treering.engines.relational.remembered import Memory


SMALL: Final = 8
"""How many rows make a batch that is written in one call."""


def accept(prepared: Prepared, memory: Memory, now_us: int) -> Accepted | None:
    """Accept a batch by what is remembered, or ``None`` if it has to be read for and decided."""
    batch, needs = prepared.batch, prepared.needs
    if needs.leases or batch.texts:
        return None
    if not (needs.slots.keys() <= memory.bodies and needs.objects.keys() <= memory.objects):
        return None
    scopes, known_lists = memory.scopes, memory.lists
    if not needs.scopes <= scopes.keys() or not needs.lists <= known_lists.keys():
        return None
    versions: dict[str, int] = {}
    refs: list[tuple[RefChange, RefState]] = []
    for change in batch.refs:
        now, move, expect = memory.refs.get(change.name), change.change, change.expect
        if now is None or not isinstance(move, Set):
            return None
        if expect != ANY and (now.value is None or expect != now.version):
            return None
        if now.scope != scopes[change.scope]:
            return None
        versions[change.name] = version = now.version + 1
        refs.append((change, RefState(version, move.value, now.scope)))
    appends: list[tuple[Append, ListState]] = []
    for append in batch.lists:
        state = known_lists[append.list]
        if append.parent is not None or state.length != append.at or state.scope != scopes[append.scope]:
            return None
        appends.append((append, state.with_length(append.at + len(append.items))))
    events = len(batch.events)
    receipt = Receipt(
        batch=batch.id,
        first_seq=memory.seq + 1,
        last_seq=memory.seq + (events or 1),
        committed_at_us=max(now_us, memory.committed_at_us + 1),
        versions=versions,
        sums={},
        new_events=events,
    )
    return Accepted(prepared, receipt, refs, appends)


def is_small(prepared: Prepared) -> bool:
    """Whether a batch is one of those of which many have the same form: few rows, and nothing that counts."""
    batch = prepared.batch
    rows = len(batch.events) + len(batch.parts) + len(batch.objects) + len(batch.refs)
    return not prepared.deltas and rows + sum(map(len, prepared.items)) <= SMALL


def holds(memory: Memory, counters: tuple[int, int, int]) -> bool:
    """Whether everything is as it was left, by the counters of the locked space."""
    return counters == (memory.seq, memory.committed_at_us, memory.removals)


def remember(memory: Memory, each: Accepted, commit_no: int) -> None:
    """Keep what an ordinary commit left behind, once it has come through."""
    memory.seq = -1  # until the rest is there: a fork or an interrupt may happen in between
    memory.commit_no = commit_no
    for append, grown in each.appends:
        memory.lists[append.list] = grown
    for change, moved in each.refs:
        memory.refs[change.name] = moved
        if moved.value is not None and len(moved.value) > VALUE_BYTES:
            del memory.refs[change.name]
    batch = each.prepared.batch
    if batch.parts or batch.objects:
        memory.hold([(batch.id, part) for part in range(len(batch.parts))], batch.objects)
    memory.committed_at_us = each.receipt.committed_at_us
    memory.seq = each.receipt.last_seq
