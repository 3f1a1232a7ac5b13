"""Iterate over all events, refs or scopes that match, one page at a time.

Each page is a separate read: a slow consumer blocks nobody, and sees commits made meanwhile beyond its
current position. Nothing is read ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.query import Erasure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine
    from treering.core.query import EventQuery
    from treering.core.records import Record, Ref


def record_pages(
    engine: Engine, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000
) -> Iterator[tuple[Record, ...]]:
    """Yield the matching events behind a cursor in non-empty pages."""
    while True:
        page = engine.scan(space, query, after=after, limit=limit)
        if page.records:
            yield page.records
        if page.cursor is None:
            return
        after = page.cursor


def each_record(
    engine: Engine, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000
) -> Iterator[Record]:
    """Yield the matching events behind a cursor."""
    for records in record_pages(engine, space, query, after=after, limit=limit):
        yield from records


def ref_pages(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[list[Ref]]:
    """Yield the refs with this prefix, by name, in pages."""
    after = None
    while page := engine.scan_refs(space, prefix, after=after, limit=limit):
        yield page
        if len(page) < limit:
            return
        after = page[-1].name


def each_ref(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[Ref]:
    """Yield the refs with this prefix, by name."""
    for refs in ref_pages(engine, space, prefix, limit=limit):
        yield from refs


def each_scope(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[str]:
    """Yield the scopes with this prefix, by name."""
    after = None
    while page := engine.scan_scopes(space, prefix, after=after, limit=limit):
        yield from page
        if len(page) < limit:
            return
        after = page[-1]


_NOTHING: Final = Erasure()


def check_may_erase(engine: Engine, space: str) -> None:
    """Raise `Forbidden` if this caller may not erase in this space; erases nothing.

    Over HTTP, a key may allow writing but not erasing. Callers check this before they unlist something that
    they are about to erase.
    """
    engine.erase(space, _NOTHING)
