"""Write checkpoints, and move the head of their thread to them.

Everything that saves a checkpoint goes through `CheckpointWriter`. What its callers need differs in four
points, and each is an argument:

=================  ====================  ==========================  ============================
caller             id and time           lists                       head
=================  ====================  ==========================  ============================
`Thread`           new                   compared with the last      from the version last seen,
                                         save, appended or cut       else `RefMoved`
adapters           new                   new messages behind a       the same; refs of the adapter
                                         prefix, perhaps of          move in the same batch
                                         another thread
LangGraph saver    computed from the     encoded by the saver;       only forwards, perhaps not
                   framework's own id    some items are stored       at all; subgraphs have heads
                                         already                     of their own
importers          given                 n items of the parent's     once, after the last of many
                                         list, then new ones         checkpoints
=================  ====================  ==========================  ============================

`save` is the whole operation for one checkpoint: write what is new in its lists and state, its row, and the
head by compare-and-swap, in one batch. A caller that puts more into a batch (several checkpoints, the writes
of a task) fills it itself with `put` and `put_head` and hands the function that does so to `commit`.

Items go behind the tail of their list. Where something follows there already (another writer, or a rewind
before), the engine refuses the batch with `ListMoved`; it is then filled again with child lists that share
the common prefix. **Invariant:** a checkpoint, what is new in it, the head and whatever the caller added are
stored together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import structs

from treering.core.batch import ABSENT, Draft
from treering.core.ids import thread_scope
from treering.errors import ListMoved
from treering.threads.checkpoint_record import (
    MESSAGES,
    EncodedMetadata,
    registered,
    write_checkpoint,
    write_state,
)
from treering.threads.history import encode_head, head_ref
from treering.threads.lists import write_list

if TYPE_CHECKING:
    from treering.core.batch import Expect, Receipt
    from treering.core.engine import Engine
    from treering.threads.checkpoint_record import CheckpointRecord, ListPrefix, StateValue
    from treering.threads.lists import ListChange

T = TypeVar("T")

_ATTEMPTS: Final = 3
"""The first appends to the lists, the others branch off from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadState:
    """The head of a thread as it was last read: a save replaces exactly this one."""

    checkpoint: CheckpointRecord
    version: int
    first_us: int
    """When the thread was first saved."""

    @property
    def messages(self) -> ListPrefix | None:
        """The messages of its checkpoint; ``None`` if it never had any."""
        return self.checkpoint.lists.get(MESSAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCheckpoint:
    """A checkpoint to write: its record with the lists and values that stay as they are, and what changes.

    ``state`` are new values by name; those equal to ``previous_state`` are not written again. ``origin`` is
    the checkpoint that this one was forked from or has as its parent, where that may be of another thread.
    ``metadata`` is the record's metadata, if the caller has encoded it already.
    """

    record: CheckpointRecord
    lists: Mapping[str, ListChange] = field(default_factory=dict["str", "ListChange"])
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    previous_state: Mapping[str, StateValue] = field(default_factory=dict["str", "StateValue"])
    origin: CheckpointRecord | None = None
    metadata: EncodedMetadata | None = None


class CheckpointWriter:
    """Writes the checkpoints of one space, and moves the heads of its threads."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def save(
        self,
        new: NewCheckpoint,
        seen: HeadState | None,
        *,
        batch_id: str | None = None,
        first_us: int | None = None,
        also: Callable[[Draft], None] | None = None,
    ) -> HeadState:
        """Write a checkpoint and move the head of its thread to it; return the head as it is then.

        ``seen`` is the head that must still be there (``None``: none). ``first_us`` is the first save of a
        thread that begins with this checkpoint, if not now. ``also`` adds to the same batch. Raises
        `RefMoved` if the head, or a ref of ``also``, moved meanwhile.
        """

        def fill(draft: Draft, append: bool) -> CheckpointRecord:  # noqa: FBT001 - as `commit` calls it
            record = self.put(draft, new, append=append)
            self._move(draft, record, seen, first_us)
            if also is not None:
                also(draft)
            return record

        record, receipt = self.commit(fill, batch_id=batch_id)
        return _state(record, receipt, seen, first_us)

    def move_head(
        self,
        record: CheckpointRecord,
        seen: HeadState | None,
        *,
        also: Callable[[Draft], None] | None = None,
    ) -> HeadState:
        """Move the head of a thread to one of its checkpoints that is stored already; as `save` otherwise."""
        draft = Draft(self._space)
        self._move(draft, record, seen, None)
        if also is not None:
            also(draft)
        return _state(record, self._engine.commit(draft.batch()), seen, None)

    def commit(self, fill: Callable[[Draft, bool], T], *, batch_id: str | None = None) -> tuple[T, Receipt]:
        """Commit what ``fill`` puts into a batch; return its result, and the receipt.

        ``fill`` is called with the batch and with ``append`` for `put`: true at first, false where a list's
        tail had been taken and the batch is filled anew.
        """
        failures = 0
        while True:
            draft = Draft(self._space, id=batch_id)
            result = fill(draft, not failures)
            try:
                return result, self._engine.commit(draft.batch())
            except ListMoved:
                failures += 1
                if failures == _ATTEMPTS:
                    raise

    def put(self, draft: Draft, new: NewCheckpoint, *, append: bool = True) -> CheckpointRecord:
        """Add a checkpoint to a batch, with what is new in its lists and state; return its whole record."""
        record = new.record
        scope = thread_scope(record.thread, record.namespace)
        lists, state = record.lists, record.state
        if new.lists:
            written = {
                name: write_list(draft, self._engine, change, scope=scope, append=append)
                for name, change in new.lists.items()
            }
            lists = {**lists, **written}
        if new.state:
            state = {**state, **write_state(draft, new.previous_state, new.state, scope=scope)}
        if new.lists or new.state:
            record = structs.replace(record, lists=lists, state=state)
        extension = registered()
        depends_on = None if extension is None else extension.required_scope(record, new.origin)
        write_checkpoint(draft, record, metadata=new.metadata, depends_on=depends_on)
        return record

    def put_head(self, draft: Draft, record: CheckpointRecord, *, expect: Expect, first_us: int) -> None:
        """Add a move of the head of a checkpoint's thread to a batch."""
        draft.set_ref(
            head_ref(record.thread, record.namespace),
            encode_head(record, first_us),
            scope=thread_scope(record.thread, record.namespace),
            expect=expect,
        )

    def _move(
        self, draft: Draft, record: CheckpointRecord, seen: HeadState | None, first_us: int | None
    ) -> None:
        expect = ABSENT if seen is None else seen.version
        self.put_head(draft, record, expect=expect, first_us=_first_us(record, seen, first_us))


def _first_us(record: CheckpointRecord, seen: HeadState | None, first_us: int | None) -> int:
    if seen is not None:
        return seen.first_us
    return record.created_at_us if first_us is None else first_us


def _state(
    record: CheckpointRecord, receipt: Receipt, seen: HeadState | None, first_us: int | None
) -> HeadState:
    return HeadState(
        checkpoint=record,
        version=receipt.versions[head_ref(record.thread, record.namespace)],
        first_us=_first_us(record, seen, first_us),
    )
