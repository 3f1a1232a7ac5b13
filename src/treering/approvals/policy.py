"""Who may answer a question, until when, and what the votes so far amount to.

An `ApprovalPolicy` says who may answer, how many of them must agree, and what happens at the deadline.
`standing` is the whole state machine, and pure: it tells from the policy, the votes and the time whether a
question is open, and for whom, or what was decided.

One denial decides. Approvals count once for each person, and only for the same proposal: whoever edits the
arguments makes a new proposal, which the others have to approve again. **Invariant:** a decision never
changes, because votes are only added while the question is open, and time only moves forward.
"""

from __future__ import annotations

from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from treering.core.clock import SECOND_US, to_datetime
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Decision = Literal["approve", "deny", "edit"]
AtDeadline = Literal["wait", "deny", "approve", "escalate"]
AtLast = Literal["wait", "deny", "approve"]
VoteDecision = Literal[Decision, "cancel"]
"""``cancel``: the run that asks was cancelled, so nobody needs the answer."""
Status = Literal["open", "approved", "denied", "cancelled"]

DEADLINE: Final = "deadline"
"""Who answers a question that nobody answered in time."""
_MAX_SECONDS: Final = 10 * 366 * 86_400.0
_ANYBODY: Final = "*"


class ApprovalPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may answer a question, and what happens if nobody does.

    ``who`` are names of people or API keys, with ``*`` and ``?`` as wildcards; empty means anybody. With
    ``then="escalate"``, those of ``escalate_to`` may answer after the deadline, for ``escalate_seconds`` (by
    default as long again), and ``at_last`` happens after that. ``quorum`` is how many must agree.
    """

    who: tuple[str, ...] = ()
    seconds: float | None = None
    then: AtDeadline = "wait"
    escalate_to: tuple[str, ...] = ()
    escalate_seconds: float | None = None
    at_last: AtLast = "deny"
    quorum: int = 1


class Vote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One person's answer. ``value`` are the edited arguments, or another value that the asker takes."""

    by: str
    decision: VoteDecision
    at_us: int
    reason: str | None = None
    value: Any = None

    @property
    def at(self) -> datetime:
        """When, in UTC."""
        return to_datetime(self.at_us)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What the votes so far amount to, at some time."""

    status: Status
    value: Any = None
    """The proposal that was approved, or is being voted on, if somebody edited the arguments."""
    who: tuple[str, ...] = ()
    """Who may answer now; empty means anybody."""
    due_us: int | None = None
    """The next deadline."""
    agreed: tuple[str, ...] = ()
    """Who agrees with the proposal."""
    decided_by: tuple[str, ...] = ()
    is_escalated: bool = False
    is_expired: bool = False
    """Whether the deadline decided it."""

    @property
    def decision(self) -> Decision | None:
        """What the asker is told; ``None`` while the question is open."""
        if self.status == "open":
            return None
        if self.status in ("denied", "cancelled"):
            return "deny"
        return "approve" if self.value is None else "edit"


def check_policy(policy: ApprovalPolicy) -> ApprovalPolicy:
    """Return a policy; raise `InvalidInput` if it makes no sense."""
    for name, options in (("then", AtDeadline), ("at_last", AtLast)):
        given = getattr(policy, name)
        if given not in get_args(options):
            raise InvalidInput(f"{name}={given!r} is invalid; use {', '.join(get_args(options))}")
    for name in ("seconds", "escalate_seconds"):
        seconds = getattr(policy, name)
        if seconds is not None and not 0 < seconds <= _MAX_SECONDS:
            raise InvalidInput(f"{name}={seconds!r} is invalid; give a number of seconds above 0")
    for each in (*policy.who, *policy.escalate_to):
        if not isinstance(each, str) or not each.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - from JSON
            raise InvalidInput(f"{each!r} names nobody; give names of people or API keys")
    if policy.then != "wait" and policy.seconds is None:
        raise InvalidInput(f"then={policy.then!r} needs seconds=, after which it happens")
    if (policy.then == "escalate") != bool(policy.escalate_to):
        raise InvalidInput(
            'then="escalate" and escalate_to= go together: they say who answers after the deadline'
        )
    if policy.quorum < 1:
        raise InvalidInput(f"quorum is {policy.quorum}; give 1 or more")
    names = {*policy.who, *policy.escalate_to}
    if policy.who and not any("*" in each or "?" in each for each in names) and policy.quorum > len(names):
        raise InvalidInput(
            f"quorum is {policy.quorum}, but only {len(names)} may answer; nobody could ever approve"
        )
    return policy


def may_answer(who: Sequence[str], by: str | None) -> bool:
    """Whether somebody is among those who may answer."""
    return not who or (by is not None and any(fnmatchcase(by, each) for each in who))


def standing(policy: ApprovalPolicy, asked_us: int, votes: Sequence[Vote], now_us: int) -> Standing:
    """Return what the votes amount to at a time."""
    proposal: Any = None
    agreed: list[str] = []
    for vote in votes:
        if vote.decision == "cancel":
            return Standing(status="cancelled", decided_by=(vote.by,))
        if vote.decision == "deny":
            return Standing(status="denied", decided_by=(vote.by,), is_expired=vote.by == DEADLINE)
        if vote.decision == "edit":
            proposal, agreed = vote.value, []
        if vote.by not in agreed:
            agreed.append(vote.by)
        if len(agreed) >= policy.quorum or vote.by == DEADLINE:
            return Standing(
                status="approved",
                value=proposal,
                agreed=tuple(agreed),
                decided_by=tuple(agreed),
                is_expired=vote.by == DEADLINE,
            )
    open_ = Standing(status="open", value=proposal, who=policy.who, agreed=tuple(agreed))
    if policy.seconds is None:
        return open_
    due_us = asked_us + round(policy.seconds * SECOND_US)
    if now_us < due_us:
        return msgspec.structs.replace(open_, due_us=due_us)
    if policy.then != "escalate":
        return _at_deadline(open_, policy.then)
    later = policy.seconds if policy.escalate_seconds is None else policy.escalate_seconds
    last_us = due_us + round(later * SECOND_US)
    open_ = msgspec.structs.replace(open_, who=policy.escalate_to, is_escalated=True)
    if now_us < last_us:
        return msgspec.structs.replace(open_, due_us=last_us)
    return _at_deadline(open_, policy.at_last)


def _at_deadline(open_: Standing, then: AtLast) -> Standing:
    """Return what happens at a deadline. Approving means the proposal as it stands."""
    if then == "wait":
        return open_
    return msgspec.structs.replace(
        open_,
        status="denied" if then == "deny" else "approved",
        decided_by=(DEADLINE,),
        is_expired=True,
    )
