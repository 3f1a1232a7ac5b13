"""A draft: a batch while it is being written.

It decides where content goes (small content into the body of its scope, the rest into objects) and
hands out addresses at once, so that the records of the same batch can point at each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.address import Address, object_address, slot_address
from treering.core.batch import ANY, Append, Batch, Delete, Event, Expect, Fence, Part, RefChange, Set, Text
from treering.core.body import INLINE_LIMIT
from treering.core.ids import new_id

if TYPE_CHECKING:
    from treering.core.batch import Add
    from treering.core.content import Content


class Draft:
    """Collects what one commit will do; `batch` gives the finished, immutable `Batch`."""

    def __init__(self, space: str, *, id: str | None = None) -> None:
        self.id = id or new_id()
        self.space = space
        self._objects: dict[str, Content] = {}
        self._parts: dict[str, tuple[int, list[Content]]] = {}
        self._requires: dict[str, None] = {}
        self._lists: list[Append] = []
        self._events: list[Event] = []
        self._refs: list[RefChange] = []
        self._fences: list[Fence] = []
        self._texts: list[Text] = []

    def put(self, content: Content, *, scope: str) -> Address:
        """Take content in and say where it will be."""
        if len(content.data) >= INLINE_LIMIT:
            name = content.name
            self._objects[name] = content
            return object_address(name)
        place = self._parts.get(scope)
        if place is None:
            place = self._parts[scope] = len(self._parts), []
        part, slots = place
        slots.append(content)
        return slot_address(self.id, part, len(slots) - 1)

    def require(self, *names: str) -> None:
        """Objects that must be stored when the batch commits."""
        self._requires.update(dict.fromkeys(names))

    def append(
        self, list_id: str, *items: Content | Address, scope: str, at: int, parent: str | None = None
    ) -> None:
        """Items for the end of a list; large contents become objects."""
        placed: list[Content | Address] = []
        for item in items:
            if isinstance(item, str) or len(item.data) < INLINE_LIMIT:
                placed.append(item)
            else:
                placed.append(self.put(item, scope=scope))
        self._lists.append(Append(list=list_id, scope=scope, at=at, items=tuple(placed), parent=parent))

    def event(self, event: Event) -> None:
        """A row for the journal."""
        self._events.append(event)

    def set_ref(
        self, name: str, value: bytes, *, scope: str, expect: Expect = ANY, links: tuple[Address, ...] = ()
    ) -> None:
        """Give a ref a value."""
        self._refs.append(
            RefChange(name=name, scope=scope, change=Set(value=value, links=links), expect=expect)
        )

    def delete_ref(self, name: str, *, scope: str, expect: Expect = ANY) -> None:
        """Remove a ref."""
        self._refs.append(RefChange(name=name, scope=scope, change=Delete(), expect=expect))

    def add_to_ref(self, name: str, change: Add, *, scope: str, expect: Expect = ANY) -> None:
        """Add to a ref that holds an integer."""
        self._refs.append(RefChange(name=name, scope=scope, change=change, expect=expect))

    def fence(self, lease: str, token: int) -> None:
        """A lease that must still be held."""
        self._fences.append(Fence(lease=lease, token=token))

    def text(self, text: Text) -> None:
        """A text for the search index."""
        self._texts.append(text)

    @property
    def is_empty(self) -> bool:
        """Nothing was put in yet."""
        return not (
            self._objects or self._parts or self._requires or self._lists or self._events
            or self._refs or self._fences or self._texts
        )  # fmt: skip

    def batch(self) -> Batch:
        """The finished batch."""
        return Batch(
            id=self.id,
            space=self.space,
            requires=tuple(self._requires),
            objects=dict(self._objects),
            parts=tuple([Part(scope=scope, slots=tuple(slots)) for scope, (_, slots) in self._parts.items()]),
            lists=tuple(self._lists),
            events=tuple(self._events),
            refs=tuple(self._refs),
            fences=tuple(self._fences),
            texts=tuple(self._texts),
        )
