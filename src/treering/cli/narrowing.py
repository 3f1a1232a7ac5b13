"""Only what is asked for is built: the rest of the commands stand in with their names and help.

Typer reads the signature of every command before it looks at the first word of the line, which for all of
ours takes longer than most of them run. **Invariant:** what a person sees is the same as without narrowing;
a stand-in is listed and suggested, and never run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import typer
from typer.models import CommandInfo, TyperInfo


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
