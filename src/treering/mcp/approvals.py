"""Approval tools: what waits for a person, and (if allowed) passing on a person's answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from mcp_types import CallToolResult
from pydantic import Field

if TYPE_CHECKING:
    from treering.approvals.approvals import Approval
    from treering.mcp.replies import Replies
    from treering.store import Store

_LISTED: Final = 200


class ApprovalTools:
    """Tools for the questions that agents put to people."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store = store
        self._replies = replies

    def approval_list(
        self,
        status: Annotated[
            Literal["open", "answered", "closed"],
            Field(description="open: waits for a person; answered: its agent has not gone on; closed"),
        ] = "open",
    ) -> CallToolResult:
        """List the questions that agents put to people: the call, who may answer, and until when."""
        found = self._store.approvals.list(status=status, last=_LISTED)
        return self._replies.listing("approvals", map(_describe, found), facts={}, more="more did not fit")

    def approval_answer(
        self,
        approval_id: Annotated[str, Field(description="Id of the question, from approval_list")],
        decision: Annotated[
            Literal["approve", "deny", "edit"], Field(description="edit: approve with other arguments")
        ],
        by: Annotated[str, Field(description="The name of the person who has decided")],
        reason: Annotated[str, Field(description="Why, in the person's words")] = "",
        arguments: Annotated[
            dict[str, Any] | None, Field(description="With edit: the arguments to call with")
        ] = None,
    ) -> CallToolResult:
        """Pass on the answer of a person to a question. Never decide yourself: ask the person first."""
        answered = self._store.approvals.answer(
            approval_id, decision, by=by, reason=reason or None, value=arguments
        )
        return self._replies.whole(_describe(answered))


def _describe(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "status": approval.status,
        "thread": approval.thread_id,
        "namespace": approval.namespace,
        "agent": approval.agent,
        "question": approval.text,
        "calls": [{"tool": each.tool, "arguments": each.arguments} for each in approval.calls]
        or approval.question,
        "asked_at": approval.asked_at,
        "who": list(approval.who),
        "until": approval.due_at,
        "votes": [
            {"by": each.by, "decision": each.decision, "reason": each.reason} for each in approval.votes
        ],
        "needs": approval.policy.quorum,
        "decided_by": list(approval.decided_by),
    }
