"""The channels of a LangGraph checkpoint: which of them go where in its row.

A value whose version did not change stays where it is, small values of LangGraph's own lie in the row, lists
are lists, and what is left is state. Values that may have a list of messages inside come last, when it is
known where all lists lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.adapters.langgraph.embedded_lists import Holed, holed, may_hold
from treering.adapters.langgraph.lists import Known, begun, is_list, write_list
from treering.adapters.langgraph.materialised import SHADOWS
from treering.adapters.langgraph.rows import (
    APART_LISTS,
    DELTA,
    HOLED,
    INLINE,
    MESSAGE_LISTS,
    Request,
    is_small,
    is_unchanged,
)
from treering.adapters.langgraph.values import DeltaSnapshot
from treering.threads.state_values import write_state

if TYPE_CHECKING:
    from treering.adapters.langgraph.cache import Base
    from treering.adapters.langgraph.pending import Recent
    from treering.adapters.langgraph.values import Values
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.threads.checkpoint_record import ListPrefix, StateValue

_OWN: Final = ("branch:", "__")
"""What the names of LangGraph's own channels begin with; their small values lie in the checkpoint's row."""


class Channels:
    """What one checkpoint holds, as it is put into a draft; ``known`` are all lists that it could go on with.

    ``is_tail`` says that the lists of its parent may be appended to.
    """

    def __init__(
        self,
        draft: Draft,
        engine: Engine,
        values: Values,
        parent: Base | None,
        *,
        scope: str,
        recent: Recent,
        is_tail: bool,
    ) -> None:
        self._draft = draft
        self._engine = engine
        self._values = values
        self._before = parent.step if parent is not None else None
        self._scope = scope
        self._recent = recent
        self._is_tail = is_tail
        self.known: dict[str, Known] = dict(parent.lists) if parent is not None else {}
        self.lists: dict[str, ListPrefix] = {}
        self.state: dict[str, StateValue] = {}
        self._inline: dict[str, Any] = {}
        self._messages: list[str] = []
        self._delta: list[str] = []
        self._shadows: list[str] = []
        self._holed: list[str] = []

    def write(self, request: Request) -> None:
        """Put all values of a checkpoint into the draft."""
        holders: dict[str, Any] = {}
        for channel, given in request.checkpoint["channel_values"].items():
            value = given
            if type(given) is DeltaSnapshot:
                value = given.value
                self._delta.append(channel)
            elif self._is_kept(channel, request):
                continue
            if channel.startswith(_OWN) and is_small(value):
                self._inline[channel] = value
            elif may_hold(value):
                holders[channel] = value
            else:
                self._write(channel, value)
        for channel, value in holders.items():
            parts = holed(self._values, value, self._inside)
            if parts is None:
                self._write(channel, value)
            else:
                self._holed.append(channel)
                self._write(channel, Holed(parts[0].mark, parts[0].value, parts[1]))

    def write_list(self, channel: str, before: Known | None, items: list[Any]) -> None:
        """Put a list into the draft that goes on from another one."""
        grown = write_list(
            self._draft,
            self._engine,
            self._values,
            before,
            items,
            scope=self._scope,
            recent=self._recent,
            is_tail=self._is_tail,
        )
        self.known[channel] = grown
        self.lists[channel] = grown.stretch
        if grown.is_messages:
            self._messages.append(channel)

    def write_shadow(self, channel: str, before: Known | None, items: list[Any]) -> None:
        """Put a list into the draft that LangGraph keeps as changes only."""
        self.write_list(channel, before, items)
        self._shadows.append(channel)

    def tell(self, graph: dict[str, Any]) -> None:
        """Add what the row says of its channels to LangGraph's own fields."""
        apart = [name for name in self.lists if name in self.known and self.known[name].is_apart]
        told = (
            (INLINE, self._inline),
            (MESSAGE_LISTS, self._messages),
            (DELTA, self._delta),
            (SHADOWS, self._shadows),
            (HOLED, self._holed),
            (APART_LISTS, apart),
        )
        graph.update([each for each in told if each[1]])

    def _is_kept(self, channel: str, request: Request) -> bool:
        """Whether a value stays where the parent has it. (One with a list inside counts on its own lists.)"""
        before = self._before
        if before is None or not is_unchanged(before, channel, request):
            return False
        if channel in before.checkpoint.lists:
            self.lists[channel] = before.checkpoint.lists[channel]
            if channel in before.graph.get(MESSAGE_LISTS, ()):
                self._messages.append(channel)
            return True
        if channel in before.checkpoint.state and channel not in before.graph.get(HOLED, ()):
            self.state[channel] = before.checkpoint.state[channel]
            return True
        return False

    def _write(self, channel: str, value: Any) -> None:
        before = self.known.get(channel)
        if is_list(self._values, value, before):
            self.write_list(channel, before, value)
            return
        self.known.pop(channel, None)
        there = self._before.checkpoint.state if self._before is not None else {}
        self.state |= write_state(self._draft, there, {channel: self._values.plain(value)}, scope=self._scope)

    def _inside(self, items: list[Any]) -> list[Any] | None:
        """Which list of this checkpoint these items begin like, how many of them, and the rest."""
        found: list[Any] | None = None
        for name, stretch in self.lists.items():
            known = self.known.get(name)
            if known is not None and known.is_messages and known.stretch == stretch:
                here = begun(self._values, known, items)
                if here is not None and (found is None or len(here.items) > found[1]):
                    found = [name, len(here.items), self._values.plain(here.rest)]
        return found
