"""List items that were read before: a conversation that is loaded again and again is fetched once.

What lies at a position of a list never changes, and the number of a list is never given to another one, so
what is kept here cannot become untrue; an erasure empties it all the same, because erased bytes shall be
nowhere. Only whole lists go when room is needed, the one that was not asked for the longest first.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.content import Content

BUDGET: Final = 16 * 1024 * 1024
"""How many bytes of content are kept at most."""

_OVERHEAD: Final = 200
"""About what an item takes beside its content."""


class _Held:
    """What is kept of one list."""

    __slots__ = ("contents", "size")

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.size = 0


class _Shelf:
    """Lists by number, the one that was asked for last at the end."""

    __slots__ = ("lists", "lock", "size")

    def __init__(self) -> None:
        self.lists: dict[int, _Held] = {}
        self.size = 0
        self.lock = Lock()


class ItemCache:
    """Verified items by list and position.

    Whoever finds it busy goes without: it never makes anyone wait, not even in a child that was forked
    while a thread of its parent was in here.
    """

    def __init__(self) -> None:
        self._shelf = _Shelf()

    @property
    def has_some(self) -> bool:
        """Whether it is worth asking for anything."""
        return bool(self._shelf.lists)

    def found(self, list_no: int, start: int, stop: int) -> list[Content]:
        """The items from ``start`` on, as far as they are here without a gap."""
        shelf = self._shelf
        if not shelf.lock.acquire(blocking=False):
            return []
        try:
            held = shelf.lists.pop(list_no, None)
            if held is None:
                return []
            shelf.lists[list_no] = held
            contents = held.contents
            try:
                return [*map(contents.__getitem__, range(start, stop))]
            except KeyError as error:
                return [contents[position] for position in range(start, error.args[0])]
        finally:
            shelf.lock.release()

    def keep(self, list_no: int, start: int, contents: Sequence[Content]) -> None:
        """Keep items that were fetched, unless they alone would take half of the room."""
        shelf = self._shelf
        size = sum([len(content.data) for content in contents]) + _OVERHEAD * len(contents)
        if size > BUDGET // 2 or not shelf.lock.acquire(blocking=False):
            return
        try:
            held = shelf.lists.pop(list_no, None) or _Held()
            held.contents.update(enumerate(contents, start))
            held.size += size
            shelf.lists[list_no] = held
            shelf.size += size
            while shelf.size > BUDGET:
                shelf.size -= shelf.lists.pop(next(iter(shelf.lists))).size
        finally:
            shelf.lock.release()

    def clear(self) -> None:
        """Forget everything."""
        self._shelf = _Shelf()
