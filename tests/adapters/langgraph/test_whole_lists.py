"""Channels without a reducer: a node returns the whole list, and only what is new in it is stored."""

from __future__ import annotations

from io import BytesIO
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph

import treering
from tests.adapters.langgraph.scripts import config
from tests.importers.jsonl_histories import exported
from treering.adapters.langgraph import TreeringSaver
from treering.core.query import EventQuery
from treering.importers.jsonl_import import import_jsonl

TEXT = "word " * 100


class Talk(TypedDict):
    said: list
    turn: int


def message(number: int) -> Any:
    return AIMessage(f"{number} {TEXT}", id=str(number))


def plain(number: int) -> Any:
    return {"role": "assistant", "content": f"{number} {TEXT}"}


def talked(store, make, turns: int, said=lambda so_far, new: [*so_far, new]):
    def speak(state: Talk):
        return {"said": said(state["said"], make(state["turn"])), "turn": state["turn"] + 1}

    builder = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", lambda state: END if state["turn"] >= turns else "speak")
    graph = builder.compile(checkpointer=TreeringSaver(store))
    graph.invoke({"said": [], "turn": 0}, {**config(), "recursion_limit": turns + 9}, durability="sync")
    return graph


def stored_bytes(store) -> int:
    """All that the writes of a thread brought: their rows, and the contents that no list of theirs holds."""
    total = 0
    for record in store.engine.scan(store.space, EventQuery(kinds=("writes",)), limit=1000).records:
        event = record.event
        total += len(event.data or b"")
        own = [link for link in event.links if link.startswith("s:")]
        total += sum(len(each.data) for each in store.engine.get(store.space, own))
        if event.body is not None:
            total += len(store.engine.get(store.space, [event.body])[0].data)
    return total


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("make", [message, plain])
def test_what_a_node_returns_whole_costs_what_is_new_in_it(store, make):
    turns = 60
    talked(store, make, turns)
    whole = sum(range(turns)) * len(TEXT)
    assert stored_bytes(store) < whole / 8


@pytest.mark.parametrize("make", [message, plain])
def test_every_checkpoint_of_a_whole_list_comes_back(store, make):
    graph = talked(store, make, 30)
    expected = [make(number) for number in range(30)]
    reader = graph.builder.compile(checkpointer=TreeringSaver(store))
    checkpoints = list(reader.get_state_history(config()))
    assert [checkpoint.values.get("said", []) for checkpoint in checkpoints[:31]] == [
        expected[:count] for count in range(30, -1, -1)
    ]
    for found in TreeringSaver(store).list(config()):
        for _, channel, value in found.pending_writes:
            if channel == "said":
                assert value == expected[: len(value)]


@pytest.mark.parametrize("make", [message, plain])
def test_a_whole_list_that_was_cut_or_changed_comes_back_as_it_was_written(store, make):
    def said(so_far, new):
        if len(so_far) % 4 == 3:
            return [*so_far[:1], new]
        if len(so_far) % 5 == 4:
            return [new, *so_far]
        return [*so_far, new]

    talked(store, make, 40, said)
    expected = [[]]
    for number in range(40):
        expected.append(said(expected[-1], make(number)))
    saved = list(TreeringSaver(store).list(config()))[::-1][1:]
    assert [found.checkpoint["channel_values"].get("said", []) for found in saved] == expected
    written = [value for found in saved for _, channel, value in found.pending_writes if channel == "said"]
    assert written == expected[1:]


@pytest.mark.parametrize("make", [message, plain])
def test_a_copy_keeps_whole_lists_when_their_thread_goes(store, make):
    talked(store, make, 20)
    saver = TreeringSaver(store)
    before = [found.pending_writes for found in saver.list(config())]
    saver.copy_thread("alice", "copy")
    saver.delete_thread("alice")
    store.gc(grace_seconds=0)
    assert [found.pending_writes for found in TreeringSaver(store).list(config("copy"))] == before


@pytest.mark.parametrize("make", [message, plain])
def test_an_export_takes_whole_lists_along(store, make):
    talked(store, make, 20)
    with treering.open("memory:") as other, treering.open("memory:") as third:
        import_jsonl(BytesIO(exported(store)), other)
        import_jsonl(BytesIO(exported(other)), third)
        for each in (other, third):
            TreeringSaver(each).copy_thread("alice", "copy")
            for thread in ("alice", "copy"):
                assert [found.pending_writes for found in TreeringSaver(each).list(config(thread))] == [
                    found.pending_writes for found in TreeringSaver(store).list(config())
                ]


@pytest.mark.parametrize("make", [message, plain])
def test_pruning_leaves_a_whole_list_that_a_graph_goes_on_with(store, make):
    graph = talked(store, make, 20)
    TreeringSaver(store).prune(["alice"])
    store.gc(grace_seconds=0)
    reader = graph.builder.compile(checkpointer=TreeringSaver(store))
    assert reader.get_state(config()).values["said"] == [make(number) for number in range(20)]
    reader.update_state(config(), {"said": [make(99)]})
    assert TreeringSaver(store).get(config())["channel_values"]["said"] == [make(99)]
    assert store.verify().ok
