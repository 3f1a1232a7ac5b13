"""A checkpoint with its content, which is read when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.errors import Corrupt, InvalidInput, NotFound
from treering.threads import lists
from treering.threads.checkpoint_record import MESSAGES, CheckpointRecord, by_id, read_state
from treering.threads.hooks import check_count

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TypeVar

    from treering.core.engine import Engine
    from treering.threads.thread import Thread
    from treering.workspaces.restore import LinkPolicy, RestoreResult

    T = TypeVar("T")


class Checkpoint:
    """One checkpoint of a thread. Its messages, lists and state are read on first use.

    ``last`` limits `messages` to the end of the conversation. ``through`` is the thread object that it was
    loaded by, which `fork` and `restore` require.
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
        """The beginning of the id, enough for a person to recognise it."""
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
        """The id of the previous checkpoint."""
        return self.record.parent

    @property
    def step(self) -> int:
        """The number of checkpoints before this one, unless the writer numbers steps itself."""
        return self.record.step

    @property
    def created_at(self) -> str:
        """ISO 8601 with offset."""
        return self.record.created_at

    @property
    def note(self) -> str | None:
        """The writer's description of it."""
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
        """What the agent waits for a person to decide, if anything."""
        return self.record.pending_interrupt

    @property
    def message_count(self) -> int:
        """The number of messages of the whole conversation up to here, without reading them."""
        prefix = self.record.lists.get(MESSAGES)
        return 0 if prefix is None else prefix.length

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of its list channels; ``messages`` is one of them."""
        return tuple(self.record.lists)

    # Without `cached_property`: until Python 3.11 it has one lock for all checkpoints.
    @property
    def messages(self) -> list[Any]:
        """The conversation up to here: all of it, or only the end if loaded with ``load(last=...)``."""
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
        """Return one state value without reading the others; ``None`` if there is none of that name."""
        known = self.record.state.get(name)
        if known is None:
            return None
        return self._read(lambda: read_state(self._engine, self._space, {name: known}))[name]

    def last_messages(self, count: int) -> list[Any]:
        """Return the last messages without reading those before them."""
        return self.items(MESSAGES, last=count)

    def items(self, channel: str, *, last: int | None = None) -> list[Any]:
        """Return the items of a list channel, or only the last ones; empty if there is none of that name."""
        check_count("last", last)
        prefix = self.record.lists.get(channel)
        if prefix is None or last == 0:
            return []
        return self._read(lambda: lists.read(self._engine, self._space, prefix, last=last))

    def fork(self, new_id: str, *, namespace: str | None = None) -> Thread:
        """Start a new thread here. It shares the past of this one; O(1) in its length."""
        if self._through is None:
            raise InvalidInput(f"{self!r} was not loaded by a thread; use thread.fork(new_id, at=...)")
        return self._through.fork(new_id, at=self, namespace=namespace)

    @property
    def snapshot(self) -> str | None:
        """The newest snapshot of files up to here, if any were saved."""
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
        """Restore the files of this checkpoint into a folder; see `Workspace.restore`."""
        if self.snapshot is None:
            raise NotFound(f"checkpoint {self.id!r} has no files; save them with workspace=")
        if self._through is None:
            raise InvalidInput(f"{self!r} was not loaded by a thread; use store.workspace.restore()")
        return self._through.workspace.restore(
            self.snapshot, folder, delete=delete, keep_before=keep_before, links=links, dry_run=dry_run
        )

    def to_dict(self, *, content: bool = True) -> dict[str, Any]:
        """Return all fields by name; ``content=False`` leaves out messages, state and lists."""
        fields: dict[str, Any] = {
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
            fields["messages"] = self.messages
            fields["state"] = self.state
            fields["lists"] = {name: self.items(name) for name in self.list_names if name != MESSAGES}
        return fields

    def _read(self, content: Callable[[], T]) -> T:
        try:
            return content()
        except Corrupt as error:
            if self._engine.scan(self._space, by_id(self.id), limit=1).records:
                raise Corrupt(f"checkpoint {self.id!r} cannot be read: {error}") from error
            raise NotFound(f"checkpoint {self.id!r} was removed after it was looked up") from error


def belongs_to(checkpoint: Checkpoint, engine: Engine, space: str) -> bool:
    """Return whether a checkpoint was read through this engine, in this space."""
    own = checkpoint._engine, checkpoint._space  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - of this file
    return own[0] is engine and own[1] == space
