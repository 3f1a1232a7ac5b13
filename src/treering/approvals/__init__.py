"""Approvals: questions that agents put to people, in one inbox for all frameworks."""

from treering.approvals.approvals import Approval, Approvals, PendingApproval
from treering.approvals.ballots import AlreadyAnswered, NotPermitted
from treering.approvals.policy import ApprovalPolicy, Vote
from treering.approvals.questions import AskedCall

__all__ = [
    "AlreadyAnswered",
    "Approval",
    "ApprovalPolicy",
    "Approvals",
    "AskedCall",
    "NotPermitted",
    "PendingApproval",
    "Vote",
]
