"""The batch: the one way to write.

A batch says everything that one commit does: new content, list appends, journal events, moves of refs,
the leases that must still be held, the texts to index. An engine takes all of it or nothing. The id of
a batch is unique within its space: sending the same batch again changes nothing and returns the first
`Receipt`, so an ambiguous failure can always be retried.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from treering.core.address import Address
from treering.core.content import Content
from treering.errors import Conflict

ANY: Literal["any"] = "any"
ABSENT: Literal["absent"] = "absent"

Expect = Literal["any", "absent"] | int
"""What a ref must be before it moves: anything, absent (never set, or deleted), or at this version."""

Tokens = Literal["words", "trigrams"]
"""How an indexed text is cut: stemmed words, or trigrams for languages without spaces."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Small contents of one erasure scope, stored as one body (see `core.body`)."""

    scope: str
    slots: tuple[Content, ...]


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Items for the end of a list.

    ``at`` is the length that the list must have now. A list that does not exist is created: empty when
    ``at`` is 0, else as a child that shares the first ``at`` items of ``parent``. An item is content of
    its own, or the address of content that is stored already (or in this same batch).
    """

    list: str
    scope: str
    at: int
    items: tuple[Content | Address, ...] = ()
    parent: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens by disjoint class; ``reasoning`` is the share of ``output`` spent on it."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """All tokens, each counted once."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h + self.output


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row for the journal.

    ``id`` is unique within its space and the UTC day of ``ts_us``; an event whose id is there already is
    left out silently, which makes a repeated export harmless. ``data`` is small canonical JSON that
    comes with every read; ``body`` is fetched only when asked for; ``links`` are further addresses that
    this event keeps alive. Costs are integer nano-units of ``currency``.
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


class Set(msgspec.Struct, frozen=True, kw_only=True, tag="set"):
    """Give a ref a value; ``links`` are the addresses that it keeps alive."""

    value: bytes
    links: tuple[Address, ...] = ()


_TOTAL_BITS: Final = 63


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Remove a ref; its version keeps counting."""


class Add(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """Add to a ref that holds an integer (absent counts as 0); past ``ceiling`` is a `Conflict`."""

    delta: int
    ceiling: int | None = None

    def total(self, name: str, value: bytes | None) -> int:
        """What the ref of that name holds afterwards; `Conflict` where that cannot be."""
        try:
            total = (int(value) if value is not None else 0) + self.delta
        except ValueError:
            raise Conflict(f"ref {name!r} does not hold an integer, so nothing can be added to it") from None
        if self.ceiling is not None and total > self.ceiling:
            raise Conflict(f"ref {name!r} would become {total}, past its ceiling {self.ceiling}")
        if total.bit_length() > _TOTAL_BITS:
            raise Conflict(
                f"ref {name!r} would become {total}, more than {_TOTAL_BITS} bits; begin a new one"
            )
        return total


class RefChange(msgspec.Struct, frozen=True, kw_only=True):
    """A move of one ref by compare-and-swap."""

    name: str
    scope: str
    change: Set | Delete | Add
    expect: Expect = ANY


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that must still be held under this token when the batch commits."""

    lease: str
    token: int


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text for the search index, replacing the one of the same collection and name.

    The text itself is the content at ``source`` (derived, so the index can be rebuilt); ``None`` takes
    the entry out of the index.
    """

    collection: str
    name: str
    scope: str
    source: Address | None
    namespace: str = ""
    tokens: Tokens = "words"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One commit.

    ``requires`` are object names that must be stored already (staged, or older); ``objects`` are new
    ones by their names, which the writer has computed (`Draft` does) and engines take as they are.
    """

    id: str
    space: str
    requires: tuple[str, ...] = ()
    objects: dict[str, Content] = {}
    parts: tuple[Part, ...] = ()
    lists: tuple[Append, ...] = ()
    events: tuple[Event, ...] = ()
    refs: tuple[RefChange, ...] = ()
    fences: tuple[Fence, ...] = ()
    texts: tuple[Text, ...] = ()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit did.

    The commit took the sequence numbers ``first_seq`` to ``last_seq``: one per event in the batch, and
    one when it has none. ``versions`` are the new versions of the refs it moved, ``sums`` the results
    of its `Add`s, ``new_events`` how many events were not there before.
    """

    batch: str
    first_seq: int
    last_seq: int
    committed_at_us: int
    versions: dict[str, int]
    sums: dict[str, int]
    new_events: int
