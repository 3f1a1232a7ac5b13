"""Importing the scheduled tasks of a CianaParrot agent: ``scheduled_tasks.json``.

Tasks keep their ids. What was due while the file lay there is not caught up: a task goes on with its next
occurrence from now. A task that the store knows already stays as the store has it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from treering.core.clock import SystemClock, from_datetime
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.importers.folders import read_json
from treering.importers.report import FileReport
from treering.views.schedules.tasks import Task, task_ref
from treering.views.schedules.timing import TaskType, Timing, checked_timing

if TYPE_CHECKING:
    from pathlib import Path

    from treering.importers.report import Progress
    from treering.store import Store


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the file has it."""

    id: str
    prompt: str
    type: TaskType
    value: str | int | float
    channel: str = ""
    chat_id: str | int = ""
    created_at: datetime | None = None
    last_run: datetime | None = None
    active: bool = True


def load_tasks(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import an array of tasks; one that is not valid is left out and named."""
    read: Any = read_json(path)
    if not isinstance(read, list):
        raise InvalidInput(f"{path} is not an array of tasks; nothing was imported")
    entries = cast("list[Any]", read)
    now_us = SystemClock().now_us()
    new = known = 0
    notes: list[str] = []
    for done, plain in enumerate(entries, 1):
        try:
            task = _task(plain, now_us)
        except (msgspec.ValidationError, InvalidInput) as error:
            notes.append(f"task {done} is not valid: {error}")
            continue
        name = task_ref(task.id, task.namespace)
        if name in store.engine.refs(store.space, [name]):
            known += 1
        else:
            new += 1
            if not dry_run:
                store.schedules.put(task)
        if on_progress is not None:
            on_progress(done, len(entries))
    return [
        FileReport(
            path=str(path),
            holds="scheduled tasks",
            found=len(entries),
            new=new,
            known=known,
            left_out=len(notes),
            note="; ".join(notes[:5]),
        )
    ]


def _task(plain: Any, now_us: int) -> Task:
    told = msgspec.convert(plain, _Told)
    created_us = now_us if told.created_at is None else from_datetime(told.created_at)
    is_over = not told.active
    if told.type == "once" and not is_over:
        # Once in the past is what a store would refuse; here it was missed, and a worker shall say so.
        timing = Timing(type="once", value=_iso(told.value), anchor_us=created_us)
        following = timing.next_after(created_us)
    else:
        checked = checked_timing(told.type, told.value, "UTC", now_us=created_us)
        timing = msgspec.structs.replace(checked, anchor_us=created_us)
        following = timing.next_after(now_us)
    return Task(
        id=check_id(told.id, "task id"),
        prompt=told.prompt,
        type=timing.type,
        value=timing.value,
        channel=told.channel,
        chat_id=str(told.chat_id),
        created_at_us=created_us,
        last_run_us=None if told.last_run is None else from_datetime(told.last_run),
        next_run_us=None if is_over else following,
        status="active" if told.active else "done" if told.type == "once" and told.last_run else "cancelled",
    )


def _iso(value: Any) -> str:
    try:
        return datetime.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise InvalidInput(f"{value!r} is no ISO time") from None
