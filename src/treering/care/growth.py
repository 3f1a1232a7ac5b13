"""Growth: how a space became as large as it is, day by day, and where that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from treering.care.spaces import is_unwritten
from treering.core.clock import day_of, to_datetime
from treering.core.query import SumQuery, day_start_us

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine

_RUN: Final = "run"


class GrowthDay(msgspec.Struct, frozen=True, kw_only=True):
    """What one UTC day brought of what is still there."""

    date: str
    bytes: int
    total_bytes: int
    """All that was there at its end."""
    events: int
    runs: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """The days that brought something, oldest first, and the trend of the last ``days_looked_at``."""

    days: tuple[GrowthDay, ...]
    total_bytes: int
    days_looked_at: int
    bytes_per_day: float
    in_30_days_bytes: int


def grow(engine: Engine, space: str, *, last_days: int, clock: Clock) -> Growth:
    """Stored bytes, events and runs by day; the trend is that of the last days, with what today brought."""
    today = day_of(clock.now_us())
    if is_unwritten(engine, space):
        return Growth(days=(), total_bytes=0, days_looked_at=last_days, bytes_per_day=0.0, in_30_days_bytes=0)
    grown = engine.stats(space).growth_bytes
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
