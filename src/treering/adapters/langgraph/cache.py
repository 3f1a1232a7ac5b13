"""What a saver remembers of the steps that it saved or loaded last: a run that goes on reads nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any, Final

import msgspec

from treering.adapters.langgraph.lists import Known, begun
from treering.adapters.langgraph.pending import Begun, Recent, Spot, TaskWrites
from treering.adapters.langgraph.values import Values
from treering.graphs.graph import Step
from treering.graphs.step import Place, step_id, writes_key

_BASES: Final = 64
_BASE_ITEMS: Final = 50_000
_HEADS: Final = 1024
_LISTS: Final = frozenset({"m", "l", "p"})
"""The forms of writes that hold messages of a channel's own (see `TaskWrites`)."""


class Base(msgspec.Struct, frozen=True):
    """A step that further ones may be written against, and its lists as they were saved."""

    step: Step
    lists: dict[str, Known]


class SeenHead(msgspec.Struct, frozen=True):
    """Where a head was when it was last seen."""

    version: int
    checkpoint: str
    graph_id: str
    first_us: int


class Memory:
    """Steps by the id of their checkpoint, and heads by their ref; a bounded number of both."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bases: dict[str, Base] = {}
        self._heads: OrderedDict[str, SeenHead] = OrderedDict()
        self._items = 0
        self._written: OrderedDict[str, list[TaskWrites]] = OrderedDict()
        self._others: OrderedDict[str, frozenset[str]] = OrderedDict()
        self.recent = Recent()

    def base(self, checkpoint_id: str) -> Base | None:
        """What is remembered of a step."""
        return self._bases.get(checkpoint_id)

    def keep(self, base: Base, *, instead_of: str | None = None) -> None:
        """Remember a step; ``instead_of`` the one that it grew out of."""
        bases, checkpoint_id = self._bases, base.step.checkpoint.id
        with self._lock:
            if instead_of is not None:
                self._drop(instead_of)
            self._drop(checkpoint_id)
            bases[checkpoint_id] = base
            self._items += _size(base)
            while len(bases) > _BASES or (self._items > _BASE_ITEMS and len(bases) > 1):
                self._drop(next(iter(bases)))

    def head(self, ref: str) -> SeenHead | None:
        """Where a head was last seen."""
        return self._heads.get(ref)

    def see(self, ref: str, head: SeenHead | None) -> None:
        """A head was seen; ``None``: it is not there, or not where it was."""
        with self._lock:
            self._heads.pop(ref, None)
            if head is not None:
                self._heads[ref] = head
            while len(self._heads) > _HEADS:
                self._heads.popitem(last=False)

    def wrote(self, writes: TaskWrites) -> None:
        """A task wrote something on a step."""
        with self._lock:
            self._written.setdefault(writes.key, []).append(writes)
            while len(self._written) > _BASES:
                self._written.popitem(last=False)

    def spot(self, writes: TaskWrites) -> Spot | None:
        """The end of the list that should hold the messages of a task next, if that can be told.

        They are messages with ids (LangGraph gives those that have none one in place), all for one channel,
        whose list went on with what tasks wrote so far.
        """
        lists = [entry for entry in writes.entries if entry[2] in _LISTS]
        made = step_id(writes.place, writes.graph_id)
        base = self._bases.get(made[0]) if made is not None else None
        if base is None or not lists:
            return None
        channel = lists[0][0]
        known = base.lists.get(channel)
        checkpoint = base.step.checkpoint
        if (
            known is None
            or known.is_apart
            or not known.is_messages
            or checkpoint.lists.get(channel) != known.stretch
            or checkpoint.thread != writes.place.thread
        ):
            return None
        list_id, end = known.stretch.list, known.stretch.length
        for name, _, form, value in lists:
            if name != channel or (form == "p" and len(value.items) != end):
                return None
        for message in writes.messages:
            if message.known["id"] is None or message.known["type"] == "remove":
                return None
        for earlier in self._written.get(writes.key, ()):
            for message in earlier.messages:
                spot = message.spot
                if spot is not None and spot[0] == list_id and spot[1] >= end:
                    end = spot[1] + 1
        return list_id, end

    def begun(
        self, values: Values, place: Place, graph_id: str, channel: str | None, items: list[Any]
    ) -> Begun | None:
        """What of a list that is written on a step was saved with that step, or with the one before it.

        It is looked for in one channel, or among all lists of messages.
        """
        made = step_id(place, graph_id)
        base = self._bases.get(made[0]) if made is not None else None
        if base is None:  # LangGraph may save the step from another thread at this moment
            head = self._heads.get(place.ref)
            base = self._bases.get(head.checkpoint) if head is not None else None
        if base is None or not items or base.step.checkpoint.thread != place.thread:
            return None
        found: Begun | None = None
        for name, known in base.lists.items():
            if name == channel or (channel is None and known.is_messages):
                is_own = base.step.checkpoint.lists.get(name) == known.stretch
                here = begun(values, known, items) if is_own else None
                if here is not None and (found is None or len(here.rest) < len(found.rest)):
                    found = here
        return found

    def found(self, step: Step, channels: Iterable[str]) -> None:
        """A step was loaded, on which these channels had been written, here or elsewhere."""
        with self._lock:
            self._others[step.checkpoint.id] = frozenset(channels)
            while len(self._others) > _BASES:
                self._others.popitem(last=False)

    def written(self, step: Step, channel: str) -> list[TaskWrites] | None:
        """All that was written on a step to a channel; ``None`` if others may have written as well."""
        if channel in self._others.get(step.checkpoint.id, ()):
            return None
        within = Place(
            thread=step.checkpoint.thread,
            namespace=step.checkpoint.namespace,
            within=step.within,
            scope="",
            ref="",
        )
        return self._written.get(writes_key(within, step.graph_id), [])

    def forget(self) -> None:
        """Unlearn everything: something was removed."""
        with self._lock:
            self._bases.clear()
            self._heads.clear()
            self._items = 0

    def _drop(self, checkpoint_id: str) -> None:
        dropped = self._bases.pop(checkpoint_id, None)
        if dropped is not None:
            self._items -= _size(dropped)


def _size(base: Base) -> int:
    size = 0
    for known in base.lists.values():
        size += known.stretch.length
    return size
