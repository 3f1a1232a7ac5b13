"""The ordinary commit: a batch that moves and grows only what this process remembers.

Most commits are like that: a step of an agent goes behind its lists, moves its head and adds an event, and
nobody else has written meanwhile. Such a batch is accepted from memory alone, and so are several that come
together. Whether the memory holds is the condition of the statement that writes them (`current.advance`, and
`fresh` on SQLite).
**Invariant:** what is accepted here `decide` would accept, with the same receipt; nothing is rejected here.
Whatever is not ordinary goes the long way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.batch import ANY, Receipt, Set
from treering.engines.relational.current import RefState
from treering.engines.relational.decision import Accepted
from treering.engines.relational.remembered import VALUE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Append, RefChange
    from treering.engines.relational.current import ListState
    from treering.engines.relational.prepared import Prepared
    from treering.engines.relational.remembered import Memory

SMALL: Final = 8
"""How many events an ordinary batch has at most: each is looked up."""


def accept(group: Sequence[Prepared], memory: Memory, now_us: int) -> list[Accepted] | None:
    """Accept batches by what is remembered, each behind the last; ``None`` if one is not ordinary."""
    if memory.seq < 0:
        return None
    ahead = _Ahead(memory, now_us)
    accepted: list[Accepted] = []
    for prepared in group:
        each = ahead.accept(prepared)
        if each is None:
            return None
        accepted.append(each)
    return accepted


class _Ahead:
    """What is remembered, and what the batches that are accepted so far will change of it."""

    __slots__ = ("_at_us", "_lists", "_memory", "_now_us", "_refs", "_seq")

    def __init__(self, memory: Memory, now_us: int) -> None:
        self._memory = memory
        self._now_us = now_us
        self._seq = memory.seq
        self._at_us = memory.committed_at_us
        self._refs: dict[str, RefState] = {}
        self._lists: dict[str, ListState] = {}

    def accept(self, prepared: Prepared) -> Accepted | None:
        batch, needs, memory = prepared.batch, prepared.needs, self._memory
        if needs.leases or batch.texts or prepared.deltas or len(batch.events) > SMALL:
            return None
        if not (needs.slots.keys() <= memory.bodies and needs.objects.keys() <= memory.objects):
            return None
        scopes = memory.scopes
        if not needs.scopes <= scopes.keys() or not needs.lists <= memory.lists.keys():
            return None
        versions: dict[str, int] = {}
        refs: list[tuple[RefChange, RefState]] = []
        for change in batch.refs:
            name, move, expect = change.name, change.change, change.expect
            now = self._refs.get(name) or memory.refs.get(name)
            if now is None or not isinstance(move, Set) or type(move.value) is not bytes:
                return None  # what the caller could still change would settle as it is by then
            if expect != ANY and (now.value is None or expect != now.version):
                return None
            if now.scope != scopes[change.scope]:
                return None
            versions[name] = version = now.version + 1
            refs.append((change, RefState(version, move.value, now.scope)))
        appends: list[tuple[Append, ListState]] = []
        grown: dict[str, ListState] = {}
        for append in batch.lists:
            name = append.list
            state = grown.get(name) or self._lists.get(name) or memory.lists[name]
            if append.parent is not None or state.length != append.at or state.scope != scopes[append.scope]:
                return None
            grown[name] = state = state.with_length(append.at + len(append.items))
            appends.append((append, state))
        self._lists.update(grown)
        for change, state in refs:
            self._refs[change.name] = state
        return Accepted(prepared, self._receipt(prepared, versions), refs, appends)

    def _receipt(self, prepared: Prepared, versions: dict[str, int]) -> Receipt:
        events = len(prepared.batch.events)
        first_seq = self._seq + 1
        self._seq += events or 1
        self._at_us = max(self._now_us, self._at_us + 1)
        return Receipt(
            batch=prepared.batch.id,
            first_seq=first_seq,
            last_seq=self._seq,
            committed_at_us=self._at_us,
            versions=versions,
            sums={},
            new_events=events,
        )


def remember(memory: Memory, accepted: Sequence[Accepted]) -> None:
    """Keep what ordinary commits left behind, once they have come through."""
    memory.seq = -1  # until the rest is there: a fork or an interrupt may happen in between
    for each in accepted:
        for append, grown in each.appends:
            memory.lists[append.list] = grown
        for change, moved in each.refs:
            memory.refs[change.name] = moved
            if moved.value is not None and len(moved.value) > VALUE_BYTES:
                del memory.refs[change.name]
        batch = each.prepared.batch
        if batch.parts or batch.objects:
            memory.hold([(batch.id, part) for part in range(len(batch.parts))], batch.objects)
    last = accepted[-1].receipt
    memory.committed_at_us = last.committed_at_us
    memory.seq = last.last_seq
