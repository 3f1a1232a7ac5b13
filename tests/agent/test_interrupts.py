"""Tool calls that need a person's approval."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import treering
from tests.agent.scripted import Scripted, answered, asking, said
from treering.agent import Budget, create_agent, tool
from treering.errors import Conflict, InvalidInput, StoreFull, Vetoed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def deleted():
    return []


@pytest.fixture
def agent(store, deleted):
    """An agent that wants to delete two files, and may not without asking."""

    @tool(needs_approval=True)
    def delete(path: str) -> str:
        deleted.append(path)
        return f"{path} is gone"

    wants = asking(("c1", "delete", {"path": "a"}), ("c2", "delete", {"path": "b"}))
    return create_agent(model=Scripted(wants, "Done."), tools=[delete], checkpointer=store)


def payload(call_id, path):
    return {"tool_call": {"id": call_id, "name": "delete", "arguments": {"path": path}}}


def test_a_call_that_needs_approval_waits(store, agent, deleted) -> None:
    parts = list(agent.stream(thread_id="t", prompt="Clean up"))
    assert [part.kind for part in parts] == ["text", "message", "checkpoint", "interrupt", "finish"]
    result = parts[-1].result
    assert result.interrupt["payload"] == payload("c1", "a")
    assert parts[-2].interrupt == result.interrupt
    assert (deleted, result.text, result.counters.run) == ([], "", 0)
    assert store.thread("t").load().pending_interrupt == result.interrupt
    assert result.checkpoint == store.thread("t").load()


def test_each_call_gets_its_own_decision(store, agent, deleted) -> None:
    agent.generate(thread_id="t", prompt="Clean up")
    second = agent.resume(thread_id="t", decision="approve")
    assert second.interrupt["payload"] == payload("c2", "b")
    assert deleted == ["a"]
    last = agent.resume(thread_id="t", decision="deny", interrupt_id=second.interrupt["id"])
    assert (last.text, last.interrupt, deleted) == ("Done.", None, ["a"])
    assert store.thread("t").load().messages[2:] == [
        answered("c1", "a is gone"),
        answered("c2", "the call was denied by the user"),
        said("Done."),
    ]
    assert last.counters.run == 1, "a denied call is not counted"
    assert store.thread("t").load().pending_interrupt is None


def test_an_edited_call_is_made_as_edited(store, agent, deleted) -> None:
    agent.generate(thread_id="t", prompt="Clean up")
    agent.resume(thread_id="t", decision="edit", value={"path": "a.bak"})
    assert deleted == ["a.bak"]
    assert store.thread("t").load().messages[2] == answered("c1", "a.bak is gone")


def test_the_model_reads_that_edited_arguments_are_invalid(store, agent, deleted) -> None:
    agent.generate(thread_id="t", prompt="Clean up")
    agent.resume(thread_id="t", decision="edit", value={"file": "a"})
    assert deleted == []
    assert "do not fit" in store.thread("t").load().messages[2]["content"]


def test_the_decision_may_be_made_elsewhere(store, agent, deleted) -> None:
    agent.generate(thread_id="t", prompt="Clean up")
    store.thread("t").resume("approve")
    parts = list(agent.stream(thread_id="t"))
    assert deleted == ["a"]
    assert parts[-1].result.interrupt["payload"] == payload("c2", "b")
    store.thread("t").resume("edit", value="no arguments")
    assert agent.generate(thread_id="t").text == "Done."
    assert deleted == ["a"]


def test_a_decision_counts_for_one_call_only(store, agent, deleted) -> None:
    agent.generate(thread_id="t", prompt="Clean up")
    store.thread("t").resume("approve")
    store.thread("t").checkpoint(note="someone saved in between")
    again = agent.generate(thread_id="t")
    assert again.interrupt["payload"] == payload("c1", "a"), "what was approved is not known any more: ask"
    assert deleted == []


def test_a_call_with_a_reused_id_needs_its_own_approval(store, deleted) -> None:
    @tool(needs_approval=True)
    def delete(path: str) -> str:
        deleted.append(path)
        return f"{path} is gone"

    model = Scripted(
        asking(("c1", "delete", {"path": "a"})), asking(("c1", "delete", {"path": "/"})), "Done."
    )
    agent = create_agent(model=model, tools=[delete], checkpointer=store)
    first = agent.generate(thread_id="t", prompt="Clean up")
    second = agent.resume(thread_id="t", decision="approve")
    assert second.interrupt["payload"] == payload("c1", "/")
    assert deleted == ["a"]
    with pytest.raises(Conflict):
        agent.resume(thread_id="t", decision="approve", interrupt_id=first.interrupt["id"])


def test_a_decision_that_does_not_match_is_refused(agent) -> None:
    with pytest.raises(Conflict, match="has no pending interrupt"):
        agent.resume(thread_id="t", decision="approve")
    agent.generate(thread_id="t", prompt="Clean up")
    with pytest.raises(Conflict, match="not 'other'"):
        agent.resume(thread_id="t", decision="approve", interrupt_id="other")
    for wrong in ({"decision": "perhaps"}, {"decision": "edit"}, {"decision": "deny", "value": {}}):
        with pytest.raises(InvalidInput):
            agent.resume(thread_id="t", **wrong)
    with pytest.raises(InvalidInput, match="as a dict"):
        agent.resume(thread_id="t", decision="edit", value="b")
    with pytest.raises(Conflict, match="is waiting for a decision about"):
        agent.generate(thread_id="t", prompt="Hurry up")


def test_approval_needs_a_checkpointer() -> None:
    @tool(needs_approval=lambda arguments: arguments["n"] > 1)
    def risky(n: int) -> int:
        return n

    wants = asking(("c1", "risky", {"n": 1}), ("c2", "risky", {"n": 2}))
    with pytest.raises(InvalidInput, match="needs a checkpointer="):
        create_agent(model=Scripted(wants), tools=[risky]).generate(prompt="Hi")


def test_a_veto_of_an_interrupt_is_an_error(store, agent) -> None:
    store.hooks.add("pre_checkpoint_save", lambda saving: None if saving.pending_interrupt is None else False)
    with pytest.raises(Vetoed, match="pending interrupt"):
        agent.generate(thread_id="t", prompt="Clean up")


def test_an_interrupt_that_cannot_be_saved_is_an_error(store, agent) -> None:
    def fails(saving):
        if saving.pending_interrupt is not None:
            raise StoreFull("the disk is full")

    store.hooks.add("pre_checkpoint_save", fails)
    with pytest.raises(StoreFull):
        agent.generate(thread_id="t", prompt="Clean up")
    assert store.thread("t").load().metadata["status"] == "failed"


def test_nobody_is_asked_to_approve_a_call_over_budget(store) -> None:
    @tool(needs_approval=True)
    def delete(path: str) -> str:
        raise NotImplementedError(path)

    agent = create_agent(
        model=Scripted(asking(("c1", "delete", {"path": "a"})), "Then not."),
        tools=[delete],
        checkpointer=store,
        budgets=Budget(run_by_tool={"delete": 0}),
    )
    assert agent.generate(thread_id="t", prompt="Clean up").text == "Then not."


def test_approval_in_async_code(agent, deleted) -> None:
    async def work():
        first = await agent.agenerate(thread_id="t", prompt="Clean up")
        await agent.aresume(thread_id="t", decision="approve", interrupt_id=first.interrupt["id"])
        return await agent.aresume(thread_id="t", decision="approve")

    assert asyncio.run(work()).text == "Done."
    assert deleted == ["a", "b"]


def test_a_fork_waits_as_its_origin_does(store, agent, deleted) -> None:
    agent.generate(thread_id="t", prompt="Clean up")
    store.thread("t").fork("u")
    agent.resume(thread_id="u", decision="approve")
    assert deleted == ["a"]
    assert store.thread("t").load().pending_interrupt is not None
    assert len(store.thread("t").load().messages) == 2


def test_the_decision_may_come_in_another_process(tmp_path) -> None:
    code = """
import json, sys
from tests.agent.scripted import asking, said
from treering.agent import create_agent, tool

@tool(needs_approval=True)
def delete(path: str) -> str:
    return path + " is gone"

def model(messages, tools):
    if messages[-1]["role"] == "tool":
        return said(messages[-1]["content"])
    return asking(("c1", "delete", {"path": "a"}))

with create_agent(model=model, tools=[delete], checkpointer=sys.argv[1]) as agent:
    result = agent.resume(thread_id="t", decision="approve") if sys.argv[2] == "resume" else agent.generate(
        thread_id="t", prompt="Clean up")
    print(json.dumps([result.text, result.interrupt is not None, result.run_id]))
"""
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code, str(tmp_path / "store"), what],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        )
        for what in ("generate", "resume")
    )
    assert first[:2] == ["", True]
    assert second == ["a is gone", False, first[2]]
