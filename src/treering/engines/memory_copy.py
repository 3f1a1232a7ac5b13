"""A space of the memory engine as slices, and back (see `core.dump`); and what it all amounts to.

Every row has a place in one loadable order (content first, refs last), and the place of a slice's last
row is the position that continues behind it. An export is taken from one moment, so that a commit which
happens while it is read is not half in it.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from treering.core.clock import day_of
from treering.core.dump import BodyRow, CommitRow, ItemRow, ListRow, Slice
from treering.core.records import SpaceStats
from treering.engines.memory_space import StoredBody, StoredList, StoredObject
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.address import Address
    from treering.core.content import Content
    from treering.engines.memory_space import Space

SLICE_ROWS: Final = 500
SLICE_BYTES: Final = 4 << 20

_SECTIONS: Final = ("objects", "commits", "bodies", "records", "lists", "items", "texts", "refs")


class _Row(NamedTuple):
    place: tuple[Any, ...]
    """The section, and the key within it."""
    size: int
    row: Any


def export(space: Space, *, after: str | None) -> list[Slice]:
    """Everything behind a position, in slices bounded in rows and bytes."""
    last = _place(after) if after is not None else ()
    rows = sorted((row for row in _rows(space) if row.place > last), key=lambda row: row.place)
    return [_slice(space, part) for part in _cut(rows)]


def load(space: Space, part: Slice, *, now_us: int) -> None:
    """Take the rows of a slice that are not there yet; of refs and lists, the newer state."""
    for content in part.objects:
        space.objects.setdefault(content.name, StoredObject(content, now_us))
    for commit in part.commits:
        space.commits.setdefault(commit.receipt.batch, commit.receipt)
    for body in part.bodies:
        at_us = space.commits[body.batch].committed_at_us if body.batch in space.commits else now_us
        space.bodies.setdefault((body.batch, body.part), StoredBody(body.scope, body.slots, at_us))
    for record in part.records:
        space.add_record(record)
    for row in part.lists:
        stored = space.lists.setdefault(row.info.list, StoredList(row.info, row.seq, now_us))
        if stored.info.length < row.info.length:
            stored.info, stored.seq = row.info, row.seq
    for item in part.items:
        stored = space.lists.get(item.list)  # a list made during the export comes with the next pass
        if stored is not None and item.position == stored.info.start + len(stored.items):
            stored.items.append(item.item)
    for text in part.texts:
        space.texts[text.collection, text.name] = text
    for row in part.refs:
        there = space.refs.get(row.ref.name)
        if there is None or there.ref.version < row.ref.version:
            space.refs[row.ref.name] = row
    space.seq = max(space.seq, part.last_seq)
    space.committed_at_us = max(space.committed_at_us, part.committed_at_us)


def stats(space: Space) -> SpaceStats:
    """Count everything."""
    sizes = {"objects": 0, "bodies": 0, "items": 0, "events": 0, "refs": 0}
    growth: Counter[int] = Counter()

    def add(kind: str, size: int, at_us: int) -> None:
        sizes[kind] += size
        growth[day_of(at_us)] += size

    for stored in space.objects.values():
        add("objects", len(stored.content.data), stored.wanted_at_us)
    for body in space.bodies.values():
        add("bodies", sum(map(_size, body.slots)), body.committed_at_us)
    for each in space.lists.values():
        add("items", len(each.info.list) + sum(map(_size, each.items)), each.changed_at_us)
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
        yield _Row((0, name), _size(stored.content), stored.content)
    for receipt in space.commits.values():
        yield _Row((1, receipt.first_seq), 100, CommitRow(receipt=receipt))
    for (batch, part), body in space.bodies.items():
        row = BodyRow(batch=batch, part=part, scope=body.scope, slots=body.slots)
        yield _Row((2, batch, part), sum(map(_size, body.slots)), row)
    for seq, record in space.records.items():
        yield _Row((3, seq), 200 + len(record.event.data or b""), record)
    for list_id, stored in space.lists.items():
        depth = stored.info.depth
        yield _Row((4, depth, list_id), 100, ListRow(info=stored.info, seq=stored.seq))
        for position, item in enumerate(stored.items, stored.info.start):
            yield _Row(
                (5, list_id, position), _size(item), ItemRow(list=list_id, position=position, item=item)
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
        for section, group in groupby(part, key=lambda each: each.place[0])
    }
    position = json.dumps(part[-1].place)
    return Slice(position=position, last_seq=space.seq, committed_at_us=space.committed_at_us, **sections)


def _place(position: str) -> tuple[Any, ...]:
    try:
        return tuple(json.loads(position))
    except (ValueError, TypeError):
        raise InvalidInput(
            f"not a position of an export: {position[:80]!r}; pass one that a slice had"
        ) from None


def _size(item: Content | Address) -> int:
    return len(item) if isinstance(item, str) else len(item.data)
