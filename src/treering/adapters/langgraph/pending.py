"""What tasks wrote: how it is stored.

LangGraph hands over a task's writes, and a checkpoint later a checkpoint that holds the same messages. They
are stored once, in the list of the checkpoint, and the writes point there (see `langgraph_queue` for when); a
message that is there already as a write is what its place in the list is the address of. A list that begins
like the one that its channel holds is stored as that beginning and what comes behind it: a node that returns
the whole conversation at every step writes no more than what is new in it.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from treering.adapters.langgraph.embedded_lists import holed, may_hold
from treering.adapters.langgraph.messages import is_like, kind_of, likeness
from treering.adapters.langgraph.values import is_list_of_messages
from treering.core.batch import Event
from treering.core.content import Address, Content, list_address
from treering.core.encoding import decode, encode_json
from treering.core.frame import INLINE_LIMIT
from treering.graphs.graph import BEGUN, HOLDER, WRITES
from treering.graphs.step import Place, writes_key
from treering.threads.checkpoint_record import MAX_ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from treering.adapters.langgraph.values import Values
    from treering.core.batch import Draft

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
        """Where it was written ahead (see `Queue.commit`)."""

    def unsettle(self) -> None:
        """Its commit was refused: it is nowhere."""
        self.place = self.spot = None


class Begun(msgspec.Struct, frozen=True):
    """A list whose first items are those of a stored list; ``rest`` is all others."""

    list_id: str
    items: list[Any]
    rest: list[Any]


class TaskWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What one task wrote in one call: channel, index, form and value of each write.

    The forms: ``m`` a message, ``l`` a list of messages, ``v`` a small value, ``s`` a larger one; ``p`` a
    list of messages and ``q`` one of other values, each behind the beginning of a stored list; ``h`` a value
    with such lists of messages inside (see `langgraph_holes`).
    """

    place: Place
    graph_id: str
    key: str
    task: str
    path: str
    at_us: int
    entries: list[tuple[str, int, str, Any]]
    messages: list[PendingMessage]
    landed: Any
    """A lock that is held until they are committed."""
    is_urgent: bool
    """Whether no checkpoint will follow: an interrupt, an error, an answer."""


def taken(
    values: Values,
    place: Place,
    graph_id: str,
    writes: Sequence[tuple[str, int, Any]],
    *,
    task: str,
    path: str,
    at_us: int,
    begun: Callable[[str | None, list[Any]], Begun | None],
) -> TaskWrites:
    """Writes as they are now, encoded; ``begun`` tells what of a channel's list, or of any, is stored."""
    entries: list[tuple[str, int, str, Any]] = []
    messages: list[PendingMessage] = []
    landed = Lock()
    landed.acquire()

    def pending(message: Any) -> PendingMessage:
        known = likeness(message)
        found = PendingMessage(message, known, values.encode_message(message, known), place.scope)
        messages.append(found)
        return found

    def apart(known: Begun) -> Begun:
        """What is inside of another value is not what a channel will hold next."""
        own = {id(each.message): each for each in messages}
        rest = [own.get(id(each)) or values.encode_message(each, likeness(each)) for each in known.rest]
        return Begun(known.list_id, known.items, rest)

    is_urgent = False
    for channel, index, value in _holders_last(writes):
        is_urgent |= index < 0
        if value is None:
            entries.append((channel, index, "v", _NONE))
        elif values.takes(value):
            entries.append((channel, index, "m", pending(value)))
        elif kind_of(value) is list and (known := begun(channel, value)) is not None:
            is_messages = values.takes(known.items[0])
            rest = [*map(pending if is_messages else values.encode, known.rest)]
            entries.append(
                (channel, index, "p" if is_messages else "q", Begun(known.list_id, known.items, rest))
            )
        elif is_list_of_messages(value):
            entries.append((channel, index, "l", [pending(each) for each in value]))
        elif (parts := holed(values, value, partial(begun, None))) is not None:
            entries.append((channel, index, HOLDER, (values.encode(parts[0]), [*map(apart, parts[1])])))
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
        landed=landed,
        is_urgent=is_urgent,
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

    def put(message: PendingMessage | Content) -> Any:
        if isinstance(message, Content):
            return placed(draft.put(message, scope=scope))
        if message.place is None:
            message.place = draft.put(message.content, scope=scope)
        return placed(message.place)

    def put_begun(value: Begun) -> list[Any]:
        links[list_address(value.list_id)] = None
        return [value.list_id, len(value.items), [put(each) for each in value.rest]]

    entries: list[Any] = []
    for channel, index, form, value in writes.entries:
        if form == "l":
            told: Any = [put(each) for each in value]
        elif form == "v":
            told = None if value is _NONE else orjson.Fragment(value.data)
        elif form in BEGUN:
            told = put_begun(value)
        elif form == HOLDER:
            content, lists = value
            told = [put(content), [put_begun(each) for each in lists]]
        else:
            told = put(value)
        entries.append([channel, index, form, told])
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


def _holders_last(writes: Sequence[tuple[str, int, Any]]) -> Sequence[tuple[str, int, Any]]:
    """Values that may have lists inside behind the messages, which may be in those lists."""
    for write in writes:
        if may_hold(write[2]):
            return sorted(writes, key=lambda write: may_hold(write[2]))
    return writes


class Recent:
    """Messages that tasks wrote lately, so that lists need not store them again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[int, PendingMessage] = {}

    def remember(self, messages: Sequence[PendingMessage]) -> None:
        """They were written."""
        with self._lock:
            known = self._known
            for each in messages:
                key = id(each.message)
                known.pop(key, None)
                known[key] = each
            while len(known) > _RECENT:
                del known[next(iter(known))]

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


def settle(draft: Draft, pending: PendingMessage, spot: Spot) -> Content | Address:
    """The list item for a message that was written: its content, unless that is stored elsewhere already."""
    place = pending.place
    if place is None:
        if len(pending.content.data) < INLINE_LIMIT:
            pending.place = spot
            return pending.content
        place = pending.place = draft.put(pending.content, scope=pending.scope)
    return pending.content if isinstance(place, tuple) else place
