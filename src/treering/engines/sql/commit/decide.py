"""The decision: may this batch commit, and what will it have done?

Pure, and the only place that decides. The batches of a group are decided one after another against one
`CommitState`, each seeing the effects of those before it. A batch is checked completely before it changes
the state, so a rejected batch leaves no trace and does not affect its neighbours.

**Invariant:** the result depends on the state alone, not on where it came from. A batch that is accepted on a
cached state is accepted on a freshly read one, with the same receipt. A rejection or a repeated batch on a
cached state may be wrong, because the cache may be stale; so callers decide those again on a fresh one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.batch import ABSENT, ANY, Add, Delete, Receipt, Set
from treering.core.content import list_address
from treering.core.records import MAX_LIST_DEPTH
from treering.engines.sql.commit.state import ListState, RefState
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
    from collections.abc import Iterable

    from treering.core.batch import Append, Batch, RefChange
    from treering.engines.sql.commit.encode import EncodedBatch
    from treering.engines.sql.commit.state import CommitState


class AcceptedBatch:
    """A batch that will be written, with its receipt and the new states of its refs and lists."""

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
    state: CommitState, group: Iterable[EncodedBatch]
) -> list[AcceptedBatch | Receipt | TreeringError]:
    """Decide one batch after another: accepted, committed before (its receipt), or rejected (the error)."""
    decisions: list[AcceptedBatch | Receipt | TreeringError] = []
    for encoded in group:
        try:
            decisions.append(decide(state, encoded))
        except TreeringError as rejection:
            decisions.append(rejection)
    return decisions


def decide(state: CommitState, encoded: EncodedBatch) -> AcceptedBatch | Receipt:
    """Accept a batch and apply it to ``state``, or return the receipt of its first commit.

    Raises the error that the batch has to be rejected with.
    """
    batch = encoded.batch
    repeated = state.receipts.get(batch.id)
    if repeated is not None:
        return repeated
    if batch.fences:
        _check_fences(state, batch)
    _check_addresses(state, encoded)
    refs = [(change, _move(state, change)) for change in batch.refs]
    appends = _append(state, batch) if batch.lists else []
    return _apply(state, encoded, refs, appends)


def _check_fences(state: CommitState, batch: Batch) -> None:
    for fence in batch.fences:
        if state.tokens.get(fence.lease) != fence.token:
            raise Fenced(
                f"lease {fence.lease!r} is no longer held with token {fence.token}; "
                "nothing was written. Claim it again"
            )


def _check_addresses(state: CommitState, encoded: EncodedBatch) -> None:
    dependencies = encoded.dependencies
    if dependencies.objects:
        missing = tuple(name for name in dependencies.objects if name not in state.objects)
        if missing:
            raise MissingObjects(missing)
    if dependencies.slots or dependencies.linked:
        others = [
            f"s:{batch}:{part}" for batch, part in dependencies.slots if (batch, part) not in state.bodies
        ]
        others += [list_address(name) for name in dependencies.linked if name not in state.lists]
        if others:
            raise NotFound(
                f"batch {encoded.batch.id!r} links to {others[0]!r}, which is not stored; nothing was written"
            )


def _move(state: CommitState, change: RefChange) -> RefState:
    """Return the state of a ref after a change, once the change's expectation is met."""
    ref = state.refs.get(change.name)
    version, value, scope = (0, None, None) if ref is None else (ref.version, ref.value, ref.scope)
    expect = change.expect
    if expect == ABSENT:
        if value is not None:
            raise RefMoved(f"ref {change.name!r} already exists, at version {version}")
    elif expect != ANY and (value is None or expect != version):
        actual = f"is at version {version}" if value is not None else "does not exist"
        raise RefMoved(f"ref {change.name!r} {actual}, expected version {expect}; read it again and retry")
    move = change.change
    if isinstance(move, Set):
        return RefState(version + 1, bytes(move.value), scope)
    if isinstance(move, Delete):
        return RefState(version + 1 if value is not None else version, None, scope)
    return RefState(version + 1, b"%d" % move.total(change.name, value), scope)


def _append(state: CommitState, batch: Batch) -> list[tuple[Append, ListState]]:
    """Return the state of each list that the batch appends to, after the append."""
    appends: list[tuple[Append, ListState]] = []
    appended: dict[str, ListState] = {}
    for append in batch.lists:
        parent = None
        if append.parent is not None:
            parent = appended.get(append.parent) or state.lists.get(append.parent)
        target = appended.get(append.list) or state.lists.get(append.list)
        if target is None:
            target = _create_list(state, append, parent)
        elif target.length != append.at:
            raise ListMoved(
                f"list {append.list!r} has {target.length} items, expected {append.at}; "
                "start a child list at the position you know"
            )
        elif append.parent is not None and (parent is None or parent.no != target.parent):
            raise Conflict(f"list {append.list!r} exists with a parent other than {append.parent!r}")
        elif target.scope != _scope_number(state, append.scope):
            raise ListMoved(f"list {append.list!r} belongs to a scope other than {append.scope!r}")
        target = target.with_length(append.at + len(append.items))
        appended[append.list] = target
        appends.append((append, target))
    return appends


def _create_list(state: CommitState, append: Append, parent: ListState | None) -> ListState:
    no = state.list_numbers[append.list]
    scope = _scope_number(state, append.scope)
    if append.parent is None:
        if append.at:
            raise Conflict(f"list {append.list!r} does not exist, so it has no position {append.at}")
        return ListState(no, scope, None, 0, 0, 0)
    if parent is None:
        raise NotFound(f"list {append.list!r} names the parent {append.parent!r}, which does not exist")
    if parent.length < append.at:
        raise Conflict(f"list {append.parent!r} has {parent.length} items; cannot branch off at {append.at}")
    if parent.depth >= MAX_LIST_DEPTH:
        raise InvalidInput(f"list {append.parent!r} is {parent.depth} parents deep; flatten it first")
    return ListState(no, scope, parent.no, append.at, append.at, parent.depth + 1)


def _scope_number(state: CommitState, scope: str) -> int:
    number = state.scopes.get(scope)
    return state.scope_numbers[scope] if number is None else number


def _apply(
    state: CommitState,
    encoded: EncodedBatch,
    refs: list[tuple[RefChange, RefState]],
    appends: list[tuple[Append, ListState]],
) -> AcceptedBatch:
    """Number the batch, and let the next ones see what it does."""
    batch = encoded.batch
    first_seq = state.seq + 1
    state.seq += len(batch.events) or 1
    state.committed_at_us = max(state.now_us, state.committed_at_us + 1)
    versions: dict[str, int] = {}
    sums: dict[str, int] = {}
    for change, ref in refs:
        versions[change.name] = ref.version
        if isinstance(change.change, Add):
            sums[change.name] = int(ref.value or b"0")
        state.refs[change.name] = ref
    receipt = Receipt(
        batch=batch.id,
        first_seq=first_seq,
        last_seq=state.seq,
        committed_at_us=state.committed_at_us,
        versions=versions,
        sums=sums,
        new_events=len(batch.events),
    )
    state.receipts[batch.id] = receipt
    state.objects.update(batch.objects)
    for part in range(len(batch.parts)):
        state.bodies.add((batch.id, part))
    for append, target in appends:
        state.lists[append.list] = target
    state.written += 1
    return AcceptedBatch(encoded, receipt, refs, appends)
