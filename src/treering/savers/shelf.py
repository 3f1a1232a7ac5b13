"""What a saver needs of its storage: threads of checkpoints, appended to and read back.

There are two shelves: `StoreShelf` on a treering store, and `KeyValueShelf` on four methods that keep values
under keys. What users meet (`Saver`) is the same on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from treering.errors import Conflict, TreeringError
from treering.savers.checkpoint import Checkpoint

NEW: Final = "new"
"""Expected of a thread that must not be there yet."""

FIRST_STATE: Final[dict[str, Any]] = {"todos": [], "files": {}}
"""What a thread's state is before anyone has said otherwise."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a checkpoint that was made elsewhere comes from: what it keeps of its own."""

    id: str
    parent_id: str | None
    created_at_us: int
    updated_at_us: int


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is to be written; ``None`` stands for "as in the one before".

    ``expect`` is the id that the thread's newest checkpoint must have, or `NEW`. ``parent_id`` is for the
    first checkpoint of a fork. ``origin`` makes it a copy of one that was made elsewhere.
    """

    thread_id: str
    messages: Sequence[Any] | None = None
    state: dict[str, Any] | None = None
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()
    step: int | None = None
    expect: str | None = None
    parent_id: str | None = None
    origin: Origin | None = None


class Shelf(Protocol):
    """Threads of one namespace."""

    @property
    def namespace(self) -> str:
        """The tenant; empty for none."""
        ...

    def elsewhere(self, namespace: str) -> Shelf:
        """The same storage for another tenant."""
        ...

    def write(self, writing: Writing) -> Checkpoint | None:
        """Append a checkpoint, durable when this returns; ``None`` when a hook of the store vetoed it."""
        ...

    def newest(self, thread_id: str) -> Checkpoint | None:
        """A thread's newest checkpoint with its content."""
        ...

    def find(self, thread_id: str, checkpoint_id: str) -> Checkpoint:
        """One checkpoint of a thread with its content, or `NotFound`."""
        ...

    def exists(self, thread_id: str) -> bool:
        """Whether the thread has a checkpoint."""
        ...

    def threads(self) -> Iterator[str | TreeringError]:
        """The ids of all threads; an error stands for one that cannot be read."""
        ...

    def history(self, thread_id: str) -> Iterator[Checkpoint]:
        """A thread's checkpoints, newest first, their content not read yet."""
        ...

    def fork(self, thread_id: str, new_id: str, checkpoint_id: str | None) -> Checkpoint:
        """Begin a new thread at a checkpoint of another one, with everything that it holds."""
        ...

    def remove(self, thread_id: str, *, cascade: bool) -> bool:
        """Remove a thread; whether there was one."""
        ...

    def refuse_to_block(self) -> None:
        """Raise `Unsupported` where a plain call would block a running event loop."""
        ...

    def close(self) -> None:
        """Let go of what this shelf opened."""
        ...


def check_expected(writing: Writing, newest: str | None) -> None:
    """Raise `Conflict` when the thread is not where the writer expects it."""
    if writing.expect is None or writing.expect == (newest or NEW):
        return
    if writing.expect == NEW:
        raise Conflict(f"thread {writing.thread_id!r} exists already; choose another id, or delete it first")
    raise Conflict(
        f"thread {writing.thread_id!r} is at {newest or 'nothing'}, not at {writing.expect}; load it again"
    )
