"""What tasks wrote: how it is stored, and how it waits for the checkpoint that is made of it.

LangGraph hands over a task's writes, and a moment later a checkpoint that holds the same messages. Writes
wait for that checkpoint and go into its commit: the messages are stored once, in their list, and the
writes point there. So a checkpoint is never durable before what it is made of, and a step costs one
commit. What no checkpoint comes for (a task that is done while its neighbours still work) is committed by
itself after `PATIENCE`; an interrupt or an error, with everything that waits, before the call returns. Where
every write is to be durable at once, its messages are written ahead to the end of the list that will most
likely hold them next, so that they too are stored once. **Invariant:** writes are committed in the order in
which they came, and before anything that was put after them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from treering.adapters.langchain_messages import is_like, likeness
from treering.adapters.langgraph_values import is_list_of_messages
from treering.core.address import Address, list_address
from treering.core.batch import Event
from treering.core.body import INLINE_LIMIT
from treering.core.content import Content
from treering.core.draft import Draft
from treering.core.encoding import decode, encode_json
from treering.errors import ListMoved
from treering.views.checkpoints import MAX_ROW_BYTES
from treering.views.graph_ids import Place, writes_key
from treering.views.graphs import WRITES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from treering.adapters.langgraph_values import Values
    from treering.core.batch import Batch
    from treering.core.engine import Engine

PATIENCE: Final = 0.01
"""Seconds that writes wait for their checkpoint before they are committed by themselves."""

_IDLE: Final = 1.0
_RECENT: Final = 512
_SMALL: Final = 256

_NONE: Final = Content("json", b"null")

Spot = tuple[str, int]
"""A position in a list."""


class PendingMessage:
    """A message that a task wrote, as it was then, and where that is stored once it is."""

    __slots__ = ("content", "known", "message", "place", "scope", "spot")

    def __init__(self, message: Any, known: Any, content: Content, scope: str) -> None:
        self.message = message
        self.known = known
        self.content = content
        self.scope = scope
        self.place: Address | Spot | None = None
        self.spot: Spot | None = None
        """Where it was written ahead (see `Queue.flush`)."""

    def unsettle(self) -> None:
        """Its commit was refused: it is nowhere."""
        self.place = self.spot = None


class TaskWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What one task wrote in one call: channel, index, form and value of each write.

    The forms: ``m`` a message, ``l`` a list of messages, ``v`` a small value, ``s`` a larger one.
    """

    place: Place
    graph_id: str
    key: str
    task: str
    path: str
    at_us: int
    entries: list[tuple[str, int, str, Any]]
    messages: list[PendingMessage]

    @property
    def is_urgent(self) -> bool:
        """Whether no checkpoint will follow: an interrupt, an error, an answer."""
        return any(index < 0 for _, index, _, _ in self.entries)


def taken(
    values: Values,
    place: Place,
    graph_id: str,
    writes: Sequence[tuple[str, int, Any]],
    *,
    task: str,
    path: str,
    at_us: int,
) -> TaskWrites:
    """Writes as they are now, encoded."""
    entries: list[tuple[str, int, str, Any]] = []
    messages: list[PendingMessage] = []

    def pending(message: Any) -> PendingMessage:
        known = likeness(message)
        found = PendingMessage(message, known, values.encode_message(message, known), place.scope)
        messages.append(found)
        return found

    for channel, index, value in writes:
        if value is None:
            entries.append((channel, index, "v", _NONE))
        elif values.takes(value):
            entries.append((channel, index, "m", pending(value)))
        elif is_list_of_messages(value):
            entries.append((channel, index, "l", [pending(each) for each in value]))
        else:
            content = values.encode(value)
            is_small = content.kind == "json" and len(content.data) <= _SMALL
            entries.append((channel, index, "v" if is_small else "s", content))
    return TaskWrites(
        place=place,
        graph_id=graph_id,
        key=writes_key(place, graph_id),
        task=task,
        path=path,
        at_us=at_us,
        entries=entries,
        messages=messages,
    )


def write_event(draft: Draft, writes: TaskWrites, number: int) -> None:
    """Put writes into a draft: messages that have no place yet, values, and the event that names them."""
    scope = writes.place.scope
    links: dict[Address, None] = {}
    prefix = f"s:{draft.id}:0."

    def placed(place: Address | Spot) -> Any:
        if isinstance(place, tuple):
            links[list_address(place[0])] = None
            return list(place)
        links[place] = None
        return int(place[len(prefix) :]) if place.startswith(prefix) else place

    def put(message: PendingMessage) -> Any:
        if message.place is None:
            message.place = draft.put(message.content, scope=scope)
        return placed(message.place)

    entries: list[Any] = []
    for channel, index, form, value in writes.entries:
        if form == "m":
            entries.append([channel, index, form, put(value)])
        elif form == "l":
            entries.append([channel, index, form, [put(each) for each in value]])
        elif form == "s":
            entries.append([channel, index, form, placed(draft.put(value, scope=scope))])
        else:
            entries.append([channel, index, form, orjson.Fragment(value.data)])
    data: bytes | None = _told(writes, entries)
    body = None
    if len(data) > MAX_ROW_BYTES:
        body = draft.put(Content("json", data), scope=scope)
        data = None
    draft.event(
        Event(
            id=f"{draft.id}.{number}",
            kind=WRITES,
            ts_us=writes.at_us,
            scope=scope,
            thread=writes.key,
            data=data,
            body=body,
            links=tuple(links),
        )
    )


def _told(writes: TaskWrites, entries: list[Any]) -> bytes:
    told: dict[str, Any] = {
        "step": [writes.graph_id, writes.place.within],
        "task": writes.task,
        "path": writes.path,
        "writes": entries,
    }
    try:
        return orjson.dumps(told)
    except TypeError:  # a lone surrogate in a name
        given = zip(entries, writes.entries, strict=True)
        told["writes"] = [
            [*entry[:3], decode(value)] if entry[2] == "v" else entry for entry, (*_, value) in given
        ]
        return encode_json(told, keep_order=True)


class Recent:
    """Messages that tasks wrote lately, so that lists need not store them again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[int, PendingMessage] = OrderedDict()

    def remember(self, messages: Sequence[PendingMessage]) -> None:
        """They were written."""
        with self._lock:
            for each in messages:
                self._known[id(each.message)] = each
                self._known.move_to_end(id(each.message))
            while len(self._known) > _RECENT:
                self._known.popitem(last=False)

    def find(self, message: Any, scope: str) -> PendingMessage | None:
        """What was written, if the message still is that."""
        found = self._known.get(id(message))
        if found is None or found.message is not message or found.scope != scope:
            return None
        return found if is_like(message, found.known) else None

    def forget(self, messages: Sequence[Any]) -> None:
        """They are in a list now."""
        with self._lock:
            for message in messages:
                self._known.pop(id(message), None)


def settle(draft: Draft, pending: PendingMessage, list_id: str, position: int) -> Content | Address:
    """The list item for a message that was written: its content, unless that is stored elsewhere already."""
    if pending.place is None:
        if len(pending.content.data) >= INLINE_LIMIT:
            pending.place = draft.put(pending.content, scope=pending.scope)
        else:
            pending.place = (list_id, position)
            return pending.content
    if isinstance(pending.place, tuple):
        return pending.content
    return pending.place


def _write_ahead(draft: Draft, writes: TaskWrites, list_id: str, start: int) -> None:
    items: list[Content | Address] = []
    for position, message in enumerate(writes.messages, start):
        items.append(settle(draft, message, list_id, position))
        message.spot = (list_id, position)
    draft.append(list_id, *items, scope=writes.place.scope, at=start)


def _unsettle(writes: list[TaskWrites]) -> None:
    for each in writes:
        for message in each.messages:
            message.unsettle()


class Queue:
    """Writes that wait for their checkpoint, by scope."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._gates: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._engine = engine
        self._space = space
        self._waiting: OrderedDict[str, list[TaskWrites]] = OrderedDict()
        self._since = 0.0
        self._failed: Exception | None = None
        self._lock = Lock()
        self._thread: threading.Thread | None = None

    def gate(self, scope: str) -> Any:
        """A lock to hold while something of a scope is taken and committed; other scopes need not wait."""
        with self._lock:
            found = self._gates.get(scope)
            if found is None:
                found = self._gates[scope] = RLock()
            return found

    def add(self, writes: TaskWrites) -> None:
        """Let writes wait. Raises what an earlier flush in the background has failed with."""
        with self._lock:
            failed, self._failed = self._failed, None
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.setdefault(writes.place.scope, []).append(writes)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_flush_on, args=(weakref.ref(self),), name="treering-writes", daemon=True
                )
                self._thread.start()
        if failed is not None:
            raise failed

    def take(self, scope: str) -> list[TaskWrites]:
        """What waits for a scope, to be committed while `gate` is held."""
        with self._lock:
            return self._waiting.pop(scope, [])

    def put_back(self, writes: list[TaskWrites]) -> None:
        """Its commit was refused: let it wait again, in front."""
        if writes:
            _unsettle(writes)
            with self._lock:
                scope = writes[0].place.scope
                self._waiting[scope] = [*writes, *self._waiting.get(scope, [])]

    def flush(self, scope: str | None = None) -> None:
        """Commit what waits (of one scope)."""
        if self._waiting:
            for each in list(self._waiting) if scope is None else [scope]:
                with self.gate(each):
                    self._commit(self.take(each), None)

    def commit(self, writes: TaskWrites, spot: Spot | None) -> None:
        """Commit what waits of a scope, and this behind it.

        ``spot`` is the end of the list that will hold its messages next: they are written there ahead, so
        that the checkpoint need only say that its list is longer.
        """
        scope = writes.place.scope
        with self.gate(scope):
            self._commit([*self.take(scope), writes], spot)

    def _commit(self, writes: list[TaskWrites], spot: Spot | None) -> None:
        if not writes:
            return
        try:
            try:
                self._engine.commit(self._drafted(writes, spot))
            except ListMoved:  # it does not end there any more: nothing is written ahead
                if spot is None:
                    raise
                _unsettle(writes)
                self._engine.commit(self._drafted(writes, None))
        except BaseException:
            self.put_back(writes)
            raise

    def _drafted(self, writes: list[TaskWrites], spot: Spot | None) -> Batch:
        draft = Draft(self._space)
        if spot is not None:
            _write_ahead(draft, writes[-1], *spot)
        for number, each in enumerate(writes):
            write_event(draft, each, number)
        return draft.batch()

    def _look(self) -> bool:
        """Commit what has waited too long; whether the thread is still needed."""
        with self._lock:
            now = time.monotonic()
            if not self._waiting:
                if now - self._since > _IDLE:
                    self._thread = None
                    return False
                return True
            if now - self._since < PATIENCE:
                return True
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - told to whoever writes next
            with self._lock:
                self._failed = error
                self._since = time.monotonic() + _IDLE
        return True


def _flush_on(queue: Callable[[], Queue | None]) -> None:
    """The thread of a queue; it ends when the queue is idle or gone."""
    while True:
        time.sleep(PATIENCE)
        found = queue()
        if found is None or not found._look():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return
        del found
