"""Small contents, events and batches for tests.

Equal arguments return equal values, except that batches and events without an id get a new one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import ANY, Append, Batch, Draft, Event, Fence, RefChange, Set, Text, Usage
from treering.core.clock import DAY_US
from treering.core.content import Content, list_address
from treering.core.ids import new_id
from treering.core.query import EventQuery

if TYPE_CHECKING:
    from treering.core.batch import Expect
    from treering.core.content import Address

SCOPE: Final = "/thread/t1"
OTHER_SCOPE: Final = "/thread/t2"

NOON_US: Final = 20_000 * DAY_US + DAY_US // 2
"""Noon: events a few hours apart stay on the same day."""

EVERYTHING: Final = EventQuery()


def words(text: str) -> Content:
    """Return text content."""
    return Content("text", text.encode())


def noise(size: int, seed: int = 0) -> Content:
    """Return incompressible bytes, the same for the same seed."""
    return Content("bytes", random.Random(seed).randbytes(size))


def event(kind: str = "note", *, id: str | None = None, scope: str = SCOPE, **fields: Any) -> Event:
    """Return an event, at noon by default."""
    fields.setdefault("ts_us", NOON_US)
    return Event(id=id or new_id(), kind=kind, scope=scope, **fields)


def call(*, id: str | None = None, **fields: Any) -> Event:
    """Return an event with usage and cost."""
    priced: dict[str, Any] = {
        "run": "run-1",
        "thread": "t1",
        "agent": "planner",
        "model": "model-a",
        "usage": Usage(input=100, cache_read=10, output=50, reasoning=5),
        "cost_nanos": 1_250_000,
        "currency": "USD",
        "duration_us": 1_500,
    }
    return event("call", id=id, **priced | fields)


def events(space: str, *all_events: Event, id: str | None = None) -> Batch:
    """Return a batch of events."""
    return Batch(id=id or new_id(), space=space, events=all_events)


def set_ref(
    space: str,
    name: str,
    value: bytes = b"value",
    *,
    expect: Expect = ANY,
    links: tuple[Address, ...] = (),
    scope: str = SCOPE,
    id: str | None = None,
) -> Batch:
    """Return a batch that updates one ref."""
    change = RefChange(name=name, scope=scope, change=Set(value=value, links=links), expect=expect)
    return Batch(id=id or new_id(), space=space, refs=(change,))


def append(
    space: str,
    list_id: str,
    *items: str | Content,
    at: int,
    parent: str | None = None,
    scope: str = SCOPE,
    id: str | None = None,
) -> Batch:
    """Return a batch that appends to one list; a str becomes text."""
    contents = tuple(words(item) if isinstance(item, str) else item for item in items)
    grown = Append(list=list_id, scope=scope, at=at, items=contents, parent=parent)
    return Batch(id=id or new_id(), space=space, lists=(grown,))


def index_text(space: str, name: str, text: str, *, scope: str = SCOPE, **fields: Any) -> Batch:
    """Return a batch that stores a text, links it from a ref of the same name and indexes it."""
    draft = Draft(space)
    source = draft.put(words(text), scope=scope)
    draft.set_ref(name, b"", scope=scope, links=(source,))
    fields.setdefault("collection", "notes")
    draft.text(Text(name=name, scope=scope, source=source, **fields))
    return draft.batch()


def fenced(batch: Batch, lease: str, token: int) -> Batch:
    """Return the batch with a fence."""
    return Batch(
        id=batch.id,
        space=batch.space,
        events=batch.events,
        refs=batch.refs,
        lists=batch.lists,
        fences=(Fence(lease=lease, token=token),),
    )


def full_load(draft: Draft, *, key: str = "full", scope: str = SCOPE) -> list[Address]:
    """Add one of everything that a batch can contain to a draft, all of it linked."""
    small = draft.put(words(f"a small note about {key}"), scope=scope)
    large = draft.put(noise(5000, seed=len(key)), scope=scope)
    draft.append(f"{key}/list", words(f"first of {key}"), small, large, scope=scope, at=0)
    draft.event(call(id=f"{key}-1", scope=scope, body=small, links=(large,), data=b'{"n":1}'))
    draft.event(event(id=f"{key}-2", scope=scope))
    list_at = list_address(f"{key}/list")
    draft.set_ref(f"{key}/head", b"1", scope=scope, links=(small, large, list_at))
    draft.text(Text(collection="notes", name=key, scope=scope, source=small))
    return [small, large, list_at]
