"""The command line: ``treering <verb>``, the same words as in Python.

Data goes to stdout (``--json`` for programs), everything else to stderr. The exit code comes from the class
of the error; a `TreeringError` is a message and never a traceback. Nothing but Typer is imported before a
command runs, and only that command is built, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from treering.cli import (
    care,
    costs,
    doctor,
    exports,
    guards,
    hook,
    imports,
    mcp,
    memory,
    run,
    runs,
    schedules,
    serve,
    state,
    tail,
    threads,
    ui,
    worker,
    workspaces,
)
from treering.cli.narrowing import narrowed
from treering.errors import TreeringError

_COMPLETION: Final = "_TREERING_COMPLETE"

app: Final = typer.Typer(
    name="treering",
    help="The persistence layer for AI agents: look after a store.",
    no_args_is_help=True,
    rich_markup_mode=None,  # a plain help page: rich would take longer than all the rest
    pretty_exceptions_enable=False,
)
for commands in (
    threads,
    workspaces,
    run,
    runs,
    costs,
    guards,
    exports,
    imports,
    hook,
    care,
    memory,
    state,
    schedules,
    worker,
    tail,
    doctor,
    mcp,
    serve,
    ui,
):
    commands.add_to(app)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - how Typer calls it
    if wanted:
        import treering

        typer.echo(f"treering {treering.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Completion looks at every command, a line at one.
        (app if _COMPLETION in os.environ else narrowed(app, given))(args=given)
    except TreeringError as error:
        _report(error, as_json="--json" in given)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        # Whoever read our output has had enough, which Typer and Rich take for a failure. Other programs end
        # by SIGPIPE then; do not complain about it while exiting either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _report(error: TreeringError, *, as_json: bool) -> None:
    message = str(error) or (type(error).__doc__ or "").strip()
    if not as_json:
        typer.echo(f"treering: {message}", err=True)
        return
    import msgspec

    from treering.cli.console import clean_json

    what = {"error": type(error).__name__, "message": message, "retryable": error.retryable}
    typer.echo(clean_json(msgspec.json.encode(what)), err=True)


if __name__ == "__main__":
    main()
