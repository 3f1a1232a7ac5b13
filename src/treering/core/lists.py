"""Append-only lists with parents: how a fork shares its past.

A list owns its items from ``start`` on; earlier ones belong to its parent, up to the position where it
branched off. Reading a range walks the lineage and takes from each list the items it owns, so a fork costs
one row no matter how long its past is. **Invariant:** items below the length of a list never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.records import ListInfo

MAX_DEPTH: Final = 32
"""A list with this many ancestors is flattened (its items are copied) before it can be branched."""


class ListRange(msgspec.Struct, frozen=True, kw_only=True):
    """Positions ``start`` to ``stop`` of one list that owns all of them."""

    list: str
    start: int
    stop: int


def locate(lineage: Sequence[ListInfo], start: int, stop: int) -> list[ListRange]:
    """Return which list of a lineage (the list first, its root last) owns which part of a range.

    The result is in reading order. A range past the end is cut off at the end.
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
    """Return the list of a lineage to branch from at position ``at``.

    This is the list that owns the item before ``at``, not always the newest one: branching from a list that
    contributes nothing would only make the lineage deeper.
    """
    for info in lineage:
        if at > info.start or info.parent is None:
            return info
    return lineage[-1]
