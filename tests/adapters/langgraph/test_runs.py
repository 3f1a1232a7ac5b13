"""Graphs that save to treering leave runs: their spans, tokens and cost, linked to their checkpoints."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from treering.adapters.langchain import TreeringTracer
from treering.adapters.langgraph import TreeringSaver
from treering.core.query import EventQuery, each_record

ANSWER = {
    "usage_metadata": {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100},
    "response_metadata": {"model_name": "gpt-4o-mini", "model_provider": "openai"},
}
PRICE = (1000 * Decimal("0.15") + 100 * Decimal("0.60")) / 1_000_000


def model(*texts: str) -> Any:
    return GenericFakeChatModel(messages=iter([AIMessage(text, **ANSWER) for text in texts]))


def asking(saver: Any, *texts: str) -> Any:
    """A graph that calls a model, then asks a person."""
    chat = model(*texts)
    builder = StateGraph(MessagesState)
    builder.add_node("talk", lambda state: {"messages": [chat.invoke(state["messages"])]})
    builder.add_node("ask", lambda _: {"messages": [HumanMessage(interrupt("Is that right?"))]})
    builder.add_edge(START, "talk")
    builder.add_edge("talk", "ask")
    return builder.compile(checkpointer=saver, name="team")


def config(thread: str = "alice") -> Any:
    return {"configurable": {"thread_id": thread}}


def said(text: str = "Hello") -> Any:
    return {"messages": [HumanMessage(text)]}


def runs(store: Any) -> list[Any]:
    store.flush()
    return sorted(store.runs.each(), key=lambda run: run.started_at_us)


def checkpoint_runs(store: Any) -> list[str | None]:
    found = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
    return [record.event.run for record in found]


def test_each_call_of_a_graph_is_a_run_of_its_thread_with_its_cost(store):
    graph = asking(TreeringSaver(store), "Hi.")
    graph.invoke(said(), config())
    graph.invoke(Command(resume="yes"), config())
    first, second = runs(store)
    assert (first.agent, first.thread, first.status) == ("team", "alice", "interrupted")
    assert (second.agent, second.thread, second.status) == ("team", "alice", "ok")
    assert store.cost.of_run(first.id).total.amounts == {"USD": PRICE}
    assert store.cost.of_run(second.id).total.amounts == {}
    agents = [event.agent for event in store.timeline.of_run(first.id).events]
    assert {"team", "talk", "ask"} == set(agents)


def test_checkpoints_belong_to_the_run_that_saved_them(store):
    graph = asking(TreeringSaver(store), "Hi.")
    graph.invoke(said(), config())
    graph.invoke(Command(resume="yes"), config())
    first, second = runs(store)
    assert checkpoint_runs(store) == [first.id] * 3 + [second.id]


def test_async_and_streamed_calls_are_recorded_as_well(store):
    async def main() -> None:
        graph = asking(TreeringSaver(store), "Hi.", "Hi.")
        await graph.ainvoke(said(), config("one"))
        async for _ in graph.astream(said(), config("two"), stream_mode="messages"):
            pass

    asyncio.run(main())
    found = runs(store)
    assert [(run.thread, run.status) for run in found] == [("one", "interrupted"), ("two", "interrupted")]
    assert checkpoint_runs(store) == [found[0].id] * 3 + [found[1].id] * 3


def test_calls_at_the_same_time_are_runs_of_their_own(store):
    async def main() -> None:
        graph = asking(TreeringSaver(store), *["Hi."] * 8)
        await asyncio.gather(*(graph.ainvoke(said(), config(f"t{number}")) for number in range(8)))

    asyncio.run(main())
    found = runs(store)
    assert {run.thread for run in found} == {f"t{number}" for number in range(8)}
    assert sorted(checkpoint_runs(store)) == sorted(run.id for run in found for _ in range(3))


def test_graphs_inside_of_a_graph_are_spans_of_its_run(store):
    inner = StateGraph(MessagesState)
    chat = model("Hi.")
    inner.add_node("talk", lambda state: {"messages": [chat.invoke(state["messages"])]})
    inner.add_edge(START, "talk")
    outer = StateGraph(MessagesState)
    outer.add_node("helper", inner.compile(name="helper"))
    outer.add_edge(START, "helper")
    outer.compile(checkpointer=TreeringSaver(store), name="boss").invoke(said(), config())
    (run,) = runs(store)
    assert run.agent == "boss"
    assert set(checkpoint_runs(store)) == {run.id}
    assert "talk" in {event.agent for event in store.timeline.of_run(run.id).events}


def test_a_graph_that_is_called_by_a_graph_with_another_saver_is_not_a_second_run(store):
    saver = TreeringSaver(store)
    inner = asking(saver, "Hi.")
    outer = StateGraph(MessagesState)
    outer.add_node("call", lambda state: {"messages": inner.invoke(state, config("inner"))["messages"][-1:]})
    outer.add_edge(START, "call")
    outer.compile(checkpointer=TreeringSaver(store)).invoke(said(), config("outer"))
    assert [run.thread for run in runs(store)] == ["outer"]


def test_a_tracer_that_the_caller_passes_is_not_doubled(store):
    graph = asking(TreeringSaver(store), "Hi.")
    graph.invoke(said(), {**config(), "callbacks": [TreeringTracer(store, agent="mine")]})
    (run,) = runs(store)
    assert run.agent == "mine"
    assert checkpoint_runs(store) == [run.id] * 3


def test_callbacks_of_the_caller_are_still_called(store):
    class Counts(BaseCallbackHandler):
        models = 0

        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
            self.models += 1

    passed, bound = Counts(), Counts()
    graph = asking(TreeringSaver(store), "Hi.").with_config(callbacks=[bound])
    graph.invoke(said(), {**config(), "callbacks": [passed]})
    assert (passed.models, bound.models) == (1, 1)
    assert len(runs(store)) == 1


def test_inside_a_run_of_ones_own_a_graph_is_part_of_it(store):
    with store.run(agent="mine") as run:
        asking(TreeringSaver(store), "Hi.").invoke(said(), config())
    (found,) = runs(store)
    assert found.id == run.id
    assert set(checkpoint_runs(store)) == {run.id}
    assert store.cost.of_run(run.id).total.amounts == {"USD": PRICE}


def test_a_call_that_fails_is_a_run_that_failed(store):
    def fail(_: Any) -> Any:
        raise ValueError("no such order")

    builder = StateGraph(MessagesState)
    builder.add_node("fail", fail)
    builder.add_edge(START, "fail")
    with pytest.raises(ValueError, match="no such order"):
        builder.compile(checkpointer=TreeringSaver(store)).invoke(said(), config())
    (run,) = runs(store)
    assert run.status == "error"


def test_agents_and_the_functional_api_are_recorded(store):
    saver = TreeringSaver(store)
    create_agent(model("Hi."), [], checkpointer=saver, name="helper").invoke(said(), config("agent"))

    @entrypoint(checkpointer=saver)
    def double(number: int) -> int:
        return number * 2

    assert double.invoke(4, config("function")) == 8
    assert [(run.agent, run.thread) for run in runs(store)] == [
        ("helper", "agent"),
        ("LangGraph", "function"),
    ]


def test_runs_are_of_the_savers_namespace(store):
    asking(TreeringSaver(store, namespace="acme"), "Hi.").invoke(said(), config())
    store.flush()
    (run,) = store.runs.in_namespace("acme").each()
    assert (run.namespace, run.thread) == ("acme", "alice")


def test_without_runs_none_are_recorded(store):
    asking(TreeringSaver(store, runs=False), "Hi.").invoke(said(), config())
    assert runs(store) == []
    assert checkpoint_runs(store) == [None] * 3


def test_a_run_of_a_long_conversation_does_not_store_it_again(store):
    saver = TreeringSaver(store)
    chat = model(*["Hi."] * 3)
    builder = StateGraph(MessagesState)
    builder.add_node("talk", lambda state: {"messages": [chat.invoke(state["messages"])]})
    builder.add_edge(START, "talk")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage(f"CANARY {number}") for number in range(50)]}, config())
    graph.invoke(said("Again."), config())
    for run in runs(store):
        recorded = [
            record.event
            for record in each_record(store.engine, store.space, EventQuery(run=run.id))
            if record.event.kind not in {"checkpoint", "writes"}
        ]
        text = b"".join(event.data or b"" for event in recorded)
        assert text.count(b"CANARY") <= 3
