"""List channels: how a growing list is kept without being written again.

A thread object remembers a fingerprint of every item that it last saved. What comes next is compared
from the front: the part that is equal stays where it is, and only the rest is written: behind the list's
tail where that is still ours, else as a child list that shares the common past. A list that became
shorter writes nothing at all. Fingerprints tell ``1`` from ``True`` and notice an item that was changed in
place.
"""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.encoding import decode_all, encode
from treering.core.ids import new_id
from treering.core.lists import MAX_DEPTH, branch_point
from treering.errors import Corrupt, NotFound
from treering.threads.checkpoint_record import ListPrefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Draft
    from treering.core.content import Content
    from treering.core.engine import Engine

    def _kind_of(_value: object, /) -> type[object]: ...
else:
    _kind_of = type  # under a name that keeps the checker from narrowing Any to something less known


_PAGE: Final = 1000
_BY_TEXT: Final = frozenset({bool, float, int, type(None)})


class Channel:
    """What is known of one list channel at the head of a thread."""

    __slots__ = ("prints", "stretch")

    def __init__(self, stretch: ListPrefix | None, prints: list[int] | None) -> None:
        self.stretch = stretch
        self.prints = prints


class First(msgspec.Struct, frozen=True):
    """The first ``count`` items of those that a channel holds, in place of the items themselves."""

    count: int


def fingerprint(value: Any) -> int:
    """A hash of a value as it is now, types and all; for comparing within this process only, never stored.

    Python keeps the hash of a str with it, so a conversation that is looked at again and again costs a
    glance at its structure, not a pass over its text.
    """
    kind = _kind_of(value)
    if kind is str:
        return hash(value)
    if kind is dict:
        return hash((kind, *value, *map(type, value), *map(fingerprint, value.values())))
    if kind is list:
        return hash((kind, *map(fingerprint, value)))
    if kind in _BY_TEXT:  # hash(-1) == hash(-2), and hash(1) == hash(True)
        return hash((kind, repr(value)))
    try:
        return hash(marshal.dumps(value, 2))
    except ValueError:
        return hash(encode(value, keep_order=True).data)


def extend(draft: Draft, stretch: ListPrefix | None, items: Sequence[Any], *, scope: str) -> ListPrefix:
    """Put items behind the tail of a list (a new one, if there is none)."""
    list_id, length = (new_id(), 0) if stretch is None else (stretch.list, stretch.length)
    if items or stretch is None:
        draft.append(list_id, *_contents(items), scope=scope, at=length)
    return ListPrefix(list_id, length + len(items))


def branch(
    draft: Draft, engine: Engine, stretch: ListPrefix, at: int, items: Sequence[Any], *, scope: str
) -> ListPrefix:
    """Put items behind the first ``at`` of a list, whatever came after them there."""
    if not items:
        return ListPrefix(stretch.list, at)
    list_id = new_id()
    if at == 0:
        draft.append(list_id, *_contents(items), scope=scope, at=0)
        return ListPrefix(list_id, len(items))
    lineage = engine.lineage(draft.space, stretch.list)
    if not lineage:
        raise _severed(stretch, "it is not stored")
    parent = branch_point(lineage, at)
    if parent.depth >= MAX_DEPTH:
        past = engine.read_list(draft.space, stretch.list, 0, at)
        draft.append(list_id, *past, *_contents(items), scope=scope, at=0)
    else:
        draft.append(list_id, *_contents(items), scope=scope, at=at, parent=parent.list)
    return ListPrefix(list_id, at + len(items))


def append(
    draft: Draft, engine: Engine, channel: Channel, items: Sequence[Any], *, scope: str, tail_is_ours: bool
) -> Channel:
    """Put items behind what a channel holds, whatever that is: it is neither read nor compared."""
    stretch, prints = channel.stretch, channel.prints
    if prints is not None and stretch is not None:
        del prints[stretch.length :]  # left by a save that did not come through
        prints.extend(_prints(items))
    if stretch is None or tail_is_ours:
        return Channel(extend(draft, stretch, items, scope=scope), prints)
    return Channel(branch(draft, engine, stretch, stretch.length, items, scope=scope), prints)


def replace(
    draft: Draft,
    engine: Engine,
    channel: Channel | None,
    items: Sequence[Any] | First,
    *,
    scope: str,
    tail_is_ours: bool,
) -> Channel:
    """Make a channel hold exactly ``items``, writing only what is new."""
    if isinstance(items, First):
        return _shorter(channel, items.count)
    prints = _prints(items)
    if channel is None or channel.stretch is None:
        return Channel(extend(draft, None, items, scope=scope), prints)
    stretch = channel.stretch
    known = channel.prints
    if known is None:
        known = [fingerprint(item) for item in read(engine, draft.space, stretch)]
    del known[stretch.length :]
    same = _common(known, prints)
    if same == stretch.length and tail_is_ours:
        return Channel(extend(draft, stretch, items[same:], scope=scope), prints)
    return Channel(branch(draft, engine, stretch, same, items[same:], scope=scope), prints)


def read(engine: Engine, space: str, stretch: ListPrefix, *, last: int | None = None) -> list[Any]:
    """The items of a stretch, or only its last ones. A list that lost some of them is `Corrupt`."""
    start = 0 if last is None else max(stretch.length - last, 0)
    items: list[Any] = []
    for first in range(start, stretch.length, _PAGE):  # in pages: the stored form is never there all at once
        stop = min(first + _PAGE, stretch.length)
        try:
            contents = engine.read_list(space, stretch.list, first, stop)
        except NotFound as error:
            raise _severed(stretch, str(error)) from error
        if len(contents) != stop - first:
            raise _severed(stretch, f"{stop - first - len(contents)} of its items are not stored")
        items += decode_all(contents)
    return items


def _prints(items: Sequence[Any]) -> list[int]:
    try:
        return [*map(fingerprint, items)]
    except RecursionError:
        _contents(items)  # says what nests too deep to be stored
        raise


def _contents(items: Sequence[Any]) -> list[Content]:
    return [encode(item, keep_order=True) for item in items]


def _severed(stretch: ListPrefix, problem: str) -> Corrupt:
    return Corrupt(
        f"list {stretch.list!r} should have {stretch.length} items: {problem}; "
        "run verify, then restore it from a backup"
    )


def _shorter(channel: Channel | None, count: int) -> Channel:
    if channel is None or channel.stretch is None:
        return Channel(None, None)
    prints = None if channel.prints is None else channel.prints[:count]
    return Channel(ListPrefix(channel.stretch.list, min(count, channel.stretch.length)), prints)


def _common(known: Sequence[int], prints: Sequence[int]) -> int:
    if known == prints[: len(known)]:
        return len(known)
    same = 0
    for mine, other in zip(known, prints, strict=False):
        if mine != other:
            break
        same += 1
    return same
