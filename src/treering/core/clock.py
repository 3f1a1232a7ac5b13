"""Clocks and time conversion. Stored times are integer microseconds UTC.

On an object of the API, ``<name>_us`` is such an integer and ``<name>`` the same time as an aware datetime.
In JSON, ``<name>`` is ISO 8601 text.

No other module asks the system for the time: clocks are passed in, so that tests can use a `ManualClock` and
decide exactly when a lease expires or a day begins.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, overload

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """A source of the current time."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The system clock."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000


class ManualClock:
    """A clock that moves only when `advance` is called."""

    def __init__(self, now_us: int = 1_700_000_000 * SECOND_US) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self._now_us

    def advance(self, *, seconds: float) -> None:
        """Move the clock forward."""
        self._now_us += round(seconds * SECOND_US)


def day_of(ts_us: int) -> int:
    """Return the UTC day of a time, in days since 1970-01-01."""
    return ts_us // DAY_US


@overload
def to_datetime(ts_us: int) -> datetime: ...
@overload
def to_datetime(ts_us: int | None) -> datetime | None: ...
def to_datetime(ts_us: int | None) -> datetime | None:
    """Return an aware UTC datetime, exact to the microsecond; ``None`` for no time."""
    return None if ts_us is None else _EPOCH + timedelta(microseconds=ts_us)


def from_datetime(moment: datetime) -> int:
    """Return the microseconds of a datetime; a naive one is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


@overload
def to_iso(ts_us: int) -> str: ...
@overload
def to_iso(ts_us: int | None) -> str | None: ...
def to_iso(ts_us: int | None) -> str | None:
    """Return ISO 8601 text with a UTC offset, as JSON holds a time; ``None`` for no time."""
    return None if ts_us is None else to_datetime(ts_us).isoformat()
