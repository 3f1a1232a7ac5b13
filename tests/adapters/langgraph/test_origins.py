"""A thread that forks go back to stays, also where they share no content with it but only rows.

A delta channel of plain data is made of what tasks wrote; a question that waits, and the state of a subgraph,
lie in rows of the thread that was forked as well.
"""

from __future__ import annotations

import io
import operator
from typing import Annotated, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import treering
from tests.adapters.langgraph.scripts import config
from tests.importers.jsonl_histories import exported
from treering.adapters.langgraph import TreeringSaver
from treering.errors import Conflict
from treering.importers.jsonl_import import import_jsonl


def added(before: list, writes: list) -> list:
    return [*before, *(item for written in writes for item in written)]


class Steps(TypedDict):
    steps: Annotated[list, DeltaChannel(added, snapshot_frequency=100)]


class Often(TypedDict):
    steps: Annotated[list, DeltaChannel(added, snapshot_frequency=3)]


class Small(TypedDict):
    count: Annotated[int, operator.add]


def walking(saver, schema=Steps):
    builder = StateGraph(schema)
    builder.add_node("walk", lambda state: {"steps": [f"step {len(state['steps'])}"]})
    builder.add_edge(START, "walk")
    return builder.compile(checkpointer=saver)


def asking(saver):
    builder = StateGraph(Small)
    builder.add_node("count", lambda _: {"count": 1})
    builder.add_node("ask", lambda _: {"count": interrupt("how many?")})
    builder.add_edge(START, "count")
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


def walk(graph, *names, thread="alice"):
    for name in names:
        graph.invoke({"steps": [name]}, config(thread))
    return graph.get_state(config(thread)).values["steps"]


def seen(graph, thread):
    return [each.values for each in graph.get_state_history(config(thread))]


def removals(store, saver):
    thread = store.thread("alice")
    return (
        lambda: saver.delete_thread("alice"),
        lambda: saver.prune(["alice"], strategy="delete"),
        thread.delete,
        thread.clean,
        lambda: thread.clean(delete_transcript=False),
        lambda: store.forget(thread="alice"),
    )


def test_an_origin_of_delta_channels_is_not_removed_under_its_forks(store):
    saver = TreeringSaver(store)
    graph = walking(saver)
    path = walk(graph, "north", "east")
    assert path == ["north", "step 1", "east", "step 3"]
    store.thread("alice").fork("bob")
    store.thread("alice").fork("carol", namespace="elsewhere")
    before = seen(graph, "bob")
    for remove in removals(store, saver):
        with pytest.raises(
            Conflict, match="forks in '/thread/bob', 'elsewhere/thread/carol' share this past"
        ):
            remove()
        again = walking(TreeringSaver(store))
        assert seen(again, "bob") == before
        assert seen(again, "alice")[0] == before[0]
    assert walk(graph, "south", thread="bob") == [*path, "south", "step 5"]
    elsewhere = walking(TreeringSaver(store, namespace="elsewhere"))
    assert walk(elsewhere, "west", thread="carol") == [*path, "west", "step 5"]
    assert store.verify().ok


def test_an_origin_goes_when_its_forks_are_gone(store):
    saver = TreeringSaver(store)
    graph = walking(saver)
    walk(graph, "north")
    store.thread("alice").fork("bob")
    store.thread("bob").fork("carol")
    with pytest.raises(Conflict, match="carol"):
        saver.delete_thread("bob")
    for thread in ("carol", "bob", "alice"):
        saver.delete_thread(thread)
        assert seen(graph, thread) == []
    assert store.stats().rows["lists"] == 0
    assert list(store.threads()) == []


def test_cascade_takes_forks_along(store):
    graph = walking(TreeringSaver(store))
    walk(graph, "north")
    store.thread("alice").fork("bob")
    store.thread("bob").fork("carol")
    walk(graph, "alone", thread="dave")
    store.thread("alice").delete(cascade=True)
    assert [each.id for each in store.threads()] == ["dave"]
    assert walking(TreeringSaver(store)).get_state(config("dave")).values["steps"] == ["alone", "step 1"]


def test_copies_and_imports_of_a_fork_hold_on_to_its_origin_too(store):
    saver = TreeringSaver(store)
    graph = walking(saver)
    path = walk(graph, "north")
    store.thread("alice").fork("bob")
    saver.copy_thread("bob", "copy of bob")
    saver.delete_thread("bob")
    with pytest.raises(Conflict, match="copy of bob"):
        saver.delete_thread("alice")
    assert graph.get_state(config("copy of bob")).values["steps"] == path
    with treering.open("memory:") as other:
        import_jsonl(io.BytesIO(exported(store)), other)
        there = TreeringSaver(other)
        with pytest.raises(Conflict, match="copy of bob"):
            there.delete_thread("alice")
        assert walking(there).get_state(config("copy of bob")).values["steps"] == path


def test_a_question_that_a_fork_waits_with_keeps_its_origin(store):
    saver = TreeringSaver(store)
    graph = asking(saver)
    graph.invoke({"count": 0}, config())
    store.thread("alice").fork("bob")
    with pytest.raises(Conflict, match="bob"):
        saver.delete_thread("alice")
    assert graph.invoke(Command(resume=10), config("bob")) == {"count": 11}


def test_cleaning_the_transcript_leaves_what_channels_are_made_of(store):
    graph = walking(TreeringSaver(store, runs=False))
    path = walk(graph, "north")
    assert store.thread("alice").clean(delete_checkpoint=False).transcript_events == 0
    assert walking(TreeringSaver(store)).get_state(config()).values["steps"] == path
    store.thread("alice").clean(delete_transcript=False)
    assert seen(graph, "alice") == []
    assert store.stats().rows["events"] == 1


@pytest.mark.parametrize("schema", [Often, Steps])
def test_retention_keeps_what_delta_channels_are_made_of(store, schema):
    graph = walking(TreeringSaver(store), schema)
    path = walk(graph, *"abcdef")
    before = {
        each.config["configurable"]["checkpoint_id"]: each for each in graph.get_state_history(config())
    }
    collected = store.gc(keep=treering.Keep(last=2), grace_seconds=0)
    assert (collected.dropped == {}) == (schema is Steps)
    again = walking(TreeringSaver(store), schema)
    assert again.get_state(config()).values["steps"] == path
    for each in again.get_state_history(config()):
        assert each == before[each.config["configurable"]["checkpoint_id"]]
    assert walk(again, "g") == [*path, "g", "step 13"]


def test_retention_keeps_what_a_fork_goes_on_from(store):
    saver = TreeringSaver(store)
    graph = asking(saver)
    graph.invoke({"count": 0}, config())
    store.thread("alice").fork("bob")
    graph.invoke(Command(resume=5), config())
    for _ in range(3):
        graph.invoke({"count": 0}, config())
        graph.invoke(Command(resume=5), config())
    assert store.gc(keep=treering.Keep(last=1), grace_seconds=0).dropped["checkpoint"] > 3
    again = asking(TreeringSaver(store))
    assert again.invoke(Command(resume=10), config("bob")) == {"count": 11}


def test_cleaning_a_thread_removes_the_heads_of_its_subgraphs(store):
    """A subgraph with a memory of its own has a head of its own, which must not outlive its checkpoints."""
    inner = StateGraph(Small)
    inner.add_node("count", lambda _: {"count": 1})
    inner.add_edge(START, "count")
    outer = StateGraph(Small)
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    saver = TreeringSaver(store, runs=False)
    graph = outer.compile(checkpointer=saver)
    first = graph.invoke({"count": 1}, config("alice"))
    store.thread("alice").clean()
    assert store.engine.scan_refs(store.space, "") == []
    assert outer.compile(checkpointer=TreeringSaver(store)).invoke({"count": 1}, config("alice")) == first
    assert store.verify().ok
