"""Tool calls of LangChain agents and LangGraph's tool nodes happen once."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import treering
from treering.adapters.langchain import EffectMiddleware
from treering.adapters.langgraph import TreeringSaver
from treering.effects import Outcome
from treering.errors import InvalidInput
from treering.runs.tree import RunCancelled

WHERE: Any = {"configurable": {"thread_id": "t"}}


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - LangChain's signature
        return self


def asking(name="pay", *orders):
    calls = [{"name": name, "args": {"order": each}, "id": f"call-{each}"} for each in orders or ("1",)]
    return AIMessage("", tool_calls=calls)


class Shop:
    """Tools that pay, and that can die after a payment."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.dies: type[BaseException] | None = None
        self.keys: list[str] = []

    def tools(self) -> list[Any]:
        @tool
        def pay(order: str) -> str:
            """Pay."""
            return self.pay(order)

        @tool
        def pay_once(order: str, idempotency_key: Annotated[str, InjectedToolArg]) -> str:
            """Pay under a key."""
            self.keys.append(idempotency_key)
            if idempotency_key not in self.keys[:-1]:
                self.paid.append(order)
            return self.end(order)

        @tool
        def note(order: str) -> Command:
            """Write something into the state."""
            self.paid.append(order)
            self.end(order)
            return Command(update={"messages": [ToolMessage(f"noted {order}", tool_call_id=f"call-{order}")]})

        return [pay, pay_once, note]

    def pay(self, order: str) -> str:
        self.paid.append(order)
        return self.end(order)

    def end(self, order: str) -> str:
        if self.dies is not None:
            error, self.dies = self.dies, None
            raise error("lost")
        return f"paid {order}"


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def graph_of(store, shop, *replies, saver=None, **options):
    model = Scripted(messages=iter([*replies, AIMessage("done")]))
    middleware = EffectMiddleware(store, **options)
    return create_agent(
        model, shop.tools(), middleware=[middleware], checkpointer=saver or TreeringSaver(store)
    )


def run(graph, given, where=WHERE, **options):
    return graph.invoke(given, where, **options)


def prompt(text="pay") -> Any:
    return {"messages": [("user", text)]}


def die(graph, shop):
    shop.dies = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        run(graph, prompt(), durability="sync")


def last_results(state):
    return [each.content for each in state["messages"] if isinstance(each, ToolMessage)]


def test_a_call_is_recorded_with_its_result(store, shop) -> None:
    run(graph_of(store, shop, asking()), prompt())
    (effect,) = store.effects.list(thread_id="t")
    assert (effect.tool, effect.status, effect.arguments, effect.call_id) == (
        "pay",
        "done",
        {"order": "1"},
        "call-1",
    )
    assert effect.result["content"] == "paid 1"


def test_no_call_of_a_cancelled_run_begins(store, shop) -> None:
    graph = graph_of(store, shop, asking())
    with store.run("teller") as recorded:
        store.flush()
        store.runs.cancel(recorded.id)
        with pytest.raises(RunCancelled):
            run(graph, prompt(), durability="sync")
    (effect,) = store.effects.list(run_id=recorded.id)
    assert (effect.attempt, shop.paid) == (0, [])


def test_parallel_calls_are_separate_effects(store, shop) -> None:
    run(graph_of(store, shop, asking("pay", "1", "2", "3")), prompt())
    assert sorted(each.arguments["order"] for each in store.effects.list(thread_id="t")) == ["1", "2", "3"]
    assert sorted(shop.paid) == ["1", "2", "3"]


@pytest.mark.parametrize(
    "answer, paid, result",
    [
        ({"decision": "approve"}, ["1", "1"], "paid 1"),
        ({"decision": "deny"}, ["1"], "the call was given up"),
        ({"decision": "edit", "value": "tx_81"}, ["1"], "tx_81"),
    ],
)
def test_a_call_that_nobody_knows_interrupts_the_graph(store, shop, answer, paid, result) -> None:
    die(graph_of(store, shop, asking()), shop)
    again = graph_of(store, shop)
    waiting = run(again, None)
    (asked,) = waiting["__interrupt__"]
    assert asked.value["tool_call"] == {"id": "call-1", "name": "pay", "arguments": {"order": "1"}}
    assert shop.paid == ["1"]
    assert last_results(run(again, Command(resume=answer))) == [result]
    assert shop.paid == paid


def test_a_decision_elsewhere_lets_the_graph_go_on(store, shop) -> None:
    die(graph_of(store, shop, asking()), shop)
    (unknown,) = store.effects.unknown(thread_id="t")
    store.effects.resolve(unknown.id, happened=True, result="tx_81", by="bob")
    assert last_results(run(graph_of(store, shop), None)) == ["tx_81"]
    assert shop.paid == ["1"]


def test_a_tool_with_a_key_is_called_again_with_the_same_key(store, shop) -> None:
    die(graph_of(store, shop, asking("pay_once")), shop)
    assert last_results(run(graph_of(store, shop), None)) == ["paid 1"]
    (effect,) = store.effects.list(thread_id="t")
    assert shop.keys == [effect.key, effect.key]
    assert shop.paid == ["1"]


def test_a_probe_decides_without_a_person(store, shop) -> None:
    die(graph_of(store, shop, asking()), shop)
    probes = {"pay": lambda effect: Outcome(happened=effect.arguments["order"] in shop.paid, result="found")}
    assert last_results(run(graph_of(store, shop, probes=probes), None)) == ["found"]
    assert shop.paid == ["1"]


def test_a_safe_tool_is_called_again_and_leaves_no_effect(store, shop) -> None:
    die(graph_of(store, shop, asking(), replay={"pay": "safe"}), shop)
    run(graph_of(store, shop, replay={"pay": "safe"}), None)
    assert shop.paid == ["1", "1"]
    assert list(store.effects.list()) == []


def test_a_result_whose_checkpoint_was_lost_is_returned_and_not_computed(store, shop) -> None:
    """A tool that updates the state, on a saver that is copied before its result is stored."""
    saver = InMemorySaver()
    graph = graph_of(store, shop, asking("note"), saver=saver)
    run(graph, prompt(), durability="sync")
    before = next(each for each in graph.get_state_history(WHERE) if each.next == ("tools",))
    again = graph_of(store, shop, saver=saver)
    assert last_results(run(again, None, before.config)) == ["noted 1"]
    assert shop.paid == ["1"]


def test_async_graphs_make_each_call_once_too(store, shop) -> None:
    async def whole() -> Any:
        graph = graph_of(store, shop, asking("pay_once"))
        shop.dies = OSError
        with pytest.raises(OSError, match="lost"):
            await graph.ainvoke(prompt(), WHERE)
        return await graph_of(store, shop).ainvoke(None, WHERE)

    assert last_results(asyncio.run(whole())) == ["paid 1"]
    assert shop.paid == ["1"]
    (effect,) = store.effects.list(thread_id="t")
    assert effect.attempt == 2


def test_async_graphs_ask_a_person(store, shop) -> None:
    async def whole() -> Any:
        shop.dies = OSError
        with pytest.raises(OSError, match="lost"):
            await graph_of(store, shop, asking()).ainvoke(prompt(), WHERE)
        again = graph_of(store, shop)
        assert (await again.ainvoke(None, WHERE))["__interrupt__"]
        return await again.ainvoke(Command(resume={"decision": "edit", "value": "tx_1"}), WHERE)

    assert last_results(asyncio.run(whole())) == ["tx_1"]
    assert shop.paid == ["1"]


def test_without_a_stored_reply_nothing_is_called(store, shop, monkeypatch) -> None:
    monkeypatch.setattr("treering.adapters.langchain.middleware._CHECKPOINT_SECONDS", 0.05)
    with pytest.raises(InvalidInput, match="durability='sync'"):
        run(graph_of(store, shop, asking()), prompt(), durability="exit")
    assert shop.paid == []


def test_an_answer_that_is_no_decision_is_refused(store, shop) -> None:
    die(graph_of(store, shop, asking()), shop)
    again = graph_of(store, shop)
    run(again, None)
    with pytest.raises(InvalidInput, match="approve"):
        run(again, Command(resume="maybe"))
    assert shop.paid == ["1"]
