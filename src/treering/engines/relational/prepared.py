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
    from treering.core.address import Address
    from treering.core.batch import Batch
    from treering.core.content import Content
    from treering.core.rollup import Cell, Measures
    from treering.engines.relational.needs import Needs


Sealed = tuple[int | None, bytes | None, str | None]
"""An item as it will lie in its row: kind and frame of content, or an address."""


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
    return Prepared(
        batch,
        needs,
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
        case ObjectAt(name):
            return batch.objects.get(name)
        case SlotAt(batch.id, part, index):
            return batch.parts[part].slots[index]
        case _:
            return None


def _words(batch: Batch, source: Address | None) -> str | None:
    content = own_content(batch, source) if source is not None else None
    return text_of(content) if content is not None else None
