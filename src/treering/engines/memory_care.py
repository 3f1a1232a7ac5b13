"""How a space of the memory engine looks after itself: erase, sweep and check.

All three ask the same question (who reaches what), answered by `holders`: every address that something
alive leads to, with the name of the first thing that does. Alive are refs, events and index entries;
lists that nothing links to yet count as alive where a writer may still be about to link them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treering.core.address import list_address, object_address, slot_address
from treering.core.clock import SECOND_US
from treering.core.query import is_built_on, is_there
from treering.core.reach import content_links, event_links, reach
from treering.core.records import Checked, Erased, Problem, Swept
from treering.core.rollup import deltas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from treering.core.address import Address
    from treering.core.query import Erasure
    from treering.engines.memory_space import Space, StoredBody, StoredList

Root = tuple["str", "Iterable[Address]"]
"""A thing that keeps addresses alive, by its name, and which ones."""


def holders(space: Space, roots: Iterable[Root]) -> dict[Address, str]:
    """Every address that the roots lead to, and the first root that leads there."""
    held: dict[Address, str] = {}
    for label, addresses in roots:
        reach(addresses, is_new=_remember(held, label), links=space.links)
    return held


def record_roots(space: Space) -> Iterator[Root]:
    """The refs, events and index entries of a space, and what they link to."""
    for row in space.refs.values():
        yield f"ref {row.ref.name!r}", row.ref.links
    for record in space.records.values():
        yield f"event {record.event.id!r}", event_links(record.event)
    for text in space.texts.values():
        yield f"text {text.name!r} of {text.collection!r}", [text.source]


def list_root(stored: StoredList) -> Root:
    """A list as a root of its own."""
    return f"list {stored.info.list!r}", [list_address(stored.info.list)]


# Sweep
def sweep(space: Space, *, now_us: int, dry_run: bool, grace_seconds: float) -> Swept:
    """Remove what nothing reaches: no record, and nothing young that someone may be about to link."""
    horizon_us = max(now_us, space.committed_at_us) - round(grace_seconds * SECOND_US)
    held = holders(space, [*record_roots(space), ("young", _young(space, horizon_us))])
    objects = [name for name in space.objects if object_address(name) not in held]
    bodies = [
        key for key, body in space.bodies.items() if not any(slot in held for slot in _slots(key, body))
    ]
    lists = [list_id for list_id in space.lists if list_address(list_id) not in held]
    swept = Swept(
        objects=len(objects),
        bodies=len(bodies),
        lists=len(lists),
        bytes=_size(space, objects, bodies, lists),
        kept_objects=len(space.objects) - len(objects),
        dry_run=dry_run,
    )
    if not dry_run:
        _remove(space, objects, bodies, lists)
    return swept


def _young(space: Space, horizon_us: int) -> Iterator[Address]:
    for name, stored in space.objects.items():
        if stored.wanted_at_us > horizon_us:
            yield object_address(name)
    for key, body in space.bodies.items():
        if body.committed_at_us > horizon_us:
            yield from _slots(key, body)
    for list_id, stored in space.lists.items():
        if stored.changed_at_us > horizon_us:
            yield list_address(list_id)


# Erase
def erase(space: Space, plan: Erasure) -> Erased:
    """Remove what a plan names and the content that only this led to.

    A list goes only when the plan names it or its scope; one that just lost its last link is left to
    `sweep`, because a writer may be about to link it again.
    """
    for name in plan.absent:
        if name in space.refs and not space.refs[name].deleted:
            raise is_there(name)
    if not (plan.scopes or plan.event_seqs or plan.refs or plan.lists):
        return Erased()
    scopes = _all_scopes(space, plan)
    seqs = {
        seq for seq, record in space.records.items() if record.event.scope in scopes or seq in plan.event_seqs
    }
    refs = {name for name, row in space.refs.items() if row.ref.scope in scopes or name in plan.refs}
    texts = {key for key, text in space.texts.items() if text.scope in scopes}
    lists = _planned_lists(space, plan, scopes)
    planned_bodies = {key for key, body in space.bodies.items() if body.scope in scopes}
    behind = holders(
        space,
        [
            *(("erased", event_links(space.records[seq].event)) for seq in seqs),
            *(("erased", space.refs[name].ref.links) for name in refs),
            *(("erased", [space.texts[key].source]) for key in texts),
            *(list_root(space.lists[list_id]) for list_id in lists),
            *(("erased", _body_links(space.bodies[key])) for key in planned_bodies),
        ],
    )
    for seq in seqs:
        space.remove_record(seq)
    for name in refs:
        del space.refs[name]
    _forget_in_receipts(space, refs)
    for key in texts:
        del space.texts[key]
    other_lists = [stored for list_id, stored in space.lists.items() if list_id not in lists]
    held = holders(space, [*record_roots(space), *map(list_root, other_lists)])

    kept: dict[str, str] = {}
    objects: set[str] = set()
    for name in sorted(space.objects):
        address = object_address(name)
        if address in behind and address in held:
            kept[name] = f"shared with {held[address]}"
        elif address in behind:
            objects.add(name)
    bodies: set[tuple[str, int]] = set()
    for key, body in space.bodies.items():
        slots = _slots(key, body)
        shared = [slot for slot in slots if slot in held]
        if key in planned_bodies:
            kept |= {slot: f"shared with {held[slot]}" for slot in shared}
        if not shared and (key in planned_bodies or any(slot in behind for slot in slots)):
            bodies.add(key)
    size = _size(space, objects, bodies, lists)
    _remove(space, objects, bodies, lists)
    return Erased(
        events=len(seqs),
        refs=len(refs),
        lists=len(lists),
        bodies=len(bodies),
        texts=len(texts),
        objects=len(objects),
        bytes=size,
        kept=kept,
    )


def _all_scopes(space: Space, plan: Erasure) -> set[str]:
    """The scopes to erase, those that depend on them included if the plan says so."""
    scopes = set(plan.scopes)
    while dependent := _dependent_scopes(space, plan, scopes):
        if not plan.cascade:
            raise is_built_on(dependent)
        scopes |= dependent
    return scopes


def _dependent_scopes(space: Space, plan: Erasure, scopes: set[str]) -> set[str]:
    lists = _planned_lists(space, plan, scopes)
    addresses = {list_address(list_id) for list_id in lists}
    dependent = {
        stored.info.scope
        for list_id, stored in space.lists.items()
        if list_id not in lists and stored.info.parent in lists
    }
    for name, row in space.refs.items():
        if name not in plan.refs and not addresses.isdisjoint(row.ref.links):
            dependent.add(row.ref.scope)
    for seq, record in space.records.items():
        if seq not in plan.event_seqs and not addresses.isdisjoint(record.event.links):
            dependent.add(record.event.scope)
    return dependent - scopes


def _planned_lists(space: Space, plan: Erasure, scopes: set[str]) -> set[str]:
    return {name for name, stored in space.lists.items() if stored.info.scope in scopes or name in plan.lists}


def _forget_in_receipts(space: Space, refs: set[str]) -> None:
    """A receipt names the refs that its batch moved; an erased name must not stand there either."""
    for batch, receipt in space.commits.items():
        if not refs.isdisjoint(receipt.versions):
            space.commits[batch] = msgspec.structs.replace(
                receipt,
                versions={name: version for name, version in receipt.versions.items() if name not in refs},
                sums={name: total for name, total in receipt.sums.items() if name not in refs},
            )


# Check
def check(space: Space, *, read_content: bool) -> Iterator[Problem | Checked]:
    """Look for anything that cannot be."""
    last = max(space.records, default=0)
    if last > space.seq:
        yield Problem(
            kind="counter", where=f"space {space.name!r}", detail=f"event {last} is past seq {space.seq}"
        )
    for address, label in holders(
        space, [*record_roots(space), *map(list_root, space.lists.values())]
    ).items():
        if not space.holds(address):
            yield Problem(kind="dangling", where=label, detail=f"{address!r} is not stored")
    if read_content:
        for name, stored in space.objects.items():
            if stored.content.name != name:
                yield Problem(kind="corrupt", where=object_address(name), detail="content has another hash")
    for list_id, stored in space.lists.items():
        if detail := _list_problem(space, stored):
            yield Problem(kind="list", where=list_address(list_id), detail=detail)
    recount = deltas(record.event for record in space.records.values())
    for cell in recount.keys() | space.cells.keys():
        if recount.get(cell) != space.cells.get(cell):
            yield Problem(
                kind="derived", where=f"roll-up {cell}", detail="differs from a recount; run reindex"
            )
    yield Checked(
        objects=len(space.objects),
        bodies=len(space.bodies),
        items=sum(len(stored.items) for stored in space.lists.values()),
        events=len(space.records),
        refs=sum(not row.deleted for row in space.refs.values()),
        bytes=_size(space, space.objects, space.bodies, space.lists),
    )


def _list_problem(space: Space, stored: StoredList) -> str | None:
    info = stored.info
    if info.length != info.start + len(stored.items):
        return f"length is {info.length}, but {info.start} + {len(stored.items)} items are there"
    parent = space.lists.get(info.parent) if info.parent is not None else None
    if info.parent is not None and parent is None:
        return f"parent {info.parent!r} is not stored"
    if parent is not None and (parent.info.length < info.start or parent.info.depth != info.depth - 1):
        return f"does not fit its parent {info.parent!r}"
    return None


# What they share
def _remember(held: dict[Address, str], label: str) -> Callable[[Address], bool]:
    def is_new(address: Address) -> bool:
        if address in held:
            return False
        held[address] = label
        return True

    return is_new


def _slots(key: tuple[str, int], body: StoredBody) -> list[Address]:
    return [slot_address(*key, index) for index in range(len(body.slots))]


def _body_links(body: StoredBody) -> Iterator[Address]:
    for content in body.slots:
        yield from content_links(content)


def _remove(
    space: Space, objects: Iterable[str], bodies: Iterable[tuple[str, int]], lists: Iterable[str]
) -> None:
    for name in objects:
        del space.objects[name]
    for key in bodies:
        del space.bodies[key]
    for list_id in lists:
        del space.lists[list_id]


def _size(
    space: Space, objects: Iterable[str], bodies: Iterable[tuple[str, int]], lists: Iterable[str]
) -> int:
    return (
        sum(len(space.objects[name].content.data) for name in objects)
        + sum(len(content.data) for key in bodies for content in space.bodies[key].slots)
        + sum(
            len(item if isinstance(item, str) else item.data)
            for name in lists
            for item in space.lists[name].items
        )
    )
