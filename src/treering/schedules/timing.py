"""When a task is due: a cron expression in a time zone, a fixed interval, or once.

Pure. A cron expression is read against the wall clock of its time zone, with the daylight-saving rules of
Debian's cron: a time skipped in spring runs right after the jump, a time repeated in autumn runs the first
time only. An interval is a fixed grid anchored at the creation of the task. **Invariant:** `Timing.after`
yields strictly increasing times later than its argument, and restarting it from any of them yields the same
remainder.
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
_MIN_INTERVAL_SECONDS: Final = 0.001
_MAX_YEAR: Final = 9000
_CRON_FIELD_COUNT: Final = 5
_CRON_FIELDS: Final = "minute hour day-of-month month day-of-week, as in '0 8 * * *'"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of a task. ``value`` is a cron expression, a number of seconds, or an ISO 8601 time."""

    type: TaskType
    value: str
    tz: str = "UTC"
    anchor_us: int
    """Start of the grid of an interval."""

    @property
    def anchor(self) -> datetime:
        """Start of the grid of an interval, in UTC."""
        return to_datetime(self.anchor_us)

    def after(self, ts_us: int) -> Iterator[int]:
        """Iterate over the due times later than ``ts_us``, in order."""
        if self.type == "cron":
            yield from _cron_times(self.value, self.tz, ts_us)
        elif self.type == "interval":
            step = self.interval_us
            at_us = self.anchor_us + max((ts_us - self.anchor_us) // step + 1, 1) * step
            while True:
                yield at_us
                at_us += step
        elif ts_us < (at_us := from_datetime(_parse_time(self.value, self.tz))):
            yield at_us

    def next_after(self, ts_us: int) -> int | None:
        """Return the first due time later than ``ts_us``, or ``None``."""
        return next(self.after(ts_us), None)

    @property
    def interval_us(self) -> int:
        """Length of the interval in microseconds."""
        return round(float(self.value) * SECOND_US)

    def describe(self) -> str:
        """Return the schedule in English, such as ``At 08:00 every day (Europe/Berlin)``."""
        if self.type == "cron":
            text = _cron_sim()(self.value, datetime(2000, 1, 1, tzinfo=UTC)).explain()
            return f"{text} ({self.tz})"
        return f"every {self.value} seconds" if self.type == "interval" else f"once, at {self.value}"


def parse_timing(type: str, value: Any, tz: str, *, now_us: int) -> Timing:
    """Validate a schedule.

    Raises:
        InvalidInput: the schedule is malformed, or it has no due time after ``now_us``.
    """
    time_zone(tz)
    if type == "cron":
        return _parse_cron(value, tz, now_us)
    if type == "interval":
        return Timing(type="interval", value=_parse_seconds(value), tz=tz, anchor_us=now_us)
    if type == "once":
        at = value if isinstance(value, datetime) else _parse_time(value, tz)
        if at.tzinfo is None:
            at = at.replace(tzinfo=time_zone(tz))
        if from_datetime(at) <= now_us:
            raise InvalidInput(
                f"once at {at.isoformat()} is in the past (now is {to_datetime(now_us).isoformat()}); "
                "give a future time, or create the task and run it now"
            )
        return Timing(type="once", value=at.isoformat(), tz=tz, anchor_us=now_us)
    raise InvalidInput(f"unknown task type {type!r}; use one of {', '.join(get_args(TaskType))}")


@lru_cache(maxsize=256)
def time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        raise InvalidInput(
            f"unknown time zone {name!r}; use an IANA name such as 'Europe/Berlin' or 'UTC' "
            "(on a system without time zone data: pip install tzdata)"
        ) from None


def _parse_cron(value: Any, tz: str, now_us: int) -> Timing:
    if not isinstance(value, str) or len(value.split()) != _CRON_FIELD_COUNT:
        raise InvalidInput(f"cron expression {value!r} does not have five fields: {_CRON_FIELDS}")
    timing = Timing(type="cron", value=" ".join(value.split()), tz=tz, anchor_us=now_us)
    _cron_sim()  # say which extra is missing, before its error class is needed
    try:
        first_us = timing.next_after(now_us)
    except _cron_error() as error:
        raise InvalidInput(f"cron expression {value!r} is not valid ({error}): {_CRON_FIELDS}") from None
    if first_us is None:
        raise InvalidInput(f"cron expression {value!r} never matches; check its day and month")
    return timing


def _parse_seconds(value: Any) -> str:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"interval {value!r} is not a number of seconds, such as 3600") from None
    if isinstance(value, bool) or not _MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS:
        raise InvalidInput(
            f"interval {value!r} is out of range; "
            f"use {_MIN_INTERVAL_SECONDS} to {MAX_INTERVAL_SECONDS} seconds, such as 3600"
        )
    return str(int(seconds)) if seconds.is_integer() else str(seconds)


def _parse_time(value: Any, tz: str) -> datetime:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{value!r} is not an ISO 8601 time, such as 2026-02-24T10:00:00+00:00") from None
    return at if at.tzinfo is not None else at.replace(tzinfo=time_zone(tz))


def _cron_times(expression: str, tz: str, ts_us: int) -> Iterator[int]:
    last_us = ts_us
    for at in _cron_sim()(expression, to_datetime(ts_us).astimezone(time_zone(tz))):
        if at.year > _MAX_YEAR:
            return
        at_us = from_datetime(at)
        # In the hour that autumn repeats, CronSim may yield a time that has already passed.
        if at_us > last_us:
            last_us = at_us
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
