"""Statistics: what a space holds, and what it takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from treering.care.spaces import is_unwritten
from treering.core.clock import to_datetime
from treering.core.engine import Engine
from treering.core.query import day_start_us

_ROWS: Final = ("commits", "events", "refs", "lists", "items", "objects", "texts")


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and stored bytes of one space; reads like a dict as well (``stats["rows"]["events"]``).

    ``growth_bytes`` are the stored bytes by the UTC day on which they were committed. ``disk_bytes`` is
    what the files of a local store take, for all of its spaces together; ``None`` for any other store.
    """

    url: str
    space: str
    rows: dict[str, int]
    bytes: dict[str, int]
    total_bytes: int
    growth_bytes: dict[str, int]
    disk_bytes: int | None = None

    def keys(self) -> tuple[str, ...]:
        """The names of the fields, as of a dict."""
        return self.__struct_fields__

    def __getitem__(self, key: str) -> Any:
        if key not in self.__struct_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def __len__(self) -> int:
        return len(self.__struct_fields__)


def measure(engine: Engine, space: str, *, folder: Path | None = None) -> Stats:
    """Count one space; ``folder`` is where a local store keeps its files."""
    counted = None if is_unwritten(engine, space) else engine.stats(space)
    held = {} if counted is None else counted.bytes
    grown = {} if counted is None else counted.growth_bytes
    return Stats(
        url=engine.url,
        space=space,
        rows={name: 0 if counted is None else getattr(counted, name) for name in _ROWS},
        bytes=dict(held),
        total_bytes=sum(held.values()),
        growth_bytes={to_datetime(day_start_us(day)).date().isoformat(): grown[day] for day in sorted(grown)},
        disk_bytes=None if folder is None else folder_bytes(folder),
    )


def folder_bytes(folder: Path) -> int:
    """What the files below a folder take on disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - a Path per file is slow
            except FileNotFoundError:
                continue  # a log or a pack that was removed while we looked
    return total
