"""Pieces of a slice: a copy that is too large for one request, cut between its rows.

A slice is bounded by what its rows take in storage, where they are compressed; unfolded they may be many
times larger. **Invariant:** the pieces hold the rows of the slice, each once and in their order, so that
they can be loaded one behind the other just as the slice can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from treering.core.dump import Slice

_SECTIONS: Final = ("objects", "commits", "bodies", "records", "lists", "items", "texts", "refs")


def cut(part: Slice, *, size: int) -> Iterator[Slice]:
    """The slice itself if it has at most ``size`` bytes, else pieces; a larger one holds a single row."""
    if len(msgspec.msgpack.encode(part)) <= size or not any(getattr(part, name) for name in _SECTIONS):
        yield part
        return
    empty = Slice(position=part.position, last_seq=part.last_seq, committed_at_us=part.committed_at_us)
    for section in _SECTIONS:
        rows: list[Any] = []
        taken = 0
        for row in getattr(part, section):
            length = len(msgspec.msgpack.encode(row))
            if rows and taken + length > size:
                yield msgspec.structs.replace(empty, **{section: tuple(rows)})
                rows, taken = [], 0
            rows.append(row)
            taken += length
        if rows:
            yield msgspec.structs.replace(empty, **{section: tuple(rows)})
