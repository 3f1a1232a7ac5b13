"""Savers on a treering store: in memory, in a folder (SQLite), in PostgreSQL.

Each opens a store of its own, or uses one that is open (sync or async), which closing the saver leaves open.
A saver's thread is a thread of `store.thread`: the command line, the dashboard and every adapter can read
what a saver writes, and the other way round. Saving is a compare-and-swap of the thread's head, so any number
of processes may save to one thread: every save gets its place in the history, and none is lost.
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
    INITIAL_STATE,
    Checkpoint,
    CheckpointHeader,
    LazyContent,
    NewCheckpoint,
    Origin,
    SaverStorage,
    check_keep,
    check_namespace,
)
from treering.compat.savers.saver import Saver
from treering.core.clock import SystemClock
from treering.core.encoding import encode
from treering.core.engine import Engine
from treering.core.ids import thread_scope
from treering.core.query import Erasure, EventQuery, each_record
from treering.core.records import Record
from treering.core.retention import Keep, RetentionEntry, select
from treering.errors import Conflict, InvalidInput, NotFound, TreeringError
from treering.maintenance.forget import record_audit_event
from treering.store import Store
from treering.threads.checkpoint import KIND, MESSAGES, created_at_us, read_checkpoint
from treering.threads.checkpoint import Checkpoint as ThreadCheckpoint
from treering.threads.directory import thread_info
from treering.threads.head import Adopted, Head, ThreadMoved
from treering.threads.history import Journal
from treering.threads.hooks import HooksLike, SaveRequest, as_hooks
from treering.threads.thread import Thread

if TYPE_CHECKING:
    from treering.aio import AsyncStore
    from treering.api import Durability

_ATTEMPTS: Final = 100
_CACHED_THREADS: Final = 256
"""How many threads a saver knows the message fingerprints of: they tell which messages are new."""


class StoreSaver(Saver):
    """A saver on a store that is open, or that is opened after all other arguments were validated."""

    _accepts = "nothing"
    """What a caller can give instead of an open store."""

    def __init__(
        self,
        store: Store | AsyncStore | Callable[[], Store],
        *,
        namespace: str,
        hooks: HooksLike | None,
        keep: Keep | None,
    ) -> None:
        own, checked, kept = as_hooks(hooks), check_namespace(namespace), check_keep(keep)
        given: Any = store
        if isinstance(given, Store):
            opened, owned = given, False
        elif callable(given):
            opened, owned = cast("Callable[[], Store]", given)(), True
        elif isinstance(given_sync := getattr(given, "sync", None), Store):
            opened, owned = given_sync, False
        else:
            raise InvalidInput(
                f"a {type(given).__name__} cannot keep checkpoints; give {self._accepts}, or an open store"
            )
        # The store runs its own hooks whenever it saves; they must not run twice.
        super().__init__(
            ThreadStorage(opened, namespace=checked, keep=kept, owned=owned),
            hooks=None if own is opened.hooks else own,
        )


class MemorySaver(StoreSaver):
    """Checkpoints in memory, for development and tests. They are lost when the process ends."""

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

    _accepts = "a folder"

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

    _accepts = "the URL of a database"

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


class ThreadStorage:
    """The threads of one namespace of one store."""

    def __init__(self, store: Store, *, namespace: str, keep: Keep | None, owned: bool) -> None:
        self._store = store
        self._namespace = namespace
        self._keep = keep
        self._owned = owned
        self._lock = Lock()
        self._cache: OrderedDict[str, Thread] = OrderedDict()
        self._copying: tuple[str, Head] | None = None

    @property
    def namespace(self) -> str:
        """The tenant; empty for none."""
        return self._namespace

    @property
    def store(self) -> Store:
        """The store that keeps the checkpoints."""
        return self._store

    def in_namespace(self, namespace: str) -> SaverStorage:
        """Return the same storage for another tenant."""
        return ThreadStorage(self._store, namespace=namespace, keep=self._keep, owned=self._owned)

    def save(self, new: NewCheckpoint) -> Checkpoint:
        """Append a checkpoint; if someone else saves at the same time, after theirs."""
        saved = self._append(new) if new.origin is None else self._copy(new, new.origin)
        if self._keep is not None:
            _prune(self._store, new.thread_id, self._namespace, self._keep)
        return saved

    def newest(self, thread_id: str) -> Checkpoint | None:
        """Return the head of the thread with its content."""
        for attempt in range(_ATTEMPTS):
            try:
                with self._thread(thread_id) as thread:
                    head = thread.get()
                    return None if head is None else self._checkpoint(head).read()
            except NotFound:  # superseded and dropped, or deleted, between two reads
                if attempt == _ATTEMPTS - 1:
                    raise
        return None

    def find(self, thread_id: str, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint of the thread with its content."""
        checkpoint = self._store.thread(thread_id, self._namespace).at(checkpoint_id)
        if checkpoint.thread_id != thread_id:
            raise NotFound(f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}; list it to see them")
        return self._checkpoint(checkpoint).read()

    def exists(self, thread_id: str) -> bool:
        """Whether the thread has a head."""
        return thread_info(self._store.engine, self._store.space, thread_id, self._namespace) is not None

    def threads(self) -> Iterator[str | TreeringError]:
        """Yield all threads, the most recently saved one first."""
        for info in self._store.threads(namespace=self._namespace):
            yield info.id

    def history(self, thread_id: str) -> Iterator[Checkpoint]:
        """Yield the checkpoints of this thread that lead to its head, newest first."""
        info = thread_info(self._store.engine, self._store.space, thread_id, self._namespace)
        if info is None:
            return
        seen: set[str] = set()
        attempts = 0
        while True:
            try:
                for checkpoint in self._store.thread(thread_id, self._namespace).history():
                    if checkpoint.thread_id != thread_id:
                        return
                    if checkpoint.id not in seen:
                        seen.add(checkpoint.id)
                        attempts = 0
                        yield self._checkpoint(checkpoint, first_us=info.created_at_us)
            except NotFound:  # dropped or deleted meanwhile: continue with what is left
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise
            else:
                return

    def fork(self, thread_id: str, new_id: str, checkpoint_id: str | None) -> Checkpoint:
        """Create a thread that shares this one's past; it costs one row."""
        if checkpoint_id is not None:
            self.find(thread_id, checkpoint_id)
        fork = self._store.thread(thread_id, self._namespace).fork(new_id, at=checkpoint_id)
        head = fork.head
        if head is None:
            raise NotFound(f"thread {new_id!r} was deleted while it was created; fork again")
        return self._checkpoint(head).read()

    def delete(self, thread_id: str, *, cascade: bool) -> bool:
        """Delete the thread; the journal records that something was deleted."""
        if not self.exists(thread_id):
            return False
        with self._thread(thread_id) as thread:
            thread.delete(cascade=cascade)
        return True

    def refuse_to_block(self) -> None:
        """Do nothing: no method here is async."""

    def close(self) -> None:
        """Close the store, if the saver opened it."""
        if self._owned:
            self._store.close()

    def _append(self, new: NewCheckpoint) -> Checkpoint:
        for attempt in range(_ATTEMPTS):
            with self._thread(new.thread_id) as thread:
                head = thread.head
                new.check_expected(None if head is None else head.id)
                state = new.state
                if state is None and head is None:
                    state = INITIAL_STATE
                try:
                    checkpoint = thread.checkpoint(
                        new.messages,
                        state,
                        pending_interrupt=new.pending_interrupt,
                        metadata=new.metadata,
                        note=new.note,
                        tags=new.tags,
                        step=new.step,
                    )
                except ThreadMoved as moved:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    new.check_expected(moved.actual)
                    continue
                return self._saved(checkpoint, new.messages, state)
        raise Conflict(f"thread {new.thread_id!r} has too many concurrent writers; save it again")

    def _saved(
        self, checkpoint: ThreadCheckpoint, messages: Sequence[Any] | None, state: dict[str, Any] | None
    ) -> Checkpoint:
        content = _content(checkpoint)
        if not self._store.hooks.has("pre_checkpoint_save"):  # which may have changed what was saved
            content = content.override(messages, state)
        return self._checkpoint(checkpoint, content=content)

    def _copy(self, new: NewCheckpoint, origin: Origin) -> Checkpoint:
        """Save a checkpoint with its own id and times, and its own parent if that is in this store."""
        head = self._head(new.thread_id)
        before = head.see()
        new.check_expected(None if before is None else before.id)
        made_us = created_at_us(origin.id)
        adopted = Adopted(
            id=origin.id,
            created_at_us=min(max(origin.updated_at_us, made_us), made_us + 999),
            first_us=origin.created_at_us,
            parent=self._existing(origin.parent_id) if before is None else None,
        )
        request = SaveRequest(
            thread_id=new.thread_id,
            namespace=self._namespace,
            state=new.state,
            pending_interrupt=new.pending_interrupt,
            metadata=new.metadata,
            note=new.note,
            tags=new.tags,
        )
        checkpoint = head.save(request, {MESSAGES: new.messages or ()}, (), new.step, adopted)
        return self._checkpoint(ThreadCheckpoint(self._store.engine, self._store.space, checkpoint))

    def _existing(self, checkpoint_id: str | None) -> str | None:
        if checkpoint_id is None:
            return None
        try:
            return Journal(self._store.engine, self._store.space, self._namespace).by_id(checkpoint_id).id
        except NotFound:
            return None

    def _head(self, thread_id: str) -> Head:
        """Return the head of a thread that is copied to; the last one is cached."""
        if self._copying is None or self._copying[0] != thread_id:
            store = self._store
            head = Head(store.engine, store.space, thread_id, self._namespace, clock=SystemClock())
            self._copying = (thread_id, head)
        return self._copying[1]

    def _checkpoint(
        self, checkpoint: ThreadCheckpoint, *, first_us: int | None = None, content: LazyContent | None = None
    ) -> Checkpoint:
        record = checkpoint.record
        if first_us is None:
            info = thread_info(self._store.engine, self._store.space, record.thread, record.namespace)
            first_us = record.created_at_us if info is None else info.created_at_us
        header = CheckpointHeader(
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
        return Checkpoint(header, content or _content(checkpoint))

    @contextmanager
    def _thread(self, thread_id: str) -> Generator[Thread]:
        """Lend the cached object of a thread to one caller at a time; a concurrent one gets a new one."""
        with self._lock:
            cached = self._cache.pop(thread_id, None)
        thread = cached or self._store.thread(thread_id, self._namespace)
        yield thread
        with self._lock:
            self._cache[thread_id] = thread
            while len(self._cache) > _CACHED_THREADS:
                self._cache.popitem(last=False)


def _content(checkpoint: ThreadCheckpoint) -> LazyContent:
    return LazyContent(lambda: checkpoint.messages, lambda: checkpoint.state)


def _prune(store: Store, thread_id: str, namespace: str, keep: Keep) -> None:
    """Drop the checkpoints of a thread that ``keep`` does not keep, as `store.gc` would.

    **Invariant:** the newest checkpoint always stays, and the journal says what is dropped before it is.
    """
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


def _open_folder(path: str | Path, durability: Durability) -> Store:
    place = api.locate(path)
    if place.folder is None:
        raise InvalidInput(f"{place.display} is no folder; SqliteSaver keeps its database in one")
    return api.open(path, durability=durability)


def _open_postgres(url: str) -> Store:
    place = api.locate(url)
    if place.scheme not in {"postgresql", "postgres"}:
        raise InvalidInput(f"{place.display} is no PostgreSQL database; use postgresql://user@host/database")
    return api.open(url)
