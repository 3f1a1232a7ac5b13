"""The inbox: questions that agents put to people, in whichever framework they run.

A question is the pending interrupt of a thread's head. So whatever interrupts a thread is in the inbox: our
agent loop, a LangGraph graph, a deferred tool of pydantic-ai, or code that calls `Thread.interrupt`. A
program that waits while it runs, as the permission callback of Claude's SDK does, asks with
`Approvals.request`, which puts its question into a thread of its own (``approvals/<id>``). An answer is that
of `Thread.resume`, whoever gives it and wherever.

`Approvals.examine` does what has to happen without anybody asking: it applies deadlines, and raises an alert
for each new question and each deadline that has passed, which the webhooks of `Alerts` carry on. A server
does it all the time; so does ``treering approvals work``.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

import msgspec

from treering.approvals.ballots import (
    BALLOTS,
    LIST,
    ApprovalRule,
    Asked,
    Ballot,
    Ballots,
    Progress,
    already_answered,
)
from treering.approvals.policy import (
    ApprovalPolicy,
    AtDeadline,
    AtLast,
    Decision,
    Status,
    Vote,
    check_policy,
    may_answer,
)
from treering.approvals.questions import (
    ASKED_FOR,
    POLICY,
    AskedCall,
    Question,
    approval_id,
    interrupt_id,
    policy_fields,
    read_question,
)
from treering.core.clock import to_datetime, to_iso
from treering.core.encoding import encode_json
from treering.core.ids import check_id, new_id, only_match, thread_scope
from treering.core.query import ListQuery, each_listed, each_ref
from treering.errors import Conflict, Forbidden, InvalidInput, NotFound, RefMoved
from treering.limits.alerts import Alert, alert_id, raise_alert
from treering.runs.cost import Costs
from treering.runs.listing import Runs
from treering.runs.run import link_thread
from treering.runs.tree import cancellation

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.runs.run import RunInfo
    from treering.threads.thread import Thread
    from treering.workspaces.diff import FileChange

REQUESTS: Final = "approvals/"
"""The threads of questions that were asked with `Approvals.request` begin with this."""
REQUESTED: Final = "approval.requested"
ESCALATED: Final = "approval.escalated"
EXPIRED: Final = "approval.expired"
PARKED: Final = "parked/"
"""The leases of programs that wait for an answer while they run."""
_PARKED_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 1.0
_SHOWN: Final = 2_000

Listed = Literal["open", "answered", "closed"]


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A question, what it is about, and how far the answer is."""

    id: str
    status: Literal["open", "approved", "denied", "cancelled", "withdrawn"]
    """``cancelled``: the run that asks was cancelled. ``withdrawn``: its thread does not ask any more, and
    nobody has answered."""
    progress: Progress
    """``answered``: its thread has not gone on since."""
    thread_id: str
    """The thread that waits; for a question of `Approvals.request`, the one that it is about."""
    namespace: str
    waits_in: str
    """The thread with the pending interrupt."""
    checkpoint_id: str
    asked_at_us: int
    question: Any
    """What is asked, as the framework gave it."""
    text: str | None
    calls: tuple[AskedCall, ...]
    effect_id: str | None
    agent: str | None
    run_id: str | None
    cost_nanos: dict[str, int]
    """What the thread has cost so far, by currency."""
    policy: ApprovalPolicy
    who: tuple[str, ...]
    """Who may answer now; empty means anybody."""
    due_at_us: int | None
    is_escalated: bool
    is_expired: bool
    """Whether its deadline decided it."""
    votes: tuple[Vote, ...]
    agreed: tuple[str, ...]
    """Who agrees with the call, as it was edited last."""
    value: Any
    """The edited arguments, if there are some."""
    answered_at_us: int | None
    answer_checkpoint_id: str | None

    @property
    def asked_at(self) -> datetime:
        """When it was asked, in UTC."""
        return to_datetime(self.asked_at_us)

    @property
    def due_at(self) -> datetime | None:
        """The next deadline, in UTC."""
        return to_datetime(self.due_at_us)

    @property
    def answered_at(self) -> datetime | None:
        """When it was decided, in UTC."""
        return to_datetime(self.answered_at_us)

    @property
    def tool(self) -> str | None:
        """The tool of the first call that waits."""
        return self.calls[0].tool if self.calls else None

    @property
    def is_open(self) -> bool:
        """Whether it waits for an answer."""
        return self.status == "open"

    @property
    def decided_by(self) -> tuple[str, ...]:
        """Who decided it."""
        if self.status in ("denied", "cancelled"):
            return tuple(vote.by for vote in self.votes[-1:])
        return self.agreed if self.status == "approved" else ()

    @property
    def reason(self) -> str | None:
        """Why, as those who decided it have said."""
        by = self.decided_by
        return "; ".join(vote.reason for vote in self.votes if vote.reason and vote.by in by) or None

    @property
    def revision(self) -> int:
        """The number of votes: give it with an answer that must not count if somebody voted meanwhile."""
        return len(self.votes)

    @property
    def arguments(self) -> Any:
        """The arguments to call with: those of the first call, or as somebody edited them."""
        if self.value is not None:
            return self.value
        return self.calls[0].arguments if self.calls else None


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What `Approvals.examine` did, and when there is something to do again."""

    open: int
    asked: tuple[str, ...] = ()
    """New questions."""
    escalated: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    next_due_us: int | None = None

    @property
    def next_due(self) -> datetime | None:
        """In UTC."""
        return to_datetime(self.next_due_us)


class Threads(Protocol):
    """The threads that wait for a person; `treering.threads.directory` has them."""

    def each(self, namespace: str | None) -> Iterator[Asked]:
        """Yield the questions of a namespace (``None``: of all), oldest first."""
        ...

    def files(self, thread_id: str, namespace: str, checkpoint_id: str) -> list[FileChange]:
        """Return what changed in the files of a thread until a checkpoint, since its run began."""
        ...

    @property
    def thread(self) -> Any:
        """A function of (id, namespace) that returns a thread."""
        ...


class Approvals:
    """The questions of one space."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock, threads: Threads) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._threads = threads
        self._ballots = Ballots(engine, space, clock=clock)

    def __repr__(self) -> str:
        return f"<Approvals space={self._space!r}>"

    # Looking
    def list(
        self,
        *,
        status: Listed | None = "open",
        namespace: str | None = None,
        thread_id: str | None = None,
        tool: str | None = None,
        who: str | None = None,
        last: int | None = None,
    ) -> Iterator[Approval]:
        """List questions: those that are ``open``, oldest first, or those that were decided, newest first.

        ``answered`` are those whose thread has not gone on since, and ``closed`` the others; ``None`` lists
        all. ``who`` selects open ones that this person may answer, and ``namespace`` is that of the threads
        (``None``: all).
        """
        if status is not None and status not in get_args(Listed):
            raise InvalidInput(f"status={status!r} is invalid; use {', '.join(get_args(Listed))}")
        found = (
            each
            for each in self._each(status, namespace)
            if (thread_id is None or each.thread_id == thread_id)
            and (tool is None or any(call.tool == tool for call in each.calls))
            and (who is None or not each.is_open or may_answer(each.who, who))
        )
        yield from islice(found, last)

    def _each(self, status: Listed | None, namespace: str | None) -> Iterator[Approval]:
        if status in (None, "open"):
            yield from self._open(namespace)
        for progress in ("answered", "closed") if status is None else (status,):
            if progress == "open":
                continue
            query = ListQuery(list=LIST, namespace=namespace, status=progress)
            for ref in each_listed(self._engine, self._space, query):
                yield self._decided(self._ballots.from_ref(ref))

    def get(self, approval: str) -> Approval | None:
        """Return what `load` returns, or ``None`` if there is no such question."""
        try:
            return self.load(approval)
        except NotFound:
            return None

    def load(self, approval: str) -> Approval:
        """Return a question by its id or the unique beginning of one; raise `NotFound` if there is none."""
        ballot, asked = self._find(approval)
        if asked is not None:
            return self._approval(asked, ballot)
        return self._decided(ballot)

    def changes(self, approval: str) -> Sequence[FileChange]:
        """Return what changed in the files since the run began that asks."""
        found = self.load(approval)
        checkpoint = found.checkpoint_id if found.thread_id == found.waits_in else None
        thread: Thread = self._threads.thread(found.thread_id, found.namespace)
        if checkpoint is None:
            head = thread.head
            if head is None:
                return []
            checkpoint = head.id
        return self._threads.files(found.thread_id, found.namespace, checkpoint)

    # Asking
    def request(
        self,
        tool: str,
        arguments: Any = None,
        *,
        question: str | None = None,
        thread_id: str | None = None,
        namespace: str = "",
        run_id: str | None = None,
        agent: str | None = None,
        policy: ApprovalPolicy | None = None,
        id: str | None = None,
    ) -> PendingApproval:
        """Ask whether a call may be made, and return what waits for the answer.

        ``thread_id``, ``run_id`` and ``agent`` say who asks; the thread is not changed. A program that is
        started again and asks with the same ``id`` gets the same question, until its answer was `taken`.
        """
        about = {"thread": thread_id, "namespace": namespace, "run": run_id, "agent": agent}
        payload: dict[str, Any] = {
            "tool_call": {"name": check_id(tool, "tool name"), "arguments": arguments},
            ASKED_FOR: {name: value for name, value in about.items() if value},
            **({"question": question} if question else {}),
        }
        pending: dict[str, Any] = {"id": new_id(), "payload": payload}
        if policy is not None:
            pending[POLICY] = policy_fields(check_policy(policy))
        number = 0
        name = check_id(id, "id of a request") if id is not None else new_id()
        while True:
            thread: Thread = self._threads.thread(
                REQUESTS + (f"{name}.{number}" if number else name), namespace
            )
            head = thread.head
            if head is None:
                if thread_id is not None:
                    link_thread(self._engine, self._space, (thread_id, namespace), (thread.id, namespace))
                with suppress(Conflict):  # another process asks the same
                    thread.checkpoint(pending_interrupt=pending, note=f"asks to call {tool}")
                head = thread.head
            if head is not None and head.pending_interrupt is not None:
                asked = thread.asked()
                if asked is not None:
                    return PendingApproval(self, thread, asked.id)
            elif head is not None and not head.metadata.get(_TAKEN):
                answered = interrupt_id(head.metadata.get("resumed"))
                return PendingApproval(self, thread, approval_id(thread.id, namespace, answered))
            number += 1

    # Answering
    def answer(
        self,
        approval: str,
        decision: Decision,
        *,
        by: str | None = None,
        reason: str | None = None,
        value: Any = None,
        revision: int | None = None,
    ) -> Approval:
        """Answer a question: ``approve``, ``deny``, or ``edit`` with the arguments to call with.

        ``by`` says who answers. If several people must agree, this is one vote. With ``revision``, it counts
        only if nobody has voted since (see `Approval.revision`).

        Raises:
            AlreadyAnswered: somebody else was faster, or the deadline has passed.
            NotPermitted: it is for others to answer.
        """
        ballot, asked = self._find(approval)
        if asked is None:
            if ballot.row.progress == "open":
                raise Conflict(
                    f"approval {ballot.id} was withdrawn: thread {ballot.row.thread!r} does not ask any more"
                )
            raise already_answered(ballot)
        thread: Thread = self._threads.thread(asked.thread_id, asked.namespace)
        thread.resume(
            decision,
            interrupt_id=interrupt_id(asked.pending),
            value=value,
            by=by,
            reason=reason,
            revision=revision,
        )
        return self.load(ballot.id)

    def cancel(
        self, runs: Sequence[RunInfo], *, by: str | None = None, reason: str | None = None
    ) -> list[Approval]:
        """Close the open questions of cancelled runs, and return them. `Runs.cancel` does this.

        A program that may not answer questions leaves that to the server; see `examine`.
        """
        ids, threads = {each.id for each in runs}, {(each.thread, each.namespace) for each in runs}
        closed: list[Approval] = []
        for asked in self._threads.each(None) if runs else ():
            question = read_question(asked.pending)
            run_id = question.run_id
            about = question.thread_id or asked.thread_id
            if run_id is None and (about, asked.namespace) in threads:
                run_id, _ = self._asker(question, about, asked.namespace)
            if run_id in ids and self._cancelled(asked, by, reason):
                closed.append(self.load(asked.id))
        return closed

    def wait(self, approval: str, *, seconds: float | None = None) -> Approval:
        """Wait until a question is decided, or time is up, and return it as it is then."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            seq = self._engine.wait(self._space, 0, seconds=0)
            found = self.load(approval)
            if found.is_open and found.due_at_us is None and found.policy.seconds is not None:
                found = self._expired(found)
            if not found.is_open:
                return found
            left = _POLL_SECONDS if deadline is None else min(deadline - time.monotonic(), _POLL_SECONDS)
            if left <= 0:
                return found
            self._engine.wait(self._space, seq, seconds=left)

    def examine(self, *, link: str | None = None) -> Examined:
        """Apply deadlines, close questions of cancelled runs, and raise alerts.

        An alert is raised for each new question, and for each deadline that has passed.

        ``link`` is the address of the dashboard, for the link in each alert. Several processes may do this at
        the same time.
        """
        rules = self._ballots.rules()
        count, due = 0, list[int]()
        asked, escalated, expired = list[str](), list[str](), list[str]()
        for each in self._threads.each(None):
            ballot = self._noticed(each, rules)
            if ballot is None or ballot.row.progress != "open":
                continue
            approval = self._approval(each, ballot)
            said = cancellation(self._engine, self._space, approval.run_id) if approval.run_id else None
            if said is not None and self._cancelled(each, said.get("by"), said.get("reason")):
                continue
            if self._raise(REQUESTED, approval, "waits for approval", link):
                asked.append(approval.id)
            if ballot.standing.is_escalated and self._raise(
                ESCALATED, approval, "was not answered in time; it is for others now", link
            ):
                escalated.append(approval.id)
            if ballot.standing.is_expired:
                done = self._expired(approval)
                if not done.is_open and self._raise(EXPIRED, done, "was not answered in time", link):
                    expired.append(approval.id)
                continue
            count += 1
            if ballot.standing.due_us is not None:
                due.append(ballot.standing.due_us)
        return Examined(
            open=count,
            asked=tuple(asked),
            escalated=tuple(escalated),
            expired=tuple(expired),
            next_due_us=min(due, default=None),
        )

    # Rules
    def set_rule(
        self,
        name: str,
        *,
        tool: str = "*",
        agent: str = "*",
        thread: str = "*",
        who: Sequence[str] = (),
        seconds: float | None = None,
        then: AtDeadline = "wait",
        escalate_to: Sequence[str] = (),
        escalate_seconds: float | None = None,
        at_last: AtLast = "deny",
        quorum: int = 1,
    ) -> ApprovalRule:
        """Set the policy of all questions about a tool (see `ApprovalPolicy`), whatever their asker says.

        ``tool``, ``agent`` and ``thread`` may have ``*`` and ``?`` as wildcards. Of the rules that match a
        question, the first by name applies, also to questions that are open now.
        """
        policy = ApprovalPolicy(
            who=tuple(who),
            seconds=seconds,
            then=then,
            escalate_to=tuple(escalate_to),
            escalate_seconds=escalate_seconds,
            at_last=at_last,
            quorum=quorum,
        )
        rule = ApprovalRule(name=name, policy=policy, tool=tool, agent=agent, thread=thread)
        self._ballots.set_rule(rule)
        return rule

    def rules(self) -> tuple[ApprovalRule, ...]:
        """List the rules, by name."""
        return tuple(self._ballots.rules())

    def remove_rule(self, name: str) -> bool:
        """Remove a rule; return whether there was one."""
        return self._ballots.remove_rule(name)

    # For those who continue threads
    def begin(self, approval: str) -> int:
        """Note that a worker continues the thread of an answered question; return how often one has begun.

        Returns 0 if it need not, because the thread has gone on by itself.
        """
        ballot = self._ballots.find(approval)
        if ballot is None or ballot.row.progress != "answered":
            return 0
        row = ballot.row
        head = self._threads.thread(row.thread, row.namespace).head
        if row.attempts == 0 and (head is None or head.id != row.answer):
            self.done(approval)
            return 0
        with suppress(RefMoved):
            self._ballots.move(ballot, attempts=row.attempts + 1)
            return row.attempts + 1
        return 0

    def done(self, approval: str) -> None:
        """Note that the thread of an answered question has gone on."""
        for _ in range(3):
            ballot = self._ballots.find(approval)
            if ballot is None or ballot.row.progress != "answered":
                return
            with suppress(RefMoved):
                self._ballots.move(ballot, progress="closed")
                return

    def park(self, approval: str, holder: str) -> None:
        """Say that a living program waits for the answer itself; for ten seconds."""
        self._engine.claim(self._space, PARKED + approval, holder=holder, seconds=_PARKED_SECONDS)

    def is_parked(self, approval: str) -> bool:
        """Whether a living program waits for the answer itself."""
        lease = self._engine.claim(self._space, PARKED + approval, holder=new_id(), seconds=1.0)
        if lease is None:
            return True
        self._engine.release(lease)
        return False

    def _open(self, namespace: str | None) -> Iterator[Approval]:
        rules = self._ballots.rules()
        asked = self._threads.each(namespace)
        while batch := list(islice(asked, 100)):
            for each, ballot in zip(batch, self._ballots.of(batch, rules), strict=True):
                if ballot.row.progress == "open" and not self._is_settled(each):
                    yield self._approval(each, ballot)

    def _is_settled(self, asked: Asked) -> bool:
        """Whether it is about an effect that somebody has decided about meanwhile."""
        effect = read_question(asked.pending).effect_id
        if effect is None:
            return False
        from treering.effects.effects import Effects

        with suppress(NotFound):
            return Effects(self._engine, self._space, clock=self._clock).load(effect).status != "unknown"
        return False

    def _find(self, approval: str) -> tuple[Ballot, Asked | None]:
        """Return a question, and what asks it if that still waits."""
        ballot = self._ballots.find(approval) if approval else None
        if ballot is None:
            stored = (
                ref.name.removeprefix(BALLOTS)
                for ref in each_ref(self._engine, self._space, BALLOTS + approval)
            )
            waiting = {each.id: each for each in self._threads.each(None)}
            names = {*stored, *(name for name in waiting if name.startswith(approval))}
            match = only_match(sorted(names), approval, "approval") if approval else None
            if match is None:
                raise NotFound(
                    f"approval {approval!r} not found. List approvals with: treering approvals list"
                )
            if match in waiting:
                return self._ballots.of([waiting[match]], self._ballots.rules())[0], waiting[match]
            ballot = self._ballots.find(match)
            if ballot is None:
                raise NotFound(f"approval {approval!r} was removed meanwhile")
        row = ballot.row
        asked = self._threads.thread(row.thread, row.namespace).asked() if row.progress == "open" else None
        if asked is None or asked.id != ballot.id:
            return ballot, None
        return self._ballots.of([asked], self._ballots.rules())[0], asked

    def _cancelled(self, asked: Asked, by: str | None, reason: str | None) -> bool:
        with suppress(Forbidden):
            return self._threads.thread(asked.thread_id, asked.namespace).cancel_question(
                by=by, reason=reason
            )
        return False

    def _noticed(self, asked: Asked, rules: list[ApprovalRule]) -> Ballot | None:
        with suppress(RefMoved):
            return self._ballots.notice(asked, rules)
        return None

    def _expired(self, approval: Approval) -> Approval:
        with suppress(Conflict, Forbidden):  # a program that may not answer leaves it to the server
            self._threads.thread(approval.waits_in, approval.namespace).expire()
        return self.load(approval.id)

    def _approval(self, asked: Asked, ballot: Ballot) -> Approval:
        return self._of(
            ballot, asked.pending, ballot.standing.status if not ballot.standing.is_expired else "open"
        )

    def _decided(self, ballot: Ballot) -> Approval:
        status: Any = "withdrawn" if ballot.row.progress == "open" else ballot.standing.status
        return self._of(ballot, self._ballots.question(ballot.row), status)

    def _of(self, ballot: Ballot, pending: Any, status: Status | Literal["withdrawn"]) -> Approval:
        row, now = ballot.row, ballot.standing
        question = read_question(pending)
        thread_id = question.thread_id or row.thread
        run_id, agent = self._asker(question, thread_id, row.namespace)
        total = Costs(self._engine, self._space).of_thread(thread_id, namespace=row.namespace).total
        return Approval(
            id=ballot.id,
            status=status,
            progress=row.progress,
            thread_id=thread_id,
            namespace=row.namespace,
            waits_in=row.thread,
            checkpoint_id=row.checkpoint,
            asked_at_us=row.asked_us,
            question=question.payload,
            text=question.text,
            calls=question.calls,
            effect_id=question.effect_id,
            agent=agent,
            run_id=run_id,
            cost_nanos=dict(total.nanos),
            policy=row.policy,
            who=now.who if status == "open" else (),
            due_at_us=now.due_us if status == "open" else None,
            is_escalated=now.is_escalated,
            is_expired=now.is_expired and status != "open",
            votes=row.votes,
            agreed=now.agreed if not now.is_expired else now.decided_by,
            value=now.value,
            answered_at_us=row.decided_us,
            answer_checkpoint_id=row.answer,
        )

    def _asker(self, question: Question, thread_id: str, namespace: str) -> tuple[str | None, str | None]:
        """Return the run and the agent that ask: as the question says, or those of the newest run."""
        if question.agent is not None:
            return question.run_id, question.agent
        runs = Runs(self._engine, self._space, clock=self._clock).in_namespace(namespace)
        newest = next(iter(runs.page(thread=thread_id, first=1).runs), None)
        if newest is None:
            return question.run_id, None
        return question.run_id or newest.id, newest.agent

    def _raise(self, rule: str, approval: Approval, what: str, link: str | None) -> bool:
        """Raise an alert about a question, once."""
        subject = f"a call of {approval.tool!r}" if approval.tool else "a question"
        until = to_iso(approval.due_at_us)
        about = encode_json(approval.arguments, keep_order=True).decode()
        figures: dict[str, Any] = {
            "approval": approval.id,
            "status": approval.status,
            "tool": approval.tool,
            "arguments": about if len(about) <= _SHOWN else about[:_SHOWN] + "...",
            "who": list(approval.who),
            "until": until,
            "then": approval.policy.then,
            "cost_nanos": approval.cost_nanos,
            "decided_by": list(approval.decided_by),
            "link": None if link is None else dashboard_link(link, approval.id),
        }
        alert = Alert(
            id=alert_id(rule, approval.id),
            ts_us=self._clock.now_us(),
            level="critical" if rule == EXPIRED else "warning",
            rule=rule,
            message=f"{subject} of thread {approval.thread_id!r} {what}{f' until {until}' if until else ''}",
            run=approval.run_id,
            agent=approval.agent,
            thread=approval.thread_id,
            namespace=approval.namespace,
            figures={name: value for name, value in figures.items() if value not in (None, [], {})},
        )
        scope = thread_scope(approval.thread_id, approval.namespace)
        return raise_alert(self._engine, self._space, alert, scope=scope)


_TAKEN: Final = "taken"


class PendingApproval:
    """A question that a running program waits for; from `Approvals.request`.

    ``approval.wait()`` blocks, ``await approval`` does not; both return the `Approval` with the answer. If
    the program dies, the question stays in the inbox, and a worker takes over when the answer comes.
    """

    def __init__(self, approvals: Approvals, thread: Thread, id: str) -> None:
        self.id = id
        self._approvals = approvals
        self._thread = thread
        self._holder = new_id()

    def __repr__(self) -> str:
        return f"PendingApproval({self.id!r})"

    def __await__(self) -> Generator[Any, None, Approval]:
        return self._awaited().__await__()

    def wait(self, *, seconds: float | None = None) -> Approval:
        """Wait for the answer, or until time is up, and return the question as it is then."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            found = self._look(min(max(left, 0.0), _POLL_SECONDS))
            if not found.is_open or left <= 0:
                return found

    def taken(self) -> None:
        """Say that the answer was used: the same request asks anew from now on, and no worker is needed."""
        head = self._thread.head
        if head is not None and head.pending_interrupt is None and not head.metadata.get(_TAKEN):
            with suppress(Conflict):
                self._thread.checkpoint(metadata={**head.metadata, _TAKEN: True}, note="answer taken")
        with suppress(Forbidden):
            self._approvals.done(self.id)

    async def _awaited(self) -> Approval:
        while True:
            found = await asyncio.to_thread(self._look, _POLL_SECONDS)
            if not found.is_open:
                return found

    def _look(self, seconds: float) -> Approval:
        self._approvals.park(self.id, self._holder)
        return self._approvals.wait(self.id, seconds=seconds)


def dashboard_link(address: str, approval: str) -> str:
    """Return the address that opens a question in the dashboard."""
    return f"{address.rstrip('/')}/#/approvals/{approval}"
