"""The batch: the only way to write.

A batch holds everything that one commit does: new content, list appends, journal events, ref updates, the
leases that must still be held, and texts to index. An engine applies all of it or nothing. Batch ids are
unique within a space: submitting a batch again changes nothing and returns the first `Receipt`, so it is
always safe to retry after an ambiguous failure.

The module has five parts: the structs that make up a batch; the links between stored things, which garbage
collection and erasure follow; `validate_batch`, which every engine calls first; `Draft`, which builds a batch
and assigns the addresses of its content; and `Backoff` with `check_version`, for writers that read a ref,
compute its new value, commit it against the version that they read, and start over if another was faster.

`validate_batch` rejects whatever can be rejected without looking at the store: ids that no database could
hold, addresses of slots that the batch does not contain, a ref updated twice. **Invariant:** a batch that
passes never fails because of its form, and one that does not never reaches an engine. Since it runs before
every commit, the common case builds no messages: the fields of an event are checked in one joined string,
and one by one only if something in it is unusual.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.content import (
    INLINE_LIMIT,
    Address,
    Content,
    ListAddress,
    SlotAddress,
    is_object_name,
    object_address,
    parse_address,
    slot_address,
)
from treering.core.ids import MAX_ID_CHARS, check_id, check_space, new_id
from treering.core.tree import links_of
from treering.errors import Conflict, InvalidInput, RefMoved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from treering.core.content import ParsedAddress
    from treering.core.records import Ref


ANY: Literal["any"] = "any"
ABSENT: Literal["absent"] = "absent"

Expect = Literal["any", "absent"] | int
"""The required state of a ref: anything, absent (never set, or deleted), or exactly this version."""

Tokens = Literal["words", "trigrams"]
"""How an indexed text is tokenized: stemmed words, or trigrams for languages without spaces."""


class BatchPart(msgspec.Struct, frozen=True, kw_only=True):
    """Small contents of one erasure scope, stored together as one body (see `core.content`)."""

    scope: str
    slots: tuple[Content, ...]


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Items to append to a list.

    ``at`` is the required current length of the list. A list that does not exist is created: empty if
    ``at`` is 0, otherwise as a child that shares the first ``at`` items of ``parent``. An item is either
    content, or the address of content that is already stored (or is part of the same batch).
    """

    list: str
    scope: str
    at: int
    items: tuple[Content | Address, ...] = ()
    parent: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Token counts in disjoint classes; ``reasoning`` is the part of ``output`` spent on reasoning.

    ``other`` is what a given total has beyond the classes that are known.
    """

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All tokens, each counted once."""
        cached = self.cache_read + self.cache_write + self.cache_write_1h
        return self.input + cached + self.output + self.other


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A row for the journal.

    ``id`` is unique within its space and the UTC day of ``ts_us``. An event whose id already exists is
    skipped, so a repeated export is harmless. ``data`` is small canonical JSON that every read returns;
    ``body`` is fetched only on request; ``links`` are further addresses that this event keeps alive. Costs
    are integer nano-units of ``currency``.
    """

    id: str
    kind: str
    ts_us: int
    scope: str
    run: str | None = None
    span: str | None = None
    parent: str | None = None
    thread: str | None = None
    agent: str | None = None
    name: str | None = None
    model: str | None = None
    role: str | None = None
    status: str | None = None
    usage: Usage | None = None
    cost_nanos: int | None = None
    currency: str | None = None
    duration_us: int | None = None
    data: bytes | None = None
    body: Address | None = None
    links: tuple[Address, ...] = ()


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a ref is listed, in the order of ``at_us``, and what it can be filtered by (see `ListQuery`).

    Without ``at_us``, a ref is listed at the time of the commit that set it.
    """

    list: str
    namespace: str = ""
    at_us: int | None = None
    agent: str | None = None
    status: str | None = None
    thread: str | None = None


class Set(msgspec.Struct, frozen=True, kw_only=True, tag="set"):
    """Set the value of a ref; ``links`` are the addresses that it keeps alive."""

    value: bytes
    links: tuple[Address, ...] = ()
    listing: Listing | None = None


_TOTAL_BITS: Final = 63


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Delete a ref; its version keeps counting."""


class Add(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """Add to an integer ref (absent counts as 0); a result above ``ceiling`` is a `Conflict`."""

    delta: int
    ceiling: int | None = None

    def total(self, name: str, value: bytes | None) -> int:
        """Return the new value of the ref, or raise `Conflict`."""
        try:
            total = (int(value) if value is not None else 0) + self.delta
        except ValueError:
            raise Conflict(f"cannot add to ref {name!r}: its value is not an integer") from None
        if self.ceiling is not None and total > self.ceiling:
            raise Conflict(f"ref {name!r} would become {total}, above its ceiling {self.ceiling}")
        if total.bit_length() > _TOTAL_BITS:
            raise Conflict(f"ref {name!r} would become {total}, more than {_TOTAL_BITS} bits; use a new ref")
        return total


class RefChange(msgspec.Struct, frozen=True, kw_only=True):
    """An update of one ref by compare-and-swap."""

    name: str
    scope: str
    change: Set | Delete | Add
    expect: Expect = ANY


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that must still be held under this token when the batch commits."""

    lease: str
    token: int


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """An entry for the search index. It replaces the entry with the same collection and name.

    The indexed text is the content at ``source``, so the index can be rebuilt at any time. ``None`` removes
    the entry.
    """

    collection: str
    name: str
    scope: str
    source: Address | None
    namespace: str = ""
    tokens: Tokens = "words"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One commit.

    ``requires`` names objects that must already be stored. ``objects`` maps the names of new objects to
    their contents; engines trust these names, so the writer must have computed them (`Draft` does).
    """

    id: str
    space: str
    requires: tuple[str, ...] = ()
    objects: dict[str, Content] = {}
    parts: tuple[BatchPart, ...] = ()
    lists: tuple[Append, ...] = ()
    events: tuple[Event, ...] = ()
    refs: tuple[RefChange, ...] = ()
    fences: tuple[Fence, ...] = ()
    texts: tuple[Text, ...] = ()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a commit.

    The commit took the sequence numbers ``first_seq`` to ``last_seq``: one per event, or a single one for
    a batch without events. ``versions`` holds the new versions of the updated refs, ``sums`` the results
    of each `Add`, and ``new_events`` the number of events that did not exist before.
    """

    batch: str
    first_seq: int
    last_seq: int
    committed_at_us: int
    versions: dict[str, int]
    sums: dict[str, int]
    new_events: int


# Links. The roots are the links of refs and journal events, and the sources of indexed texts. A list keeps
# its own items and its parent alive, a tree the files and folders that it names. There are no other links,
# so following these is all that marking has to do.


def event_links(event: Event) -> Iterator[Address]:
    """Return every address that an event links to."""
    if event.body is not None:
        yield event.body
    yield from event.links


def content_links(content: Content) -> Iterator[Address]:
    """Return every address that stored content links to: the entries of a tree."""
    if content.kind == "tree":
        yield from map(object_address, links_of(content))


def mark_reachable(
    roots: Iterable[Address],
    *,
    is_new: Callable[[Address], bool],
    links: Callable[[Address], Iterable[Address]],
) -> None:
    """Visit everything reachable from ``roots``, each address once.

    ``is_new`` records an address and returns whether this was its first visit; the record may be a set or
    a temporary table. ``links`` returns the addresses that an address links to.
    """
    pending = [address for address in roots if is_new(address)]
    while pending:
        pending.extend(address for address in links(pending.pop()) if is_new(address))


MAX_BATCH_ID_CHARS: Final = 200
MAX_PARTS: Final = 65_536
MAX_EVENTS: Final = 100_000
MAX_INLINE_BYTES: Final = 64 * 1024
"""Size limit of a ref's value and of an event's data, which every read returns."""
MAX_CONTENT_BYTES: Final = 1 << 29
"""Size limit of a single content and of a body: a database could not hold more in one row."""
MAX_LIST_LENGTH: Final = (1 << 32) - 1
NUMBER_BITS: Final = 53
"""Numbers fit into a JSON reader's exact integers, and sums of them into 64 bits."""

_NONE: Final[frozenset[str]] = frozenset()
_EXPECT_WORDS: Final = (ANY, ABSENT)


def validate_batch(batch: Batch) -> list[ParsedAddress]:
    """Raise `InvalidInput` if no store could accept the batch.

    Returns the addresses that the batch refers to but does not contain, in order. They must be stored.
    """
    named: list[ParsedAddress] = []
    check_space(batch.space)
    check_id(batch.id, "batch id")
    if len(batch.id) > MAX_BATCH_ID_CHARS:
        raise InvalidInput(
            f"batch id {batch.id[:60]!r}... has {len(batch.id)} characters; "
            f"the limit is {MAX_BATCH_ID_CHARS}; use a hash of it"
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
    """Check the parts and return the addresses of all slots in the batch."""
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


def _check_lists(batch: Batch, own_slots: AbstractSet[str], named: list[ParsedAddress]) -> None:
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
        raise InvalidInput(f"list {append.list!r} is its own parent; omit the parent to append")
    if append.at < 0 or append.at + len(append.items) > MAX_LIST_LENGTH:
        raise InvalidInput(
            f"list {append.list!r} cannot grow at {append.at}; the highest position is {MAX_LIST_LENGTH}"
        )
    raise InvalidInput(
        f"a batch appends to list {append.list!r} up to {length} and then at {append.at}; "
        "the second append must start where the first one ends"
    )


def _check_events(batch: Batch, own_slots: AbstractSet[str], named: list[ParsedAddress]) -> None:
    events = batch.events
    if len(events) > MAX_EVENTS:
        raise InvalidInput(f"a batch has {len(events)} events; split it into batches of at most {MAX_EVENTS}")
    for event in events:
        # Any unusual character, empty field or leading blank shows up in the joined text: one check for all.
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
                | usage.other
            )
        if numbers >> NUMBER_BITS or (event.cost_nanos is not None and abs(event.cost_nanos) >> NUMBER_BITS):
            _refuse_numbers(event)
        if event.data is not None and len(event.data) > MAX_INLINE_BYTES:
            raise InvalidInput(
                f"event {event.id!r} has {len(event.data)} bytes of data, the limit is {MAX_INLINE_BYTES}; "
                "store the content as a part or an object and refer to it with body"
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
        "; times are microseconds since 1970, and only a cost may be negative"
    )


def _check_refs(batch: Batch, own_slots: AbstractSet[str], named: list[ParsedAddress]) -> None:
    if len(batch.refs) > 1:
        names = [change.name for change in batch.refs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInput(f"a batch updates ref {twice!r} more than once; update it once")
    for change in batch.refs:
        check_id(change.name, "ref name")
        check_id(change.scope, "scope")
        expect = change.expect
        if expect < 1 if type(expect) is int else expect not in _EXPECT_WORDS:
            raise InvalidInput(
                f"ref {change.name!r} expects {expect!r}; use 'any', 'absent' or a version (1 or more)"
            )
        _check_change(change, batch, own_slots, named)


def _check_change(
    change: RefChange, batch: Batch, own_slots: AbstractSet[str], named: list[ParsedAddress]
) -> None:
    move = change.change
    if isinstance(move, Set):
        if len(move.value) > MAX_INLINE_BYTES:
            raise InvalidInput(
                f"ref {change.name!r} would hold {len(move.value)} bytes, the limit is {MAX_INLINE_BYTES}; "
                "store the value as an object and link to it from the ref"
            )
        if move.links:
            named += [_check_address(address, batch) for address in move.links if address not in own_slots]
        if move.listing is not None:
            _check_listing(change.name, move.listing)
    elif isinstance(move, Add) and (abs(move.delta) | abs(move.ceiling or 0)) >> NUMBER_BITS:
        raise InvalidInput(
            f"ref {change.name!r} cannot add {move.delta} up to {move.ceiling}; "
            f"use numbers of at most {NUMBER_BITS} bits"
        )


def _check_listing(name: str, listing: Listing) -> None:
    check_id(listing.list, f"list of ref {name!r}")
    for what in ("namespace", "agent", "status", "thread"):
        word = getattr(listing, what)
        if word:
            check_id(word, f"{what} of ref {name!r}")
    if listing.at_us is not None and listing.at_us >> NUMBER_BITS:
        raise InvalidInput(f"ref {name!r} is listed at {listing.at_us}; use microseconds since 1970")


def _check_texts(batch: Batch, own_slots: AbstractSet[str], named: list[ParsedAddress]) -> None:
    seen: set[tuple[str, str]] = set()
    for text in batch.texts:
        _check_text(text)
        if (text.collection, text.name) in seen:
            raise InvalidInput(
                f"a batch indexes {text.name!r} of {text.collection!r} more than once; keep only the last"
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
        raise InvalidInput(f"text {text.name!r} has tokens={text.tokens!r}; use 'words' or 'trigrams'")


def _check_address(address: Address, batch: Batch) -> ParsedAddress:
    """Check an address that is not a slot of this batch."""
    place = parse_address(address)
    if isinstance(place, SlotAddress) and place.batch == batch.id:
        raise InvalidInput(
            f"batch {batch.id!r} refers to its own slot {place.part}.{place.index}, which it does not contain"
        )
    return place


def _check_content_address(address: Address, batch: Batch, what: str, which: str) -> ParsedAddress:
    place = _check_address(address, batch)
    if isinstance(place, ListAddress):
        raise InvalidInput(f"{what} {which!r} is the list {place.list!r}; expected an object or a slot")
    return place


def _check_object_name(name: str) -> None:
    if not is_object_name(name):
        raise InvalidInput(f"{name[:80]!r} is not an object name; expected the 64 hex digits of a SHA-256")


def _refuse_size(content: Content, what: str) -> None:
    raise InvalidInput(
        f"{what} has {len(content.data)} bytes, the limit is {MAX_CONTENT_BYTES}; "
        "split it into chunks (core.chunking)"
    )


class Draft:
    """A batch under construction.

    It decides where content is stored (small content in the body of its scope, the rest as objects) and
    returns addresses immediately, so that records of the same batch can refer to each other. `batch`
    returns the finished, immutable `Batch`.
    """

    def __init__(self, space: str, *, id: str | None = None) -> None:
        self.id = id or new_id()
        self.space = space
        self._objects: dict[str, Content] = {}
        self._parts: dict[str, tuple[int, list[Content]]] = {}
        self._requires: dict[str, None] = {}
        self._lists: list[Append] = []
        self._events: list[Event] = []
        self._refs: list[RefChange] = []
        self._fences: list[Fence] = []
        self._texts: list[Text] = []

    def put(self, content: Content, *, scope: str) -> Address:
        """Add content and return its address."""
        if len(content.data) >= INLINE_LIMIT:
            name = content.name
            self._objects[name] = content
            return object_address(name)
        place = self._parts.get(scope)
        if place is None:
            place = self._parts[scope] = len(self._parts), []
        part, slots = place
        slots.append(content)
        return slot_address(self.id, part, len(slots) - 1)

    def require(self, *names: str) -> None:
        """Require objects to be stored when the batch commits."""
        self._requires.update(dict.fromkeys(names))

    def append(
        self, list_id: str, *items: Content | Address, scope: str, at: int, parent: str | None = None
    ) -> None:
        """Append items to a list; large contents become objects."""
        placed: list[Content | Address] = []
        for item in items:
            if isinstance(item, str) or len(item.data) < INLINE_LIMIT:
                placed.append(item)
            else:
                placed.append(self.put(item, scope=scope))
        self._lists.append(Append(list=list_id, scope=scope, at=at, items=tuple(placed), parent=parent))

    def event(self, event: Event) -> None:
        """Add a row to the journal."""
        self._events.append(event)

    def set_ref(
        self,
        name: str,
        value: bytes,
        *,
        scope: str,
        expect: Expect = ANY,
        links: tuple[Address, ...] = (),
        listing: Listing | None = None,
    ) -> None:
        """Set the value of a ref."""
        change = Set(value=value, links=links, listing=listing)
        self._refs.append(RefChange(name=name, scope=scope, change=change, expect=expect))

    def delete_ref(self, name: str, *, scope: str, expect: Expect = ANY) -> None:
        """Delete a ref."""
        self._refs.append(RefChange(name=name, scope=scope, change=Delete(), expect=expect))

    def add_to_ref(self, name: str, change: Add, *, scope: str, expect: Expect = ANY) -> None:
        """Add to a ref that holds an integer."""
        self._refs.append(RefChange(name=name, scope=scope, change=change, expect=expect))

    def fence(self, lease: str, token: int) -> None:
        """Require a lease to be held."""
        self._fences.append(Fence(lease=lease, token=token))

    def text(self, text: Text) -> None:
        """Add a text to the search index."""
        self._texts.append(text)

    @property
    def events(self) -> tuple[Event, ...]:
        """The rows for the journal so far."""
        return tuple(self._events)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added yet."""
        return not (
            self._objects or self._parts or self._requires or self._lists or self._events
            or self._refs or self._fences or self._texts
        )  # fmt: skip

    def batch(self) -> Batch:
        """Return the finished batch."""
        return Batch(
            id=self.id,
            space=self.space,
            requires=tuple(self._requires),
            objects=dict(self._objects),
            parts=tuple(
                [BatchPart(scope=scope, slots=tuple(slots)) for scope, (_, slots) in self._parts.items()]
            ),
            lists=tuple(self._lists),
            events=tuple(self._events),
            refs=tuple(self._refs),
            fences=tuple(self._fences),
            texts=tuple(self._texts),
        )


_FIRST_SECONDS: Final = 0.001
_MAX_SECONDS: Final = 0.05
_MAX_DOUBLINGS: Final = 10


class Backoff:
    """Random, growing pauses, so that writers that collided do not collide again."""

    def __init__(self) -> None:
        self._attempts = 0

    def wait(self) -> None:
        """Pause before the next attempt."""
        longest = _FIRST_SECONDS * 2 ** min(self._attempts, _MAX_DOUBLINGS)
        self._attempts += 1
        time.sleep(random.uniform(0, min(longest, _MAX_SECONDS)))


def check_version(what: str, ref: Ref | None, expected: int | None) -> None:
    """Raise `RefMoved` unless the ref is at the expected version (0: it does not exist; ``None``: any)."""
    if expected is None or expected == (0 if ref is None else ref.version):
        return
    actual = "does not exist" if ref is None else f"is at version {ref.version}"
    raise RefMoved(f"{what} {actual}, expected version {expected}; read it again and retry")
