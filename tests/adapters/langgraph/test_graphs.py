"""Real LangGraph graphs with scripted models: what a user does with a checkpointer, on every engine."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState, add_messages
from langgraph.types import Command, Send, interrupt

import treering
from tests.adapters.langgraph.scripts import Scripted, config
from treering.adapters.langgraph import TreeringSaver


class Answers(TypedDict):
    answers: Annotated[list[str], operator.add]


class Seen(TypedDict):
    seen: Annotated[list, operator.add]


class Inner(TypedDict):
    steps: Annotated[list[str], operator.add]
    messages: Annotated[list, add_messages]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as opened:
        yield opened


@pytest.fixture
def saver(store):
    return TreeringSaver(store)


def texts(messages):
    return [message.content for message in messages]


def chat(saver):
    def answer(state: MessagesState):
        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def test_a_conversation_goes_on_in_another_saver(store):
    chat(TreeringSaver(store)).invoke({"messages": [HumanMessage("one")]}, config())
    state = chat(TreeringSaver(store)).invoke({"messages": [HumanMessage("two")]}, config())
    assert texts(state["messages"]) == ["one", "answer 1", "two", "answer 3"]
    assert len({message.id for message in state["messages"]}) == 4


def test_the_history_is_the_one_that_langgraph_keeps_in_memory(saver):
    ours, theirs = chat(saver), chat(InMemorySaver())
    for graph in (ours, theirs):
        for text in ("one", "two", "three"):
            graph.invoke({"messages": [HumanMessage(text, id=text)]}, config())
    portraits = [
        [
            (
                texts(each.values.get("messages", [])),
                each.next,
                each.metadata["source"],
                each.metadata["step"],
            )
            for each in graph.get_state_history(config())
        ]
        for graph in (ours, theirs)
    ]
    assert portraits[0] == portraits[1]
    assert len(portraits[0]) == 9


def test_an_interrupt_waits_and_is_answered(saver):
    def ask(state: Answers):  # noqa: ARG001
        return {"answers": [interrupt({"question": "send it?"})]}

    builder = StateGraph(Answers)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    first = graph.invoke({"answers": ["begin"]}, config())
    assert first["__interrupt__"][0].value == {"question": "send it?"}
    waiting = graph.get_state(config())
    assert waiting.next == ("ask",)
    assert waiting.tasks[0].interrupts[0].value == {"question": "send it?"}
    assert graph.invoke(Command(resume="yes"), config())["answers"] == ["begin", "yes"]
    assert graph.get_state(config()).next == ()


def test_parallel_nodes_apply_in_the_order_of_their_paths(saver):
    def spread(state: Seen):  # noqa: ARG001
        return [Send("work", {"number": number}) for number in range(8)]

    builder = StateGraph(Seen)
    builder.add_node("work", lambda given: {"seen": [given["number"]]})
    builder.add_conditional_edges(START, spread, ["work"])
    builder.add_edge("work", END)
    graph = builder.compile(checkpointer=saver)
    assert graph.invoke({"seen": []}, config())["seen"] == list(range(8))
    assert graph.get_state(config()).values["seen"] == list(range(8))


class Telling(TreeringSaver):
    """Tells when something was written."""

    def __init__(self, store):
        super().__init__(store)
        self.written = threading.Event()

    def put_writes(self, config, writes, task_id, task_path=""):
        super().put_writes(config, writes, task_id, task_path)
        if ("seen", ["steady"]) in writes:
            self.written.set()


def test_what_a_finished_task_wrote_survives_the_failure_of_its_neighbour(store):
    saver = Telling(store)
    calls = {"steady": 0, "shaky": 0}

    def steady(state: Seen):  # noqa: ARG001
        calls["steady"] += 1
        return {"seen": ["steady"]}

    def shaky(state: Seen):  # noqa: ARG001
        calls["shaky"] += 1
        if calls["shaky"] == 1:
            assert saver.written.wait(60)
            raise ConnectionError("try again")
        return {"seen": ["shaky"]}

    builder = StateGraph(Seen)
    builder.add_node("steady", steady)
    builder.add_node("shaky", shaky)
    builder.add_edge(START, "steady")
    builder.add_edge(START, "shaky")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(ConnectionError):
        graph.invoke({"seen": []}, config())
    assert sorted(graph.invoke(None, config())["seen"]) == ["shaky", "steady"]
    assert calls == {"steady": 1, "shaky": 2}


def test_time_travel_runs_again_from_an_old_checkpoint(saver):
    graph = chat(saver)
    graph.invoke({"messages": [HumanMessage("one")]}, config())
    graph.invoke({"messages": [HumanMessage("two")]}, config())
    history = list(graph.get_state_history(config()))
    before = next(each for each in history if each.next == ("answer",) and len(each.values["messages"]) == 3)
    again = graph.invoke(None, before.config)
    assert texts(again["messages"]) == ["one", "answer 1", "two", "answer 3"]
    other = graph.update_state(before.config, {"messages": [HumanMessage("and three")]})
    longer = graph.invoke(None, other)
    assert texts(longer["messages"]) == ["one", "answer 1", "two", "and three", "answer 4"]
    assert texts(graph.get_state(history[0].config).values["messages"])[-1] == "answer 3"


def test_messages_may_be_edited_and_removed(saver):
    graph = chat(saver)
    graph.invoke({"messages": [HumanMessage("one", id="1")]}, config())
    graph.update_state(config(), {"messages": [HumanMessage("ONE", id="1")]})
    assert texts(graph.get_state(config()).values["messages"]) == ["ONE", "answer 1"]
    graph.update_state(config(), {"messages": [RemoveMessage(id="1")]})
    assert texts(graph.get_state(config()).values["messages"]) == ["answer 1"]
    assert texts(next(iter(graph.get_state_history(config(), limit=5))).values["messages"]) == ["answer 1"]


def test_subgraphs_keep_a_state_of_their_own(saver):
    def ask(state: Inner):
        return {"steps": [interrupt("inner?")], "messages": [AIMessage(f"inner {len(state['messages'])}")]}

    inner = StateGraph(Inner)
    inner.add_node("first", lambda state: {"steps": ["first"]})  # noqa: ARG005
    inner.add_node("ask", ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("go", id="go")]}, config())
    waiting = graph.get_state(config(), subgraphs=True)
    assert waiting.tasks[0].state.values["steps"] == ["first"]
    within = waiting.tasks[0].state.config["configurable"]["checkpoint_ns"]
    assert within.startswith("inner:")
    done = graph.invoke(Command(resume="yes"), config())
    assert texts(done["messages"]) == ["go", "inner 1"]
    assert {each.config["configurable"]["checkpoint_ns"] for each in saver.list(config())} == {"", within}
    saver.delete_thread("alice")
    assert list(saver.list(config())) == []


def test_an_agent_of_langchain_keeps_its_conversation(saver):
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = create_agent(Scripted(rounds=2), [add], checkpointer=saver)
    state = agent.invoke({"messages": [HumanMessage("count")]}, config())
    assert state["messages"][-1].content == "results: 1, 2"
    kept = create_agent(Scripted(rounds=2), [add], checkpointer=saver).get_state(config()).values
    assert kept["messages"] == state["messages"]
    again = agent.invoke({"messages": [HumanMessage("and now?")]}, config())
    assert again["messages"][-1].content == "results: 1, 2"
    assert len({message.id for message in again["messages"]}) == len(again["messages"]) == 8


def test_async_graphs_use_the_same_object(saver):
    async def talk():
        graph = chat(saver)
        await graph.ainvoke({"messages": [HumanMessage("one")]}, config())
        history = [each async for each in graph.aget_state_history(config())]
        return await graph.aget_state(config()), history

    state, history = asyncio.run(talk())
    assert texts(state.values["messages"]) == ["one", "answer 1"]
    assert len(history) == 3
    assert texts(chat(saver).get_state(config()).values["messages"]) == ["one", "answer 1"]


def test_threads_run_side_by_side(saver):
    async def talk():
        graph = chat(saver)
        await asyncio.gather(
            *(graph.ainvoke({"messages": [HumanMessage(f"hi {n}")]}, config(f"user {n}")) for n in range(12))
        )

    asyncio.run(talk())
    for number in range(12):
        state = chat(saver).get_state(config(f"user {number}"))
        assert texts(state.values["messages"]) == [f"hi {number}", "answer 1"]
