"""How ``treering --help`` reads: commands in groups, and examples behind each one.

The examples are the last part of a command's docstring, below a line ``Examples:``, so they stand beside
the code that they show; a test parses each of them. `PANELS` lists every command once, in the order of the
page. No rich here: importing it would take longer than most commands run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

PANELS: Final = {
    "Threads": "threads log show diff fork rewind compact resume transcript delete check-deploy",
    "Runs": "runs tree timeline tail search step replay rerun reruns test compare cost performance cancel",
    "Files": "snapshot snapshots restore ls cat download secrets",
    "Sandboxes": "run checkpoints output",
    "Data of agents": "memory state schedules worker effects approvals budgets alerts",
    "Other tools": "import export hook push pull remote",
    "Store": "stats growth verify audit gc forget reindex index copy backup migrate doctor",
    "Tenants of PostgreSQL": "bind-role move-project cells",
    "Servers": "ui serve keys mcp proxy",
}
"""The groups of ``treering --help``, and their commands."""

_OTHER: Final = "Commands"
_EXAMPLES: Final = re.compile(r"\n\s*\nExamples:\n(?P<lines>.*)\Z", re.DOTALL)


class Commands(typer.Typer):
    """A Typer application, or a group of one, whose help has panels and examples."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command; see `typer.Typer.command`."""
        return super().command(name, cls=_Command, **settings)


def split_examples(text: str) -> tuple[str, list[str]]:
    """Return the description of a command, and its examples as command lines."""
    found = _EXAMPLES.search(text)
    if found is None:
        return text, []
    return text[: found.start()], [line.strip() for line in found["lines"].splitlines() if line.strip()]


class _WithExamples:
    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description."""
        whole = self.help
        self.help = split_examples(whole or "")[0]
        try:
            super().format_help_text(ctx, formatter)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a mixin
        finally:
            self.help = whole

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, as they are typed."""
        _, examples = split_examples(self.help or "")
        if examples:
            with formatter.section(_heading("Examples")):
                for line in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a mixin


class _Command(_WithExamples, TyperCommand):
    """A command."""


class _Group(_WithExamples, TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, in panels if this is the whole application."""
        named = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: each for name, each in named.items() if each is not None and not each.hidden}
        width = max((len(name) for name in shown), default=0)
        panels = PANELS if ctx.parent is None else {}
        listed = {panel: names.split() for panel, names in panels.items()}
        known = {name for names in listed.values() for name in names}
        listed[_OTHER] = [name for name in shown if name not in known]
        for panel, names in listed.items():
            lines = [
                (name.ljust(width), shown[name].get_short_help_str(formatter.width - 6 - width))
                for name in names
                if name in shown
            ]
            if lines:
                with formatter.section(_heading(panel)):
                    formatter.write_dl(lines)


def _heading(text: str) -> str:
    return typer.style(text, bold=True)
