"""``treering schedules`` and ``treering worker``: manage scheduled tasks, and run them.

The worker calls a function (``--handler package.module:function``, plain or ``async``), or any program: it
gets the prompt on standard input and the rest in its environment, and its standard output is the result.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from treering.cli.console import as_json as json_text
from treering.cli.console import clean, limited, one_line, plain, raw, rows, say, show, status_text, when
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    load_object,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.schedules.schedules import Schedules
    from treering.schedules.tasks import Occurrence, OccurrenceReport, Task


TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="The id of a task.")]
TimeZoneOption = Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA time zone.")]
Verb = Literal["cancel_task", "pause", "resume", "run_now"]

_VERBS: Final[tuple[tuple[str, Verb, str, str], ...]] = (
    ("cancel", "cancel_task", "cancelled", "Cancel a task for good."),
    ("pause", "pause", "paused", "Pause a task until it is resumed."),
    ("resume", "resume", "resumed", "Resume a paused task."),
    ("run-now", "run_now", "is waiting for a worker", "Have a worker run a task once, as soon as possible."),
)


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = Commands(help="Scheduled tasks: cron, interval, once.")
    for name, command in (("list", list_tasks), ("add", add), ("show", show_task), ("preview", preview)):
        group.command(name)(command)
    for name, verb, outcome, summary in _VERBS:
        example = f"{summary}\n\nExamples:\n    treering schedules {name} task_01k9"
        group.command(name, help=example)(_verb(verb, outcome))
    group.command("occurrences")(list_occurrences)
    app.add_typer(group, name="schedules")
    app.command("worker")(worker)


@takes_store
def list_tasks(
    *,
    all: Annotated[bool, typer.Option("--all", help="Include done and cancelled tasks.")] = False,
    limit: LimitOption = 200,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List scheduled tasks, oldest first.

    Examples:
        treering schedules list
        treering schedules list --all --limit 0
    """
    with place.existing() as opened:
        schedules = opened.schedules.in_namespace(user_namespace)
        known = (
            schedules.task_page(all=all, first=limit + 1).tasks if limit else schedules.list_tasks(all=all)
        )
        tasks = limited(known, limit)
        values = [_task(schedules, task) for task in tasks] if as_json else []
    table = [("id", "when", "next run", "last run", "status", "prompt")]
    table += [
        (
            task.id,
            clean(task.timing.describe()),
            when(task.next_run or "-"),
            when(task.last_run or "-"),
            status_text(task.status),
            one_line(clean(task.prompt), 40),
        )
        for task in tasks
    ]
    show(values, rows(table), as_json=as_json)


@takes_store
def add(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text passed to the handler.")],
    *,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help="At the times of a cron expression, such as '0 8 * * *'."),
    ] = None,
    every: Annotated[float | None, typer.Option(metavar="SECONDS", help="At an interval.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="Once, at an ISO 8601 time.")] = None,
    tz: TimeZoneOption = "UTC",
    channel: Annotated[
        str, typer.Option(metavar="NAME", help="Channel for the result, such as telegram.")
    ] = "",
    chat_id: Annotated[str, typer.Option(metavar="ID", help="Chat in that channel.")] = "",
    catch_up: Annotated[
        str,
        typer.Option(
            metavar="WHAT", help="Missed occurrences to run: skip (none), once (the newest) or all."
        ),
    ] = "once",
    overlap: Annotated[
        str, typer.Option(metavar="WHAT", help="While an occurrence is open: skip, buffer or allow the next.")
    ] = "skip",
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Schedule a task.

    Examples:
        treering schedules add "Send the report" --cron "0 8 * * *" --tz Europe/Berlin
        treering schedules add "Check the inbox" --every 600
    """
    from treering.errors import InvalidInput

    given: list[tuple[str, Any]] = [
        (kind, value)
        for kind, value in (("cron", cron), ("interval", every), ("once", at))
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidInput("give exactly one of --cron, --every and --at")
    ((kind, value),) = given
    with place.existing() as opened:
        schedules = opened.schedules.in_namespace(user_namespace)
        task = schedules.schedule_task(
            prompt,
            kind,
            value,
            channel=channel,
            chat_id=chat_id,
            tz=tz,
            catch_up=catch_up,  # pyright: ignore[reportArgumentType] - validated there
            overlap=overlap,  # pyright: ignore[reportArgumentType] - validated there
        )
        value = _task(schedules, task)
    line = f"{task.id}  {task.timing.describe()}, next {when(task.next_run or '-')}"
    show(value, [clean(line)], as_json=as_json)


@takes_store
def show_task(
    task_id: TaskArgument,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a task.

    Examples:
        treering schedules show task_01k9
    """
    with place.existing() as opened:
        schedules = opened.schedules.in_namespace(user_namespace)
        task = schedules.load(task_id)
        value = _task(schedules, task)
    facts = {
        "when": task.timing.describe(),
        "status": task.status,
        "next run": when(task.next_run or "-"),
        "last run": when(task.last_run or "-"),
        "runs": str(task.runs),
        "open": str(len(task.open_occurrences)),
        "channel": f"{task.channel} {task.chat_id}".strip() or "-",
        "policy": f"catch up {task.policy.catch_up}, overlap {task.policy.overlap}",
        "thread": task.thread_id,
        "prompt": task.prompt,
    }
    lines = [f"{name:<10}  {clean(fact)}" for name, fact in facts.items()]
    show(value, [typer.style(task.id, bold=True), *lines], as_json=as_json)


@takes_store
def preview(
    what: Annotated[str, typer.Argument(metavar="TASK", help="The id of a task, or a cron expression.")],
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Number of due times.")] = 5,
    tz: TimeZoneOption = "UTC",
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the next due times of a task or a cron expression.

    Examples:
        treering schedules preview "0 8 * * 1-5" --tz Europe/Berlin --limit 3
    """
    if " " in what.strip():
        from treering.api import open as open_store

        with open_store("memory:") as scratch:
            times = scratch.schedules.preview_cron(what, limit, tz=tz)
    else:
        with place.existing() as opened:
            times = opened.schedules.in_namespace(user_namespace).preview(what, limit)
    show([each.isoformat() for each in times], [when(each) for each in times], as_json=as_json)


@takes_store
def list_occurrences(
    task_id: Annotated[str | None, typer.Argument(metavar="TASK", help="Only this task.")] = None,
    *,
    limit: LimitOption = 20,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List finished and skipped occurrences, newest first.

    Examples:
        treering schedules occurrences
        treering schedules occurrences task_01k9 --limit 5
    """
    with place.existing() as opened:
        found = opened.schedules.in_namespace(user_namespace).occurrences(task_id)
        reports = limited(found, limit)
    table = [("task", "due", "outcome", "seconds", "result")]
    table += [
        (
            clean(each.task_id),
            when(each.scheduled_at),
            status_text(each.outcome, _outcome(each)),
            "" if each.outcome == "skipped" else f"{each.duration_us / 1e6:.2f}",
            one_line(clean(each.reason or ("" if each.result is None else json_text(each.result)))),
        )
        for each in reports
    ]
    show([_report(each) for each in reports], rows(table), as_json=as_json)


def _verb(verb: Verb, outcome: str) -> Any:
    @takes_store
    def command(
        task_id: TaskArgument,
        *,
        place: StorePlace,
        user_namespace: UserNamespaceOption = "",
        as_json: JsonOption = False,
    ) -> None:
        with place.existing() as opened:
            schedules = opened.schedules.in_namespace(user_namespace)
            value = _task(schedules, task := getattr(schedules, verb)(task_id))
        show(value, [f"{clean(task.id)} {outcome}"], as_json=as_json)

    return command


def _task(schedules: Schedules, task: Task) -> dict[str, Any]:
    return {"task": plain(task), "next": [each.isoformat() for each in schedules.preview(task.id, 3)]}


def _outcome(report: OccurrenceReport) -> str:
    many = "" if report.count == 1 else f" x{report.count}"
    late = f", {timedelta(seconds=report.late_us // 1_000_000)} late" if report.late_us else ""
    return f"{report.outcome}{many}{late}"


def _report(report: OccurrenceReport) -> dict[str, Any]:
    return {**plain(report), "result": raw(report.result)}


@takes_store
def worker(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- PROGRAM ARGS...]", help="Run this program for each occurrence."),
    ] = None,
    *,
    handler: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Call this function for each occurrence.")
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Occurrences to run at once.")] = 8,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long after this worker dies others take over.")
    ] = 30.0,
    place: StorePlace,
) -> None:
    """Run scheduled tasks until SIGTERM or Ctrl-C.

    Waits for running occurrences before it exits.

    Examples:
        treering worker --handler mypackage.tasks:handle
        treering worker --concurrency 2 -- ./handle.sh
    """
    import logging
    import signal

    from treering.errors import InvalidInput

    if (handler is None) == (not program):
        raise InvalidInput(
            "give either --handler package.module:function, or -- and a program with its arguments"
        )
    called = _function(handler) if handler is not None else _program(program or [])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with place.existing() as opened:
        working = opened.schedules.worker(called, concurrency=concurrency, lease_seconds=lease)

        def stop(_number: int, _frame: Any) -> None:
            working.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stop)
        say(f"worker started on {opened.url}; stop with Ctrl-C")
        working.run()
    say("worker stopped")


def _function(name: str) -> Callable[[Occurrence], Any]:
    from treering.errors import InvalidInput

    found = load_object(name, "--handler")
    if not callable(found):
        raise InvalidInput(f"--handler {name!r} is not callable")
    return found


def _program(command: list[str]) -> Callable[[Occurrence], str]:
    import os
    import subprocess

    def run(occurrence: Occurrence) -> str:
        variables = {
            "TREERING_TASK_ID": occurrence.task_id,
            "TREERING_CHANNEL": occurrence.channel,
            "TREERING_CHAT_ID": occurrence.chat_id,
            "TREERING_THREAD_ID": occurrence.thread_id,
            "TREERING_SCHEDULED_AT": occurrence.scheduled_at.isoformat(),
            "TREERING_LATE_SECONDS": f"{occurrence.late_seconds:g}",
            "TREERING_ATTEMPT": str(occurrence.attempt),
            "TREERING_TOKEN": str(occurrence.token),
        }
        done = subprocess.run(  # noqa: S603 - the user's own program
            command,
            input=occurrence.prompt,
            capture_output=True,
            text=True,
            env=os.environ | variables,
            check=False,
            start_new_session=True,  # Ctrl-C is for the worker, which waits for its programs
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output on stderr"])[-1]
            raise RuntimeError(f"{command[0]} exited with {done.returncode}: {last}")
        return done.stdout

    return run
