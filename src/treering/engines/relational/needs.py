"""What a batch needs to know of the store before it can be decided: the names of all that it touches.

Found outside the lock, from the batch alone. Addresses were checked by `core.intake`, so their form is
taken for granted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.address import SlotAt, parse_address
from treering.core.batch import Set
from treering.core.reach import event_links

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.core.address import Address
    from treering.core.batch import Batch


class Needs:
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


def needs_of(batch: Batch) -> Needs:
    """Everything that a batch names and that may be stored already."""
    needs = Needs()
    needs.batches.append(batch.id)
    for records in (batch.parts, batch.lists, batch.events, batch.refs, batch.texts):
        for record in records:
            needs.scopes.add(record.scope)
    for append in batch.lists:
        needs.lists.add(append.list)
        if append.parent is not None:
            needs.lists.add(append.parent)
    for change in batch.refs:
        needs.refs.add(change.name)
    for fence in batch.fences:
        needs.leases.add(fence.lease)
    needs.objects = dict.fromkeys(batch.requires)
    own = f"s:{batch.id}:"
    for address in _addresses(batch):
        if not address.startswith(own):
            _look_up(needs, address)
    for name in batch.objects:
        needs.objects.pop(name, None)
    for append in batch.lists:
        needs.linked.pop(append.list, None)
    return needs


def _look_up(needs: Needs, address: Address) -> None:
    form, name = address[:2], address[2:]
    if form == "o:":
        needs.objects[name] = None
    elif form == "l:":
        needs.lists.add(name)
        needs.linked[name] = None
    else:
        place = parse_address(address)
        if isinstance(place, SlotAt):
            needs.slots[place.batch, place.part] = None


def together(all_needs: Sequence[Needs]) -> Needs:
    """What a group of batches needs."""
    if len(all_needs) == 1:
        return all_needs[0]
    merged = Needs()
    for needs in all_needs:
        merged.batches += needs.batches
        merged.scopes |= needs.scopes
        merged.refs |= needs.refs
        merged.lists |= needs.lists
        merged.leases |= needs.leases
        merged.objects |= needs.objects
        merged.slots |= needs.slots
    return merged


def _addresses(batch: Batch) -> Iterator[Address]:
    """Every address that stands anywhere in a batch."""
    for append in batch.lists:
        for item in append.items:
            if isinstance(item, str):
                yield item
    for event in batch.events:
        if event.body is not None or event.links:
            yield from event_links(event)
    for change in batch.refs:
        if isinstance(change.change, Set):
            yield from change.change.links
    for text in batch.texts:
        if text.source is not None:
            yield text.source
