"""``treering hook``: what agents call while they work.

``treering hook claude-code`` reads what Claude Code says on stdin. It always succeeds and prints nothing,
since Claude Code would act on anything else; failures are in ``~/.treering/hooks.log``.
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
    """Put the commands under the main one."""
    main.add_typer(app)


@app.command(name="claude-code")
def claude_code(
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Write the hooks into Claude Code's settings.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take them out again.")] = False,
    settings: Annotated[
        str, typer.Option("--settings", metavar="FILE", help="The settings to change.")
    ] = "~/.claude/settings.json",
    wait: Annotated[bool, typer.Option("--wait", help="Be done only when all is recorded.")] = False,
    store: StoreOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Record sessions of Claude Code as they go on.

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
