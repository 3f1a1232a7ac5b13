"""A checkpoint as a saver gives it: one moment of a thread with everything that belongs to it.

Its record is at hand; messages and state are read when they are first asked for, unless they are there
already. `Saver.load` and all async calls give checkpoints with their content; only `Saver.list` gives ones
that still have to read it, so that looking through a long history does not read every conversation in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from treering.core.clock import from_datetime, to_iso
from treering.errors import InvalidInput


class Contents(msgspec.Struct, frozen=True):
    """How a checkpoint's messages and state are read."""

    messages: Callable[[], list[Any]]
    state: Callable[[], dict[str, Any]]


def held(messages: list[Any], state: dict[str, Any]) -> Contents:
    """Content that is at hand."""
    return Contents(lambda: messages, lambda: state)


def given(messages: Sequence[Any] | None, state: dict[str, Any] | None, rest: Contents) -> Contents:
    """Content of which the caller has given some; the rest is read."""
    return Contents(
        rest.messages if messages is None else lambda: list(messages),
        rest.state if state is None else lambda: dict(state),
    )


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its content."""

    id: str
    thread_id: str
    namespace: str
    parent_id: str | None
    step: int
    created_at_us: int
    updated_at_us: int
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()


class Checkpoint:
    """One moment of a thread. ``created_at`` is the thread's first save, ``updated_at`` this one's."""

    def __init__(self, facts: Facts, contents: Contents) -> None:
        self.facts: Final = facts
        self._contents = contents
        self._messages: list[Any] | None = None
        self._state: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """``ckpt_`` and a time-ordered id."""
        return self.facts.id

    @property
    def thread_id(self) -> str:
        """The thread that it belongs to."""
        return self.facts.thread_id

    @property
    def namespace(self) -> str:
        """The tenant that the thread belongs to; empty for none."""
        return self.facts.namespace

    @property
    def parent_id(self) -> str | None:
        """The checkpoint before; of a fork's first one, that of the thread it came from."""
        return self.facts.parent_id

    @property
    def step(self) -> int:
        """How many steps lie before it, unless the writer counted otherwise."""
        return self.facts.step

    @property
    def pending_interrupt(self) -> Any:
        """What the agent waits for a person to decide, if it does."""
        return self.facts.pending_interrupt

    @property
    def created_at(self) -> str:
        """When the thread was first saved, ISO 8601 with offset."""
        return to_iso(self.facts.created_at_us)

    @property
    def updated_at(self) -> str:
        """When this checkpoint was saved, ISO 8601 with offset."""
        return to_iso(self.facts.updated_at_us)

    @property
    def metadata(self) -> dict[str, Any]:
        """The writer's own data about it."""
        return self.facts.metadata

    @property
    def note(self) -> str | None:
        """What the writer called it."""
        return self.facts.note

    @property
    def tags(self) -> tuple[str, ...]:
        """The writer's tags."""
        return self.facts.tags

    # Read once each, and without `cached_property`: up to Python 3.11 its lock is one for all checkpoints.
    @property
    def messages(self) -> list[Any]:
        """The whole conversation up to here."""
        if self._messages is None:
            self._messages = self._contents.messages()
        return self._messages

    @property
    def state(self) -> dict[str, Any]:
        """All state values; an agent's are ``todos`` and ``files``."""
        if self._state is None:
            self._state = self._contents.state()
        return self._state

    def read(self) -> Checkpoint:
        """Read what was not read yet; the checkpoint needs its saver no more after that."""
        self._contents = held(self.messages, self.state)
        return self

    def replace(self, **changes: Any) -> Checkpoint:
        """The same checkpoint with other fields: ``replace(metadata={...}, messages=[...])``."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _CHANGEABLE} | changes
        if unknown := sorted(set(fields) - set(_CHANGEABLE)):
            raise InvalidInput(f"a checkpoint has no {', '.join(unknown)}; it has {', '.join(_CHANGEABLE)}")
        contents = held(fields.pop("messages"), fields.pop("state"))
        for name in ("created_at", "updated_at"):
            fields[f"{name}_us"] = _us(fields.pop(name), name)
        fields["tags"] = tuple(fields["tags"])
        return Checkpoint(Facts(**fields), contents)

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as plain data."""
        return {name: getattr(self, name) for name in _CHANGEABLE} | {"tags": list(self.tags)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.to_dict() == self.to_dict()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        where = f", namespace={self.namespace!r}" if self.namespace else ""
        return f"Checkpoint({self.id!r}, thread={self.thread_id!r}{where}, step={self.step})"


_CHANGEABLE: Final = (
    "id",
    "thread_id",
    "namespace",
    "parent_id",
    "step",
    "messages",
    "state",
    "pending_interrupt",
    "created_at",
    "updated_at",
    "metadata",
    "note",
    "tags",
)


def _us(text: Any, name: str) -> int:
    from datetime import datetime

    try:
        return from_datetime(text if isinstance(text, datetime) else datetime.fromisoformat(text))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{name}={text!r} is no time; give ISO 8601 text or a datetime ({error})"
        ) from None
