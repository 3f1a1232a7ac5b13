"""Votes about questions: how they are stored, and what decides a race between two of them.

A question is the pending interrupt of a thread's head; nothing more has to be stored for it to be asked. The
first vote (or the first look at it, `Ballots.notice`) stores a ref, ``approval/<id>``, with the votes, which
moves by compare-and-swap. The vote that decides is in the same commit as the answer in the thread, so a
thread never has an answer that nobody gave, and a decided question never has a thread that waits.

`Ballots.cast` works out what a vote changes; the caller commits it, alone or with the answer, and tries again
if somebody else was faster. **Invariant:** of two answers that would decide, one is stored; the other caller
gets `AlreadyAnswered`, with the name of who was faster.
"""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import structs

from treering.approvals.policy import (
    DEADLINE,
    ApprovalPolicy,
    Decision,
    Standing,
    Vote,
    check_policy,
    may_answer,
    standing,
)
from treering.approvals.questions import approval_id, interrupt_id, read_question
from treering.core.batch import ABSENT, Draft, Event, Listing
from treering.core.clock import to_datetime
from treering.core.content import INLINE_LIMIT, Address, Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.ids import Scope, check_id, thread_key, thread_scope
from treering.core.query import each_ref
from treering.errors import Conflict, Corrupt, Forbidden, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref

BALLOTS: Final = "approval/"
RULES: Final = "approval.rule/"
RULE_SCOPE: Final = str(Scope("", "ledger", "approvals"))
LIST: Final = "approvals"
"""The list of the questions that somebody voted on, by the time at which they were asked."""
ANSWERED: Final = "approval.answered"
EXPIRED: Final = "approval.expired"
CANCELLED: Final = "approval.cancelled"
_NOBODY: Final = "somebody"

Progress = Literal["open", "answered", "closed"]
"""Whether people still vote, the answer waits for the thread to go on, or the thread has gone on."""


class AlreadyAnswered(Conflict):
    """Somebody else was faster, or the deadline has passed; this answer was not stored."""


class NotPermitted(Forbidden):
    """The policy of a question names others who may answer it."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A question: the pending interrupt of the head of a thread."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    pending: Any
    asked_us: int

    @property
    def asked(self) -> datetime:
        """In UTC."""
        return to_datetime(self.asked_us)

    @property
    def id(self) -> str:
        """The id of the question."""
        return approval_id(self.thread_id, self.namespace, interrupt_id(self.pending))

    @property
    def scope(self) -> str:
        """What it is forgotten with."""
        return thread_scope(self.thread_id, self.namespace)


class ApprovalRule(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of all questions about some tools, whatever their asker says.

    ``tool``, ``agent`` and ``thread`` may have ``*`` and ``?`` as wildcards.
    """

    name: str
    policy: ApprovalPolicy
    tool: str = "*"
    agent: str = "*"
    thread: str = "*"

    def matches(self, tools: Iterable[str], agent: str | None, thread_id: str) -> bool:
        """Whether it is for a question about these tools."""
        return (
            any(fnmatchcase(each, self.tool) for each in (tuple(tools) or ("",)))
            and fnmatchcase(agent or "", self.agent)
            and fnmatchcase(thread_id, self.thread)
        )


class BallotRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a ref holds: the question, and the votes on it. ``question`` is JSON, or ``@`` and its address."""

    thread: str
    interrupt: str | None
    asked_us: int
    checkpoint: str
    question: str
    policy: ApprovalPolicy
    namespace: str = ""
    votes: tuple[Vote, ...] = ()
    progress: Progress = "open"
    decided_us: int | None = None
    answer: str | None = None
    """The checkpoint that has the answer."""
    attempts: int = 0
    """How often a worker began to continue the thread."""


class Ballot(msgspec.Struct, frozen=True, kw_only=True):
    """A question and the votes on it. ``ref`` is ``None`` as long as nothing is stored."""

    id: str
    row: BallotRow
    standing: Standing
    ref: Ref | None = None


class Cast(msgspec.Struct, frozen=True, kw_only=True):
    """A vote that is ready to be committed."""

    asked: Asked
    before: Ballot
    votes: tuple[Vote, ...]
    standing: Standing
    now_us: int
    progress: Progress

    @property
    def answer(self) -> dict[str, Any]:
        """What the asker is told, without the interrupt's own fields."""
        votes = [each for each in self.votes if each.by in self.standing.decided_by]
        reasons = [each.reason for each in votes if each.reason]
        return {
            "by": ", ".join(self.standing.decided_by),
            **({"reason": "; ".join(reasons)} if reasons else {}),
            **({"cancelled": True} if self.standing.status == "cancelled" else {}),
        }


_encode_row: Final = msgspec.json.Encoder().encode
_decode_row: Final = msgspec.json.Decoder(BallotRow).decode


class Ballots:
    """The votes of one space."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock

    def find(self, approval: str) -> Ballot | None:
        """Return the votes on a question, if any are stored."""
        ref = self._engine.refs(self._space, [BALLOTS + approval]).get(BALLOTS + approval)
        return None if ref is None else self._ballot(ref)

    def of(self, asked: Iterable[Asked], rules: list[ApprovalRule]) -> list[Ballot]:
        """Return the votes on these questions."""
        known = list(asked)
        refs = self._engine.refs(self._space, [BALLOTS + each.id for each in known]) if known else {}
        return [self._current(each, refs.get(BALLOTS + each.id), rules) for each in known]

    def from_ref(self, ref: Ref) -> Ballot:
        """Return what a ref of the list holds."""
        return self._ballot(ref)

    def cast(
        self,
        asked: Asked,
        decision: Decision,
        *,
        by: str | None = None,
        reason: str | None = None,
        value: Any = None,
        revision: int | None = None,
        progress: Progress = "answered",
    ) -> Cast:
        """Work out what a vote changes. Raises `AlreadyAnswered` or `NotPermitted` if it does not count.

        ``revision`` is the number of votes that its author has seen.
        """
        (ballot,) = self.of([asked], self.rules())
        now, row = ballot.standing, ballot.row
        if row.progress != "open":
            raise AlreadyAnswered(_told(ballot))
        if now.status != "open":
            raise AlreadyAnswered(f"the deadline of {_called(ballot)} has passed: it is {now.status}")
        if revision is not None and revision != len(row.votes):
            raise Conflict(
                f"{_called(ballot)} has {len(row.votes)} votes now, not {revision}; look at it again, "
                "somebody may have edited the call"
            )
        if not may_answer(now.who, by):
            raise NotPermitted(
                f"{by!r} may not answer {_called(ballot)}; it is for {', '.join(now.who)}"
                if by is not None
                else f"{_called(ballot)} is for {', '.join(now.who)}; say who answers with by="
            )
        if row.policy.quorum > 1 and by is None:
            raise InvalidInput(f"{_called(ballot)} needs {row.policy.quorum} votes; say who votes with by=")
        if by == DEADLINE:
            raise InvalidInput(f"{DEADLINE!r} is not the name of a person; give another by=")
        vote = Vote(
            by=by or _NOBODY,
            decision=decision,
            at_us=self._clock.now_us(),
            reason=reason or None,
            value=value,
        )
        return self._with_vote(asked, ballot, vote, progress)

    def expire(self, asked: Asked) -> Cast | None:
        """Return what the deadline changes about a question, if it has passed and decides something."""
        (ballot,) = self.of([asked], self.rules())
        if ballot.row.progress != "open" or not ballot.standing.is_expired:
            return None
        by_deadline = ballot.standing
        vote = Vote(
            by=DEADLINE,
            decision="deny" if by_deadline.status == "denied" else "approve",
            at_us=self._clock.now_us(),
        )
        return self._with_vote(asked, ballot, vote, "answered")

    def cancel(self, asked: Asked, *, by: str | None, reason: str | None) -> Cast | None:
        """Return what closes a question whose run was cancelled; ``None`` if it is closed already."""
        (ballot,) = self.of([asked], self.rules())
        if ballot.row.progress != "open":
            return None
        vote = Vote(by=by or _NOBODY, decision="cancel", at_us=self._clock.now_us(), reason=reason or None)
        return self._with_vote(asked, ballot, vote, "closed")

    def put(self, draft: Draft, cast: Cast, *, answer: str | None = None) -> None:
        """Add a vote to a batch; ``answer`` is the checkpoint with the answer, if it decides."""
        row = structs.replace(cast.before.row, votes=cast.votes)
        if cast.standing.status != "open":
            row = structs.replace(row, progress=cast.progress, decided_us=cast.now_us, answer=answer)
        self._put_row(draft, cast.before, row, cast.asked.scope)
        vote = cast.votes[-1]
        data = {
            "approval": cast.before.id,
            "checkpoint": row.checkpoint,
            "decision": vote.decision,
            "by": vote.by,
            "status": cast.standing.status,
            **({"reason": vote.reason} if vote.reason else {}),
            **({"value": vote.value} if vote.value is not None else {}),
        }
        kind = CANCELLED if vote.decision == "cancel" else EXPIRED if vote.by == DEADLINE else ANSWERED
        self._put_event(draft, cast.asked, kind, data)

    def commit(self, cast: Cast) -> None:
        """Commit a vote that does not decide yet."""
        draft = Draft(self._space)
        self.put(draft, cast)
        self._engine.commit(draft.batch())

    def notice(self, asked: Asked, rules: list[ApprovalRule]) -> Ballot:
        """Store that a question was seen, with the time at which it was asked."""
        (ballot,) = self.of([asked], rules)
        if ballot.ref is not None:
            return ballot
        draft = Draft(self._space)
        self._put_row(draft, ballot, ballot.row, asked.scope)
        self._engine.commit(draft.batch())
        return self.find(ballot.id) or ballot

    def move(self, ballot: Ballot, **fields: Any) -> Ballot:
        """Change the progress of a ballot. Raises `RefMoved` if somebody else has changed it."""
        draft = Draft(self._space)
        row = structs.replace(ballot.row, **fields)
        self._put_row(draft, ballot, row, thread_scope(row.thread, row.namespace))
        self._engine.commit(draft.batch())
        return self.find(ballot.id) or ballot

    def question(self, row: BallotRow) -> Any:
        """Return the pending interrupt that a ballot was about."""
        if not row.question.startswith("@"):
            return decode_json(row.question.encode())
        (content,) = self._engine.get(self._space, [Address(row.question[1:])])
        return decode(content)

    # Rules
    def rules(self) -> list[ApprovalRule]:
        """List the rules, by name: of those that match, the first applies."""
        return [_rule(ref) for ref in each_ref(self._engine, self._space, RULES)]

    def set_rule(self, rule: ApprovalRule) -> None:
        """Set or replace a rule."""
        check_id(rule.name, "name of a rule")
        check_policy(rule.policy)
        draft = Draft(self._space)
        draft.set_ref(RULES + rule.name, msgspec.json.encode(rule), scope=RULE_SCOPE)
        self._engine.commit(draft.batch())

    def remove_rule(self, name: str) -> bool:
        """Remove a rule; return whether there was one."""
        if RULES + name not in self._engine.refs(self._space, [RULES + name]):
            return False
        draft = Draft(self._space)
        draft.delete_ref(RULES + name, scope=RULE_SCOPE)
        self._engine.commit(draft.batch())
        return True

    def _current(self, asked: Asked, ref: Ref | None, rules: list[ApprovalRule]) -> Ballot:
        question = read_question(asked.pending)
        about = question.thread_id or asked.thread_id
        tools = [each.tool for each in question.calls]
        rule = next((each for each in rules if each.matches(tools, question.agent, about)), None)
        policy = rule.policy if rule is not None else question.policy or ApprovalPolicy()
        if ref is not None:
            ballot = self._ballot(ref)
            if ballot.row.progress != "open":
                return ballot
            row = structs.replace(ballot.row, policy=policy, checkpoint=asked.checkpoint_id)
        else:
            row = BallotRow(
                thread=asked.thread_id,
                namespace=asked.namespace,
                interrupt=interrupt_id(asked.pending),
                asked_us=asked.asked_us,
                checkpoint=asked.checkpoint_id,
                question=encode_json(asked.pending, keep_order=True).decode(),
                policy=policy,
            )
        now = standing(policy, row.asked_us, row.votes, self._clock.now_us())
        return Ballot(id=asked.id, row=row, standing=now, ref=ref)

    def _with_vote(self, asked: Asked, ballot: Ballot, vote: Vote, progress: Progress) -> Cast:
        row = ballot.row
        votes = (*row.votes, vote)
        now = standing(row.policy, row.asked_us, votes, vote.at_us)
        return Cast(
            asked=asked, before=ballot, votes=votes, standing=now, now_us=vote.at_us, progress=progress
        )

    def _ballot(self, ref: Ref) -> Ballot:
        try:
            row = _decode_row(ref.value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"approval {ref.name!r} cannot be read ({error}); run `treering verify`") from None
        now_us = row.decided_us if row.decided_us is not None else self._clock.now_us()
        return Ballot(
            id=ref.name.removeprefix(BALLOTS),
            row=row,
            standing=standing(row.policy, row.asked_us, row.votes, now_us),
            ref=ref,
        )

    def _put_row(self, draft: Draft, before: Ballot, row: BallotRow, scope: str) -> None:
        links: tuple[Address, ...] = () if before.ref is None else before.ref.links
        if len(row.question) >= INLINE_LIMIT:
            address = draft.put(Content("json", row.question.encode()), scope=scope)
            row, links = structs.replace(row, question="@" + address), (address,)
        draft.set_ref(
            BALLOTS + before.id,
            _encode_row(row),
            scope=scope,
            links=links,
            expect=ABSENT if before.ref is None else before.ref.version,
            listing=Listing(
                list=LIST,
                namespace=row.namespace,
                status=row.progress,
                thread=row.thread,
                at_us=row.asked_us,
            ),
        )

    def _put_event(self, draft: Draft, asked: Asked, kind: str, data: dict[str, Any]) -> None:
        calls = read_question(asked.pending).calls
        draft.event(
            Event(
                id=f"{draft.id}.{data['approval']}",
                kind=kind,
                ts_us=self._clock.now_us(),
                scope=asked.scope,
                thread=thread_key(asked.thread_id, asked.namespace),
                name=calls[0].tool if calls else None,
                status=data["status"],
                data=encode_json(data),
            )
        )


def _rule(ref: Ref) -> ApprovalRule:
    try:
        return msgspec.json.decode(ref.value, type=ApprovalRule)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"approval rule {ref.name!r} cannot be read ({error}); set it again") from None


def _called(ballot: Ballot) -> str:
    return f"approval {ballot.id} of thread {ballot.row.thread!r}"


def _told(ballot: Ballot) -> str:
    by = ", ".join(ballot.standing.decided_by)
    if ballot.standing.status == "cancelled":
        return f"{_called(ballot)} needs no answer: its run was cancelled by {by}"
    return f"{_called(ballot)} was answered meanwhile: {ballot.standing.status} by {by}"


def already_answered(ballot: Ballot) -> AlreadyAnswered:
    """Return the error for whoever answers a question that was answered already."""
    return AlreadyAnswered(_told(ballot))
