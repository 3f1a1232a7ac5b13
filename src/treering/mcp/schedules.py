"""Tools over schedules: make, list and (when it is allowed) cancel tasks for later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp_types import CallToolResult
from pydantic import Field

if TYPE_CHECKING:
    from treering.mcp.replies import Replies
    from treering.schedules.tasks import Task
    from treering.store import Store


class ScheduleTools:
    """Tasks that come up later. A worker (`treering worker`) does them."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store = store
        self._replies = replies

    def schedule_create(
        self,
        prompt: Annotated[
            str, Field(description="What to do when the time comes, as you would ask an agent")
        ],
        type: Annotated[
            Literal["cron", "interval", "once"],
            Field(description="cron: at the times of an expression; interval: every so many seconds; once"),
        ],
        value: Annotated[
            str,
            Field(description="cron: '0 8 * * *'; interval: seconds, '3600'; once: '2030-01-31T08:00'"),
        ],
        tz: Annotated[
            str, Field(description="IANA time zone for cron and once, such as Europe/Berlin")
        ] = "UTC",
        channel: Annotated[str, Field(description="Where the result is delivered, such as telegram")] = "",
        chat_id: Annotated[str, Field(description="To whom, in that channel")] = "",
    ) -> CallToolResult:
        """Schedule a task for later: by cron, every so many seconds, or once.

        The reply has its id and its next times; check them before you promise anything.
        """
        given: str | float = float(value) if type == "interval" and _is_number(value) else value
        task = self._store.schedules.schedule_task(
            prompt, type, given, tz=tz, channel=channel, chat_id=chat_id
        )
        times = [each.isoformat() for each in self._store.schedules.preview(task.id, 3)]
        return self._replies.whole(_about(task) | {"next_times": times})

    def schedule_list(
        self,
        *,
        all: Annotated[bool, Field(description="Also those that are over")] = False,
    ) -> CallToolResult:
        """List the scheduled tasks and when each is due next."""
        tasks = self._store.schedules.list_tasks(all=all)
        return self._replies.listing(
            "tasks", map(_about, tasks), facts={"total": len(tasks)}, more="there are more than fit here"
        )

    def schedule_cancel(
        self, task_id: Annotated[str, Field(description="The task's id: eight hex digits")]
    ) -> CallToolResult:
        """Cancel a scheduled task for good; what is running now goes on to its end."""
        return self._replies.whole(_about(self._store.schedules.cancel_task(task_id)))


def _about(task: Task) -> dict[str, Any]:
    return task.to_dict() | {"tz": task.tz, "status": task.status, "next_run": task.next_run}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
