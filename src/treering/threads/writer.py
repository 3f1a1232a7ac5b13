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

A `ListChange` says what a list channel holds next: the first items of an existing list, then new ones. Only
the new ones are written, behind the tail of the list. Where something follows there already (another writer,
or a rewind before), the engine refuses the batch with `ListMoved`; it is then filled again with child lists
that share the common prefix. A list that became shorter writes nothing at all.

**Invariant:** a checkpoint, what is new in it, the head and whatever the caller added are stored together or
not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import structs

from treering.core.batch import ABSENT, Draft, Listing
from treering.core.encoding import encode
from treering.core.forks import forked_thread
from treering.core.ids import namespace_prefix, new_id, thread_scope
from treering.core.records import MAX_LIST_DEPTH, branch_point
from treering.errors import Conflict, Corrupt, ListMoved
from treering.threads.checkpoint import (
    MESSAGES,
    CheckpointRecord,
    EncodedMetadata,
    ListPrefix,
    SavedIn,
    extension_of,
    incomplete_list,
    read_list,
    write_checkpoint,
    write_state,
)
from treering.threads.compaction import valid_compactions
from treering.threads.hooks import COMPACTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Expect, Receipt
    from treering.core.content import Address, Content
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.threads.checkpoint import StateValue

T = TypeVar("T")

_ATTEMPTS: Final = 3
"""The first appends to the lists, the others branch off from them."""
HEADS: Final = "thread/"
THREADS: Final = "threads"
"""The list of the heads, by the time at which they moved."""
WAITING: Final = "waiting"
"""The status, in that list, of a head whose checkpoint waits for a person."""


def head_ref(thread_id: str, namespace: str) -> str:
    """Return the name of the ref that is a thread's head; two threads never share one."""
    return heads_prefix(namespace) + thread_id


def heads_prefix(namespace: str) -> str:
    """Return what the heads of a namespace, and of no other, start with."""
    return HEADS + namespace_prefix(namespace)


class HeadValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ref of a head holds, as JSON: its checkpoint, and what a list of threads shows.

    Retention finds the checkpoint that a head holds by the key ``checkpoint``.
    """

    checkpoint: str
    first_us: int
    """When the thread was first saved."""
    step: int
    thread: str
    namespace: str = ""
    updated_us: int | None = None
    """When an imported thread was last changed; ``None``: when the head moved."""


_encode_head: Final = msgspec.json.Encoder().encode
_decode_head: Final = msgspec.json.Decoder(HeadValue).decode


def encode_head(checkpoint: CheckpointRecord, first_us: int, updated_us: int | None = None) -> bytes:
    """Return what the head of a thread holds when it is at this checkpoint."""
    return _encode_head(
        HeadValue(
            checkpoint.id, first_us, checkpoint.step, checkpoint.thread, checkpoint.namespace, updated_us
        )
    )


def read_head(ref: Ref) -> HeadValue:
    """Return what a head holds. Raise `Corrupt` if it cannot be read."""
    try:
        return _decode_head(ref.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the head {ref.name!r} cannot be read ({error}); run `treering verify`, restore from a backup"
        ) from None


def head_listing(checkpoint: CheckpointRecord, updated_us: int | None = None) -> Listing:
    """Return where the head of a thread is listed when it is at this checkpoint."""
    is_waiting = checkpoint.pending_interrupt is not None
    status = WAITING if is_waiting else None
    return Listing(list=THREADS, namespace=checkpoint.namespace, at_us=updated_us, status=status)


class HeadState(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a thread as it was last read: a save replaces exactly this one."""

    checkpoint: CheckpointRecord
    version: int
    first_us: int
    """When the thread was first saved."""

    @property
    def messages(self) -> ListPrefix | None:
        """The messages of its checkpoint; ``None`` if it never had any."""
        return self.checkpoint.lists.get(MESSAGES)


class NewCheckpoint(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A checkpoint to write: its record with the lists and values that stay as they are, and what changes.

    ``state`` are new values by name; those equal to ``previous_state`` are not written again. ``origin`` is
    the checkpoint that this one was forked from or has as its parent, where that may be of another thread.
    ``metadata`` is the record's metadata, if the caller has encoded it already. ``is_revision`` says that the
    checkpoint is stored already, and is to be replaced. ``saved_in`` is the run that saved it, if that is not
    the current one.
    """

    record: CheckpointRecord
    lists: Mapping[str, ListChange] = msgspec.field(default_factory=dict["str", "ListChange"])
    state: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    previous_state: Mapping[str, StateValue] = msgspec.field(default_factory=dict["str", "StateValue"])
    origin: CheckpointRecord | None = None
    metadata: EncodedMetadata | None = None
    is_revision: bool = False
    saved_in: SavedIn | None = None


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
        if forked_thread(self._engine, self._space, record.namespace, record.thread) != record.thread:
            raise Conflict(
                f"thread {record.thread!r} is being rerun, and its agent writes to a fork of it; open the "
                "thread inside of the agent, and not before the rerun"
            )
        scope = thread_scope(record.thread, record.namespace)
        lists, state = record.lists, record.state
        if new.lists:
            lists = self._valid_compactions(lists, new.lists)
            written = {
                name: write_list(draft, self._engine, change, scope=scope, append=append)
                for name, change in new.lists.items()
            }
            lists = {**lists, **written}
        if new.state:
            state = {**state, **write_state(draft, new.previous_state, new.state, scope=scope)}
        if new.lists or new.state:
            record = structs.replace(record, lists=lists, state=state)
        extension = extension_of(record.metadata)
        depends_on = None if extension is None else extension.required_scope(record, new.origin)
        write_checkpoint(
            draft,
            record,
            metadata=new.metadata,
            depends_on=depends_on,
            is_revision=new.is_revision,
            saved_in=new.saved_in,
        )
        return record

    def _valid_compactions(
        self, lists: dict[str, ListPrefix], changes: Mapping[str, ListChange]
    ) -> dict[str, ListPrefix]:
        """Return the lists without compactions that stand for messages which are changed or cut off."""
        made, messages, change = lists.get(COMPACTIONS), lists.get(MESSAGES), changes.get(MESSAGES)
        if made is None or messages is None or change is None or COMPACTIONS in changes:
            return lists
        kept = change.keep if change.base is not None and change.base.list == messages.list else 0
        if kept >= messages.length or not made.length:
            return lists
        count = valid_compactions(read_list(self._engine, self._space, made), kept)
        return {**lists, COMPACTIONS: ListPrefix(made.list, count)}

    def put_head(
        self,
        draft: Draft,
        record: CheckpointRecord,
        *,
        expect: Expect,
        first_us: int,
        updated_us: int | None = None,
    ) -> None:
        """Add a move of the head of a checkpoint's thread to a batch.

        The thread is listed as changed at ``updated_us``, if not now.
        """
        draft.set_ref(
            head_ref(record.thread, record.namespace),
            encode_head(record, first_us, updated_us),
            scope=thread_scope(record.thread, record.namespace),
            expect=expect,
            listing=head_listing(record, updated_us),
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


class ListChange(msgspec.Struct, frozen=True, eq=False):
    """What a list channel holds next: the first ``keep`` items of ``base``, then ``contents``.

    Without a ``base`` a list of its own begins, named ``list_id`` if that is given. An item is content, or
    the address of content that is stored already or comes with the same batch. ``branch`` says that something
    is known to follow the end of ``base`` already.
    """

    base: ListPrefix | None = None
    keep: int = 0
    contents: Sequence[Content | Address] = ()
    list_id: str | None = None
    branch: bool = False


def behind(prefix: ListPrefix | None, items: Sequence[Any]) -> ListChange:
    """Return the change that puts items behind a prefix (into a list of their own, without one)."""
    return ListChange(prefix, 0 if prefix is None else prefix.length, encode_items(items))


def encode_items(items: Sequence[Any]) -> list[Content]:
    """Encode the items of a list, each as a content of its own."""
    return [encode(item, keep_order=True) for item in items]


def write_list(
    draft: Draft, engine: Engine, change: ListChange, *, scope: str, append: bool = True
) -> ListPrefix:
    """Add what is new in a list to the batch, and return what its channel holds then.

    ``append`` lets items go behind the list's tail; the commit raises `ListMoved` if something follows there
    already. Without it they go into a child list.
    """
    base, keep, contents = change.base, change.keep, change.contents
    if base is not None and not contents:
        return base if keep == base.length else ListPrefix(base.list, keep)
    if base is not None and keep == base.length and append and not change.branch:
        draft.append(base.list, *contents, scope=scope, at=keep)
        return ListPrefix(base.list, keep + len(contents))
    list_id = change.list_id or new_id()
    if base is None or keep == 0:
        draft.append(list_id, *contents, scope=scope, at=0)
        return ListPrefix(list_id, len(contents))
    lineage = engine.lineage(draft.space, base.list)
    if not lineage:
        raise incomplete_list(base, "it is not stored")
    parent = branch_point(lineage, keep)
    if parent.depth >= MAX_LIST_DEPTH:
        prefix = engine.read_list(draft.space, base.list, 0, keep)
        draft.append(list_id, *prefix, *contents, scope=scope, at=0)
    else:
        draft.append(list_id, *contents, scope=scope, at=keep, parent=parent.list)
    return ListPrefix(list_id, keep + len(contents))
