"""The command line: ``treering <command>``, named like the Python API.

Data goes to stdout (``--json`` for programs), everything else to stderr. The exit code comes from the class
of the error; a `TreeringError` prints its message, never a traceback.

Start-up is fast because a command imports what it needs when it runs, and because only the requested command
is built: Typer would otherwise read the signature of every command, which takes longer than most of them run
(see `narrowed`).
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
    approvals,
    audit,
    doctor,
    effects,
    limits,
    maintenance,
    memory,
    replays,
    runs,
    sandbox,
    schedules,
    serve,
    state,
    threads,
    transfer,
    workspaces,
)
from treering.cli.options import Commands, with_list
from treering.errors import TreeringError


def narrowed(app: typer.Typer, line: Sequence[str]) -> typer.Typer:
    """Return the application with only the command that ``line`` names fully built.

    The other commands are placeholders with their names and help. **Invariant:** the user sees no
    difference: a placeholder is listed and suggested, but never run. A line that starts with an option gets
    the whole application, unless it has nothing but options.
    """
    if isinstance(app, Commands) and app.lists:
        line = with_list(line)
    if line and line[0].startswith("-") and not all(word.startswith("-") for word in line):
        return app
    name, rest = (line[0], line[1:]) if line else ("", ())
    narrow = copy.copy(app)
    narrow.registered_commands = [
        each if _name(each) == name else _placeholder(each) for each in app.registered_commands
    ]
    narrow.registered_groups = [
        _group(each, rest if _group_name(each) == name else None) for each in app.registered_groups
    ]
    return narrow


def _name(command: CommandInfo) -> str:
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-").lower()


def _group_name(group: TyperInfo) -> str:
    inner = group.typer_instance
    name = group.name if isinstance(group.name, str) else None
    return str(name or (inner.info.name if inner is not None else ""))


def _placeholder(command: CommandInfo) -> CommandInfo:
    def never_run() -> None:
        raise AssertionError(f"the placeholder of {_name(command)} was run")

    never_run.__name__ = getattr(command.callback, "__name__", "never_run")
    never_run.__doc__ = command.callback.__doc__
    placeholder = copy.copy(command)
    placeholder.callback = never_run
    return placeholder


def _group(group: TyperInfo, rest: Sequence[str] | None) -> TyperInfo:
    """Return a group narrowed to the command that ``rest`` names; without ``rest``, an empty one."""
    inner = group.typer_instance
    if inner is None:
        return group
    narrow = copy.copy(group)
    if rest is None:
        narrow.typer_instance = copy.copy(inner)
        narrow.typer_instance.registered_commands = []
        narrow.typer_instance.registered_groups = []
    else:
        narrow.typer_instance = narrowed(inner, rest)
    return narrow


_COMPLETION: Final = "_TREERING_COMPLETE"

app: Final = Commands(
    name="treering",
    help="""The persistence layer for AI agents.

Examples:
    treering ui                        the dashboard of the nearest store
    treering threads                   what agents said last
    treering tail                      what they do now
    treering runs --help               options and examples of a command
""",
    pretty_exceptions_enable=False,
)
for commands in (
    threads,
    workspaces,
    sandbox,
    runs,
    replays,
    approvals,
    audit,
    effects,
    limits,
    transfer,
    maintenance,
    memory,
    state,
    schedules,
    doctor,
    serve,
):
    commands.add_to(app)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer passes it by position
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
        # Completion needs every command.
        command = app if _COMPLETION in os.environ else narrowed(app, given)
        command(args=given, prog_name="treering", color=_wants_color())
    except TreeringError as error:
        _report(error, as_json="--json" in given)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as exiting:
        if not isinstance(exiting.__context__, BrokenPipeError):
            raise
        # The reader of our output closed the pipe (`| head`). Exit like a program ended by SIGPIPE, and keep
        # Python from complaining when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _wants_color() -> bool | None:
    """Whether to use colours: as NO_COLOR and FORCE_COLOR say, or else (``None``) on terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _report(error: TreeringError, *, as_json: bool) -> None:
    message = str(error) or (type(error).__doc__ or "").strip()
    if not as_json:
        typer.echo(f"treering: {message}", err=True)
        return
    import msgspec

    from treering.cli.console import clean_json

    problem = {"error": type(error).__name__, "message": message, "retryable": error.retryable}
    typer.echo(clean_json(msgspec.json.encode(problem)), err=True)
