"""When a task is due: a cron expression in a time zone, every so many seconds, or once.

Pure. A cron expression means the zone's own wall clock, as Debian's cron reads it: a time that the clock
jumps over in spring happens right after the jump, and one that comes twice in autumn happens the first time.
An interval is a fixed grid from the moment when the task was made. **Invariant:** `after` gives strictly
growing times behind the one given; asking again from any of them gives the same rest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from treering.core.clock import SECOND_US, from_datetime, to_datetime
from treering.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

TaskType = Literal["cron", "interval", "once"]

MAX_INTERVAL_SECONDS: Final = 100 * 366 * 86_400
_SHORTEST_US: Final = 1000
_LAST_YEAR: Final = 9000
_FIELDS: Final = "minute hour day-of-month month day-of-week, as in '0 8 * * *'"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When; ``value`` is the cron expression, the seconds, or the ISO time."""

    type: TaskType
    value: str
    tz: str = "UTC"
    anchor_us: int
    """Where an interval's grid begins."""

    def after(self, ts_us: int) -> Iterator[int]:
        """The times behind this one, in order."""
        if self.type == "cron":
            yield from _cron_after(self.value, self.tz, ts_us)
        elif self.type == "interval":
            step = self.interval_us
            at = self.anchor_us + max((ts_us - self.anchor_us) // step + 1, 1) * step
            while True:
                yield at
                at += step
        elif ts_us < (at := from_datetime(_moment(self.value, self.tz))):
            yield at

    def next_after(self, ts_us: int) -> int | None:
        """The first time behind this one; ``None`` when there is none."""
        return next(self.after(ts_us), None)

    @property
    def interval_us(self) -> int:
        """The length of an interval."""
        return round(float(self.value) * SECOND_US)

    def in_words(self) -> str:
        """For people: ``At 08:00 every day (Europe/Berlin)``."""
        if self.type == "cron":
            said = _cron_sim()(self.value, datetime(2000, 1, 1, tzinfo=UTC)).explain()
            return f"{said} ({self.tz})"
        return f"every {self.value} seconds" if self.type == "interval" else f"once, at {self.value}"


def checked_timing(type: str, value: Any, tz: str, *, now_us: int) -> Timing:
    """A timing that is due at least once from now on, or `InvalidInput` that says what is wrong."""
    zone(tz)
    if type == "cron":
        return _checked_cron(value, tz, now_us)
    if type == "interval":
        return Timing(type="interval", value=_checked_seconds(value), tz=tz, anchor_us=now_us)
    if type == "once":
        moment = value if isinstance(value, datetime) else _moment(value, tz)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone(tz))
        at_us = from_datetime(moment)
        if at_us <= now_us:
            raise InvalidInput(
                f"once at {moment.isoformat()} is in the past (now is {to_datetime(now_us).isoformat()}); "
                "give a time to come, or run it now"
            )
        return Timing(type="once", value=moment.isoformat(), tz=tz, anchor_us=now_us)
    raise InvalidInput(f"there is no task of type {type!r}; use one of {', '.join(get_args(TaskType))}")


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """A time zone by its IANA name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        raise InvalidInput(
            f"there is no time zone {name!r}; give an IANA name such as 'Europe/Berlin' or 'UTC' "
            "(where the system has none: pip install tzdata)"
        ) from None


def _checked_cron(value: Any, tz: str, now_us: int) -> Timing:
    if not isinstance(value, str) or len(value.split()) != 5:  # noqa: PLR2004 - as cron has it
        raise InvalidInput(f"cron expression {value!r} is not five fields: {_FIELDS}")
    timing = Timing(type="cron", value=" ".join(value.split()), tz=tz, anchor_us=now_us)
    try:
        found = timing.next_after(now_us)
    except _cron_error() as error:
        raise InvalidInput(f"cron expression {value!r} is not valid ({error}): {_FIELDS}") from None
    if found is None:
        raise InvalidInput(f"cron expression {value!r} never comes true; check its day and month")
    return timing


def _checked_seconds(value: Any) -> str:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"interval {value!r} is no number of seconds, as in 3600") from None
    if isinstance(value, bool) or not _SHORTEST_US / SECOND_US <= seconds <= MAX_INTERVAL_SECONDS:
        raise InvalidInput(
            f"interval {value!r} is not possible; give 0.001 to {MAX_INTERVAL_SECONDS} seconds, as in 3600"
        )
    return str(int(seconds)) if seconds.is_integer() else str(seconds)


def _moment(value: Any, tz: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{value!r} is no ISO time, as in 2026-02-24T10:00:00+00:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone(tz))


def _cron_after(expression: str, tz: str, ts_us: int) -> Iterator[int]:
    last = ts_us
    moments = _cron_sim()(expression, to_datetime(ts_us).astimezone(zone(tz)))
    for moment in moments:
        if moment.year > _LAST_YEAR:
            return
        at_us = from_datetime(moment)
        # In the hour that comes twice the expression's own clock is still at its first time.
        if at_us > last:
            last = at_us
            yield at_us


def _cron_sim() -> Any:
    try:
        from cronsim import CronSim
    except ModuleNotFoundError as error:
        raise MissingExtra("a cron schedule", "schedules") from error
    return CronSim


def _cron_error() -> type[Exception]:
    from cronsim import CronSimError

    return CronSimError
