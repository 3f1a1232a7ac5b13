"""The decision: may this batch commit, and what will it have done?

Pure. Batches of a group are decided one after the other against `CommitState`, each seeing what the ones
before it did. A batch is checked completely before it changes anything, so a rejected one leaves no
trace and does not touch its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.batch import ABSENT, ANY, Add, Delete, Receipt, Set
from treering.core.content import list_address
from treering.core.lists import MAX_DEPTH
from treering.engines.sql.commit.state import VALUE_BYTES, ListState, RefState
from treering.errors import (
    Conflict,
    Fenced,
    InvalidInput,
    ListMoved,
    MissingObjects,
    NotFound,
    RefMoved,
    TreeringError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.batch import Append, Batch, RefChange
    from treering.engines.sql.commit.encode import EncodedBatch
    from treering.engines.sql.commit.state import CommitState, SpaceCache


class AcceptedBatch:
    """A batch that will be written, with the places that were found for it."""

    __slots__ = ("appends", "encoded", "receipt", "refs")

    def __init__(
        self,
        encoded: EncodedBatch,
        receipt: Receipt,
        refs: list[tuple[RefChange, RefState]],
        appends: list[tuple[Append, ListState]],
    ) -> None:
        self.encoded = encoded
        self.receipt = receipt
        self.refs = refs
        self.appends = appends


def decide_all(
    current: CommitState, group: Iterable[EncodedBatch]
) -> list[AcceptedBatch | Receipt | TreeringError]:
    """Decide one batch after the other: accepted, committed before, or rejected."""
    decisions: list[AcceptedBatch | Receipt | TreeringError] = []
    for encoded in group:
        try:
            decisions.append(decide(current, encoded))
        except TreeringError as rejection:
            decisions.append(rejection)
    return decisions


def decide(current: CommitState, encoded: EncodedBatch) -> AcceptedBatch | Receipt:
    """Accept a batch and count it into ``current``, or give back the receipt of its first commit.

    Raises what the batch has to be rejected with.
    """
    batch = encoded.batch
    replay = current.receipts.get(batch.id)
    if replay is not None:
        return replay
    if batch.fences:
        _check_fences(current, batch)
    _check_addresses(current, encoded)
    refs = [(change, _moved(current, change)) for change in batch.refs]
    appends = _appended(current, batch) if batch.lists else []
    return _count_in(current, encoded, refs, appends)


def _check_fences(current: CommitState, batch: Batch) -> None:
    for fence in batch.fences:
        if current.tokens.get(fence.lease) != fence.token:
            raise Fenced(
                f"lease {fence.lease!r} is not held under token {fence.token} any more; "
                "nothing was written: claim it again"
            )


def _check_addresses(current: CommitState, encoded: EncodedBatch) -> None:
    dependencies = encoded.dependencies
    if dependencies.objects:
        missing = tuple(name for name in dependencies.objects if name not in current.objects)
        if missing:
            raise MissingObjects(missing)
    if dependencies.slots or dependencies.linked:
        others = [
            f"s:{batch}:{part}" for batch, part in dependencies.slots if (batch, part) not in current.bodies
        ]
        others += [list_address(name) for name in dependencies.linked if name not in current.lists]
        if others:
            raise NotFound(
                f"batch {encoded.batch.id!r} points at {others[0]!r}, which is not stored; "
                "nothing was written"
            )


def _moved(current: CommitState, change: RefChange) -> RefState:
    now = current.refs.get(change.name)
    version, value, scope = (0, None, None) if now is None else (now.version, now.value, now.scope)
    expect = change.expect
    if expect == ABSENT:
        if value is not None:
            raise RefMoved(f"ref {change.name!r} exists at version {version} where none was expected")
    elif expect != ANY and (value is None or expect != version):
        there = f"is at version {version}" if value is not None else "does not exist"
        raise RefMoved(f"ref {change.name!r} {there}, expected version {expect}; read it again and retry")
    move = change.change
    if isinstance(move, Set):
        return RefState(version + 1, move.value, scope)
    if isinstance(move, Delete):
        return RefState(version + 1 if value is not None else version, None, scope)
    return RefState(version + 1, b"%d" % move.total(change.name, value), scope)


def _appended(current: CommitState, batch: Batch) -> list[tuple[Append, ListState]]:
    appends: list[tuple[Append, ListState]] = []
    fresh: dict[str, ListState] = {}
    for append in batch.lists:
        parent = None
        if append.parent is not None:
            parent = fresh.get(append.parent) or current.lists.get(append.parent)
        state = fresh.get(append.list) or current.lists.get(append.list)
        if state is None:
            state = _created(current, append, parent)
        elif state.length != append.at:
            raise ListMoved(
                f"list {append.list!r} has {state.length} items where {append.at} were expected; "
                "start a child list from the position you know"
            )
        elif append.parent is not None and (parent is None or parent.no != state.parent):
            raise Conflict(f"list {append.list!r} exists with another parent than {append.parent!r}")
        elif state.scope != _scope_number(current, append.scope):
            raise ListMoved(f"list {append.list!r} belongs to another scope than {append.scope!r}")
        state = state.with_length(append.at + len(append.items))
        fresh[append.list] = state
        appends.append((append, state))
    return appends


def _created(current: CommitState, append: Append, parent: ListState | None) -> ListState:
    no = current.list_numbers[append.list]
    scope = _scope_number(current, append.scope)
    if append.parent is None:
        if append.at:
            raise Conflict(f"list {append.list!r} does not exist, so it has no position {append.at}")
        return ListState(no, scope, None, 0, 0, 0)
    if parent is None:
        raise NotFound(f"list {append.list!r} names the parent {append.parent!r}, which does not exist")
    if parent.length < append.at:
        raise Conflict(f"list {append.parent!r} has {parent.length} items; cannot branch off at {append.at}")
    if parent.depth >= MAX_DEPTH:
        raise InvalidInput(f"list {append.parent!r} is {parent.depth} parents deep; flatten it first")
    return ListState(no, scope, parent.no, append.at, append.at, parent.depth + 1)


def _scope_number(current: CommitState, scope: str) -> int:
    number = current.scopes.get(scope)
    return current.scope_numbers[scope] if number is None else number


def _count_in(
    current: CommitState,
    encoded: EncodedBatch,
    refs: list[tuple[RefChange, RefState]],
    appends: list[tuple[Append, ListState]],
) -> AcceptedBatch:
    batch = encoded.batch
    first_seq = current.seq + 1
    current.seq += len(batch.events) or 1
    current.committed_at_us = max(current.now_us, current.committed_at_us + 1)
    versions: dict[str, int] = {}
    sums: dict[str, int] = {}
    for change, state in refs:
        versions[change.name] = state.version
        if isinstance(change.change, Add):
            sums[change.name] = int(state.value or b"0")
        current.refs[change.name] = state
    receipt = Receipt(
        batch=batch.id,
        first_seq=first_seq,
        last_seq=current.seq,
        committed_at_us=current.committed_at_us,
        versions=versions,
        sums=sums,
        new_events=len(batch.events),
    )
    current.receipts[batch.id] = receipt
    current.objects.update(batch.objects)
    for part in range(len(batch.parts)):
        current.bodies.add((batch.id, part))
    for append, state in appends:
        current.lists[append.list] = state
    return AcceptedBatch(encoded, receipt, refs, appends)


# -----------------------------------------------------------------------------------------------------------
# The ordinary commit: a batch that moves and grows only what this process remembers.
#
# Most commits are like that: a step of an agent goes behind its lists, moves its head and adds an event,
# and nobody else has written meanwhile. Such a batch is accepted from memory alone, and so are several that
# come together. Whether the memory holds is the condition of the statement that writes them
# (`current.advance`, and `fresh` on SQLite). **Invariant:** what is accepted here `decide` would accept,
# with the same receipt; nothing is rejected here. Whatever is not ordinary goes the long way.


SMALL: Final = 8
"""How many events an ordinary batch has at most: each is looked up."""


def accept(group: Sequence[EncodedBatch], memory: SpaceCache, now_us: int) -> list[AcceptedBatch] | None:
    """Accept batches by what is remembered, each behind the last; ``None`` if one is not ordinary."""
    if memory.seq < 0:
        return None
    ahead = _Ahead(memory, now_us)
    accepted: list[AcceptedBatch] = []
    for encoded in group:
        each = ahead.accept(encoded)
        if each is None:
            return None
        accepted.append(each)
    return accepted


class _Ahead:
    """What is remembered, and what the batches that are accepted so far will change of it."""

    __slots__ = ("_at_us", "_lists", "_memory", "_now_us", "_refs", "_seq")

    def __init__(self, memory: SpaceCache, now_us: int) -> None:
        self._memory = memory
        self._now_us = now_us
        self._seq = memory.seq
        self._at_us = memory.committed_at_us
        self._refs: dict[str, RefState] = {}
        self._lists: dict[str, ListState] = {}

    def accept(self, encoded: EncodedBatch) -> AcceptedBatch | None:
        batch, dependencies, memory = encoded.batch, encoded.dependencies, self._memory
        if dependencies.leases or batch.texts or encoded.deltas or len(batch.events) > SMALL:
            return None
        if not (dependencies.slots.keys() <= memory.bodies and dependencies.objects.keys() <= memory.objects):
            return None
        scopes = memory.scopes
        if not dependencies.scopes <= scopes.keys() or not dependencies.lists <= memory.lists.keys():
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
        return AcceptedBatch(encoded, self._receipt(encoded, versions), refs, appends)

    def _receipt(self, encoded: EncodedBatch, versions: dict[str, int]) -> Receipt:
        events = len(encoded.batch.events)
        first_seq = self._seq + 1
        self._seq += events or 1
        self._at_us = max(self._now_us, self._at_us + 1)
        return Receipt(
            batch=encoded.batch.id,
            first_seq=first_seq,
            last_seq=self._seq,
            committed_at_us=self._at_us,
            versions=versions,
            sums={},
            new_events=events,
        )


def remember(memory: SpaceCache, accepted: Sequence[AcceptedBatch]) -> None:
    """Keep what ordinary commits left behind, once they have come through."""
    memory.seq = -1  # until the rest is there: a fork or an interrupt may happen in between
    for each in accepted:
        for append, grown in each.appends:
            memory.lists[append.list] = grown
        for change, moved in each.refs:
            memory.refs[change.name] = moved
            if moved.value is not None and len(moved.value) > VALUE_BYTES:
                del memory.refs[change.name]
        batch = each.encoded.batch
        if batch.parts or batch.objects:
            memory.hold([(batch.id, part) for part in range(len(batch.parts))], batch.objects)
    last = accepted[-1].receipt
    memory.committed_at_us = last.committed_at_us
    memory.seq = last.last_seq
