"""Reachability: what a set of roots keeps alive.

Roots are the links of refs and of live events, and the sources of indexed texts. From there, a list
keeps its own items and its parent alive, and a tree keeps the files and folders that it names. Nothing
else points at anything, so a walk over these links is the whole of garbage collection's marking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.address import Address, object_address
from treering.core.tree import links_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from treering.core.batch import Event
    from treering.core.content import Content


def event_links(event: Event) -> Iterator[Address]:
    """Everything that an event points at."""
    if event.body is not None:
        yield event.body
    yield from event.links


def content_links(content: Content) -> Iterator[Address]:
    """Everything that stored content points at: the entries of a tree."""
    if content.kind == "tree":
        yield from map(object_address, links_of(content))


def reach(
    roots: Iterable[Address],
    *,
    is_new: Callable[[Address], bool],
    links: Callable[[Address], Iterable[Address]],
) -> None:
    """Visit everything that can be reached from ``roots``, each address once.

    ``is_new`` remembers an address and says whether it was seen for the first time; it may keep its
    memory wherever it likes (a set, a temporary table). ``links`` says what an address points at.
    """
    pending = [address for address in roots if is_new(address)]
    while pending:
        pending.extend(address for address in links(pending.pop()) if is_new(address))
