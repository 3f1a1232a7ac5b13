"""Checkpoints on any store with ``get``, ``set``, ``delete`` and ``list(prefix)``, plain or ``async``.

A dict, a folder and Redis are in `treering.keyvalue`; a user's own class works as well. Values are texts,
keys are readable and at most about 360 characters long, whatever the ids are. How durable a save is depends
on the store's ``set``. A thread without a head is asked for its values: one that lost it is no new thread.
For that a saver lists all values once, not for each thread.

A store that also has ``compare_and_swap(key, old, new)``, as the dict and Redis do, may be saved to by any
number of processes: of two that save to one thread at the same moment, one comes behind the other. Without
it, one saver orders its own threads and tasks only, and of two *processes* the later one's head stays, and
the other's checkpoint is left out of the history: give each thread one process, or use `FileSaver`,
`SqliteSaver` or `PostgresSaver`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import OrderedDict
from collections.abc import Generator, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol
from zlib import crc32

from msgspec import structs

from treering.compat.savers import chunk_tree
from treering.compat.savers.checkpoint import (
    FIRST_STATE,
    NEW,
    Checkpoint,
    Contents,
    Shelf,
    Writing,
    check_expected,
    checked_keep,
    checked_namespace,
    given,
)
from treering.compat.savers.kv_thread import (
    Drawer,
    Pending,
    Record,
    Witnesses,
    read_state,
    values_of,
    write_state,
)
from treering.compat.savers.saver import HooksLike, Saver
from treering.core.clock import Clock, SystemClock
from treering.core.ids import file_name
from treering.core.retention import Keep, RetentionEntry, select
from treering.core.storage import KeyValueStore
from treering.errors import InvalidInput, NotFound, TreeringError
from treering.files import opened_folder, translated
from treering.sync_async import call, refuse_to_block
from treering.threads.checkpoint_record import created_at_us, new_checkpoint_id
from treering.threads.lists import fingerprint

# -----------------------------------------------------------------------------------------------------------
# Who may write to a thread: one writer at a time, where that can be arranged.
#
# `ProcessLocks` keeps the threads of one saver apart. `FolderLocks` keeps apart all processes of a machine,
# by locks of the operating system, which end with the process that holds them.


_STRIPES: Final = 64
_FOLDER: Final = ".locks"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Locks(Protocol):
    """Locks by name. Two names may share one lock, so nobody may hold two of them."""

    @property
    def everywhere(self) -> bool:
        """Whether they keep out every writer there can be, not only those of this saver."""
        ...

    def holding(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Keep every other holder of this name out."""
        ...


class ProcessLocks:
    """Locks among the threads of this process."""

    everywhere = False

    def __init__(self) -> None:
        self._locks = tuple(Lock() for _ in range(_STRIPES))

    @contextlib.contextmanager
    def holding(self, name: str) -> Generator[None]:
        """Keep other threads out."""
        with self._locks[_stripe(name)]:
            yield


class FolderLocks:
    """Locks among all threads and processes that use one folder."""

    everywhere = True

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def holding(self, name: str) -> Generator[None]:
        """Keep other threads and processes out."""
        with translated(str(self._root / _FOLDER), writing=True):
            with opened_folder(self._root, (_FOLDER,), make=True) as folder:
                file = os.open(f"{_stripe(name):02}", _FLAGS, 0o666, dir_fd=folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a child forked meanwhile holds a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _stripe(name: str) -> int:
    return crc32(name.encode()) % _STRIPES


# -----------------------------------------------------------------------------------------------------------
# Checkpoints in a key-value store: values that never change, and one head per thread that moves.
#
# A save puts its new messages and state values, then the checkpoint's record, and last it sets the thread's
# head, which is the checkpoint at which the save has happened. Where the store can compare and swap, a save
# that finds the head moved takes back what it put and comes behind the other. A writer that dies earlier
# leaves values that no head leads to; they are in nobody's way and go with the thread, or (with retention,
# where locks keep all other writers out) at the next saver's first save. Retention first leads the
# checkpoints that stay past those that go, then removes these, then what only they needed. **Invariant:**
# whatever a head leads to is there; where it is not, that is `Corrupt`, never a shorter history.


_TRIES: Final = 10
_REMEMBERED: Final = 256
"""So many threads are remembered by the fingerprints of their messages, for saving only what is new."""


class KeyValueShelf:
    """Threads of one namespace of one key-value store."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        namespace: str,
        keep: Keep | None,
        locks: Locks,
        clock: Clock,
        prefix: str = "",
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._keep = keep
        self._locks = locks
        self._clock = clock
        self._prefix = prefix
        self._root = f"{prefix}@{file_name(namespace)}/" if namespace else prefix
        # A store that has folders lists those of one thread at no cost.
        self._witnesses = None if hasattr(store, "delete_all") else Witnesses(store, self._root)
        self._lock = Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    @property
    def namespace(self) -> str:
        """The tenant; empty for none."""
        return self._namespace

    def elsewhere(self, namespace: str) -> Shelf:
        """The same store for another tenant."""
        return KeyValueShelf(
            self._store,
            namespace=namespace,
            keep=self._keep,
            locks=self._locks,
            clock=self._clock,
            prefix=self._prefix,
        )

    def write(self, writing: Writing) -> Checkpoint:
        """Append a checkpoint."""
        drawer = self._drawer(writing.thread_id)
        with self._locks.holding(drawer.head_key):
            while True:
                made = self._written(drawer, writing)
                if made is not None:
                    return made
                # Another process has saved meanwhile: this save comes behind that one.
                drawer = self._drawer(writing.thread_id)

    def newest(self, thread_id: str) -> Checkpoint | None:
        """The checkpoint that the head names, with its content."""
        drawer = self._drawer(thread_id)
        for _ in range(_TRIES):
            record = drawer.newest()
            if record is None:
                return None
            try:
                return Checkpoint(record.facts, _stored(drawer, record)).read()
            except NotFound:  # saved over or deleted between two reads
                continue
        raise NotFound(f"thread {thread_id!r} is removed as often as it is read; load it again")

    def find(self, thread_id: str, checkpoint_id: str) -> Checkpoint:
        """The checkpoint with this id."""
        created_at_us(checkpoint_id)  # an id, and not a path to somewhere else
        drawer = self._drawer(thread_id)
        record = drawer.record(checkpoint_id)
        if record is None:
            raise NotFound(f"thread {thread_id!r} has no checkpoint {checkpoint_id!r}; list it to see them")
        return Checkpoint(record.facts, _stored(drawer, record)).read()

    def exists(self, thread_id: str) -> bool:
        """Whether the thread has a head."""
        return self._drawer(thread_id).head() is not None

    def threads(self) -> Iterator[str | TreeringError]:
        """All threads, by the names of their heads, and of the values of those that lost theirs."""
        names = {
            key.removeprefix(self._root + folder).partition("/")[0]
            for folder in ("head/", "data/")
            for key in call(self._store.list, self._root + folder)
        }
        for name in sorted(names):
            try:
                head = self._named(name, None).head()
            except TreeringError as error:
                yield error
            else:
                if head is not None:
                    yield head["thread"]

    def history(self, thread_id: str) -> Iterator[Checkpoint]:
        """From the head back, as far as there are checkpoints."""
        drawer = self._drawer(thread_id)
        record = drawer.newest()
        while record is not None:
            yield Checkpoint(record.facts, _stored(drawer, record))
            record = drawer.earlier(record)

    def fork(self, thread_id: str, new_id: str, checkpoint_id: str | None) -> Checkpoint:
        """A copy: the fork needs nothing of the thread that it came from."""
        origin = self.newest(thread_id) if checkpoint_id is None else self.find(thread_id, checkpoint_id)
        if origin is None:
            raise NotFound(f"thread {thread_id!r} was never saved; there is nothing to fork")
        return self.write(
            Writing(
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

    def remove(self, thread_id: str, *, cascade: bool) -> bool:  # noqa: ARG002 - forks are copies here
        """Remove the head, then everything behind it; a damaged thread can be removed too."""
        drawer = self._drawer(thread_id)
        with self._lock:
            self._known.pop(thread_id, None)
        with self._locks.holding(drawer.head_key):
            return drawer.clear()

    def refuse_to_block(self) -> None:
        """Raise `Unsupported` for an async store on a thread that runs a loop."""
        store = self._store
        swap = getattr(store, "compare_and_swap", store.set)
        refuse_to_block(store.get, store.set, store.delete, store.list, swap)

    def close(self) -> None:
        """The store is its owner's."""

    def _drawer(self, thread_id: str) -> Drawer:
        return self._named(file_name(thread_id), thread_id)

    def _named(self, name: str, thread_id: str | None) -> Drawer:
        return Drawer(self._store, self._root, self._namespace, name, thread_id, self._witnesses)

    def _written(self, drawer: Drawer, writing: Writing) -> Checkpoint | None:
        """Append a checkpoint to the thread as it is now; ``None`` if it is not so any more."""
        before = drawer.newest()
        check_expected(writing, None if before is None else before.id)
        pending = Pending(drawer)
        try:
            known = self._recalled(drawer, before)
            messages, prints = _messages(drawer, pending, before, known, writing)
        except NotFound:  # what it was to come behind was removed meanwhile
            return None
        state = writing.state
        if state is None and before is None:
            state = FIRST_STATE
        places = before.state if before is not None else {}
        if state is not None:
            places = write_state(places, state, pending.value)
        record = self._record(writing, before, messages, places)
        record = pending.record(record)
        if not pending.write(head=record.id):
            return None
        known = _Known(record.id, prints, None if known.line is None else [*known.line, _entry(record)])
        if self._keep is None or self._prune(drawer, known, self._keep):
            self._remember(writing.thread_id, known)
        return Checkpoint(record.facts, given(writing.messages, state, _stored(drawer, record)))

    def _record(
        self, writing: Writing, before: Record | None, messages: chunk_tree.Spine, state: dict[str, Any]
    ) -> Record:
        origin = writing.origin
        parent = before.id if before is not None else writing.parent_id
        if origin is not None:
            made, ts_us = origin.id, origin.updated_at_us
            parent, first_us = origin.parent_id, origin.created_at_us
        else:
            made, ts_us = new_checkpoint_id(self._clock)
            first_us = ts_us
        step = writing.step
        if step is None:
            step = 0 if before is None else before.step + 1
        return Record(
            id=made,
            thread=writing.thread_id,
            namespace=self._namespace,
            parent=parent,
            earlier=None if before is None else before.id,
            step=step,
            first_us=first_us if before is None else before.first_us,
            ts_us=ts_us,
            messages=messages,
            state=state,
            interrupt=writing.pending_interrupt,
            metadata=writing.metadata,
            note=writing.note,
            tags=writing.tags,
            size=0,
        )

    def _recalled(self, drawer: Drawer, before: Record | None) -> _Known:
        """What is known of the thread as it is now; read again where someone else has saved since."""
        if before is None:
            return _Known(None, [], [] if self._keep is not None else None)
        with self._lock:
            known = self._known.pop(before.thread, None)
        if known is not None and known.head == before.id:
            return known
        line: list[RetentionEntry] | None = None
        if self._keep is not None:
            records = list(drawer.line(before))
            records.reverse()
            line = [_entry(record) for record in records]
            if self._locks.everywhere:  # then this is the checkpoint to clear away what a crash has left
                drawer.sweep(records)
        return _Known(before.id, None, line)

    def _remember(self, thread_id: str, known: _Known) -> None:
        with self._lock:
            self._known[thread_id] = known
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def _prune(self, drawer: Drawer, known: _Known, keep: Keep) -> bool:
        """Drop what the policy does not want; False when another process was at it, and the rest is left."""
        line = known.line or []
        decision = select(_in_order(line), keep, now_us=self._clock.now_us())
        going = {each.id for each in decision.dropped}
        older: str | None = None
        run: list[str] = []
        for entry in line:
            if entry.id in going:
                run.append(entry.id)
                continue
            if run and not _drop(drawer, older, run, entry.id):
                return False
            older, run = entry.id, []
        known.line = [entry for entry in line if entry.id not in going]
        return True


class _Known:
    """A thread as this saver left it: fingerprints of its messages, and its line (oldest first)."""

    __slots__ = ("head", "line", "prints")

    def __init__(self, head: str | None, prints: list[int] | None, line: list[RetentionEntry] | None) -> None:
        self.head = head
        self.prints = prints
        self.line = line


def _stored(drawer: Drawer, record: Record) -> Contents:
    """The content of a checkpoint, read when it is asked for."""
    return Contents(
        lambda: drawer.messages(record),
        lambda: read_state(record.state, lambda name: drawer.value(name, record)),
    )


def _messages(
    drawer: Drawer, pending: Pending, before: Record | None, known: _Known, writing: Writing
) -> tuple[chunk_tree.Spine, list[int] | None]:
    """The spine of the messages to be saved, and their fingerprints; what is new goes into a chunk."""
    past = before.messages if before is not None else ()
    if writing.messages is None:
        return past, known.prints
    prints = [fingerprint(each) for each in writing.messages]
    were = known.prints
    if were is None:
        were = [] if before is None else [fingerprint(each) for each in drawer.messages(before)]
    same = next(
        (at for at, (mine, other) in enumerate(zip(were, prints, strict=False)) if mine != other),
        min(len(were), len(prints)),
    )
    read_node = drawer.nodes(before)
    kept = past if same == len(were) else chunk_tree.first(past, same, read_node)
    fresh = writing.messages[same:]
    if fresh:
        kept = chunk_tree.grown(kept, pending.chunk(fresh), len(fresh), pending.node)
    return kept, prints


def _drop(drawer: Drawer, older: str | None, run: list[str], younger: str) -> bool:
    """Lead past checkpoints that stand between two others, then remove them and what only they needed."""
    gone = [each for each in map(drawer.record, run) if each is not None]
    before = None if older is None else drawer.record(older)
    if len(gone) < len(run) or (before is None) != (older is None):
        return False
    after = drawer.lead_past(younger, earlier=run[-1], to=older)
    if after is None:
        return False
    kept = (after,) if before is None else (before, after)
    try:
        values = {name for each in gone for name in _only_of(drawer, each, kept)}
    except NotFound:  # the thread was deleted meanwhile
        return False
    drawer.drop(run, values)
    return True


def _only_of(drawer: Drawer, gone: Record, kept: tuple[Record, ...]) -> set[str]:
    """The values that a checkpoint needs and its neighbours, on both sides, do not."""
    state = set(values_of(gone.state)).difference(*(values_of(each.state) for each in kept))
    parts = chunk_tree.unshared(gone.messages, [each.messages for each in kept], drawer.nodes(gone))
    return state | parts


def _entry(record: Record) -> RetentionEntry:
    return RetentionEntry(
        id=record.id, ts_us=record.ts_us, tags=frozenset(record.tags), size_bytes=record.size
    )


def _in_order(line: list[RetentionEntry]) -> Iterator[RetentionEntry]:
    """The same entries with times that never go back, and the newest one safe, whatever clocks did."""
    latest_us = 0
    for at, entry in enumerate(line):
        latest_us = max(latest_us + 1, entry.ts_us)
        yield structs.replace(entry, ts_us=latest_us, pinned=at == len(line) - 1)


# -----------------------------------------------------------------------------------------------------------

_METHODS: Final = ("get", "set", "delete", "list")


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
        shelf = KeyValueShelf(
            store,
            namespace=checked_namespace(namespace),
            prefix=prefix,
            keep=checked_keep(keep),
            locks=ProcessLocks(),
            clock=clock or SystemClock(),
        )
        super().__init__(shelf, hooks=hooks)
