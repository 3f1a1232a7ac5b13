"""Commands for scheduled tasks: list, add, show, cancel, pause, resume, run-now, preview, fires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from treering.cli.console import clean, rows, say, show
from treering.cli.options import JsonOption, StorePlace, UserNamespaceOption, takes_store
from treering.cli.render import as_json as json_text
from treering.cli.render import one_line, raw, when

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.schedules.fires import Fire, FireReport
    from treering.schedules.tasks import Task


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
    app.command("worker")(worker)


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


# -----------------------------------------------------------------------------------------------------------
# ``treering worker``: does scheduled tasks until it is told to stop, then lets the running ones end.
#
# What a task does is a function of yours (``--handler package.module:function``, plain or ``async``), or any
# program: it gets the prompt on its standard input and the rest in its environment, and what it prints is the
# result.


@takes_store
def worker(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PROGRAM ARGS...]", help="Run this for each fire.")
    ] = None,
    *,
    handler: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="Call this function for each fire.")
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="How many fires at once.")] = 8,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long after its death others take over.")
    ] = 30.0,
    place: StorePlace,
) -> None:
    """Do scheduled tasks, until SIGTERM or Ctrl-C.

    Those that run then are let to their end.
    """
    import logging
    import signal

    from treering.errors import InvalidInput

    if (handler is None) == (not program):
        raise InvalidInput(
            "say what to do: either --handler package.module:function, or -- program arguments"
        )
    called = _function(handler) if handler is not None else _program(program or [])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with place.existing() as opened:
        working = opened.schedules.worker(called, concurrency=concurrency, lease_seconds=lease)

        def stop(_number: int, _frame: Any) -> None:
            working.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stop)
        say(f"working on {opened.url}; stop with Ctrl-C")
        working.run()
    say("stopped; nothing is left running")


def _function(name: str) -> Callable[[Fire], Any]:
    import sys
    from importlib import import_module

    from treering.errors import InvalidInput

    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"--handler {name!r} cannot be loaded: {error}; give package.module:function"
        ) from None
    if not callable(found):
        raise InvalidInput(f"--handler {name!r} is no function")
    return found


def _program(command: list[str]) -> Callable[[Fire], str]:
    import os
    import subprocess

    def run(fire: Fire) -> str:
        told = {
            "TREERING_TASK_ID": fire.task_id,
            "TREERING_CHANNEL": fire.channel,
            "TREERING_CHAT_ID": fire.chat_id,
            "TREERING_THREAD_ID": fire.thread_id,
            "TREERING_SCHEDULED_AT": fire.scheduled_at.isoformat(),
            "TREERING_ATTEMPT": str(fire.attempt),
            "TREERING_TOKEN": str(fire.token),
        }
        done = subprocess.run(  # noqa: S603 - what the user asked for
            command,
            input=fire.prompt,
            capture_output=True,
            text=True,
            env=os.environ | told,
            check=False,
            start_new_session=True,  # Ctrl-C is for the worker, which lets its programs end
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {last}")
        return done.stdout

    return run
