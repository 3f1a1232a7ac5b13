"""The command line: ``treering <verb>``, the same words as in Python.

Data goes to stdout (``--json`` for programs), everything else to stderr. The exit code comes from the class
of the error; a `TreeringError` is a message and never a traceback. Nothing but Typer is imported before a
command runs, and only that command is built, so that ``--help`` answers at once.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer.models import CommandInfo, TyperInfo

from treering.cli import (
    costs,
    doctor,
    hook,
    limits,
    maintenance,
    mcp,
    memory,
    runs,
    sandbox,
    schedules,
    serve,
    state,
    tail,
    threads,
    transfer,
    workspaces,
)
from treering.errors import TreeringError

# -----------------------------------------------------------------------------------------------------------
# Only what is asked for is built: the rest of the commands stand in with their names and help.
#
# Typer reads the signature of every command before it looks at the first word of the line, which for all of
# ours takes longer than most of them run. **Invariant:** what a person sees is the same as without narrowing;
# a stand-in is listed and suggested, and never run.


def narrowed(app: typer.Typer, line: Sequence[str]) -> typer.Typer:
    """The same application, in which only the command that a line begins with can be run.

    A line that begins with an option is left to the whole application, unless options are all it has.
    """
    if line and line[0].startswith("-") and not all(word.startswith("-") for word in line):
        return app
    name, rest = (line[0], line[1:]) if line else ("", ())
    found = copy.copy(app)
    found.registered_commands = [
        each if _name(each) == name else _stand_in(each) for each in app.registered_commands
    ]
    found.registered_groups = [
        _group(each, rest if _group_name(each) == name else None) for each in app.registered_groups
    ]
    return found


def _name(command: CommandInfo) -> str:
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-").lower()


def _group_name(group: TyperInfo) -> str:
    inner = group.typer_instance
    name = group.name if isinstance(group.name, str) else None
    return str(name or (inner.info.name if inner is not None else ""))


def _stand_in(command: CommandInfo) -> CommandInfo:
    def unbuilt() -> None:
        raise AssertionError(f"{_name(command)} was not asked for, and is run")

    unbuilt.__name__ = getattr(command.callback, "__name__", "unbuilt")
    unbuilt.__doc__ = command.callback.__doc__
    found = copy.copy(command)
    found.callback = unbuilt
    return found


def _group(group: TyperInfo, rest: Sequence[str] | None) -> TyperInfo:
    """A group with the command that the rest of the line names; with no rest, one that is only listed."""
    inner = group.typer_instance
    if inner is None:
        return group
    found = copy.copy(group)
    if rest is None:
        found.typer_instance = copy.copy(inner)
        found.typer_instance.registered_commands = []
        found.typer_instance.registered_groups = []
    else:
        found.typer_instance = narrowed(inner, rest)
    return found


# -----------------------------------------------------------------------------------------------------------

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
    sandbox,
    runs,
    costs,
    limits,
    transfer,
    hook,
    maintenance,
    memory,
    state,
    schedules,
    tail,
    doctor,
    mcp,
    serve,
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
