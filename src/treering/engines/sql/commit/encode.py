"""Encoding a batch before it takes the lock.

Compressing, checksumming and extracting text are the expensive part of a commit and need no database. They
happen in the caller's thread, so that writers hold the one lock of the store only for the inserts themselves.
What the batch refers to, its `Dependencies`, is collected here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from treering.core.batch import content_links, validate_batch
from treering.core.content import (
    KIND_NUMBERS,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    pack_body,
    parse_address,
    seal,
)
from treering.core.rollups import deltas
from treering.core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.batch import Batch
    from treering.core.content import Address, Content, ParsedAddress
    from treering.core.rollups import Measures, RollupKey


class Dependencies:
    """The names of everything that a group of batches refers to. The dicts are ordered sets."""

    __slots__ = ("batches", "leases", "linked", "lists", "objects", "refs", "scopes", "slots")

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.scopes: set[str] = set()
        self.refs: set[str] = set()
        self.lists: set[str] = set()
        """Lists to look up: those that grow, are branched from, or are linked to."""
        self.leases: set[str] = set()
        self.objects: dict[str, None] = {}
        """Objects that have to exist, because the batch does not contain them."""
        self.slots: dict[tuple[str, int], None] = {}
        """Bodies of other commits that have to exist: batch and part."""
        self.linked: dict[str, None] = {}
        """Lists that have to exist, because the batch does not create them."""


def dependencies_of(batch: Batch, named: Iterable[ParsedAddress]) -> Dependencies:
    """Return what a batch changes, and what it links to without containing it."""
    dependencies = Dependencies()
    dependencies.batches.append(batch.id)
    scopes = dependencies.scopes
    for part in batch.parts:
        scopes.add(part.scope)
    for event in batch.events:
        scopes.add(event.scope)
    for text in batch.texts:
        scopes.add(text.scope)
    for change in batch.refs:
        scopes.add(change.scope)
        dependencies.refs.add(change.name)
    for fence in batch.fences:
        dependencies.leases.add(fence.lease)
    for name in batch.requires:
        dependencies.objects[name] = None
    for place in named:
        if isinstance(place, ListAddress):
            dependencies.lists.add(place.list)
            dependencies.linked[place.list] = None
        elif isinstance(place, ObjectAddress):
            dependencies.objects[place.name] = None
        else:
            dependencies.slots[place.batch, place.part] = None
    for append in batch.lists:
        scopes.add(append.scope)
        dependencies.linked.pop(append.list, None)
        dependencies.lists.add(append.list)
        if append.parent is not None:
            dependencies.lists.add(append.parent)
    for name in batch.objects:
        dependencies.objects.pop(name, None)
    return dependencies


def merge_dependencies(parts: Sequence[Dependencies]) -> Dependencies:
    """Return the dependencies of a group of batches."""
    if len(parts) == 1:
        return parts[0]
    merged = Dependencies()
    for dependencies in parts:
        merged.batches += dependencies.batches
        merged.scopes |= dependencies.scopes
        merged.refs |= dependencies.refs
        merged.lists |= dependencies.lists
        merged.leases |= dependencies.leases
        merged.objects |= dependencies.objects
        merged.slots |= dependencies.slots
    return merged


EncodedItem = tuple[int | None, bytes | None, str | None]
"""An item as it is stored: kind and frame of content, or an address."""


class EncodedBatch(NamedTuple):
    """A validated batch and everything that can be computed from it alone."""

    batch: Batch
    dependencies: Dependencies
    bodies: list[bytes]
    items: list[list[EncodedItem]]
    objects: list[tuple[bytes, int, int, bytes]]
    """name, kind, size, frame"""
    words: list[str | None]
    """The text to index for each of the batch's texts, if the batch contains its source."""
    deltas: dict[RollupKey, Measures]
    item_links: str | None
    """What its list items and texts link to, so that a concurrent mark finds it by the commit."""


def encode_batch(batch: Batch) -> EncodedBatch:
    """Validate a batch and encode its content."""
    dependencies = dependencies_of(batch, validate_batch(batch))
    links: list[Address] = []
    items: list[list[EncodedItem]] = []
    for append in batch.lists:
        sealed: list[EncodedItem] = []
        for item in append.items:
            if isinstance(item, str):
                links.append(item)
                sealed.append((None, None, item))
            else:
                if item.kind == "tree":
                    links += content_links(item)
                sealed.append((KIND_NUMBERS[item.kind], seal(item.data), None))
        items.append(sealed)
    words: list[str | None] = []
    for text in batch.texts:
        words.append(_words(batch, text.source))
        if text.source is not None:
            links.append(text.source)
    return EncodedBatch(
        batch,
        dependencies,
        [seal(pack_body(part.slots)) for part in batch.parts] if batch.parts else [],
        items,
        [
            (bytes.fromhex(name), KIND_NUMBERS[content.kind], len(content.data), seal(content.data))
            for name, content in batch.objects.items()
        ]
        if batch.objects
        else [],
        words,
        deltas(batch.events),
        "\n".join(links) if links else None,
    )


def own_content(batch: Batch, address: Address) -> Content | None:
    """Return the content at an address, if the batch contains it."""
    match parse_address(address):
        case ObjectAddress(name):
            return batch.objects.get(name)
        case SlotAddress(batch.id, part, index):
            return batch.parts[part].slots[index]
        case _:
            return None


def _words(batch: Batch, source: Address | None) -> str | None:
    content = own_content(batch, source) if source is not None else None
    return text_of(content) if content is not None else None
