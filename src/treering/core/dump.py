"""A space as a stream of slices: what `export` gives and `load` takes.

A slice holds rows as they are (sequence numbers, versions and times included), so that a copy is equal
to its source, not a replay of it. Slices come in a loadable order: content before what points at it,
parents before children, refs last. ``position`` continues the stream behind the slice, also in another
process; loading a slice twice changes nothing. Derived rows are not in it: they are rebuilt.
"""

from __future__ import annotations

import msgspec

from treering.core.address import Address
from treering.core.batch import Receipt, Tokens
from treering.core.content import Content
from treering.core.records import ListInfo, Record, Ref


class CommitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A commit, by its receipt."""

    receipt: Receipt


class BodyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One body of a commit."""

    batch: str
    part: int
    scope: str
    slots: tuple[Content, ...]


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A list without its items; parents come before their children."""

    info: ListInfo
    seq: int


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a list."""

    list: str
    position: int
    item: Content | Address


class RefRow(msgspec.Struct, frozen=True, kw_only=True):
    """A ref; a deleted one is kept for its version."""

    ref: Ref
    deleted: bool


class TextRow(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the search index, without what is derived from it."""

    collection: str
    tokens: Tokens
    name: str
    namespace: str
    scope: str
    source: Address


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows, bounded in number and bytes. The space's counters come with every slice."""

    position: str
    last_seq: int
    committed_at_us: int
    objects: tuple[Content, ...] = ()
    commits: tuple[CommitRow, ...] = ()
    bodies: tuple[BodyRow, ...] = ()
    records: tuple[Record, ...] = ()
    lists: tuple[ListRow, ...] = ()
    items: tuple[ItemRow, ...] = ()
    texts: tuple[TextRow, ...] = ()
    refs: tuple[RefRow, ...] = ()
