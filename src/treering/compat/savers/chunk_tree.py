"""A spine: a long list of messages as a short list of references, so that a save writes only what is new.

Each save puts its new messages into one *chunk*, a value of its own. A checkpoint lists chunks; as soon as
there are eight references of one level in that list, they become one *node*, again a value of its own, as
digits carry. A checkpoint of *n* saves therefore holds O(log n) references, and a thread of *n* steps
takes O(n) bytes. Chunks and nodes are never changed. A list that was shortened or changed half-way keeps the
references before that point; a chunk that it goes through is referred to by its first items.
**Invariant:** levels never rise from left to right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

FAN: Final = 8
"""References that one node holds."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """The first ``count`` messages of a chunk (level 0), or all messages below a node."""

    id: str
    count: int
    level: int = 0


Spine = tuple[Part, ...]
ReadNode = Callable[[str], Spine]
WriteNode = Callable[[Spine], str]


def parse(plain: Sequence[Sequence[Any]]) -> Spine:
    """A spine out of a record."""
    return tuple(Part(*each) for each in plain)


def plain(spine: Spine) -> list[list[Any]]:
    """A spine for a record."""
    return [[each.id, each.count, each.level] if each.level else [each.id, each.count] for each in spine]


def length(spine: Spine) -> int:
    """How many messages it stands for."""
    return sum(each.count for each in spine)


def first(spine: Spine, count: int, read_node: ReadNode) -> Spine:
    """The spine of the first ``count`` messages; nodes are opened only where the cut goes through."""
    kept: list[Part] = []
    for part in spine:
        if count <= 0:
            break
        if part.count <= count:
            kept.append(part)
        elif part.level == 0:
            kept.append(Part(part.id, count))
        else:
            kept.extend(first(read_node(part.id), count, read_node))
        count -= part.count
    return tuple(kept)


def grown(spine: Spine, chunk_id: str, count: int, write_node: WriteNode) -> Spine:
    """The spine with one more chunk at its end."""
    parts = [*spine, Part(chunk_id, count)]
    level = 0
    while len(full := [part for part in parts if part.level == level][:FAN]) == FAN:
        at = parts.index(full[0])
        parts[at : at + FAN] = [Part(write_node(tuple(full)), length(tuple(full)), level + 1)]
        level += 1
    return tuple(parts)


def chunks(spine: Spine, read_node: ReadNode) -> Iterator[Part]:
    """All chunks, in order."""
    for part in spine:
        if part.level == 0:
            yield part
        else:
            yield from chunks(read_node(part.id), read_node)


def collect(spine: Spine, read_node: ReadNode, found: set[str]) -> None:
    """Add the ids of all chunks and nodes; what is in ``found`` already is not opened again."""
    for part in spine:
        if part.id not in found:
            found.add(part.id)
            if part.level:
                collect(read_node(part.id), read_node, found)


def unshared(gone: Spine, kept: Sequence[Spine], read_node: ReadNode) -> set[str]:
    """The chunks and nodes below ``gone`` that none of ``kept`` needs.

    Only what lies on one side is opened: what both refer to is needed, with all that is below it.
    """
    going = {part.id: part for part in gone}
    needed: set[str] = set()
    for spine in kept:
        needed |= _ids(spine, read_node, stop_at=going.keys())
    lost: set[str] = set()
    for part in going.values():
        if part.id not in needed:
            lost |= _ids((part,), read_node, stop_at=needed)
    return lost - needed


def _ids(spine: Spine, read_node: ReadNode, *, stop_at: Any) -> set[str]:
    found: set[str] = set()
    for part in spine:
        found.add(part.id)
        if part.level and part.id not in stop_at:
            found |= _ids(read_node(part.id), read_node, stop_at=stop_at)
    return found
