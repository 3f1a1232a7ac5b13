"""What goes in and comes out of the routes of threads, and how it is made of the views' own records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from treering.core.clock import to_iso
from treering.views.checkpoints import Checkpoint
from treering.views.directory import ThreadInfo
from treering.views.moments import Moment

Limit = Annotated[int, Meta(ge=1, le=500)]
Which = Annotated[str, Meta(min_length=1)]
"""A moment: its id, its step, ``~1`` or a time."""


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose thread."""

    namespace: str = ""


class ThreadsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which threads: those whose ids start so; of every namespace, unless one is named."""

    prefix: str = ""
    namespace: str | None = None
    limit: Limit = 50
    cursor: str | None = None


class ThreadLine(Struct, frozen=True, kw_only=True):
    """A thread in a list."""

    id: str
    namespace: str
    head: str
    step: int
    created_at: str
    updated_at: str


class ThreadList(Struct, frozen=True, kw_only=True):
    """Threads, the last changed first."""

    threads: tuple[ThreadLine, ...]
    total: int
    next_cursor: str | None


class MomentLine(Struct, frozen=True, kw_only=True):
    """A moment without its content."""

    id: str
    thread: str
    namespace: str
    parent: str | None
    step: int
    created_at: str
    note: str | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    pending_interrupt: Any
    message_count: int
    snapshot: str | None


class MomentContent(Struct, frozen=True, kw_only=True):
    """A moment, whole; ``first_message`` is the place of the first message that is shown."""

    moment: MomentLine
    messages: list[Any]
    first_message: int
    state: dict[str, Any]
    lists: dict[str, list[Any]]


class ContentQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a moment: only the last messages, if asked for."""

    namespace: str = ""
    last: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which moments; ``everything`` also shows those that a rewind left behind."""

    namespace: str = ""
    limit: Limit = 100
    cursor: Which | None = None
    tag: tuple[str, ...] = ()
    everything: bool = False


class History(Struct, frozen=True, kw_only=True):
    """Moments, newest first."""

    moments: tuple[MomentLine, ...]
    next_cursor: str | None


class LineageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of a thread's growth."""

    namespace: str = ""
    limit: Limit = 200
    cursor: Which | None = None


class RewindLine(Struct, frozen=True, kw_only=True):
    """The head moved back."""

    at: str
    before: str | None
    to: str


class ForkLine(Struct, frozen=True, kw_only=True):
    """Another thread that began at a moment of this one."""

    thread: str
    namespace: str
    at: str
    head: str
    step: int


class Lineage(Struct, frozen=True, kw_only=True):
    """How a thread grew: its moments (newest first), which of them lead to the head, rewinds and forks."""

    thread: ThreadLine
    moments: tuple[MomentLine, ...]
    line: tuple[str, ...]
    rewinds: tuple[RewindLine, ...]
    forks: tuple[ForkLine, ...]
    origin: MomentLine | None
    next_cursor: str | None


class DiffQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which two moments; of two threads, if ``other`` names the one of ``b``."""

    a: Which
    b: Which
    namespace: str = ""
    other: str | None = None


class NewMoment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to save. What is left out stays as it was; ``append`` adds to the messages instead."""

    messages: list[Any] | None = None
    append: list[Any] | None = None
    state: dict[str, Any] | None = None
    lists: dict[str, list[Any]] | None = None
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()
    expect_head: str | UnsetType | None = UNSET
    """The head that you know (null: none yet); if it is another one by now, that is a conflict."""


class NewFork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new thread, and the moment where it begins (without one: the head)."""

    new_id: Annotated[str, Meta(min_length=1)]
    at: Which | None = None
    namespace: str | None = None


class Back(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to go back to."""

    to: Which


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was decided about the pending interrupt."""

    decision: Literal["approve", "deny", "edit"]
    interrupt_id: str | None = None
    value: Any = None


class DeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to delete; ``cascade`` takes forks along that share its past."""

    namespace: str = ""
    cascade: bool = False


def thread_line(info: ThreadInfo) -> ThreadLine:
    """A thread as a line."""
    return ThreadLine(
        id=info.id,
        namespace=info.namespace,
        head=info.head,
        step=info.step,
        created_at=to_iso(info.created_at_us),
        updated_at=to_iso(info.updated_at_us),
    )


def moment_line(checkpoint: Checkpoint) -> MomentLine:
    """A moment as a line."""
    messages = checkpoint.lists.get("messages")
    return MomentLine(
        id=checkpoint.id,
        thread=checkpoint.thread,
        namespace=checkpoint.namespace,
        parent=checkpoint.parent,
        step=checkpoint.step,
        created_at=checkpoint.created_at,
        note=checkpoint.note,
        tags=tuple(checkpoint.tags),
        metadata=checkpoint.metadata,
        pending_interrupt=checkpoint.pending_interrupt,
        message_count=0 if messages is None else messages.length,
        snapshot=checkpoint.snapshot,
    )


def moment_content(moment: Moment, last: int | None) -> MomentContent:
    """A moment with what it holds; with ``last``, only that many messages from the end."""
    messages = moment.messages if last is None else moment.last_messages(last)
    return MomentContent(
        moment=moment_line(moment.checkpoint),
        messages=messages,
        first_message=moment.message_count - len(messages),
        state=moment.state,
        lists={name: moment.items(name) for name in moment.list_names if name != "messages"},
    )
