"""A checkpoint: a checkpoint together with its content, which is read when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.errors import Corrupt, InvalidInput, NotFound
from treering.threads import lists
from treering.threads.checkpoint_record import MESSAGES, CheckpointRecord, by_id
from treering.threads.hooks import check_count
from treering.threads.state_values import read_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    from treering.core.engine import Engine
    from treering.threads.thread import Thread
    from treering.workspaces.restore import LinkPolicy, RestoreResult

    T = TypeVar("T")


class Checkpoint:
    """One checkpoint of a thread: its record at once, its messages, lists and state when they are asked for.

    ``last`` makes `messages` the end of the conversation only. ``through`` is the thread that it was reached
    through, which `fork` needs.
    """

    def __init__(
        self,
        engine: Engine,
        space: str,
        record: CheckpointRecord,
        *,
        through: Thread | None = None,
        last: int | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._through = through
        self._last = last
        self._messages: list[Any] | None = None
        self._state: dict[str, Any] | None = None
        self.record = record

    def __repr__(self) -> str:
        return f"Checkpoint({self.record.short_id!r}, thread={self.thread_id!r}, step={self.step})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.record == self.record

    def __hash__(self) -> int:
        return hash(self.record.id)

    @property
    def id(self) -> str:
        """The checkpoint's id: ``ckpt_`` and a time-ordered id."""
        return self.record.id

    @property
    def short_id(self) -> str:
        """Enough of the id for a person to recognise it."""
        return self.record.short_id

    @property
    def thread_id(self) -> str:
        """The thread that this checkpoint belongs to."""
        return self.record.thread

    @property
    def namespace(self) -> str:
        """The namespace of that thread; empty for none."""
        return self.record.namespace

    @property
    def parent_id(self) -> str | None:
        """The checkpoint before."""
        return self.record.parent

    @property
    def step(self) -> int:
        """How many checkpoints lie before this one."""
        return self.record.step

    @property
    def created_at(self) -> str:
        """ISO 8601 with offset."""
        return self.record.created_at

    @property
    def note(self) -> str | None:
        """What the writer called it."""
        return self.record.note

    @property
    def tags(self) -> tuple[str, ...]:
        """The writer's tags."""
        return self.record.tags

    @property
    def metadata(self) -> dict[str, Any]:
        """The writer's own data about it."""
        return self.record.metadata

    @property
    def pending_interrupt(self) -> Any:
        """What the agent waits for a person to decide, if it does."""
        return self.record.pending_interrupt

    @property
    def message_count(self) -> int:
        """How many messages the whole conversation has up to here; reads none of them."""
        stretch = self.record.lists.get(MESSAGES)
        return 0 if stretch is None else stretch.length

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of its list channels; ``messages`` is one of them."""
        return tuple(self.record.lists)

    # Read once each, and without `cached_property`: up to Python 3.11 its lock is one for all checkpoints.
    @property
    def messages(self) -> list[Any]:
        """The conversation up to here: all of it, or the end that ``load(last=...)`` asked for."""
        if self._messages is None:
            self._messages = self.items(MESSAGES, last=self._last)
        return self._messages

    @property
    def state(self) -> dict[str, Any]:
        """All state values."""
        if self._state is None:
            self._state = self._read(lambda: read_state(self._engine, self._space, self.record.state))
        return self._state

    def value(self, name: str) -> Any:
        """One state value (``None`` when there is none of that name); the others are not read."""
        known = self.record.state.get(name)
        if known is None:
            return None
        return self._read(lambda: read_state(self._engine, self._space, {name: known}))[name]

    def last_messages(self, count: int) -> list[Any]:
        """Only the end of the conversation; what comes before it is not read."""
        return self.items(MESSAGES, last=count)

    def items(self, channel: str, *, last: int | None = None) -> list[Any]:
        """What a list channel held, or only its end; empty when there was none of that name."""
        check_count("last", last)
        stretch = self.record.lists.get(channel)
        if stretch is None or last == 0:
            return []
        return self._read(lambda: lists.read(self._engine, self._space, stretch, last=last))

    def fork(self, new_id: str, *, namespace: str | None = None) -> Thread:
        """A new thread that begins here and shares the past; O(1), whatever the length."""
        if self._through is None:
            raise InvalidInput(f"{self!r} was not reached through a thread; use thread.fork(new_id, at=...)")
        return self._through.fork(new_id, at=self, namespace=namespace)

    @property
    def snapshot(self) -> str | None:
        """The snapshot of the files as they were here (or last before), if any were kept."""
        kept = self.record.snapshot
        return None if kept is None else kept.removeprefix("o:")

    def restore(
        self,
        folder: str | Path,
        *,
        delete: bool = False,
        keep_before: bool = True,
        links: LinkPolicy = "preserve",
        dry_run: bool = False,
    ) -> RestoreResult:
        """Bring the files of this checkpoint back into a folder; see `Workspace.restore`."""
        if self.snapshot is None:
            raise NotFound(f"checkpoint {self.id!r} keeps no files; save with workspace= to keep them")
        if self._through is None:
            raise InvalidInput(f"{self!r} was not reached through a thread; use store.workspace.restore()")
        return self._through.workspace.restore(
            self.snapshot, folder, delete=delete, keep_before=keep_before, links=links, dry_run=dry_run
        )

    def to_dict(self, *, content: bool = True) -> dict[str, Any]:
        """Everything by name, for JSON and templates; ``content=False`` leaves out what would be read."""
        told: dict[str, Any] = {
            "id": self.id,
            "thread_id": self.thread_id,
            "namespace": self.namespace,
            "parent_id": self.parent_id,
            "step": self.step,
            "created_at": self.created_at,
            "note": self.note,
            "tags": list(self.tags),
            "metadata": self.metadata,
            "pending_interrupt": self.pending_interrupt,
            "message_count": self.message_count,
            "snapshot": self.snapshot,
        }
        if content:
            told["messages"] = self.messages
            told["state"] = self.state
            told["lists"] = {name: self.items(name) for name in self.list_names if name != MESSAGES}
        return told

    def _read(self, content: Callable[[], T]) -> T:
        try:
            return content()
        except Corrupt as error:
            if self._engine.scan(self._space, by_id(self.id), limit=1).records:
                raise Corrupt(f"checkpoint {self.id!r} cannot be read: {error}") from error
            raise NotFound(f"checkpoint {self.id!r} was removed since it was looked up") from error


def belongs_to(checkpoint: Checkpoint, engine: Engine, space: str) -> bool:
    """Return whether a checkpoint was read through this engine, in this space."""
    own = checkpoint._engine, checkpoint._space  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - of this file
    return own[0] is engine and own[1] == space
