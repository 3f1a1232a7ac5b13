"""What a task wrote before its step ended, as an event of the thread (LangGraph's pending writes).

The event names the checkpoint that the task ran on, the task, and one entry for each write: channel, index,
form, value. Content of its own is in the body of its commit. Content that a list already has is not stored
again: a node that returns the whole conversation, or a `Send` that carries it, names the list and how many of
its items. The forms are

- ``m`` a message, ``l`` a list of messages, ``v`` a small value in the row itself, ``s`` any other value;
- ``p`` a list of messages and ``q`` one of plain data, both as the prefix of a stored list and what follows;
- ``h`` a value with such lists of messages embedded (see `channels`).

Where a form has content, the row has its place: an address, a number (a slot of the event's own commit) or a
list and a position in it.

An interrupt is a write, too. So that everything that shows threads knows that one waits for a person, the
checkpoint that it was written on is revised in the same commit, and names it as its pending interrupt; an
answer takes it away (see `pending_after`). What answers it from outside of the graph (`Thread.resume`) writes
the answer as the task itself would, and the graph goes on with ``invoke(None, config)``.

**Invariant:** decoding returns what the task wrote, in the order in which LangGraph applies it, whatever
became of the objects since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import orjson
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from treering.adapters.langgraph.channels import (
    extract_lists,
    fill_lists,
    may_embed_lists,
    shared_prefix,
)
from treering.adapters.langgraph.values import fingerprint, is_list_of_messages, is_message, type_of
from treering.core.batch import Event
from treering.core.content import Address, Content, list_address, slot_address
from treering.core.encoding import decode, encode_json
from treering.errors import Corrupt, NotFound, Unencodable
from treering.graphs.extension import WRITES
from treering.graphs.graph import EMBEDDED_FORM, PREFIX_FORMS
from treering.graphs.step import writes_key
from treering.threads.checkpoint import MAX_ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from langgraph.checkpoint.base import PendingWrite

    from treering.adapters.langgraph.channels import SharedPrefix, StoredList
    from treering.adapters.langgraph.values import Fingerprint, ValueCodec
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.graphs.step import GraphKey, Written
    from treering.threads.checkpoint import ListPrefix

ListPosition = tuple[str, int]
"""An item of a list: the list's id, and the position."""

_SMALL: Final = 256
_GAP: Final = 4
"""Positions of a list that are at most this far apart are read together."""
_NULL: Final = Content("json", b"null")


class WrittenMessage(msgspec.Struct, frozen=True, eq=False):
    """A message as it was when the task wrote it."""

    message: Any
    fields: Fingerprint
    content: Content


class WrittenPrefix(msgspec.Struct, frozen=True):
    """A list as the prefix of a stored one, and what follows: messages of a channel, or content."""

    list_id: str
    items: list[Any]
    rest: list[WrittenMessage | Content]


class TaskWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What one task wrote in one call, encoded."""

    key: GraphKey
    graph_id: str
    row_key: str
    task: str
    path: str
    at_us: int
    entries: list[tuple[str, int, str, Any]]
    messages: list[WrittenMessage]
    """The messages of list channels, in order; those of embedded lists are not among them."""
    is_urgent: bool
    """Whether it is an interrupt, an error or an answer, which no checkpoint follows."""

    @property
    def list_entries(self) -> list[tuple[str, int, str, Any]]:
        """The entries that `messages` belong to."""
        return [entry for entry in self.entries if entry[2] in ("m", "l", "p")]

    def messages_of(self, channel: str) -> Iterator[tuple[tuple[Any, ...], list[Any] | None]]:
        """The messages that were written to a channel, with their sort keys; ``None`` for anything else."""
        for name, index, form, value in self.entries:
            if name == channel:
                key = writes_sort_key(self.path, self.task, index)
                if form == "m":
                    yield key, [value.message]
                elif form == "l":
                    yield key, [each.message for each in value]
                elif form == "p":
                    yield key, [*value.items, *(each.message for each in value.rest)]
                else:
                    yield key, None


def encode_writes(
    codec: ValueCodec,
    key: GraphKey,
    graph_id: str,
    writes: Sequence[tuple[str, int, Any]],
    *,
    prefixes: Mapping[str, ListPrefix],
    lists: Mapping[str, StoredList],
    task: str,
    path: str,
    at_us: int,
) -> TaskWrites:
    """Encode writes, ``(channel, index, value)``, as they are now.

    ``prefixes`` are the lists of the checkpoint that they were made on, and ``lists`` the mirrors of those.
    """
    entries: list[tuple[str, int, str, Any]] = []
    messages: list[WrittenMessage] = []

    def find(items: list[Any], channel: str | None = None) -> SharedPrefix | None:
        """Find what a list shares with that of a channel, or with any list of messages."""
        best: SharedPrefix | None = None
        for name in prefixes if channel is None else (channel,):
            stored, prefix = lists.get(name), prefixes.get(name)
            if (
                items
                and stored is not None
                and prefix is not None
                and stored.id == prefix.list
                and (channel is not None or stored.is_messages)
            ):
                shared = shared_prefix(codec, stored, prefix.length, items)
                if shared is not None and (best is None or len(shared.items) > len(best.items)):
                    best = shared
        return best

    def written(message: Any) -> WrittenMessage:
        fields = fingerprint(message)
        encoded = WrittenMessage(message, fields, codec.encode_message(message, fields))
        messages.append(encoded)
        return encoded

    def embedded(shared: SharedPrefix) -> WrittenPrefix:
        own = {id(each.message): each for each in messages}
        rest = [own.get(id(each)) or codec.encode_message(each, fingerprint(each)) for each in shared.rest]
        return WrittenPrefix(shared.list_id, shared.items, rest)

    # Values with embedded lists last: the messages in them may be among those that are written beside them.
    for channel, index, value in sorted(writes, key=lambda write: may_embed_lists(write[2])):
        if value is None:
            entries.append((channel, index, "v", _NULL))
        elif is_message(value):
            entries.append((channel, index, "m", written(value)))
        elif type_of(value) is list and (shared := find(value, channel)) is not None:
            form = "p" if is_message(shared.items[0]) else "q"
            rest = [*map(written if form == "p" else codec.encode, shared.rest)]
            entries.append((channel, index, form, WrittenPrefix(shared.list_id, shared.items, rest)))
        elif is_list_of_messages(value):
            entries.append((channel, index, "l", [written(each) for each in value]))
        elif (extracted := extract_lists(codec, value, find)) is not None:
            entries.append(
                (channel, index, EMBEDDED_FORM, (codec.encode(extracted[0]), [*map(embedded, extracted[1])]))
            )
        else:
            content = codec.encode(value)
            is_small = content.kind == "json" and len(content.data) <= _SMALL
            entries.append((channel, index, "v" if is_small else "s", content))
    return TaskWrites(
        key=key,
        graph_id=graph_id,
        row_key=writes_key(key, graph_id),
        task=task,
        path=path,
        at_us=at_us,
        entries=entries,
        messages=messages,
        is_urgent=any(index < 0 for _, index, _ in writes),
    )


INTERRUPT: Final = "__interrupt__"
RESUME: Final = "__resume__"
_WHOLE_STEP: Final = "00000000-0000-0000-0000-000000000000"
"""The task that LangGraph gives what is meant for any task of a step."""


def concerns_a_person(writes: Sequence[tuple[str, int, Any]]) -> bool:
    """Whether writes are an interrupt or the answer to one."""
    return any(channel in (INTERRUPT, RESUME) for channel, _, _ in writes)


def asked_in(writes: TaskWrites, given: Sequence[tuple[str, int, Any]]) -> dict[str, dict[str, Any]]:
    """Return where each interrupt among writes is answered, by its id.

    That is the task that asks, of which step of which graph, and which answers it has already. The graphs
    around a subgraph write the same interrupts again.
    """
    answered, asked = ([value for name, _, value in given if name == each] for each in (RESUME, INTERRUPT))
    earlier = [cast("list[Any]", value) if isinstance(value, list) else [value] for value in answered]
    place = {
        "step": [writes.graph_id, writes.key.subgraph],
        "task": writes.task,
        "channel": RESUME,
        "index": WRITES_IDX_MAP[RESUME],
        "after": _plain([each for values in earlier for each in values]),
    }
    return {each.id: place for value in asked for each in _interrupts(value)}


def pending_after(
    pending: Any,
    task: str,
    writes: Sequence[tuple[str, int, Any]],
    place_of: Callable[[str], dict[str, Any] | None],
) -> Any:
    """Return the pending interrupt of a step after a task wrote, given the one before.

    If several tasks wait, the first one is pending, and the others are under ``others``. ``answer`` says how
    an answer is written: where (see `asked_in`), and what approving and denying mean to the one who asks.
    """
    waiting = [] if pending is None else [pending, *pending.get("others", ())]
    answered, asked = ([value for name, _, value in writes if name == each] for each in (RESUME, INTERRUPT))
    if answered or asked:
        waiting = [each for each in waiting if task not in (_WHOLE_STEP, each.get("task"))]
    for each in (interrupt for value in asked for interrupt in _interrupts(value)):
        payload = _plain(each.value)
        place = place_of(each.id)
        answer = None if place is None else {**place, **_answers(payload)}
        waiting.append({"id": each.id, "payload": payload, "task": task, "answer": answer})
    plain = [{name: value for name, value in each.items() if name != "others"} for each in waiting]
    return {**plain[0], **({"others": plain[1:]} if plain[1:] else {})} if plain else None


def _interrupts(value: Any) -> list[Any]:
    """Return LangGraph's interrupts in what was written as such; others may write what they like there."""
    found = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else [value]
    return [each for each in found if hasattr(each, "id") and hasattr(each, "value")]


def _answers(payload: Any) -> dict[str, Any]:
    """Return what decisions mean to the graph: those of LangChain's approval of tool calls, else yes and no.

    The value of ``edit`` is one to start from; ``arguments`` says where in it those of a single call are.
    """
    fields = cast("dict[str, Any]", payload if isinstance(payload, dict) else {})
    requests = fields.get("action_requests")
    if not isinstance(requests, list) or not requests:
        return {"values": {"approve": True, "deny": False}}
    calls = cast("list[dict[str, Any]]", requests)
    edited = [{"name": each.get("name"), "args": each.get("args")} for each in calls]
    values = {
        "approve": {"decisions": [{"type": "approve"} for _ in calls]},
        "deny": {"decisions": [{"type": "reject"} for _ in calls]},
        "edit": {"decisions": [{"type": "edit", "edited_action": each} for each in edited]},
    }
    arguments = ["decisions", 0, "edited_action", "args"] if len(calls) == 1 else None
    return {"values": values, "arguments": arguments}


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it, as well as it goes: it is to be read by a person."""
    try:
        encode_json(value)
    except Unencodable:
        return msgspec.to_builtins(value, enc_hook=_described, str_keys=True)
    return value


def _described(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump()


def write_event(
    draft: Draft, writes: TaskWrites, number: int, find: Callable[[WrittenMessage], ListPosition | None]
) -> None:
    """Put writes into a draft as its event ``number``; ``find`` says which messages a list has."""
    scope = writes.key.scope
    links: dict[Address, None] = {}
    places: dict[int, Any] = {}
    own_slot = f"s:{draft.id}:0."

    def put(item: WrittenMessage | Content) -> Any:
        if id(item) not in places:
            position = find(item) if isinstance(item, WrittenMessage) else None
            if position is not None:
                links[list_address(position[0])] = None
                places[id(item)] = list(position)
            else:
                content = item.content if isinstance(item, WrittenMessage) else item
                address = draft.put(content, scope=scope)
                links[address] = None
                is_own = address.startswith(own_slot)
                places[id(item)] = int(address[len(own_slot) :]) if is_own else address
        return places[id(item)]

    def put_prefix(value: WrittenPrefix) -> list[Any]:
        links[list_address(value.list_id)] = None
        return [value.list_id, len(value.items), [put(each) for each in value.rest]]

    entries: list[Any] = []
    for channel, index, form, value in writes.entries:
        if form == "l":
            stored: Any = [put(each) for each in value]
        elif form == "v":
            stored = None if value is _NULL else orjson.Fragment(value.data)
        elif form in PREFIX_FORMS:
            stored = put_prefix(value)
        elif form == EMBEDDED_FORM:
            stored = [put(value[0]), [put_prefix(each) for each in value[1]]]
        else:
            stored = put(value)
        entries.append([channel, index, form, stored])
    data: bytes | None = _row(writes, entries)
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
            thread=writes.row_key,
            data=data,
            body=body,
            links=tuple(links),
        )
    )


def decode_writes(
    engine: Engine, space: str, codec: ValueCodec, rows: Sequence[Written]
) -> list[PendingWrite]:
    """Decode writes in the order in which they apply.

    If a write was made twice, the first one counts; of an interrupt, an error or an answer, the last one.
    """
    kept: dict[tuple[str, int], tuple[str, str, str, Any, str]] = {}
    for row in rows:
        task, path = row.data["task"], row.data["path"]
        for channel, index, form, place in row.data["writes"]:
            if index < 0 or (task, index) not in kept:
                kept[task, index] = (path, channel, form, place, row.batch)
    order = sorted(kept, key=lambda key: writes_sort_key(kept[key][0], *key))
    places = [each for key in order for each in _places(*kept[key][2:])]
    contents = iter(_read(engine, space, places))
    decoded: list[PendingWrite] = []
    for key in order:
        _, channel, form, place, _ = kept[key]
        value: Any
        if form == "v":
            value = codec.unpack(place)
        elif form == "l":
            value = [codec.decode_message(next(contents)) for _ in place]
        elif form == EMBEDDED_FORM:
            placeholder = next(contents)
            lists = [
                [codec.decode_message(next(contents)) for _ in range(count + len(rest))]
                for _, count, rest in place[1]
            ]
            value = fill_lists(codec, decode(placeholder), lists)
        elif form in PREFIX_FORMS:
            read = codec.decode_message if form == "p" else codec.decode
            value = [read(next(contents)) for _ in range(place[1] + len(place[2]))]
        else:
            value = (codec.decode_message if form == "m" else codec.decode)(next(contents))
        decoded.append((key[0], channel, value))
    return decoded


def parse_place(place: Any, batch: str) -> Address | ListPosition:
    """Where content of a write is, from what its row says; a number is a slot of its own commit."""
    if isinstance(place, list):
        return place[0], place[1]  # pyright: ignore[reportUnknownVariableType] - a list and a position
    return slot_address(batch, 0, place) if isinstance(place, int) else Address(place)


def _row(writes: TaskWrites, entries: list[Any]) -> bytes:
    row: dict[str, Any] = {
        "step": [writes.graph_id, writes.key.subgraph],
        "task": writes.task,
        "path": writes.path,
        "writes": entries,
    }
    try:
        return orjson.dumps(row)
    except TypeError:  # a lone surrogate in a name
        given = zip(entries, writes.entries, strict=True)
        row["writes"] = [
            [*entry[:3], decode(value)] if entry[2] == "v" else entry for entry, (*_, value) in given
        ]
        return encode_json(row, keep_order=True)


def _places(form: str, place: Any, batch: str) -> list[Address | ListPosition]:
    if form == "v":
        return []
    if form == EMBEDDED_FORM:
        lists = [each for prefix in place[1] for each in _prefix_places(prefix, batch)]
        return [parse_place(place[0], batch), *lists]
    if form in PREFIX_FORMS:
        return _prefix_places(place, batch)
    return [parse_place(each, batch) for each in (place if form == "l" else [place])]


def _prefix_places(place: Any, batch: str) -> list[Address | ListPosition]:
    list_id, count, rest = place
    return [
        *((list_id, position) for position in range(count)),
        *(parse_place(each, batch) for each in rest),
    ]


def _read(engine: Engine, space: str, places: Sequence[Address | ListPosition]) -> list[Content]:
    """Read content by address, or by its position in a list."""
    addresses = [place for place in places if not isinstance(place, tuple)]
    positions: dict[str, list[int]] = {}
    for place in places:
        if isinstance(place, tuple):
            positions.setdefault(place[0], []).append(place[1])
    try:
        found = iter(engine.get(space, addresses) if addresses else ())
        listed = {
            (list_id, first + offset): content
            for list_id, numbers in positions.items()
            for first, last in _ranges(numbers)
            for offset, content in enumerate(engine.read_list(space, list_id, first, last + 1))
        }
        return [listed[place] if isinstance(place, tuple) else next(found) for place in places]
    except (NotFound, KeyError) as error:
        raise Corrupt(f"a pending write is not stored: {error}; run verify, then restore it") from error


def _ranges(positions: list[int]) -> list[tuple[int, int]]:
    """Positions as ranges, across small gaps."""
    ranges: list[tuple[int, int]] = []
    for position in sorted(positions):
        if ranges and position - ranges[-1][1] <= _GAP:
            ranges[-1] = (ranges[-1][0], position)
        else:
            ranges.append((position, position))
    return ranges
