"""Threads: a conversation and its state, checkpoint by checkpoint.

A thread is a ref (its head) that moves over immutable checkpoints, as a branch moves over commits; `head`
tells how the next checkpoint gets behind it. Two writers on one thread never overwrite each other: the second
gets a `ThreadMoved` that names both heads, or (``on_conflict="fork"``) a fork of its own.

An interrupt is a question that an agent waits for a person to decide; `answer_interrupt` makes the answer.

`Actions` are what a moderator may ask for between two iterations of a conversation: CONTINUE changes nothing,
STOP sets ``stop_flag``, STEP_BACK goes back some iterations. Iterations are counted by ``iter`` in the state,
or by steps if it has none. **Invariant:** an action moves the head or saves a checkpoint; it never shortens
the journal.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import msgspec

from treering.core.encoding import encode_json
from treering.core.forks import forked_thread
from treering.core.ids import check_id, new_id, short_id
from treering.core.notebook import table
from treering.errors import Conflict, InvalidInput, NotFound, RefMoved
from treering.limits.tool_budgets import Budgets, Counters
from treering.runs.messages import preview
from treering.threads import removal
from treering.threads.chat_ids import ChatId, TaskId, parse_thread_id
from treering.threads.checkpoint import (
    FORKED_FROM,
    MESSAGES,
    PREFIX,
    Checkpoint,
    CheckpointRecord,
    belongs_to,
    extension_of,
    limited_to,
)
from treering.threads.compaction import Summary, View, new_compaction, stored_form
from treering.threads.head import First, Head, ThreadMoved
from treering.threads.hooks import (
    COMPACTIONS,
    CheckpointEvent,
    check_choice,
    check_count,
    check_metadata_filter,
    check_step,
    check_tags,
    save_request,
)
from treering.threads.removal import Cleaned
from treering.threads.state_object import capture, set_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from decimal import Decimal
    from pathlib import Path

    from treering.approvals.ballots import Asked, Ballots, Cast
    from treering.approvals.policy import Decision
    from treering.core.batch import Draft
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.effects.effects import Effect, Intent
    from treering.threads.compaction import Compaction, Tokenizer
    from treering.threads.diff import Difference
    from treering.threads.hooks import Hooks, SaveRequest
    from treering.threads.partial import PartialReply
    from treering.workspaces.snapshot import StagedSnapshot
    from treering.workspaces.workspace import Workspace


_PASSED_SHOWN: Final = 10
_SHOWN: Final = 10
"""How many checkpoints a notebook shows of a thread."""
_ANSWERS_AT_ONCE: Final = 20
"""How often an answer is tried while others answer the same question."""

log: Final = logging.getLogger("treering.threads")


class ThreadContext(msgspec.Struct, frozen=True, eq=False):
    """What all threads of a store share: its engine, namespace, clock, hooks and workspace."""

    engine: Engine
    space: str
    clock: Clock
    hooks: Hooks
    workspace: Callable[[], Workspace]
    """Opened on first use: most threads never save files."""


class Thread:
    """One thread, as this object last saw it. Safe to use from several threads at once."""

    def __init__(self, context: ThreadContext, thread_id: str, namespace: str) -> None:
        self._namespace = check_id(namespace, "thread namespace") if namespace else ""
        self._id = forked_thread(
            context.engine, context.space, self._namespace, check_id(thread_id, "thread id")
        )
        self._context = context
        self._engine = context.engine
        self._space = context.space
        self._clock = context.clock
        self._hooks = context.hooks
        self._head = Head(context.engine, context.space, self._id, self._namespace, clock=context.clock)

    def __repr__(self) -> str:
        namespace = f", namespace={self.namespace!r}" if self.namespace else ""
        return f"Thread({self.id!r}{namespace})"

    def _repr_html_(self) -> str:
        saved = list(self.history(last=_SHOWN))
        rows = [
            (
                each.step,
                each.short_id,
                each.created_at,
                each.note,
                preview((each.last_messages(1) or [""])[-1]),
            )
            for each in saved
        ]
        return table(f"{self!r}", rows, head=("step", "checkpoint", "saved", "note", "last message"))

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
        """The chat (channel, chat id, number of resets) or scheduled task that the id names, if it does."""
        return parse_thread_id(self._id)

    @property
    def workspace(self) -> Workspace:
        """The store's workspace, which saves and restores files for this thread."""
        return self._context.workspace()

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
        workspace: str | Path | None = None,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        effects: Sequence[Intent] = (),
    ) -> Checkpoint:
        """Save one checkpoint and move the head to it. Raises `Vetoed` if a hook vetoed the save.

        ``messages`` and ``lists`` are whole lists, of which only new items are written; ``state`` is the
        whole state. ``workspace`` is a folder whose files are saved in the same commit (``exclude`` and
        ``include`` as for `Workspace.snapshot`), and ``effects`` are calls that it asks for, planned in that
        commit as well (see `treering.effects`). What is left out stays as it was, except for
        ``pending_interrupt``: an interrupt is pending only in the checkpoints that are given one.
        """
        check_choice(on_conflict, ("raise", "fork"))
        check_step(step)
        request = self._request(
            messages=messages,
            lists=lists,
            state=state,
            pending_interrupt=pending_interrupt,
            metadata=metadata,
            note=note,
            tags=tags,
            workspace=workspace,
            step=step,
        )
        whole_lists: dict[str, Sequence[Any]] = dict(request.lists)
        if request.messages is not None:
            whole_lists[MESSAGES] = request.messages
        if request.workspace is None:
            return self._save(request, whole_lists, (), step, on_conflict, effects=effects)
        return self.workspace.stage_and_commit(
            request.workspace,
            lambda staged: self._save(request, whole_lists, (), step, on_conflict, staged, effects),
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
        effects: Sequence[Intent] = (),
    ) -> Checkpoint:
        """Save one checkpoint with further messages. The cost does not depend on how many there are already.

        ``on_conflict="retry"`` appends them to whatever another writer saved in between.
        """
        check_choice(on_conflict, ("raise", "fork", "retry"))
        request = self._request(
            messages=messages, appends=True, state=state, metadata=metadata, note=note, tags=tags
        )
        messages = tuple(request.messages or ())
        return self._save(request, request.lists, messages, None, on_conflict, effects=effects)

    def shorten(
        self, length: int, *, metadata: Mapping[str, Any] | None = None, note: str | None = None
    ) -> Checkpoint:
        """Save one checkpoint that keeps only the first ``length`` messages, without reading or writing any.

        Like `rewind`, but to any length. Earlier checkpoints still have the messages that are cut off.
        """
        check_count("length", length)
        request = self._request(
            metadata=metadata, note=note, previous=lambda: self._previous(shortened_to=length)
        )
        messages = First(length) if request.messages is None else request.messages
        return self._save(request, {**request.lists, MESSAGES: messages}, (), None, "raise")

    def compact(
        self,
        summary: str | Summary | Mapping[str, Any] | Sequence[Any] | Callable[[list[Any]], Any],
        *,
        keep_last: int | None = None,
        upto: int | None = None,
        model: str | None = None,
        usage: Mapping[str, Any] | None = None,
        cost: Decimal | float | str | None = None,
        tokenizer: Tokenizer = None,
        note: str | None = None,
    ) -> Checkpoint:
        """Let a summary stand for all messages but the last ones in the compact view; nothing is removed.

        The boundary is before the ``keep_last`` last messages, or after the first ``upto``; it moves back
        where it would separate a tool call from its result. ``summary`` is text, a message or several, or a
        function that is called with what it is to stand for. ``model``, ``usage`` and ``cost`` say what it
        cost to make. Messages that others append meanwhile are kept. Raises `ThreadMoved` if they changed
        the messages before the boundary.
        """
        head = self._head.see()
        if head is None:
            raise NotFound(f"thread {self.id!r} was never saved; there is nothing to compact")
        seen = self._checkpoint(head)
        compaction = new_compaction(
            summary,
            seen.messages,
            seen.compactions,
            keep_last=keep_last,
            upto=upto,
            given=Summary(model=model, usage=usage, cost=cost),
            now_us=self._clock.now_us(),
            tokenizer=tokenizer,
        )
        note = note or f"compact: {compaction.upto - compaction.keeps} of {seen.message_count} messages"
        while True:
            try:
                return self._save_compactions([*seen.compactions, compaction], note)
            except ThreadMoved:
                moved = self._head.see()
                if moved is None or not _has_gone_on(head, moved):
                    raise

    def uncompact(self, *, everything: bool = False, note: str | None = None) -> Checkpoint:
        """Remove the newest compaction (or all), so that the compact view shows what it stood for again."""
        head = self._head.see()
        made = [] if head is None else self._checkpoint(head).compactions
        if not made:
            raise Conflict(f"thread {self.id!r} has no compaction; there is nothing to undo")
        left = [] if everything else made[:-1]
        return self._save_compactions(left, note or f"uncompact: {made[len(left)].upto} messages")

    def _save_compactions(
        self,
        compactions: Sequence[Compaction],
        note: str,
        *,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        messages: Sequence[Any] = (),
    ) -> Checkpoint:
        head = self._head.see_once()
        if metadata is None:
            metadata = {} if head is None else {**head.metadata}
            metadata.pop(FORKED_FROM, None)
        request = self._request(
            messages=messages,
            appends=True,
            state=state,
            metadata=metadata,
            note=note,
            pending_interrupt=None if head is None or messages else head.pending_interrupt,
        )
        lists: dict[str, Sequence[Any]] = {
            **request.lists,
            COMPACTIONS: [stored_form(each) for each in compactions],
        }
        return self._save(request, lists, tuple(request.messages or ()), None, "raise")

    def interrupt(
        self, payload: Any, *, interrupt_id: str | None = None, note: str | None = None
    ) -> Checkpoint:
        """Save a checkpoint that waits for a decision about ``payload`` (see `resume`)."""
        interrupt = new_interrupt(payload, interrupt_id)
        return self.checkpoint(pending_interrupt=interrupt, note=note or "interrupt")

    def resume(
        self,
        decision: Decision,
        *,
        interrupt_id: str | None = None,
        value: Any = None,
        by: str | None = None,
        reason: str | None = None,
        revision: int | None = None,
        goes_on: bool = False,
    ) -> Checkpoint:
        """Answer the pending interrupt and save the answer (``metadata["resumed"]``).

        ``edit`` requires the new value. ``by`` says who answers, and ``reason`` why; both are in the journal.
        If its policy (see `treering.approvals`) wants more people to agree, this is one of their votes, and
        the head stays as it is. ``revision`` is the number of votes that were seen, and ``goes_on`` says that
        the caller continues the thread itself, so that no worker has to.

        Raises `Conflict` if nothing is pending, or another interrupt is; `AlreadyAnswered` if somebody else
        was faster; and `NotPermitted` if it is for others to answer.

        A graph that waits is answered where it looks for the answer, and then goes on when it is invoked
        without input: ``graph.invoke(None, config)``. To it, ``approve`` is True and ``deny`` False, or the
        decisions of LangChain's approval of tool calls. ``edit`` gives it any value; for one tool call,
        the arguments to call it with are enough.
        """
        asked: Asked | None = None
        for _ in range(_ANSWERS_AT_ONCE):
            before, asked = asked, self._asked()
            known = self._approval_id(interrupt_id) if before is None else before.id
            if known is not None and (asked is None or asked.id != known):
                self._raise_if_answered(known)
            given = answer_interrupt(
                self.id,
                None if asked is None else asked.pending,
                decision,
                interrupt_id=interrupt_id,
                value=value,
            )
            if asked is None:
                break
            if decision == "edit":
                value = given["payload"]
            if self._expire(asked) is not None:
                self._raise_if_answered(asked.id)
            cast_vote = self._ballots.cast(
                asked,
                decision,
                by=by,
                reason=reason,
                value=value,
                revision=revision,
                progress="closed" if goes_on else "answered",
            )
            answered = self._answer(cast_vote)
            if answered is not None:
                return answered
        raise Conflict(f"thread {self.id!r} is answered by many at once; nothing was stored, try again")

    def expire(self) -> Checkpoint | None:
        """Answer the pending interrupt as its policy says, if its deadline has passed; see `resume`."""
        asked = self._asked()
        return None if asked is None else self._expire(asked)

    def cancel_question(self, *, by: str | None = None, reason: str | None = None) -> bool:
        """Close the pending question because the run that asks was cancelled; return whether one was open.

        The thread waits no more, except for a graph: it still waits, but nobody is asked.
        """
        for _ in range(_ANSWERS_AT_ONCE):
            asked = self._asked()
            vote = None if asked is None else self._ballots.cancel(asked, by=by, reason=reason)
            if vote is None:
                return False
            if self._answer(vote) is not None:
                return True
        return False

    def asked(self) -> Asked | None:
        """Return the question that the thread waits for, with what identifies it in the inbox."""
        return self._asked()

    def _asked(self) -> Asked | None:
        head, asked_us = self._head.see(), self._head.moved_us
        if head is None or head.pending_interrupt is None:
            return None
        from treering.approvals.ballots import Asked

        return Asked(
            thread_id=self._id,
            namespace=self._namespace,
            checkpoint_id=head.id,
            pending=head.pending_interrupt,
            asked_us=asked_us,
        )

    def _expire(self, asked: Asked) -> Checkpoint | None:
        decided = self._ballots.expire(asked)
        return None if decided is None else self._answer(decided)

    def _answer(self, vote: Cast) -> Checkpoint | None:
        """Commit a vote, with the answer if it decides; ``None`` if somebody else was faster."""
        standing, pending = vote.standing, vote.asked.pending
        decision = standing.decision
        try:
            if decision is None:
                self._ballots.commit(vote)
                return self.head
            record = self._head.see_once()
            if record is None or record.id != vote.asked.checkpoint_id:
                return None
            if extension_of(record.metadata) is not None and standing.status == "cancelled":
                self._ballots.commit(vote)  # an answer would let the graph go on
                return self.head
            if extension_of(record.metadata) is not None:
                put = partial(self._ballots.put, cast=vote, answer=record.id)
                return self._checkpoint(self._head.answer(decision, standing.value, also=put))
            answer = answer_interrupt(self.id, pending, decision, interrupt_id=None, value=standing.value)
            request = self._request(metadata={"resumed": answer | vote.answer}, note=f"resume: {decision}")
            return self._save(
                request,
                request.lists,
                (),
                None,
                "raise",
                also=lambda draft: self._ballots.put(draft, vote, answer=PREFIX + draft.id),
            )
        except (ThreadMoved, RefMoved):
            return None

    def _raise_if_answered(self, approval: str) -> None:
        from treering.approvals.ballots import already_answered

        ballot = self._ballots.find(approval)
        if ballot is not None and ballot.row.progress != "open":
            raise already_answered(ballot)

    def _approval_id(self, interrupt_id: str | None) -> str | None:
        from treering.approvals.questions import approval_id

        return None if interrupt_id is None else approval_id(self._id, self._namespace, interrupt_id)

    @property
    def _ballots(self) -> Ballots:
        from treering.approvals.ballots import Ballots

        return Ballots(self._engine, self._space, clock=self._clock)

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
    ) -> Checkpoint:
        """Save the attributes of an object (or the items of a dict) as the state of one checkpoint.

        Attributes named in ``lists`` are stored as growing lists. An attribute without a safe encoding is
        stored as an opaque marker and listed in ``metadata["opaque"]``. ``budgets`` adds its tool-call
        counters.
        """
        captured = capture(obj, lists=lists, leave_out=leave_out)
        counters = {} if budgets is None else budgets.counters().to_state()
        return self.checkpoint(
            state={**captured.state, **counters},
            lists=captured.lists,
            metadata=captured.metadata(metadata),
            note=note,
            tags=tags,
        )

    def restore_state(
        self, obj: Any, *, at: str | int | datetime | Checkpoint | None = None, budgets: Budgets | None = None
    ) -> Checkpoint | None:
        """Set the attributes of an object to what was saved at the head, or at another checkpoint.

        Opaque attributes, and attributes that the checkpoint does not have, stay as they are. Returns
        ``None`` and changes nothing if the thread was never saved.
        """
        checkpoint = self.get() if at is None else self.at(at)
        if checkpoint is not None:
            set_attributes(obj, checkpoint)
            if budgets is not None:
                budgets.restore(Counters.from_state(checkpoint.state))
        return checkpoint

    def apply(
        self, actions: Actions | Mapping[str, Any] | None, *, to: Any = None, budgets: Budgets | None = None
    ) -> Checkpoint | None:
        """Carry out the actions of a moderator: CONTINUE, STOP (sets ``stop_flag``) or STEP_BACK.

        STEP_BACK moves the head to where the iteration ``rollback`` iterations ago began (by ``iter`` of the
        state, or by step if it has none) and restores the state, lists and tool-call counters of that time;
        ``clear_summaries`` also empties ``running_summary``. The journal keeps everything. A live object
        given as ``to`` follows: STOP saves it, STEP_BACK restores into it.
        """
        return apply_actions(self, parse_actions(actions), to=to, budgets=budgets)

    # Reading
    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint; ``None`` if the thread was never saved. A small read if it did not move."""
        checkpoint = self._head.see()
        return None if checkpoint is None else self._checkpoint(checkpoint)

    def partial(self) -> PartialReply | None:
        """Return the reply that a model was streaming when its process died, if the thread ends there."""
        from treering.threads.partial import read_partial

        head = self._head.peek()
        count = 0 if head is None else head.message_count
        return read_partial(self._engine, self._space, self._id, self._namespace, count)

    def discard_partial(self) -> bool:
        """Forget the half-streamed reply; return whether there was one."""
        from treering.threads.partial import discard_partial

        return discard_partial(self._engine, self._space, self._id, self._namespace)

    def load(
        self,
        *,
        last: int | None = None,
        view: View = "full",
        budget_tokens: int | None = None,
        tokenizer: Tokenizer = None,
    ) -> Checkpoint:
        """Return the newest checkpoint, to continue from it; fires the load hooks.

        With ``last``, its ``messages`` are the last ones only, and no others are read. With
        ``view="compact"`` they are what a model is to be given (see `Checkpoint.compact_view`), and with
        ``budget_tokens`` as many as fit. Raises `NotFound` if the thread was never saved (`get` returns
        ``None`` then).
        """
        checkpoint = self.get(last=last, view=view, budget_tokens=budget_tokens, tokenizer=tokenizer)
        if checkpoint is None:
            of = f" in namespace {self.namespace!r}" if self.namespace else ""
            raise NotFound(
                f"thread {self.id!r}{of} was never saved; append() starts it, and get() returns None for it"
            )
        return checkpoint

    def get(
        self,
        *,
        last: int | None = None,
        view: View = "full",
        budget_tokens: int | None = None,
        tokenizer: Tokenizer = None,
    ) -> Checkpoint | None:
        """Return what `load` returns, or ``None`` if the thread was never saved."""
        check_count("last", last)
        if view not in get_args(View):
            raise InvalidInput(f"view is {view!r}; use full or compact")
        is_limited = view == "compact" or budget_tokens is not None or tokenizer is not None
        if is_limited and last is not None:
            raise InvalidInput(
                "last= selects messages by number; leave out view=, budget_tokens= and tokenizer="
            )
        record = self._head.see()
        if record is None:
            return None
        checkpoint = self._checkpoint(record, last=last)
        if is_limited:
            shown = checkpoint.compact_view(
                budget_tokens=budget_tokens, tokenizer=tokenizer, full=view == "full"
            )
            limited_to(checkpoint, shown)
        self._hooks.after_load(self._event(checkpoint))
        return checkpoint

    def at(self, which: str | int | datetime | Checkpoint, *, everything: bool = False) -> Checkpoint:
        """Return a checkpoint by its id, or by its position on the line to the head.

        A position is a step, ``"~1"`` (one checkpoint back) or a time: a `datetime` or ISO 8601 text (UTC
        without an offset), which selects the newest checkpoint at or before it. With ``everything``, a time
        selects what was the head then, also if a rewind has left it behind since.
        """
        if everything:
            if not isinstance(which, (str, datetime)):
                raise InvalidInput(f"everything=True selects by a time, not by {which!r}")
            return self._checkpoint(self._head.find_any(which))
        if isinstance(which, Checkpoint):
            if belongs_to(which, self._engine, self._space):
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
        """Iterate over the checkpoints that lead to the head, newest first, including those before a fork.

        ``after`` continues behind a checkpoint, so its id is the cursor of a page. ``tags`` (all of them) and
        ``metadata`` (equal values) filter before ``last`` counts. ``everything`` returns all checkpoints of
        this thread instead, including those left behind by a rewind.
        """
        check_count("last", last)
        cursor = after.id if isinstance(after, Checkpoint) else after
        if everything:
            source = self._head.journal.all_of(self._head.scope, behind=cursor)
        else:
            source = self._head.line() if cursor is None else self._head.journal.line_behind(cursor)
        if tags or metadata:
            with_tags, with_metadata = set(check_tags(tags)), check_metadata_filter(metadata)
            source = (checkpoint for checkpoint in source if checkpoint.has(with_tags, with_metadata))
        yield from map(self._checkpoint, islice(source, last))

    def diff(
        self,
        before: str | int | datetime | Checkpoint,
        after: str | int | datetime | Checkpoint | Thread = "~0",
    ) -> Difference:
        """Compare two checkpoints: messages, state as a JSON patch, and files.

        ``after`` is this thread's head unless it is given; a `Thread`, such as a fork, stands for its head.
        """
        from treering.threads.diff import difference

        old, new = self.at(before), after.at("~0") if isinstance(after, Thread) else self.at(after)
        return difference(old, new, files=self.workspace.diff(old.snapshot, new.snapshot))

    # Rewinding, forking, removing
    def rewind(self, to: str | int | datetime | Checkpoint) -> Checkpoint:
        """Move the head back to an earlier checkpoint and return it. Later ones stay in the journal.

        A checkpoint from before this thread was forked is copied into this thread, as by `fork`. Side effects
        of tools are not undone: those since then (see `effects_after`) are logged, and named in the journal.
        """
        self._head.see_once()
        target = self._head.find(to.id if isinstance(to, Checkpoint) else to)
        passed = self._passed(target)
        checkpoint = self._checkpoint(self._head.rewind(target, effects=[each.id for each in passed]))
        if passed:
            log.warning(
                "thread %r was rewound past %d tool calls, which are not undone: %s",
                self._id,
                len(passed),
                ", ".join(f"{each.tool} ({each.id}, {each.status})" for each in passed[:_PASSED_SHOWN]),
            )
        return checkpoint

    def effects_after(self, which: str | int | datetime | Checkpoint) -> list[Effect]:
        """List the tool calls that may have happened since a checkpoint, newest first.

        A rewind to the checkpoint does not undo them.
        """
        return self._passed(self.at(which).record)

    def _passed(self, target: CheckpointRecord) -> list[Effect]:
        from treering.effects.effects import Effects

        effects = Effects(self._engine, self._space, clock=self._clock)
        return effects.after(self._id, target.id, target.created_at_us, namespace=self._namespace)

    def fork(
        self,
        new_id: str,
        *,
        at: str | int | datetime | Checkpoint | None = None,
        namespace: str | None = None,
        messages: Sequence[Any] | None = None,
        state: Mapping[str, Any] | None = None,
        note: str | None = None,
    ) -> Thread:
        """Start a new thread at a checkpoint of this one. They share their past; O(1) in its length.

        ``messages`` and ``state`` begin it with other messages or another state (the whole of it), as if
        they had been so at that checkpoint: a graph goes on from there with what it would have done next.
        """
        checkpoint = self.head if at is None else self.at(at)
        if checkpoint is None:
            raise NotFound(f"thread {self.id!r} was never saved; there is nothing to fork")
        other = self._sibling(new_id, self.namespace if namespace is None else namespace)
        if messages is None and state is None:
            other._head.begin_as(checkpoint.record, note=note)  # noqa: SLF001 - another thread of this class
            return other
        request = other._request(  # noqa: SLF001
            messages=messages, state=state, note=note or "edited", previous=lambda: checkpoint
        )
        other._head.begin_as(  # noqa: SLF001
            checkpoint.record, messages=request.messages, state=request.state, note=request.note
        )
        head = other.head
        if head is not None:
            self._hooks.after_save(other._event(head))  # noqa: SLF001
        return other

    def delete(self, *, cascade: bool = False) -> Cleaned:
        """Delete the thread: checkpoints, transcript, and its lines in files that it was also written to.

        The threads and runs of its sub-agents are deleted with it, and the questions about it.
        The journal keeps that one was deleted, not which. Raises `Conflict` if forks share its past, unless
        ``cascade`` deletes them as well.
        """
        deleted = removal.delete(self._engine, self._space, self._head, cascade=cascade, clock=self._clock)
        self.workspace.clear_stat_cache()
        return deleted

    def clean(
        self,
        thread_id: str | None = None,
        *,
        delete_transcript: bool = True,
        delete_checkpoint: bool = True,
        cascade: bool = False,
    ) -> Cleaned:
        """Delete the transcript and/or the checkpoints of this thread (or of another in its namespace).

        Like `forget`, it leaves no bytes behind, in the store and in the files that the thread was also
        written to; ``kept`` names files that it could not touch. The journal keeps only how much was removed.
        Raises `Conflict` if forks share its past, unless ``cascade`` deletes them as well.
        """
        chosen = self if thread_id is None else self._sibling(thread_id, self.namespace)
        self.workspace.clear_stat_cache()
        return removal.clean(
            self._engine,
            self._space,
            chosen._head,  # noqa: SLF001 - another thread of the same class
            transcript=delete_transcript,
            checkpoints=delete_checkpoint,
            cascade=cascade,
            clock=self._clock,
        )

    def _request(self, *, previous: Callable[[], Any] | None = None, **fields: Any) -> SaveRequest:
        """Validate what is to be saved, and run the hooks that may change or veto it."""
        return self._hooks.before_save(
            save_request(self._id, self._namespace, previous=previous or self._previous, **fields)
        )

    def _previous(self, *, shortened_to: int | None = None) -> Any:
        """Return what the next checkpoint comes after, for a hook."""
        record = self._head.see_once()
        if record is None:
            return None
        checkpoint = self._checkpoint(record)
        if shortened_to is None:
            return checkpoint
        return SimpleNamespace(
            messages=checkpoint.messages[:shortened_to], state=checkpoint.state, step=checkpoint.step
        )

    def _save(
        self,
        request: SaveRequest,
        lists: Mapping[str, Sequence[Any] | First],
        appended: Sequence[Any],
        step: int | None,
        on_conflict: Literal["raise", "fork", "retry"],
        snapshot: StagedSnapshot | None = None,
        effects: Sequence[Intent] = (),
        also: Callable[[Draft], None] | None = None,
    ) -> Checkpoint:
        also = self._plan(effects) if effects else also
        while True:
            try:
                record = self._head.save(request, lists, appended, step, snapshot=snapshot, also=also)
                break
            except ThreadMoved:
                if on_conflict == "raise":
                    raise
                if on_conflict == "fork":
                    fork = self._fork_off()
                    return fork._save(request, lists, appended, step, "raise", snapshot, effects)  # noqa: SLF001
                self._head.see_moved()
        checkpoint = self._checkpoint(record)
        self._hooks.after_save(self._event(checkpoint))
        return checkpoint

    def _plan(self, intents: Sequence[Intent]) -> Callable[[Draft], None]:
        from treering.effects.effects import Effects

        effects = Effects(self._engine, self._space, clock=self._context.clock)
        return lambda draft: effects.put(draft, intents, checkpoint_id=PREFIX + draft.id)

    def _fork_off(self) -> Thread:
        """Fork what this object last saw, for a writer who came second."""
        other = self._sibling(f"{self.id}~{short_id(new_id())[-6:]}", self.namespace)
        seen = self._head.checkpoint
        if seen is not None:
            other._head.begin_as(seen)  # noqa: SLF001 - another thread of the same class
        return other

    def _sibling(self, thread_id: str, namespace: str) -> Thread:
        return Thread(self._context, thread_id, namespace)

    def _checkpoint(self, checkpoint: CheckpointRecord, *, last: int | None = None) -> Checkpoint:
        return Checkpoint(self._engine, self._space, checkpoint, through=self, last=last)

    def _event(self, checkpoint: Checkpoint) -> CheckpointEvent:
        return CheckpointEvent(thread_id=self._id, namespace=self._namespace, checkpoint=checkpoint)


def save_compactions(
    thread: Thread,
    compactions: Sequence[Compaction],
    note: str,
    *,
    state: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    messages: Sequence[Any] = (),
) -> Checkpoint:
    """Append messages, and save the compactions that a framework made in place of those of the thread."""
    return thread._save_compactions(compactions, note, state=state, metadata=metadata, messages=messages)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - of this file


def _has_gone_on(before: CheckpointRecord, after: CheckpointRecord) -> bool:
    """Whether a later head has the messages and compactions of an earlier one, and perhaps more messages."""
    one, other = before.lists.get(MESSAGES), after.lists.get(MESSAGES)
    is_longer = one is not None and other is not None and one.list == other.list
    is_same = before.lists.get(COMPACTIONS) == after.lists.get(COMPACTIONS)
    return is_longer and is_same and cast("Any", one).length <= cast("Any", other).length


STOP_FLAG: Final = "stop_flag"
SUMMARY: Final = "running_summary"
ITERATION: Final = "iter"


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next; ``rollback`` (iterations) and ``clear_summaries`` apply to STEP_BACK."""

    type: Literal["CONTINUE", "STOP", "STEP_BACK"] = "CONTINUE"
    rollback: int = 1
    clear_summaries: bool = False


def parse_actions(actions: Actions | Mapping[str, Any] | None) -> Actions:
    """Validate actions as a moderator wrote them; ``None`` means CONTINUE."""
    if actions is None:
        return Actions()
    try:
        parsed = actions if isinstance(actions, Actions) else msgspec.convert(dict(actions), Actions)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"invalid actions: {error}; give type (CONTINUE, STOP or STEP_BACK), rollback and clear_summaries"
        ) from error
    if parsed.rollback < 0:
        raise InvalidInput(f"rollback is {parsed.rollback}; give the iterations to go back, 0 or more")
    return parsed


def apply_actions(thread: Thread, actions: Actions, *, to: Any, budgets: Budgets | None) -> Checkpoint | None:
    """Carry out actions on a thread and on the live object ``to``, if given. Return the head after them."""
    head = thread.head
    if actions.type == "STOP":
        return _stop(thread, head, to)
    if actions.type == "CONTINUE" or head is None:
        return head
    target = iterations_back(thread.history(), actions.rollback) or head
    checkpoint: Checkpoint | None = head if target == head else thread.rewind(target)
    if actions.clear_summaries:
        cleared = {**target.state, SUMMARY: None}
        checkpoint = thread.checkpoint(state=cleared, metadata=target.metadata, note="clear summaries")
    if to is not None or budgets is not None:
        thread.restore_state({} if to is None else to, budgets=budgets)
    return checkpoint


def _stop(thread: Thread, head: Checkpoint | None, to: Any) -> Checkpoint:
    if to is not None:
        if isinstance(to, dict):
            to[STOP_FLAG] = True
        else:
            setattr(to, STOP_FLAG, True)
        return thread.snapshot_state(to, note="stop")
    if head is None:
        return thread.checkpoint(state={STOP_FLAG: True}, note="stop")
    return thread.checkpoint(state={**head.state, STOP_FLAG: True}, metadata=head.metadata, note="stop")


def iterations_back(line: Iterable[Checkpoint], count: int) -> Checkpoint | None:
    """Return where the iteration ``count`` iterations before the newest checkpoint began.

    If the line is shorter than that, returns its oldest checkpoint. Reads only ``iter`` of the checkpoints.
    """
    target: Checkpoint | None = None
    goal = 0
    for checkpoint in line:
        at = _iteration(checkpoint)
        if target is None:
            target, goal = checkpoint, at - count
            if count == 0:
                return target
        elif at >= goal:
            target = checkpoint
        else:
            return checkpoint if _iteration(target) > goal else target
    return target


def _iteration(checkpoint: Checkpoint) -> int:
    number = checkpoint.value(ITERATION)
    return number if isinstance(number, int) else checkpoint.step


_DECISIONS: Final = ("approve", "deny", "edit")


def new_interrupt(payload: Any, interrupt_id: str | None) -> dict[str, Any]:
    """Return a new interrupt in the form in which a checkpoint keeps it."""
    return {"id": interrupt_id or new_id(), "payload": payload}


def answer_interrupt(
    thread_id: str, pending: Any, decision: Decision, *, interrupt_id: str | None, value: Any
) -> dict[str, Any]:
    """Return the answer to the pending interrupt of a thread.

    Raises `Conflict` if none is pending, or another one than ``interrupt_id``.
    """
    if pending is None:
        raise Conflict(f"thread {thread_id!r} has no pending interrupt; there is nothing to resume")
    known = cast("Mapping[str, Any]", pending if isinstance(pending, Mapping) else {"payload": pending})
    if interrupt_id is not None and known.get("id") != interrupt_id:
        raise Conflict(f"thread {thread_id!r} waits for interrupt {known.get('id')!r}, not {interrupt_id!r}")
    if decision not in _DECISIONS:
        raise InvalidInput(f"{decision!r} is not a decision; use approve, deny or edit")
    if (decision == "edit") != (value is not None):
        raise InvalidInput("edit requires the new value, and the other decisions take none")
    payload = _fitting(thread_id, known, decision, value) if decision == "edit" else known.get("payload")
    return {"id": known.get("id"), "decision": decision, "payload": payload}


def _fitting(thread_id: str, pending: Mapping[str, Any], decision: Decision, value: Any) -> Any:
    """Return an edited value in the form that the one who asks can read.

    A framework may say in the interrupt what such a value looks like (``answer.values.edit``), and where in
    it the arguments of a single tool call are (``answer.arguments``). Any other value would break its next
    step.
    """
    answer: Mapping[str, Any] = pending.get("answer") or {}
    example: Any = answer.get("values", {}).get(decision)
    if not isinstance(example, Mapping):
        return value
    like = cast("Mapping[str, Any]", example)
    fields = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
    if fields.keys() == like.keys() and all(_same_form(fields[name], like[name]) for name in like):
        return fields
    path: Sequence[str | int] = answer.get("arguments") or ()
    if path and isinstance(value, Mapping) and not fields.keys() & like.keys():
        whole = copy.deepcopy(dict(like))
        place: Any = whole
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = fields
        return whole
    raise InvalidInput(
        f"thread {thread_id!r} waits for an answer of another form; change what is to be different in "
        f"{encode_json(like).decode()} and give all of it as the value"
    )


def _same_form(value: Any, example: Any) -> bool:
    if isinstance(example, list):
        return isinstance(value, list) and len(cast("list[Any]", value)) == len(cast("list[Any]", example))
    return True
