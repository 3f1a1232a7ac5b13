"""A drawer: the keys and values of one thread in a key-value store.

::

    <root>head/<thread>               {"thread", "namespace", "checkpoint"}
    <root>data/<thread>/ckpt_...      the record of a checkpoint
    <root>data/<thread>/m-...         a chunk: the messages that one save brought
    <root>data/<thread>/n-...         a node: references to chunks or nodes (see `spine`)
    <root>data/<thread>/s-...         a larger state value
    <root>data/<thread>/first         that there are values (see `witnesses`; not in a folder)

``<thread>`` is `treering.core.ids.file_name` of the thread's id. Everything but a head is written once, under
a name that was never used before; only ``earlier`` of a record changes, when retention leads past others.
What does change is compared and swapped where the store can do that: of two writers one begins again.
**Invariant:** a thread's head is there before its first value and goes after its last one (it names no
checkpoint then), so checkpoints without a head mean that the head was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard, cast
from zlib import crc32

import msgspec
from msgspec import structs

from treering.compat.savers import chunk_tree
from treering.compat.savers.checkpoint import Facts
from treering.compat.savers.chunk_tree import Spine
from treering.core.content import Content
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.frame import INLINE_LIMIT
from treering.core.ids import new_id
from treering.core.storage import KeyValueStore
from treering.errors import Corrupt, NotFound
from treering.sync_async import call
from treering.threads.checkpoint_record import PREFIX

# -----------------------------------------------------------------------------------------------------------
# The record of a checkpoint in a key-value store: all that is said about it, and where its content lies.
#
# A small state value stands in the record; a larger one is a value of its own, written again only when it
# changed; a large dict (an agent's virtual files) is kept key by key, so that a step writes the files that
# changed. ``earlier`` leads to the checkpoint before it that is still there; ``parent`` is the one that it
# was saved upon, kept or not.


_INLINE: Final = 512
_REFERENCE: Final = 64
"""A part of a large dict that is not longer than a reference to it stands in the record too."""
_DIGEST: Final = 24

_USUAL: Final[dict[str, Any]] = {
    "namespace": "",
    "parent": None,
    "interrupt": None,
    "metadata": {},
    "note": None,
    "tags": (),
}

Put = Callable[[Any], str]
Get = Callable[[str], Any]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint."""

    id: str
    thread: str
    namespace: str
    parent: str | None
    earlier: str | None
    step: int
    first_us: int
    ts_us: int
    messages: Spine
    state: dict[str, Any]
    interrupt: Any
    metadata: dict[str, Any]
    note: str | None
    tags: tuple[str, ...]
    size: int
    """Bytes that its save wrote."""

    @property
    def facts(self) -> Facts:
        """As a checkpoint shows it."""
        return Facts(
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


def to_plain(record: Record) -> dict[str, Any]:
    """For storing: only what is not as it usually is."""
    plain = {
        name: value for name, value in msgspec.structs.asdict(record).items() if value != _USUAL.get(name)
    }
    plain["messages"] = chunk_tree.plain(record.messages)
    if record.tags:
        plain["tags"] = list(record.tags)
    if record.earlier == record.parent:
        plain.pop("earlier", None)
    elif record.earlier is None:
        plain["earlier"] = None
    return plain


def from_plain(plain: Mapping[str, Any]) -> Record:
    """What `to_plain` gave."""
    fields: dict[str, Any] = {**_USUAL, **plain}
    fields["earlier"] = plain["earlier"] if "earlier" in plain else fields["parent"]
    fields["messages"] = chunk_tree.parse(plain["messages"])
    fields["tags"] = tuple(fields["tags"])
    return Record(**fields)


def write_state(known: Mapping[str, Any], state: Mapping[str, Any], put: Put) -> dict[str, Any]:
    """Where each value lies; those that are not as ``known`` are put."""
    return {name: _placed(known.get(name), value, put) for name, value in state.items()}


def read_state(state: Mapping[str, Any], get: Get) -> dict[str, Any]:
    """All values."""
    return {name: _read(place, get) for name, place in state.items()}


def values_of(state: Mapping[str, Any]) -> Iterator[str]:
    """The ids of all values that a state refers to."""
    for place in state.values():
        if place[0] == "at":
            yield place[1]
        elif place[0] == "keys":
            yield from values_of(place[1])


def _placed(known: Any, value: Any, put: Put) -> list[Any]:
    content = encode(value, keep_order=True)
    if len(content.data) >= INLINE_LIMIT and _is_splittable(value):
        before: dict[str, Any] = known[1] if known is not None and known[0] == "keys" else {}
        parts = {key: (before.get(key), each, encode(each, keep_order=True)) for key, each in value.items()}
        return ["keys", {key: _kept(*part, put, _REFERENCE) for key, part in parts.items()}]
    return _kept(known, value, content, put, _INLINE)


def _kept(known: Any, value: Any, content: Content, put: Put, inline: int) -> list[Any]:
    if len(content.data) < inline:
        return ["is", value]
    digest = content.name[:_DIGEST]
    if known is not None and known[0] == "at" and known[2] == digest:
        return list(known)
    return ["at", put(value), digest]


def _read(place: Any, get: Get) -> Any:
    if place[0] == "is":
        return place[1]
    if place[0] == "at":
        return get(place[1])
    return read_state(place[1], get)


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys = list(cast("dict[Any, Any]", value))
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)


# -----------------------------------------------------------------------------------------------------------
# Witnesses: which threads of a key-value store have values, without listing them for each.
#
# A thread that has no head is new, or has lost it, and then its values are still there. To find out, they
# can be listed, which in many stores means to walk through everything that is stored. So a thread's first
# save leaves a key of a known name among its values, its witness, and asking for that is enough. Threads
# that older versions saved have none: they are found by listing all values once, when a saver first needs
# to know. **Invariant:** a thread that has values has a witness, or is known to be one of those.


WITNESS: Final = "first"
"""The name of a thread's witness; other values have a ``-`` or a ``_`` in theirs."""


class Witnesses:
    """The witnesses of the threads below one root."""

    def __init__(self, store: KeyValueStore, root: str) -> None:
        self._store = store
        self._folder = f"{root}data/"
        self._without: frozenset[str] | None = None

    def may_have_values(self, name: str) -> bool:
        """Whether there are, or may be, values of the thread with this name."""
        without = self._without
        if without is None:
            without = self._without = self._found_without()
        if without is None or name in without:
            return True
        try:
            return call(self._store.get, f"{self._folder}{name}/{WITNESS}") is not None
        except Corrupt:
            return True

    def _found_without(self) -> frozenset[str] | None:
        """The threads that have values and no witness; ``None`` if the store cannot tell."""
        try:
            keys = [key.removeprefix(self._folder) for key in call(self._store.list, self._folder)]
        except Corrupt:  # a damaged value of any thread
            return None
        parts = [key.partition("/") for key in keys]
        witnessed = {name for name, _, value in parts if value == WITNESS}
        return frozenset(name for name, _, _ in parts) - witnessed


# -----------------------------------------------------------------------------------------------------------
# What a key-value saver puts under a key: a text, so that any store can keep it.
#
# A text is eight hex digits, the CRC-32 of the rest, and then ``[key, record]`` as JSON with treering's tags.
# **Invariant:** a record is given back only if it is whole and belongs to the key that it was asked under;
# anything else is `Corrupt`, with the thread, the key and what to do.


_CRC_DIGITS: Final = 8


def seal(key: str, record: dict[str, Any]) -> str:
    """A record as text. Raises `Unencodable` for what has no safe encoding."""
    body = encode_json([key, record], keep_order=True)
    return f"{crc32(body):08x}{body.decode()}"


def unseal(key: str, text: Any, *, thread_id: str) -> dict[str, Any]:
    """The record of a text that was stored under ``key``."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    if not isinstance(raw, bytes):
        raise _damaged(thread_id, key, f"it holds a {type(text).__name__}, not what a saver wrote")
    crc, body = raw[:_CRC_DIGITS], raw[_CRC_DIGITS:]
    if crc != f"{crc32(body):08x}".encode():
        raise _damaged(thread_id, key, "its checksum does not match")
    try:
        found, record = decode_json(body)
    except (Corrupt, TypeError, ValueError) as error:
        raise _damaged(thread_id, key, str(error)) from error
    if found != key:
        raise _damaged(thread_id, key, f"it belongs to key {found!r}")
    return record


def damaged(thread_id: str, error: Corrupt) -> Corrupt:
    """A store's own complaint about a value, with the thread that it belongs to."""
    return Corrupt(f"thread {thread_id!r} is damaged: {error}")


def missing(thread_id: str, key: str) -> Corrupt:
    """A value that must be there is not."""
    return _damaged(thread_id, key, "it is missing, though a checkpoint needs it")


def _damaged(thread_id: str, key: str, problem: str) -> Corrupt:
    return Corrupt(
        f"thread {thread_id!r} is damaged: the value under {key!r} cannot be used, {problem}; "
        f"restore it from a backup, or delete({thread_id!r}) to begin anew"
    )


# -----------------------------------------------------------------------------------------------------------

_REMEMBERED_CHARS: Final = 1 << 25
"""So much of a thread is read once while its checkpoints are looked through, which share most of it."""


class Drawer:
    """The values of one thread. ``thread_id`` is ``None`` while only the name of its head is known."""

    def __init__(
        self,
        store: KeyValueStore,
        root: str,
        namespace: str,
        name: str,
        thread_id: str | None,
        witnesses: Witnesses | None,
    ) -> None:
        self._store = store
        self._witnesses = witnesses
        self._name = name
        self._is_new = False
        self._swap = getattr(store, "compare_and_swap", None)
        self._delete_all = getattr(store, "delete_all", None)
        """What a store that has folders can do."""
        self._head_text: Any = None
        self._namespace = namespace
        self._thread_id = thread_id
        self._shown = name if thread_id is None else thread_id
        self._texts: dict[str, Any] = {}
        self._room = _REMEMBERED_CHARS
        self.head_key = f"{root}head/{name}"
        self._folder = f"{root}data/{name}/"

    def head(self) -> dict[str, Any] | None:
        """What the head says; ``None`` for a thread that was never saved."""
        self._head_text = self._text(self.head_key)
        if self._head_text is None:
            self._refuse_a_lost_head()
        head = self._unsealed(self.head_key, self._head_text)
        self._is_new = head is None or head["checkpoint"] is None
        if head is None or self._is_new:
            return None
        if self._thread_id not in (None, head["thread"]) or head["namespace"] != self._namespace:
            raise Corrupt(
                f"thread {self._shown!r} is damaged: its head {self.head_key!r} belongs to thread "
                f"{head['thread']!r} of namespace {head['namespace']!r}; it was moved, put it back"
            )
        return head

    def newest(self) -> Record | None:
        """The checkpoint that the head names."""
        head = self.head()
        while head is not None:
            record = self.record(head["checkpoint"])
            if record is not None:
                return record
            again = self.head()
            if again == head:
                raise missing(self._shown, self.key(head["checkpoint"]))
            head = again
        return None

    def record(self, checkpoint_id: str) -> Record | None:
        """The record of a checkpoint, if it is there."""
        plain = self._get(self.key(checkpoint_id))
        return None if plain is None else from_plain(plain)

    def needed(self, checkpoint_id: str) -> Record:
        """The record of a checkpoint that must be there."""
        record = self.record(checkpoint_id)
        if record is None:
            raise missing(self._shown, self.key(checkpoint_id))
        return record

    def earlier(self, record: Record) -> Record | None:
        """The checkpoint before, if there is one still."""
        current: Record | None = record
        while current is not None and current.earlier is not None:
            found = self.record(current.earlier)
            if found is not None:
                return found
            again = self.record(current.id)
            if again is not None and again.earlier == current.earlier:
                raise missing(self._shown, self.key(current.earlier))
            current = again  # retention went by in this checkpoint, or the thread was deleted
        return None

    def line(self, record: Record) -> Iterator[Record]:
        """A checkpoint and all before it."""
        found: Record | None = record
        while found is not None:
            yield found
            found = self.earlier(found)

    def messages(self, record: Record) -> list[Any]:
        """All messages of a checkpoint."""
        found: list[Any] = []
        for part in chunk_tree.chunks(record.messages, self.nodes(record)):
            items = self._part(part.id, record)["items"]
            found += items[: part.count]
        return found

    def nodes(self, record: Record | None) -> Callable[[str], Spine]:
        """How to open the nodes of a checkpoint."""
        return lambda name: chunk_tree.parse(self._part(name, record)["parts"])

    def value(self, id: str, record: Record) -> Any:
        """A state value of a checkpoint."""
        return self._part(id, record)["value"]

    def lead_past(self, checkpoint_id: str, *, earlier: str, to: str | None) -> Record | None:
        """Let a checkpoint follow upon another one than ``earlier``; ``None`` if someone else was faster."""
        key = self.key(checkpoint_id)
        text = self._text(key)
        plain = self._unsealed(key, text)
        found = None if plain is None else from_plain(plain)
        if found is None or found.earlier != earlier:
            return None
        record = structs.replace(found, earlier=to)
        return record if self._put(key, text, seal(key, to_plain(record))) else None

    def drop(self, records: Iterable[str], values: Iterable[str]) -> None:
        """Remove checkpoints, and then values that nobody else needs."""
        self._delete(self.key(name) for name in (*records, *sorted(values)))

    def sweep(self, line: Iterable[Record]) -> None:
        """Remove what none of a thread's checkpoints needs; only while nobody else can be saving to it."""
        needed: set[str] = {WITNESS}
        for record in line:
            needed |= {record.id, *values_of(record.state)}
            chunk_tree.collect(record.messages, self.nodes(record), needed)
        for key in sorted(call(self._store.list, self._folder)):  # records first, as in `drop`
            if key.removeprefix(self._folder) not in needed:
                call(self._store.delete, key)

    def clear(self) -> bool:
        """Remove all values, then the head; whether there was one."""
        try:
            there = self.head() is not None
        except Corrupt:
            there = True
        if self._swap is not None:
            self._clear_beside_others(self._swap)
            return there
        if there:
            call(self._store.set, self.head_key, self._empty_head())
        if self._delete_all is not None:
            self._delete_all(self._folder)
        else:
            self._delete(self._all())
        call(self._store.delete, self.head_key)
        return there

    def write(self, values: Sequence[tuple[str, str]], *, head: str) -> bool:
        """Write sealed values in this order, then let the head name a checkpoint among them.

        False, with nothing left behind, if the head has moved since it was read; only a store that can swap
        notices that.
        """
        if self._head_text is None:
            # Whoever deletes what is there by now changes this head, which "no head" would not tell.
            empty = self._empty_head()
            if not self._put(self.head_key, None, empty):
                return False
            self._head_text = empty
        if self._is_new and self._witnesses is not None:
            # It stays if this save is taken back: another one that begins the thread relies on it.
            key = self.key(WITNESS)
            call(self._store.set, key, seal(key, {"thread": self._thread_id}))
        for key, text in values:
            call(self._store.set, key, text)
        if self._put(self.head_key, self._head_text, self._sealed_head(head)):
            return True
        self._delete(key for key, _ in reversed(values))
        return False

    def key(self, id: str) -> str:
        """The key of a value."""
        return self._folder + id

    def _refuse_a_lost_head(self) -> None:
        """Raise `Corrupt` if there are values without a head; else the head is as it was read last."""
        if self._witnesses is not None and not self._witnesses.may_have_values(self._name):
            return
        while values := self._values():
            self._head_text = self._text(self.head_key)
            if self._head_text is not None:
                return
            left = values & self._values()  # these were there all the time, and the head was not
            records = sorted((name for name in left if name.startswith(PREFIX)), reverse=True)
            if self._swap is not None and not any(self._has_its_past(each, left) for each in records):
                return
            if left:
                raise Corrupt(
                    f"thread {self._shown!r} is damaged: its head {self.head_key!r} is missing, its "
                    f"checkpoints are not (the newest is {records[0] if records else None}); restore the "
                    "head from a backup, load what you need by the id of its checkpoint, or delete the thread"
                )

    def _has_its_past(self, checkpoint_id: str, values: set[str]) -> bool:
        """Whether a checkpoint is not of a save that lost its thread to a `clear` and will be taken back."""
        record = self.record(checkpoint_id)
        return record is not None and (record.earlier is None or record.earlier in values)

    def _values(self) -> set[str]:
        """The names of all values, as far as the store can tell them."""
        try:
            found = {key.removeprefix(self._folder) for key in call(self._store.list, self._folder)}
            return found - {WITNESS}
        except Corrupt:  # a damaged value of any thread: this one has to be none the worse for it
            return set()

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            call(self._store.delete, key)

    def _part(self, id: str, record: Record | None) -> dict[str, Any]:
        key = self.key(id)
        text = self._texts.get(key)
        if text is None:
            text = self._text(key)
            if text is not None and len(text) <= self._room:
                self._room -= len(text)
                self._texts[key] = text
        if text is not None:
            return unseal(key, text, thread_id=self._shown)
        if record is not None and self.record(record.id) is None:
            raise NotFound(
                f"checkpoint {record.id!r} of thread {self._shown!r} was removed since it was listed"
            )
        raise missing(self._shown, key)

    def _get(self, key: str) -> dict[str, Any] | None:
        return self._unsealed(key, self._text(key))

    def _unsealed(self, key: str, text: Any) -> dict[str, Any] | None:
        return None if text is None else unseal(key, text, thread_id=self._shown)

    def _put(self, key: str, before: Any, text: str) -> bool:
        """Write a text over the one that was read, if the store can tell whether that is still there."""
        if self._swap is not None:
            return call(self._swap, key, before, text)
        call(self._store.set, key, text)
        return True

    def _clear_beside_others(self, swap: Callable[..., Any]) -> None:
        """Remove what is there by now, and nothing of a save that goes on meanwhile.

        A head that no save has seen takes the place of the one that was read, so that a save whose values
        are among those that go is told to begin again, under other names.
        """
        empty: str | None = None
        while (keys := self._all()) or empty is None:
            try:
                before = call(self._store.get, self.head_key) if empty is None else empty
            except Corrupt:  # nobody saves behind a head that cannot be read
                call(self._store.delete, self.head_key)
                continue
            fresh = self._empty_head()
            if call(swap, self.head_key, before, fresh):
                self._delete(keys)
                empty = fresh
            elif empty is not None:
                return  # a later save has begun the thread anew
        call(swap, self.head_key, empty, None)

    def _all(self) -> list[str]:
        """All keys in the order in which they are removed: who reads meanwhile misses a checkpoint first."""
        keys = sorted(call(self._store.list, self._folder), reverse=True)
        return sorted(keys, key=lambda key: not key.startswith(self.key(PREFIX)))

    def _empty_head(self) -> str:
        """A head of no checkpoint, unlike any other: the thread is not there, for who reads."""
        return self._sealed_head(None, by=new_id())

    def _sealed_head(self, checkpoint_id: str | None, **more: str) -> str:
        plain = {"thread": self._thread_id, "namespace": self._namespace, "checkpoint": checkpoint_id}
        return seal(self.head_key, plain | more)

    def _text(self, key: str) -> Any:
        try:
            return call(self._store.get, key)
        except Corrupt as error:
            raise damaged(self._shown, error) from error


class Pending:
    """What one save will write; nothing is, before everything could be encoded."""

    def __init__(self, drawer: Drawer) -> None:
        self._drawer = drawer
        self._values: list[tuple[str, str]] = []

    def chunk(self, items: Sequence[Any]) -> str:
        """New messages."""
        return self._add("m", {"items": list(items)})

    def node(self, parts: Spine) -> str:
        """References that became one."""
        return self._add("n", {"parts": chunk_tree.plain(parts)})

    def value(self, value: Any) -> str:
        """A state value."""
        return self._add("s", {"value": value})

    def record(self, record: Record) -> Record:
        """The checkpoint itself, which comes last and says how much was written."""
        whole = structs.replace(record, size=sum(len(text) for _, text in self._values))
        key = self._drawer.key(record.id)
        self._values.append((key, seal(key, to_plain(whole))))
        return whole

    def write(self, *, head: str) -> bool:
        """Write it all; when this returns True, the save has happened, else another one came first."""
        return self._drawer.write(self._values, head=head)

    def _add(self, kind: str, plain: dict[str, Any]) -> str:
        name = f"{kind}-{new_id()}"
        key = self._drawer.key(name)
        self._values.append((key, seal(key, plain)))
        return name
