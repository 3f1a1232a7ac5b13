"""A checkpoint as a saver gives it: one checkpoint of a thread with everything that belongs to it.

Its record is at hand; messages and state are read when they are first asked for, unless they are there
already. `Saver.load` and all async calls give checkpoints with their content; only `Saver.list` gives ones
that still have to read it, so that looking through a long history does not read every conversation in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypedDict, cast

import msgspec

from treering.core.clock import from_datetime, to_iso
from treering.core.ids import check_id
from treering.core.retention import Keep
from treering.errors import Conflict, InvalidInput, TreeringError
from treering.threads.hooks import asked, check_step


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
    """One checkpoint of a thread. ``created_at`` is the thread's first save, ``updated_at`` this one's."""

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


# -----------------------------------------------------------------------------------------------------------
# What a saver needs of its storage: threads of checkpoints, appended to and read back.
#
# There are two shelves: `StoreShelf` on a treering store, and `KeyValueShelf` on four methods that keep
# values under keys. What users meet (`Saver`) is the same on both.


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


# -----------------------------------------------------------------------------------------------------------
# What can be saved, and how a caller may say it: by name, as a dict, or as a checkpoint that was loaded.


class Fields(TypedDict, total=False):
    """What can be saved; ``messages`` and ``state`` that are left out stay as they were."""

    thread_id: str
    messages: Sequence[Any] | None
    state: Mapping[str, Any] | None
    pending_interrupt: Any
    metadata: Mapping[str, Any] | None
    note: str | None
    tags: Sequence[str]
    step: int | None
    expect: str | None


def writing_of(
    checkpoint: Checkpoint | Mapping[str, Any] | None, fields: Mapping[str, Any], namespace: str
) -> Writing:
    """The checkpoint to be written; fields by name win."""
    given = {**_given(checkpoint, namespace), **fields}
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise InvalidInput(f"a checkpoint has no {', '.join(unknown)}; it has {', '.join(_FIELDS)}")
    if "thread_id" not in given:
        raise InvalidInput("save needs a thread_id: save(thread_id='conversation-1', messages=[...])")
    step = given.get("step")
    check_step(step)
    content: dict[str, Any] = {name: given[name] for name in _CONTENT if name in given}
    saving = asked(checked(given["thread_id"]), namespace, **content)
    return Writing(
        thread_id=saving.thread_id,
        messages=saving.messages,
        state=saving.state,
        pending_interrupt=saving.pending_interrupt,
        metadata=saving.metadata,
        note=saving.note,
        tags=saving.tags,
        step=step,
        expect=given.get("expect"),
    )


def checked(thread_id: str) -> str:
    """The thread id if it can be one."""
    return check_id(thread_id, "thread id")


def checked_keep(keep: Any) -> Keep | None:
    """The retention, if it is one."""
    if keep is None or isinstance(keep, Keep):
        return keep
    raise InvalidInput(f"keep is of type {type(keep).__name__}; give treering.Keep(last=50), or leave it out")


def checked_namespace(namespace: str) -> str:
    """The namespace if it can be one; empty stands for none."""
    return check_id(namespace, "namespace") if namespace else ""


def _given(checkpoint: Checkpoint | Mapping[str, Any] | None, namespace: str) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    if isinstance(checkpoint, Checkpoint):
        return {name: getattr(checkpoint, name) for name in _OF_A_LOADED_ONE}
    if not isinstance(cast("object", checkpoint), Mapping):
        raise InvalidInput(f"{type(checkpoint).__name__} is no checkpoint; give fields by name, or a dict")
    given = {name: value for name, value in checkpoint.items() if name not in _OF_THE_SAVER}
    if (checkpoint.get("namespace") or namespace) != namespace:
        raise InvalidInput(
            f"this saver is for namespace {namespace!r}, the checkpoint is of {checkpoint['namespace']!r}; "
            "save it with in_namespace(...)"
        )
    return given


_FIELDS: Final = tuple(Fields.__annotations__)
_CONTENT: Final = ("messages", "state", "pending_interrupt", "metadata", "note", "tags")
_OF_A_LOADED_ONE: Final = ("thread_id", *_CONTENT)
_OF_THE_SAVER: Final = frozenset({"id", "parent_id", "namespace", "created_at", "updated_at"})
