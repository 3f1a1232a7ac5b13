"""Scheduled tasks and the outcomes of their occurrences."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from treering.core.query import Unreadable
from treering.schedules.schedules import Schedules
from treering.schedules.tasks import CatchUp, OccurrenceReport, Overlap, Task
from treering.server.endpoints import Call, endpoint


class ScheduleQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace of the task."""

    namespace: str = ""


class ScheduleListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks to list; ``all`` includes done and cancelled ones."""

    namespace: str = ""
    all: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class ScheduledTask(Struct, frozen=True, kw_only=True):
    """A task and its next due times."""

    task: Task
    next: tuple[datetime, ...]


class ScheduleList(Struct, frozen=True, kw_only=True):
    """Tasks, oldest first."""

    schedules: tuple[ScheduledTask, ...]
    next_cursor: str | None
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class OccurrencesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of occurrences."""

    namespace: str = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Annotated[int, Meta(ge=0, le=10**9)] = 0


class OccurrenceList(Struct, frozen=True, kw_only=True):
    """Finished and skipped occurrences, newest first."""

    occurrences: tuple[OccurrenceReport, ...]
    next_cursor: int | None


class NewTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task to schedule: by a cron expression, at an interval in seconds, or once at an ISO 8601 time."""

    prompt: str
    type: Literal["cron", "interval", "once"]
    value: str | float
    tz: str = "UTC"
    channel: str = ""
    chat_id: str = ""
    catch_up: CatchUp = "once"
    overlap: Overlap = "skip"
    metadata: dict[str, Any] = {}


@endpoint("GET", "/schedules", tag="schedules")
def list_schedules(call: Call[ScheduleListQuery, None]) -> ScheduleList:
    """List active and paused tasks."""
    schedules = _schedules(call)
    query = call.query
    page = schedules.task_page(all=query.all, first=query.limit, cursor=query.cursor)
    return ScheduleList(
        schedules=tuple(_with_next(schedules, task) for task in page.tasks), next_cursor=page.cursor
    )


@endpoint("POST", "/schedules", tag="schedules", status=201)
def create_schedule(call: Call[ScheduleQuery, NewTask]) -> ScheduledTask:
    """Schedule a task."""
    body = call.body
    schedules = _schedules(call)
    task = schedules.schedule_task(
        body.prompt,
        body.type,
        body.value,
        channel=body.channel,
        chat_id=body.chat_id,
        tz=body.tz,
        catch_up=body.catch_up,
        overlap=body.overlap,
        metadata=body.metadata,
    )
    return _with_next(schedules, task)


@endpoint("GET", "/schedules/{id}", tag="schedules")
def get_schedule(call: Call[ScheduleQuery, None]) -> ScheduledTask:
    """Return a task."""
    schedules = _schedules(call)
    return _with_next(schedules, schedules.load(call.path["id"]))


@endpoint("GET", "/schedules/{id}/occurrences", tag="schedules")
def list_occurrences(call: Call[OccurrencesQuery, None]) -> OccurrenceList:
    """List the finished and skipped occurrences of a task, newest first."""
    query = call.query
    schedules = _schedules(call)
    schedules.load(call.path["id"])
    end = query.cursor + query.limit
    found = list(islice(schedules.occurrences(call.path["id"]), query.cursor, end + 1))
    return OccurrenceList(
        occurrences=tuple(found[: query.limit]), next_cursor=end if len(found) > query.limit else None
    )


@endpoint("POST", "/schedules/{id}/pause", tag="schedules")
def pause_schedule(call: Call[ScheduleQuery, None]) -> ScheduledTask:
    """Pause a task until it is resumed."""
    schedules = _schedules(call)
    return _with_next(schedules, schedules.pause(call.path["id"]))


@endpoint("POST", "/schedules/{id}/resume", tag="schedules")
def resume_schedule(call: Call[ScheduleQuery, None]) -> ScheduledTask:
    """Resume a paused task at its next occurrence."""
    schedules = _schedules(call)
    return _with_next(schedules, schedules.resume(call.path["id"]))


@endpoint("POST", "/schedules/{id}/run", tag="schedules")
def run_schedule(call: Call[ScheduleQuery, None]) -> ScheduledTask:
    """Have a worker run the task once as soon as possible."""
    schedules = _schedules(call)
    return _with_next(schedules, schedules.run_now(call.path["id"]))


@endpoint("DELETE", "/schedules/{id}", tag="schedules")
def cancel_schedule(call: Call[ScheduleQuery, None]) -> ScheduledTask:
    """Cancel a task for good."""
    schedules = _schedules(call)
    return _with_next(schedules, schedules.cancel_task(call.path["id"]))


ENDPOINTS: Final = (
    list_schedules,
    create_schedule,
    get_schedule,
    list_occurrences,
    pause_schedule,
    resume_schedule,
    run_schedule,
    cancel_schedule,
)


def _schedules(call: Call[Any, Any]) -> Schedules:
    return call.store.schedules.in_namespace(call.query.namespace)


def _with_next(schedules: Schedules, task: Task) -> ScheduledTask:
    return ScheduledTask(task=task, next=tuple(schedules.preview(task.id, 3)))
