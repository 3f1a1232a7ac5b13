"""A LangGraph thread goes to another store as JSON lines, and the graph goes on there."""

from __future__ import annotations

import io
from operator import add
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import treering
from tests.importers.jsonl_histories import exported, portrait
from treering.adapters.langgraph import TreeringSaver
from treering.importers.jsonl_import import import_jsonl

CONFIG = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    messages: Annotated[list, add_messages]
    found: Annotated[list, add]


def graph(saver):
    """Two tasks side by side, one of which asks a person inside a graph of its own."""
    inner = StateGraph(State)
    inner.add_node("ask", lambda _: {"messages": [AIMessage(f"paid {interrupt({'pay': 30})}" + "." * 6000)]})
    inner.add_edge(START, "ask")
    inner.add_edge("ask", END)
    outer = StateGraph(State)
    outer.add_node("search", lambda _: {"found": ["x" * 9000], "messages": [AIMessage("found", id="m1")]})
    outer.add_node("pay", inner.compile())
    outer.add_node("end", lambda state: {"messages": [AIMessage(f"done with {len(state['found'])}")]})
    outer.add_edge(START, "search")
    outer.add_edge(START, "pay")
    outer.add_edge(["search", "pay"], "end")
    outer.add_edge("end", END)
    return outer.compile(checkpointer=saver)


@pytest.fixture(params=["durable", "with_checkpoint"])
def source(request):
    with treering.open("memory:") as store, TreeringSaver(store, writes=request.param) as saver:
        graph(saver).invoke({"messages": [("user", "hi")], "found": []}, CONFIG)
        yield store


@pytest.fixture
def target(tmp_path):
    with treering.open(tmp_path / "target", durability="fast") as store:
        yield store


def bring(data, store):
    return {each.holds: (each.found, each.new) for each in import_jsonl(io.BytesIO(data), store).files}


def test_a_graph_that_waits_goes_on_elsewhere(source, target):
    data = exported(source)
    first = bring(data, target)
    assert first["events"][0] == first["events"][1] > 0
    assert set(dict(bring(data, target).values()).values()) == {0}
    assert portrait(target) == portrait(source)
    assert target.verify().ok
    there, here = graph(TreeringSaver(source)), graph(TreeringSaver(target))
    assert here.get_state(CONFIG, subgraphs=True).tasks == there.get_state(CONFIG, subgraphs=True).tasks
    said = [
        [
            (message.type, message.content)
            for message in each.invoke(Command(resume="30 EUR"), CONFIG)["messages"]
        ]
        for each in (there, here)
    ]
    assert said[0] == said[1]
    assert said[1][-1] == ("ai", "done with 1")
    assert len([message for message in said[1] if message[1].startswith("paid 30 EUR")]) == 1


def test_an_export_of_the_import_is_the_same_file_but_for_where_content_lies(source, target):
    data = exported(source)
    bring(data, target)
    with treering.open("memory:") as third:
        bring(exported(target), third)
        assert portrait(third) == portrait(source)
        assert len(exported(target)) == len(data)


def test_finished_histories_come_along_and_so_does_time_travel(source, target):
    there = graph(TreeringSaver(source))
    there.invoke(Command(resume="yes"), CONFIG)
    bring(exported(source), target)
    here = graph(TreeringSaver(target))
    theirs, ours = (list(each.get_state_history(CONFIG)) for each in (there, here))
    assert [each.values for each in ours] == [each.values for each in theirs]
    assert [each.config for each in ours] == [each.config for each in theirs]
    assert [each.tasks for each in ours] == [each.tasks for each in theirs]
    again = next(each for each in ours if each.next == ("end",))
    assert here.invoke(None, again.config)["messages"][-1].content == "done with 1"
