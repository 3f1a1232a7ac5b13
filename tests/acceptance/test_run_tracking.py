"""Orchestrator: an agent loop is tracked without calling a service in it.

The document wraps the overall execution in a top-level span, tool calls in spans of their own, tracks
messages with tokens and cost, and links tool results to their calls. Here one loop is tracked three ways.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

import treering
from treering.adapters.langchain import TreeringTracer
from treering.compat.services import get_run_cost, get_run_timeline, use

LABELS = [
    "▶ planner",
    "assistant message",
    "call list_items",
    "list_items result",
    "assistant message",
    "■ planner",
]


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def told(store, run_id):
    """Return what Orchestrator's own functions return for the run."""
    store.flush()
    use(store)
    events = [event for event in get_run_timeline(run_id)["events"] if event["label"] != "user message"]
    calls = {event["ref"]["tool_call_id"] for event in events if event["type"] == "tool.call"}
    results = {event["ref"]["tool_result_id"] for event in events if event["type"] == "tool.result"}
    assert {each.partition(":")[0] for each in results} == calls
    assert {event["agent"] for event in events} == {"planner"}
    return [event["label"].split(" (")[0] for event in events], get_run_cost(run_id)


def check(labels, cost):
    assert labels == LABELS
    assert cost["total"]["agent"] is None
    assert [part["agent"] for part in cost["by_agent"]] == ["planner"]
    assert cost["total"]["tokens"] == 300
    assert cost["total"]["cost_eur"] == pytest.approx(0.009)


def test_by_context_managers(store):
    with store.run() as run, run.span("planner") as planner:
        usage = {"prompt": 100, "completion": 50, "total": 150}
        planner.message("assistant", "I look.", model="gpt-4", usage=usage, cost="0.0045", currency="EUR")
        with planner.tool("list_items", {"limit": 3}) as call:
            call.output = ["a", "b"]
        planner.message("assistant", "Two.", model="gpt-4", usage=usage, cost="0.0045", currency="EUR")
    check(*told(store, run.id))


def test_by_decorators_also_awaited(store):
    @store.tool("list_items")
    async def list_items(limit):
        return ["a", "b"][:limit]

    @store.agent("planner")
    async def plan(goal):
        node = treering.runs.span.current_node.get()
        for text in ("I look.", "Two."):
            usage = {"total": 150}
            node.message("assistant", text, model="gpt-4", usage=usage, cost="0.0045", currency="EUR")
            if text == "I look.":
                assert await list_items(3) == ["a", "b"]
        return goal

    async def main():
        with store.run() as run:
            assert await plan("count") == "count"
        return run.id

    check(*told(store, asyncio.run(main())))


class Scripted(BaseChatModel):
    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):  # noqa: ARG002
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):  # noqa: ARG002
        call = {"name": "list_items", "args": {"limit": 3}, "id": "c1", "type": "tool_call"}
        is_done = any(isinstance(message, ToolMessage) for message in messages)
        said = {"content": "Two."} if is_done else {"content": "I look.", "tool_calls": [call]}
        usage = {"input_tokens": 100, "output_tokens": 50, "total_tokens": 150}
        message = AIMessage(**said, usage_metadata=usage, response_metadata={"model_name": "gpt-5"})
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_by_a_frameworks_own_callbacks(store):
    @tool
    def list_items(limit: int) -> list[str]:
        """List items."""
        return ["a", "b"][:limit]

    run_id = uuid4()
    agent = create_agent(Scripted(), [list_items], name="planner")
    agent.invoke({"messages": [("user", "?")]}, {"callbacks": [TreeringTracer(store)], "run_id": run_id})
    labels, cost = told(store, str(run_id))
    assert labels == LABELS
    assert cost["total"]["tokens"] == 300
    # gpt-5: 1.25 $ a million in, 10 $ out, shown in euros
    dollars = store.cost.of_run(str(run_id)).total.amount("USD")
    assert dollars == (200 * Decimal("1.25") + 100 * Decimal(10)) / 1_000_000
    assert cost["total"]["cost_eur"] > 0
