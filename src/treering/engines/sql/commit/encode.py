"""A batch made ready to be written, outside the lock.

Compressing, checksumming and taking words out of content are the expensive part of a commit and need no
database; they happen in the caller's thread, so that writers hold the store's one lock only for the
inserts themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from treering.core.batch import content_links, validate_batch
from treering.core.content import KIND_NUMBERS, ListAddress, ObjectAddress, SlotAddress, parse_address
from treering.core.frame import pack_body, seal
from treering.core.rollups import deltas
from treering.core.text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.batch import Batch
    from treering.core.content import Address, Content, ParsedAddress
    from treering.core.rollups import Measures, RollupKey


# -----------------------------------------------------------------------------------------------------------
# What a batch needs to know of the store before it can be decided: the names of all that it touches.
#
# Found outside the lock, from the batch alone.


class Dependencies:
    """What the batches of a group name; the dicts are sets that keep the order of naming."""

    __slots__ = ("batches", "leases", "linked", "lists", "objects", "refs", "scopes", "slots")

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.scopes: set[str] = set()
        self.refs: set[str] = set()
        self.lists: set[str] = set()
        """Lists to be looked up: those that grow or are branched from, and those that are linked to."""
        self.leases: set[str] = set()
        self.objects: dict[str, None] = {}
        """Objects that have to be there: the batch does not bring them."""
        self.slots: dict[tuple[str, int], None] = {}
        """Bodies of other commits that have to be there: batch and part."""
        self.linked: dict[str, None] = {}
        """Lists that have to be there: the batch does not make them."""


def dependencies_of(batch: Batch, named: Iterable[ParsedAddress]) -> Dependencies:
    """Everything that a batch touches, and what it points at and does not bring itself."""
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
    """What a group of batches needs."""
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


# -----------------------------------------------------------------------------------------------------------

Sealed = tuple[int | None, bytes | None, str | None]
"""An item as it will lie in its row: kind and frame of content, or an address."""


class EncodedBatch(NamedTuple):
    """A checked batch and everything that could be computed from it alone."""

    batch: Batch
    dependencies: Dependencies
    bodies: list[bytes]
    items: list[list[Sealed]]
    objects: list[tuple[bytes, int, int, bytes]]
    """name, kind, size, frame"""
    words: list[str | None]
    """The text behind each of the batch's texts, where the batch itself brings its source."""
    deltas: dict[RollupKey, Measures]
    item_links: str | None
    """What its list items and texts point at: a mark that runs meanwhile finds it by the commit."""


def encode_batch(batch: Batch) -> EncodedBatch:
    """Check a batch and seal its content."""
    dependencies = dependencies_of(batch, validate_batch(batch))
    links: list[Address] = []
    items: list[list[Sealed]] = []
    for append in batch.lists:
        sealed: list[Sealed] = []
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
    """The content at an address, when the batch itself brings it."""
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
