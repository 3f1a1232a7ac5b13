"""Any order of asking, voting, waiting and looking, against a model of what must come out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from treering.approvals import AlreadyAnswered, ApprovalPolicy, NotPermitted
from treering.approvals.policy import may_answer
from treering.approvals.questions import policy_fields
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.store import Store
from treering.threads.thread import Thread

PEOPLE = ("ann", "bob", "boss")
SECONDS = 100.0


class Inbox(RuleBasedStateMachine):
    """The model knows, of each question, its policy, age and votes, and works the result out by itself."""

    questions: Any = Bundle("questions")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = Store(MemoryEngine(clock=self.clock), clock=self.clock)
        self.now = 0.0
        self.asked: dict[str, dict[str, Any]] = {}

    @rule(
        target=questions,
        then=st.sampled_from(["wait", "deny", "approve", "escalate"]),
        who=st.sampled_from([(), ("ann", "bob")]),
        quorum=st.integers(1, 2),
    )
    def ask(self, then, who, quorum) -> str:
        policy = ApprovalPolicy(
            who=who,
            seconds=SECONDS,
            then=then,
            escalate_to=("boss",) if then == "escalate" else (),
            quorum=quorum,
        )
        thread = self.store.thread(f"t{len(self.asked)}")
        pending = {"id": "i", "payload": {"tool_call": {"name": "pay", "arguments": {"amount": 1}}}}
        thread.checkpoint(pending_interrupt=pending | {"approval": policy_fields(policy)})
        asked = thread.asked()
        assert asked is not None
        self.asked[asked.id] = {
            "policy": policy,
            "at": self.now,
            "agreed": set(),
            "value": None,
            "status": "open",
            "thread": thread,
        }
        return asked.id

    @rule(seconds=st.sampled_from([1.0, 50.0, 101.0]))
    def wait(self, seconds) -> None:
        self.clock.advance(seconds=seconds)
        self.now += seconds

    @rule()
    def examine(self) -> None:
        self.store.approvals.examine()
        for each in self.asked.values():
            if each["status"] == "open" and (by_deadline := self._at_deadline(each)):
                each["status"] = by_deadline

    @rule(
        question=questions,
        by=st.sampled_from(PEOPLE),
        decision=st.sampled_from(["approve", "deny", "edit"]),
        amount=st.integers(2, 3),
    )
    def vote(self, question, by, decision, amount) -> None:
        known = self.asked[question]
        value = {"amount": amount} if decision == "edit" else None
        expected = self._expected(known, by)
        if expected is not None:
            with pytest.raises(expected):
                self.store.approvals.answer(question, decision, by=by, value=value)
            if expected is AlreadyAnswered and known["status"] == "open":
                known["status"] = self._at_deadline(known)
            return
        self.store.approvals.answer(question, decision, by=by, value=value)
        if decision == "deny":
            known["status"] = "denied"
            return
        if decision == "edit":
            known["agreed"], known["value"] = set(), value
        known["agreed"].add(by)
        if len(known["agreed"]) >= known["policy"].quorum:
            known["status"] = "approved"

    def _age(self, known) -> float:
        return self.now - known["at"]

    def _at_deadline(self, known) -> str | None:
        then, age = known["policy"].then, self._age(known)
        if then == "escalate":
            return "denied" if age >= 2 * SECONDS else None
        if age < SECONDS or then == "wait":
            return None
        return "denied" if then == "deny" else "approved"

    def _expected(self, known, by) -> type[Exception] | None:
        if known["status"] != "open" or self._at_deadline(known):
            return AlreadyAnswered
        escalated = known["policy"].then == "escalate" and self._age(known) >= SECONDS
        who = ("boss",) if escalated else known["policy"].who
        return None if may_answer(who, by) else NotPermitted

    @invariant()
    def the_store_agrees(self) -> None:
        listed = {each.id for each in self.store.approvals.list()}
        assert listed == {name for name, each in self.asked.items() if each["status"] == "open"}
        for name, known in self.asked.items():
            found = self.store.approvals.load(name)
            assert found.status == known["status"]
            thread: Thread = known["thread"]
            head = thread.head
            assert head is not None
            assert (head.pending_interrupt is None) == (known["status"] != "open")
            if known["status"] == "open":
                continue
            resumed = head.metadata["resumed"]
            if known["status"] == "denied":
                assert resumed["decision"] == "deny"
            else:
                assert resumed["decision"] == ("approve" if known["value"] is None else "edit")
                assert known["value"] is None or resumed["payload"] == known["value"]


TestInbox = Inbox.TestCase
TestInbox.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
