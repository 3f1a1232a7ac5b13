"""Commands for scheduled tasks: list, add, show, cancel, pause, resume, run-now, preview, fires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, rows, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)
from treering.cli.telling import as_json as json_text
from treering.cli.telling import one_line, raw, when

if TYPE_CHECKING:
    from treering.views.schedules.fires import FireReport
    from treering.views.schedules.tasks import Task

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="The id of a task.")]
TimeZoneOption = Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA time zone.")]
Verb = Literal["cancel_task", "pause", "resume", "run_now"]


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    group = typer.Typer(
        help="Scheduled tasks: cron, interval, once.", no_args_is_help=True, rich_markup_mode=None
    )
    for name, command in (("list", list_tasks), ("add", add), ("show", show_task), ("preview", preview)):
        group.command(name)(command)
    group.command("cancel", help="Never run a task again.")(_verb("cancel_task", "cancelled"))
    group.command("pause", help="Do not run a task until it is resumed.")(_verb("pause", "paused"))
    group.command("resume", help="Go on with a paused task.")(_verb("resume", "goes on"))
    group.command("run-now", help="Let a worker run a task once, at once.")(
        _verb("run_now", "waits for a worker")
    )
    group.command("fires")(fires)
    app.add_typer(group, name="schedules")


@takes_store
def list_tasks(
    *,
    all: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List tasks, oldest first."""
    with place.existing() as opened:
        tasks = opened.schedules.in_namespace(user_namespace).list_tasks(all=all)
    table = [("id", "when", "next run", "last run", "status", "prompt")]
    table += [
        (
            task.id,
            clean(task.timing.in_words()),
            when(task.next_run or "-"),
            when(task.last_run or "-"),
            task.status,
            one_line(clean(task.prompt), 40),
        )
        for task in tasks
    ]
    show([_task(task) for task in tasks], rows(table), as_json=as_json)


@takes_store
def add(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to do.")],
    *,
    cron: Annotated[str | None, typer.Option(metavar="LINE", help="'0 8 * * *'")] = None,
    every: Annotated[float | None, typer.Option(metavar="SECONDS", help="At intervals.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Once, at an ISO time.")] = None,
    tz: TimeZoneOption = "UTC",
    channel: Annotated[str, typer.Option(metavar="NAME", help="Where the result goes.")] = "",
    chat_id: Annotated[str, typer.Option(metavar="ID", help="Which chat there.")] = "",
    catch_up: Annotated[
        str, typer.Option(metavar="WHAT", help="Of what was missed run skip (none), once or all.")
    ] = "once",
    overlap: Annotated[
        str, typer.Option(metavar="WHAT", help="While one is open: skip, buffer or allow.")
    ] = "skip",
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Schedule a task."""
    from treering.errors import InvalidInput

    given: list[tuple[str, Any]] = [
        (kind, value)
        for kind, value in (("cron", cron), ("interval", every), ("once", at))
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidInput("say when with one of --cron, --every and --at")
    ((kind, value),) = given
    with place.existing() as opened:
        task = opened.schedules.in_namespace(user_namespace).schedule_task(
            prompt,
            kind,
            value,
            channel=channel,
            chat_id=chat_id,
            tz=tz,
            catch_up=catch_up,  # pyright: ignore[reportArgumentType] - it checks
            overlap=overlap,  # pyright: ignore[reportArgumentType] - it checks
        )
    line = f"{task.id}  {task.timing.in_words()}, next {when(task.next_run or '-')}"
    show(_task(task), [clean(line)], as_json=as_json)


@takes_store
def show_task(
    task_id: TaskArgument,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show one task."""
    with place.existing() as opened:
        task = opened.schedules.in_namespace(user_namespace).get(task_id)
    facts = {
        "when": task.timing.in_words(),
        "status": task.status,
        "next run": task.next_run or "-",
        "last run": task.last_run or "-",
        "runs": str(task.runs),
        "open fires": str(len(task.fires)),
        "channel": f"{task.channel} {task.chat_id}".strip() or "-",
        "policy": f"catch up {task.policy.catch_up}, overlap {task.policy.overlap}",
        "thread": task.thread_id,
        "prompt": task.prompt,
    }
    lines = [f"{name:<10}  {clean(fact)}" for name, fact in facts.items()]
    show(_task(task), [typer.style(task.id, bold=True), *lines], as_json=as_json)


@takes_store
def preview(
    what: Annotated[str, typer.Argument(metavar="TASK|LINE", help="A task's id, or a cron line.")],
    *,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="How many.")] = 5,
    tz: TimeZoneOption = "UTC",
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show when a task, or a cron line, is due next."""
    if " " in what.strip():
        from treering.api import open as open_store

        with open_store("memory:") as nowhere:
            times = nowhere.schedules.preview_cron(what, count, tz=tz)
    else:
        with place.existing() as opened:
            times = opened.schedules.in_namespace(user_namespace).preview(what, count)
    shown = [each.isoformat() for each in times]
    show(shown, shown, as_json=as_json)


@takes_store
def fires(
    task_id: Annotated[str | None, typer.Argument(metavar="TASK", help="Only of this task.")] = None,
    *,
    last: Annotated[int, typer.Option(metavar="N", min=0, help="How many, newest first; 0: all.")] = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what became of each time that a task was due."""
    from itertools import islice

    with place.existing() as opened:
        found = opened.schedules.in_namespace(user_namespace).fires(task_id)
        reports = list(islice(found, last or None))
    table = [("task", "due", "outcome", "seconds", "what")]
    table += [
        (
            clean(each.task_id),
            when(each.scheduled_at),
            each.outcome if each.count == 1 else f"{each.outcome} x{each.count}",
            "" if each.outcome == "skipped" else f"{each.duration_us / 1e6:.2f}",
            one_line(clean(each.reason or ("" if each.result is None else json_text(each.result)))),
        )
        for each in reports
    ]
    show([_report(each) for each in reports], rows(table), as_json=as_json)


def _verb(verb: Verb, said: str) -> Any:
    @takes_store
    def command(
        task_id: TaskArgument,
        *,
        place: StorePlace,
        user_namespace: UserNamespaceOption = "",
        as_json: JsonOption = False,
    ) -> None:
        with place.existing() as opened:
            task = getattr(opened.schedules.in_namespace(user_namespace), verb)(task_id)
        show(_task(task), [f"{clean(task.id)} {said}"], as_json=as_json)

    return command


def _task(task: Task) -> dict[str, Any]:
    return {
        **task.to_dict(),
        "tz": task.tz,
        "status": task.status,
        "next_run": task.next_run,
        "runs": task.runs,
        "open_fires": len(task.fires),
        "catch_up": task.policy.catch_up,
        "overlap": task.policy.overlap,
        "thread_id": task.thread_id,
        "metadata": raw(task.metadata),
    }


def _report(report: FireReport) -> dict[str, Any]:
    import msgspec

    return {
        **msgspec.structs.asdict(report),
        "scheduled_at": report.scheduled_at,
        "result": raw(report.result),
    }
