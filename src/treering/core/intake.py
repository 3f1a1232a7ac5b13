"""Intake: what a batch must look like before any engine touches it.

Everything that can be refused without knowing the store is refused here, once for all engines: ids that
no database could hold, addresses of slots that the batch does not bring, one ref moved twice. What comes
through can be stored as it is, so engines carry no checks of form. **Invariant:** a batch that passes
never fails for its form, and one that does not has not been seen by any engine.

It stands in the way of every commit, so the ordinary case builds no messages: the words of an event are
looked at together, and one by one only when something about them is unusual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.address import ListAt, SlotAt, is_object_name, parse_address
from treering.core.batch import ABSENT, ANY, Add, Set
from treering.core.ids import MAX_ID_CHARS, check_id, check_space
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from treering.core.address import Address, Place
    from treering.core.batch import Append, Batch, Event, RefChange, Text
    from treering.core.content import Content

MAX_BATCH_ID_CHARS: Final = 200
MAX_PARTS: Final = 65_536
MAX_EVENTS: Final = 100_000
MAX_INLINE_BYTES: Final = 64 * 1024
"""The most that a ref's value or an event's data may hold: they come with every read."""
MAX_CONTENT_BYTES: Final = 1 << 29
"""No single content and no body is larger; a database could not hold it in one row."""
MAX_LIST_LENGTH: Final = (1 << 32) - 1
NUMBER_BITS: Final = 53
"""Numbers stay within what every JSON reader keeps exact, and their sums within 64 bits."""

_NONE: Final[frozenset[str]] = frozenset()
_EXPECT_WORDS: Final = (ANY, ABSENT)


def check_batch(batch: Batch) -> list[Place]:
    """Raise `InvalidInput` if the batch cannot be stored, whatever the store holds.

    Gives back the places that it points at and does not bring itself, in order: they have to be there.
    """
    named: list[Place] = []
    check_space(batch.space)
    check_id(batch.id, "batch id")
    if len(batch.id) > MAX_BATCH_ID_CHARS:
        raise InvalidInput(
            f"batch id {batch.id[:60]!r}... has {len(batch.id)} characters; "
            f"use at most {MAX_BATCH_ID_CHARS}, or a hash of it"
        )
    for name in batch.requires:
        _check_object_name(name)
    for name, content in batch.objects.items():
        _check_object_name(name)
        if len(content.data) > MAX_CONTENT_BYTES:
            _refuse_size(content, f"object {name[:12]}")
    own_slots = _check_parts(batch) if batch.parts else _NONE
    if batch.lists:
        _check_lists(batch, own_slots, named)
    if batch.events:
        _check_events(batch, own_slots, named)
    if batch.refs:
        _check_refs(batch, own_slots, named)
    for fence in batch.fences:
        check_id(fence.lease, "lease name")
    if batch.texts:
        _check_texts(batch, own_slots, named)
    return named


def _check_parts(batch: Batch) -> set[str]:
    """Check the parts, and spell the addresses of all slots that the batch brings."""
    parts = batch.parts
    if len(parts) > MAX_PARTS:
        raise InvalidInput(
            f"a batch has {len(parts)} parts; split it into batches of at most {MAX_PARTS} scopes"
        )
    own_slots: set[str] = set()
    for number, part in enumerate(parts):
        check_id(part.scope, "scope")
        size = 0
        head = f"s:{batch.id}:{number}."
        for index, content in enumerate(part.slots):
            size += len(content.data)
            own_slots.add(f"{head}{index}")
        if size > MAX_CONTENT_BYTES:
            raise InvalidInput(
                f"the part of scope {part.scope!r} has {size} bytes; split it into batches of at most "
                f"{MAX_CONTENT_BYTES}, or stage the larger contents as objects"
            )
    return own_slots


def _check_lists(batch: Batch, own_slots: AbstractSet[str], named: list[Place]) -> None:
    lengths: dict[str, int] = {}
    for append in batch.lists:
        check_id(append.list, "list id")
        check_id(append.scope, "scope")
        if append.parent is not None:
            check_id(append.parent, "parent list id")
        at, end = append.at, append.at + len(append.items)
        if (
            append.parent == append.list
            or at < 0
            or end > MAX_LIST_LENGTH
            or lengths.get(append.list, at) != at
        ):
            _refuse_append(append, lengths.get(append.list))
        lengths[append.list] = end
        for item in append.items:
            if isinstance(item, str):
                if item not in own_slots:
                    named.append(_check_content_address(item, batch, "an item of list", append.list))
            elif len(item.data) > MAX_CONTENT_BYTES:
                _refuse_size(item, f"an item of list {append.list!r}")


def _refuse_append(append: Append, length: int | None) -> None:
    if append.parent == append.list:
        raise InvalidInput(f"list {append.list!r} names itself as its parent; leave the parent out to append")
    if append.at < 0 or append.at + len(append.items) > MAX_LIST_LENGTH:
        raise InvalidInput(
            f"list {append.list!r} cannot grow at {append.at}; positions go up to {MAX_LIST_LENGTH}"
        )
    raise InvalidInput(
        f"a batch appends to list {append.list!r} up to {length} and then at {append.at}; "
        "the second append must go on where the first one ends"
    )


def _check_events(batch: Batch, own_slots: AbstractSet[str], named: list[Place]) -> None:
    events = batch.events
    if len(events) > MAX_EVENTS:
        raise InvalidInput(f"a batch has {len(events)} events; split it into batches of at most {MAX_EVENTS}")
    for event in events:
        # Any unusual character, an empty or a blank word shows in the joined text, at the price of one.
        words = (
            f"|{event.id}|{event.kind}|{event.scope}|{event.run}|{event.span}|{event.parent}|{event.thread}"
            f"|{event.agent}|{event.name}|{event.model}|{event.role}|{event.status}|{event.currency}|"
        )
        if len(words) > MAX_ID_CHARS or not words.isprintable() or "||" in words or "| " in words:
            _check_words(event)
        usage = event.usage
        numbers = event.ts_us | (event.duration_us or 0)
        if usage is not None:
            numbers |= (
                usage.input
                | usage.cache_read
                | usage.cache_write
                | usage.cache_write_1h
                | usage.output
                | usage.reasoning
            )
        if numbers >> NUMBER_BITS or (event.cost_nanos is not None and abs(event.cost_nanos) >> NUMBER_BITS):
            _refuse_numbers(event)
        if event.data is not None and len(event.data) > MAX_INLINE_BYTES:
            raise InvalidInput(
                f"event {event.id!r} has {len(event.data)} bytes of data, more than {MAX_INLINE_BYTES}; "
                "put the content into a part or an object and point at it with body"
            )
        if event.body is not None and event.body not in own_slots:
            named.append(_check_content_address(event.body, batch, "the body of event", event.id))
        for address in event.links:
            if address not in own_slots:
                named.append(_check_address(address, batch))  # noqa: PERF401 - mostly there is none


def _check_words(event: Event) -> None:
    check_id(event.id, "event id")
    for what in ("kind", "scope"):
        check_id(getattr(event, what), f"{what} of event {event.id!r}")
    for what in ("run", "span", "parent", "thread", "agent", "name", "model", "role", "status", "currency"):
        word = getattr(event, what)
        if word is not None:
            check_id(word, f"{what} of event {event.id!r}")


def _refuse_numbers(event: Event) -> None:
    raise InvalidInput(
        f"event {event.id!r} has a number that is negative or has more than {NUMBER_BITS} bits: "
        f"ts_us={event.ts_us}, duration_us={event.duration_us}, cost_nanos={event.cost_nanos}, {event.usage}"
        "; times are microseconds since 1970, and only a cost may be below zero"
    )


def _check_refs(batch: Batch, own_slots: AbstractSet[str], named: list[Place]) -> None:
    if len(batch.refs) > 1:
        names = [change.name for change in batch.refs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"a batch moves ref {twice!r} more than once; move it once, to where it ends")
    for change in batch.refs:
        check_id(change.name, "ref name")
        check_id(change.scope, "scope")
        expect = change.expect
        if expect < 1 if type(expect) is int else expect not in _EXPECT_WORDS:
            raise InvalidInput(
                f"ref {change.name!r} expects {expect!r}; use 'any', 'absent' or a version (1 or more)"
            )
        _check_change(change, batch, own_slots, named)


def _check_change(change: RefChange, batch: Batch, own_slots: AbstractSet[str], named: list[Place]) -> None:
    move = change.change
    if isinstance(move, Set):
        if len(move.value) > MAX_INLINE_BYTES:
            raise InvalidInput(
                f"ref {change.name!r} would hold {len(move.value)} bytes, more than {MAX_INLINE_BYTES}; "
                "put the value into an object and let the ref link to it"
            )
        if move.links:
            named += [_check_address(address, batch) for address in move.links if address not in own_slots]
    elif isinstance(move, Add) and (abs(move.delta) | abs(move.ceiling or 0)) >> NUMBER_BITS:
        raise InvalidInput(
            f"ref {change.name!r} cannot add {move.delta} up to {move.ceiling}; "
            f"use numbers of at most {NUMBER_BITS} bits"
        )


def _check_texts(batch: Batch, own_slots: AbstractSet[str], named: list[Place]) -> None:
    seen: set[tuple[str, str]] = set()
    for text in batch.texts:
        _check_text(text)
        if (text.collection, text.name) in seen:
            raise InvalidInput(
                f"a batch indexes {text.name!r} of {text.collection!r} more than once; keep the last"
            )
        seen.add((text.collection, text.name))
        if text.source is not None and text.source not in own_slots:
            named.append(_check_content_address(text.source, batch, "the source of text", text.name))


def _check_text(text: Text) -> None:
    check_id(text.collection, "collection")
    check_id(text.name, "text name")
    check_id(text.scope, "scope")
    if text.namespace:
        check_id(text.namespace, "namespace")
    if text.tokens not in {"words", "trigrams"}:
        raise InvalidInput(
            f"text {text.name!r} cannot be cut into {text.tokens!r}; use 'words' or 'trigrams'"
        )


def _check_address(address: Address, batch: Batch) -> Place:
    """Check an address that is not one of the batch's own slots."""
    place = parse_address(address)
    if isinstance(place, SlotAt) and place.batch == batch.id:
        raise InvalidInput(
            f"batch {batch.id!r} points at its own slot {place.part}.{place.index}, which it does not bring"
        )
    return place


def _check_content_address(address: Address, batch: Batch, what: str, which: str) -> Place:
    place = _check_address(address, batch)
    if isinstance(place, ListAt):
        raise InvalidInput(
            f"{what} {which!r} is the list {place.list!r}; only an object or a slot is content"
        )
    return place


def _check_object_name(name: str) -> None:
    if not is_object_name(name):
        raise InvalidInput(f"{name[:80]!r} is not an object name; expected the 64 hex digits of a SHA-256")


def _refuse_size(content: Content, what: str) -> None:
    raise InvalidInput(
        f"{what} has {len(content.data)} bytes, more than {MAX_CONTENT_BYTES}; "
        "cut it into chunks (core.chunking)"
    )
