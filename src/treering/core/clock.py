"""Time, passed in. Stored times are integer microseconds UTC; nothing in treering asks the system directly.

A test that hands over a `ManualClock` is exact: it decides when a lease ends or a day begins.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where the time comes from."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_us: int = 1_700_000_000 * SECOND_US) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        """The time that was set."""
        return self._now_us

    def advance(self, *, seconds: float) -> None:
        """Move forward."""
        self._now_us += round(seconds * SECOND_US)


def day_of(ts_us: int) -> int:
    """The UTC day of a time, counted from 1970-01-01."""
    return ts_us // DAY_US


def to_datetime(ts_us: int) -> datetime:
    """An aware UTC datetime, exact to the microsecond."""
    return _EPOCH + timedelta(microseconds=ts_us)


def from_datetime(moment: datetime) -> int:
    """Microseconds of an aware datetime; a naive one is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_iso(ts_us: int) -> str:
    """ISO 8601 with offset."""
    return to_datetime(ts_us).isoformat()
