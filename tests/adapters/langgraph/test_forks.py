"""Forks and rewinds of a thread have what a graph had there: delta channels, subgraphs, what tasks wrote."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import MessagesState, _messages_delta_reducer, add_messages
from langgraph.types import Command, interrupt

import treering
from tests.adapters.langgraph.scripts import config
from tests.server.running import remote
from treering.adapters.langgraph import TreeringSaver
from treering.errors import Corrupt


class Changes(TypedDict):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=100)]


class OftenWhole(TypedDict):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


class Inner(TypedDict):
    steps: Annotated[list, operator.add]
    messages: Annotated[list, add_messages]


@pytest.fixture(params=["memory", "sqlite", "remote"])
def store(request, tmp_path):
    if request.param == "remote":
        with remote() as opened:
            yield opened
    else:
        with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
            yield opened


def texts(state):
    return [message.content for message in state["messages"]]


def say(graph, text, thread="alice"):
    return graph.invoke({"messages": [HumanMessage(text, id=text)]}, config(thread))


def changing(saver, schema=Changes):
    """A graph that hands over changes only, as deep agents do."""

    def answer(state: dict):
        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    builder = StateGraph(schema)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def nested(saver, *, keeps: bool | None, asks: bool, calls: list):
    def look(state: Inner):
        calls.append(len(state["steps"]))
        return {"steps": ["looked"]}

    def answer(state: Inner):
        said = interrupt("what now?") if asks else "done"
        return {"steps": [said], "messages": [AIMessage(f"{said} {len(state['steps'])}")]}

    inner = StateGraph(Inner)
    inner.add_node("look", look)
    inner.add_node("answer", answer)
    inner.add_edge(START, "look")
    inner.add_edge("look", "answer")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile(checkpointer=keeps))
    outer.add_edge(START, "inner")
    return outer.compile(checkpointer=saver)


def test_a_fork_keeps_what_delta_channels_are_made_of(store):
    graph = changing(TreeringSaver(store))
    say(graph, "one")
    say(graph, "two")
    alice = ["one", "answer 1", "two", "answer 3"]
    store.thread("alice").fork("bob")
    assert texts(graph.get_state(config("bob")).values) == alice
    assert texts(say(graph, "three", "bob")) == [*alice, "three", "answer 5"]
    store.thread("bob").fork("carol")
    assert texts(say(graph, "four", "carol")) == [*alice, "three", "answer 5", "four", "answer 7"]
    store.thread("alice").fork("dave", at=1)
    assert texts(say(graph, "other", "dave")) == ["one", "answer 1", "other", "answer 3"]
    again = changing(TreeringSaver(store))
    history = [texts(each.values) for each in again.get_state_history(config("carol"))]
    assert history[0] == [*alice, "three", "answer 5", "four", "answer 7"]
    assert [*alice, "three"] in history
    assert history[-1] == []
    assert texts(again.get_state(config()).values) == alice


def test_a_copy_of_a_fork_keeps_what_delta_channels_are_made_of(store):
    saver = TreeringSaver(store)
    graph = changing(saver)
    say(graph, "one")
    store.thread("alice").fork("bob")
    say(graph, "two", "bob")
    saver.copy_thread("bob", "carol")
    saver.delete_thread("bob")
    assert texts(say(graph, "three", "carol"))[:-1] == ["one", "answer 1", "two", "answer 3", "three"]


def test_a_fork_whose_past_was_pruned_is_an_error_and_never_an_empty_state(store):
    saver = TreeringSaver(store)
    graph = changing(saver, OftenWhole)
    say(graph, "one")
    store.thread("alice").fork("bob")
    for text in ("two", "three", "four"):
        say(graph, text)
    assert texts(graph.get_state(config("bob")).values) == ["one", "answer 1"]
    saver.prune(["alice"])
    assert len(texts(graph.get_state(config()).values)) == 8
    with pytest.raises(Corrupt, match="restore it from a backup"):
        graph.get_state(config("bob"))


def test_a_fork_has_the_question_when_it_was_answered_elsewhere_first(store):
    calls: list[str] = []

    def steady(state: MessagesState):  # noqa: ARG001
        calls.append("steady")
        return {"messages": [AIMessage("steady")]}

    def ask(state: MessagesState):  # noqa: ARG001
        return {"messages": [AIMessage(interrupt("really?"))]}

    builder = StateGraph(MessagesState)
    for node in (steady, ask):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    graph = builder.compile(checkpointer=TreeringSaver(store))
    say(graph, "go")
    store.thread("alice").fork("bob")
    assert texts(graph.invoke(Command(resume="yes"), config())) == ["go", "yes", "steady"]
    assert [each.value for each in graph.get_state(config("bob")).interrupts] == ["really?"]
    assert texts(graph.invoke(Command(resume="no"), config("bob"))) == ["go", "no", "steady"]
    assert calls == ["steady"]


@pytest.mark.parametrize("keeps", [None, True])
def test_a_subgraph_that_waits_goes_on_in_a_fork(store, keeps):
    calls: list[int] = []
    graph = nested(TreeringSaver(store), keeps=keeps, asks=True, calls=calls)
    say(graph, "go")
    store.thread("alice").fork("bob")
    store.thread("bob").fork("carol")
    assert texts(graph.invoke(Command(resume="alice's"), config())) == ["go", "alice's 1"]
    for thread in ("bob", "carol"):
        waiting = graph.get_state(config(thread), subgraphs=True)
        assert waiting.tasks[0].state.values["steps"] == ["looked"]
        assert texts(graph.invoke(Command(resume=f"{thread}'s"), config(thread))) == ["go", f"{thread}'s 1"]
    assert calls == [0]


def test_a_subgraph_remembers_in_a_fork_what_it_knew_at_that_checkpoint(store):
    calls: list[int] = []
    graph = nested(TreeringSaver(store), keeps=True, asks=False, calls=calls)
    for text in ("one", "two", "three"):
        say(graph, text)
    store.thread("alice").fork("bob")
    store.thread("alice").fork("carol", at=1)
    say(graph, "four")
    assert texts(say(graph, "five", "bob"))[-1] == "done 7"
    assert texts(say(graph, "six", "bob"))[-1] == "done 9"
    assert texts(say(graph, "five", "carol"))[-1] == "done 3"
    assert texts(say(graph, "five"))[-1] == "done 9"


def test_what_came_before_a_fork_is_listed_before_a_checkpoint(store):
    graph = nested(TreeringSaver(store), keeps=None, asks=False, calls=[])
    say(graph, "one")
    say(graph, "two")
    store.thread("alice").fork("bob")
    say(graph, "three", "bob")
    history = list(graph.get_state_history(config("bob")))
    ids = [each.config["configurable"]["checkpoint_id"] for each in history]
    assert len(set(ids)) == len(ids) == 9
    older = graph.get_state_history(config("bob"), before=history[5].config)
    assert [each.config["configurable"]["checkpoint_id"] for each in older] == ids[6:]


def test_a_subgraph_is_rewound_with_its_thread(store):
    calls: list[int] = []
    graph = nested(TreeringSaver(store), keeps=True, asks=False, calls=calls)
    for text in ("one", "two", "three"):
        say(graph, text)
    thread = store.thread("alice")
    newest = thread.load()
    thread.rewind(1)
    assert texts(say(graph, "four")) == ["one", "done 1", "four", "done 3"]
    thread.load()
    thread.rewind(newest)
    again = nested(TreeringSaver(store), keeps=True, asks=False, calls=calls)
    assert texts(say(again, "five"))[-1] == "done 7"


@pytest.mark.parametrize("has_gone_on", [False, True])
def test_a_subgraph_is_rewound_to_before_the_fork_of_its_thread(store, has_gone_on):
    graph = nested(TreeringSaver(store), keeps=True, asks=False, calls=[])
    for text in ("one", "two", "three"):
        say(graph, text)
    bob = store.thread("alice").fork("bob")
    if has_gone_on:
        assert texts(say(graph, "four", "bob"))[-1] == "done 7"
    at_the_fork = bob.load()
    say(graph, "elsewhere")
    bob.rewind(1)
    inside = graph.get_state(config("bob", checkpoint_ns="inner"))
    assert inside.values["steps"] == ["looked", "done"]
    assert texts(say(graph, "five", "bob")) == ["one", "done 1", "five", "done 3"]
    assert texts(say(graph, "six", "bob"))[-1] == "done 5"
    store.thread("bob").fork("carol")
    assert texts(say(graph, "seven", "carol"))[-1] == "done 7"
    bob.load()
    bob.rewind(at_the_fork)
    again = nested(TreeringSaver(store), keeps=True, asks=False, calls=[])
    assert texts(say(again, "eight", "bob"))[-1] == ("done 9" if has_gone_on else "done 7")
    assert texts(say(again, "nine"))[-1] == "done 9"


@pytest.mark.parametrize("keeps", [None, True])
def test_a_subgraph_runs_again_when_its_thread_was_rewound_to_before_it(store, keeps):
    calls: list[int] = []
    graph = nested(TreeringSaver(store), keeps=keeps, asks=False, calls=calls)
    say(graph, "go")
    store.thread("alice").rewind(0)
    assert graph.get_state(config()).next == ("inner",)
    assert texts(graph.invoke(None, config())) == ["go", "done 1"]
    assert calls == [0, 0]


def test_a_question_of_a_subgraph_is_there_again_when_its_thread_comes_back_to_it(store):
    calls: list[int] = []
    graph = nested(TreeringSaver(store), keeps=None, asks=True, calls=calls)
    say(graph, "one")
    graph.invoke(Command(resume="yes"), config())
    say(graph, "two")
    thread = store.thread("alice")
    waiting = thread.load()
    thread.rewind(1)
    assert graph.get_state(config()).next == ()
    thread.rewind(waiting)
    assert [each.value for each in graph.get_state(config()).interrupts] == ["what now?"]
    assert texts(graph.invoke(Command(resume="no"), config())) == ["one", "yes 1", "two", "no 1"]
    assert calls == [0, 0]
