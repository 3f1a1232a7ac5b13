"""A batch made ready to be written, outside the lock.

Compressing, checksumming and taking words out of content are the expensive part of a commit and need no
database; they happen in the caller's thread, so that writers hold the store's one lock only for the
inserts themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from treering.core.address import ObjectAt, SlotAt, parse_address
from treering.core.body import pack_body
from treering.core.content import KIND_NUMBERS
from treering.core.frame import seal
from treering.core.intake import check_batch
from treering.core.reach import content_links
from treering.core.rollup import deltas
from treering.core.terms import text_of
from treering.engines.relational.needs import needs_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.address import Address
    from treering.core.batch import Batch
    from treering.core.content import Content
    from treering.core.rollup import Cell, Measures
    from treering.engines.relational.needs import Needs


class Sealed(NamedTuple):
    """An item as it will lie in its row: content in a frame, or an address."""

    kind: int | None
    frame: bytes | None
    address: str | None


class Prepared(NamedTuple):
    """A checked batch and everything that could be computed from it alone."""

    batch: Batch
    needs: Needs
    bodies: list[bytes]
    items: list[list[Sealed]]
    objects: list[tuple[bytes, int, int, bytes]]
    """name, kind, size, frame"""
    words: list[str | None]
    """The text behind each of the batch's texts, where the batch itself brings its source."""
    deltas: dict[Cell, Measures]
    item_links: str | None
    """What its list items and texts point at: a mark that runs meanwhile finds it by the commit."""


def prepare(batch: Batch) -> Prepared:
    """Check a batch and seal its content."""
    needs = needs_of(batch, check_batch(batch))
    links = [address for append in batch.lists for item in append.items for address in _item_links(item)]
    links += [text.source for text in batch.texts if text.source is not None]
    return Prepared(
        batch=batch,
        needs=needs,
        bodies=[seal(pack_body(part.slots)) for part in batch.parts],
        items=[[_sealed(item) for item in append.items] for append in batch.lists],
        objects=[
            (bytes.fromhex(name), KIND_NUMBERS[content.kind], len(content.data), seal(content.data))
            for name, content in batch.objects.items()
        ],
        words=[_words(batch, text.source) for text in batch.texts],
        deltas=deltas(batch.events),
        item_links="\n".join(links) or None,
    )


def own_content(batch: Batch, address: Address) -> Content | None:
    """The content at an address, when the batch itself brings it."""
    match parse_address(address):
        case ObjectAt(name):
            return batch.objects.get(name)
        case SlotAt(batch.id, part, index):
            return batch.parts[part].slots[index]
        case _:
            return None


def _item_links(item: Content | Address) -> Iterable[Address]:
    return (item,) if isinstance(item, str) else content_links(item)


def _sealed(item: Content | Address) -> Sealed:
    if isinstance(item, str):
        return Sealed(None, None, item)
    return Sealed(KIND_NUMBERS[item.kind], seal(item.data), None)


def _words(batch: Batch, source: Address | None) -> str | None:
    content = own_content(batch, source) if source is not None else None
    return text_of(content) if content is not None else None
