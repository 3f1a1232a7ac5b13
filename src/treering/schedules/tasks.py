"""Tasks: what is to be done, when, and which of its fires are open.

A task is one ref, its whole state one record: the next time it is due, and every fire that is waiting or
running. Whatever happens to a task is a new record put in the place of the one that was read, so two workers
can never both believe that a fire is theirs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from msgspec import structs

from treering.core.clock import SECOND_US, from_datetime, to_datetime, to_iso
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, namespace_prefix, parse_scope
from treering.errors import Corrupt, InvalidInput, MissingExtra
from treering.threads.ids import TaskId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.records import Ref


# -----------------------------------------------------------------------------------------------------------
# When a task is due: a cron expression in a time zone, every so many seconds, or once.
#
# Pure. A cron expression means the zone's own wall clock, as Debian's cron reads it: a time that the clock
# jumps over in spring happens right after the jump, and one that comes twice in autumn happens the first
# time. An interval is a fixed grid from the moment when the task was made. **Invariant:** `after` gives
# strictly growing times behind the one given; asking again from any of them gives the same rest.


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


# -----------------------------------------------------------------------------------------------------------

CatchUp = Literal["skip", "once", "all"]
"""After a time without workers: nothing of what was missed, the newest of it, or all of it."""

Overlap = Literal["skip", "buffer", "allow"]
"""While a fire is open: leave the next one out, let one wait, or run them side by side."""

Status = Literal["active", "paused", "cancelled", "done"]

SCHEDULES: Final = "schedule/"
_METADATA: Final = b'"metadata":'


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to do with fires that come late, or while another one is open."""

    catch_up: CatchUp = "once"
    catch_up_max: int = 100
    """With ``all``: the newest this many."""
    window_seconds: float = 86_400.0
    """What was due longer ago is never caught up."""
    grace_seconds: float = 60.0
    """With ``skip``: how late a fire may be and still run."""
    overlap: Overlap = "skip"
    max_attempts: int = 5
    """How many workers may die on one fire before it is given up."""


class OpenFire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An occurrence that was not finished yet: it waits, or a worker has it."""

    at_us: int
    worker: str | None = None
    claimed_at_us: int = 0
    attempt: int = 0
    token: int = 0
    manual: bool = False


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scheduled task as it is now."""

    id: str
    prompt: str
    type: TaskType
    value: str
    """The cron expression, the seconds, or the ISO time."""
    tz: str = "UTC"
    channel: str = ""
    chat_id: str = ""
    namespace: str = ""
    created_at_us: int
    last_run_us: int | None = None
    next_run_us: int | None = None
    status: Status = "active"
    policy: Policy = Policy()
    fires: tuple[OpenFire, ...] = ()
    runs: int = 0
    claims: int = 0
    """How often any of its fires was claimed: the last fencing token."""
    last_manual_us: int = 0
    metadata: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether it is still going to run."""
        return self.status == "active"

    @property
    def created_at(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.created_at_us)

    @property
    def last_run(self) -> str | None:
        """When a worker last began with it, ISO 8601 with offset."""
        return None if self.last_run_us is None else to_iso(self.last_run_us)

    @property
    def next_run(self) -> str | None:
        """When it is due next, ISO 8601 with offset; ``None`` when it is not going to run."""
        return to_iso(self.next_run_us) if self.active and self.next_run_us is not None else None

    @property
    def thread_id(self) -> str:
        """The thread that its fires write to."""
        return TaskId(self.id).thread_id

    @property
    def timing(self) -> Timing:
        """When it is due."""
        return Timing(type=self.type, value=self.value, tz=self.tz, anchor_us=self.created_at_us)

    @property
    def scope(self) -> str:
        """What it is forgotten with."""
        return str(Scope(self.namespace, "schedule", self.id))

    def to_dict(self) -> dict[str, Any]:
        """As CianaParrot's ``scheduled_tasks.json`` has it."""
        return {
            "id": self.id,
            "prompt": self.prompt,
            "type": self.type,
            "value": self.value,
            "channel": self.channel,
            "chat_id": self.chat_id,
            "created_at": self.created_at,
            "last_run": self.last_run,
            "active": self.active,
        }


def task_ref(task_id: str, namespace: str) -> str:
    """The name of the ref that holds a task."""
    return f"{SCHEDULES}{namespace_prefix(namespace)}{task_id}"


def ref_of_scope(scope: str) -> str:
    """The same, from the scope that its events have."""
    found = parse_scope(scope)
    return task_ref(found.id, found.namespace)


def encoded(task: Task) -> bytes:
    """A task for its ref. Metadata may hold what plain JSON cannot, the rest is written the quick way."""
    data = msgspec.json.encode(structs.replace(task, metadata={}) if task.metadata else task)
    if not task.metadata:
        return data
    return encode_json({**msgspec.json.decode(data), "metadata": task.metadata})


def decoded(ref: Ref) -> Task:
    """A task out of its ref."""
    try:
        if _METADATA in ref.value:
            return msgspec.convert(decode_json(ref.value), Task)
        return msgspec.json.decode(ref.value, type=Task)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(
            f"the task at {ref.name!r} cannot be read ({error}); restore it from a backup"
        ) from None
