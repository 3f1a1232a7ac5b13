"""Who may answer, until when, and what votes amount to: decided by a pure function of votes and time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.approvals.policy import ApprovalPolicy, Vote, check_policy, may_answer, standing
from treering.core.clock import SECOND_US
from treering.errors import InvalidInput

ASKED = 1_000 * SECOND_US


def vote(by, decision: Any = "approve", value=None):
    return Vote(by=by, decision=decision, at_us=ASKED, value=value)


def at(policy, seconds, *votes):
    return standing(policy, ASKED, votes, ASKED + round(seconds * SECOND_US))


def test_one_approval_decides_by_default() -> None:
    assert at(ApprovalPolicy(), 0).status == "open"
    found = at(ApprovalPolicy(), 0, vote("bob"))
    assert (found.status, found.decision, found.decided_by) == ("approved", "approve", ("bob",))


def test_one_denial_decides_whatever_the_quorum() -> None:
    found = at(ApprovalPolicy(quorum=3), 0, vote("bob"), vote("carol", "deny"))
    assert (found.status, found.decided_by) == ("denied", ("carol",))


def test_a_quorum_counts_each_person_once() -> None:
    policy = ApprovalPolicy(quorum=2)
    assert at(policy, 0, vote("bob"), vote("bob")).status == "open"
    assert at(policy, 0, vote("bob"), vote("carol")).decided_by == ("bob", "carol")


def test_an_edit_is_a_new_proposal_that_others_approve_again() -> None:
    policy = ApprovalPolicy(quorum=2)
    votes = [vote("bob"), vote("carol", "edit", {"amount": 3})]
    found = at(policy, 0, *votes)
    assert (found.status, found.agreed, found.value) == ("open", ("carol",), {"amount": 3})
    decided = at(policy, 0, *votes, vote("bob"))
    assert (decided.decision, decided.value) == ("edit", {"amount": 3})


@pytest.mark.parametrize("then, status", [("deny", "denied"), ("approve", "approved"), ("wait", "open")])
def test_the_deadline_decides(then, status) -> None:
    policy = ApprovalPolicy(seconds=60, then=then)
    assert at(policy, 59.9).due_us == ASKED + 60 * SECOND_US
    assert (at(policy, 60).status, at(policy, 60).is_expired) == (status, status != "open")


def test_an_unanswered_question_escalates_and_then_ends() -> None:
    policy = ApprovalPolicy(
        who=("bob",),
        seconds=60,
        then="escalate",
        escalate_to=("boss*",),
        escalate_seconds=30,
        at_last="approve",
    )
    assert at(policy, 59).who == ("bob",)
    later = at(policy, 60)
    assert (later.status, later.who, later.is_escalated) == ("open", ("boss*",), True)
    assert later.due_us == ASKED + 90 * SECOND_US
    assert (at(policy, 90).status, at(policy, 90).is_expired) == ("approved", True)


def test_names_may_have_wildcards() -> None:
    assert may_answer((), None)
    assert may_answer(("finance-*",), "finance-bob")
    assert not may_answer(("finance-*",), "sales-bob")
    assert not may_answer(("bob",), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"then": "deny"},
        {"then": "perhaps", "seconds": 1},
        {"then": "escalate", "seconds": 1},
        {"escalate_to": ("boss",)},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"quorum": 0},
        {"quorum": 2, "who": ("bob",)},
        {"who": ("",)},
        {"at_last": "never"},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields) -> None:
    with pytest.raises(InvalidInput):
        check_policy(ApprovalPolicy(**fields))


names = st.sampled_from(["ann", "bob", "carol"])
votes = st.lists(
    st.builds(vote, names, st.sampled_from(["approve", "approve", "deny", "edit"]), st.integers(1, 3)),
    max_size=6,
)


@given(votes, st.integers(1, 3), st.sampled_from(["wait", "deny", "approve"]), st.floats(0, 100))
def test_a_decision_never_changes(cast, quorum, then, later) -> None:
    policy = ApprovalPolicy(quorum=quorum, seconds=None if then == "wait" else 50, then=then)
    for count in range(len(cast) + 1):
        now = at(policy, 1, *cast[:count])
        if now.status != "open":
            assert at(policy, later, *cast) == now
            return
        assert set(now.agreed) <= {each.by for each in cast[:count]}
        assert len(now.agreed) < quorum
