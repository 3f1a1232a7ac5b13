"""Tools with several actions: ``schedules`` (list, create, cancel) and ``approvals`` (list, answer).

A model reads the description of every tool, so what is rarely used shares one. `combine` makes a tool of the
actions that a server allows, with the arguments of these and no others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args

from mcp_types import CallToolResult
from pydantic import Field

from treering.core.clock import to_iso
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from treering.approvals.approvals import Approval
    from treering.mcp.replies import Replies
    from treering.schedules.tasks import Task
    from treering.store import Store

_LISTED_TASKS: Final = 500
_LISTED_APPROVALS: Final = 200
Action = Callable[..., CallToolResult]


def combine(name: str, actions: Mapping[str, Action]) -> Action:
    """Return a tool that does one of several actions, of which the first is the default.

    Its arguments are those of all actions. One that an action requires is checked when it is called.
    """
    parameters: dict[str, inspect.Parameter] = {}
    for action, function in actions.items():
        for each in inspect.signature(function, eval_str=True).parameters.values():
            kind, field = get_args(each.annotation)
            is_required = each.default is inspect.Parameter.empty
            described = Field(description=f"With {action}: {field.description}")
            parameters[each.name] = inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if is_required else each.default,
                annotation=Annotated[kind | None if is_required else kind, described],
            )

    def tool(*, action: str = next(iter(actions)), **given: Any) -> CallToolResult:
        function = actions[action]
        accepted = inspect.signature(function).parameters.values()
        missing = [
            each.name
            for each in accepted
            if each.default is inspect.Parameter.empty and given.get(each.name) is None
        ]
        if missing:
            raise InvalidInput(f"{name} with action={action!r} needs {', '.join(missing)}")
        return function(**{each.name: given[each.name] for each in accepted if each.name in given})

    choice: Any = cast("Any", Literal)[tuple(actions)]
    about = "; ".join(f"{action}: {inspect.getdoc(function)}" for action, function in actions.items())
    first = inspect.signature(tool).parameters["action"]
    described = Annotated[choice, Field(description="What to do")]
    tool.__name__, tool.__doc__ = name, about
    cast("Any", tool).__signature__ = inspect.Signature(
        [first.replace(annotation=described), *parameters.values()], return_annotation=CallToolResult
    )
    return tool


class ScheduleTools:
    """Tools for scheduled tasks, which a worker (`treering worker`) runs."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store = store
        self._replies = replies

    def create(
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
        return self._replies.whole(_describe_task(task) | {"next_times": times})

    def list(
        self,
        *,
        all: Annotated[bool, Field(description="Include done and cancelled tasks")] = False,
    ) -> CallToolResult:
        """List scheduled tasks and when each is due next."""
        page = self._store.schedules.task_page(all=all, first=_LISTED_TASKS)
        more = "more tasks did not fit"
        facts = {} if page.cursor is None else {"cut": more}
        return self._replies.listing("tasks", map(_describe_task, page.tasks), facts=facts, more=more)

    def cancel(
        self, task_id: Annotated[str, Field(description="Id of the task: eight hex digits")]
    ) -> CallToolResult:
        """Cancel a scheduled task for good; a running occurrence is allowed to finish."""
        return self._replies.whole(_describe_task(self._store.schedules.cancel_task(task_id)))


class ApprovalTools:
    """Tools for the questions that agents put to people."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store = store
        self._replies = replies

    def list(
        self,
        status: Annotated[
            Literal["open", "answered", "closed"],
            Field(description="open: waits for a person; answered: its agent has not gone on; closed"),
        ] = "open",
    ) -> CallToolResult:
        """List the questions that agents put to people: the call, who may answer, and until when."""
        found = self._store.approvals.list(status=status, last=_LISTED_APPROVALS)
        return self._replies.listing(
            "approvals", map(_describe_approval, found), facts={}, more="more did not fit"
        )

    def answer(
        self,
        approval_id: Annotated[str, Field(description="Id of the question, as listed")],
        decision: Annotated[
            Literal["approve", "deny", "edit"], Field(description="edit: approve with other arguments")
        ],
        by: Annotated[str, Field(description="The name of the person who has decided")],
        reason: Annotated[str, Field(description="Why, in the person's words")] = "",
        arguments: Annotated[
            dict[str, Any] | None, Field(description="With edit: the arguments to call with")
        ] = None,
    ) -> CallToolResult:
        """Pass on the answer of a person to a question. Never decide yourself: ask the person first."""
        answered = self._store.approvals.answer(
            approval_id, decision, by=by, reason=reason or None, value=arguments
        )
        return self._replies.whole(_describe_approval(answered))


def _describe_task(task: Task) -> dict[str, Any]:
    return task.to_dict() | {
        "tz": task.tz,
        "status": task.status,
        "next_run": task.next_run and task.next_run.isoformat(),
    }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _describe_approval(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "status": approval.status,
        "thread": approval.thread_id,
        "namespace": approval.namespace,
        "agent": approval.agent,
        "question": approval.text,
        "calls": [{"tool": each.tool, "arguments": each.arguments} for each in approval.calls]
        or approval.question,
        "asked_at": to_iso(approval.asked_at_us),
        "who": list(approval.who),
        "until": to_iso(approval.due_at_us),
        "votes": [
            {"by": each.by, "decision": each.decision, "reason": each.reason} for each in approval.votes
        ],
        "needs": approval.policy.quorum,
        "decided_by": list(approval.decided_by),
    }
