"""Sub-agents: a tree of runs that is resumed, forked, costed and cancelled as one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

import msgspec
import pytest

import treering
from treering.agent import create_agent, loop, tool
from treering.agent.agent import Agent
from treering.approvals import AlreadyAnswered
from treering.approvals.approvals import Approvals
from treering.core.encoding import encode_json
from treering.effects import Attempt, EffectRunning, Effects, Intent
from treering.errors import InvalidInput, NotFound
from treering.runs.tree import RunCancelled


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"name": name, "arguments": encode_json(arguments).decode()}
    return {
        "role": "assistant",
        "model": "gpt-5",
        "usage": {"input": 1000, "output": 100},
        "tool_calls": [{"id": "c1", "type": "function", "function": call}],
    }


class Office:
    """A boss that asks a clerk, who looks something up; what happens is counted."""

    def __init__(self, store: Any, *, needs_approval: bool = False) -> None:
        self.prompts: list[str] = []
        self.lookups: list[str] = []
        self.dies = self.dies_after = False
        self.during: Any = None

        @tool(needs_approval=needs_approval, replay="safe")
        def look_up(what: str) -> str:
            self.lookups.append(what)
            if self.during is not None:
                self.during()
            if self.dies:
                self.dies = False
                raise KeyboardInterrupt
            return f"{what} is in the drawer"

        def clerk_model(messages: Any, _tools: Any) -> Any:
            if messages[-1]["role"] == "tool":
                if self.dies_after:
                    self.dies_after = False
                    raise KeyboardInterrupt
                return {"role": "assistant", "content": messages[-1]["content"]}
            self.prompts.append(messages[-1]["content"])
            return calling("look_up", what="file 7")

        def boss_model(messages: Any, _tools: Any) -> Any:
            if messages[-1]["role"] == "tool":
                return "The clerk says: " + messages[-1]["content"]
            return calling("clerk", prompt="Where is file 7?")

        self.clerk = create_agent(model=clerk_model, tools=[look_up], checkpointer=store, name="clerk")
        self.boss = create_agent(
            model=boss_model, tools=[self.clerk.as_tool()], checkpointer=store, name="boss"
        )


def children(store: treering.Store) -> list[str]:
    return sorted(each.id for each in store.threads() if "/clerk-" in each.id)


def test_a_sub_agent_answers_in_a_thread_of_its_own(store) -> None:
    office = Office(store)
    result = office.boss.generate(thread_id="b", prompt="Find file 7")
    assert result.text == "The clerk says: file 7 is in the drawer"
    (child,) = children(store)
    assert [each["role"] for each in store.thread(child).load().messages] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip


def test_its_run_is_a_child_with_own_and_total_cost(store) -> None:
    result = Office(store).boss.generate(thread_id="b", prompt="Find file 7")
    store.flush()
    tree = store.runs.tree(result.run_id)
    (child,) = tree.children
    assert (tree.run.agent, child.run.agent, child.run.parent) == ("boss", "clerk", result.run_id)
    assert (tree.own.tokens, child.own.tokens, tree.total.tokens) == (1100, 1100, 2200)
    assert tree.total.nanos == {"USD": 2 * tree.own.nanos["USD"]}
    assert (tree.is_over, tree.to_dict()["children"][0]["thread"]) == (True, children(store)[0])
    (called,) = store.effects.list(run_id=result.run_id)
    assert called.cost_nanos == child.total.nanos
    assert [(depth, each.run.agent) for depth, each in tree.each()] == [(0, "boss"), (1, "clerk")]


@pytest.mark.parametrize("where", ["in its tool", "in its model"])
def test_resuming_the_parent_resumes_it_where_it_stopped_and_once(store, where) -> None:
    office = Office(store)
    office.dies, office.dies_after = where == "in its tool", where == "in its model"
    with pytest.raises(KeyboardInterrupt):
        office.boss.generate(thread_id="b", prompt="Find file 7")
    result = office.boss.generate(thread_id="b")
    assert result.text == "The clerk says: file 7 is in the drawer"
    assert office.prompts == ["Where is file 7?"]
    assert len(office.lookups) == (2 if where == "in its tool" else 1)
    assert len(children(store)) == 1
    store.flush()
    tree = store.runs.tree(result.run_id)
    assert [len(each.attempts) for _, each in tree.each()] == [2, 2]
    assert tree.status == "ok"
    assert store.runs.tree(tree.attempts[1].id) == tree


def test_an_answer_that_the_parent_did_not_get_is_not_asked_for_again(store) -> None:
    office = Office(store)
    for event in office.boss.stream(thread_id="b", prompt="Find file 7", checkpoint_after_tool_call=True):
        if event.kind == "tool_call":
            break
    (call,) = store.thread("b").load().messages[-1]["tool_calls"]
    assert call["function"]["name"] == "clerk"
    office.boss.generate(thread_id="b")
    store.thread("b").rewind(store.thread("b").at("~1"))
    assert office.boss.generate(thread_id="b").text == "The clerk says: file 7 is in the drawer"
    assert office.lookups == ["file 7"]


def test_the_parent_waits_while_its_sub_agent_waits_for_a_person(store) -> None:
    office = Office(store, needs_approval=True)
    result = office.boss.generate(thread_id="b", prompt="Find file 7")
    (child,) = children(store)
    assert result.interrupt is not None
    assert result.interrupt["thread"] == child
    assert office.boss.generate(thread_id="b").interrupt == result.interrupt
    (question,) = store.approvals.list()
    assert (question.thread_id, question.tool) == (child, "look_up")
    store.approvals.answer(question.id, "approve", by="ann")
    assert office.boss.generate(thread_id="b").text == "The clerk says: file 7 is in the drawer"
    assert office.lookups == ["file 7"]


def test_forking_the_parent_forks_its_sub_agent_when_the_fork_goes_on(store) -> None:
    office = Office(store, needs_approval=True)
    office.boss.generate(thread_id="b", prompt="Find file 7")
    (child,) = children(store)
    store.thread("b").fork("f")
    assert children(store) == [child]
    office.boss.generate(thread_id="f")
    (forked,) = set(children(store)) - {child}
    assert forked.startswith("f/clerk-")
    assert store.thread(forked).load().messages == store.thread(child).load().messages
    store.thread(forked).resume("deny", goes_on=True)
    assert "denied by the user" in office.boss.generate(thread_id="f").text
    assert office.lookups == []
    store.thread(child).resume("approve", goes_on=True)
    assert office.boss.generate(thread_id="b").text == "The clerk says: file 7 is in the drawer"


def test_a_fork_from_before_the_call_asks_anew(store) -> None:
    office = Office(store)
    for event in office.boss.stream(thread_id="b", prompt="Find file 7", checkpoint_after_tool_call=True):
        if event.kind == "checkpoint":
            break
    store.thread("b").fork("f")
    office.boss.generate(thread_id="b")
    office.boss.generate(thread_id="f")
    assert len(office.prompts) == len(children(store)) == 2


def test_cancelling_a_run_stops_everything_below_it(store) -> None:
    office = Office(store)
    run: list[str] = []

    def cancel() -> None:
        store.flush()
        (boss,) = store.runs.each(agent="boss")
        run.append(boss.id)
        assert {each.agent for each in store.runs.cancel(boss.id, by="ann")} == {"boss", "clerk"}

    office.during = cancel
    with pytest.raises(RunCancelled, match="was cancelled; give a prompt to go on"):
        office.boss.generate(thread_id="b", prompt="Find file 7")
    store.flush()
    tree = store.runs.tree(run[0])
    assert [each.status for _, each in tree.each()] == ["cancelled", "cancelled"]
    assert tree.is_over
    office.during = None
    with pytest.raises(RunCancelled):
        office.boss.generate(thread_id="b")
    office.boss.generate(thread_id="b", prompt="Find it again")
    results = [each["content"] for each in store.thread("b").load().messages if each["role"] == "tool"]
    assert results == [
        "SubAgentStopped: it was cancelled before it had an answer",
        "file 7 is in the drawer",
    ]


def test_a_new_prompt_answers_the_calls_that_a_cancelled_run_has_left(store) -> None:
    office = Office(store)
    office.dies = True
    with pytest.raises(KeyboardInterrupt):
        office.boss.generate(thread_id="b", prompt="Find file 7")
    store.flush()
    (boss,) = store.runs.each(agent="boss")
    assert len(store.runs.cancel(boss.id)) == 2
    office.boss.generate(thread_id="b", prompt="Find it again")
    results = [each["content"] for each in store.thread("b").load().messages if each["role"] == "tool"]
    assert results == ["the call was not made: the run was cancelled", "file 7 is in the drawer"]


def test_cancelling_only_the_sub_agent_is_its_answer(store) -> None:
    office = Office(store)

    def cancel() -> None:
        store.flush()
        (clerk,) = store.runs.each(agent="clerk")
        store.runs.cancel(clerk.id)

    office.during = cancel
    assert "SubAgentStopped: it was" in office.boss.generate(thread_id="b", prompt="Find file 7").text


def test_a_run_that_waits_is_cancelled_at_once_and_its_question_is_closed(store) -> None:
    office = Office(store, needs_approval=True)
    waiting = office.boss.generate(thread_id="b", prompt="Find file 7")
    office.boss.generate(thread_id="other", prompt="Find file 7")
    mine, other = store.approvals.list()
    store.flush()
    done = store.runs.cancel(waiting.run_id, by="ann", reason="wrong file")
    assert {each.status for each in done} == {"cancelled"}
    assert store.runs.cancel(waiting.run_id) == []
    closed = store.approvals.load(mine.id)
    assert (closed.status, closed.decided_by, closed.reason) == ("cancelled", ("ann",), "wrong file")
    assert [each.id for each in store.approvals.list()] == [other.id]
    assert [each.id for each in store.approvals.list(status="closed")] == [mine.id]
    assert store.thread(mine.thread_id).head.pending_interrupt is None
    with pytest.raises(AlreadyAnswered, match="cancelled by ann"):
        store.approvals.answer(mine.id, "approve", by="bob")
    with pytest.raises(RunCancelled):
        office.boss.generate(thread_id="b")
    assert office.lookups == []
    office.boss.generate(thread_id="b", prompt="Find it again")
    with pytest.raises(NotFound, match="run 'x' not found"):
        store.runs.cancel("x")


def test_a_question_of_a_cancelled_run_that_nobody_could_close_is_closed_by_the_server(
    store, monkeypatch
) -> None:
    office = Office(store, needs_approval=True)
    waiting = office.clerk.generate(thread_id="c", prompt="Where?")
    request = store.approvals.request("pay", {"sum": 1}, run_id=waiting.run_id)
    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(Approvals, "cancel", lambda *_, **__: [])  # as if its process had died there
        store.runs.cancel(waiting.run_id, by="ann")
    assert len(list(store.approvals.list())) == 2
    examined = store.approvals.examine()
    assert (examined.open, examined.asked) == (0, ())  # and no alert
    assert list(store.approvals.list()) == []
    assert request.wait(seconds=0).status == "cancelled"


def test_a_run_that_starts_below_a_cancelled_one_is_cancelled_too(store) -> None:
    with store.run("boss") as boss:
        store.flush()
        store.runs.cancel(boss.id)
        with store.run("clerk") as clerk, store.run("assistant") as assistant:
            store.flush()
            assert store.runs.is_cancelled(assistant.id)
        with store.run("other", parent="nobody") as other:
            store.flush()
            assert not store.runs.is_cancelled(other.id)
    assert clerk.info.parent == boss.id


def test_no_effect_of_a_cancelled_run_begins(store) -> None:
    with store.run("payer") as run:
        store.flush()
        begun = store.effects.open(Intent(id="a", tool="pay", arguments={}, run_id=run.id))
        store.effects.plan(Intent(id="b", tool="pay", arguments={}, run_id=run.id))
        store.runs.cancel(run.id, by="ann")
        with begun:
            assert begun.finish("paid").status == "done"  # it has happened
        given_up = store.effects.load("b")
        assert (given_up.status, given_up.decided_by) == ("abandoned", "ann")
        with pytest.raises(RunCancelled, match="is not made any more"):
            store.effects.open(Intent(id="c", tool="pay", arguments={}, run_id=run.id))
    assert store.effects.load("c").attempt == 0


def test_a_cancelled_stream_stops_in_the_middle_and_keeps_what_was_said(store, monkeypatch) -> None:
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)

    def model(_messages: Any, _tools: Any) -> Any:
        yield "Once "
        store.flush()
        (run,) = store.runs.each()
        store.runs.cancel(run.id)
        yield "upon "
        yield "a time"

    agent = create_agent(model=model, checkpointer=store)
    with pytest.raises(RunCancelled):
        agent.generate(thread_id="t", prompt="Tell me a story")
    assert store.thread("t").partial().text == "Once upon "
    store.flush()
    assert [each.status for each in store.runs.each()] == ["cancelled"]


@pytest.mark.parametrize(
    "dies, told, status",
    [
        ("in the call", "nobody knows whether this call was made", "unknown"),
        ("after it", "paid", "done"),
    ],
)
def test_a_cancelled_run_is_not_told_that_a_call_was_not_made_which_may_have_been(
    store, monkeypatch, dies, told, status
) -> None:
    lives = iter([KeyboardInterrupt])

    def pay() -> str:
        if dies == "in the call" and next(lives, None):
            raise KeyboardInterrupt
        return "paid"

    def model(messages: Any, _tools: Any) -> Any:
        return calling("pay") if messages[-1]["role"] == "user" and len(messages) == 1 else "ok"

    agent = create_agent(model=model, tools=[pay], checkpointer=store)
    if dies == "after it":
        finish = Attempt.finish

        def finish_and_die(*args: Any, **kwargs: Any) -> Any:
            finish(*args, **kwargs)
            raise KeyboardInterrupt

        monkeypatch.setattr(Attempt, "finish", finish_and_die)
    with pytest.raises(KeyboardInterrupt):
        agent.generate(thread_id="t", prompt="Pay")
    store.flush()
    (run,) = store.runs.each()
    store.runs.cancel(run.id)
    agent.generate(thread_id="t", prompt="What happened?")
    (result,) = [each for each in store.thread("t").load().messages if each["role"] == "tool"]
    assert result["content"].startswith(told)
    assert [each.status for each in store.effects.list()] == [status]


def test_a_second_process_neither_repeats_nor_answers_a_call_that_is_being_made(store, monkeypatch) -> None:
    office = Office(store)
    is_in, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        is_in.set()
        assert may_end.wait(60)

    office.during = wait
    first: list[str] = []
    running = threading.Thread(
        target=lambda: first.append(office.boss.generate(thread_id="b", prompt="Find file 7").text)
    )
    running.start()
    assert is_in.wait(60)
    monkeypatch.setattr(Effects.open, "__kwdefaults__", {"probe": None, "wait_seconds": 0.0})
    with pytest.raises(EffectRunning):
        office.boss.generate(thread_id="b")
    may_end.set()
    running.join()
    assert first == ["The clerk says: file 7 is in the drawer"]
    assert office.lookups == ["file 7"]


def test_an_agent_without_a_store_cannot_be_resumed_so_it_is_no_tool() -> None:
    agent = create_agent(model=lambda _messages, _tools: "x", name="clerk")
    with pytest.raises(InvalidInput, match="agent 'clerk' has no store"):
        agent.as_tool()
    assert isinstance(agent, Agent)


def die_in_the_tool(url: str) -> None:
    with treering.open(url) as store:
        office = Office(store)
        office.during = lambda: os.kill(os.getpid(), signal.SIGKILL)
        office.boss.generate(thread_id="b", prompt="Find file 7")


def test_a_killed_process_is_followed_by_another(tmp_path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die_in_the_tool, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with treering.open(tmp_path) as store:
        office = Office(store)
        result = office.boss.generate(thread_id="b")
        assert result.text == "The clerk says: file 7 is in the drawer"
        assert office.prompts == []  # the clerk had its prompt, and went on
        assert len(children(store)) == 1


def test_the_tree_is_shown_and_cancelled_on_the_command_line_and_over_rest(tmp_path, capsys) -> None:
    from starlette.testclient import TestClient

    from treering.cli.main import main
    from treering.server.app import create_app
    from treering.server.settings import Settings

    with treering.open(tmp_path / "store") as store:
        run = Office(store, needs_approval=True).boss.generate(thread_id="b", prompt="Find file 7").run_id
        store.flush()
        with TestClient(create_app(store, Settings()), base_url="http://127.0.0.1:8787") as client:
            tree = client.get(f"/runs/{run}/tree").json()
            (child,) = tree["children"]
            assert (tree["status"], child["agent"], child["is_over"]) == ("interrupted", "clerk", False)
            assert tree["total"]["tokens"] == tree["own"]["tokens"] + child["own"]["tokens"] == 2200
            done = client.post(f"/runs/{child['id']}/cancel", json={"reason": "wrong"}).json()
            assert [(each["agent"], each["status"]) for each in done["runs"]] == [("clerk", "cancelled")]
    place = ["--store", str(tmp_path / "store")]
    with pytest.raises(SystemExit):
        main(["tree", run, *place])
    header, boss, clerk = capsys.readouterr().out.splitlines()
    assert header.split() == ["RUN", "AGENT", "STATUS", "ATTEMPTS", "OWN", "TOTAL", "THREAD"]
    assert ("interrupted" in boss, clerk.startswith("  "), "b/clerk-" in clerk) == (True, True, True)
    with pytest.raises(SystemExit):
        main(["cancel", run, "--json", *place])
    assert [each["agent"] for each in msgspec.json.decode(capsys.readouterr().out)] == ["boss"]
    with pytest.raises(SystemExit):
        main(["cancel", run, *place])
    assert capsys.readouterr().out == "nothing to cancel: the run has ended\n"


CANARY = "canary 4711"


def test_forgetting_a_thread_forgets_its_tree(tmp_path) -> None:
    with treering.open(tmp_path / "store") as store:
        office = Office(store, needs_approval=True)
        office.boss.generate(thread_id="b", prompt=CANARY)
        (child,) = children(store)
        store.approvals.answer(next(store.approvals.list()).id, "edit", value={"what": CANARY}, by="ann")
        office.boss.generate(thread_id="b")
        store.approvals.request("pay", {"what": CANARY}, thread_id="b")
        with store.run("boss", thread="b"), store.run("helper") as helper:
            helper.message("user", CANARY)
            with store.run("other", thread="o") as other:
                other.message("user", "a life of its own")
        store.flush()
        receipt = store.forget(thread="b")
        assert receipt.below == 3  # the clerk's thread, the question's, and the helper's run
        assert list(receipt.kept) == ["thread o"]
        assert store.thread(child).head is None
        assert [each.agent for each in store.runs.each()] == ["other"]
        assert list(store.approvals.list(status=None)) == []
    found = [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert found == []


def test_deleting_a_thread_deletes_that_of_its_sub_agent(store) -> None:
    office = Office(store)
    office.boss.generate(thread_id="b", prompt="Find file 7")
    office.boss.generate(thread_id="b/c", prompt="Find file 7")
    store.flush()
    store.thread("b").delete()
    assert sorted(each.id for each in store.threads()) == ["b/c", *children(store)]
    assert len(children(store)) == 1
