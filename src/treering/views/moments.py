"""A moment: a checkpoint together with its content, which is read when it is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from treering.views import channels
from treering.views.checkpoints import MESSAGES, Checkpoint
from treering.views.values import read_state

if TYPE_CHECKING:
    from treering.core.engine import Engine


class Moment:
    """One moment of a thread: its record at once, its messages, lists and state when they are asked for."""

    def __init__(self, engine: Engine, space: str, checkpoint: Checkpoint) -> None:
        self._engine = engine
        self._space = space
        self.checkpoint = checkpoint

    def __repr__(self) -> str:
        return f"Moment({self.checkpoint.short_id!r}, thread={self.thread_id!r}, step={self.step})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moment) and other.checkpoint == self.checkpoint

    def __hash__(self) -> int:
        return hash(self.checkpoint.id)

    @property
    def id(self) -> str:
        """The checkpoint's id: ``ckpt_`` and a time-ordered id."""
        return self.checkpoint.id

    @property
    def short_id(self) -> str:
        """Enough of the id for a person to recognise it."""
        return self.checkpoint.short_id

    @property
    def thread_id(self) -> str:
        """The thread that this moment belongs to."""
        return self.checkpoint.thread

    @property
    def parent_id(self) -> str | None:
        """The moment before."""
        return self.checkpoint.parent

    @property
    def step(self) -> int:
        """How many moments lie before this one."""
        return self.checkpoint.step

    @property
    def created_at(self) -> str:
        """ISO 8601 with offset."""
        return self.checkpoint.created_at

    @property
    def note(self) -> str | None:
        """What the writer called it."""
        return self.checkpoint.note

    @property
    def tags(self) -> tuple[str, ...]:
        """The writer's tags."""
        return self.checkpoint.tags

    @property
    def metadata(self) -> dict[str, Any]:
        """The writer's own data about it."""
        return self.checkpoint.metadata

    @property
    def pending_interrupt(self) -> Any:
        """What the agent waits for a person to decide, if it does."""
        return self.checkpoint.pending_interrupt

    @cached_property
    def messages(self) -> list[Any]:
        """The whole conversation up to here."""
        return self.items(MESSAGES)

    @cached_property
    def state(self) -> dict[str, Any]:
        """All state values."""
        return read_state(self._engine, self._space, self.checkpoint.state)

    def last_messages(self, count: int) -> list[Any]:
        """Only the end of the conversation; what comes before it is not read."""
        return self.items(MESSAGES, last=count)

    def items(self, channel: str, *, last: int | None = None) -> list[Any]:
        """What a list channel held; empty when there was none of that name."""
        stretch = self.checkpoint.lists.get(channel)
        return [] if stretch is None else channels.read(self._engine, self._space, stretch, last=last)
