"""``treering worker``: does scheduled tasks until it is told to stop, then lets the running ones end.

What a task does is a function of yours (``--handler package.module:function``, plain or ``async``), or any
program: it gets the prompt on its standard input and the rest in its environment, and what it prints is the
result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import say
from treering.cli.options import (
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.views.schedules.fires import Fire


def add_to(app: typer.Typer) -> None:
    """Put the command under the main one."""
    app.command("worker")(worker)


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
