"""Statistics: which spaces an engine has, how large one is, and how it grows.

Measuring reads every row, so the last measurement of a large space is remembered, and what was committed
since is estimated from it: each figure grows as the sequence numbers do. It is measured again when it has
grown by a quarter, by a server in the background before that, by garbage collection, and on request.

A space exists from its first write on. Before that an engine raises `NotFound` for it, but a store that was
just opened is empty and healthy, not an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Draft
from treering.core.clock import day_of, to_datetime
from treering.core.engine import Engine
from treering.core.ids import MAINTENANCE_SCOPE, RESERVED
from treering.core.query import SumQuery, day_start_us
from treering.core.records import SpaceStats
from treering.errors import Forbidden, ReadOnly

if TYPE_CHECKING:
    from treering.core.clock import Clock

MEASURED_REF: Final = "store/measured"
"""Holds the last measurement of a large space."""
_SMALL: Final = 10_000
"""Up to this sequence number a space is measured each time, which takes a few dozen milliseconds."""
_MOST_GROWN: Final = 1.25
_REFRESHED: Final = 1.1
"""How much a space may grow until what was measured is too old: to be asked for, and for a server."""


def user_spaces(engine: Engine) -> list[str]:
    """Return the spaces of an engine, by name, without reserved ones."""
    return [name for name in engine.spaces() if not name.startswith(RESERVED)]


def is_unwritten(engine: Engine, space: str) -> bool:
    """Whether nothing was ever written to a space."""
    return space not in engine.spaces()


_ROWS: Final = ("commits", "events", "refs", "lists", "items", "objects", "texts")


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and stored bytes of one space; can also be read like a dict (``stats["rows"]["events"]``).

    ``growth_bytes`` are stored bytes by the UTC day of their commit. ``disk_bytes`` is the size of the files
    of a local store, for all its spaces together; ``None`` for any other store. ``is_estimate``: what was
    committed since the last measurement is estimated, and what was erased since is included.
    """

    url: str
    space: str
    rows: dict[str, int]
    bytes: dict[str, int]
    total_bytes: int
    growth_bytes: dict[str, int]
    disk_bytes: int | None = None
    is_estimate: bool = False

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return self.__struct_fields__

    def __getitem__(self, key: str) -> Any:
        if key not in self.__struct_fields__:
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def __len__(self) -> int:
        return len(self.__struct_fields__)


class _Measured(msgspec.Struct, frozen=True):
    """A measurement, and the sequence number that the space had reached."""

    seq: int
    stats: SpaceStats


def measure(
    engine: Engine, space: str, *, clock: Clock, folder: Path | None = None, exact: bool = False
) -> Stats:
    """Measure one space, or estimate a large one unless ``exact``; ``folder`` is that of a local store."""
    counted, is_estimate = _count(engine, space, clock=clock, exact=exact)
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
        is_estimate=is_estimate,
    )


def _count(
    engine: Engine, space: str, *, clock: Clock, exact: bool = False, most_grown: float = _MOST_GROWN
) -> tuple[SpaceStats | None, bool]:
    """Return what a space holds, ``None`` if it was never written, and whether that is an estimate."""
    seq = engine.wait(space, 0, seconds=0)
    if not exact and seq > _SMALL:
        found = engine.refs(space, [MEASURED_REF]).get(MEASURED_REF)
        with suppress(msgspec.DecodeError):  # derived data: measure again
            before = None if found is None else msgspec.json.decode(found.value, type=_Measured)
            if before is not None and before.seq <= seq <= before.seq * most_grown:
                return _grown(before, seq, today=day_of(clock.now_us())), True
    if is_unwritten(engine, space):
        return None, False
    counted = engine.stats(space)
    if seq > _SMALL:
        draft = Draft(space)
        draft.set_ref(MEASURED_REF, msgspec.json.encode(_Measured(seq, counted)), scope=MAINTENANCE_SCOPE)
        with suppress(Forbidden, ReadOnly):
            engine.commit(draft.batch())
    return counted, False


def refresh(engine: Engine, space: str, *, clock: Clock, exact: bool = False) -> None:
    """Measure a large space again if it has grown by a tenth since, or in any case if ``exact``."""
    if engine.wait(space, 0, seconds=0) > _SMALL:
        _count(engine, space, clock=clock, exact=exact, most_grown=_REFRESHED)


def _grown(before: _Measured, seq: int, *, today: int) -> SpaceStats:
    """Return a measurement as it is by now, if all that came since is like what was there."""
    old = before.stats
    more = (seq - before.seq) / before.seq
    added = round(sum(old.growth_bytes.values()) * more)
    growth = dict(old.growth_bytes)
    if added:
        growth[today] = growth.get(today, 0) + added
    return msgspec.structs.replace(
        old,
        **{name: getattr(old, name) + round(getattr(old, name) * more) for name in _ROWS},
        bytes={kind: size + round(size * more) for kind, size in old.bytes.items()},
        growth_bytes=growth,
    )


def folder_bytes(folder: Path) -> int:
    """Return the total size of the files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - a Path per file is slow
            except FileNotFoundError:
                continue  # removed in the meantime
    return total


_RUN: Final = "run"


class GrowthDay(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one UTC day that is still stored."""

    date: str
    bytes: int
    total_bytes: int
    """Everything stored up to the end of that day."""
    events: int
    runs: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The days with new data, oldest first, and the trend of the last ``days_looked_at``."""

    days: tuple[GrowthDay, ...]
    total_bytes: int
    days_looked_at: int
    bytes_per_day: float
    in_30_days_bytes: int


def grow(engine: Engine, space: str, *, last_days: int, clock: Clock) -> Growth:
    """Return stored bytes, events and runs by day, and the trend of the last days, including today."""
    today = day_of(clock.now_us())
    if is_unwritten(engine, space):
        return Growth(days=(), total_bytes=0, days_looked_at=last_days, bytes_per_day=0.0, in_30_days_bytes=0)
    counted, _ = _count(engine, space, clock=clock)
    grown = {} if counted is None else counted.growth_bytes
    events: dict[int, int] = {}
    runs: dict[int, int] = {}
    for each in engine.sums(space, SumQuery(grain="day", by=("day", "kind"))):
        day = int(each.group[0])
        events[day] = events.get(day, 0) + each.events
        if each.group[1] == _RUN:
            runs[day] = runs.get(day, 0) + each.events
    days: list[GrowthDay] = []
    total = 0
    for day in sorted({*grown, *events}):
        total += grown.get(day, 0)
        days.append(
            GrowthDay(
                date=to_datetime(day_start_us(day)).date().isoformat(),
                bytes=grown.get(day, 0),
                total_bytes=total,
                events=events.get(day, 0),
                runs=runs.get(day, 0),
            )
        )
    rate = sum(size for day, size in grown.items() if day > today - last_days) / last_days
    return Growth(
        days=tuple(days),
        total_bytes=total,
        days_looked_at=last_days,
        bytes_per_day=rate,
        in_30_days_bytes=round(total + 30 * rate),
    )
