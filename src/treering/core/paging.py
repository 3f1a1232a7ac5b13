"""Everything that a query, a prefix or a space names, read a page at a time.

Each page is a read of its own, so whoever takes long between two of them holds nobody up, and sees behind
what was read what is committed meanwhile. Nothing is read ahead: a page is asked for when the one before
is used up.
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
    """The events that a query names, behind a cursor, in pages; none of them when there are no events."""
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
    """The events that a query names, behind a cursor."""
    for records in record_pages(engine, space, query, after=after, limit=limit):
        yield from records


def ref_pages(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[list[Ref]]:
    """The refs whose names start so, by name, in pages."""
    after = None
    while page := engine.scan_refs(space, prefix, after=after, limit=limit):
        yield page
        if len(page) < limit:
            return
        after = page[-1].name


def each_ref(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[Ref]:
    """The refs whose names start so, by name."""
    for refs in ref_pages(engine, space, prefix, limit=limit):
        yield from refs


def each_scope(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[str]:
    """The scopes that start so, by name."""
    after = None
    while page := engine.scan_scopes(space, prefix, after=after, limit=limit):
        yield from page
        if len(page) < limit:
            return
        after = page[-1]


# -----------------------------------------------------------------------------------------------------------
# May this be erased? Asked before anything is changed that only makes sense with the erasure behind it.
#
# Over HTTP a key may be good for writing and not for erasing. Whoever first unlists a thing and then erases
# it would leave it unlisted.


_NOTHING: Final = Erasure()


def check_may_erase(engine: Engine, space: str) -> None:
    """Raise what an erasure in this space would be refused with (`Forbidden`); nothing is erased."""
    engine.erase(space, _NOTHING)
