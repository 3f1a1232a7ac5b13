"""Savers on a treering store: in memory, in a folder (SQLite), in PostgreSQL.

Each opens a store of its own, or takes one that is open (plain or async): then its checkpoints lie beside
everything else in that store, and closing the saver leaves it open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from treering import api
from treering.compat.savers.checkpoint import (
    FIRST_STATE,
    Checkpoint,
    Contents,
    Facts,
    Origin,
    Shelf,
    Writing,
    check_expected,
    checked_keep,
    checked_namespace,
    given,
)
from treering.compat.savers.saver import HooksLike, Saver, as_hooks
from treering.core.clock import SystemClock
from treering.core.encoding import encode
from treering.core.engine import Engine
from treering.core.ids import thread_scope
from treering.core.paging import each_record
from treering.core.query import Erasure, EventQuery
from treering.core.records import Record
from treering.core.retention import Keep, RetentionEntry, select
from treering.errors import Conflict, InvalidInput, NotFound, TreeringError
from treering.maintenance.audit_events import record_audit_event
from treering.store import Store
from treering.threads.checkpoint import Checkpoint as ThreadCheckpoint
from treering.threads.checkpoint_record import KIND, MESSAGES, created_at_us, read_checkpoint
from treering.threads.directory import thread_info
from treering.threads.head import Adopted, Head, ThreadMoved
from treering.threads.history import Journal
from treering.threads.hooks import SaveRequest
from treering.threads.thread import Thread

if TYPE_CHECKING:
    from treering.aio import AsyncStore
    from treering.api import Durability


# -----------------------------------------------------------------------------------------------------------
# Retention for one thread of a treering store: what `store.gc` does, after each save.
#
# **Invariant:** the newest checkpoint always stays, and the journal says what is dropped before it is.


def drop_from_store(store: Store, thread_id: str, namespace: str, keep: Keep) -> None:
    """Drop the checkpoints of a thread that ``keep`` does not want. `store.gc` returns their space."""
    engine, space = store.engine, store.space
    clock = SystemClock()
    records = {each.event.id: each for each in _records(engine, space, thread_scope(thread_id, namespace))}
    decision = select(_entries(engine, space, records.values()), keep, now_us=clock.now_us())
    info = thread_info(engine, space, thread_id, namespace)
    ids = [each.id for each in decision.dropped if info is not None and each.id != info.head]
    if not ids:
        return
    record_audit_event(
        engine,
        space,
        kind="retention",
        data={"dropped": {KIND: len(ids)}},
        body=encode({KIND: ids}),
        clock=clock,
    )
    engine.erase(space, Erasure(event_seqs=tuple(records[each].seq for each in ids)))


def _entries(engine: Engine, space: str, records: Iterable[Record]) -> Iterator[RetentionEntry]:
    for each in records:
        checkpoint = read_checkpoint(engine, space, each)
        yield RetentionEntry(
            id=checkpoint.id,
            ts_us=each.committed_at_us,
            tags=frozenset(checkpoint.tags),
            size_bytes=len(each.event.data or b""),
        )


def _records(engine: Engine, space: str, scope: str) -> Iterator[Record]:
    return each_record(engine, space, EventQuery(kinds=(KIND,), scope=scope))


# -----------------------------------------------------------------------------------------------------------
# Checkpoints on a treering store: a saver's thread is a thread of `store.thread`.
#
# What savers write here, the thread view, the command line and every adapter read, and the other way round.
# Saving goes by compare-and-swap, so any number of processes may save to one thread: every save gets its
# place in the history, none is lost.


_TRIES: Final = 100
_REMEMBERED: Final = 256
"""So many threads are remembered by the fingerprints of their messages, for saving only what is new."""


class StoreShelf:
    """Threads of one namespace of one store."""

    def __init__(self, store: Store, *, namespace: str, keep: Keep | None, owned: bool) -> None:
        self._store = store
        self._namespace = namespace
        self._keep = keep
        self._owned = owned
        self._lock = Lock()
        self._known: OrderedDict[str, Thread] = OrderedDict()
        self._adopting: tuple[str, Head] | None = None

    @property
    def namespace(self) -> str:
        """The tenant; empty for none."""
        return self._namespace

    @property
    def store(self) -> Store:
        """The store below."""
        return self._store

    def elsewhere(self, namespace: str) -> Shelf:
        """The same store for another tenant."""
        return StoreShelf(self._store, namespace=namespace, keep=self._keep, owned=self._owned)

    def write(self, writing: Writing) -> Checkpoint | None:
        """Append a checkpoint; one that comes second is appended to what came first."""
        saved = self._append(writing) if writing.origin is None else self._adopt(writing, writing.origin)
        if saved is not None and self._keep is not None:
            drop_from_store(self._store, writing.thread_id, self._namespace, self._keep)
        return saved

    def newest(self, thread_id: str) -> Checkpoint | None:
        """The head of the thread."""
        for attempt in range(_TRIES):
            try:
                with self._thread(thread_id) as thread:
                    head = thread.load()
                    return None if head is None else self._given(head).read()
            except NotFound:  # saved over and dropped, or deleted, between two reads
                if attempt == _TRIES - 1:
                    raise
        return None

    def find(self, thread_id: str, checkpoint_id: str) -> Checkpoint:
        """One checkpoint of the thread."""
        checkpoint = self._store.thread(thread_id, self._namespace).at(checkpoint_id)
        if checkpoint.thread_id != thread_id:
            raise NotFound(f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}; list it to see them")
        return self._given(checkpoint).read()

    def exists(self, thread_id: str) -> bool:
        """Whether the thread has a head."""
        return thread_info(self._store.engine, self._store.space, thread_id, self._namespace) is not None

    def threads(self) -> Iterator[str | TreeringError]:
        """All threads, the one that was saved last first."""
        for info in self._store.threads(namespace=self._namespace):
            yield info.id

    def history(self, thread_id: str) -> Iterator[Checkpoint]:
        """The line to the head, as far as it lies in this thread."""
        info = thread_info(self._store.engine, self._store.space, thread_id, self._namespace)
        if info is None:
            return
        told: set[str] = set()
        tries = 0
        while True:
            try:
                for checkpoint in self._store.thread(thread_id, self._namespace).history():
                    if checkpoint.thread_id != thread_id:
                        return
                    if checkpoint.id not in told:
                        told.add(checkpoint.id)
                        tries = 0
                        yield self._given(checkpoint, first_us=info.created_at_us)
            except NotFound:  # dropped or deleted just now: what is left, from where this was
                tries += 1
                if tries == _TRIES:
                    raise
            else:
                return

    def fork(self, thread_id: str, new_id: str, checkpoint_id: str | None) -> Checkpoint:
        """A fork that shares its past; it costs one row."""
        if checkpoint_id is not None:
            self.find(thread_id, checkpoint_id)
        fork = self._store.thread(thread_id, self._namespace).fork(new_id, at=checkpoint_id)
        head = fork.head
        if head is None:
            raise NotFound(f"thread {new_id!r} was removed while it was made; fork again")
        return self._given(head).read()

    def remove(self, thread_id: str, *, cascade: bool) -> bool:
        """Remove the thread; the journal keeps that something was deleted."""
        if not self.exists(thread_id):
            return False
        with self._thread(thread_id) as thread:
            thread.delete(cascade=cascade)
        return True

    def refuse_to_block(self) -> None:
        """Nothing here is async."""

    def close(self) -> None:
        """Close the store, if the saver opened it."""
        if self._owned:
            self._store.close()

    def _append(self, writing: Writing) -> Checkpoint | None:
        for attempt in range(_TRIES):
            with self._thread(writing.thread_id) as thread:
                head = thread.head
                check_expected(writing, None if head is None else head.id)
                state = writing.state
                if state is None and head is None:
                    state = FIRST_STATE
                try:
                    checkpoint = thread.checkpoint(
                        writing.messages,
                        state,
                        pending_interrupt=writing.pending_interrupt,
                        metadata=writing.metadata,
                        note=writing.note,
                        tags=writing.tags,
                        step=writing.step,
                    )
                except ThreadMoved as moved:
                    if attempt == _TRIES - 1:
                        raise
                    check_expected(writing, moved.actual)
                    continue
                return None if checkpoint is None else self._saved(checkpoint, writing.messages, state)
        raise Conflict(f"thread {writing.thread_id!r} is saved to by too many at once; save it again")

    def _saved(
        self, checkpoint: ThreadCheckpoint, messages: Sequence[Any] | None, state: dict[str, Any] | None
    ) -> Checkpoint:
        # Hooks of the store may have changed what was given; then it has to be read to be known.
        changed = self._store.hooks.has("pre_checkpoint_save")
        contents = _contents(checkpoint)
        return self._given(checkpoint, contents=contents if changed else given(messages, state, contents))

    def _adopt(self, writing: Writing, origin: Origin) -> Checkpoint:
        """Take in a checkpoint with its own id and times; its parent in another thread, if that is here."""
        head = self._head(writing.thread_id)
        before = head.see()
        check_expected(writing, None if before is None else before.id)
        made_us = created_at_us(origin.id)
        adopted = Adopted(
            id=origin.id,
            created_at_us=min(max(origin.updated_at_us, made_us), made_us + 999),
            first_us=origin.created_at_us,
            parent=self._present(origin.parent_id) if before is None else None,
        )
        saving = SaveRequest(
            thread_id=writing.thread_id,
            namespace=self._namespace,
            state=writing.state,
            pending_interrupt=writing.pending_interrupt,
            metadata=writing.metadata,
            note=writing.note,
            tags=writing.tags,
        )
        checkpoint = head.save(saving, {MESSAGES: writing.messages or ()}, (), writing.step, adopted)
        return self._given(ThreadCheckpoint(self._store.engine, self._store.space, checkpoint))

    def _present(self, checkpoint_id: str | None) -> str | None:
        if checkpoint_id is None:
            return None
        try:
            return Journal(self._store.engine, self._store.space, self._namespace).by_id(checkpoint_id).id
        except NotFound:
            return None

    def _head(self, thread_id: str) -> Head:
        """The head that the last checkpoint was taken in by: copies come thread by thread."""
        if self._adopting is None or self._adopting[0] != thread_id:
            store = self._store
            head = Head(store.engine, store.space, thread_id, self._namespace, clock=SystemClock())
            self._adopting = (thread_id, head)
        return self._adopting[1]

    def _given(
        self, checkpoint: ThreadCheckpoint, *, first_us: int | None = None, contents: Contents | None = None
    ) -> Checkpoint:
        record = checkpoint.record
        if first_us is None:
            info = thread_info(self._store.engine, self._store.space, record.thread, record.namespace)
            first_us = record.created_at_us if info is None else info.created_at_us
        facts = Facts(
            id=record.id,
            thread_id=record.thread,
            namespace=record.namespace,
            parent_id=record.parent,
            step=record.step,
            created_at_us=first_us,
            updated_at_us=record.created_at_us,
            pending_interrupt=record.pending_interrupt,
            metadata=record.metadata,
            note=record.note,
            tags=record.tags,
        )
        return Checkpoint(facts, contents or _contents(checkpoint))

    @contextmanager
    def _thread(self, thread_id: str) -> Generator[Thread]:
        """The thread as it was last seen, for one caller at a time; another one gets a fresh one."""
        with self._lock:
            known = self._known.pop(thread_id, None)
        thread = known or self._store.thread(thread_id, self._namespace)
        yield thread
        with self._lock:
            self._known[thread_id] = thread
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)


def _contents(checkpoint: ThreadCheckpoint) -> Contents:
    return Contents(lambda: checkpoint.messages, lambda: checkpoint.state)


# -----------------------------------------------------------------------------------------------------------


class StoreSaver(Saver):
    """A saver on a store that is open, or is opened once everything else was found to be right."""

    _place = "nothing"
    """What a caller can say instead of an open store."""

    def __init__(
        self,
        store: Store | AsyncStore | Callable[[], Store],
        *,
        namespace: str,
        hooks: HooksLike | None,
        keep: Keep | None,
    ) -> None:
        own, checked, kept = as_hooks(hooks), checked_namespace(namespace), checked_keep(keep)
        given: Any = store
        if isinstance(given, Store):
            opened, owned = given, False
        elif callable(given):
            opened, owned = cast("Callable[[], Store]", given)(), True
        elif isinstance(given_sync := getattr(given, "sync", None), Store):
            opened, owned = given_sync, False
        else:
            raise InvalidInput(
                f"{type(given).__name__} is no place for checkpoints; give {self._place}, or an open store"
            )
        # A store's own hooks fire where it saves; they are not run a second time around it.
        super().__init__(
            StoreShelf(opened, namespace=checked, keep=kept, owned=owned),
            hooks=None if own is opened.hooks else own,
        )


class MemorySaver(StoreSaver):
    """Checkpoints in memory, for development and tests: they end with the process."""

    def __init__(
        self,
        store: Store | AsyncStore | None = None,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(
            (lambda: api.open("memory:")) if store is None else store,
            namespace=namespace,
            hooks=hooks,
            keep=keep,
        )


class SqliteSaver(StoreSaver):
    """Checkpoints in a folder with a SQLite database; any number of processes may use it."""

    _place = "a folder"

    def __init__(
        self,
        path: str | Path | Store | AsyncStore,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        durability: Durability = "full",
    ) -> None:
        super().__init__(
            (lambda: _open_folder(path, durability)) if isinstance(path, (str, Path)) else path,
            namespace=namespace,
            hooks=hooks,
            keep=keep,
        )


class PostgresSaver(StoreSaver):
    """Checkpoints in a PostgreSQL database; needs ``treering[postgres]``."""

    _place = "the URL of a database"

    def __init__(
        self,
        url: str | Store | AsyncStore,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(
            (lambda: _open_postgres(url)) if isinstance(url, str) else url,
            namespace=namespace,
            hooks=hooks,
            keep=keep,
        )


def _open_folder(path: str | Path, durability: Durability) -> Store:
    place = api.locate(path)
    if place.folder is None:
        raise InvalidInput(f"{place.display} is no folder; SqliteSaver keeps its database in one")
    return api.open(path, durability=durability)


def _open_postgres(url: str) -> Store:
    place = api.locate(url)
    if place.scheme not in {"postgresql", "postgres"}:
        raise InvalidInput(f"{place.display} is no PostgreSQL; use postgresql://user@host/database")
    return api.open(url)
