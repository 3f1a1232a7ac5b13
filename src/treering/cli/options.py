"""Options that many commands share, and how their help reads.

A command that works on a store declares one parameter, ``place: StorePlace``, and is decorated with
`takes_store`: Typer then sees the three options of `StorePlace` in its place, and the command gets them as
one value.

``treering --help`` lists the commands in groups: `PANELS` has each of them once, in the order of the page.
Examples are the last part of a command's docstring, below a line ``Examples:``, so they stand beside the code
that they show; a test parses each of them. No rich here: importing it would take longer than most commands
run.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from treering.cli.console import clean, say

if TYPE_CHECKING:
    from treering.store import Store

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Folder or URL of the store [TREERING_URL, or the nearest .treering]."
    ),
]
StoreBlobsOption = Annotated[
    str | None,
    typer.Option(
        "--store-blobs",
        metavar="URL",
        envvar="TREERING_BLOBS",
        help="Where its packs are, if not beside the store.",
    ),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAMESPACE", help="Namespace of the store [default].")
]
AllOption = Annotated[bool, typer.Option("--all", help="All namespaces of the store, one by one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=0, help="Show at most N; 0 for all.")
]
UserNamespaceOption = Annotated[
    str,
    typer.Option("--user-namespace", metavar="USER", help="Namespace of a user or project within the store."),
]

_PARAMETER: Final = "place"
_SHOWN: Final = 20


@dataclass(frozen=True)
class StorePlace:
    """The store and namespace that ``--store``, ``--store-blobs`` and ``--namespace`` select."""

    store: StoreOption = None
    store_blobs: StoreBlobsOption = None
    namespace: NamespaceOption = None

    def open(self) -> Store:
        """Open the store; create it if it does not exist."""
        from treering.api import open as open_store

        return open_store(self.store, blobs=self.store_blobs, namespace=self.namespace)

    @contextmanager
    def existing(self, *, every: bool = False) -> Generator[Store]:
        """Open an existing store: a typo must neither create one nor show an empty namespace."""
        from treering.api import open_existing
        from treering.core.query import collecting
        from treering.errors import InvalidInput, NotFound
        from treering.maintenance.stats import user_spaces

        if every and self.namespace is not None:
            raise InvalidInput("--namespace selects one namespace, --all all of them; use one or the other")
        with open_existing(self.store, blobs=self.store_blobs, namespace=self.namespace) as opened:
            spaces = user_spaces(opened.engine)
            if not every and spaces and opened.space not in spaces:
                known = f"namespace {opened.space!r} is empty; {opened.url} has: {', '.join(spaces[:_SHOWN])}"
                if self.namespace is not None:
                    raise NotFound(known)
                say(f"note: {known} (see --namespace and --all)")
            with collecting() as unreadable:
                try:
                    yield opened
                finally:
                    for each in unreadable.values():
                        say(f"warning: {clean(each.name)} is left out: {clean(each.problem)}")


class takes_store:  # noqa: N801 - used as a decorator
    """Replace a command's ``place`` parameter by the options of `StorePlace`."""

    def __init__(self, command: Callable[..., None]) -> None:
        self._command = command
        functools.update_wrapper(self, command)

    def __call__(self, **given: Any) -> None:
        """Run the command with the options that Typer parsed."""
        options = {name: given.pop(name) for name in inspect.signature(StorePlace).parameters}
        self._command(**given, **{_PARAMETER: StorePlace(**options)})

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        # Computed on demand: reading the signatures of all commands takes longer than most of them run.
        own = inspect.signature(self._command, eval_str=True)
        options = inspect.signature(StorePlace, eval_str=True).parameters.values()
        spread: list[inspect.Parameter] = []
        for each in own.parameters.values():
            if each.name == _PARAMETER:
                spread += (option.replace(kind=each.kind) for option in options)
            else:
                spread.append(each)
        from treering.cli.completion import complete_parameters

        whole = own.replace(parameters=spread)
        complete_parameters(whole)
        return whole


def load_object(name: str, option: str) -> Any:
    """Return what ``package.module:name`` names; modules of the working directory are found."""
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
        raise InvalidInput(f"{option} {name!r} cannot be loaded: {error}; give MODULE:NAME") from None
    return found


PANELS: Final = {
    "Threads": "threads log show diff fork rewind compact partial resume transcript delete check-deploy",
    "Runs": "runs tree timeline tail search step replay rerun reruns test compare cost performance cancel",
    "Files": "snapshot snapshots restore ls cat download secrets",
    "Sandboxes": "run checkpoints output",
    "Data of agents": "memory state schedules worker effects approvals budgets alerts",
    "Other tools": "import export hook push pull remote",
    "Store": "stats growth verify audit gc archive sql forget reindex index copy backup migrate doctor",
    "Tenants of PostgreSQL": "bind-role move-project cells",
    "Servers": "ui serve keys mcp proxy",
}
"""The groups of ``treering --help``, and their commands."""

_OTHER: Final = "Commands"
_EXAMPLES: Final = re.compile(r"\n\s*\nExamples:\n(?P<lines>.*)\Z", re.DOTALL)


class Commands(typer.Typer):
    """A Typer application, or a group of one, whose help has panels and examples.

    A group that ``lists`` without a command does what its command ``list`` does, with the same options.
    """

    def __init__(self, *, lists: bool = False, **settings: Any) -> None:
        self.lists = lists
        group = _ListGroup if lists else _Group
        super().__init__(cls=group, no_args_is_help=True, rich_markup_mode=None, **settings)

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


class _ListGroup(_Group):
    """A group whose command ``list`` need not be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments of the group, or those of the command that they do not name."""
        return super().parse_args(ctx, with_list(args))


def with_list(args: Sequence[str]) -> list[str]:
    """Return the arguments of a group that lists, with its command, unless they name one or ask for help."""
    names_none = not args or (args[0].startswith("-") and args[0] != "--help")
    return ["list", *args] if names_none else list(args)


def _heading(text: str) -> str:
    return typer.style(text, bold=True)
