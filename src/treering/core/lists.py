"""Append-only lists with parents: how a fork shares its past.

A list owns the items from its ``start`` on; everything before belongs to its parent, up to the position
where it branched off. Reading a range walks the lineage and takes from each list what it owns of it,
so a fork costs one row however long its past is. What is below a length never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.records import ListInfo

MAX_DEPTH: Final = 32
"""A list this deep is flattened (its items are written again) before it is branched further."""


class ListRange(msgspec.Struct, frozen=True, kw_only=True):
    """Positions ``start`` to ``stop`` of one list, all of which it owns."""

    list: str
    start: int
    stop: int


def locate(lineage: Sequence[ListInfo], start: int, stop: int) -> list[ListRange]:
    """Which list of a lineage (the list itself first, its root last) owns which part of a range.

    The result is in reading order. A range past the end is cut at the end.
    """
    runs: list[ListRange] = []
    stop = min(stop, lineage[0].length) if lineage else 0
    for info in lineage:
        first = max(start, info.start)
        if first < stop:
            runs.append(ListRange(list=info.list, start=first, stop=stop))
        stop = min(stop, info.start)
        if start >= stop:
            break
    runs.reverse()
    return runs


def branch_point(lineage: Sequence[ListInfo], at: int) -> ListInfo:
    """The list of a lineage to branch from at position ``at``.

    It is the one that owns the item before ``at``, not always the newest: branching from a list that
    contributes nothing would only make the lineage deeper.
    """
    for info in lineage:
        if at > info.start or info.parent is None:
            return info
    return lineage[-1]
