"""Tool calls of pydantic-ai agents happen once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import treering
from treering.adapters.pydantic_ai import TreeringCheckpoints, TreeringConversationStore, TreeringEffects
from treering.effects import EffectUnknown, Outcome


class Shop:
    """Tools that pay, and that can die after a payment."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.schemas: dict[str, Any] = {}
        self.dies = False

    def agent(self, *asked: ToolCallPart, capabilities: list[Any]) -> Agent[None, str]:
        def model(messages: list[Any], info: AgentInfo) -> ModelResponse:
            self.schemas = {each.name: each.parameters_json_schema for each in info.function_tools}
            if any(part.part_kind == "tool-return" for part in messages[-1].parts):
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=list(asked))

        agent = Agent(FunctionModel(model), capabilities=capabilities)

        @agent.tool_plain
        def pay(order: str) -> str:
            self.paid.append(order)
            return self.end(order)

        @agent.tool_plain
        def pay_once(order: str, idempotency_key: str) -> str:
            if idempotency_key not in self.keys:
                self.paid.append(order)
            self.keys.append(idempotency_key)
            return self.end(order)

        return agent

    def end(self, order: str) -> str:
        if self.dies:
            self.dies = False
            raise ConnectionError(f"lost after {order}")
        return f"paid {order}"


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def shop():
    return Shop()


def call(name="pay", *, order="1", id="c1"):
    return ToolCallPart(name, {"order": order}, tool_call_id=id)


def run(store, shop, *asked, **options):
    """Run an agent on the stored conversation, as another process would."""

    async def whole() -> Any:
        conversations = TreeringConversationStore(store)
        agent = shop.agent(
            *asked, capabilities=[TreeringCheckpoints(conversations), TreeringEffects(store, **options)]
        )
        stored = await conversations.load("c")
        if stored is None:
            return await agent.run("pay", conversation=Conversation(conversation_id="c"))
        return await agent.run(conversation=stored)

    return asyncio.run(whole())


def die(store, shop, *asked, **options):
    shop.dies = True
    with pytest.raises(ConnectionError):
        run(store, shop, *asked, **options)


def returns(result):
    parts = (part for message in result.all_messages() for part in message.parts)
    return [part.content for part in parts if part.part_kind == "tool-return"]


def test_a_call_is_recorded_with_its_result(store, shop) -> None:
    run(store, shop, call())
    (effect,) = store.effects.list(thread_id="c")
    assert (effect.tool, effect.status, effect.arguments) == ("pay", "done", {"order": "1"})
    assert (effect.result, effect.call_id) == ("paid 1", "c1")


def test_parallel_calls_are_separate_effects(store, shop) -> None:
    run(store, shop, call(id="a"), call(id="b"), call(order="2", id="c"))
    assert sorted(shop.paid) == ["1", "1", "2"]
    assert len(list(store.effects.list(thread_id="c"))) == 3


def test_a_call_that_nobody_knows_is_not_made_again(store, shop) -> None:
    die(store, shop, call())
    with pytest.raises(EffectUnknown, match="treering effects"):
        run(store, shop)
    (unknown,) = store.effects.unknown(thread_id="c")
    store.effects.resolve(unknown.id, happened=True, result="tx_81")
    assert returns(run(store, shop)) == ["tx_81"]
    assert shop.paid == ["1"]


def test_a_tool_with_a_key_is_called_again_with_the_same_key(store, shop) -> None:
    die(store, shop, call("pay_once"))
    assert returns(run(store, shop)) == ["paid 1"]
    (effect,) = store.effects.list(thread_id="c")
    assert shop.keys == [effect.key, effect.key]
    assert shop.paid == ["1"]
    assert "idempotency_key" not in json.dumps(shop.schemas)


def test_a_probe_decides_without_a_person(store, shop) -> None:
    die(store, shop, call())
    probes = {"pay": lambda effect: Outcome(happened=effect.arguments["order"] in shop.paid, result="found")}
    assert returns(run(store, shop, probes=probes)) == ["found"]
    assert shop.paid == ["1"]


def test_a_safe_tool_is_called_again_and_leaves_no_effect(store, shop) -> None:
    die(store, shop, call(), replay="safe")
    run(store, shop, replay="safe")
    assert shop.paid == ["1", "1"]
    assert list(store.effects.list()) == []
