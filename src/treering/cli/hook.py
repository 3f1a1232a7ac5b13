"""``treering hook``: commands that agents call while they work.

``treering hook claude-code`` reads the event of Claude Code from stdin. It always succeeds and prints
nothing, since Claude Code acts on the output of hooks; failures are logged in ``~/.treering/hooks.log``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from treering.cli.console import say
from treering.cli.options import NamespaceOption, StoreOption

app: Final = typer.Typer(
    name="hook",
    help="Record an agent while it works, from its own hooks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add_to(main: typer.Typer) -> None:
    """Register the commands."""
    main.add_typer(app)


@app.command(name="claude-code")
def claude_code(
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Add the hooks to Claude Code's settings.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the hooks.")] = False,
    settings: Annotated[
        str, typer.Option("--settings", metavar="FILE", help="Settings file.")
    ] = "~/.claude/settings.json",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is recorded.")] = False,
    store: StoreOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Record sessions of Claude Code while they run.

    Without an option this is the hook itself, which reads stdin. --install makes Claude Code call it.
    """
    from treering.importers.claude_code import hooks

    if not install and not remove:
        hooks.take_call(sys.stdin.buffer.read(), store, namespace=namespace, waits=wait)
        return
    path = Path(settings).expanduser()
    if remove:
        changed = hooks.install(path, None)
        say(f"{'removed from' if changed else 'not in'} {path}")
        return
    from treering.api import locate

    place = locate(store)
    # Hooks run in the project's folder. A URL out of the environment may hold a secret, and stays there.
    url = store if place.folder is None else str(place.folder.resolve())
    changed = hooks.install(path, hooks.hook_command(url, namespace=namespace, waits=wait))
    say(f"{'installed into' if changed else 'already in'} {path}; sessions go to {place.display}")
