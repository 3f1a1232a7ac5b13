"""Options that many commands share, and how a command comes by its store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import say

if TYPE_CHECKING:
    from treering.store import Store

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Folder or URL of the store [TREERING_URL or ./.treering]."),
]
StoreBlobsOption = Annotated[
    str | None,
    typer.Option(
        "--store-blobs", metavar="URL", envvar="TREERING_BLOBS", help="Where its packs are, if not beside it."
    ),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="The space to work on [default].")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every namespace of the store, one by one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UserNamespaceOption = Annotated[
    str, typer.Option("--user-namespace", metavar="NAME", help="Whose threads: a user's or project's name.")
]

_SHOWN: Final = 20


@contextmanager
def opened_store(
    url: str | None, blobs: str | None, namespace: str | None, *, every: bool = False
) -> Generator[Store]:
    """A store that is there: a misspelt path must not make a new one, a misspelt namespace not look empty."""
    from treering.api import open_existing
    from treering.care.spaces import user_spaces
    from treering.errors import InvalidInput, NotFound

    if every and namespace is not None:
        raise InvalidInput("--namespace names one, --all takes every one; leave one of them out")
    with open_existing(url, blobs=blobs, namespace=namespace) as opened:
        spaces = user_spaces(opened.engine)
        if not every and spaces and opened.space not in spaces:
            known = f"namespace {opened.space!r} is empty; {opened.url} has: {', '.join(spaces[:_SHOWN])}"
            if namespace is not None:
                raise NotFound(known)
            say(f"note: {known} (see --namespace and --all)")
        yield opened
