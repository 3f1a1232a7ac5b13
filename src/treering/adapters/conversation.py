"""A transcript: the thread behind a framework's conversation, for adapters that know what is new in it.

`Thread` compares whole lists to find what is new. A framework that hands over the new messages by
themselves needs no comparison: it says behind which messages they go. That may be the tail of the
thread, an earlier point of it, or a point of another thread (a fork); in every case only the new
messages are written. **Invariant:** one save is one batch, checked against the head that the caller saw:
messages, state, head and what ``also`` adds are stored together or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby, islice
from typing import Any, Final, TypeVar

from msgspec import structs

from treering.core.batch import Draft
from treering.core.clock import SystemClock, day_of
from treering.core.ids import check_id, thread_scope
from treering.core.paging import check_may_erase
from treering.core.query import Erasure
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound
from treering.store import Store
from treering.threads import lists as lists_module
from treering.threads.checkpoint import Checkpoint
from treering.threads.checkpoint_record import (
    MESSAGES,
    CheckpointRecord,
    ListPrefix,
    StateValue,
    by_id,
    created_at_us,
    new_checkpoint_id,
    read_checkpoint,
)
from treering.threads.directory import ThreadInfo
from treering.threads.history import Journal, head_ref, read_head
from treering.threads.hooks import CheckpointEvent, SaveRequest
from treering.threads.lists import ListChange, behind
from treering.threads.state_values import read_state
from treering.threads.writer import CheckpointWriter, HeadState, NewCheckpoint

_LONGEST: Final = 400
_LONGEST_PART: Final = 120
_READABLE: Final = 40
_TO_ESCAPE: Final = re.compile(r"[/%~\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CLOCK: Final = SystemClock()


class Vetoed(Conflict):
    """A `pre_checkpoint_save` hook vetoed the save; nothing was written."""


class Transcript:
    """One thread of a store, written by what is new."""

    def __init__(self, store: Store, thread_id: str, namespace: str = "") -> None:
        self.id = thread_id
        self.namespace = namespace
        self._store = store
        self._engine = store.engine
        self._space = store.space
        self._ref = head_ref(thread_id, namespace)
        self._scope = thread_scope(thread_id, namespace)
        self._journal = Journal(self._engine, self._space, namespace)
        self._writer = CheckpointWriter(self._engine, self._space)

    def head(self, known: HeadState | None = None) -> HeadState | None:
        """The newest checkpoint, read only where ``known`` is not it any more; ``None`` without a thread."""
        ref = self._engine.refs(self._space, [self._ref]).get(self._ref)
        if ref is None:
            return None
        if known is not None and known.version == ref.version:
            return known
        value = read_head(ref)
        return HeadState(
            checkpoint=self._journal.by_id(value.checkpoint), version=ref.version, first_us=value.first_us
        )

    def newest(self) -> CheckpointRecord | None:
        """The newest checkpoint that is stored, also of a thread that was unlisted."""
        return next(self._journal.all_of(self._scope), None)

    def checkpoint(self, head: HeadState) -> Checkpoint:
        """The head with its content; fires the load hooks."""
        checkpoint = Checkpoint(self._engine, self._space, head.checkpoint)
        self._store.hooks.after_load(
            CheckpointEvent(thread_id=self.id, namespace=self.namespace, checkpoint=checkpoint)
        )
        return checkpoint

    def read(self, stretch: ListPrefix | None, *, last: int | None = None) -> list[Any]:
        """The messages of a stretch, or only its last ones."""
        if stretch is None or last == 0:
            return []
        return lists_module.read(self._engine, self._space, stretch, last=last)

    def save(
        self,
        before: HeadState | None,
        messages: Sequence[Any],
        *,
        after: ListPrefix | None,
        state: Mapping[str, Any] | None = None,
        pending_interrupt: Any = None,
        marks: Callable[[Sequence[Any]], Mapping[str, Any]] | None = None,
        note: str | None = None,
        also: Callable[[Draft], None] | None = None,
    ) -> HeadState:
        """Save ``messages`` behind ``after`` as the next checkpoint, if ``before`` is still the head.

        ``state`` is the whole state (``None``: as before). ``marks`` gives the adapter's own metadata for the
        messages as the hooks left them. Raises `RefMoved` when the head or a ref of ``also`` moved, `Vetoed`
        when a hook does not want the save.
        """
        request = self._store.hooks.before_save(
            SaveRequest(
                thread_id=self.id,
                namespace=self.namespace,
                messages=list(messages),
                state=None if state is None else dict(state),
                pending_interrupt=pending_interrupt,
                metadata=dict(marks(messages)) if marks is not None else {},
                note=note,
            )
        )
        if request is None:
            raise Vetoed(f"a hook vetoed request to thread {self.id!r}; nothing was written")
        if marks is not None:
            request = structs.replace(request, metadata={**request.metadata, **marks(request.messages or ())})
        head = self._writer.save(self._new(before, request, after), before, also=also)
        checkpoint = Checkpoint(self._engine, self._space, head.checkpoint)
        self._store.hooks.after_save(
            CheckpointEvent(thread_id=self.id, namespace=self.namespace, checkpoint=checkpoint)
        )
        return head

    def unlist(self, head: HeadState) -> None:
        """Remove the head, if it is still that one (else `RefMoved`): the thread is there no more.

        Who may not `erase` it afterwards is refused before that.
        """
        check_may_erase(self._engine, self._space)
        draft = Draft(self._space)
        draft.delete_ref(self._ref, scope=self._scope, expect=head.version)
        self._engine.commit(draft.batch())

    def erase(self) -> bool:
        """Remove all that is stored of a thread that was unlisted.

        ``False`` when it has to stay: forks share it, or there is a new thread of its name.
        """
        try:
            self._engine.erase(self._space, Erasure(scopes=(self._scope,), absent=(self._ref,)))
        except Conflict:
            return False
        return True

    def _new(self, before: HeadState | None, request: SaveRequest, after: ListPrefix | None) -> NewCheckpoint:
        parent = before.checkpoint if before is not None else None
        lists = dict(parent.lists) if parent is not None else {}
        lists.pop(MESSAGES, None)
        changes: dict[str, ListChange] = {}
        if request.messages or after is not None:
            changes[MESSAGES] = behind(after, request.messages or [])
        checkpoint_id, now_us = new_checkpoint_id(_CLOCK)
        stored = parent.state if parent is not None else {}
        return NewCheckpoint(
            record=CheckpointRecord(
                id=checkpoint_id,
                thread=self.id,
                namespace=self.namespace,
                parent=parent.id if parent is not None else None,
                step=parent.step + 1 if parent is not None else 0,
                created_at_us=now_us,
                lists=lists,
                state=stored if request.state is None else {},
                pending_interrupt=request.pending_interrupt,
                metadata=request.metadata,
                note=request.note,
                tags=request.tags,
            ),
            lists=changes,
            state=request.state or {},
            previous_state=stored,
        )


def thread_id_for(given: str) -> str:
    """The thread id of a framework's id: itself, or a readable substitute where it cannot be one.

    Frameworks allow the empty string, line breaks and any length. The substitute ends in a ``~`` and the
    SHA-256 of the given id; the adapters keep the given id beside the messages and compare it.
    """
    try:
        if len(given) + 2 * given.count("/") + 2 * given.count("%") <= _LONGEST:  # as scopes spell it
            return check_id(given, "id")
    except InvalidInput:
        pass
    readable = "".join(each if each.isprintable() else "-" for each in given[:_READABLE]).strip() or "id"
    return f"{readable}~{_digest(given)}"


def quoted(part: str) -> str:
    """A part of a thread id that holds no ``/``: percent-escaped, and past some length cut, with a digest.

    Two parts are never quoted alike: a ``~`` stands before a digest only.
    """
    escaped = _TO_ESCAPE.sub(_escaped, part)
    return escaped if len(escaped) <= _LONGEST_PART else f"{escaped[:_READABLE]}~{_digest(part)}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -----------------------------------------------------------------------------------------------------------
# The heads of many threads at once: what a list of sessions shows of each, in a few reads.
#
# `Store.threads` tells which threads there are without reading their checkpoints. What an adapter keeps in
# their state is read here for all of them together: one scan of the journal for each day that a head is of
# and one read of contents per page, however many threads there are. A thread that goes meanwhile is left out.


_PAGE: Final = 500

State = dict[str, Any]


def read_heads(
    store: Store, threads: Iterable[ThreadInfo], *names: str
) -> Iterator[tuple[ThreadInfo, CheckpointRecord, State]]:
    """Threads with their newest checkpoint, and those of the named state values (all, if none) it has."""
    waiting = iter(threads)
    while page := list(islice(waiting, _PAGE)):
        heads = _checkpoints(store, [each.head for each in page])
        states = _states(store, heads.values(), names)
        for each in page:
            if each.head in states:
                yield each, heads[each.head], states[each.head]


def _checkpoints(store: Store, ids: Sequence[str]) -> dict[str, CheckpointRecord]:
    """Checkpoints by their ids, asked for day by day, which is how the journal is keyed."""
    found: dict[str, CheckpointRecord] = {}
    for _, same_day in groupby(sorted(ids), key=lambda each: day_of(created_at_us(each))):
        query = by_id(*same_day)
        page = store.engine.scan(store.space, query, limit=len(query.ids))
        for record in page.records:
            checkpoint = read_checkpoint(store.engine, store.space, record)
            found[checkpoint.id] = checkpoint
    return found


def _states(store: Store, heads: Collection[CheckpointRecord], names: Collection[str]) -> dict[str, State]:
    """State values by checkpoint; all together, unless some of them just went."""
    places: dict[str, StateValue] = {
        f"{head.id}/{name}": place
        for head in heads
        for name, place in head.state.items()
        if not names or name in names
    }
    try:
        values = read_state(store.engine, store.space, places)
    except Corrupt:
        return dict(_one_by_one(store, heads, names))
    return {
        head.id: {name: values[key] for name in head.state if (key := f"{head.id}/{name}") in values}
        for head in heads
    }


def _one_by_one(
    store: Store, heads: Iterable[CheckpointRecord], names: Collection[str]
) -> Iterator[tuple[str, State]]:
    for head in heads:
        checkpoint = Checkpoint(store.engine, store.space, head)
        try:
            yield head.id, {name: checkpoint.value(name) for name in head.state if not names or name in names}
        except NotFound:
            continue


# -----------------------------------------------------------------------------------------------------------
# A look at a thread that someone else may be removing.
#
# Where the head is, its checkpoint and its content are reads of their own; a thread can go between two of
# them. **Invariant:** whoever looks finds it as it was, or finds none; never an error that tells of a
# damaged store.


_LOOKS: Final = 5

T = TypeVar("T")


def look(at: Callable[[], T]) -> T:
    """What a look gives; looks again where something was not there, until that is sure."""
    for _ in range(_LOOKS - 1):
        try:
            return at()
        except (NotFound, Corrupt):
            continue
    return at()
