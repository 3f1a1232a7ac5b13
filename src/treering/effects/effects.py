"""Effects: the side effect of a tool call happens once, whenever its process dies.

A tool call that must not be repeated goes through four moments, and each but the third is durable before the
next one begins:

1. **Intent.** What is going to be called, with which arguments and under which idempotency key. It is part of
   the commit of the checkpoint that asks for the call (`Effects.put`), so a thread never waits for a call
   that nothing knows of.
2. **Start** (`Effects.begin`). The number of the attempt and who makes it. A lease keeps everybody else from
   starting the same effect, and is renewed while the tool runs.
3. **The call itself**, outside of the store.
4. **Outcome** (`Attempt.finish`). The result or the error, kept for whoever asks again.

A process that dies between 1 and 2 did not call the tool; one that dies after 4 left its result. Between 2
and 4 nobody knows, and the effect's `Replay` decides: ``safe`` is called again; ``once`` is called again if
the tool takes an idempotency key, because the other side then recognises the repetition; otherwise the effect
becomes **unknown** and is not called. A person, or a probe function of the tool, then says that it happened
(`Effects.resolve`), that it did not and may be called (`Effects.retry`), or that it is given up
(`Effects.abandon`).

An effect is one ref, ``effect/<id>``, which moves by compare-and-swap: its version is the fencing token. A
process that lost its lease may still report what happened, but only if nobody acted on the effect since. A
second ref, ``effect.open/<id>``, exists while an effect has no outcome, so that the open ones are found
without reading all. The journal has an event for each intent, outcome and decision.

**Invariant:** at most one attempt of an effect is being made at any time, and an effect that is not safe and
has no key is started at most once until a person or probe permits another attempt.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from datetime import datetime
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, get_args

import msgspec
from msgspec import structs

from treering.core import failpoints, forks
from treering.core.batch import ABSENT, Draft, Event
from treering.core.clock import to_datetime, to_iso
from treering.core.content import INLINE_LIMIT, Address, Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.forks import forked_thread
from treering.core.ids import Scope, check_id, new_id, only_match, thread_key, thread_scope
from treering.core.query import EventQuery, each_record, each_ref, note_unreadable
from treering.core.records import Lease
from treering.errors import (
    Conflict,
    Corrupt,
    Fenced,
    InvalidInput,
    NotFound,
    RefMoved,
    TreeringError,
    Unsupported,
)
from treering.files import host_name
from treering.runs.run import cancel_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.run import RunInfo
    from treering.threads.diff import Changes

Replay = Literal["safe", "once", "ask"]
"""What to do when an attempt ended without an outcome: call again (``safe``); call again only with an
idempotency key, else ask (``once``); always ask (``ask``)."""

Status = Literal["planned", "started", "done", "failed", "unknown", "abandoned"]

FINISHED: Final = ("done", "failed", "abandoned")
"""The statuses of effects whose outcome is known; the tool is not called for them."""

PLANNED: Final = "effect.planned"
ENDED: Final = "effect.ended"
UNKNOWN: Final = "effect.unknown"
DECIDED: Final = "effect.decided"
EFFECT_KINDS: Final = (PLANNED, ENDED, UNKNOWN, DECIDED)
"""The kinds of journal events about effects. The id of each begins with the effect's id and a dot."""

QUESTION: Final = (
    "Its process ended while this call was being made, so nobody knows whether it happened. "
    "approve: it did not, make the call. deny: give it up. edit, with the result: it did happen."
)
"""What a person is asked about an effect that nobody knows."""

EFFECTS: Final = "effect/"
OPEN_EFFECTS: Final = "effect.open/"
MAX_FILES: Final = 100
"""How many of the files that a call changed are stored by name."""
LEASE_SECONDS: Final = 15.0
_STARTING_SECONDS: Final = 2.0
"""How long a lease is first: if its process dies before the start is stored, nobody can see that it has."""
_BEATS: Final = 3
"""How often a lease is renewed in its lifetime."""
_POLL_SECONDS: Final = 0.05
_ADDRESS_MARK: Final = "@"

_BEGUN: Final = failpoints.declare("effect.started", "an attempt of an effect is durable, nothing was called")
_CALLED: Final = failpoints.declare("effect.called", "a tool has returned, its outcome is not stored")
_ENDED: Final = failpoints.declare("effect.ended", "an outcome is durable, nobody has seen it")


class EffectRunning(Conflict):
    """Another process is making this call; wait until it has finished."""

    retryable = True


class EffectFailed(Conflict):
    """The outcome of this call is an error, or somebody has given it up."""


class EffectUnknown(Conflict):
    """Nobody knows whether this call happened; a person has to say so before its thread can go on."""


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is going to be made.

    ``id`` names the effect: the same id is the same effect, in every process and after every crash.
    """

    tool: str
    arguments: Any
    id: str = msgspec.field(default_factory=new_id)
    replay: Replay = "once"
    takes_key: bool = False
    """Whether the tool passes the idempotency key on, so that it may be called again with it."""
    call_id: str | None = None
    thread_id: str | None = None
    namespace: str = ""
    run_id: str | None = None
    agent: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found out: whether the effect ``happened`` (``None``: it cannot tell), and its result."""

    happened: bool | None
    result: Any = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, how far it got, and its outcome."""

    id: str
    tool: str
    arguments: Any
    status: Status
    replay: Replay
    takes_key: bool
    attempt: int
    """How often the call was started."""
    planned_at_us: int
    call_id: str | None = None
    thread_id: str | None = None
    namespace: str = ""
    run_id: str | None = None
    agent: str | None = None
    owner: str | None = None
    """Who made the last attempt: host and process id."""
    started_at_us: int | None = None
    ended_at_us: int | None = None
    result: Any = None
    """What the call returned, or the text of its error."""
    files: tuple[str, ...] = ()
    """The files that the call changed, where that is known: the first `MAX_FILES` of them."""
    file_count: int = 0
    """How many files the call changed, where that is known."""
    cost_nanos: dict[str, int] = {}
    """What was spent during the call, by currency, where that is known."""
    decided_by: str | None = None
    note: str | None = None
    checkpoint_id: str | None = None
    """The checkpoint that asks for the call."""

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt of this effect, and for no other one."""
        return key_of(self.id)

    @property
    def is_finished(self) -> bool:
        """Whether its outcome is known."""
        return self.status in FINISHED

    @property
    def is_error(self) -> bool:
        """Whether the outcome is an error."""
        return self.status in ("failed", "abandoned")

    @property
    def may_repeat(self) -> bool:
        """Whether a call without an outcome may be made again without asking."""
        return self.replay == "safe" or (self.replay == "once" and self.takes_key)

    @property
    def planned_at(self) -> datetime:
        """When it was planned, in UTC."""
        return to_datetime(self.planned_at_us)

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt began."""
        return to_datetime(self.started_at_us)

    @property
    def ended_at(self) -> datetime | None:
        """When its outcome was stored."""
        return to_datetime(self.ended_at_us)

    @property
    def question(self) -> str:
        """What a person is asked about an effect whose outcome nobody knows, and how to answer."""
        return (
            f"the process of {self.describe()} ended while the call was being made, so nobody knows whether "
            f"it happened; decide with `treering effects resolve|retry|abandon {self.id}`, then go on"
        )

    def value(self) -> Any:
        """Return the result; raise `EffectUnknown` or `EffectFailed` if there is none."""
        if self.is_error:
            raise EffectFailed(f"effect {self.describe()}: {self.result}")
        if not self.is_finished:
            raise EffectUnknown(self.question)
        return self.result

    def describe(self) -> str:
        """Return it as a line of text, for messages."""
        of = "" if self.thread_id is None else f" of thread {self.thread_id!r}"
        return f"{self.tool!r}{of} ({self.id}, {self.status}, attempt {self.attempt})"


def key_of(effect_id: str) -> str:
    """Return the idempotency key of an effect."""
    return f"treering-{effect_id}"


def question_about(effect: Effect) -> dict[str, Any]:
    """Return what a person has to know about an unknown effect."""
    return {
        "id": effect.id,
        "idempotency_key": effect.key if effect.takes_key else None,
        "attempt": effect.attempt,
        "owner": effect.owner,
        "started_at": to_iso(effect.started_at_us),
        "note": effect.note,
    }


class _Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An effect as its ref holds it; values are JSON text, or ``@`` and the address of a large one."""

    tool: str
    arguments: str
    status: Status
    replay: Replay
    planned_us: int
    takes_key: bool = False
    attempt: int = 0
    call: str | None = None
    thread: str | None = None
    namespace: str = ""
    run: str | None = None
    agent: str | None = None
    owner: str | None = None
    holder: str | None = None
    token: int = 0
    started_us: int | None = None
    ended_us: int | None = None
    result: str | None = None
    files: tuple[str, ...] = ()
    file_count: int = 0
    cost_nanos: dict[str, int] = {}
    by: str | None = None
    note: str | None = None
    checkpoint: str | None = None


_encode_row: Final = msgspec.json.Encoder().encode
_decode_row: Final = msgspec.json.Decoder(_Row).decode


class _Stored(msgspec.Struct, frozen=True):
    """A row and the ref that holds it."""

    ref: Ref
    row: _Row


class Effects:
    """The effects of one space."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        *,
        clock: Clock,
        changes: Callable[[Effect, str | Path | None], Changes] | None = None,
    ) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._changes = changes
        self._ledger = _Ledger(engine, space, clock)

    def __repr__(self) -> str:
        return f"<Effects space={self._space!r}>"

    # Looking
    def load(self, effect_id: str) -> Effect:
        """Return an effect by its id or the unique beginning of one; raise `NotFound` if there is none."""
        return self._ledger.effect(self._ledger.find(effect_id))

    def get(self, effect_id: str) -> Effect | None:
        """Return what `load` returns, or ``None`` if there is no such effect."""
        try:
            return self.load(effect_id)
        except NotFound:
            return None

    def list(
        self,
        *,
        thread_id: str | None = None,
        namespace: str = "",
        run_id: str | None = None,
        status: Status | None = None,
        after: str | None = None,
        last: int | None = None,
    ) -> Iterator[Effect]:
        """List effects, newest first: those of a thread or run, with this status.

        ``after`` continues behind an effect. With ``status="unknown"``, an effect whose process is gone
        without an outcome, and which may not be repeated, becomes unknown first.
        """
        if status is not None and status not in get_args(Status):
            raise InvalidInput(f"status={status!r} is invalid; use {', '.join(get_args(Status))}")
        if status is None or status in FINISHED:
            ids = self._ledger.planned_ids(thread_id, namespace, run_id)
        else:
            ids = iter(sorted(self._ledger.open_ids(), reverse=True))
        if after is not None:
            ids = dropwhile(lambda each: each != after, ids)
            next(ids, None)
        wanted = (
            self._ledger.effect(each)
            for each in self._readable(ids, status)
            if each is not None
            and (status is None or each.row.status == status)
            and (run_id is None or each.row.run == run_id)
            and (thread_id is None or (each.row.thread, each.row.namespace) == (thread_id, namespace))
        )
        yield from islice(wanted, last)

    def _readable(self, ids: Iterable[str], status: Status | None) -> Iterator[_Stored | None]:
        for each in ids:
            try:
                yield self._settled(each, status)
            except Corrupt as error:
                note_unreadable(EFFECTS + each, error)

    def unknown(
        self, *, thread_id: str | None = None, namespace: str = "", run_id: str | None = None
    ) -> Iterator[Effect]:
        """List the effects that wait for a decision, newest first; see `list`."""
        yield from self.list(thread_id=thread_id, namespace=namespace, run_id=run_id, status="unknown")

    def changes(self, effect_id: str, *, workspace: str | Path | None = None) -> Changes:
        """Return what happened since a call was asked for: on the timeline, and in the files.

        The files are those of the folder ``workspace`` as it is now (of which a snapshot is taken), or of the
        thread's newest checkpoint; they are compared with those of the checkpoint that asked for the call.
        """
        if self._changes is None:
            raise Unsupported("these effects have no threads to look at; use store.effects")
        return self._changes(self.load(effect_id), workspace)

    def after(
        self, thread_id: str, checkpoint_id: str, since_us: int, *, namespace: str = ""
    ) -> list[Effect]:
        """List the effects that a thread planned after a checkpoint and that may have happened.

        ``since_us`` is when the checkpoint was made. A rewind to it does not undo them.
        """
        found: list[Effect] = []
        for each in self._ledger.planned_ids(thread_id, namespace, None, since_us=since_us):
            stored = self._ledger.stored(each)
            if stored is None or stored.row.attempt == 0 or stored.row.checkpoint == checkpoint_id:
                continue
            found.append(self._ledger.effect(stored))
        return found

    def _settled(self, effect_id: str, status: Status | None) -> _Stored | None:
        stored = self._ledger.stored(effect_id)
        if stored is not None and stored.row.status == "started" and status == "unknown":
            return self._ledger.settle(stored)
        return stored

    # Making a call
    def put(self, draft: Draft, intents: Iterable[Intent], *, checkpoint_id: str | None = None) -> None:
        """Add intents to a batch: that of the checkpoint which asks for the calls."""
        for intent in intents:
            check_id(intent.id, "effect id")
            if intent.replay not in get_args(Replay):
                raise InvalidInput(f"replay={intent.replay!r} is invalid; use {', '.join(get_args(Replay))}")
            thread = intent.thread_id
            if thread is not None:
                thread = forked_thread(self._engine, self._space, intent.namespace, thread)
            scope = _scope(thread, intent.namespace, intent.id)
            now_us = self._clock.now_us()
            arguments, links = _store(draft, intent.arguments, scope)
            row = _Row(
                tool=check_id(intent.tool, "tool name"),
                arguments=arguments,
                status="planned",
                replay=intent.replay,
                planned_us=now_us,
                takes_key=intent.takes_key,
                call=intent.call_id,
                thread=thread,
                namespace=intent.namespace,
                run=intent.run_id,
                agent=intent.agent,
                checkpoint=checkpoint_id,
            )
            self._ledger.put_row(draft, intent.id, row, scope, links=links, expect=ABSENT)
            draft.set_ref(OPEN_EFFECTS + intent.id, b"1", scope=scope, expect=ABSENT)
            self._ledger.put_event(draft, intent.id, row, scope, PLANNED, {})

    def plan(self, *intents: Intent) -> None:
        """Commit intents on their own. An effect that is stored already stays as it is."""
        for intent in intents:
            draft = Draft(self._space)
            self.put(draft, [intent])
            with suppress(RefMoved):
                self._engine.commit(draft.batch())

    def begin(self, effect_id: str, *, arguments: Any = None, wait_seconds: float = 20.0) -> Attempt | Effect:
        """Start an attempt; return the effect instead if it must not be called (now).

        That is an effect with an outcome, or one that is unknown. ``arguments`` replace the planned ones
        before the first attempt, for a call that a person edited. Waits for an attempt of another process.

        Raises:
            EffectRunning: the other attempt did not end in ``wait_seconds``.
            RunCancelled: somebody has cancelled the run that planned the call.
        """
        run_id = self._ledger.find(effect_id).row.run
        return self._begin(effect_id, run_id, arguments=arguments, wait_seconds=wait_seconds)

    def _begin(
        self, effect_id: str, run_id: str | None, *, arguments: Any = None, wait_seconds: float
    ) -> Attempt | Effect:
        """Start an attempt that a run makes."""
        deadline = time.monotonic() + wait_seconds
        while True:
            stored = self._ledger.find(effect_id)
            if stored.row.status in (*FINISHED, "unknown"):
                return self._ledger.effect(stored)
            lease = self._ledger.claim(stored)
            if lease is not None:
                try:
                    return self._ledger.start(lease, effect_id, arguments, run_id)
                except BaseException as error:
                    with suppress(TreeringError):
                        self._engine.release(lease)
                    if not isinstance(error, (Fenced, RefMoved)):
                        raise
                    self._raise_if_cancelled(run_id)
            if time.monotonic() >= deadline:
                effect = self._ledger.effect(stored)
                raise EffectRunning(
                    f"effect {effect.describe()} is being made by {effect.owner or 'another process'}; "
                    "wait for it, or end that process and try again"
                )
            time.sleep(_POLL_SECONDS)

    def _raise_if_cancelled(self, run_id: str | None) -> None:
        from treering.runs.tree import RunCancelled, cancellation

        if run_id is not None and cancellation(self._engine, self._space, run_id) is not None:
            raise RunCancelled(f"run {run_id!r} was cancelled, so this call is not made any more")

    def open(
        self, intent: Intent, *, probe: Callable[[Effect], Any] | None = None, wait_seconds: float = 20.0
    ) -> Attempt | Effect:
        """Plan an effect unless it is stored, and begin it for the run of the intent; see `begin`.

        ``probe`` finds out whether an unknown one happened: it returns an `Outcome`, or ``None`` if it cannot
        tell.
        """
        fork = forks.current.fork
        if fork is not None and intent.replay != "safe" and fork.is_of(self._engine, self._space):
            return cast("Effect", fork.effect(self, intent))
        self.plan(intent)
        begun = self._begin(intent.id, intent.run_id, wait_seconds=wait_seconds)
        if isinstance(begun, Attempt) or begun.status != "unknown" or probe is None:
            return begun
        found = _call(probe, begun)
        if found is None or found.happened is None:
            return begun
        with suppress(Conflict):  # somebody has decided meanwhile
            self.resolve(begun.id, happened=found.happened, result=found.result, by="probe")
        return self._begin(intent.id, intent.run_id, wait_seconds=wait_seconds)

    def call(
        self,
        intent: Intent,
        function: Callable[[Effect], Any],
        *,
        probe: Callable[[Effect], Any] | None = None,
    ) -> Any:
        """Make a call once: return what ``function(effect)`` returns, or has returned in an earlier process.

        ``function`` and ``probe`` may be async. An error that ``function`` raises is no outcome: nobody knows
        what it did.

        Raises:
            EffectUnknown: nobody knows whether it happened.
            EffectFailed: its outcome is an error, or it was given up.
        """
        begun = self.open(intent, probe=probe)
        if isinstance(begun, Attempt):
            with begun:
                begun = begun.finish(_call(function, begun.effect))
        return begun.value()

    # Deciding about an unknown one
    def resolve(
        self,
        effect_id: str,
        *,
        happened: bool,
        result: Any = None,
        by: str | None = None,
        note: str | None = None,
    ) -> Effect:
        """Say whether an unknown effect happened, and with which result. If not, it may be called again."""
        if happened:
            return self._decide(effect_id, "done", result, by=by, note=note)
        return self.retry(effect_id, by=by, note=note)

    def retry(self, effect_id: str, *, by: str | None = None, note: str | None = None) -> Effect:
        """Say that an unknown effect did not happen: the next run of its thread makes the call."""
        return self._decide(effect_id, "planned", None, by=by, note=note)

    def abandon(self, effect_id: str, *, by: str | None = None, note: str | None = None) -> Effect:
        """Give an effect up that has no outcome: the agent is told so, and the call is not made."""
        return self._decide(effect_id, "abandoned", note or "the call was given up", by=by, note=note)

    def abandon_planned(self, runs: Sequence[RunInfo], *, by: str | None = None) -> None:
        """Give up the effects of cancelled runs that were never begun. `Runs.cancel` does this."""
        ids = {each.id for each in runs}
        for effect in self.list(status="planned") if ids else ():
            if effect.run_id in ids:
                with suppress(Conflict):
                    self.abandon(effect.id, by=by, note="the call was not made: its run was cancelled")

    def _decide(
        self, effect_id: str, status: Status, result: Any, *, by: str | None, note: str | None
    ) -> Effect:
        stored = self._ledger.find(effect_id)
        if stored.row.status == "started":
            stored = self._ledger.settle(stored)
        allowed = ("unknown", "planned") if status == "abandoned" else ("unknown",)
        if stored.row.status not in allowed:
            raise Conflict(
                f"effect {self._ledger.effect(stored).describe()} is not unknown; "
                "only an effect without a known outcome needs a decision"
            )
        row = structs.replace(stored.row, status=status, by=by, note=note, owner=None, holder=None)
        return self._ledger.effect(self._ledger.end(stored, row, result, kind=DECIDED))


class Attempt:
    """One attempt of an effect, from `Effects.begin`. Call the tool, then `finish` or `leave`.

    The lease is renewed in the background until then. An attempt that is left without an outcome (its task
    was cancelled, say) is one whose outcome nobody knows.
    """

    def __init__(self, ledger: _Ledger, stored: _Stored, lease: Lease) -> None:
        self.effect = ledger.effect(stored)
        self._ledger = ledger
        self._stored = stored
        self._lease = lease
        self._stopping = threading.Event()
        self._renewer = threading.Thread(target=self._renew, name="treering-effect", daemon=True)
        self._renewer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stopping.is_set():
            self.leave(note=None if error is None else f"{type(error).__name__}: {error}")

    def finish(
        self,
        result: Any = None,
        *,
        is_error: bool = False,
        files: Sequence[str] = (),
        cost_nanos: Mapping[str, int] | None = None,
    ) -> Effect:
        """Store the outcome and return the effect with it.

        ``files`` are those that the call changed, and ``cost_nanos`` is what it cost, by currency.
        If the lease was lost meanwhile and someone else acted on the effect, theirs is returned.
        """
        failpoints.hit(_CALLED)
        self._stop()
        ledger, stored = self._ledger, self._stored
        row = structs.replace(stored.row, status="failed" if is_error else "done", holder=None)
        try:
            for _ in range(2):
                try:
                    ended = ledger.end(stored, row, result, kind=ENDED, files=files, cost_nanos=cost_nanos)
                    failpoints.hit(_ENDED)
                    return ledger.effect(ended)
                except (RefMoved, Fenced):
                    current = ledger.find(self.effect.id)
                    if current.row.status != "unknown" or current.row.attempt != row.attempt:
                        return ledger.effect(current)
                    stored = current  # it was given up for lost, but nobody has decided yet
            return ledger.effect(ledger.find(self.effect.id))
        finally:
            with suppress(TreeringError):
                ledger.engine.release(self._lease)

    def leave(self, *, note: str | None = None) -> None:
        """End the attempt without an outcome: unknown, unless it may be repeated. ``note`` says why."""
        self._stop()
        ledger = self._ledger
        try:
            if not self.effect.may_repeat:
                with suppress(RefMoved):
                    ledger.mark_unknown(self._stored, note)
        finally:
            with suppress(TreeringError):
                ledger.engine.release(self._lease)

    def _stop(self) -> None:
        self._stopping.set()
        self._renewer.join()

    def _renew(self) -> None:
        engine = self._ledger.engine
        while not self._stopping.wait(LEASE_SECONDS / _BEATS):
            with suppress(TreeringError):
                engine.heartbeat(self._lease, seconds=LEASE_SECONDS)


class _Ledger:
    """How effects are stored: their refs, events and leases."""

    def __init__(self, engine: Engine, space: str, clock: Clock) -> None:
        self.engine = engine
        self.space = space
        self.clock = clock

    def start(self, lease: Lease, effect_id: str, arguments: Any, run_id: str | None) -> Attempt | Effect:
        stored = self.find(effect_id)
        row = stored.row
        if row.status == "started" and not self.effect(stored).may_repeat:
            stored = self.mark_unknown(stored)
        if stored.row.status in (*FINISHED, "unknown"):
            self.engine.release(lease)
            return self.effect(stored)
        scope, links = stored.ref.scope, stored.ref.links
        draft = Draft(self.space)
        draft.fence(lease.name, lease.token)
        if run_id is not None:
            draft.delete_ref(cancel_ref(run_id), scope=scope, expect=ABSENT)  # it does not begin otherwise
        if arguments is not None and row.attempt == 0:
            text, links = _store(draft, arguments, scope)
            row = structs.replace(row, arguments=text)
        row = structs.replace(
            row,
            status="started",
            attempt=row.attempt + 1,
            owner=_owner(),
            holder=lease.holder,
            token=lease.token,
            started_us=self.clock.now_us(),
        )
        name = self.put_row(draft, effect_id, row, scope, links=links, expect=stored.ref.version)
        version = self.engine.commit(draft.batch()).versions[name]
        failpoints.hit(_BEGUN)
        held = self.engine.heartbeat(lease, seconds=LEASE_SECONDS)
        if held is None:  # it has expired, and nothing was called: take the start back
            undo = Draft(self.space)
            self.put_row(undo, effect_id, stored.row, scope, links=stored.ref.links, expect=version)
            self.engine.commit(undo.batch())
            raise Fenced(f"the lease of effect {effect_id!r} was lost before it was called")
        begun = _Stored(structs.replace(stored.ref, version=version, links=links), row)
        return Attempt(self, begun, held)

    def end(
        self,
        stored: _Stored,
        row: _Row,
        result: Any,
        *,
        kind: str,
        files: Sequence[str] = (),
        cost_nanos: Mapping[str, int] | None = None,
        lease: Lease | None = None,
    ) -> _Stored:
        """Commit a decision or an outcome; ``lease`` must still be held, if it is given."""
        scope, effect_id = stored.ref.scope, stored.ref.name.removeprefix(EFFECTS)
        draft = Draft(self.space)
        if lease is not None:
            draft.fence(lease.name, lease.token)
        links = stored.ref.links
        if row.status in FINISHED:
            text, further = _store(draft, result, scope)
            links = (*links, *further)
            row = structs.replace(
                row,
                result=text,
                ended_us=self.clock.now_us(),
                files=tuple(files[:MAX_FILES]),
                file_count=len(files),
                cost_nanos=dict(cost_nanos or {}),
            )
            draft.delete_ref(OPEN_EFFECTS + effect_id, scope=scope)
        name = self.put_row(draft, effect_id, row, scope, links=links, expect=stored.ref.version)
        data: dict[str, Any] = {"files": row.files, "file_count": row.file_count} if row.files else {}
        data |= {"cost_nanos": row.cost_nanos} if row.cost_nanos else {}
        data |= {key: value for key, value in (("by", row.by), ("note", row.note)) if value is not None}
        self.put_event(draft, effect_id, row, scope, kind, data)
        version = self.engine.commit(draft.batch()).versions[name]
        return _Stored(structs.replace(stored.ref, version=version, links=links), row)

    def settle(self, stored: _Stored) -> _Stored:
        """Return a started effect as it is once its process is gone: unknown, if it may not be repeated."""
        lease = self.claim(stored)
        if lease is None:
            return stored
        try:
            now = self.find(stored.ref.name.removeprefix(EFFECTS))
            if now.row.status == "started" and not self.effect(now).may_repeat:
                now = self.mark_unknown(now)
            return now
        finally:
            self.engine.release(lease)

    def mark_unknown(self, stored: _Stored, note: str | None = None) -> _Stored:
        row = structs.replace(stored.row, status="unknown", note=note)
        return self.end(stored, row, None, kind=UNKNOWN)

    def claim(self, stored: _Stored) -> Lease | None:
        """Take the lease of an effect; ``None`` while another process has it and is alive."""
        name = stored.ref.name
        lease = self.engine.claim(self.space, name, holder=new_id(), seconds=_STARTING_SECONDS)
        row = stored.row
        if lease is None and row.status == "started" and row.holder and _is_gone(row.owner):
            held = Lease(space=self.space, name=name, holder=row.holder, token=row.token, expires_at_us=0)
            self.engine.release(held)  # its process died on this machine; nobody has to wait
            lease = self.engine.claim(self.space, name, holder=new_id(), seconds=_STARTING_SECONDS)
        return lease

    def put_row(
        self,
        draft: Draft,
        effect_id: str,
        row: _Row,
        scope: str,
        *,
        links: tuple[Address, ...],
        expect: Literal["any", "absent"] | int,
    ) -> str:
        name = EFFECTS + effect_id
        draft.set_ref(name, _encode_row(row), scope=scope, links=links, expect=expect)
        return name

    def put_event(
        self, draft: Draft, effect_id: str, row: _Row, scope: str, kind: str, data: dict[str, Any]
    ) -> None:
        draft.event(
            Event(
                id=f"{effect_id}.{new_id()}",
                kind=kind,
                ts_us=row.planned_us if kind == PLANNED else self.clock.now_us(),
                scope=scope,
                run=row.run,
                thread=thread_key(row.thread, row.namespace),
                agent=row.agent,
                name=row.tool,
                status=row.status,
                data=encode_json({"effect": effect_id, "attempt": row.attempt, **data}),
            )
        )

    def find(self, effect_id: str) -> _Stored:
        stored = self.stored(effect_id)
        if stored is None:
            names = (
                ref.name.removeprefix(EFFECTS)
                for ref in each_ref(self.engine, self.space, EFFECTS + effect_id)
            )
            match = only_match(names, effect_id, "effect") if effect_id else None
            stored = None if match is None else self.stored(match)
        if stored is None:
            raise NotFound(f"effect {effect_id!r} not found. List effects with: treering effects")
        return stored

    def stored(self, effect_id: str) -> _Stored | None:
        name = EFFECTS + effect_id
        ref = self.engine.refs(self.space, [name]).get(name)
        if ref is None:
            return None
        try:
            return _Stored(ref, _decode_row(ref.value))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"effect {effect_id!r} cannot be read ({error}); run `treering verify`") from None

    def effect(self, stored: _Stored) -> Effect:
        row = stored.row
        return Effect(
            id=stored.ref.name.removeprefix(EFFECTS),
            tool=row.tool,
            arguments=self.value(row.arguments),
            status=row.status,
            replay=row.replay,
            takes_key=row.takes_key,
            attempt=row.attempt,
            planned_at_us=row.planned_us,
            call_id=row.call,
            thread_id=row.thread,
            namespace=row.namespace,
            run_id=row.run,
            agent=row.agent,
            owner=_shown(row.owner),
            started_at_us=row.started_us,
            ended_at_us=row.ended_us,
            result=self.value(row.result),
            files=row.files,
            file_count=row.file_count,
            cost_nanos=row.cost_nanos,
            decided_by=row.by,
            note=row.note,
            checkpoint_id=row.checkpoint,
        )

    def value(self, text: str | None) -> Any:
        if text is None:
            return None
        if not text.startswith(_ADDRESS_MARK):
            return decode_json(text.encode())
        (content,) = self.engine.get(self.space, [Address(text[1:])])
        return decode(content)

    def open_ids(self) -> Iterator[str]:
        for ref in each_ref(self.engine, self.space, OPEN_EFFECTS):
            yield ref.name.removeprefix(OPEN_EFFECTS)

    def planned_ids(
        self, thread_id: str | None, namespace: str, run_id: str | None, *, since_us: int | None = None
    ) -> Iterator[str]:
        scope = None if thread_id is None else thread_scope(thread_id, namespace)
        query = EventQuery(kinds=(PLANNED,), scope=scope, run=run_id, since_us=since_us, newest_first=True)
        for record in each_record(self.engine, self.space, query):
            yield record.event.id.partition(".")[0]


def _scope(thread_id: str | None, namespace: str, effect_id: str) -> str:
    if thread_id is not None:
        return thread_scope(thread_id, namespace)
    return str(Scope(namespace, "effect", effect_id))


def _store(draft: Draft, value: Any, scope: str) -> tuple[str, tuple[Address, ...]]:
    """Return a value as JSON text; a large one as its address, which the ref has to link to."""
    data = encode_json(value, keep_order=True)
    if len(data) < INLINE_LIMIT:
        return data.decode(), ()
    address = draft.put(Content("json", data), scope=scope)
    return _ADDRESS_MARK + address, (address,)


def _call(function: Callable[[Effect], Any], effect: Effect) -> Any:
    from treering.sync_async import call  # which loads asyncio

    return call(function, effect)


def _owner() -> str:
    """Return this process: host, process id, when it started, and the system whose process ids these are."""
    process = os.getpid()
    start, system = _start_of(process), _system()
    return f"{host_name()}/{process}/{start}/{system}" if start and system else f"{host_name()}/{process}"


def _shown(owner: str | None) -> str | None:
    return None if owner is None else "/".join(owner.split("/")[:2])


def _is_gone(owner: str | None) -> bool:
    """Whether a process is known to be dead; ``False`` where that cannot be seen from here."""
    parts = (owner or "").split("/")
    if len(parts) != 4 or parts[3] != _system():  # noqa: PLR2004 - host, process, start, system
        return False
    return str(_start_of(int(parts[1]))) != parts[2]


def _start_of(process: int) -> int | None:
    """Return when a process was started, in ticks since boot; ``None`` if it has ended or cannot be seen."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:  # noqa: PTH123 - pathlib is slow to import
            fields = stat.read().rpartition(b")")[2].split()
            return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _system() -> str | None:
    """Return what identifies this boot and its set of process ids (a container has its own)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:  # noqa: PTH123
            return f"{boot.read(8)}.{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    except OSError:
        return None
