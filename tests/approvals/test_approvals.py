"""The inbox: every question of every framework, answered once, by those who may."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any, TypedDict

import pytest

import treering
from treering.agent import create_agent, tool
from treering.approvals import AlreadyAnswered, ApprovalPolicy, NotPermitted
from treering.approvals.worker import ApprovalWorker, continuation
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Conflict, InvalidInput, NotFound
from treering.store import Store
from treering.threads.thread import Thread

ASK = {"tool_call": {"id": "c1", "name": "pay", "arguments": {"amount": 20}}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock) -> Store:
    return Store(MemoryEngine(clock=clock), clock=clock)


def _choice(name: str) -> Any:
    return "approve" if name < "c" else "deny"


def ask(store: Store, thread="t", namespace=None, **policy: Any) -> Thread:
    found = store.thread(thread, namespace)
    found.append({"role": "user", "content": "pay"})
    pending: dict[str, Any] = {"id": f"i-{thread}", "payload": ASK}
    if policy:
        pending["approval"] = policy
    found.checkpoint(pending_interrupt=pending)
    return found


def only(store: Store, **filters: Any):
    (found,) = store.approvals.list(**filters)
    return found


def test_a_question_is_in_the_inbox_until_it_is_answered(store) -> None:
    thread = ask(store)
    found = only(store)
    assert (found.thread_id, found.tool, found.arguments, found.is_open) == ("t", "pay", {"amount": 20}, True)
    assert store.approvals.load(found.id[:8]) == found
    done = store.approvals.answer(found.id, "approve", by="bob", reason="looks right")
    assert (done.status, done.decided_by, done.reason) == ("approved", ("bob",), "looks right")
    assert thread.load().metadata["resumed"] == {
        "id": "i-t",
        "decision": "approve",
        "payload": ASK,
        "by": "bob",
        "reason": "looks right",
    }
    assert not list(store.approvals.list())
    assert only(store, status="answered") == done == store.approvals.load(done.id)
    assert store.verify().ok


def test_answers_are_events_of_the_journal(store) -> None:
    ask(store)
    store.approvals.answer(only(store).id, "edit", value={"amount": 5}, by="bob", reason="too much")
    (event,) = [each for each in _events(store) if each.kind == "approval.answered"]
    data = treering.core.encoding.decode_json(event.data)
    assert (event.name, event.status, event.thread) == ("pay", "approved", "/t")
    assert (data["by"], data["reason"], data["value"]) == ("bob", "too much", {"amount": 5})


def _events(store):
    from treering.core.query import EventQuery, each_record

    return [each.event for each in each_record(store.engine, store.space, EventQuery())]


def test_of_two_racing_answers_one_wins_and_the_other_is_told(store) -> None:
    for round_ in range(5):
        ask(store, f"t{round_}")
        question = only(store)
        start, results = threading.Barrier(4), []

        def answer(name: str, decision: Any, start=start, question=question, results=results) -> None:
            start.wait()
            try:
                store.approvals.answer(question.id, decision, by=name)
                results.append((name, "won"))
            except AlreadyAnswered as error:
                results.append((name, str(error)))

        people = [threading.Thread(target=answer, args=(name, _choice(name))) for name in "abcd"]
        for each in people:
            each.start()
        for each in people:
            each.join()
        winners = [name for name, told in results if told == "won"]
        assert len(winners) == 1, results
        assert all(f"by {winners[0]}" in told for name, told in results if name not in winners), results
        decided = store.approvals.load(question.id)
        assert decided.decided_by == tuple(winners)
        assert decided.status == ("approved" if winners[0] < "c" else "denied")
        assert store.thread(f"t{round_}").load().metadata["resumed"]["by"] == winners[0]


def test_all_votes_of_a_race_for_a_quorum_count(store) -> None:
    ask(store, quorum=4)
    question = only(store)
    people = [
        threading.Thread(target=store.approvals.answer, args=(question.id, "approve"), kwargs={"by": name})
        for name in "abcd"
    ]
    for each in people:
        each.start()
    for each in people:
        each.join()
    assert Counter(store.approvals.load(question.id).decided_by) == Counter("abcd")


def test_the_thread_waits_until_enough_agree(store) -> None:
    thread = ask(store, quorum=2)
    question = only(store)
    store.approvals.answer(question.id, "approve", by="ann")
    assert thread.load().pending_interrupt is not None
    assert only(store).agreed == ("ann",)
    with pytest.raises(InvalidInput, match="by="):
        thread.resume("approve")
    store.approvals.answer(question.id, "approve", by="bob")
    assert thread.load().metadata["resumed"]["by"] == "ann, bob"


def test_an_approval_of_something_else_does_not_count(store) -> None:
    ask(store, quorum=2)
    question = only(store)
    store.approvals.answer(question.id, "edit", value={"amount": 9}, by="ann")
    with pytest.raises(Conflict, match="1 votes"):
        store.approvals.answer(question.id, "approve", by="bob", revision=question.revision)
    done = store.approvals.answer(question.id, "approve", by="bob", revision=1)
    assert (done.status, done.arguments) == ("approved", {"amount": 9})


def test_only_those_who_may_answer_can(store) -> None:
    thread = ask(store, who=["finance-*"])
    question = only(store)
    for by in ("bob", None):
        with pytest.raises(NotPermitted):
            store.approvals.answer(question.id, "approve", by=by)
        with pytest.raises(NotPermitted):
            thread.resume("approve", by=by)
    assert not list(store.approvals.list(who="bob"))
    assert only(store, who="finance-carol").id == question.id
    assert store.approvals.answer(question.id, "deny", by="finance-carol").status == "denied"


def test_a_rule_applies_whatever_the_asker_says(store) -> None:
    ask(store, who=["agent"])
    store.approvals.set_rule("money", tool="pay*", who=["finance"], quorum=1)
    question = only(store)
    assert question.who == ("finance",)
    with pytest.raises(NotPermitted):
        store.approvals.answer(question.id, "approve", by="agent")
    assert [each.name for each in store.approvals.rules()] == ["money"]
    assert store.approvals.remove_rule("money")
    assert not store.approvals.remove_rule("money")
    assert only(store).who == ("agent",)


@pytest.mark.parametrize("then", ["deny", "approve"])
def test_a_deadline_answers(timed, clock, then) -> None:
    thread = ask(timed, seconds=60, then=then)
    first = timed.approvals.examine()
    assert first.open == 1
    assert 0 <= (first.next_due_us or 0) - clock.now_us() - 60_000_000 < 100
    clock.advance(seconds=61)
    assert only(timed).is_open
    examined = timed.approvals.examine()
    assert len(examined.expired) == 1
    assert not timed.approvals.examine().expired
    assert thread.load().metadata["resumed"]["by"] == "deadline"
    assert thread.load().metadata["resumed"]["decision"] == then
    done = only(timed, status="answered")
    assert (done.is_expired, done.decided_by) == (True, ("deadline",))


def test_an_answer_after_the_deadline_is_too_late(timed, clock) -> None:
    thread = ask(timed, seconds=60, then="deny")
    question = only(timed)
    clock.advance(seconds=61)
    with pytest.raises(AlreadyAnswered, match="denied by deadline"):
        timed.approvals.answer(question.id, "approve", by="bob")
    assert thread.load().metadata["resumed"]["decision"] == "deny"


def test_looking_at_a_question_keeps_its_deadline_when_the_thread_is_compacted(timed, clock) -> None:
    thread = ask(timed, seconds=60, then="deny")
    timed.approvals.examine()
    clock.advance(seconds=50)
    thread.append({"role": "user", "content": "?"})
    assert not list(timed.approvals.list())  # the thread does not ask any more
    thread.rewind("~1")
    clock.advance(seconds=11)
    assert timed.approvals.examine().expired


def test_each_question_raises_one_alert_with_a_link(timed, clock) -> None:
    ask(timed, who=["bob"], seconds=60, then="escalate", escalate_to=["boss"], escalate_seconds=60)
    question = only(timed)
    for _ in range(2):
        timed.approvals.examine(link="https://agents.example.com/")
        clock.advance(seconds=61)
    timed.approvals.examine()
    alerts = list(reversed(timed.alerts.page().alerts))
    assert [each.rule for each in alerts] == ["approval.requested", "approval.escalated", "approval.expired"]
    figures = alerts[0].figures
    assert figures["link"] == f"https://agents.example.com/#/approvals/{question.id}"
    assert (figures["tool"], figures["who"], figures["until"]) == (
        "pay",
        ["bob"],
        question.due_at.isoformat(),
    )
    assert alerts[1].figures["who"] == ["boss"]
    assert alerts[2].figures["status"] == "denied"


def test_forks_and_namespaces_ask_questions_of_their_own(store) -> None:
    thread = ask(store)
    ask(store, namespace="acme")
    thread.fork("f")
    found = list(store.approvals.list())
    assert len({each.id for each in found}) == 3
    assert [each.thread_id for each in store.approvals.list(namespace="acme")] == ["t"]
    (of_fork,) = store.approvals.list(thread_id="f")
    store.approvals.answer(of_fork.id, "deny", by="bob")
    assert len(list(store.approvals.list())) == 2


def test_a_question_that_is_not_asked_any_more_was_withdrawn(store) -> None:
    thread = ask(store)
    store.approvals.examine()
    question = only(store)
    thread.append({"role": "user", "content": "never mind"})
    assert store.approvals.load(question.id).status == "withdrawn"
    with pytest.raises(Conflict, match="withdrawn"):
        store.approvals.answer(question.id, "approve", by="bob")
    with pytest.raises(NotFound):
        store.approvals.load("nothing")


def test_a_question_says_what_the_run_changed_and_cost(tmp_path) -> None:
    with treering.open(tmp_path / "store") as store:
        thread = store.thread("t")
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "old.txt").write_text("1")
        thread.checkpoint([{"role": "user", "content": "hi"}], workspace=tmp_path / "work")
        with store.run("teller", thread="t") as run:
            run.message("assistant", "x", model="gpt-5", usage={"input": 1000, "output": 10})
        (tmp_path / "work" / "new.txt").write_text("2")
        thread.checkpoint(pending_interrupt={"id": "i", "payload": ASK}, workspace=tmp_path / "work")
        store.flush()
        question = only(store)
        assert (question.agent, question.run_id) == ("teller", run.id)
        assert question.cost_nanos["USD"] > 0
        assert [(each.path, each.change) for each in store.approvals.changes(question.id)] == [
            ("new.txt", "added")
        ]


def pay_agent(store, paid, **fields):
    def pay(amount: int, *, idempotency_key: str) -> str:
        """Pay."""
        paid[idempotency_key] = amount
        return f"paid {amount}"

    def model(messages, _):
        if messages[-1]["role"] == "tool":
            return "Done: " + messages[-1]["content"]
        call = {"name": "pay", "arguments": '{"amount": 20}'}
        return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]}

    return create_agent(model=model, tools=[tool(pay, **fields)], checkpointer=store)


def test_our_loop_asks_as_its_tool_says_and_a_worker_continues_it(store) -> None:
    paid: dict[str, int] = {}
    agent = pay_agent(store, paid, approval=ApprovalPolicy(who=("bob",)))
    assert agent.generate(thread_id="t", prompt="pay").interrupt is not None
    question = only(store)
    assert (question.who, question.agent, question.tool) == (("bob",), "agent", "pay")
    worker = ApprovalWorker(store, continuation(agent))
    assert worker.run_once() == 0
    store.approvals.answer(question.id, "edit", value={"amount": 7}, by="bob")
    assert worker.run_once() == 1
    assert list(paid.values()) == [7]
    assert store.thread("t").load().messages[-1]["content"] == "Done: paid 7"
    assert worker.run_once() == 0
    assert only(store, status="closed").decided_by == ("bob",)


def test_the_model_is_told_why_a_call_was_denied(store) -> None:
    agent = pay_agent(store, {}, needs_approval=True)
    agent.generate(thread_id="t", prompt="pay")
    store.approvals.answer(only(store).id, "deny", by="bob", reason="ask Carol")
    assert agent.generate(thread_id="t").text == "Done: the call was denied by the user: ask Carol"


def test_a_worker_leaves_threads_alone_that_have_gone_on(store) -> None:
    paid: dict[str, int] = {}
    agent = pay_agent(store, paid, needs_approval=True)
    agent.generate(thread_id="t", prompt="pay")
    store.approvals.answer(only(store).id, "approve", by="bob")
    agent.generate(thread_id="t")
    assert ApprovalWorker(store, continuation(agent)).run_once() == 0
    assert len(paid) == 1
    agent.generate(thread_id="u", prompt="pay")
    agent.resume(thread_id="u", decision="approve")
    assert not list(store.approvals.list(status="answered"))


def test_a_worker_tries_again_but_not_for_ever(store) -> None:
    ask(store)
    store.approvals.answer(only(store).id, "approve", by="bob")
    tried = []

    def fails(approval):
        tried.append(approval.id)
        raise ConnectionError("not now")

    worker = ApprovalWorker(store, fails)
    for _ in range(8):
        assert worker.run_once() == 0
    assert len(tried) == 5
    assert only(store, status="answered").id == tried[0]


def test_a_graph_is_in_the_inbox_and_a_worker_continues_it(store) -> None:
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import interrupt

    from treering.adapters.langgraph import TreeringSaver

    class State(TypedDict, total=False):
        said: str

    def node(_: State) -> Any:
        return {"said": interrupt({"action_requests": [{"name": "pay", "args": {"amount": 3}}]})}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    graph = builder.compile(checkpointer=TreeringSaver(store))
    graph.invoke({}, {"configurable": {"thread_id": "g"}})
    question = only(store)
    assert (question.tool, question.arguments) == ("pay", {"amount": 3})
    done = store.approvals.answer(question.id, "approve", by="bob")
    assert (done.status, done.progress) == ("approved", "answered")
    assert ApprovalWorker(store, continuation(graph)).run_once() == 1
    said = graph.get_state({"configurable": {"thread_id": "g"}}).values["said"]
    assert said == {"decisions": [{"type": "approve"}]}
    with pytest.raises(AlreadyAnswered, match="by bob"):
        store.approvals.answer(question.id, "deny", by="carol")


def test_a_program_waits_for_its_answer(store) -> None:
    ask(store)
    asked = store.approvals.request(
        "rm", {"path": "/tmp/x"}, thread_id="t", agent="claude", question="Delete it?"
    )
    (question,) = store.approvals.list(tool="rm")
    assert (question.thread_id, question.agent, question.text) == ("t", "claude", "Delete it?")
    assert store.thread("t").head.pending_interrupt is not None
    assert asked.wait(seconds=0).is_open

    answerer = threading.Timer(0.05, lambda: store.approvals.answer(asked.id, "approve", by="bob"))
    answerer.start()
    assert asked.wait().status == "approved"
    answerer.join()
    assert ApprovalWorker(store, lambda _: pytest.fail("it waits itself"), tool="rm").run_once() == 0
    asked.taken()
    assert not list(store.approvals.list(status="answered"))


def test_await_gives_the_answer(store) -> None:
    from treering.aio import AsyncStore

    async def main() -> Any:
        opened = AsyncStore(store)
        asked = await opened.approvals.request("rm", {"path": "x"}, policy=ApprovalPolicy(who=("bob",)))
        waiting = asyncio.ensure_future(_wait(asked))
        await opened.approvals.answer(asked.id, "deny", by="bob", reason="no")
        return await waiting

    async def _wait(asked: Any) -> Any:
        return await asked

    found = asyncio.run(main())
    assert (found.status, found.reason) == ("denied", "no")


def test_a_program_that_starts_again_asks_the_same_question(store) -> None:
    first = store.approvals.request("rm", {"path": "x"}, id="session-1-rm-x")
    again = store.approvals.request("rm", {"path": "x"}, id="session-1-rm-x")
    assert first.id == again.id
    store.approvals.answer(first.id, "approve", by="bob")
    third = store.approvals.request("rm", {"path": "x"}, id="session-1-rm-x")
    assert third.wait(seconds=0).status == "approved"
    third.taken()
    fourth = store.approvals.request("rm", {"path": "x"}, id="session-1-rm-x")
    assert fourth.id != first.id
    assert fourth.wait(seconds=0).is_open
