"""What a batch needs to know of the store before it can be decided: the names of all that it touches.

Found outside the lock, from the batch alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.address import ListAt, ObjectAt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.address import Place
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


def needs_of(batch: Batch, named: Iterable[Place]) -> Needs:
    """Everything that a batch touches, and what it points at and does not bring itself."""
    needs = Needs()
    needs.batches.append(batch.id)
    scopes = needs.scopes
    for part in batch.parts:
        scopes.add(part.scope)
    for event in batch.events:
        scopes.add(event.scope)
    for text in batch.texts:
        scopes.add(text.scope)
    for change in batch.refs:
        scopes.add(change.scope)
        needs.refs.add(change.name)
    for fence in batch.fences:
        needs.leases.add(fence.lease)
    for name in batch.requires:
        needs.objects[name] = None
    for place in named:
        if isinstance(place, ListAt):
            needs.lists.add(place.list)
            needs.linked[place.list] = None
        elif isinstance(place, ObjectAt):
            needs.objects[place.name] = None
        else:
            needs.slots[place.batch, place.part] = None
    for append in batch.lists:
        scopes.add(append.scope)
        needs.linked.pop(append.list, None)
        needs.lists.add(append.list)
        if append.parent is not None:
            needs.lists.add(append.parent)
    for name in batch.objects:
        needs.objects.pop(name, None)
    return needs


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
