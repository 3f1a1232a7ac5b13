"""One thread in a key-value store: its layout, and how it is read, committed, pruned and deleted.

::

    <root>head/<thread>               {"thread", "namespace", "checkpoint"}: the newest checkpoint
    <root>data/<thread>/ckpt_...      a checkpoint, without its content
    <root>data/<thread>/m-...         a chunk: the messages that one save added, and what precedes them
    <root>data/<thread>/s-...         a larger state value
    <root>data/<thread>/marker        says that the thread has values, so that a lost head is noticed

``<thread>`` is `treering.core.ids.file_name` of the thread's id. Everything but the head is written once,
under a name that was never used before, and is immutable. A save writes its values, then its checkpoint,
and then moves the head: that is the commit. Where the store can compare and swap, a save that finds the head
moved deletes what it wrote and starts again behind the other one.

The messages of a thread are a linked list of chunks, newest first. A checkpoint refers to the first ``n``
messages of the list that ends with one chunk, so all checkpoints share their common past, a save writes only
what is new, and a conversation that was edited in the middle shares what precedes the edit.

Retention is decided before the commit and is part of it: the newest checkpoint says which older ones are
kept, and what was dropped is deleted after the commit. So no reader looks for anything that was dropped as of
the head it started from, and one that finds a value missing reads the head again: if it has moved, the value
was pruned meanwhile; if not, the thread is damaged.

**Invariant:** everything that the head leads to exists, or reading it raises `Corrupt`. A thread's head is
created before its first value and deleted after its last one (until then it names no checkpoint), so
checkpoints without a head mean that the head was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, TypeGuard, cast
from zlib import crc32

import msgspec

from treering.compat.savers.checkpoint import CheckpointHeader
from treering.core.content import INLINE_LIMIT, Content
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import new_id
from treering.core.storage import KeyValueStore
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.sync_async import call, collect
from treering.threads.checkpoint import PREFIX

MARKER: Final = "marker"

_CACHED_CHARS: Final = 1 << 25
"""How much of a thread's values is cached while its checkpoints are read: they share most of it."""


class SharedList(msgspec.Struct, frozen=True, array_like=True):
    """The first ``length`` items of the list that ends with ``chunk``."""

    chunk: str
    length: int


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its content, as it is stored.

    ``parent`` is the checkpoint that it was saved upon; a fork's first one has a parent in another thread.
    ``previous`` was the thread's newest checkpoint before it, and ``number`` counts the thread's saves.

    The kept checkpoints are those that ``previous`` leads to, down to ``oldest_in_sequence``, and before that
    the ``archived`` ones. Without retention, both are ``None``. ``size`` is how much its save wrote.
    """

    id: str
    thread: str
    namespace: str = ""
    parent: str | None = None
    previous: str | None = None
    oldest_in_sequence: str | None = None
    archived: SharedList | None = None
    number: int
    step: int
    first_us: int
    ts_us: int
    messages: SharedList | None = None
    state: dict[str, Any] = {}
    interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()
    size: int = 0

    @property
    def header(self) -> CheckpointHeader:
        """What a saver's user sees of it."""
        return CheckpointHeader(
            id=self.id,
            thread_id=self.thread,
            namespace=self.namespace,
            parent_id=self.parent,
            step=self.step,
            created_at_us=self.first_us,
            updated_at_us=self.ts_us,
            pending_interrupt=self.interrupt,
            metadata=self.metadata,
            note=self.note,
            tags=self.tags,
        )


class KeyValueThread:
    """The values of one thread. ``thread_id`` is ``None`` while only the name of its head is known."""

    def __init__(
        self, store: KeyValueStore, root: str, namespace: str, name: str, thread_id: str | None
    ) -> None:
        self.head_key = f"{root}head/{name}"
        self.folder = f"{root}data/{name}/"
        self._store = store
        self._compare_and_swap = getattr(store, "compare_and_swap", None)
        self._namespace = namespace
        self._thread_id = thread_id
        self._shown = name if thread_id is None else thread_id
        self._head_text: Any = None
        self._cache: dict[str, Any] = {}
        self._room = _CACHED_CHARS

    # Reading

    def head(self) -> dict[str, Any] | None:
        """Return what the head says, ``None`` for a thread that does not exist."""
        self._head_text = self._get_text(self.head_key)
        if self._head_text is None:
            self._check_head_not_lost()
        head = self._unseal(self.head_key, self._head_text)
        if head is None or head["checkpoint"] is None:
            return None
        if self._thread_id not in (None, head["thread"]) or head["namespace"] != self._namespace:
            raise Corrupt(
                f"thread {self._shown!r} is damaged: its head {self.head_key!r} belongs to thread "
                f"{head['thread']!r} of namespace {head['namespace']!r}; it was moved, put it back"
            )
        return head

    def newest(self) -> StoredCheckpoint | None:
        """Return the checkpoint that the head names."""
        head = self.head()
        while head is not None:
            found = self.checkpoint(head["checkpoint"])
            if found is not None:
                return found
            again = self.head()
            if again == head:
                raise self._missing(head["checkpoint"])
            head = again
        return None

    def checkpoint(self, checkpoint_id: str) -> StoredCheckpoint | None:
        """Return the checkpoint with this id, if it exists."""
        key = self._key(checkpoint_id)
        fields = self._unseal(key, self._get_text(key))
        return None if fields is None else _from_fields(fields)

    def history(self, newest: StoredCheckpoint) -> Iterator[StoredCheckpoint]:
        """Yield a checkpoint and those before it, newest first, as far as they are kept."""
        found = newest
        chunks = self._chunks(newest.archived, newest)
        archived = (checkpoint_id for chunk in chunks for checkpoint_id in reversed(chunk.items))
        is_in_sequence = True
        while True:
            yield found
            is_in_sequence = is_in_sequence and found.id != newest.oldest_in_sequence
            previous = None
            try:
                previous = found.previous if is_in_sequence else next(archived, None)
                if previous is None:
                    return
                found = self._existing(previous)
            except NotFound:
                yield from self._history_after_pruning(newest, found, previous or newest.id)
                return

    def messages(self, checkpoint: StoredCheckpoint) -> list[Any]:
        """Return all messages of a checkpoint."""
        chunks = [chunk.items for chunk in self._chunks(checkpoint.messages, checkpoint)]
        return [message for items in reversed(chunks) for message in items]

    def state(self, checkpoint: StoredCheckpoint) -> dict[str, Any]:
        """Return all state values of a checkpoint."""
        return _read_state(checkpoint.state, lambda name: self._value(name, checkpoint)["value"])

    def first(self, items: SharedList | None, count: int, checkpoint: StoredCheckpoint) -> SharedList | None:
        """Return the list of the first ``count`` items of a checkpoint's list; only later chunks are read."""
        if items is None or count in (0, items.length):
            return items if count else None
        chunks = self._chunks(items, checkpoint)
        return next(SharedList(chunk.id, count) for chunk in chunks if chunk.start < count)

    # Saving

    def commit(self, values: Sequence[tuple[str, str]], checkpoint: StoredCheckpoint) -> bool:
        """Write sealed values, then the checkpoint, then let the head name it.

        Return False, with nothing left behind, if the head has moved since it was read. Only a store that
        can compare and swap notices that.
        """
        if self._head_text is None:
            # A unique head, so that a save and a deletion that run at the same time notice each other.
            empty = self._empty_head()
            if not self._replace(self.head_key, None, empty):
                return False
            self._head_text = empty
        if checkpoint.previous is None:
            # The marker stays if this save is taken back: another one that creates the thread relies on it.
            key = self._key(MARKER)
            call(self._store.set, key, _seal(key, {"thread": self._thread_id}))
        key = self._key(checkpoint.id)
        values = [*values, (key, _seal(key, _to_fields(checkpoint)))]
        for key, text in values:
            call(self._store.set, key, text)
        if self._replace(self.head_key, self._head_text, self._sealed_head(checkpoint.id)):
            return True
        self._delete(key for key, _ in reversed(values))
        return False

    # Deleting

    def drop(self, older: str | None, dropped: Sequence[str], younger: str) -> None:
        """Delete checkpoints between two that are kept, and the values that only they needed.

        Sharing is contiguous: what neither neighbour needs, no other checkpoint does. If another process
        prunes at the same time, values may stay until the thread is deleted; none is deleted too early.
        """
        try:
            kept = [self._existing(each) for each in (younger, older) if each is not None]
            values = {name for each in dropped for name in self._values_only_of(self._existing(each), kept)}
        except NotFound:
            values = set[str]()
        self._delete(map(self._key, [*dropped, *sorted(values)]))

    def sweep(self, history: Iterable[StoredCheckpoint]) -> None:
        """Delete all values that none of these checkpoints needs, while nobody else can save."""
        needed = {MARKER}
        for checkpoint in history:
            needed |= {checkpoint.id, *_values_in(checkpoint.state)}
            for items in (checkpoint.messages, checkpoint.archived):
                for chunk in self._chunks(items, checkpoint):
                    if chunk.id in needed:  # and so is everything before it
                        break
                    needed.add(chunk.id)
        self._delete([key for key in self._keys() if key.removeprefix(self.folder) not in needed])

    def delete(self) -> bool:
        """Delete all values, then the head; return whether the thread existed, damaged or not.

        A head that no save has read is put in place before anything is deleted, so that a save whose values
        are among those fails to commit and starts again under new names.
        """
        try:
            existed = self.head() is not None
        except Corrupt:
            existed = True
        delete_folder = getattr(self._store, "delete_folder", None)
        empty: str | None = None
        while (keys := self._keys()) or empty is None:
            try:
                before = call(self._store.get, self.head_key) if empty is None else empty
            except Corrupt:  # nobody saves behind a head that cannot be read
                call(self._store.delete, self.head_key)
                continue
            fresh = self._empty_head()
            if self._replace(self.head_key, before, fresh):
                if delete_folder is not None:
                    delete_folder(self.folder)
                else:
                    self._delete(keys)
                empty = fresh
            elif empty is not None:
                return existed  # a later save has created the thread again
        self._replace(self.head_key, empty, None)
        return existed

    # Helpers

    def _history_after_pruning(
        self, newest: StoredCheckpoint, last: StoredCheckpoint, missing: str
    ) -> Iterator[StoredCheckpoint]:
        """Continue after ``last`` from the current head, which has moved, or the thread is damaged."""
        other = copy(self)  # a save that is based on the head as it was read here must fail
        now = other.newest()
        if now is not None and now.id == newest.id:
            raise self._missing(missing)
        if now is not None and now.first_us == newest.first_us:  # else deleted, and perhaps created again
            yield from (each for each in other.history(now) if each.number < last.number)

    def _chunks(self, items: SharedList | None, checkpoint: StoredCheckpoint) -> Iterator[_Chunk]:
        """Yield the chunks of a list that a checkpoint refers to, last one first."""
        while items is not None:
            chunk = self._value(items.chunk, checkpoint)
            before = SharedList(*chunk["before"]) if "before" in chunk else None
            start = 0 if before is None else before.length
            yield _Chunk(id=items.chunk, start=start, items=chunk["items"][: items.length - start])
            items = before

    def _values_only_of(self, dropped: StoredCheckpoint, kept: Sequence[StoredCheckpoint]) -> set[str]:
        """Return the names of the values that a checkpoint needs and none of its neighbours does."""
        names = set(_values_in(dropped.state)).difference(*(_values_in(each.state) for each in kept))
        for field in ("messages", "archived"):
            others = [_Cursor(self._chunks(getattr(each, field), each)) for each in kept]
            for chunk in self._chunks(getattr(dropped, field), dropped):
                if any(other.reaches(chunk) for other in others):  # and so everything before it
                    break
                names.add(chunk.id)
        return names

    def _existing(self, checkpoint_id: str) -> StoredCheckpoint:
        found = self.checkpoint(checkpoint_id)
        if found is None:
            raise NotFound(
                f"checkpoint {checkpoint_id!r} of thread {self._shown!r} was removed since it was listed"
            )
        return found

    def _value(self, name: str, checkpoint: StoredCheckpoint) -> dict[str, Any]:
        """Return a value that a checkpoint needs."""
        key = self._key(name)
        text = self._cache.get(key)
        if text is None:
            text = self._get_text(key)
            if text is None:
                self._existing(checkpoint.id)
                raise self._missing(name)
            if len(text) <= self._room:
                self._room -= len(text)
                self._cache[key] = text
        return cast("dict[str, Any]", self._unseal(key, text))

    def _check_head_not_lost(self) -> None:
        """Raise `Corrupt` if there are checkpoints without a head; otherwise read the head again."""
        if self._marker_text() is None:
            return
        while values := self._names():
            self._head_text = self._get_text(self.head_key)
            if self._head_text is not None:
                return
            left = values & self._names()  # these existed all the time, and the head did not
            checkpoints = sorted((name for name in left if name.startswith(PREFIX)), reverse=True)
            if self._compare_and_swap is not None and not any(
                self._has_past(each, left) for each in checkpoints
            ):
                return
            if left:
                raise Corrupt(
                    f"thread {self._shown!r} is damaged: its head {self.head_key!r} is missing, its "
                    f"checkpoints are not (the newest is {checkpoints[0] if checkpoints else None}); restore "
                    "the head from a backup, load what you need by checkpoint id, or delete the thread"
                )

    def _marker_text(self) -> Any:
        try:
            return call(self._store.get, self._key(MARKER))
        except Corrupt:
            return ""

    def _has_past(self, checkpoint_id: str, names: set[str]) -> bool:
        """Whether a checkpoint is not one of a save that a deletion overtook, and that will be taken back."""
        found = self.checkpoint(checkpoint_id)
        return found is not None and (found.previous is None or found.previous in names)

    def _names(self) -> set[str]:
        """Return the names of all values but the marker; none if the store cannot list them."""
        try:
            return {key.removeprefix(self.folder) for key in self._keys()} - {MARKER}
        except Corrupt:  # a damaged value of any thread must not make this one unusable
            return set()

    def _keys(self) -> list[str]:
        """Return all keys, checkpoints first: a reader misses a checkpoint before its values."""
        keys = sorted(list_keys(self._store, self.folder), reverse=True)
        return sorted(keys, key=lambda key: not key.startswith(self._key(PREFIX)))

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            call(self._store.delete, key)

    def _replace(self, key: str, old: Any, new: str | None) -> bool:
        """Replace one text by another; False if it changed meanwhile, where the store can tell."""
        if self._compare_and_swap is not None:
            return call(self._compare_and_swap, key, old, new)
        if new is None:
            call(self._store.delete, key)
        else:
            call(self._store.set, key, new)
        return True

    def _empty_head(self) -> str:
        """Return a head of no checkpoint, unlike any other. To readers, the thread does not exist."""
        return self._sealed_head(None, nonce=new_id())

    def _sealed_head(self, checkpoint_id: str | None, **more: str) -> str:
        fields = {"thread": self._thread_id, "namespace": self._namespace, "checkpoint": checkpoint_id}
        return _seal(self.head_key, fields | more)

    def _get_text(self, key: str) -> Any:
        try:
            return call(self._store.get, key)
        except Corrupt as error:
            raise Corrupt(f"thread {self._shown!r} is damaged: {error}") from error

    def _key(self, name: str) -> str:
        return self.folder + name

    def _unseal(self, key: str, text: Any) -> dict[str, Any] | None:
        """Return what `_seal` was given, if the text is whole and belongs to this key."""
        if text is None:
            return None
        raw = text.encode(errors="replace") if isinstance(text, str) else text
        if not isinstance(raw, bytes):
            raise self._damaged(key, f"it holds a {type(text).__name__}, not what a saver wrote")
        crc, body = raw[:_CRC_DIGITS], raw[_CRC_DIGITS:]
        if crc != f"{crc32(body):08x}".encode():
            raise self._damaged(key, "its checksum does not match")
        try:
            found, fields = decode_json(body)
        except (Corrupt, TypeError, ValueError) as error:
            raise self._damaged(key, str(error)) from error
        if found != key:
            raise self._damaged(key, f"it belongs to key {found!r}")
        return fields

    def _missing(self, name: str) -> Corrupt:
        return self._damaged(self._key(name), "it is missing, though a checkpoint needs it")

    def _damaged(self, key: str, problem: str) -> Corrupt:
        return Corrupt(
            f"thread {self._shown!r} is damaged: the value under {key!r} cannot be used, {problem}; "
            f"restore it from a backup, or delete({self._shown!r}) to start anew"
        )


class PendingValues:
    """The values that one save will write. None is written before everything could be encoded."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.sealed: list[tuple[str, str]] = []

    @property
    def size(self) -> int:
        """How much there is to write."""
        return sum(len(text) for _, text in self.sealed)

    def append(self, before: SharedList | None, items: Sequence[Any]) -> SharedList | None:
        """Return a list with more items, which are written as one chunk."""
        if not items:
            return before
        start = 0 if before is None else before.length
        chunk: dict[str, Any] = {"items": list(items)}
        if before is not None:
            chunk["before"] = [before.chunk, before.length]
        return SharedList(self._add("m", chunk), start + len(items))

    def put_state(self, known: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        """Return references to state values; those that differ from ``known`` are added.

        A small value is part of the reference. A large dict (an agent's virtual files) is stored key by key,
        so that a step writes only the files that changed.
        """
        return {name: self._put(known.get(name), value) for name, value in state.items()}

    def _put(self, known: Any, value: Any) -> list[Any]:
        content = encode(value, keep_order=True)
        if len(content.data) < INLINE_LIMIT or not _is_splittable(value):
            return self._put_whole(known, value, content, _INLINE)
        before: dict[str, Any] = known[1] if known is not None and known[0] == "keys" else {}
        parts = {key: (before.get(key), each, encode(each, keep_order=True)) for key, each in value.items()}
        return ["keys", {key: self._put_whole(*part, _INLINE_PART) for key, part in parts.items()}]

    def _put_whole(self, known: Any, value: Any, content: Content, inline: int) -> list[Any]:
        if len(content.data) < inline:
            return ["is", value]
        digest = content.name[:_DIGEST_CHARS]
        if known is not None and known[0] == "at" and known[2] == digest:
            return list(known)
        return ["at", self._add("s", {"value": value}), digest]

    def _add(self, kind: str, fields: dict[str, Any]) -> str:
        name = f"{kind}-{new_id()}"
        key = self._folder + name
        self.sealed.append((key, _seal(key, fields)))
        return name


class _Chunk(msgspec.Struct, frozen=True):
    """Items that one save added, cut to the length of the list that they are read for."""

    id: str
    start: int
    items: list[Any]


class _Cursor:
    """Walks the chunks of a list backwards."""

    def __init__(self, chunks: Iterator[_Chunk]) -> None:
        self._chunks = chunks
        self._at = next(chunks, None)

    def reaches(self, chunk: _Chunk) -> bool:
        """Whether the list contains a chunk, and so everything before it. Ask for later chunks first."""
        while self._at is not None and self._at.start > chunk.start:
            self._at = next(self._chunks, None)
        return self._at is not None and self._at.id == chunk.id


# Encoding

_CRC_DIGITS: Final = 8
_DIGEST_CHARS: Final = 24
_INLINE: Final = 512
_INLINE_PART: Final = 64
"""A part of a large dict that is no longer than a reference to it is stored in the checkpoint too."""

_DEFAULTS: Final[dict[str, Any]] = {
    "namespace": "",
    "previous": None,
    "oldest_in_sequence": None,
    "archived": None,
    "messages": None,
    "state": {},
    "interrupt": None,
    "metadata": {},
    "note": None,
    "tags": (),
}


def list_keys(store: KeyValueStore, prefix: str) -> list[str]:
    """Return the keys of a store with a prefix; drivers may return them as bytes.

    Raises:
        InvalidInput: The store's ``list`` returned something else.
    """
    keys: list[str] = []
    for each in collect(store.list, prefix):
        try:
            key = each.decode() if isinstance(each, bytes) else each
        except UnicodeDecodeError:
            key = each
        if not isinstance(key, str) or not key.startswith(prefix):
            raise InvalidInput(
                f"{type(store).__name__}.list({prefix!r}) returned {each!r}; "
                "return the full keys that begin with the prefix, as str"
            )
        keys.append(key)
    return keys


def _seal(key: str, fields: dict[str, Any]) -> str:
    """Encode fields as text, which any store can keep, with their key and a checksum."""
    body = encode_json([key, fields], keep_order=True)
    return f"{crc32(body):08x}{body.decode()}"


def _to_fields(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    """Return the fields that differ from their defaults; ``parent`` defaults to ``previous``."""
    every = msgspec.structs.asdict(checkpoint)
    fields = {name: value for name, value in every.items() if value != _DEFAULTS.get(name, _REQUIRED)}
    for name, items in (("messages", checkpoint.messages), ("archived", checkpoint.archived)):
        if items is not None:
            fields[name] = [items.chunk, items.length]
    if checkpoint.tags:
        fields["tags"] = list(checkpoint.tags)
    if checkpoint.parent == checkpoint.previous:
        del fields["parent"]
    return fields


def _from_fields(fields: Mapping[str, Any]) -> StoredCheckpoint:
    every: dict[str, Any] = {"parent": fields.get("previous"), **fields}
    for name in ("messages", "archived"):
        if name in every:
            every[name] = SharedList(*every[name])
    every["tags"] = tuple(every.get("tags", ()))
    return StoredCheckpoint(**every)


_REQUIRED: Final = object()


def _read_state(state: Mapping[str, Any], get: Callable[[str], Any]) -> dict[str, Any]:
    return {name: _read_value(reference, get) for name, reference in state.items()}


def _read_value(reference: Any, get: Callable[[str], Any]) -> Any:
    if reference[0] == "is":
        return reference[1]
    if reference[0] == "at":
        return get(reference[1])
    return _read_state(reference[1], get)


def _values_in(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all values that a state refers to."""
    for reference in state.values():
        if reference[0] == "at":
            yield reference[1]
        elif reference[0] == "keys":
            yield from _values_in(reference[1])


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys = list(cast("dict[Any, Any]", value))
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)
