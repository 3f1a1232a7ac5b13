"""Threads: a conversation and its state, checkpoint by checkpoint.

A thread is a ref (its head) that moves over immutable checkpoints, as a branch moves over commits. How the
next checkpoint gets behind the head is told in `heads`. Two writers on one thread never overwrite each other:
the second gets a `ThreadMoved` that names both heads, or (``on_conflict="fork"``) a fork of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from treering.core.batch import Draft, Event
from treering.core.encoding import encode_json
from treering.core.ids import check_id, new_id
from treering.core.paging import each_record
from treering.core.query import Erasure, EventQuery
from treering.errors import NotFound
from treering.threads import checkpoint_record
from treering.threads.actions import Actions, do_actions, read_actions
from treering.threads.chat_ids import ChatId, TaskId, parse_thread_id
from treering.threads.checkpoint import Checkpoint, is_of
from treering.threads.checkpoint_record import (
    KIND,
    MESSAGES,
    CheckpointRecord,
    Decision,
    anchor,
    read_checkpoint,
)
from treering.threads.diff import Difference, difference
from treering.threads.extensions import registered
from treering.threads.head import Head, ThreadMoved
from treering.threads.history import CLEANED, DELETED, LEDGER, REWIND
from treering.threads.hooks import (
    Saved,
    asked,
    check_choice,
    check_count,
    check_step,
    check_tags,
    check_wanted,
)
from treering.threads.lists import First
from treering.threads.state_object import portray, put_back
from treering.threads.tool_budgets import Budgets, Counters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.threads.hooks import Hooks, SaveRequest
    from treering.workspaces.snapshot import StagedSnapshot
    from treering.workspaces.workspace import Workspace


# -----------------------------------------------------------------------------------------------------------
# Cleaning: remove a thread's transcript, its checkpoints, or all of it, and say so without saying whose.
#
# The transcript is what was logged in the thread; its checkpoints take the head, the lists, the state and
# what a graph's tasks wrote along. Runs that were recorded in the thread stay: they go with `delete` and
# `forget`. Storage is wiped as `forget` wipes it.


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """How much was removed; ``kept`` names shared content that had to stay, and why."""

    transcript_events: int = 0
    checkpoints: int = 0
    bytes: int = 0
    kept: dict[str, str] = {}


def clean(
    engine: Engine,
    space: str,
    head: Head,
    *,
    transcript: bool,
    checkpoints: bool,
    cascade: bool,
    clock: Clock,
) -> Cleaned:
    """Remove what was chosen of the thread behind a head; nothing there is nothing done."""
    events = _Events(engine, space, head.scope)
    chosen = (events.transcript if transcript else []) + (
        [*events.checkpoints, *events.rewinds, *events.writes] if checkpoints else []
    )
    has_head = checkpoints and head.ref in engine.refs(space, [head.ref])
    if not chosen and not has_head:
        return Cleaned()
    erased = engine.erase(
        space,
        Erasure(
            event_seqs=tuple(chosen),
            refs=(head.ref,) if has_head else (),
            lists=tuple(events.lists) if checkpoints else (),
            cascade=cascade,
            secure=True,
        ),
    )
    head.forget()
    cleaned = Cleaned(
        transcript_events=len(events.transcript) if transcript else 0,
        checkpoints=len(events.checkpoints) if checkpoints else 0,
        bytes=erased.bytes,
        kept=dict(erased.kept),
    )
    counts = {"transcript_events": cleaned.transcript_events, "checkpoints": cleaned.checkpoints}
    _say(engine, space, CLEANED, counts, clock)
    return cleaned


def delete(engine: Engine, space: str, head: Head, *, cascade: bool, clock: Clock) -> None:
    """Remove everything of the thread behind a head; nothing there is nothing done."""
    is_there = head.ref in engine.refs(space, [head.ref])
    if not is_there and not engine.scan(space, EventQuery(scope=head.scope), limit=1).records:
        return
    engine.erase(space, Erasure(scopes=(head.scope,), cascade=cascade))
    head.forget()
    _say(engine, space, DELETED, None, clock)


class _Events:
    """What is in the scope of a thread, by sequence number, and the lists that are its own."""

    def __init__(self, engine: Engine, space: str, scope: str) -> None:
        self.transcript: list[int] = []
        self.checkpoints: list[int] = []
        self.rewinds: list[int] = []
        self.writes: list[int] = []
        self.lists: dict[str, None] = {}
        named: set[str] = set()
        extension = registered()
        for record in each_record(engine, space, EventQuery(scope=scope)):
            kind = record.event.kind
            if kind == KIND:
                self.checkpoints.append(record.seq)
                stretches = read_checkpoint(engine, space, record).lists.values()
                named.update(stretch.list for stretch in stretches)
            elif kind == REWIND:
                self.rewinds.append(record.seq)
            elif extension is not None and kind in extension.event_kinds:
                self.writes.append(record.seq)
            elif record.event.run is None:
                self.transcript.append(record.seq)
        for list_id in sorted(named):
            for info in engine.lineage(space, list_id):
                if info.scope == scope:
                    self.lists[info.list] = None
        if engine.list_info(space, anchor(scope)) is not None:
            self.lists[anchor(scope)] = None


def _say(engine: Engine, space: str, kind: str, counts: dict[str, int] | None, clock: Clock) -> None:
    draft = Draft(space)
    data = None if counts is None else encode_json(counts)
    draft.event(Event(id=draft.id, kind=kind, ts_us=clock.now_us(), scope=LEDGER, data=data))
    engine.commit(draft.batch())


# -----------------------------------------------------------------------------------------------------------


class Thread:
    """One thread, as this object last saw it. It may be used from several threads at once."""

    def __init__(self, ground: ThreadContext, thread_id: str, namespace: str) -> None:
        self._id = check_id(thread_id, "thread id")
        self._namespace = check_id(namespace, "thread namespace") if namespace else ""
        self._ground = ground
        self._engine = ground.engine
        self._space = ground.space
        self._clock = ground.clock
        self._hooks = ground.hooks
        self._head = Head(ground.engine, ground.space, self._id, self._namespace, clock=ground.clock)

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

    @property
    def chat(self) -> ChatId | TaskId | None:
        """Channel, chat and number of resets (or the scheduled task), where the id names them."""
        return parse_thread_id(self._id)

    @property
    def workspace(self) -> Workspace:
        """What keeps and restores files for this thread; the store's own."""
        return self._ground.workspace

    # SaveRequest
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
        workspace: str | Path | None = None,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
    ) -> Checkpoint | None:
        """Save one checkpoint and move the head to it.

        ``messages`` and ``lists`` are the whole lists (only what is new in them is written), ``state`` the
        whole state, ``workspace`` a folder whose files are kept with it in the same commit (``exclude`` and
        ``include`` as for `Workspace.snapshot`); what is left out stays as it was, but the agent waits for a
        decision only as long as ``pending_interrupt`` is given. Gives back the saved checkpoint, or ``None``
        when a hook vetoed it.
        """
        check_choice(on_conflict, ("raise", "fork"))
        check_step(step)
        saving = self._asked(
            messages=messages,
            lists=lists,
            state=state,
            pending_interrupt=pending_interrupt,
            metadata=metadata,
            note=note,
            tags=tags,
            workspace=workspace,
        )
        if saving is None:
            return None
        wanted: dict[str, Sequence[Any]] = dict(saving.lists)
        if saving.messages is not None:
            wanted[MESSAGES] = saving.messages
        if saving.workspace is None:
            return self._save(saving, wanted, (), step, on_conflict)
        return self.workspace.stage_and_commit(
            saving.workspace,
            lambda taken: self._save(saving, wanted, (), step, on_conflict, taken),
            exclude=exclude,
            include=include,
        )

    def append(
        self,
        *messages: Any,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        on_conflict: Literal["raise", "fork", "retry"] = "raise",
    ) -> Checkpoint | None:
        """Save one checkpoint with further messages; the cost does not depend on how many there are already.

        ``on_conflict="retry"`` puts them behind whatever another writer saved in between.
        """
        check_choice(on_conflict, ("raise", "fork", "retry"))
        saving = self._asked(
            messages=messages, appends=True, state=state, metadata=metadata, note=note, tags=tags
        )
        if saving is None:
            return None
        return self._save(saving, saving.lists, tuple(saving.messages or ()), None, on_conflict)

    def shorten(
        self, length: int, *, metadata: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Checkpoint | None:
        """Save one checkpoint that keeps only the first ``length`` messages; reads and writes none of them.

        Like `rewind`, but to any length: the checkpoints before still have what is cut off here.
        """
        check_count("length", length)
        saving = self._asked(metadata=metadata, note=note)
        if saving is None:
            return None
        wanted = First(length) if saving.messages is None else saving.messages
        return self._save(saving, {**saving.lists, MESSAGES: wanted}, (), None, "raise")

    def interrupt(
        self, payload: Any, *, interrupt_id: str | None = None, note: str | None = None
    ) -> Checkpoint | None:
        """Save that the agent waits for a decision about ``payload`` (see `resume`)."""
        waits_for = checkpoint_record.pending(payload, interrupt_id)
        return self.checkpoint(pending_interrupt=waits_for, note=note or "interrupt")

    def resume(
        self, decision: Decision, *, interrupt_id: str | None = None, value: Any = None
    ) -> Checkpoint | None:
        """Answer the pending interrupt and save the answer (``metadata["resumed"]``).

        Raises `Conflict` when nothing is pending or another interrupt is. ``edit`` needs the new value.
        """
        head = self.head
        waits_for = None if head is None else head.pending_interrupt
        answer = checkpoint_record.answer(
            self.id, waits_for, decision, interrupt_id=interrupt_id, value=value
        )
        return self.checkpoint(metadata={"resumed": answer}, note=f"resume: {decision}")

    # A program's own object as the state
    def snapshot_state(
        self,
        obj: Any,
        *,
        lists: Sequence[str] = ("history",),
        leave_out: Sequence[str] = (),
        budgets: Budgets | None = None,
        metadata: Mapping[str, Any] | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
    ) -> Checkpoint | None:
        """Save the attributes of an object (or the items of a dict) as the state of one checkpoint.

        Attributes named in ``lists`` are kept as growing lists. What has no safe encoding becomes an opaque
        marker, listed in ``metadata["opaque"]``. ``budgets`` adds its tool-call counters.
        """
        portrait = portray(obj, lists=lists, leave_out=leave_out)
        counters = {} if budgets is None else budgets.counters().to_state()
        return self.checkpoint(
            state={**portrait.state, **counters},
            lists=portrait.lists,
            metadata=portrait.metadata(metadata),
            note=note,
            tags=tags,
        )

    def restore_state(
        self, obj: Any, *, at: str | int | datetime | Checkpoint | None = None, budgets: Budgets | None = None
    ) -> Checkpoint | None:
        """Give an object the attributes that were saved (at the head, or at another checkpoint).

        Opaque attributes, and those that the checkpoint does not know, stay as the object has them. ``None``,
        and nothing changed, for a thread that was never saved.
        """
        checkpoint = self.load() if at is None else self.at(at)
        if checkpoint is not None:
            put_back(obj, checkpoint)
            if budgets is not None:
                budgets.restore(Counters.from_state(checkpoint.state))
        return checkpoint

    def apply(
        self, actions: Actions | Mapping[str, Any] | None, *, to: Any = None, budgets: Budgets | None = None
    ) -> Checkpoint | None:
        """Do what a moderator asks for: CONTINUE, STOP (sets ``stop_flag``) or STEP_BACK.

        STEP_BACK moves the head to where the iteration ``rollback`` iterations ago began (``iter`` of the
        state; steps where it has none), with the state, lists and tool-call counters of then;
        ``clear_summaries`` also empties ``running_summary``. The journal keeps everything. A live object
        given as ``to`` follows: a STOP is saved from it, a STEP_BACK restored into it.
        """
        return do_actions(self, read_actions(actions), to=to, budgets=budgets)

    # Looking
    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint; ``None`` for a thread that was never saved. A small read, if it did not
        move.
        """
        checkpoint = self._head.see()
        return None if checkpoint is None else self._checkpoint(checkpoint)

    def load(self, *, last: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, for going on from it; fires the load hooks.

        With ``last``, its ``messages`` are only that many from the end, and no others are read.
        """
        check_count("last", last)
        record = self._head.see()
        if record is None:
            return None
        checkpoint = self._checkpoint(record, last=last)
        self._hooks.after_load(Saved(thread_id=self.id, namespace=self.namespace, checkpoint=checkpoint))
        return checkpoint

    def at(self, which: str | int | datetime | Checkpoint) -> Checkpoint:
        """A checkpoint by its id, or on the line to the head by its step, ``"~1"`` or a time.

        A time is a `datetime` or ISO 8601 text (without an offset: UTC), and names the newest checkpoint of
        then.
        """
        if isinstance(which, Checkpoint):
            if is_of(which, self._engine, self._space):
                return which
            which = which.id
        return self._checkpoint(self._head.find(which))

    def history(
        self,
        *,
        last: int | None = None,
        after: str | Checkpoint | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        everything: bool = False,
    ) -> Iterator[Checkpoint]:
        """Checkpoints, newest first: the line that leads to the head, through forks into their past.

        ``after`` goes on behind a checkpoint: its id is the cursor of a page. ``tags`` (all of them) and
        ``metadata`` (equal values) choose before ``last`` counts. ``everything`` gives all of this thread's
        own checkpoints instead, those left behind by a rewind too.
        """
        check_count("last", last)
        cursor = after.id if isinstance(after, Checkpoint) else after
        if everything:
            source = self._head.journal.all_of(self._head.scope, behind=cursor)
        else:
            source = self._head.line() if cursor is None else self._head.journal.line_behind(cursor)
        if tags or metadata:
            wanted_tags, wanted = set(check_tags(tags)), check_wanted(metadata)
            source = (checkpoint for checkpoint in source if checkpoint.has(wanted_tags, wanted))
        yield from map(self._checkpoint, islice(source, last))

    # Going back, and elsewhere
    def rewind(self, to: str | int | datetime | Checkpoint) -> Checkpoint:
        """Move the head back to an earlier checkpoint, and give it back. What was after it stays in the
        journal.

        A checkpoint from before this thread was forked is taken over as one of its own, like by `fork`.
        """
        self._head.see_once()
        target = self._head.find(to.id if isinstance(to, Checkpoint) else to)
        return self._checkpoint(self._head.rewind(target))

    def fork(
        self,
        new_id: str,
        *,
        at: str | int | datetime | Checkpoint | None = None,
        namespace: str | None = None,
    ) -> Thread:
        """A new thread that begins at a checkpoint of this one and shares its past; O(1), whatever the
        length.
        """
        checkpoint = self.head if at is None else self.at(at)
        if checkpoint is None:
            raise NotFound(f"thread {self.id!r} was never saved; there is nothing to fork")
        other = self._sibling(new_id, self.namespace if namespace is None else namespace)
        other._head.begin_as(checkpoint.record)  # noqa: SLF001 - another thread of the same class
        return other

    def diff(
        self, before: str | int | datetime | Checkpoint, after: str | int | datetime | Checkpoint
    ) -> Difference:
        """What differs between two checkpoints: messages, state as a JSON patch, and files."""
        old, new = self.at(before), self.at(after)
        return difference(old, new, files=self.workspace.diff(old.snapshot, new.snapshot))

    def delete(self, *, cascade: bool = False) -> None:
        """Remove the thread and its checkpoints; the journal keeps that it was deleted, not what it was.

        Forks that share its past keep it from going, unless ``cascade`` takes them along.
        """
        delete(self._engine, self._space, self._head, cascade=cascade, clock=self._clock)
        self.workspace.clear_stat_cache()

    def clean(
        self,
        thread_id: str | None = None,
        *,
        delete_transcript: bool = True,
        delete_checkpoint: bool = True,
        cascade: bool = False,
    ) -> Cleaned:
        """Remove the transcript and/or the checkpoints of this thread (or of another one of its namespace).

        As `forget`, it leaves no byte behind; the journal keeps how much went, not what. Forks that share
        its past are a `Conflict`, unless ``cascade`` takes them along.
        """
        chosen = self if thread_id is None else self._sibling(thread_id, self.namespace)
        self.workspace.clear_stat_cache()
        return clean(
            self._engine,
            self._space,
            chosen._head,  # noqa: SLF001 - another thread of the same class
            transcript=delete_transcript,
            checkpoints=delete_checkpoint,
            cascade=cascade,
            clock=self._clock,
        )

    def _asked(self, **fields: Any) -> SaveRequest | None:
        """What will be saved, after the hooks had their say."""
        return self._hooks.before_save(asked(self._id, self._namespace, **fields))

    def _save(
        self,
        saving: SaveRequest,
        wanted: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        on_conflict: Literal["raise", "fork", "retry"],
        taken: StagedSnapshot | None = None,
    ) -> Checkpoint:
        while True:
            try:
                record = self._head.save(saving, wanted, appended, step, taken=taken)
                break
            except ThreadMoved:
                if on_conflict == "raise":
                    raise
                if on_conflict == "fork":
                    fork = self._fork_off()
                    return fork._save(saving, wanted, appended, step, "raise", taken)  # noqa: SLF001
                self._head.see()
        checkpoint = self._checkpoint(record)
        self._hooks.after_save(Saved(thread_id=self._id, namespace=self._namespace, checkpoint=checkpoint))
        return checkpoint

    def _fork_off(self) -> Thread:
        """A fork of what this object last saw, for a writer who came second."""
        other = self._sibling(f"{self.id}~{new_id()[-6:]}", self.namespace)
        seen = self._head.checkpoint
        if seen is not None:
            other._head.begin_as(seen)  # noqa: SLF001
        return other

    def _sibling(self, thread_id: str, namespace: str) -> Thread:
        return Thread(self._ground, thread_id, namespace)

    def _checkpoint(self, checkpoint: CheckpointRecord, *, last: int | None = None) -> Checkpoint:
        return Checkpoint(self._engine, self._space, checkpoint, through=self, last=last)


# -----------------------------------------------------------------------------------------------------------
# The ground that threads grow on: what every one of them has in common with its store.


@dataclass(frozen=True, slots=True)
class ThreadContext:
    """One space of an engine, the clock, and the store's own hooks and workspace."""

    engine: Engine
    space: str
    clock: Clock
    hooks: Hooks
    workspace: Workspace
