"""Checkpoints in any store with ``get``, ``set``, ``delete`` and ``list(prefix)``, plain or ``async``.

`treering.keyvalue` has such stores over a dict, a folder and Redis; a class of your own works as well. Values
are text, keys are readable and at most about 360 characters long, whatever the ids are. How durable a save
is depends on the store's ``set``. `treering.compat.savers.kv_thread` describes the layout.

A store that also has ``compare_and_swap(key, old, new)``, as the dict and Redis have, may be written to by
any number of processes: of two that save to one thread at the same moment, one comes after the other. Without
it, a saver orders its own threads and tasks only; of two *processes*, the later one's head wins, and the
other's checkpoint is missing from the history. Give each thread one process then, or use `FileSaver`,
`SqliteSaver` or `PostgresSaver`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final
from zlib import crc32

import msgspec

from treering.compat.savers.checkpoint import (
    INITIAL_STATE,
    NEW,
    Checkpoint,
    LazyContent,
    NewCheckpoint,
    SaverStorage,
    check_keep,
    check_namespace,
)
from treering.compat.savers.kv_thread import (
    KeyValueThread,
    PendingValues,
    SharedList,
    StoredCheckpoint,
    list_keys,
)
from treering.compat.savers.saver import Saver
from treering.core.clock import Clock, SystemClock
from treering.core.ids import file_name
from treering.core.retention import Keep, RetentionEntry, select
from treering.core.storage import KeyValueStore
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.sync_async import refuse_to_block
from treering.threads.checkpoint import created_at_us, new_checkpoint_id
from treering.threads.head import fingerprint
from treering.threads.hooks import HooksLike

_METHODS: Final = ("get", "set", "delete", "list")
_LOCKS: Final = 64
_CACHED_THREADS: Final = 256


class KeyValueStoreSaver(Saver):
    """Checkpoints in a key-value store; every key begins with ``prefix``."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        namespace: str = "",
        prefix: str = "checkpoints/",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        clock: Clock | None = None,
    ) -> None:
        if missing := [name for name in _METHODS if not callable(getattr(store, name, None))]:
            raise InvalidInput(
                f"{type(store).__name__} is no key-value store, it has no {', '.join(missing)}; give one "
                "with get(key), set(key, value), delete(key) and list(prefix)"
            )
        storage = KeyValueStorage(
            store,
            namespace=check_namespace(namespace),
            prefix=prefix,
            keep=check_keep(keep),
            clock=clock or SystemClock(),
        )
        super().__init__(storage, hooks=hooks)


class KeyValueStorage:
    """The threads of one namespace of one key-value store.

    A store with ``locked(name)``, a context manager that keeps all other writers out, is swept of what a
    crash left behind when a saver first prunes a thread.
    """

    def __init__(
        self, store: KeyValueStore, *, namespace: str, keep: Keep | None, clock: Clock, prefix: str = ""
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._keep = keep
        self._clock = clock
        self._prefix = prefix
        self._root = f"{prefix}@{file_name(namespace)}/" if namespace else prefix
        self._locked: Callable[[str], AbstractContextManager[None]] | None = getattr(store, "locked", None)
        self._locks = tuple(Lock() for _ in range(_LOCKS))
        self._cache_lock = Lock()
        self._cache: OrderedDict[str, _LastSave] = OrderedDict()

    @property
    def namespace(self) -> str:
        """The tenant; empty for none."""
        return self._namespace

    def in_namespace(self, namespace: str) -> SaverStorage:
        """Return the same storage for another tenant."""
        return KeyValueStorage(
            self._store, namespace=namespace, keep=self._keep, clock=self._clock, prefix=self._prefix
        )

    def save(self, new: NewCheckpoint) -> Checkpoint:
        """Append a checkpoint; if another process saves at the same time, after that one's."""
        thread = self._thread(new.thread_id)
        with self._lock(thread.head_key):
            while True:
                try:
                    saved = self._try_to_save(thread, new)
                except NotFound:  # what it was to follow was pruned or deleted meanwhile
                    saved = None
                if saved is not None:
                    return saved
                thread = self._thread(new.thread_id)

    def newest(self, thread_id: str) -> Checkpoint | None:
        """Return the checkpoint that the head names, with its content."""
        while True:
            thread = self._thread(thread_id)
            stored = thread.newest()
            if stored is None:
                return None
            try:
                return Checkpoint(stored.header, _content(thread, stored)).read()
            except NotFound:  # superseded and dropped, or deleted, since the head was read
                continue

    def find(self, thread_id: str, checkpoint_id: str) -> Checkpoint:
        """Return the checkpoint with this id."""
        created_at_us(checkpoint_id)  # raises for what is no id, such as a path
        thread = self._thread(thread_id)
        stored = thread.checkpoint(checkpoint_id)
        if stored is None:
            raise NotFound(f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}; list it to see them")
        return Checkpoint(stored.header, _content(thread, stored)).read()

    def exists(self, thread_id: str) -> bool:
        """Whether the thread has a head."""
        return self._thread(thread_id).head() is not None

    def threads(self) -> Iterator[str | TreeringError]:
        """Yield all threads by their heads, and an error for each that has values but lost its head."""
        names = {
            key.removeprefix(self._root + folder).partition("/")[0]
            for folder in ("head/", "data/")
            for key in list_keys(self._store, self._root + folder)
        }
        for name in sorted(names):
            try:
                head = self._thread_named(name, None).head()
            except TreeringError as error:
                yield error
            else:
                if head is not None:
                    yield head["thread"]

    def history(self, thread_id: str) -> Iterator[Checkpoint]:
        """Yield a thread's checkpoints, newest first."""
        thread = self._thread(thread_id)
        newest = thread.newest()
        if newest is not None:
            for stored in thread.history(newest):
                yield Checkpoint(stored.header, _content(thread, stored))

    def fork(self, thread_id: str, new_id: str, checkpoint_id: str | None) -> Checkpoint:
        """Copy a checkpoint to a new thread, which then needs nothing of the one it came from."""
        origin = self.newest(thread_id) if checkpoint_id is None else self.find(thread_id, checkpoint_id)
        if origin is None:
            raise NotFound(f"thread {thread_id!r} was never saved; there is nothing to fork")
        return self.save(
            NewCheckpoint(
                thread_id=new_id,
                messages=origin.messages,
                state=origin.state,
                pending_interrupt=origin.pending_interrupt,
                metadata={**origin.metadata, "forked_from": origin.id},
                note=origin.note,
                tags=origin.tags,
                step=origin.step,
                parent_id=origin.id,
                expect=NEW,
            )
        )

    def delete(self, thread_id: str, *, cascade: bool) -> bool:  # noqa: ARG002 - forks are copies here
        """Delete a thread, damaged or not."""
        thread = self._thread(thread_id)
        with self._cache_lock:
            self._cache.pop(thread_id, None)
        with self._lock(thread.head_key):
            return thread.delete()

    def refuse_to_block(self) -> None:
        """Raise `Unsupported` for an async store on a thread that runs an event loop."""
        store = self._store
        swap = getattr(store, "compare_and_swap", store.set)
        refuse_to_block(store.get, store.set, store.delete, store.list, swap)

    def close(self) -> None:
        """Do nothing: the store belongs to the caller."""

    def _thread(self, thread_id: str) -> KeyValueThread:
        return self._thread_named(file_name(thread_id), thread_id)

    def _thread_named(self, name: str, thread_id: str | None) -> KeyValueThread:
        return KeyValueThread(self._store, self._root, self._namespace, name, thread_id)

    def _lock(self, name: str) -> AbstractContextManager[Any]:
        if self._locked is not None:
            return self._locked(name)
        return self._locks[crc32(name.encode()) % _LOCKS]

    def _try_to_save(self, thread: KeyValueThread, new: NewCheckpoint) -> Checkpoint | None:
        """Append a checkpoint to the thread as it is now; return ``None`` if it changed meanwhile."""
        before = thread.newest()
        new.check_expected(None if before is None else before.id)
        pending = PendingValues(thread.folder)
        last = self._last_save(thread, before)
        messages, prints = _messages(thread, pending, before, last, new)
        state = INITIAL_STATE if new.state is None and before is None else new.state
        references = {} if before is None else before.state
        if state is not None:
            references = pending.put_state(references, state)
        stored = self._stored(new, before, messages, references, pending.size)
        kept, dropped = None, list[_Dropped]()
        if last.history is not None and self._keep is not None:
            kept, dropped = self._decide([*last.history, _kept(stored)], self._keep)
            stored = _with_kept(thread, pending, before, stored, last.history, kept)
        if not thread.commit(pending.sealed, stored):
            return None
        for run in dropped:
            thread.drop(*run)
        self._remember(new.thread_id, _LastSave(stored.id, prints, kept))
        return Checkpoint(stored.header, _content(thread, stored).override(new.messages, state))

    def _stored(
        self,
        new: NewCheckpoint,
        before: StoredCheckpoint | None,
        messages: SharedList | None,
        state: dict[str, Any],
        size: int,
    ) -> StoredCheckpoint:
        origin = new.origin
        if origin is None:
            made, ts_us = new_checkpoint_id(self._clock)
            parent, first_us = (new.parent_id, ts_us) if before is None else (before.id, before.first_us)
        else:
            made, ts_us, parent = origin.id, origin.updated_at_us, origin.parent_id
            first_us = origin.created_at_us if before is None else before.first_us
        following = 0 if before is None else before.step + 1
        return StoredCheckpoint(
            id=made,
            thread=new.thread_id,
            namespace=self._namespace,
            parent=parent,
            previous=None if before is None else before.id,
            number=0 if before is None else before.number + 1,
            step=following if new.step is None else new.step,
            first_us=first_us,
            ts_us=ts_us,
            messages=messages,
            state=state,
            interrupt=new.pending_interrupt,
            metadata=new.metadata,
            note=new.note,
            tags=new.tags,
            oldest_in_sequence=None if before is None else before.oldest_in_sequence,
            archived=None if before is None else before.archived,
            size=size,
        )

    def _last_save(self, thread: KeyValueThread, before: StoredCheckpoint | None) -> _LastSave:
        """Return what is known of a thread, read again if someone else has saved since."""
        if before is None:
            return _LastSave(None, [], None if self._keep is None else [])
        with self._cache_lock:
            last = self._cache.pop(before.thread, None)
        if last is not None and last.checkpoint_id == before.id:
            return last
        if self._keep is None:
            return _LastSave(before.id, None, None)
        history = list(thread.history(before))
        if self._locked is not None:
            thread.sweep(history)
        return _LastSave(before.id, None, [_kept(each) for each in reversed(history)])

    def _remember(self, thread_id: str, last: _LastSave) -> None:
        with self._cache_lock:
            self._cache[thread_id] = last
            while len(self._cache) > _CACHED_THREADS:
                self._cache.popitem(last=False)

    def _decide(self, history: list[_Kept], keep: Keep) -> tuple[list[_Kept], list[_Dropped]]:
        """Return which checkpoints of a thread stay, and the runs of those between them that go."""
        decision = select(_in_order(history), keep, now_us=self._clock.now_us())
        going = {each.id for each in decision.dropped}
        kept: list[_Kept] = []
        dropped: list[_Dropped] = []
        run: list[str] = []
        for each in history:
            if each.entry.id in going:
                run.append(each.entry.id)
                continue
            if run:
                dropped.append((kept[-1].entry.id if kept else None, run, each.entry.id))
                run = []
            kept.append(each)
        return kept, dropped


class _Kept(msgspec.Struct, frozen=True):
    """A checkpoint as retention sees it, and the one that its ``previous`` names."""

    entry: RetentionEntry
    previous: str | None


_Dropped = tuple[str | None, list[str], str]
"""Checkpoints to drop, between the kept ones before and after them."""


class _LastSave(msgspec.Struct, frozen=True):
    """A thread as this saver left it.

    ``prints`` are the fingerprints of its messages, so that only new ones are written, and ``history`` its
    kept checkpoints, oldest first; ``None`` if unknown, or not needed.
    """

    checkpoint_id: str | None
    prints: list[int] | None
    history: list[_Kept] | None


def _content(thread: KeyValueThread, stored: StoredCheckpoint) -> LazyContent:
    return LazyContent(lambda: thread.messages(stored), lambda: thread.state(stored))


def _messages(
    thread: KeyValueThread,
    pending: PendingValues,
    before: StoredCheckpoint | None,
    last: _LastSave,
    new: NewCheckpoint,
) -> tuple[SharedList | None, list[int] | None]:
    """Return the list of messages to save and their fingerprints; only new messages are written."""
    if new.messages is None:
        return None if before is None else before.messages, last.prints
    prints = [fingerprint(each) for each in new.messages]
    if before is None:
        return pending.append(None, new.messages), prints
    known = last.prints
    if known is None:
        known = [fingerprint(each) for each in thread.messages(before)]
    same = _common(known, prints)
    return pending.append(thread.first(before.messages, same, before), new.messages[same:]), prints


def _with_kept(
    thread: KeyValueThread,
    pending: PendingValues,
    before: StoredCheckpoint | None,
    stored: StoredCheckpoint,
    known: list[_Kept],
    kept: list[_Kept],
) -> StoredCheckpoint:
    """Return a checkpoint that says which ones are kept as of it, given what the one before says."""
    start = _sequence_start(kept)
    is_complete = start == 0 and kept[0].previous is None
    archived = [each.entry.id for each in kept[:start]]
    if before is None:
        items = pending.append(None, archived)
    else:
        same = _common([each.entry.id for each in known[: _sequence_start(known)]], archived)
        items = pending.append(thread.first(before.archived, same, before), archived[same:])
    return msgspec.structs.replace(
        stored, oldest_in_sequence=None if is_complete else kept[start].entry.id, archived=items
    )


def _sequence_start(kept: list[_Kept]) -> int:
    """Return the index of the oldest checkpoint that ``previous`` leads to from the newest one."""
    at = len(kept) - 1
    while at > 0 and kept[at].previous == kept[at - 1].entry.id:
        at -= 1
    return at


def _common(known: Sequence[Any], wanted: Sequence[Any]) -> int:
    """Return how many items at the start are the same."""
    pairs = enumerate(zip(known, wanted, strict=False))
    return next((at for at, (old, new) in pairs if old != new), min(len(known), len(wanted)))


def _kept(stored: StoredCheckpoint) -> _Kept:
    entry = RetentionEntry(
        id=stored.id, ts_us=stored.ts_us, tags=frozenset(stored.tags), size_bytes=stored.size
    )
    return _Kept(entry, stored.previous)


def _in_order(history: list[_Kept]) -> Iterator[RetentionEntry]:
    """Yield entries whose times never go back, the newest one pinned, whatever the clocks did."""
    latest_us = 0
    for at, each in enumerate(history, start=1):
        latest_us = max(latest_us + 1, each.entry.ts_us)
        yield msgspec.structs.replace(each.entry, ts_us=latest_us, pinned=at == len(history))
