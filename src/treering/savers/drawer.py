"""A drawer: the keys and values of one thread in a key-value store.

::

    <root>head/<thread>               {"thread", "namespace", "checkpoint"}
    <root>data/<thread>/ckpt_...      the record of a checkpoint
    <root>data/<thread>/m-...         a chunk: the messages that one save brought
    <root>data/<thread>/n-...         a node: references to chunks or nodes (see `spine`)
    <root>data/<thread>/s-...         a larger state value

``<thread>`` is `treering.core.ids.file_name` of the thread's id. Everything but a head is written once, under
a name that was never used before; only ``earlier`` of a record changes, when retention leads past others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import structs

from treering.core.ids import new_id
from treering.core.storage import KeyValueStore
from treering.errors import Corrupt, NotFound
from treering.keyvalue.awaiting import call
from treering.savers import spine, texts
from treering.savers.records import Record, from_plain, to_plain, values_of
from treering.savers.spine import Spine

_REMEMBERED_CHARS: Final = 1 << 25
"""So much of a thread is read once while its checkpoints are looked through, which share most of it."""


class Drawer:
    """The values of one thread. ``thread_id`` is ``None`` while only the name of its head is known."""

    def __init__(
        self, store: KeyValueStore, root: str, namespace: str, name: str, thread_id: str | None
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._thread_id = thread_id
        self._shown = name if thread_id is None else thread_id
        self._texts: dict[str, Any] = {}
        self._room = _REMEMBERED_CHARS
        self.head_key = f"{root}head/{name}"
        self._folder = f"{root}data/{name}/"

    def head(self) -> dict[str, Any] | None:
        """What the head says; ``None`` for a thread that was never saved."""
        head = self._get(self.head_key)
        if head is None:
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
                raise texts.missing(self._shown, self.key(head["checkpoint"]))
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
            raise texts.missing(self._shown, self.key(checkpoint_id))
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
                raise texts.missing(self._shown, self.key(current.earlier))
            current = again  # retention went by in this moment, or the thread was deleted
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
        for part in spine.chunks(record.messages, self.nodes(record)):
            items = self._part(part.id, record)["items"]
            found += items[: part.count]
        return found

    def nodes(self, record: Record | None) -> Callable[[str], Spine]:
        """How to open the nodes of a checkpoint."""
        return lambda name: spine.parse(self._part(name, record)["parts"])

    def value(self, id: str, record: Record) -> Any:
        """A state value of a checkpoint."""
        return self._part(id, record)["value"]

    def set_record(self, record: Record) -> None:
        """Write a record again."""
        key = self.key(record.id)
        call(self._store.set, key, texts.seal(key, to_plain(record)))

    def drop(self, records: Iterable[str], values: Iterable[str]) -> None:
        """Remove checkpoints, and then values that nobody else needs."""
        for name in (*records, *sorted(values)):
            call(self._store.delete, self.key(name))

    def sweep(self, line: Iterable[Record]) -> None:
        """Remove what none of a thread's checkpoints needs; only while nobody else can be saving to it."""
        needed: set[str] = set()
        for record in line:
            needed |= {record.id, *values_of(record.state)}
            spine.collect(record.messages, self.nodes(record), needed)
        for key in sorted(call(self._store.list, self._folder)):  # records first, as in `drop`
            if key.removeprefix(self._folder) not in needed:
                call(self._store.delete, key)

    def clear(self) -> bool:
        """Remove the head, then all values; whether there was a head."""
        try:
            there = call(self._store.get, self.head_key) is not None
        except Corrupt:
            there = True
        call(self._store.delete, self.head_key)
        delete_all = getattr(self._store, "delete_all", None)
        if delete_all is not None:
            delete_all(self._folder)
            return there
        for key in list(call(self._store.list, self._folder)):
            call(self._store.delete, key)
        return there

    def write(self, values: Iterable[tuple[str, str]], *, head: str) -> None:
        """Write sealed values in this order, then let the head name a checkpoint among them."""
        for key, text in values:
            call(self._store.set, key, text)
        plain = {"thread": self._thread_id, "namespace": self._namespace, "checkpoint": head}
        call(self._store.set, self.head_key, texts.seal(self.head_key, plain))

    def key(self, id: str) -> str:
        """The key of a value."""
        return self._folder + id

    def _part(self, id: str, record: Record | None) -> dict[str, Any]:
        key = self.key(id)
        text = self._texts.get(key)
        if text is None:
            text = self._text(key)
            if text is not None and len(text) <= self._room:
                self._room -= len(text)
                self._texts[key] = text
        if text is not None:
            return texts.unseal(key, text, thread_id=self._shown)
        if record is not None and self.record(record.id) is None:
            raise NotFound(
                f"checkpoint {record.id!r} of thread {self._shown!r} was removed since it was listed"
            )
        raise texts.missing(self._shown, key)

    def _get(self, key: str) -> dict[str, Any] | None:
        text = self._text(key)
        return None if text is None else texts.unseal(key, text, thread_id=self._shown)

    def _text(self, key: str) -> Any:
        try:
            return call(self._store.get, key)
        except Corrupt as error:
            raise texts.damaged(self._shown, error) from error


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
        return self._add("n", {"parts": spine.plain(parts)})

    def value(self, value: Any) -> str:
        """A state value."""
        return self._add("s", {"value": value})

    def record(self, record: Record) -> Record:
        """The checkpoint itself, which comes last and says how much was written."""
        whole = structs.replace(record, size=sum(len(text) for _, text in self._values))
        key = self._drawer.key(record.id)
        self._values.append((key, texts.seal(key, to_plain(whole))))
        return whole

    def write(self, *, head: str) -> None:
        """Write it all; when this returns, the save has happened."""
        self._drawer.write(self._values, head=head)

    def _add(self, kind: str, plain: dict[str, Any]) -> str:
        name = f"{kind}-{new_id()}"
        key = self._drawer.key(name)
        self._values.append((key, texts.seal(key, plain)))
        return name
