"""A checkpoint that is put again is replaced: it says the new thing, and everything else stays as it was.

`InMemorySaver` is asked the same questions.
"""

from __future__ import annotations

import copy
import operator
from typing import Annotated, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

import treering
from tests.adapters.langgraph.scripts import config
from tests.importers.jsonl_histories import bring, exported
from tests.server.running import running
from treering.adapters.langgraph import TreeringSaver
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.server.settings import Settings
from treering.threads.checkpoint import REVISION


@pytest.fixture(params=["memory", "sqlite", "postgres", "gateway"])
def store(request, tmp_path):
    if request.param == "gateway":
        with (
            running(treering.open("memory:"), Settings(calls_per_second=1e6)) as url,
            treering.open(url) as opened,
        ):
            yield opened
        return
    url = {"memory": "memory:", "sqlite": tmp_path / "store"}.get(request.param)
    with treering.open(url or request.getfixturevalue("postgres_url")) as opened:
        yield opened


class State(TypedDict):
    messages: Annotated[list, add_messages]
    steps: Annotated[list, operator.add]
    last: str


class Deltas(TypedDict):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]
    steps: Annotated[
        list, DeltaChannel(lambda old, new: [*old, *(x for y in new for x in y)], snapshot_frequency=2)
    ]
    last: str


def graph_on(saver, schema=State):
    def answer(state):
        number = len(state["messages"])
        return {
            "messages": [AIMessage(f"a{number}", id=f"a{number}")],
            "steps": [number],
            "last": f"{number}",
        }

    builder = StateGraph(schema)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def talk(graph, turns, thread="alice"):
    for number in range(turns):
        message = HumanMessage(f"{thread} h{number}", id=f"{thread} h{number}")
        graph.invoke({"messages": [message]}, config(thread))


def again(saver, found, *, values=None, label="again"):
    """Put a checkpoint that was read once more, with a label and perhaps other values."""
    checkpoint = copy.deepcopy(found.checkpoint)
    new = {}
    for name, value in (values or {}).items():
        version = saver.get_next_version(checkpoint["channel_versions"].get(name), None)
        checkpoint["channel_values"][name] = value
        checkpoint["channel_versions"][name] = new[name] = version
    parent = found.parent_config or config(found.config["configurable"]["thread_id"], checkpoint_ns="")
    return saver.put(parent, checkpoint, {**found.metadata, "label": label}, new)


def says(saver, thread="alice"):
    return [
        (each.config, each.checkpoint, each.metadata, each.parent_config, each.pending_writes)
        for each in saver.list(config(thread))
    ]


@pytest.mark.parametrize("schema", [State, Deltas])
def test_a_middle_checkpoint_that_is_put_again_says_the_new_and_its_children_stay(store, schema):
    graph = graph_on(TreeringSaver(store), schema)
    talk(graph, 4)
    before = list(graph.get_state_history(config()))
    kept = says(TreeringSaver(store))
    saver = TreeringSaver(store)
    for place in (1, 5, 8):
        again(saver, saver.get_tuple(before[place].config), values={"last": f"new {place}"})
    for reader in (saver, TreeringSaver(store)):
        now = says(reader)
        assert len(now) == len(kept)
        for place, (old, new) in enumerate(zip(kept, now, strict=True)):
            if place not in (1, 5, 8):
                assert new == old
                continue
            assert new[2] == {**old[2], "label": "again"}
            assert new[1]["channel_values"]["last"] == f"new {place}"
            assert (new[0], new[3], new[4]) == (old[0], old[3], old[4])
            assert reader.get_tuple(new[0]).checkpoint == new[1]
        assert [each[1] for each in reader.metadata(config())] == [each[2] for each in now]
        assert len(list(reader.list(config(), filter={"label": "again"}))) == 3
    after = list(graph.get_state_history(config()))
    assert [each.values["messages"] for each in after] == [each.values["messages"] for each in before]
    assert store.verify().ok
    thread = store.thread("alice")
    assert [each.metadata.get("label") for each in thread.history()].count("again") == 3
    assert list(thread.history())[1].state["last"] == "new 1"
    assert list(thread.history())[5].metadata["label"] == "again"
    thread.rewind(3)
    talk(graph, 1)
    assert store.verify().ok


def test_the_newest_checkpoint_can_be_put_again(store):
    saver = TreeringSaver(store)
    graph = graph_on(saver)
    talk(graph, 2)
    thread = store.thread("alice")
    assert thread.head.metadata.get("label") is None
    head = saver.get_tuple(config())
    again(TreeringSaver(store), head, values={"messages": [HumanMessage("all else is gone", id="only")]})
    again(saver, saver.get_tuple(config()), label="twice")
    assert saver.get_tuple(config()).metadata["label"] == "twice"
    assert store.thread("alice").load().messages == [
        {"type": "human", "content": "all else is gone", "id": "only"}
    ]
    talk(graph, 1, thread="alice")
    assert graph.get_state(config()).values["messages"][0].content == "all else is gone"
    assert len(graph.get_state(config()).values["messages"]) == 3
    assert store.verify().ok


def test_what_is_put_twice_unchanged_is_stored_once(store):
    saver = TreeringSaver(store, runs=False)
    talk(graph_on(saver), 3)
    rows = store.stats().rows
    for found in list(saver.list(config())):
        parent = found.parent_config or config(checkpoint_ns="")
        for one in (saver, TreeringSaver(store)):
            one.put(parent, found.checkpoint, found.metadata, {})
    assert store.stats().rows == rows


@pytest.mark.parametrize("schema", [State, Deltas])
def test_forks_see_what_was_put_again_and_keep_what_they_put_again_to_themselves(store, schema):
    saver = TreeringSaver(store)
    graph = graph_on(saver, schema)
    talk(graph, 3)
    middle = saver.get_tuple(config()).parent_config
    again(saver, saver.get_tuple(middle), label="before the fork")
    store.thread("alice").fork("bob")
    talk(graph, 1, thread="bob")
    alice = says(saver)
    inside = config("bob", checkpoint_ns="", checkpoint_id=middle["configurable"]["checkpoint_id"])
    assert saver.get_tuple(inside).metadata["label"] == "before the fork"
    for place in (
        inside,
        next(each.config for each in saver.list(config("bob")) if each.metadata["step"] == 7),
    ):
        again(saver, saver.get_tuple(place), label="bob's")
        assert saver.get_tuple(place).metadata["label"] == "bob's"
    ids = [each[0]["configurable"]["checkpoint_id"] for each in says(saver, "bob")]
    assert len(ids) == len(set(ids))
    assert says(saver) == alice
    assert graph.get_state(config("bob")).values["last"] == "7"
    assert store.verify().ok


def test_a_copy_and_a_removal_take_what_was_put_again_along(store):
    saver = TreeringSaver(store)
    graph = graph_on(saver)
    talk(graph, 3)
    middle = saver.get_tuple(saver.get_tuple(config()).parent_config)
    again(saver, middle, values={"last": "the word that was added"})
    saver.copy_thread("alice", "carol")
    assert [each[2] for each in says(saver, "carol")] == [each[2] for each in says(saver)]
    assert [each[1]["channel_values"] for each in says(saver, "carol")] == [
        each[1]["channel_values"] for each in says(saver)
    ]
    saver.prune(["alice"])
    assert len(says(saver)) == 1
    assert revisions(store) == ()
    saver.delete_thread("carol")
    assert says(saver, "carol") == []
    assert store.verify().ok


def revisions(store):
    return store.engine.scan(store.space, EventQuery(kinds=(REVISION,))).records


def test_an_export_has_what_was_put_again(store):
    saver = TreeringSaver(store)
    talk(graph_on(saver), 3)
    again(saver, saver.get_tuple(saver.get_tuple(config()).parent_config), values={"last": "the added word"})
    with treering.open("memory:") as other:
        bring(exported(store), other)
        assert says(TreeringSaver(other)) == says(saver)
        assert revisions(other) == ()
        assert other.verify().ok


@pytest.mark.parametrize("schema, left", [(State, 5), (Deltas, 18)])
def test_retention_drops_what_was_put_again_with_its_checkpoint(store, schema, left):
    saver = TreeringSaver(store)
    talk(graph_on(saver, schema), 6)
    for found in list(saver.list(config()))[3:]:
        again(saver, found)
    state = graph_on(saver, schema).get_state(config()).values
    store.gc(keep=Keep(last=5))
    kept = says(TreeringSaver(store))
    assert len(kept) == left  # all of them if it is made of deltas
    assert graph_on(TreeringSaver(store), schema).get_state(config()).values == state
    assert ["label" in each[2] for each in kept] == [False] * 3 + [True] * (left - 3)
    assert len(revisions(store)) == left - 3
    assert store.verify().ok


class _Both:
    """The same graph on our saver and on LangGraph's own."""

    def __init__(self, store, schema) -> None:
        self.savers = [TreeringSaver(store), InMemorySaver()]
        self.graphs = [graph_on(saver, schema) for saver in self.savers]
        self.turn = 0

    def talk(self, place):
        self.turn += 1
        message = HumanMessage(f"h{self.turn}", id=f"h{self.turn}")
        for saver, graph in zip(self.savers, self.graphs, strict=True):
            kept = list(saver.list(config()))
            where = kept[place % len(kept)].config if kept and place else config()
            graph.invoke({"messages": [message]}, where)

    def again(self, place, *, reread, **values):
        self.turn += 1
        if reread:
            self.savers[0] = TreeringSaver(self.savers[0].store)
            self.graphs[0] = graph_on(self.savers[0], self.graphs[0].builder.state_schema)
        for saver in self.savers:
            kept = list(saver.list(config()))
            again(saver, kept[place % len(kept)], label=f"label {self.turn}", values=values)

    def same(self):
        ours, theirs = (
            self.portrait(saver, graph) for saver, graph in zip(self.savers, self.graphs, strict=True)
        )
        assert ours == theirs

    def portrait(self, saver, graph):
        kept = list(saver.list(config()))
        order = {each.checkpoint["id"]: number for number, each in enumerate(kept)}
        told = []
        for each in kept:
            parent = each.parent_config and order[each.parent_config["configurable"]["checkpoint_id"]]
            state = graph.get_state(each.config)
            told.append((parent, each.metadata, state.values, state.next, state.metadata))
            assert saver.get_tuple(each.config).checkpoint["id"] == each.checkpoint["id"]
        return told


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("talk"), st.integers(0, 6)),
        st.tuples(st.just("label"), st.integers(0, 12), st.booleans()),
        st.tuples(st.just("value"), st.integers(0, 12), st.booleans()),
        st.tuples(st.just("messages"), st.integers(0, 12), st.booleans(), st.integers(0, 3)),
    ),
    min_size=3,
    max_size=12,
)


@pytest.mark.parametrize("schema", [State, Deltas])
@settings(max_examples=25)
@given(steps=STEPS)
def test_putting_any_checkpoints_again_does_the_same_as_in_memory(schema, steps):
    with treering.open("memory:") as store:
        both = _Both(store, schema)
        both.talk(0)
        for name, place, *more in steps:
            if name == "talk":
                both.talk(place)
            elif name == "label":
                both.again(place, reread=more[0])
            elif name == "value":
                both.again(place, reread=more[0], last=f"changed {both.turn}")
            elif schema is State:
                messages = [HumanMessage(f"n{number}", id=f"n{number}") for number in range(more[1])]
                both.again(place, reread=more[0], messages=messages)
            both.same()
        assert store.verify().ok
        for each in store.threads():
            assert list(store.thread(each.id).history())
