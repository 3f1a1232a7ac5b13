"""Generate docs/reference/cli.md from the Typer application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pages import HEAD, cell, table

from treering.cli.options import split_examples

INTRO: Final = """# Command line

Every command with its arguments, options and examples, as `treering COMMAND --help` shows them. See the
[guide](../cli.md) for examples, and [errors](errors.md) for exit codes.

**Completion.** `treering --install-completion` installs completion for your shell (bash, zsh, fish,
PowerShell); `treering --show-completion` prints what it would add.
"""


def page() -> str:
    from typer.main import get_command

    from treering.cli.main import app

    parts = [HEAD, INTRO]
    for words, command in _commands(get_command(app), ("treering",)):
        parts += _command(words, command)
    return "\n".join(parts).rstrip() + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    if len(path) > 1:
        yield path, command
    for name, each in inner.items():
        yield from _commands(each, (*path, name))


def _command(words: tuple[str, ...], command: Any) -> list[str]:
    is_group = hasattr(command, "commands")
    lines = [f"{'##' if len(words) == 2 else '###'} {' '.join(words)}", ""]
    if not is_group:
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        result = [_shown(each) for each in arguments]
        lines += ["```", " ".join([*words, *result, "[OPTIONS]"]), "```", ""]
    description, examples = split_examples((command.help or "").strip())
    lines += [re.sub(r"\n[ \t]*", "\n", description.strip()), ""]
    if is_group:
        return lines
    rows = [row for each in command.params if (row := _row(each)) is not None]
    lines += [*table(("", "", "default"), rows), ""]
    return [*lines, "```sh", *examples, "```", ""] if examples else lines


def _row(each: Any) -> tuple[str, str, str] | None:
    if each.name == "help":
        return None
    help_text = cell(each.help or "")
    if each.param_type_name == "argument":
        return f"`{_shown(each)}`", help_text, ""
    names = ", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts))
    if not each.is_flag:
        names += f" {each.metavar or each.name.upper()}"
    if each.envvar:
        help_text += f" (`{each.envvar}`)"
    return names, help_text, _default(each)


def _shown(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _default(option: Any) -> str:
    if option.is_flag or option.default in (None, "", ()) or callable(option.default):
        return "required" if option.required else ""
    return f"`{option.default}`"
