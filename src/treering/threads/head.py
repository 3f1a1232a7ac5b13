"""The head of a thread: what one thread object has seen of it, and how the next checkpoint gets behind it.

A save is checked against the version of the head that was last seen (see `writer`). **Invariant:** what is
remembered here changes only after the commit that makes it true, and one object saves one checkpoint at a
time, from however many threads it is used.

Callers may give whole lists. A `Channel` finds what they have in common with the last save: it remembers a
fingerprint of every item that was saved. Fingerprints tell ``1`` from ``True`` and notice an item that was
changed in place.
"""

from __future__ import annotations

import marshal
from itertools import takewhile
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from treering.core.batch import Event
from treering.core.clock import from_datetime
from treering.core.content import object_address
from treering.core.encoding import encode, encode_json
from treering.core.ids import MAX_ID_CHARS, thread_scope
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound, RefMoved
from treering.threads.checkpoint import (
    FORKED_FROM,
    MESSAGES,
    PREFIX,
    CheckpointRecord,
    ListPrefix,
    extension_of,
    new_checkpoint_id,
    read_list,
    read_state,
)
from treering.threads.compaction import from_stored, whole_conversation
from treering.threads.history import REWIND, Journal, find_position, parse_time
from treering.threads.hooks import COMPACTIONS
from treering.threads.upcasting import VERSIONS, upgrade_of_record, with_versions
from treering.threads.writer import (
    CheckpointWriter,
    HeadState,
    ListChange,
    NewCheckpoint,
    behind,
    encode_items,
    head_ref,
    read_head,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from treering.core.batch import Draft
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.threads.hooks import SaveRequest
    from treering.workspaces.snapshot import StagedSnapshot


class ThreadMoved(Conflict):
    """Someone else saved to this thread since it was last read here; both heads are named."""

    def __init__(self, thread: str, expected: str | None, actual: str | None) -> None:
        self.thread = thread
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"thread {thread!r} is at {actual or 'nothing'}, this writer last saw {expected or 'nothing'}; "
            'load() it again, or save with on_conflict="fork"'
        )


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint that was made elsewhere keeps: its id, its time, and the first save of its thread.

    ``parent`` counts for a thread that is not there yet; the id and ``created_at_us`` are of one UTC day.
    """

    id: str
    created_at_us: int
    first_us: int
    parent: str | None = None


class Head:
    """The head of one thread, as last seen; ``checkpoint`` is ``None`` for one that was never saved."""

    def __init__(self, engine: Engine, space: str, thread_id: str, namespace: str, *, clock: Clock) -> None:
        self.scope = thread_scope(thread_id, namespace)
        self.ref = head_ref(thread_id, namespace)
        self.journal = Journal(engine, space, namespace)
        if len(self.scope) > MAX_ID_CHARS or len(self.ref) > MAX_ID_CHARS:
            raise InvalidInput(
                f"thread id {thread_id[:40]!r} takes {len(self.scope)} characters with its namespace and "
                f"escapes, the limit is {MAX_ID_CHARS}; shorten it or use a hash of it"
            )
        self._engine = engine
        self._space = space
        self._thread_id = thread_id
        self._namespace = namespace
        self._clock = clock
        self._writer = CheckpointWriter(engine, space)
        self._lock = RLock()
        self._is_known = False
        self._moved_to: Ref | None = None
        self._state: HeadState | None = None
        self._moved_us = 0
        self._channels: dict[str, Channel] = {}

    @property
    def moved_us(self) -> int:
        """When the head had moved to the checkpoint that `see` has found."""
        return self._moved_us

    @property
    def checkpoint(self) -> CheckpointRecord | None:
        """The checkpoint that the head was at when it was last seen."""
        return None if self._state is None else self._state.checkpoint

    def see(self) -> CheckpointRecord | None:
        """Look where the head is now: one small read, and the checkpoint only if the head moved."""
        with self._lock:
            return self._see(self._ref())

    def see_moved(self) -> CheckpointRecord | None:
        """Go on from where the head was found when `save` last raised `ThreadMoved`."""
        with self._lock:
            return self._see(self._moved_to)

    def _see(self, ref: Ref | None) -> CheckpointRecord | None:
        if ref is None:
            self.forget()
        elif self._state is None or ref.version != self._state.version:
            value = read_head(ref)
            self._state = HeadState(
                checkpoint=self._stored(value.checkpoint), version=ref.version, first_us=value.first_us
            )
            self._channels = {}
        self._moved_us = 0 if ref is None else ref.changed_at_us
        self._is_known = True
        return self.checkpoint

    def peek(self) -> CheckpointRecord | None:
        """Look where the head is now; the next save still builds on what was seen before."""
        with self._lock:
            ref = self._engine.refs(self._space, [self.ref]).get(self.ref)
            if ref is None:
                return None
            if self._state is not None and ref.version == self._state.version:
                return self.checkpoint
            return self._stored(read_head(ref).checkpoint)

    def line(self) -> Iterator[CheckpointRecord]:
        """Return the checkpoint that the head is at now, and its ancestors."""
        return self.journal.line(self.peek())

    def find(self, which: str | int | datetime) -> CheckpointRecord:
        """Return a checkpoint by its id or by its position on the line to the head (see `find_position`)."""
        if isinstance(which, str) and which.startswith(PREFIX):
            return self.journal.by_id(which)
        return find_position(self.line(), which, self._thread_id)

    def find_any(self, which: str | datetime) -> CheckpointRecord:
        """Return the head of a time, also if a rewind has left it behind since."""
        at = parse_time(which) if isinstance(which, str) else which
        found = self.journal.head_at(self.scope, from_datetime(at))
        return found or find_position(self.line(), at, self._thread_id)  # from before the fork

    def see_once(self) -> CheckpointRecord | None:
        """Return what was last seen; look only if nothing was seen yet."""
        with self._lock:
            return self.checkpoint if self._is_known else self.see()

    def forget(self) -> None:
        """Drop what was seen; the next save looks again."""
        with self._lock:
            self._is_known = False
            self._state = None
            self._channels = {}

    def save(
        self,
        request: SaveRequest,
        lists: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        adopted: Adopted | None = None,
        *,
        snapshot: StagedSnapshot | None = None,
        also: Callable[[Draft], None] | None = None,
    ) -> CheckpointRecord:
        """Put one checkpoint behind the head. Raises `ThreadMoved` if the head is no longer the one seen.

        ``also`` adds to the same batch. Content of older code is migrated first (see `upcast`).
        """
        with self._lock:
            previous = self.see_once() if adopted is not None else (self.upcast() or self.see_once())
            changes, fingerprints = self._list_changes(lists, appended)
            if adopted is None:
                checkpoint_id, now_us = new_checkpoint_id(self._clock)
                batch_id = checkpoint_id.removeprefix(PREFIX)  # one id is enough for both
                parent = first_us = None
            else:
                checkpoint_id, now_us, batch_id = adopted.id, adopted.created_at_us, None
                parent, first_us = adopted.parent, adopted.first_us
            files = previous.snapshot if previous else None
            metadata = with_versions(
                request.metadata, self._thread_id, None if previous is None else previous.metadata
            )
            if snapshot is not None:
                files = object_address(snapshot.root)
                metadata = {**metadata, **snapshot.warnings()}
            stored = previous.state if previous else {}
            record = CheckpointRecord(
                id=checkpoint_id,
                thread=self._thread_id,
                namespace=self._namespace,
                parent=previous.id if previous else parent,
                step=step if step is not None else (previous.step + 1 if previous else 0),
                created_at_us=now_us,
                lists=previous.lists if previous else {},
                state=stored if request.state is None else {},
                pending_interrupt=request.pending_interrupt,
                metadata=metadata,
                note=request.note,
                tags=request.tags,
                snapshot=files,
            )
            new = NewCheckpoint(
                record=record,
                lists=changes,
                state=request.state or {},
                previous_state=stored,
            )

            def add_to_batch(draft: Draft) -> None:
                if snapshot is not None:
                    draft.require(*snapshot.requires)
                if also is not None:
                    also(draft)

            saved = self._save(
                new,
                batch_id=batch_id,
                first_us=first_us,
                also=add_to_batch,
            )
            for name, known in fingerprints.items():
                self._channels[name] = Channel(saved.lists[name], known)
            return saved

    def upcast(self) -> CheckpointRecord | None:
        """Save the head once more as the registered upcasters migrate it; ``None`` if it needs none."""
        with self._lock:
            head = self.see_once()
            upgrade = None if head is None else upgrade_of_record(head)
            if head is None or upgrade is None:
                return None
            checkpoint_id, now_us = new_checkpoint_id(self._clock)
            metadata = {name: value for name, value in head.metadata.items() if name != FORKED_FROM}
            record = structs.replace(
                head,
                id=checkpoint_id,
                parent=head.id,
                step=head.step + 1,
                created_at_us=now_us,
                metadata={**metadata, VERSIONS: upgrade.versions},
                note=upgrade.describe(),
                tags=(),
            )
            new = NewCheckpoint(record=record)
            if upgrade.changes("state"):
                state = upgrade.state(read_state(self._engine, self._space, head.state))
                new = structs.replace(
                    new, record=structs.replace(record, state={}), state=state, previous_state=head.state
                )
            if upgrade.changes("messages"):
                lists: dict[str, ListChange] = {}
                for name in (MESSAGES, COMPACTIONS):
                    if name in head.lists:
                        items = read_list(self._engine, self._space, head.lists[name])
                        known = [fingerprint(each) for each in items]
                        channel = Channel(head.lists[name], known)
                        lists[name], _ = channel.replace(
                            self._engine, self._space, upgrade.items(name, items)
                        )
                new = structs.replace(new, lists=lists)
            self._channels = {}
            return self._save(new, batch_id=checkpoint_id.removeprefix(PREFIX))

    def rewind(self, target: CheckpointRecord, *, effects: Sequence[str] = ()) -> CheckpointRecord:
        """Move the head to a checkpoint of its past and record that in the journal; return the head.

        A checkpoint of another thread (this one is a fork of it) is copied, as `begin_as` does: the head is
        always a checkpoint of its own thread, so the other one can be removed. ``effects`` names the effects
        since then, for the journal.
        """
        with self._lock:
            before = self.see_once()
            if target.thread != self._thread_id and not self._leads_here(target):
                raise InvalidInput(
                    f"checkpoint {target.id!r} is of thread {target.thread!r}, not of the past of "
                    f"{self._thread_id!r}; fork it instead"
                )
            data: dict[str, Any] = {
                "from": before.id if before else None,
                "to": target.id,
                "step": target.step,
                **({"effects": list(effects)} if effects else {}),
            }

            def record_rewind(draft: Draft) -> None:
                draft.event(
                    Event(
                        id=draft.id,
                        kind=REWIND,
                        ts_us=self._clock.now_us(),
                        scope=self.scope,
                        data=encode_json(data),
                    )
                )
                extension = extension_of(target.metadata)
                if extension is not None:
                    extension.rewind(
                        draft, self._engine, target, thread=self._thread_id, namespace=self._namespace
                    )

            if target.thread == self._thread_id:
                checkpoint = self._move(target, also=record_rewind)
            else:
                checkpoint = self._save(self._copy(target), also=record_rewind)
            self._channels = {}
            return checkpoint

    def answer(
        self, decision: str, value: Any, *, also: Callable[[Draft], None] | None = None
    ) -> CheckpointRecord:
        """Answer the interrupt of a framework's checkpoint where the framework looks for the answer.

        The checkpoint stays the head, and is revised. Whoever answers second gets `ThreadMoved`. ``also``
        adds to the same batch.
        """
        with self._lock:
            head = self.see_once()
            extension = None if head is None else extension_of(head.metadata)
            if head is None or extension is None:
                raise Conflict(f"thread {self._thread_id!r} has moved on; load it again")

            def record_answer(draft: Draft) -> None:
                extension.answer(draft, head, decision, value)
                if also is not None:
                    also(draft)

            answered = extension.answered(head, decision)
            return self._save(NewCheckpoint(record=answered, is_revision=True), also=record_answer)

    def begin_as(
        self,
        origin: CheckpointRecord,
        *,
        messages: Sequence[Any] | None = None,
        state: Mapping[str, Any] | None = None,
        note: str | None = None,
    ) -> CheckpointRecord:
        """Begin a new thread with a copy of a checkpoint, which becomes its parent.

        ``messages`` and ``state`` take the place of what the copy would have. What a framework keeps in the
        metadata stays, so that it does next what it would have done at the original.
        """
        with self._lock:
            try:
                new = self._copy(origin)
                upgrade = None if messages is None and state is None else upgrade_of_record(origin)
                if upgrade is not None:  # what was not given is migrated as well
                    if state is None and upgrade.changes("state"):
                        state = upgrade.state(read_state(self._engine, self._space, origin.state))
                    if messages is None and upgrade.changes("messages") and MESSAGES in origin.lists:
                        stored = read_list(self._engine, self._space, origin.lists[MESSAGES])
                        messages = upgrade.messages(stored)
                    metadata = {**new.record.metadata, VERSIONS: upgrade.versions}
                    new = structs.replace(new, record=structs.replace(new.record, metadata=metadata))
                if messages is not None:
                    channel = Channel(origin.lists.get(MESSAGES))
                    change, _ = channel.replace(self._engine, self._space, messages)
                    new = structs.replace(new, lists={MESSAGES: change})
                if state is not None:
                    record = structs.replace(new.record, state={})
                    new = structs.replace(new, record=record, state=state, previous_state=origin.state)
                if note is not None:
                    new = structs.replace(new, record=structs.replace(new.record, note=note))
                checkpoint = self._save(new)
            except ThreadMoved:
                raise Conflict(
                    f"thread {self._thread_id!r} already exists; choose another id for the fork"
                ) from None
            self._is_known = True
            return checkpoint

    def _list_changes(
        self, lists: Mapping[str, Sequence[Any] | First], appended: Sequence[Any]
    ) -> tuple[dict[str, ListChange], dict[str, list[int] | None]]:
        """Return what changes in each list, and the fingerprints of its items after that."""
        changes: dict[str, ListChange] = {}
        fingerprints: dict[str, list[int] | None] = {}
        for name, items in lists.items():
            channel = self._channel(name)
            if not isinstance(items, First):
                if name == MESSAGES:
                    items = self._whole(items)  # noqa: PLW2901 - the same messages, but all of them
                changes[name], fingerprints[name] = channel.replace(self._engine, self._space, items)
            elif channel.prefix is not None:
                changes[name], fingerprints[name] = channel.shorten(channel.prefix, items.count)
        if appended:
            changes[MESSAGES], fingerprints[MESSAGES] = self._channel(MESSAGES).append(appended)
        return changes, fingerprints

    def _whole(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the whole conversation if these messages are a compact view of it that went on."""
        lists = {} if self.checkpoint is None else self.checkpoint.lists
        made, messages = lists.get(COMPACTIONS), lists.get(MESSAGES)
        if made is None or messages is None or not made.length:
            return items
        newest = from_stored(read_list(self._engine, self._space, made, last=1)[0])
        if fingerprint(items[newest.keeps : newest.keeps + 1]) != fingerprint(newest.messages[:1]):
            return items
        stored = read_list(self._engine, self._space, messages)
        return whole_conversation(items, stored, newest, fingerprint)

    def _channel(self, name: str) -> Channel:
        known = self._channels.get(name)
        if known is None:
            known = Channel(self.checkpoint.lists.get(name) if self.checkpoint is not None else None)
        return known

    def _copy(self, origin: CheckpointRecord) -> NewCheckpoint:
        """A checkpoint of this thread with the content of one of another thread, which is its parent."""
        checkpoint_id, now_us = new_checkpoint_id(self._clock)
        record = structs.replace(
            origin,
            id=checkpoint_id,
            thread=self._thread_id,
            namespace=self._namespace,
            parent=origin.id,
            created_at_us=now_us,
            metadata={**origin.metadata, FORKED_FROM: origin.id},
        )
        return NewCheckpoint(record=record, origin=origin)

    def _leads_here(self, target: CheckpointRecord) -> bool:
        # A parent is older than its child, and ids sort by time.
        newer = takewhile(lambda each: each.id >= target.id, self.journal.line(self.checkpoint))
        return any(each.id == target.id for each in newer)

    def _save(
        self,
        new: NewCheckpoint,
        *,
        batch_id: str | None = None,
        first_us: int | None = None,
        also: Callable[[Draft], None] | None = None,
    ) -> CheckpointRecord:
        try:
            self._state = self._writer.save(new, self._state, batch_id=batch_id, first_us=first_us, also=also)
        except RefMoved:
            raise self._moved() from None
        return self._state.checkpoint

    def _move(self, target: CheckpointRecord, *, also: Callable[[Draft], None]) -> CheckpointRecord:
        try:
            self._state = self._writer.move_head(target, self._state, also=also)
        except RefMoved:
            raise self._moved() from None
        return target

    def _ref(self) -> Ref | None:
        return self._engine.refs(self._space, [self.ref]).get(self.ref)

    def _moved(self) -> ThreadMoved:
        ref = self._moved_to = self._ref()
        actual = read_head(ref).checkpoint if ref is not None else None
        return ThreadMoved(self._thread_id, self.checkpoint.id if self.checkpoint else None, actual)

    def _stored(self, checkpoint_id: str) -> CheckpointRecord:
        try:
            return self.journal.by_id(checkpoint_id)
        except NotFound:
            pass
        ref = self._engine.refs(self._space, [self.ref]).get(self.ref)
        if ref is None or read_head(ref).checkpoint != checkpoint_id:
            raise NotFound(f"thread {self._thread_id!r} was removed while it was read; load it again")
        raise Corrupt(
            f"the head of thread {self._thread_id!r} is checkpoint {checkpoint_id!r}, which is not stored; "
            "run verify, then restore it from a backup"
        )


_COMPARED_AS_TEXT: Final = frozenset({bool, float, int, type(None)})

if TYPE_CHECKING:

    def _type_of(_value: object, /) -> type[object]: ...
else:
    _type_of = type  # under a name that keeps the checker from narrowing Any to something less known


class First(msgspec.Struct, frozen=True):
    """The first ``count`` items that a channel holds, in place of the items themselves."""

    count: int


class Channel(msgspec.Struct, eq=False):
    """A list channel as it was last saved, and a fingerprint of each item (``None``: not read yet)."""

    prefix: ListPrefix | None
    fingerprints: list[int] | None = None

    def append(self, items: Sequence[Any]) -> tuple[ListChange, list[int] | None]:
        """Put items behind what the channel holds, which is neither read nor compared.

        Returns the change, and the fingerprints of all items after it.
        """
        known = self.fingerprints
        if known is not None and self.prefix is not None:
            del known[self.prefix.length :]  # left by a save that failed
            known.extend(_fingerprints(items))
        return behind(self.prefix, items), known

    def replace(self, engine: Engine, space: str, items: Sequence[Any]) -> tuple[ListChange, list[int]]:
        """Make the channel hold exactly ``items``; what it begins with already is not written again."""
        fingerprints = _fingerprints(items)
        if self.prefix is None:
            return behind(None, items), fingerprints
        known = self.fingerprints
        if known is None:
            known = [fingerprint(item) for item in read_list(engine, space, self.prefix)]
        del known[self.prefix.length :]
        keep = common_length(known, fingerprints)
        return ListChange(self.prefix, keep, encode_items(items[keep:])), fingerprints

    def shorten(self, prefix: ListPrefix, count: int) -> tuple[ListChange, list[int] | None]:
        """Keep only the first ``count`` items of ``prefix``, which the channel holds."""
        known = None if self.fingerprints is None else self.fingerprints[:count]
        return ListChange(prefix, min(count, prefix.length)), known


def fingerprint(value: Any) -> int:
    """Return a hash of a value as it is now, types and all; valid within this process only, never stored.

    Python caches the hash of a str, so comparing a conversation again costs a pass over its structure, not
    over its text.
    """
    kind = _type_of(value)
    if kind is str:
        return hash(value)
    if kind is dict:
        return hash((kind, *value, *map(type, value), *map(fingerprint, value.values())))
    if kind is list:
        return hash((kind, *map(fingerprint, value)))
    if kind in _COMPARED_AS_TEXT:  # hash(-1) == hash(-2), and hash(1) == hash(True)
        return hash((kind, repr(value)))
    try:
        return hash(marshal.dumps(value, 2))
    except ValueError:
        return hash(encode(value, keep_order=True).data)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many fingerprints both begin with."""
    if one == other[: len(one)]:
        return len(one)
    same = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        same += 1
    return same


def _fingerprints(items: Sequence[Any]) -> list[int]:
    try:
        return [*map(fingerprint, items)]
    except RecursionError:
        encode_items(items)  # raises the error that names what is nested too deeply
        raise
