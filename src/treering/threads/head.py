"""A head: what one thread object has seen of its thread, and how the next checkpoint gets behind it.

SaveRequest writes one batch: what is new in lists and state, the checkpoint's event, and the head ref by
compare-and-swap against the version that was last seen. **Invariant:** what is remembered here changes
only after the commit that makes it true, and one object saves one checkpoint at a time, from however many
threads it is used.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice, takewhile
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import msgspec

from treering.core.batch import ABSENT, Draft, Event
from treering.core.clock import from_datetime
from treering.core.content import Address, object_address
from treering.core.encoding import decode, encode, encode_json
from treering.core.frame import INLINE_LIMIT
from treering.core.ids import MAX_ID_CHARS
from treering.errors import Conflict, Corrupt, InvalidInput, ListMoved, NotFound, RefMoved
from treering.graphs.rewind import rewind_subgraphs
from treering.graphs.step import needed_scope
from treering.threads import lists as lists_module
from treering.threads.checkpoint_record import (
    MESSAGES,
    PREFIX,
    CheckpointRecord,
    StateValue,
    Value,
    new_checkpoint_id,
    write_checkpoint,
)
from treering.threads.head_value import head_value, read_head
from treering.threads.history import REWIND, Journal, head_ref, thread_scope
from treering.threads.lists import Channel, First

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from treering.core.clock import Clock
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.threads.hooks import SaveRequest
    from treering.workspaces.snapshot import Taken


# -----------------------------------------------------------------------------------------------------------
# Places on the line that leads to a thread's head, by the words of the API, the command line and REST alike.
#
# A place is a step (``12``), so many checkpoints back (``"~1"``) or a time (a `datetime`, or ISO 8601 text;
# without an offset it is UTC), which names the newest checkpoint of then.


_DIGITS: Final = 15
"""Numbers of more digits are no steps: those have 53 bits."""


def find_place(
    line: Iterator[CheckpointRecord], place: str | int | datetime, thread_id: str
) -> CheckpointRecord:
    """The checkpoint of a thread's line, newest first, that a place names; else `NotFound`."""
    if isinstance(place, str):
        back = place.removeprefix("~")
        if back != place and _is_number(back or "1"):
            count = int(back or 1)
            found = next(islice(line, count, None), None)
            return found or _refuse(thread_id, f"checkpoint {count} before its head")
        place = int(place) if _is_number(place) else _time(place)
    if isinstance(place, datetime):
        until_us = from_datetime(place)
        found = next((each for each in line if each.created_at_us <= until_us), None)
        return found or _refuse(thread_id, f"checkpoint at or before {place.isoformat()}")
    if type(place) is not int:
        raise InvalidInput(f"{place!r} is no checkpoint; give its id, its step or a datetime")
    return next((each for each in line if each.step == place), None) or _refuse(thread_id, f"step {place}")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:80]!r} is no place in a thread; use a step (12), steps back (~1), "
            f"a checkpoint ({PREFIX}...) or a time (2026-11-16T08:00)"
        ) from None


def _refuse(thread_id: str, what: str) -> CheckpointRecord:
    raise NotFound(f"thread {thread_id!r} has no {what}; its history (`treering log`) shows what there is")


# -----------------------------------------------------------------------------------------------------------
# State values: each kept once, and written again only when it changed.
#
# A value is compared by the digest of its encoding. A dict whose encoding is large is kept key by key, so
# that an agent which changes one virtual file does not write all of them again.


_DIGEST = 24


def write_state(
    draft: Draft, known: Mapping[str, StateValue], state: Mapping[str, Any], *, scope: str
) -> dict[str, StateValue]:
    """Where each value lies; those that are not as ``known`` go into the batch."""
    if odd := [name for name in state if not isinstance(cast("object", name), str)]:  # a hook's, perhaps
        raise InvalidInput(f"state has the name {odd[0]!r}, a {type(odd[0]).__name__}; give it a str")
    return {name: _written(draft, known.get(name), value, scope) for name, value in state.items()}


def read_state(engine: Engine, space: str, state: Mapping[str, StateValue]) -> dict[str, Any]:
    """All values, fetched together. One that is missing is `Corrupt`: checkpoints keep their values alive."""
    addresses = [
        Address(each.address)
        for value in state.values()
        for each in ((value,) if isinstance(value, Value) else value.values())
    ]
    try:
        contents = iter(engine.get(space, addresses) if addresses else [])
    except NotFound as error:
        raise Corrupt(
            f"a state value is not stored: {error}; run verify, then restore it from a backup"
        ) from error
    return {
        name: decode(next(contents))
        if isinstance(value, Value)
        else {key: decode(next(contents)) for key in value}
        for name, value in state.items()
    }


def _written(draft: Draft, known: StateValue | None, value: Any, scope: str) -> StateValue:
    content = encode(value, keep_order=True)
    if len(content.data) >= INLINE_LIMIT and _is_splittable(value):
        before = known if isinstance(known, dict) else {}
        return {
            key: _kept(draft, before.get(key), encode(each, keep_order=True), scope)
            for key, each in value.items()
        }
    return _kept(draft, known if isinstance(known, Value) else None, content, scope)


def _is_splittable(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    keys: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType] - whatever a user's dict holds
    return len(keys) > 1 and all(isinstance(key, str) for key in keys)


def _kept(draft: Draft, known: Value | None, content: Content, scope: str) -> Value:
    digest = content.name[:_DIGEST]
    if known is not None and known.digest == digest:
        return known
    return Value(draft.put(content, scope=scope), digest)


# -----------------------------------------------------------------------------------------------------------

_TRIES: Final = 3


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
        self.checkpoint: CheckpointRecord | None = None
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
        self._lock = RLock()
        self._is_known = False
        self._version: int | None = None
        self._first_us: int | None = None
        self._channels: dict[str, Channel] = {}

    def see(self) -> CheckpointRecord | None:
        """Look where the head is now: one small read, and the checkpoint only if it moved."""
        with self._lock:
            ref = self._engine.refs(self._space, [self.ref]).get(self.ref)
            if ref is None:
                self.forget()
            elif ref.version != self._version:
                value = read_head(ref)
                self.checkpoint = self._stored(value.checkpoint)
                self._first_us = value.first_us
                self._version = ref.version
                self._channels = {}
            self._is_known = True
            return self.checkpoint

    def peek(self) -> CheckpointRecord | None:
        """Look where the head is now, without taking that for what the next save builds on."""
        with self._lock:
            ref = self._engine.refs(self._space, [self.ref]).get(self.ref)
            if ref is None:
                return None
            if ref.version == self._version:
                return self.checkpoint
            return self._stored(read_head(ref).checkpoint)

    def line(self) -> Iterator[CheckpointRecord]:
        """Where the head is now, and its ancestors."""
        return self.journal.line(self.peek())

    def find(self, which: str | int | datetime) -> CheckpointRecord:
        """A checkpoint by its id, or by its place on the line to the head (see `places`); else `NotFound`."""
        if isinstance(which, str) and which.startswith(PREFIX):
            return self.journal.by_id(which)
        return find_place(self.line(), which, self._thread_id)

    def see_once(self) -> CheckpointRecord | None:
        """What was last seen; looks only if nothing was seen yet."""
        with self._lock:
            return self.checkpoint if self._is_known else self.see()

    def forget(self) -> None:
        """Unlearn everything; the next save looks again."""
        with self._lock:
            self._is_known = False
            self._version = self._first_us = self.checkpoint = None
            self._channels = {}

    def save(
        self,
        saving: SaveRequest,
        wanted: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        adopted: Adopted | None = None,
        *,
        taken: Taken | None = None,
    ) -> CheckpointRecord:
        """Put one checkpoint behind the head. Raises `ThreadMoved` when that is not the head any more."""
        with self._lock:
            self.see_once()
            for attempt in range(1, _TRIES):
                try:
                    return self._try_to_save(
                        saving, wanted, appended, step, adopted, taken, tail_is_ours=attempt == 1
                    )
                except ListMoved:  # the tail belongs to someone else: branch off where this checkpoint begins
                    continue
            return self._try_to_save(saving, wanted, appended, step, adopted, taken, tail_is_ours=False)

    def rewind(self, target: CheckpointRecord) -> CheckpointRecord:
        """Move the head to a checkpoint of its past, and say so in the journal; gives back the head.

        One of another thread (this one is a fork of it) is copied, as `begin_as` does: the head is always a
        checkpoint of its own thread, so the other one can be removed.
        """
        with self._lock:
            before = self.see_once()
            if target.thread != self._thread_id and not self._leads_here(target):
                raise InvalidInput(
                    f"checkpoint {target.id!r} is of thread {target.thread!r}, not of the past of "
                    f"{self._thread_id!r}; fork it instead"
                )
            draft = Draft(self._space)
            told = {"from": before.id if before else None, "to": target.id, "step": target.step}
            draft.event(
                Event(
                    id=draft.id,
                    kind=REWIND,
                    ts_us=self._clock.now_us(),
                    scope=self.scope,
                    data=encode_json(told),
                )
            )
            rewind_subgraphs(draft, self._engine, target, thread=self._thread_id, namespace=self._namespace)
            if target.thread != self._thread_id:
                target = self._copied(draft, target)
            self._move(draft, target)
            self._channels = {}
            return target

    def begin_as(self, origin: CheckpointRecord) -> CheckpointRecord:
        """Begin a thread that is not there yet as a copy of a checkpoint, which becomes its parent."""
        with self._lock:
            draft = Draft(self._space)
            checkpoint = self._copied(draft, origin)
            try:
                self._move(draft, checkpoint)
            except ThreadMoved:
                raise Conflict(
                    f"thread {self._thread_id!r} exists already; choose another id for the fork"
                ) from None
            self._is_known = True
            return checkpoint

    def _copied(self, draft: Draft, origin: CheckpointRecord) -> CheckpointRecord:
        """A checkpoint of this thread that says what one of another thread does, which is its parent."""
        checkpoint_id, now_us = new_checkpoint_id(self._clock)
        checkpoint = msgspec.structs.replace(
            origin,
            id=checkpoint_id,
            thread=self._thread_id,
            namespace=self._namespace,
            parent=origin.id,
            created_at_us=now_us,
            metadata={**origin.metadata, "forked_from": origin.id},
        )
        write_checkpoint(draft, checkpoint, scope=self.scope, needs=needed_scope(checkpoint, origin))
        return checkpoint

    def _leads_here(self, target: CheckpointRecord) -> bool:
        # A parent is older than its child, and ids sort by time.
        newer = takewhile(lambda each: each.id >= target.id, self.journal.line(self.checkpoint))
        return any(each.id == target.id for each in newer)

    def _try_to_save(
        self,
        saving: SaveRequest,
        wanted: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        adopted: Adopted | None,
        taken: Taken | None,
        *,
        tail_is_ours: bool,
    ) -> CheckpointRecord:
        if adopted is None:
            parent = None
            checkpoint_id, now_us = new_checkpoint_id(self._clock)
            draft = Draft(self._space, id=checkpoint_id.removeprefix(PREFIX))  # one id is enough for both
        else:
            parent = adopted.parent
            checkpoint_id, now_us = adopted.id, adopted.created_at_us
            draft = Draft(self._space)
        before = self.checkpoint
        grown = {
            name: lists_module.replace(
                draft, self._engine, self._channel(name), items, scope=self.scope, tail_is_ours=tail_is_ours
            )
            for name, items in wanted.items()
        }
        if appended:
            grown[MESSAGES] = lists_module.append(
                draft,
                self._engine,
                self._channel(MESSAGES),
                appended,
                scope=self.scope,
                tail_is_ours=tail_is_ours,
            )
        lists = dict(before.lists) if before else {}
        for name, channel in grown.items():
            if channel.stretch is not None:
                lists[name] = channel.stretch
        state = before.state if before else {}
        if saving.state is not None:
            state = write_state(draft, state, saving.state, scope=self.scope)
        snapshot = before.snapshot if before else None
        metadata = saving.metadata
        if taken is not None:
            draft.require(*taken.requires)
            snapshot = object_address(taken.root)
            metadata = {**metadata, **taken.warnings()}
        checkpoint = CheckpointRecord(
            id=checkpoint_id,
            thread=self._thread_id,
            namespace=self._namespace,
            parent=before.id if before else parent,
            step=step if step is not None else (before.step + 1 if before else 0),
            created_at_us=now_us,
            lists=lists,
            state=state,
            pending_interrupt=saving.pending_interrupt,
            metadata=metadata,
            note=saving.note,
            tags=saving.tags,
            snapshot=snapshot,
        )
        write_checkpoint(draft, checkpoint, scope=self.scope)
        self._move(draft, checkpoint, first_us=now_us if adopted is None else adopted.first_us)
        self._channels.update(grown)
        return checkpoint

    def _channel(self, name: str) -> Channel:
        known = self._channels.get(name)
        if known is None:
            stretch = self.checkpoint.lists.get(name) if self.checkpoint is not None else None
            known = Channel(stretch, None)
        return known

    def _move(self, draft: Draft, checkpoint: CheckpointRecord, *, first_us: int | None = None) -> None:
        """Commit a batch that also moves the head; ``first_us`` is for a thread that begins with it."""
        if self._first_us is not None:
            first_us = self._first_us
        elif first_us is None:
            first_us = checkpoint.created_at_us
        expect = ABSENT if self._version is None else self._version
        value = head_value(checkpoint, first_us, thread=self._thread_id, namespace=self._namespace)
        draft.set_ref(self.ref, value, scope=self.scope, expect=expect)
        try:
            receipt = self._engine.commit(draft.batch())
        except RefMoved:
            raise self._moved() from None
        self._version = receipt.versions[self.ref]
        self.checkpoint = checkpoint
        self._first_us = first_us

    def _moved(self) -> ThreadMoved:
        ref = self._engine.refs(self._space, [self.ref]).get(self.ref)
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
