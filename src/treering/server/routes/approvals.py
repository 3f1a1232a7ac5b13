"""Questions that agents put to people: the inbox, the answers, and the rules about who may answer."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, structs

from treering.approvals.approvals import Approval, Listed
from treering.approvals.ballots import ApprovalRule
from treering.approvals.policy import ApprovalPolicy, AtDeadline, AtLast
from treering.errors import NotFound
from treering.server.endpoints import OK, Call, Empty, endpoint
from treering.workspaces.diff import FileChange


class ApprovalListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which questions: ``open`` ones, oldest first, or decided ones, newest first.

    ``mine`` selects those that the caller may answer. ``cursor`` is the last id of a page.
    """

    status: Listed = "open"
    namespace: str | None = None
    thread: str | None = None
    tool: str | None = None
    mine: bool = False
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: str | None = None


class ApprovalInfo(Struct, frozen=True, kw_only=True):
    """A question, and whether the caller may answer it now."""

    approval: Approval
    decided_by: tuple[str, ...]
    reason: str | None
    arguments: Any
    revision: int
    may_answer: bool


class ApprovalList(Struct, frozen=True, kw_only=True):
    """Questions."""

    approvals: tuple[ApprovalInfo, ...]
    next_cursor: str | None


class ApprovalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that a program asks, about a call that it wants to make."""

    tool: str
    arguments: Any = None
    question: str | None = None
    thread: str | None = None
    namespace: str = ""
    run: str | None = None
    agent: str | None = None
    policy: ApprovalPolicy | None = None
    id: str | None = None


class ApprovalAnswer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer. ``revision`` is the number of votes that its author has seen.

    The name of the caller's key is who answers; ``by`` counts only on a server without keys.
    """

    decision: Literal["approve", "deny", "edit"]
    value: Any = None
    reason: str | None = None
    revision: int | None = None
    by: str | None = None


class ApprovalChanges(Struct, frozen=True, kw_only=True):
    """What changed in the files since the run began that asks."""

    files: tuple[FileChange, ...]


class ApprovalRules(Struct, frozen=True, kw_only=True):
    """The rules, by name."""

    rules: tuple[ApprovalRule, ...]


class NewApprovalRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who answers questions about a tool, and what happens if nobody does."""

    tool: str = "*"
    agent: str = "*"
    thread: str = "*"
    who: tuple[str, ...] = ()
    seconds: float | None = None
    then: AtDeadline = "wait"
    escalate_to: tuple[str, ...] = ()
    escalate_seconds: float | None = None
    at_last: AtLast = "deny"
    quorum: int = 1


@endpoint("GET", "/approvals", tag="approvals")
def list_approvals(call: Call[ApprovalListQuery, None]) -> ApprovalList:
    """List the questions that wait for an answer, or those that were answered."""
    query = call.query
    found = call.store.approvals.list(
        status=query.status,
        namespace=query.namespace,
        thread_id=query.thread,
        tool=query.tool,
        who=call.access.person if query.mine else None,
    )
    if query.cursor is not None:
        for each in found:
            if each.id == query.cursor:
                break
    page = list(islice(found, query.limit + 1))
    shown = page[: query.limit]
    return ApprovalList(
        approvals=tuple(_info(call, each) for each in shown),
        next_cursor=shown[-1].id if len(page) > query.limit else None,
    )


@endpoint("POST", "/approvals", tag="approvals", domain="threads", status=201)
def request_approval(call: Call[None, ApprovalRequest]) -> ApprovalInfo:
    """Ask whether a call may be made. Poll the question, or follow the journal, for the answer."""
    body = call.body
    asked = call.store.approvals.request(
        body.tool,
        body.arguments,
        question=body.question,
        thread_id=body.thread,
        namespace=body.namespace,
        run_id=body.run,
        agent=body.agent,
        policy=body.policy,
        id=body.id,
    )
    return _info(call, call.store.approvals.load(asked.id))


@endpoint("GET", "/approvals/{id}", tag="approvals")
def get_approval(call: Call[None, None]) -> ApprovalInfo:
    """Return a question: what is asked, who may answer until when, and the votes so far."""
    return _info(call, call.store.approvals.load(call.path["id"]))


@endpoint("GET", "/approvals/{id}/changes", tag="approvals")
def get_approval_changes(call: Call[None, None]) -> ApprovalChanges:
    """Return what changed in the files since the run began that asks."""
    return ApprovalChanges(files=tuple(call.store.approvals.changes(call.path["id"])))


@endpoint("POST", "/approvals/{id}/answer", tag="approvals")
def answer_approval(call: Call[None, ApprovalAnswer]) -> ApprovalInfo:
    """Answer a question. Of two racing answers, one counts; the other gets 409, and who was faster."""
    body = call.body
    answered = call.store.approvals.answer(
        call.path["id"],
        body.decision,
        by=call.access.speaks_as(body.by),
        reason=body.reason,
        value=body.value,
        revision=body.revision,
    )
    return _info(call, answered)


@endpoint("GET", "/approval-rules", tag="approvals")
def list_approval_rules(call: Call[None, None]) -> ApprovalRules:
    """List the rules about who may answer."""
    return ApprovalRules(rules=call.store.approvals.rules())


@endpoint("PUT", "/approval-rules/{name}", tag="approvals", domain="approval-rules")
def set_approval_rule(call: Call[None, NewApprovalRule]) -> ApprovalRule:
    """Set or replace a rule; it applies to open questions, too."""
    return call.store.approvals.set_rule(call.path["name"], **structs.asdict(call.body))


@endpoint("DELETE", "/approval-rules/{name}", tag="approvals", domain="approval-rules")
def remove_approval_rule(call: Call[None, None]) -> Empty:
    """Remove a rule."""
    if not call.store.approvals.remove_rule(call.path["name"]):
        raise NotFound(f"approval rule {call.path['name']!r} not found; GET /approval-rules lists them")
    return OK


ENDPOINTS: Final = (
    list_approvals,
    request_approval,
    get_approval,
    get_approval_changes,
    answer_approval,
    list_approval_rules,
    set_approval_rule,
    remove_approval_rule,
)


def _info(call: Call[Any, Any], approval: Approval) -> ApprovalInfo:
    return ApprovalInfo(
        approval=approval,
        decided_by=approval.decided_by,
        reason=approval.reason,
        arguments=approval.arguments,
        revision=approval.revision,
        may_answer=approval.is_open and call.access.may_approve and call.access.may_be_among(approval.who),
    )
