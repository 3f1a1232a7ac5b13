"""A saver's checkpoint, what can be saved, and what a saver needs of its storage.

A `Checkpoint` knows everything about itself but its content: messages and state are read when they are first
used. `Saver.load` and all async calls return checkpoints with their content; only `Saver.list` returns ones
that still have to read it, so that a long history can be counted and walked through without reading every
conversation in it.

There are two storages: `treering.compat.savers.store_saver.ThreadStorage` on a treering store, and
`treering.compat.savers.kv_saver.KeyValueStorage` on any key-value store. What users meet (`Saver`) is the
same on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Final, Protocol, TypedDict, cast, overload

import msgspec

from treering.core.clock import from_datetime, to_iso
from treering.core.ids import check_id
from treering.core.retention import Keep
from treering.errors import Conflict, InvalidInput, TreeringError
from treering.threads.hooks import check_step, save_request

NEW: Final = "new"
"""As ``expect``: the thread must not exist yet."""

INITIAL_STATE: Final[dict[str, Any]] = {"todos": [], "files": {}}
"""The state of a thread whose first checkpoint says nothing about it."""


class LazyContent(msgspec.Struct, frozen=True):
    """How a checkpoint's messages and state are read."""

    messages: Callable[[], list[Any]]
    state: Callable[[], dict[str, Any]]

    def override(self, messages: Sequence[Any] | None, state: dict[str, Any] | None) -> LazyContent:
        """Return this content with the given parts instead of its own; ``None`` keeps a part."""
        return LazyContent(
            self.messages if messages is None else lambda: list(messages),
            self.state if state is None else lambda: dict(state),
        )


class CheckpointHeader(msgspec.Struct, frozen=True, kw_only=True):
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

    def __init__(self, header: CheckpointHeader, content: LazyContent) -> None:
        self.header: Final = header
        self._content = content
        self._messages: list[Any] | None = None
        self._state: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """``ckpt_`` and a time-ordered id."""
        return self.header.id

    @property
    def thread_id(self) -> str:
        """The thread that it belongs to."""
        return self.header.thread_id

    @property
    def namespace(self) -> str:
        """The tenant that the thread belongs to; empty for none."""
        return self.header.namespace

    @property
    def parent_id(self) -> str | None:
        """The checkpoint before this one; for a fork's first one, a checkpoint of the original thread."""
        return self.header.parent_id

    @property
    def step(self) -> int:
        """The number of steps before it, unless the writer counts in another way."""
        return self.header.step

    @property
    def pending_interrupt(self) -> Any:
        """What the agent waits for a person to decide, or ``None``."""
        return self.header.pending_interrupt

    @property
    def created_at(self) -> str:
        """When the thread was first saved, ISO 8601 with offset."""
        return to_iso(self.header.created_at_us)

    @property
    def updated_at(self) -> str:
        """When this checkpoint was saved, ISO 8601 with offset."""
        return to_iso(self.header.updated_at_us)

    @property
    def metadata(self) -> dict[str, Any]:
        """The writer's own data about it."""
        return self.header.metadata

    @property
    def note(self) -> str | None:
        """The writer's name for it."""
        return self.header.note

    @property
    def tags(self) -> tuple[str, ...]:
        """The writer's tags."""
        return self.header.tags

    # Not a `cached_property`: up to Python 3.11 it has one lock for all checkpoints.
    @property
    def messages(self) -> list[Any]:
        """The whole conversation up to here."""
        if self._messages is None:
            self._messages = self._content.messages()
        return self._messages

    @property
    def state(self) -> dict[str, Any]:
        """All state values; an agent's are ``todos`` and ``files``."""
        if self._state is None:
            self._state = self._content.state()
        return self._state

    def read(self) -> Checkpoint:
        """Read the content now; after that, the checkpoint does not need its saver."""
        messages, state = self.messages, self.state
        self._content = LazyContent(lambda: messages, lambda: state)
        return self

    def replace(self, **changes: Any) -> Checkpoint:
        """Return a copy with other fields: ``replace(metadata={...}, messages=[...])``."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _ALL_FIELDS} | changes
        if unknown := sorted(set(fields) - set(_ALL_FIELDS)):
            raise InvalidInput(
                f"a checkpoint has no {', '.join(unknown)}; its fields are {', '.join(_ALL_FIELDS)}"
            )
        messages, state = fields.pop("messages"), fields.pop("state")
        for name in ("created_at", "updated_at"):
            fields[f"{name}_us"] = _us(fields.pop(name), name)
        fields["tags"] = tuple(fields["tags"])
        return Checkpoint(CheckpointHeader(**fields), LazyContent(lambda: messages, lambda: state))

    def to_dict(self) -> dict[str, Any]:
        """Return every field by its name, as plain data."""
        return {name: getattr(self, name) for name in _ALL_FIELDS} | {"tags": list(self.tags)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.to_dict() == self.to_dict()

    def __hash__(self) -> int:
        return hash(self.id)

    def __lt__(self, other: Checkpoint) -> bool:
        """Whether it was saved earlier."""
        mine, theirs = self.header, other.header
        return (mine.updated_at_us, mine.id) < (theirs.updated_at_us, theirs.id)

    def __repr__(self) -> str:
        namespace = f", namespace={self.namespace!r}" if self.namespace else ""
        return f"Checkpoint({self.id!r}, thread={self.thread_id!r}{namespace}, step={self.step})"

    def without_content(self) -> Checkpoint:
        """Return the same checkpoint with its content not read yet."""
        return Checkpoint(self.header, self._content)


class CheckpointList(Sequence[Checkpoint]):
    """What `Saver.list` returns: a list that reads checkpoints when they are first asked for.

    Counting, indexing and sorting read no messages and no state. What was read once stays as it was; list
    again to see what was saved meanwhile. An error in reading comes whenever that place is reached.
    """

    def __init__(self, source: Iterator[Checkpoint]) -> None:
        self._source = source
        self._known: list[Checkpoint] = []
        self._end: Exception | None = None
        self._lock = Lock()

    def __iter__(self) -> Iterator[Checkpoint]:
        at = 0
        while self._reach(at):
            yield self._known[at].without_content()  # a copy: a reader of the whole list keeps no content
            at += 1

    def __len__(self) -> int:
        self._reach(None)
        return len(self._known)

    def __bool__(self) -> bool:
        return self._reach(0)

    @overload
    def __getitem__(self, index: int) -> Checkpoint: ...
    @overload
    def __getitem__(self, index: slice) -> list[Checkpoint]: ...
    def __getitem__(self, index: int | slice) -> Checkpoint | list[Checkpoint]:
        ends = (index.start, index.stop) if isinstance(index, slice) else (index, index)
        last = None if None in ends[1:] or any(each is not None and each < 0 for each in ends) else ends[1]
        self._reach(last)
        if isinstance(index, slice):
            return [each.without_content() for each in self._known[index]]
        return self._known[index].without_content()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, CheckpointList)) and list(self) == list(cast("Any", other))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as a list

    def __repr__(self) -> str:
        return repr(list(self))

    def _reach(self, index: int | None) -> bool:
        """Read up to an index (``None``: to the end); return whether there is a checkpoint at it."""
        with self._lock:
            while index is None or len(self._known) <= index:
                if self._end is None:
                    try:
                        self._known.append(next(self._source).without_content())
                        continue
                    except Exception as error:  # noqa: BLE001 - raised below, now and whenever it is asked again
                        self._end = error
                if not isinstance(self._end, StopIteration):
                    raise self._end
                return False
            return True


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint that was made elsewhere keeps of its own: its id, parent and times."""

    id: str
    parent_id: str | None
    created_at_us: int
    updated_at_us: int


class NewCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to append. ``messages`` or ``state`` of ``None`` stay as in the one before.

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

    def check_expected(self, newest: str | None) -> None:
        """Raise `Conflict` if the thread's newest checkpoint is not the expected one."""
        if self.expect is None or self.expect == (newest or NEW):
            return
        if self.expect == NEW:
            raise Conflict(f"thread {self.thread_id!r} already exists; choose another id, or delete it first")
        raise Conflict(
            f"thread {self.thread_id!r} is at {newest or 'nothing'}, not at {self.expect}; load it again"
        )


class SaverStorage(Protocol):
    """Where a saver keeps the threads of one namespace: appended to, and read back."""

    @property
    def namespace(self) -> str:
        """The tenant; empty for none."""
        ...

    def in_namespace(self, namespace: str) -> SaverStorage:
        """Return the same storage for another tenant."""
        ...

    def save(self, new: NewCheckpoint) -> Checkpoint:
        """Append a checkpoint, durable when this returns."""
        ...

    def newest(self, thread_id: str) -> Checkpoint | None:
        """Return a thread's newest checkpoint with its content."""
        ...

    def find(self, thread_id: str, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint of a thread with its content, or raise `NotFound`."""
        ...

    def exists(self, thread_id: str) -> bool:
        """Whether the thread has a checkpoint."""
        ...

    def threads(self) -> Iterator[str | TreeringError]:
        """Yield the ids of all threads, and an error for each one that cannot be read."""
        ...

    def history(self, thread_id: str) -> Iterator[Checkpoint]:
        """Yield a thread's checkpoints, newest first, without reading their content."""
        ...

    def fork(self, thread_id: str, new_id: str, checkpoint_id: str | None) -> Checkpoint:
        """Create a thread from a checkpoint of another one, with everything that it holds."""
        ...

    def delete(self, thread_id: str, *, cascade: bool) -> bool:
        """Delete a thread; return whether it existed."""
        ...

    def refuse_to_block(self) -> None:
        """Raise `Unsupported` where a sync call would block a running event loop."""
        ...

    def close(self) -> None:
        """Close what this storage opened."""
        ...


class CheckpointFields(TypedDict, total=False):
    """The arguments of `Saver.save`; ``messages`` and ``state`` that are left out stay as they were."""

    thread_id: str
    messages: Sequence[Any] | None
    state: Mapping[str, Any] | None
    pending_interrupt: Any
    metadata: Mapping[str, Any] | None
    note: str | None
    tags: Sequence[str]
    step: int | None
    expect: str | None


def parse_checkpoint(
    checkpoint: Checkpoint | Mapping[str, Any] | None, fields: Mapping[str, Any], namespace: str
) -> NewCheckpoint:
    """Validate what a caller wants to save: a checkpoint, a dict, fields by name (which win), or both."""
    given = {**_fields_of(checkpoint, namespace), **fields}
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise InvalidInput(f"a checkpoint has no {', '.join(unknown)}; its fields are {', '.join(_FIELDS)}")
    if "thread_id" not in given:
        raise InvalidInput("save needs a thread_id: save(thread_id='conversation-1', messages=[...])")
    step = given.get("step")
    check_step(step)
    content: dict[str, Any] = {name: given[name] for name in _CONTENT if name in given}
    request = save_request(check_thread_id(given["thread_id"]), namespace, **content)
    return NewCheckpoint(
        thread_id=request.thread_id,
        messages=request.messages,
        state=request.state,
        pending_interrupt=request.pending_interrupt,
        metadata=request.metadata,
        note=request.note,
        tags=request.tags,
        step=step,
        expect=given.get("expect"),
    )


def check_thread_id(thread_id: str) -> str:
    """Return the thread id, or raise `InvalidInput`."""
    return check_id(thread_id, "thread id")


def check_namespace(namespace: str) -> str:
    """Return the namespace, or raise `InvalidInput`; empty stands for none."""
    return check_id(namespace, "namespace") if namespace else ""


def check_keep(keep: Any) -> Keep | None:
    """Return the retention policy, or raise `InvalidInput`."""
    if keep is None or isinstance(keep, Keep):
        return keep
    raise InvalidInput(f"keep is of type {type(keep).__name__}; give treering.Keep(last=50), or leave it out")


_FIELDS: Final = tuple(CheckpointFields.__annotations__)
_CONTENT: Final = ("messages", "state", "pending_interrupt", "metadata", "note", "tags")
_SET_BY_SAVER: Final = frozenset({"id", "parent_id", "namespace", "created_at", "updated_at"})
_ALL_FIELDS: Final = (
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


def _fields_of(checkpoint: Checkpoint | Mapping[str, Any] | None, namespace: str) -> dict[str, Any]:
    if checkpoint is None:
        return {}
    if isinstance(checkpoint, Checkpoint):
        return {name: getattr(checkpoint, name) for name in ("thread_id", *_CONTENT)}
    if not isinstance(cast("object", checkpoint), Mapping):
        raise InvalidInput(f"{type(checkpoint).__name__} is no checkpoint; give fields by name, or a dict")
    if (checkpoint.get("namespace") or namespace) != namespace:
        raise InvalidInput(
            f"this saver is for namespace {namespace!r}, the checkpoint is of {checkpoint['namespace']!r}; "
            "save it with in_namespace(...)"
        )
    return {name: value for name, value in checkpoint.items() if name not in _SET_BY_SAVER}


def _us(time: Any, name: str) -> int:
    from datetime import datetime

    try:
        return from_datetime(time if isinstance(time, datetime) else datetime.fromisoformat(time))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{name}={time!r} is no time; give ISO 8601 text or a datetime ({error})"
        ) from None
