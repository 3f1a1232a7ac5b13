"""Schedules: tasks that come up later, and what became of them."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from treering.schedules.fires import FireReport
from treering.schedules.schedules import Schedules
from treering.schedules.tasks import CatchUp, Overlap, Task
from treering.server.endpoints import Call, endpoint


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose schedules."""

    namespace: str = ""


class TasksQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks; ``all`` also shows those that are over."""

    namespace: str = ""
    all: bool = False


class TaskLine(Struct, frozen=True, kw_only=True):
    """A task and when it is due next."""

    task: Task
    next: tuple[datetime, ...]


class Tasks(Struct, frozen=True, kw_only=True):
    """Tasks, oldest first."""

    schedules: tuple[TaskLine, ...]


class FiresQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many."""

    namespace: str = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Annotated[int, Meta(ge=0, le=10**9)] = 0


class Fires(Struct, frozen=True, kw_only=True):
    """What became of each occurrence, newest first."""

    fires: tuple[FireReport, ...]
    next_cursor: int | None


class NewTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task: a cron expression, a number of seconds, or one moment."""

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
def list_schedules(call: Call[TasksQuery, None]) -> Tasks:
    """The tasks that are going to run or paused."""
    schedules = _schedules(call)
    return Tasks(schedules=tuple(_line(schedules, each) for each in schedules.list_tasks(all=call.query.all)))


@endpoint("POST", "/schedules", tag="schedules", status=201)
def create_schedule(call: Call[Where, NewTask]) -> TaskLine:
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
    return _line(schedules, task)


@endpoint("GET", "/schedules/{id}", tag="schedules")
def get_schedule(call: Call[Where, None]) -> TaskLine:
    """One task."""
    schedules = _schedules(call)
    return _line(schedules, schedules.get(call.path["id"]))


@endpoint("GET", "/schedules/{id}/fires", tag="schedules")
def list_fires(call: Call[FiresQuery, None]) -> Fires:
    """What became of a task's occurrences, newest first."""
    query = call.query
    schedules = _schedules(call)
    schedules.get(call.path["id"])
    found = list(islice(schedules.fires(call.path["id"]), query.cursor, query.cursor + query.limit + 1))
    more = len(found) > query.limit
    return Fires(fires=tuple(found[: query.limit]), next_cursor=query.cursor + query.limit if more else None)


@endpoint("POST", "/schedules/{id}/pause", tag="schedules")
def pause_schedule(call: Call[Where, None]) -> TaskLine:
    """Do not run it until it is resumed."""
    schedules = _schedules(call)
    return _line(schedules, schedules.pause(call.path["id"]))


@endpoint("POST", "/schedules/{id}/resume", tag="schedules")
def resume_schedule(call: Call[Where, None]) -> TaskLine:
    """Go on with the next occurrence."""
    schedules = _schedules(call)
    return _line(schedules, schedules.resume(call.path["id"]))


@endpoint("POST", "/schedules/{id}/run", tag="schedules")
def run_schedule(call: Call[Where, None]) -> TaskLine:
    """Let a worker run it once at once."""
    schedules = _schedules(call)
    return _line(schedules, schedules.run_now(call.path["id"]))


@endpoint("DELETE", "/schedules/{id}", tag="schedules")
def cancel_schedule(call: Call[Where, None]) -> TaskLine:
    """Never run it again."""
    schedules = _schedules(call)
    return _line(schedules, schedules.cancel_task(call.path["id"]))


ENDPOINTS: Final = (
    list_schedules,
    create_schedule,
    get_schedule,
    list_fires,
    pause_schedule,
    resume_schedule,
    run_schedule,
    cancel_schedule,
)


def _schedules(call: Call[Any, Any]) -> Schedules:
    return call.store.schedules.in_namespace(call.query.namespace)


def _line(schedules: Schedules, task: Task) -> TaskLine:
    return TaskLine(task=task, next=tuple(schedules.preview(task.id, 3)))
