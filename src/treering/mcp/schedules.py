"""Schedule tools: create, list and (if allowed) cancel tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from mcp_types import CallToolResult
from pydantic import Field

if TYPE_CHECKING:
    from treering.mcp.replies import Replies
    from treering.schedules.tasks import Task
    from treering.store import Store


_LISTED_TASKS: Final = 500


class ScheduleTools:
    """Tools for scheduled tasks, which a worker (`treering worker`) runs."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store = store
        self._replies = replies

    def schedule_create(
        self,
        prompt: Annotated[
            str, Field(description="What to do when the task is due, as a request to an agent")
        ],
        type: Annotated[
            Literal["cron", "interval", "once"],
            Field(
                description="cron: by a cron expression; interval: every so many seconds; once: at one time"
            ),
        ],
        value: Annotated[
            str,
            Field(description="cron: '0 8 * * *'; interval: seconds, '3600'; once: '2030-01-31T08:00'"),
        ],
        tz: Annotated[
            str, Field(description="IANA time zone for cron and once, such as Europe/Berlin")
        ] = "UTC",
        channel: Annotated[
            str, Field(description="Channel that the result is sent to, such as telegram")
        ] = "",
        chat_id: Annotated[str, Field(description="Chat in that channel")] = "",
    ) -> CallToolResult:
        """Schedule a task: by cron, at an interval, or once.

        The reply has its id and next due times; check them before you confirm anything to the user.
        """
        parsed: str | float = float(value) if type == "interval" and _is_number(value) else value
        task = self._store.schedules.schedule_task(
            prompt, type, parsed, tz=tz, channel=channel, chat_id=chat_id
        )
        times = [each.isoformat() for each in self._store.schedules.preview(task.id, 3)]
        return self._replies.whole(_describe(task) | {"next_times": times})

    def schedule_list(
        self,
        *,
        all: Annotated[bool, Field(description="Include done and cancelled tasks")] = False,
    ) -> CallToolResult:
        """List scheduled tasks and when each is due next."""
        page = self._store.schedules.task_page(all=all, first=_LISTED_TASKS)
        more = "more tasks did not fit"
        facts = {} if page.cursor is None else {"cut": more}
        return self._replies.listing("tasks", map(_describe, page.tasks), facts=facts, more=more)

    def schedule_cancel(
        self, task_id: Annotated[str, Field(description="Id of the task: eight hex digits")]
    ) -> CallToolResult:
        """Cancel a scheduled task for good; a running occurrence is allowed to finish."""
        return self._replies.whole(_describe(self._store.schedules.cancel_task(task_id)))


def _describe(task: Task) -> dict[str, Any]:
    return task.to_dict() | {"tz": task.tz, "status": task.status, "next_run": task.next_run}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
