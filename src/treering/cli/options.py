"""Options that many commands share.

A command that works on a store declares one parameter, ``place: StorePlace``, and is decorated with
`takes_store`: Typer then sees the three options of `StorePlace` in its place, and the command gets them as
one value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

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
        from treering.core.unreadable import collecting
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
