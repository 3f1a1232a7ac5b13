"""Threads: a conversation and its state, moment by moment.

A thread is a ref (its head) that moves over immutable checkpoints, as a branch moves over commits. Saving
writes one batch: what is new in lists and state, the checkpoint's event, and the head by compare-and-swap
against the head that this object last saw. Two writers on one thread therefore never overwrite each
other: the second gets a `ThreadMoved` that names both heads, or (``on_conflict="fork"``) a fork of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import structs

from treering.core.batch import ABSENT, Event
from treering.core.clock import from_datetime
from treering.core.draft import Draft
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import check_id, new_id
from treering.core.query import Erasure
from treering.core.scopes import Scope
from treering.errors import Conflict, InvalidInput, ListMoved, NotFound, RefMoved
from treering.views import channels
from treering.views.channels import Channel, First
from treering.views.checkpoints import (
    MESSAGES,
    Checkpoint,
    new_checkpoint_id,
    write_checkpoint,
)
from treering.views.differences import Difference, difference
from treering.views.hooks import Saved, Saving
from treering.views.journal import Journal, head_ref, thread_scope
from treering.views.moments import Moment
from treering.views.values import write_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.views.hooks import Hooks

_PAGE: Final = 200
_TRIES: Final = 3

Decision = Literal["approve", "deny", "edit"]


class ThreadMoved(Conflict):
    """Someone else saved to this thread since it was last read here; both heads are named."""

    def __init__(self, thread: str, expected: str | None, actual: str | None) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"thread {thread!r} is at {actual or 'nothing'}, this writer last saw {expected or 'nothing'}; "
            'load() it again, or save with on_conflict="fork"'
        )


class Thread:
    """One thread, as this object last saw it."""

    def __init__(
        self, engine: Engine, space: str, thread_id: str, namespace: str, *, clock: Clock, hooks: Hooks
    ) -> None:
        self._id = check_id(thread_id, "thread id")
        self._namespace = check_id(namespace, "thread namespace") if namespace else ""
        self._engine = engine
        self._space = space
        self._clock = clock
        self._hooks = hooks
        self._ref = head_ref(self.id, self.namespace)
        self._scope = thread_scope(self.id, self.namespace)
        self._journal = Journal(engine, space, self._namespace)
        self._forget_what_was_seen()

    def __repr__(self) -> str:
        return (
            f"Thread({self.id!r}, namespace={self.namespace!r})" if self.namespace else f"Thread({self.id!r})"
        )

    @property
    def id(self) -> str:
        """The thread's id within its namespace."""
        return self._id

    @property
    def namespace(self) -> str:
        """The user or project that the thread belongs to; empty for none."""
        return self._namespace

    # Saving
    def checkpoint(
        self,
        messages: Sequence[Any] | None = None,
        state: Mapping[str, Any] | None = None,
        *,
        lists: Mapping[str, Sequence[Any]] | None = None,
        pending_interrupt: Any = None,
        metadata: Mapping[str, Any] | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        step: int | None = None,
        on_conflict: Literal["raise", "fork"] = "raise",
    ) -> Moment | None:
        """Save one moment and move the head to it.

        ``messages`` and ``lists`` are the whole lists (only what is new in them is written), ``state`` the
        whole state; what is left out stays as it was. Gives back the saved moment, or ``None`` when a
        hook vetoed it.
        """
        saving = self._hooks.before_save(
            Saving(
                thread_id=self.id,
                namespace=self.namespace,
                messages=None if messages is None else list(messages),
                state=None if state is None else dict(state),
                pending_interrupt=pending_interrupt,
                metadata=dict(metadata or {}),
                note=note,
                tags=tuple(tags),
            )
        )
        if saving is None:
            return None
        wanted = dict(lists or {})
        if saving.messages is not None:
            wanted[MESSAGES] = saving.messages
        return self._save(saving, wanted, (), step, on_conflict)

    def append(
        self,
        *messages: Any,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        on_conflict: Literal["raise", "fork"] = "raise",
    ) -> Moment | None:
        """Save one moment with further messages; the cost does not depend on how many there are already."""
        saving = self._hooks.before_save(
            Saving(
                thread_id=self.id,
                namespace=self.namespace,
                messages=list(messages),
                state=None if state is None else dict(state),
                metadata=dict(metadata or {}),
                note=note,
                tags=tuple(tags),
            )
        )
        if saving is None:
            return None
        return self._save(saving, {}, tuple(saving.messages or ()), None, on_conflict)

    def shorten(self, length: int, *, note: str | None = None) -> Moment | None:
        """Save one moment that keeps only the first ``length`` messages; reads and writes none of them.

        Like `rewind`, but to any length: the moments before still have what is cut off here.
        """
        if length < 0:
            raise InvalidInput(f"a thread cannot have {length} messages; give 0 or more")
        saving = self._hooks.before_save(Saving(thread_id=self.id, namespace=self.namespace, note=note))
        if saving is None:
            return None
        wanted = First(length) if saving.messages is None else saving.messages
        return self._save(saving, {MESSAGES: wanted}, (), None, "raise")

    def interrupt(
        self, payload: Any, *, interrupt_id: str | None = None, note: str | None = None
    ) -> Moment | None:
        """Save that the agent waits for a decision about ``payload`` (see `resume`)."""
        pending = {"id": interrupt_id or new_id(), "payload": payload}
        return self.checkpoint(pending_interrupt=pending, note=note or "interrupt")

    def resume(
        self, decision: Decision, *, interrupt_id: str | None = None, value: Any = None
    ) -> Moment | None:
        """Answer the pending interrupt and save the answer (``metadata["resumed"]``).

        Raises `Conflict` when nothing is pending or another interrupt is. ``edit`` needs the new value.
        """
        head = self.head
        pending = head.pending_interrupt if head is not None else None
        if pending is None:
            raise Conflict(f"thread {self.id!r} waits for no decision; there is nothing to resume")
        if interrupt_id is not None and pending.get("id") != interrupt_id:
            raise Conflict(
                f"thread {self.id!r} waits for interrupt {pending.get('id')!r}, not {interrupt_id!r}"
            )
        if decision not in ("approve", "deny", "edit"):
            raise InvalidInput(f"{decision!r} is no decision; use approve, deny or edit")
        if (decision == "edit") != (value is not None):
            raise InvalidInput("edit needs the new value, and only edit takes one")
        answer = {"id": pending.get("id"), "decision": decision, "payload": pending.get("payload")}
        if decision == "edit":
            answer["payload"] = value
        return self.checkpoint(metadata={"resumed": answer}, note=f"resume: {decision}")

    # Looking
    @property
    def head(self) -> Moment | None:
        """The newest moment; ``None`` for a thread that was never saved."""
        self._see()
        return None if self._head is None else self._moment(self._head)

    def load(self) -> Moment | None:
        """The newest moment, for going on from it; fires the load hooks."""
        moment = self.head
        if moment is not None:
            self._hooks.after_load(Saved(thread_id=self.id, namespace=self.namespace, checkpoint=moment))
        return moment

    def at(self, which: str | int | datetime | Moment) -> Moment:
        """A moment by its id, by its step or as of a time (both along the line that leads to the head)."""
        if isinstance(which, Moment):
            return which
        if isinstance(which, str):
            return self._moment(self._journal.by_id(which))
        if isinstance(which, int):
            found = next((each for each in self._line() if each.step == which), None)
            what = f"step {which}"
        else:
            until_us = from_datetime(which)
            found = next((each for each in self._line() if each.created_at_us <= until_us), None)
            what = f"moment at or before {which.isoformat()}"
        if found is None:
            raise NotFound(f"thread {self.id!r} has no {what}; history() shows what there is")
        return self._moment(found)

    def history(self, *, last: int | None = None, everything: bool = False) -> Iterator[Moment]:
        """Moments, newest first: the line that leads to the head, through forks into their past.

        ``everything`` gives all of this thread's own moments instead, those left behind by a rewind too.
        """
        source = self._journal.all_of(self._scope) if everything else self._line()
        for count, checkpoint in enumerate(source):
            if last is not None and count >= last:
                return
            yield self._moment(checkpoint)

    # Going back, and elsewhere
    def rewind(self, to: str | int | datetime | Moment) -> Moment:
        """Move the head back to an earlier moment. What was after it stays in the journal."""
        self._see_once()
        target = self.at(to).checkpoint
        draft = Draft(self._space)
        before = self._head
        draft.event(
            Event(
                id=draft.id,
                kind="rewind",
                ts_us=self._clock.now_us(),
                scope=self._scope,
                data=encode_json(
                    {"from": before.id if before else None, "to": target.id, "step": target.step}
                ),
            )
        )
        self._move_head(draft, target)
        self._channels = {}
        return self._moment(target)

    def fork(
        self, new_id: str, *, at: str | int | datetime | Moment | None = None, namespace: str | None = None
    ) -> Thread:
        """A new thread that begins at a moment of this one and shares its past; O(1), whatever the length."""
        moment = self.head if at is None else self.at(at)
        if moment is None:
            raise NotFound(f"thread {self.id!r} was never saved; there is nothing to fork")
        other = self._sibling(new_id, self.namespace if namespace is None else namespace)
        other._begin_as(moment.checkpoint)  # noqa: SLF001 - another thread of the same class
        return other

    def diff(self, before: str | int | datetime | Moment, after: str | int | datetime | Moment) -> Difference:
        """What differs between two moments: messages, and state as a JSON patch."""
        return difference(self.at(before), self.at(after))

    def delete(self, *, cascade: bool = False) -> None:
        """Remove the thread and its moments; the journal keeps that it was deleted, not what it was.

        Forks that share its past keep it from going, unless ``cascade`` takes them along.
        """
        self._engine.erase(self._space, Erasure(scopes=(self._scope,), cascade=cascade))
        draft = Draft(self._space)
        draft.event(
            Event(
                id=draft.id,
                kind="thread.deleted",
                ts_us=self._clock.now_us(),
                scope=str(Scope("", "ledger", "threads")),
            )
        )
        self._engine.commit(draft.batch())
        self._forget_what_was_seen()

    # How a moment is saved
    def _save(
        self,
        saving: Saving,
        wanted: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        on_conflict: Literal["raise", "fork"],
    ) -> Moment:
        self._see_once()
        for attempt in range(_TRIES):
            try:
                checkpoint = self._try_to_save(saving, wanted, appended, step, tail_is_ours=attempt == 0)
            except ListMoved:
                if attempt == _TRIES - 1:
                    raise
            except ThreadMoved:
                if on_conflict == "raise":
                    raise
                return self._fork_off()._save(saving, wanted, appended, step, "raise")  # noqa: SLF001
            else:
                break
        moment = self._moment(checkpoint)  # pyright: ignore[reportPossiblyUnboundVariable] - the loop breaks or raises
        self._hooks.after_save(Saved(thread_id=self.id, namespace=self.namespace, checkpoint=moment))
        return moment

    def _try_to_save(
        self,
        saving: Saving,
        wanted: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        *,
        tail_is_ours: bool,
    ) -> Checkpoint:
        draft = Draft(self._space)
        before = self._head
        grown = self._grown(draft, wanted, appended, tail_is_ours=tail_is_ours)
        lists = dict(before.lists) if before else {}
        lists.update(
            {name: channel.stretch for name, channel in grown.items() if channel.stretch is not None}
        )
        state = dict(before.state) if before else {}
        if saving.state is not None:
            state = write_state(draft, state, saving.state, scope=self._scope)
        checkpoint_id, now_us = new_checkpoint_id(self._clock)
        checkpoint = Checkpoint(
            id=checkpoint_id,
            thread=self.id,
            namespace=self.namespace,
            parent=before.id if before else None,
            step=step if step is not None else (before.step + 1 if before else 0),
            created_at_us=now_us,
            lists=lists,
            state=state,
            pending_interrupt=saving.pending_interrupt,
            metadata=saving.metadata,
            note=saving.note,
            tags=saving.tags,
        )
        write_checkpoint(draft, checkpoint, scope=self._scope)
        self._move_head(draft, checkpoint)
        self._channels.update(grown)
        return checkpoint

    def _grown(
        self,
        draft: Draft,
        wanted: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        *,
        tail_is_ours: bool,
    ) -> dict[str, Channel]:
        grown = {
            name: channels.replace(
                draft, self._engine, self._channel(name), items, scope=self._scope, tail_is_ours=tail_is_ours
            )
            for name, items in wanted.items()
        }
        if appended:
            channel = self._channel(MESSAGES)
            stretch = channel.stretch
            if stretch is None or tail_is_ours:
                longer = channels.extend(draft, stretch, appended, scope=self._scope)
            else:
                longer = channels.branch(
                    draft, self._engine, stretch, stretch.length, appended, scope=self._scope
                )
            prints = [] if stretch is None else channel.prints
            if prints is not None:
                prints = [*prints, *map(channels.fingerprint, appended)]
            grown[MESSAGES] = Channel(longer, prints)
        return grown

    def _channel(self, name: str) -> Channel:
        known = self._channels.get(name)
        if known is None:
            stretch = self._head.lists.get(name) if self._head is not None else None
            known = Channel(stretch, None)
        return known

    def _move_head(self, draft: Draft, checkpoint: Checkpoint) -> None:
        """Commit a batch that also moves the head."""
        first_us = self._first_us if self._first_us is not None else checkpoint.created_at_us
        value = {
            "checkpoint": checkpoint.id,
            "thread": self.id,
            "step": checkpoint.step,
            "first_us": first_us,
        }
        if self.namespace:
            value["namespace"] = self.namespace
        expect = ABSENT if self._version is None else self._version
        draft.set_ref(self._ref, encode_json(value), scope=self._scope, expect=expect)
        try:
            receipt = self._engine.commit(draft.batch())
        except RefMoved:
            raise self._moved() from None
        self._version = receipt.versions[self._ref]
        self._head = checkpoint
        self._first_us = first_us

    def _moved(self) -> ThreadMoved:
        ref = self._engine.refs(self._space, [self._ref]).get(self._ref)
        actual = decode_json(ref.value)["checkpoint"] if ref is not None else None
        return ThreadMoved(self.id, self._head.id if self._head else None, actual)

    def _fork_off(self) -> Thread:
        """A fork of what this object last saw, for a writer who came second."""
        other = self._sibling(f"{self.id}~{new_id()[-6:]}", self.namespace)
        if self._head is not None:
            other._begin_as(self._head)  # noqa: SLF001
        return other

    def _sibling(self, thread_id: str, namespace: str) -> Thread:
        return Thread(self._engine, self._space, thread_id, namespace, clock=self._clock, hooks=self._hooks)

    def _begin_as(self, origin: Checkpoint) -> None:
        draft = Draft(self._space)
        checkpoint_id, now_us = new_checkpoint_id(self._clock)
        checkpoint = structs.replace(
            origin,
            id=checkpoint_id,
            thread=self.id,
            namespace=self.namespace,
            parent=origin.id,
            created_at_us=now_us,
            metadata={**origin.metadata, "forked_from": origin.id},
        )
        write_checkpoint(draft, checkpoint, scope=self._scope)
        try:
            self._move_head(draft, checkpoint)
        except ThreadMoved:
            raise Conflict(f"thread {self.id!r} exists already; choose another id for the fork") from None
        self._known = True

    # What this object has seen
    def _line(self) -> Iterator[Checkpoint]:
        self._see_once()
        return self._journal.line(self._head, self._scope)

    def _see_once(self) -> None:
        if not self._known:
            self._see()

    def _see(self) -> None:
        ref = self._engine.refs(self._space, [self._ref]).get(self._ref)
        if ref is None:
            self._forget_what_was_seen()
        elif ref.version != self._version:
            value = decode_json(ref.value)
            self._head = self._journal.by_id(value["checkpoint"])
            self._first_us = value["first_us"]
            self._version = ref.version
            self._channels = {}
        self._known = True

    def _forget_what_was_seen(self) -> None:
        self._known = False
        self._version: int | None = None
        self._head: Checkpoint | None = None
        self._first_us: int | None = None
        self._channels: dict[str, Channel] = {}

    def _moment(self, checkpoint: Checkpoint) -> Moment:
        return Moment(self._engine, self._space, checkpoint)
