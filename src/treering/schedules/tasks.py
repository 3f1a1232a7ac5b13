"""Tasks and their occurrences: the stored record, and the events of the journal.

A task is one ref whose value is its whole state: when it is due next, and every occurrence that is waiting
or running. Each change replaces the version of the record that was read, so two workers can never both
believe that an occurrence is theirs. An occurrence is claimed (again, if the worker that had it dies) and
finished, or it is skipped. Each of these is an event in the scope and the thread of the task; occurrences
skipped in a row share one event with a count.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import structs

from treering.core.batch import Event, Listing
from treering.core.clock import DAY_US, SECOND_US, to_datetime, to_iso
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import Scope, namespace_prefix, parse_scope, thread_key
from treering.errors import Corrupt, Unencodable
from treering.schedules.timing import TaskType, Timing, time_zone
from treering.threads.chat_ids import TaskId

if TYPE_CHECKING:
    from treering.core.batch import Draft, Expect
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

CatchUp = Literal["skip", "once", "all"]
"""Which of the occurrences missed while no worker ran are run later: none, the newest, or all."""

Overlap = Literal["skip", "buffer", "allow"]
"""While an occurrence is open: skip the next one, let one wait, or run them side by side."""

Status = Literal["active", "paused", "cancelled", "done"]

Outcome = Literal["ok", "error", "skipped"]

TASK_REFS: Final = "schedule/"
"""Prefix of the names of task refs."""
TASKS: Final = "schedules"
"""The list of these refs, by the time at which the tasks were created."""

CHANGED: Final = "schedule.changed"
OPENED: Final = "occurrence.opened"
CLAIMED: Final = "occurrence.claimed"
FINISHED: Final = "occurrence.finished"
SKIPPED: Final = "occurrence.skipped"
LOST: Final = "occurrence.lost"
REPORT_KINDS: Final = (FINISHED, SKIPPED)
TASK_KINDS: Final = (CHANGED, OPENED, CLAIMED, FINISHED, SKIPPED, LOST)
"""Every kind of event that accompanies a change of a task's record."""

_METADATA_KEY: Final = b'"metadata":'
_MAX_REPR: Final = 2000


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to do with occurrences that are late, or due while another one is open."""

    catch_up: CatchUp = "once"
    catch_up_max: int = 100
    """With ``catch_up="all"``, run at most this many missed occurrences, the newest ones."""
    window_seconds: float | None = None
    """Occurrences that were due longer ago than this are never caught up. ``None``: a day for tasks that
    repeat, and no limit for one that runs once."""
    grace_seconds: float = 60.0
    """An occurrence that starts later than this is marked as late; with ``catch_up="skip"`` it is not run."""
    overlap: Overlap = "skip"
    max_attempts: int = 5
    """Give up an occurrence after this many workers died on it."""


class OpenOccurrence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An unfinished occurrence: waiting, or (if ``worker`` is set) claimed by a worker."""

    at_us: int
    worker: str | None = None
    claimed_at_us: int = 0
    attempt: int = 0
    token: int = 0
    manual: bool = False

    @property
    def at(self) -> datetime:
        """When it is due, in UTC."""
        return to_datetime(self.at_us)

    @property
    def claimed_at(self) -> datetime | None:
        """When a worker claimed it, in UTC; ``None`` while it waits."""
        return to_datetime(self.claimed_at_us or None)


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A scheduled task and its current state."""

    id: str
    prompt: str
    type: TaskType
    value: str
    """The cron expression, the seconds, or the ISO 8601 time."""
    tz: str = "UTC"
    channel: str = ""
    chat_id: str = ""
    namespace: str = ""
    created_at_us: int
    last_run_us: int | None = None
    next_run_us: int | None = None
    status: Status = "active"
    policy: Policy = Policy()
    open_occurrences: tuple[OpenOccurrence, ...] = ()
    runs: int = 0
    claims: int = 0
    """How many claims there have been; also the last fencing token."""
    last_manual_us: int = 0
    metadata: dict[str, Any] = {}

    @property
    def active(self) -> bool:
        """Whether the task can become due."""
        return self.status == "active"

    @property
    def created_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.created_at_us)

    @property
    def last_run(self) -> datetime | None:
        """When a worker last started the task, in UTC."""
        return to_datetime(self.last_run_us)

    @property
    def last_manual(self) -> datetime | None:
        """When it was last requested with `run_now`, in UTC."""
        return to_datetime(self.last_manual_us or None)

    @property
    def next_run(self) -> datetime | None:
        """When the task is due next, in UTC; ``None`` if it will not run again."""
        return to_datetime(self.next_run_us) if self.active and self.next_run_us is not None else None

    @property
    def thread_id(self) -> str:
        """The thread that belongs to the task: ``scheduler_{id}``."""
        return TaskId(self.id).thread_id

    @property
    def window_us(self) -> int | None:
        """How long ago an occurrence may have been due to be caught up; ``None`` for no limit."""
        seconds = self.policy.window_seconds
        if seconds is None:
            return None if self.type == "once" else DAY_US
        return round(seconds * SECOND_US)

    @property
    def timing(self) -> Timing:
        """The schedule, which computes due times."""
        return Timing(type=self.type, value=self.value, tz=self.tz, anchor_us=self.created_at_us)

    @property
    def scope(self) -> str:
        """The scope that `forget` erases."""
        return str(Scope(self.namespace, "schedule", self.id))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of CianaParrot's ``scheduled_tasks.json``."""
        return {
            "id": self.id,
            "prompt": self.prompt,
            "type": self.type,
            "value": self.value,
            "channel": self.channel,
            "chat_id": self.chat_id,
            "created_at": to_iso(self.created_at_us),
            "last_run": to_iso(self.last_run_us),
            "active": self.active,
        }


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence of a task, as passed to the handler."""

    task_id: str
    prompt: str
    channel: str
    chat_id: str
    namespace: str
    scheduled_at: datetime
    """When it was due, in the time zone of the task."""
    scheduled_at_us: int
    attempt: int
    """1, or higher if earlier workers died on it; part of the work may then have been done."""
    token: int
    """Fencing token, higher with every claim of the task. A system that is handed the token can refuse a
    lower one than it has seen."""
    thread_id: str
    """``scheduler_{task_id}``, the thread to write to."""
    run_id: str | None = None
    """The run that records the handler."""
    late_seconds: float = 0.0
    """How long after it was due it started; 0 within the policy's ``grace_seconds``."""
    manual: bool = False
    metadata: dict[str, Any] = {}


class OccurrenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one occurrence, or of ``count`` occurrences skipped in a row."""

    task_id: str
    outcome: Outcome
    scheduled_at_us: int
    last_scheduled_at_us: int
    count: int = 1
    reason: str = ""
    """Why it was skipped, or the error."""
    result: Any = None
    attempt: int = 0
    token: int = 0
    run_id: str | None = None
    ended_at_us: int
    duration_us: int = 0
    late_us: int = 0
    """How long after it was due it started; 0 within the policy's ``grace_seconds``."""
    manual: bool = False

    @property
    def scheduled_at(self) -> datetime:
        """When it was due, in UTC."""
        return to_datetime(self.scheduled_at_us)

    @property
    def last_scheduled_at(self) -> datetime:
        """When the last of ``count`` skipped occurrences was due; otherwise the same as `scheduled_at`."""
        return to_datetime(self.last_scheduled_at_us)

    @property
    def ended_at(self) -> datetime:
        """When it ended, in UTC."""
        return to_datetime(self.ended_at_us)


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive occurrences that were skipped, and why."""

    first_us: int
    last_us: int
    count: int
    reason: str
    manual: bool = False
    """Requested with `run_now`, not due by the schedule."""


def task_ref(task_id: str, namespace: str) -> str:
    """Return the name of a task's ref."""
    return f"{TASK_REFS}{namespace_prefix(namespace)}{task_id}"


def task_ref_of_scope(scope: str) -> str:
    """Return the name of a task's ref, given the scope of its events."""
    parsed = parse_scope(scope)
    return task_ref(parsed.id, parsed.namespace)


def put_task(draft: Draft, task: Task, *, expect: Expect) -> None:
    """Add a change of a task's record to a batch."""
    listing = Listing(
        list=TASKS, namespace=task.namespace, at_us=max(task.created_at_us, 0), status=task.status
    )
    name = task_ref(task.id, task.namespace)
    draft.set_ref(name, encode_task(task), scope=task.scope, expect=expect, listing=listing)


def encode_task(task: Task) -> bytes:
    """Encode a task for its ref."""
    # Only metadata may hold what plain JSON cannot; everything else takes the faster encoder.
    data = msgspec.json.encode(structs.replace(task, metadata={}) if task.metadata else task)
    if not task.metadata:
        return data
    return encode_json({**msgspec.json.decode(data), "metadata": task.metadata})


def decode_task(ref: Ref) -> Task:
    """Decode the task that a ref holds."""
    try:
        if _METADATA_KEY in ref.value:
            return msgspec.convert(decode_json(ref.value), Task)
        return msgspec.json.decode(ref.value, type=Task)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"the task at {ref.name!r} is corrupt ({error}); restore it from a backup") from None


def occurrence_of(task: Task, claimed: OpenOccurrence, run_id: str | None) -> Occurrence:
    """Build the occurrence that the handler receives."""
    late_us = claimed.claimed_at_us - claimed.at_us
    is_late = late_us > task.policy.grace_seconds * SECOND_US
    return Occurrence(
        task_id=task.id,
        prompt=task.prompt,
        channel=task.channel,
        chat_id=task.chat_id,
        namespace=task.namespace,
        scheduled_at=to_datetime(claimed.at_us).astimezone(time_zone(task.tz)),
        scheduled_at_us=claimed.at_us,
        attempt=claimed.attempt,
        token=claimed.token,
        thread_id=task.thread_id,
        run_id=run_id,
        late_seconds=late_us / SECOND_US if is_late else 0.0,
        manual=claimed.manual,
        metadata=task.metadata,
    )


def add_event(
    draft: Draft,
    task: Task,
    kind: str,
    now_us: int,
    data: dict[str, Any],
    *,
    number: int = 0,
    **columns: Any,
) -> None:
    """Add an event about a task; ``number`` must differ between events of one kind in one batch."""
    draft.event(
        Event(
            id=f"{draft.id}:{kind}:{number}",
            kind=kind,
            ts_us=now_us,
            scope=task.scope,
            name=task.id,
            thread=thread_key(task.thread_id, task.namespace),
            data=encode_json(data),
            **columns,
        )
    )


def add_skip_events(
    draft: Draft, task: Task, skips: tuple[Skip, ...], now_us: int, *, start: int = 0
) -> None:
    """Add an event for each skip, numbered from ``start``."""
    for number, skip in enumerate(skips, start):
        add_event(draft, task, SKIPPED, now_us, structs.asdict(skip), number=number, status="skipped")


def add_finish_event(
    draft: Draft,
    task: Task,
    occurrence: Occurrence,
    *,
    started_us: int,
    ended_us: int,
    result: Any,
    error: str | None,
    number: int = 0,
) -> None:
    """Add the event that records the result or the error of an occurrence."""
    data: dict[str, Any] = {
        "at_us": occurrence.scheduled_at_us,
        "attempt": occurrence.attempt,
        "token": occurrence.token,
    }
    if occurrence.manual:
        data["manual"] = True
    if occurrence.late_seconds:
        data["late_us"] = round(occurrence.late_seconds * SECOND_US)
    if error is not None:
        data["error"] = error
    add_event(
        draft,
        task,
        FINISHED,
        ended_us,
        data,
        number=number,
        run=occurrence.run_id,
        status="ok" if error is None else "error",
        duration_us=max(ended_us - started_us, 0),
        body=None if result is None else draft.put(_encode_result(result), scope=task.scope),
    )


def read_report(engine: Engine, space: str, record: Record) -> OccurrenceReport:
    """Build the report of a `FINISHED` or `SKIPPED` event."""
    event = record.event
    data: dict[str, Any] = decode_json(event.data or b"{}")
    if event.kind == SKIPPED:
        return OccurrenceReport(
            task_id=event.name or "",
            outcome="skipped",
            scheduled_at_us=data["first_us"],
            last_scheduled_at_us=data["last_us"],
            count=data["count"],
            reason=data["reason"],
            ended_at_us=event.ts_us,
            manual=data["manual"],
        )
    return OccurrenceReport(
        task_id=event.name or "",
        outcome="ok" if event.status == "ok" else "error",
        scheduled_at_us=data["at_us"],
        last_scheduled_at_us=data["at_us"],
        reason=data.get("error", ""),
        result=None if event.body is None else decode(engine.get(space, [event.body])[0]),
        attempt=data["attempt"],
        token=data["token"],
        run_id=event.run,
        ended_at_us=event.ts_us,
        duration_us=event.duration_us or 0,
        late_us=data.get("late_us", 0),
        manual=data.get("manual", False),
    )


def _encode_result(result: Any) -> Content:
    try:
        return encode(result, keep_order=True)
    except Unencodable:
        return encode(repr(result)[:_MAX_REPR])
