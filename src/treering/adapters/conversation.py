"""What the adapters of agent frameworks share: threads that are written by new messages only, and ids.

`Thread` compares whole lists to find the new messages. A framework that passes only the new ones says after
which messages they come: the end of the thread, an earlier point of it, or a point of another thread (a
fork). In each case only the new messages are written. **Invariant:** one save is one batch, checked against
the head that the caller saw: messages, state, head and what ``add_to_batch`` adds are stored together or
not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import groupby, islice
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from msgspec import structs

from treering.core.batch import Draft
from treering.core.clock import SystemClock, day_of
from treering.core.ids import check_id, thread_scope
from treering.core.query import Erasure, check_may_erase
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound
from treering.store import Store
from treering.threads.checkpoint import (
    MESSAGES,
    Checkpoint,
    CheckpointRecord,
    ListPrefix,
    StateValue,
    by_id,
    created_at_us,
    new_checkpoint_id,
    read_checkpoint,
    read_list,
    read_state,
)
from treering.threads.compaction import Compaction, stored_form
from treering.threads.directory import ThreadInfo
from treering.threads.head import Head, ThreadMoved
from treering.threads.history import Journal
from treering.threads.hooks import COMPACTIONS, CheckpointEvent, SaveRequest
from treering.threads.line_files import erase_with_files, warn_of_kept_files
from treering.threads.upcasting import upgrade_of_record, with_versions
from treering.threads.writer import (
    CheckpointWriter,
    HeadState,
    ListChange,
    NewCheckpoint,
    behind,
    head_ref,
    read_head,
)

_LONGEST: Final = 400
_LONGEST_PART: Final = 120
_READABLE: Final = 40
_TO_ESCAPE: Final = re.compile(r"[/%~\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CLOCK: Final = SystemClock()


class ConversationThread:
    """A thread of a store to which a framework adds messages."""

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
        """Return the head (``known``, if it still is that), or ``None`` if the thread does not exist.

        Content of older code is migrated, and saved in its new form (see `treering.threads.upcasting`).
        """
        ref = self._engine.refs(self._space, [self._ref]).get(self._ref)
        if ref is None:
            return None
        if known is not None and known.version == ref.version:
            return known
        value = read_head(ref)
        checkpoint = self._journal.by_id(value.checkpoint)
        if upgrade_of_record(checkpoint) is not None:
            with suppress(ThreadMoved):  # somebody else did it
                Head(self._engine, self._space, self.id, self.namespace, clock=_CLOCK).upcast()
            return self.head()
        return HeadState(checkpoint=checkpoint, version=ref.version, first_us=value.first_us)

    def newest(self) -> CheckpointRecord | None:
        """Return the newest stored checkpoint, even of a thread that was unlisted."""
        return next(self._journal.all_of(self._scope), None)

    def checkpoint(self, head: HeadState) -> Checkpoint:
        """Return the head with its content, and run the load hooks."""
        checkpoint = Checkpoint(self._engine, self._space, head.checkpoint)
        self._store.hooks.after_load(
            CheckpointEvent(thread_id=self.id, namespace=self.namespace, checkpoint=checkpoint)
        )
        return checkpoint

    def read(self, prefix: ListPrefix | None, *, last: int | None = None) -> list[Any]:
        """Return the messages of a list prefix, or only the last ones."""
        if prefix is None or last == 0:
            return []
        return read_list(self._engine, self._space, prefix, last=last)

    def save(
        self,
        before: HeadState | None,
        messages: Sequence[Any],
        *,
        after: ListPrefix | None,
        state: Mapping[str, Any] | None = None,
        pending_interrupt: Any = None,
        metadata_for: Callable[[Sequence[Any]], Mapping[str, Any]] | None = None,
        note: str | None = None,
        compaction: Compaction | None = None,
        add_to_batch: Callable[[Draft], None] | None = None,
    ) -> HeadState:
        """Save ``messages`` after ``after`` as the next checkpoint, if ``before`` is still the head.

        ``state`` is the whole state (``None``: unchanged). ``metadata_for`` returns the adapter's own
        metadata for the messages as the hooks left them. ``compaction`` is one of the messages before these.
        ``add_to_batch`` adds to the same commit. Raises `RefMoved` if the head or a ref of ``add_to_batch``
        moved, `Vetoed` if a hook vetoed the save.
        """
        request = self._store.hooks.before_save(
            SaveRequest(
                thread_id=self.id,
                namespace=self.namespace,
                messages=list(messages),
                appends=after is not None,
                previous=lambda: self._previous(before, after),
                state=None if state is None else dict(state),
                pending_interrupt=pending_interrupt,
                metadata=dict(metadata_for(messages)) if metadata_for is not None else {},
                note=note,
            )
        )
        if metadata_for is not None:
            request = structs.replace(
                request, metadata={**request.metadata, **metadata_for(request.messages or ())}
            )
        new = self._new_checkpoint(before, request, after)
        if compaction is not None:
            made = None if before is None else before.checkpoint.lists.get(COMPACTIONS)
            new = structs.replace(
                new, lists={**new.lists, COMPACTIONS: behind(made, [stored_form(compaction)])}
            )
        head = self._writer.save(new, before, also=add_to_batch)
        checkpoint = Checkpoint(self._engine, self._space, head.checkpoint)
        self._store.hooks.after_save(
            CheckpointEvent(thread_id=self.id, namespace=self.namespace, checkpoint=checkpoint)
        )
        return head

    def _previous(self, before: HeadState | None, after: ListPrefix | None) -> Any:
        if before is None:
            return None
        checkpoint = Checkpoint(self._engine, self._space, before.checkpoint)
        return SimpleNamespace(messages=self.read(after), state=checkpoint.state, step=checkpoint.step)

    def unlist(self, head: HeadState) -> None:
        """Delete the head, if it is still this one (else `RefMoved`), so that the thread no longer exists.

        A caller who may not `erase` is refused before anything is deleted.
        """
        check_may_erase(self._engine, self._space)
        draft = Draft(self._space)
        draft.delete_ref(self._ref, scope=self._scope, expect=head.version)
        self._engine.commit(draft.batch())

    def erase(self) -> bool:
        """Erase everything that is stored of an unlisted thread.

        Return ``False`` if it has to stay: forks share it, or a new thread has its name.
        """
        try:
            plan = Erasure(scopes=(self._scope,), absent=(self._ref,))
            erased = erase_with_files(self._engine, self._space, plan, threads=plan.scopes)
        except Conflict:
            return False
        warn_of_kept_files(erased)
        return True

    def _new_checkpoint(
        self, before: HeadState | None, request: SaveRequest, after: ListPrefix | None
    ) -> NewCheckpoint:
        parent = before.checkpoint if before is not None else None
        lists = dict(parent.lists) if parent is not None else {}
        changes: dict[str, ListChange] = {}
        if request.messages or after is not None:
            changes[MESSAGES] = behind(after, request.messages or [])
        else:
            lists.pop(MESSAGES, None)
            lists.pop(COMPACTIONS, None)
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
                metadata=with_versions(
                    request.metadata, self.id, None if parent is None else parent.metadata
                ),
                note=request.note,
                tags=request.tags,
                snapshot=parent.snapshot if parent is not None else None,
            ),
            lists=changes,
            state=request.state or {},
            previous_state=stored,
        )


def thread_id_for(given: str) -> str:
    """Return the thread id for a framework's id: the id itself, or a readable substitute if it is not valid.

    Frameworks allow the empty string, line breaks and any length. The substitute ends with ``~`` and the
    SHA-256 of the id; the adapters store the id with the messages and compare it.
    """
    try:
        if len(given) + 2 * given.count("/") + 2 * given.count("%") <= _LONGEST:  # the length in a scope
            return check_id(given, "id")
    except InvalidInput:
        pass
    readable = "".join(each if each.isprintable() else "-" for each in given[:_READABLE]).strip() or "id"
    return f"{readable}~{_digest(given)}"


def escape_part(part: str) -> str:
    """Escape a part of a thread id, so that it has no ``/``; a long part is cut and gets a digest.

    Injective: a ``~`` occurs only before a digest.
    """
    escaped = _TO_ESCAPE.sub(_escaped, part)
    return escaped if len(escaped) <= _LONGEST_PART else f"{escaped[:_READABLE]}~{_digest(part)}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_PAGE: Final = 500

State = dict[str, Any]


def read_heads(
    store: Store, threads: Iterable[ThreadInfo], *names: str
) -> Iterator[tuple[ThreadInfo, CheckpointRecord, State]]:
    """Yield threads with their newest checkpoint and the named state values that it has (without names, all).

    This takes one scan of the journal for each day that has a head, and one read of contents per page,
    however many threads there are. A thread that is removed meanwhile is left out.
    """
    remaining = iter(threads)
    while page := list(islice(remaining, _PAGE)):
        heads = _checkpoints(store, [each.head for each in page])
        states = _states(store, heads.values(), names)
        for each in page:
            if each.head in states:
                yield each, heads[each.head], states[each.head]


def _checkpoints(store: Store, ids: Sequence[str]) -> dict[str, CheckpointRecord]:
    """Return checkpoints by id, read day by day because the journal is keyed by day."""
    found: dict[str, CheckpointRecord] = {}
    for _, same_day in groupby(sorted(ids), key=lambda each: day_of(created_at_us(each))):
        query = by_id(*same_day)
        page = store.engine.scan(store.space, query, limit=len(query.ids))
        for record in page.records:
            checkpoint = read_checkpoint(store.engine, store.space, record)
            found[checkpoint.id] = checkpoint
    return found


def _states(store: Store, heads: Collection[CheckpointRecord], names: Collection[str]) -> dict[str, State]:
    """Return state values by checkpoint; in one read, unless some were removed meanwhile."""
    references: dict[str, StateValue] = {
        f"{head.id}/{name}": reference
        for head in heads
        for name, reference in head.state.items()
        if not names or name in names
    }
    try:
        values = read_state(store.engine, store.space, references)
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


_ATTEMPTS: Final = 5

T = TypeVar("T")


def retry_if_removed(read: Callable[[], T]) -> T:
    """Return what ``read`` returns; repeat it if something was missing, in case the thread was being removed.

    A thread's head, its checkpoint and its content are separate reads, and the thread can be removed
    between two of them. **Invariant:** a reader finds the thread as it was, or finds none; never an error
    that says that the store is damaged.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except (NotFound, Corrupt):
            continue
    return read()
