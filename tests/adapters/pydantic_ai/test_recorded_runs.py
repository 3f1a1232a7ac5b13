"""Runs of pydantic-ai agents in the journal: spans, tokens, cost, and the checkpoints that belong to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

import treering
from tests.adapters.pydantic_ai.scripted import scripted
from treering.adapters.pydantic_ai import TreeringCheckpoints, TreeringConversationStore, TreeringRuns
from treering.core.query import EventQuery, each_record


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def ask(agent: Agent[None, Any], prompt: str, **more: Any) -> Any:
    return asyncio.run(agent.run(prompt, **more))  # run_sync would leave its event loop open


def model() -> FunctionModel:
    return FunctionModel(scripted, model_name="gpt-5")


def shapes(store: treering.Store, run: str) -> list[tuple[str, str | None]]:
    store.flush()
    return [(event.type, event.agent) for event in store.timeline.of_run(run).events]


def test_a_run_has_its_model_requests_and_tools_with_tokens_and_cost(store):
    agent = Agent(model(), name="shop", capabilities=[TreeringRuns(store)])

    @agent.tool_plain
    def look_up(word: str) -> str:
        return word.upper()

    result = ask(agent, "Where is it?", conversation_id="alice")
    store.flush()
    run = store.runs.load(result.run_id)
    assert (run.agent, run.thread, run.status) == ("shop", "alice", "ok")
    kinds = [kind for kind, _ in shapes(store, run.id)]
    assert kinds == ["message", "message", "tool.call", "tool.result", "message"]
    total = store.cost.of_run(run.id).total
    assert (total.usage.input, total.usage.cache_read, total.usage.output) == (120, 80, 20)
    assert total.amounts["USD"] > 0
    assert store.verify().ok


def test_checkpoints_record_by_default_and_belong_to_their_run(store):
    conversations = TreeringConversationStore(store)
    agent = Agent(model(), name="shop", capabilities=[TreeringCheckpoints(conversations)])
    result = ask(agent, "hi", conversation_id="alice")
    store.flush()
    saved = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
    assert {each.event.run for each in saved} == {result.run_id}
    assert store.runs.load(result.run_id).thread == "alice"
    quiet = Agent(model(), name="shop", capabilities=[TreeringCheckpoints(conversations, record_runs=False)])
    ask(quiet, "hi", conversation_id="bob")
    store.flush()
    assert [each.id for each in store.runs.each()] == [result.run_id]


def test_both_capabilities_together_record_a_run_once(store):
    conversations = TreeringConversationStore(store)
    agent = Agent(
        model(), name="shop", capabilities=[TreeringRuns(store), TreeringCheckpoints(conversations)]
    )
    result = ask(agent, "hi", conversation_id="alice")
    store.flush()
    assert store.cost.of_run(result.run_id).total.usage.output == 10
    assert len(list(store.runs.each())) == 1


def test_an_agent_that_a_tool_asks_is_part_of_the_run(store):
    helper = Agent(model(), name="helper", capabilities=[TreeringRuns(store)])
    agent = Agent(model(), name="shop", capabilities=[TreeringRuns(store)])

    @agent.tool_plain
    async def consult(word: str) -> str:
        return (await helper.run(word)).output

    result = ask(agent, "hi")
    assert [agent for kind, agent in shapes(store, result.run_id) if kind == "agent.span.start"] == ["helper"]
    by_agent = store.cost.of_run(result.run_id)
    assert {part.key: part.usage.output for part in by_agent.parts} == {"shop": 20, "helper": 10}


def test_a_run_that_waits_for_approval_is_interrupted_and_a_failed_one_says_why(store):
    agent = Agent(
        model(), name="shop", output_type=[str, DeferredToolRequests], capabilities=[TreeringRuns(store)]
    )

    @agent.tool_plain(requires_approval=True)
    def refund(word: str) -> str:
        return word

    waiting = ask(agent, "hi", conversation_id="alice")
    failing = Agent(model(), name="bad", capabilities=[TreeringRuns(store)])

    @failing.tool_plain
    def explode(word: str) -> str:
        raise RuntimeError(f"no {word}")

    with pytest.raises(RuntimeError, match="no ring"):
        ask(failing, "hi", conversation_id="bob")
    store.flush()
    assert store.runs.load(waiting.run_id).status == "interrupted"
    (failed,) = [run for run in store.runs.each() if run.agent == "bad"]
    assert failed.status == "error"
    assert "no ring" in failed.meta["error"]["message"]


async def streamed(agent: Agent) -> str:
    async with agent.run_stream("hi", conversation_id="alice") as stream:
        await stream.get_output()
        return stream.run_id


async def stepped(agent: Agent) -> str:
    async with agent.iter("hi", conversation_id="alice") as run:
        async for _ in run:
            pass
        return run.ctx.state.run_id


@pytest.mark.parametrize("drive", [streamed, stepped])
def test_streams_and_iterations_are_recorded_as_well(store, drive):
    agent = Agent(TestModel(custom_output_text="done"), name="shop", capabilities=[TreeringRuns(store)])
    run_id = asyncio.run(drive(agent))
    assert [kind for kind, _ in shapes(store, run_id)] == ["message", "message"]
    assert store.runs.load(run_id).status == "ok"
