"""Maintenance of a space of the memory engine: sweep, erase, check, export, load and stats.

The first three depend on `reachable`: every address that a set of roots leads to, with the name of the first
root that does. Roots are refs, events and index entries. Lists and content without a link also count as roots
where a writer may be about to link them.

An export sorts all rows into one loadable order (content first, refs last); the sort key of a slice's last
row is the position that resumes after it. It is taken at one moment, so a concurrent commit is never half
included.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from treering.core.batch import content_links, event_links, mark_reachable
from treering.core.clock import SECOND_US, day_of
from treering.core.content import list_address, object_address, slot_address
from treering.core.digests import event_form, leaf
from treering.core.query import forks_depend_on_it, ref_exists_again
from treering.core.records import (
    BodyRow,
    Checked,
    CommitDigest,
    Erased,
    EventLeaf,
    EventRow,
    ItemRow,
    ListRow,
    Problem,
    Slice,
    SpaceStats,
    Swept,
)
from treering.core.rollups import deltas
from treering.engines.memory.space import StoredBody, StoredList, StoredObject
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from treering.core.content import Address, Content
    from treering.core.query import Erasure
    from treering.core.records import CommitRow
    from treering.engines.memory.space import Space


Root = tuple["str", "Iterable[Address]"]
"""The name of something that keeps addresses alive, and those addresses."""


def reachable(space: Space, roots: Iterable[Root]) -> dict[Address, str]:
    """Return every address reachable from the roots, with the name of the first root that reaches it."""
    held: dict[Address, str] = {}
    for label, addresses in roots:
        mark_reachable(addresses, is_new=_record_first(held, label), links=space.links)
    return held


def record_roots(space: Space) -> Iterator[Root]:
    """Yield the refs, events and index entries of a space, and what they link to."""
    for row in space.refs.values():
        yield f"ref {row.ref.name!r}", row.ref.links
    for record in space.records.values():
        yield f"event {record.event.id!r}", event_links(record.event)
    for text in space.texts.values():
        yield f"text {text.name!r} of {text.collection!r}", [text.source]


def list_root(stored: StoredList) -> Root:
    """Return a list as a root."""
    return f"list {stored.info.list!r}", [list_address(stored.info.list)]


def sweep(space: Space, *, now_us: int, dry_run: bool, grace_seconds: float) -> Swept:
    """Remove whatever is unreachable and older than the grace period."""
    horizon_us = max(now_us, space.committed_at_us) - round(grace_seconds * SECOND_US)
    held = reachable(space, [*record_roots(space), ("recent", _recent(space, horizon_us))])
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


def _recent(space: Space, horizon_us: int) -> Iterator[Address]:
    for name, stored in space.objects.items():
        if stored.used_at_us > horizon_us:
            yield object_address(name)
    for key, body in space.bodies.items():
        if body.committed_at_us > horizon_us:
            yield from _slots(key, body)
    for list_id, stored in space.lists.items():
        if stored.changed_at_us > horizon_us:
            yield list_address(list_id)


def erase(space: Space, plan: Erasure) -> Erased:
    """Remove what a plan names, and the content that is reachable only from there.

    A list is erased only if the plan names it or its scope. One that loses its last link is left to `sweep`,
    because a writer may be about to link it again.
    """
    for name in plan.absent:
        if name in space.refs and not space.refs[name].deleted:
            raise ref_exists_again(name)
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
    behind = reachable(
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
    _remove_from_receipts(space, refs)
    for key in texts:
        del space.texts[key]
    other_lists = [stored for list_id, stored in space.lists.items() if list_id not in lists]
    held = reachable(space, [*record_roots(space), *map(list_root, other_lists)])

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
    """Return the scopes to erase; with ``cascade``, including those that depend on them."""
    scopes = set(plan.scopes)
    while dependent := _dependent_scopes(space, plan, scopes):
        if not plan.cascade:
            raise forks_depend_on_it(dependent)
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


def _remove_from_receipts(space: Space, refs: set[str]) -> None:
    """Remove erased refs from receipts, which name the refs that their batches updated."""
    for batch, commit in space.commits.items():
        receipt = commit.receipt
        if not refs.isdisjoint(receipt.versions):
            receipt = msgspec.structs.replace(
                receipt,
                versions={name: version for name, version in receipt.versions.items() if name not in refs},
                sums={name: total for name, total in receipt.sums.items() if name not in refs},
            )
            space.commits[batch] = msgspec.structs.replace(commit, receipt=receipt)


def check(space: Space, *, read_content: bool) -> Iterator[Problem | Checked]:
    """Yield every inconsistency."""
    last = max(space.records, default=0)
    if last > space.seq:
        yield Problem(
            kind="counter", where=f"space {space.name!r}", detail=f"event {last} exceeds seq {space.seq}"
        )
    for address, label in reachable(
        space, [*record_roots(space), *map(list_root, space.lists.values())]
    ).items():
        if not space.holds(address):
            yield Problem(kind="dangling", where=label, detail=f"{address!r} is not stored")
    if read_content:
        for name, stored in space.objects.items():
            if stored.content.name != name:
                yield Problem(
                    kind="corrupt", where=object_address(name), detail="content has a different hash"
                )
    for list_id, stored in space.lists.items():
        if detail := _list_problem(space, stored):
            yield Problem(kind="list", where=list_address(list_id), detail=detail)
    recount = deltas(record.event for record in space.records.values())
    for key in recount.keys() | space.rollups.keys():
        if recount.get(key) != space.rollups.get(key):
            yield Problem(
                kind="derived", where=f"roll-up {key}", detail="differs from a recount; run reindex"
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
        return f"length is {info.length}, but {info.start} + {len(stored.items)} items are stored"
    parent = space.lists.get(info.parent) if info.parent is not None else None
    if info.parent is not None and parent is None:
        return f"parent {info.parent!r} is not stored"
    if parent is not None and (parent.info.length < info.start or parent.info.depth != info.depth - 1):
        return f"is inconsistent with its parent {info.parent!r}"
    return None


def _record_first(held: dict[Address, str], label: str) -> Callable[[Address], bool]:
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


SLICE_ROWS: Final = 500
SLICE_BYTES: Final = 4 << 20

_SECTIONS: Final = ("objects", "commits", "bodies", "events", "lists", "items", "texts", "refs")


class _Row(NamedTuple):
    sort_key: tuple[Any, ...]
    """The section, and the key within it."""
    size: int
    row: Any


def export(space: Space, *, after: str | None) -> list[Slice]:
    """Return everything behind a position, in slices of limited size."""
    last = _parse_position(after) if after is not None else ()
    rows = sorted((row for row in _rows(space) if row.sort_key > last), key=lambda row: row.sort_key)
    return [_slice(space, part) for part in _cut(rows)]


def load(space: Space, part: Slice, *, now_us: int) -> None:
    """Add the missing rows of a slice; refs and lists are updated to the newer state."""
    for content in part.objects:
        space.objects.setdefault(content.name, StoredObject(content, now_us))
    for commit in part.commits:
        space.commits.setdefault(commit.receipt.batch, commit)
    for body in part.bodies:
        at_us = space.commits[body.batch].receipt.committed_at_us if body.batch in space.commits else now_us
        space.bodies.setdefault((body.batch, body.part), StoredBody(body.scope, body.slots, at_us, body.salt))
    for event in part.events:
        space.add_record(event.record, event.salt)
    for row in part.lists:
        stored = space.lists.setdefault(row.info.list, StoredList(row.info, row.seq, now_us, row.salt))
        if stored.info.length < row.info.length:
            stored.info, stored.seq = row.info, row.seq
    for item in part.items:
        stored = space.lists.get(item.list)  # a list created during the export is part of the next pass
        if stored is not None and item.position == stored.info.start + len(stored.items):
            stored.items.append(item.item)
    for text in part.texts:
        space.texts[text.collection, text.name] = text
    for row in part.refs:
        current = space.refs.get(row.ref.name)
        if current is None or current.ref.version < row.ref.version:
            space.refs[row.ref.name] = row
    space.seq = max(space.seq, part.last_seq)
    space.committed_at_us = max(space.committed_at_us, part.committed_at_us)


def commit_digests(space: Space, *, after_seq: int) -> list[CommitDigest]:
    """Return the commits behind a sequence number, in order."""
    commits = sorted(space.commits.values(), key=lambda commit: commit.receipt.last_seq)
    return [_commit_digest(space, commit) for commit in commits if commit.receipt.last_seq > after_seq]


def _commit_digest(space: Space, commit: CommitRow) -> CommitDigest:
    receipt = commit.receipt
    stored = [
        space.records[seq] for seq in range(receipt.first_seq, receipt.last_seq + 1) if seq in space.records
    ]
    events: list[EventLeaf] = []
    for record in stored:
        salt = space.salts[record.seq]
        own = leaf("event", salt, event_form(record.event))
        events.append(EventLeaf(record.seq - receipt.first_seq, record.event.id, salt, own))
    return CommitDigest(
        batch=receipt.batch,
        first_seq=receipt.first_seq,
        last_seq=receipt.last_seq,
        committed_at_us=receipt.committed_at_us,
        digest=commit.digest,
        leaves=commit.leaves,
        events=tuple(events),
        refs=tuple(receipt.versions),
    )


def stats(space: Space) -> SpaceStats:
    """Measure the space."""
    sizes = {"objects": 0, "bodies": 0, "items": 0, "events": 0, "refs": 0}
    growth: Counter[int] = Counter()

    def add(kind: str, size: int, at_us: int) -> None:
        sizes[kind] += size
        growth[day_of(at_us)] += size

    for stored in space.objects.values():
        add("objects", len(stored.content.data), stored.used_at_us)
    for body in space.bodies.values():
        add("bodies", sum(map(_item_size, body.slots)), body.committed_at_us)
    for each in space.lists.values():
        add("items", len(each.info.list) + sum(map(_item_size, each.items)), each.changed_at_us)
    for record in space.records.values():
        event = record.event
        add(
            "events",
            len(event.id) + len(event.data or b"") + sum(map(len, event.links)),
            record.committed_at_us,
        )
    for row in space.refs.values():
        add("refs", len(row.ref.name) + len(row.ref.value), row.ref.changed_at_us)
    return SpaceStats(
        space=space.name,
        commits=len(space.commits),
        events=len(space.records),
        refs=sum(not row.deleted for row in space.refs.values()),
        lists=len(space.lists),
        items=sum(len(each.items) for each in space.lists.values()),
        objects=len(space.objects),
        texts=len(space.texts),
        bytes=sizes,
        growth_bytes=dict(sorted(growth.items())),
    )


def _rows(space: Space) -> Iterator[_Row]:
    for name, stored in space.objects.items():
        yield _Row((0, name), _item_size(stored.content), stored.content)
    for commit in space.commits.values():
        yield _Row((1, commit.receipt.first_seq), 100, commit)
    for (batch, part), body in space.bodies.items():
        row = BodyRow(batch=batch, part=part, scope=body.scope, slots=body.slots, salt=body.salt)
        yield _Row((2, batch, part), sum(map(_item_size, body.slots)), row)
    for seq, record in space.records.items():
        row = EventRow(record=record, salt=space.salts[seq])
        yield _Row((3, seq), 200 + len(record.event.data or b""), row)
    for list_id, stored in space.lists.items():
        depth = stored.info.depth
        yield _Row((4, depth, list_id), 100, ListRow(info=stored.info, seq=stored.seq, salt=stored.salt))
        for position, item in enumerate(stored.items, stored.info.start):
            yield _Row(
                (5, list_id, position),
                _item_size(item),
                ItemRow(list=list_id, position=position, item=item),
            )
    for (collection, name), text in space.texts.items():
        yield _Row((6, collection, name), 100, text)
    for name, row in space.refs.items():
        yield _Row((7, name), len(row.ref.value), row)


def _cut(rows: list[_Row]) -> Iterator[list[_Row]]:
    part: list[_Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += row.size
        if len(part) >= SLICE_ROWS or size >= SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _slice(space: Space, part: list[_Row]) -> Slice:
    sections: dict[str, Any] = {
        _SECTIONS[section]: tuple(each.row for each in group)
        for section, group in groupby(part, key=lambda each: each.sort_key[0])
    }
    position = json.dumps(part[-1].sort_key)
    return Slice(position=position, last_seq=space.seq, committed_at_us=space.committed_at_us, **sections)


def _parse_position(position: str) -> tuple[Any, ...]:
    try:
        return tuple(json.loads(position))
    except (ValueError, TypeError):
        raise InvalidInput(
            f"not a position of an export: {position[:80]!r}; pass the position of a slice"
        ) from None


def _item_size(item: Content | Address) -> int:
    return len(item) if isinstance(item, str) else len(item.data)
