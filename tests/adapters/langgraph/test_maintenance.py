"""What the saver keeps, what it removes, and what it refuses to make up."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Annotated

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from typing_extensions import TypedDict

import treering
from tests.adapters.langgraph.scripts import config, put
from treering.adapters.langgraph import TreeringSaver, TreeringStore
from treering.adapters.langgraph.channels import REMOVE_ALL
from treering.adapters.langgraph.values import DeltaSnapshot
from treering.core.query import Erasure, EventQuery
from treering.errors import Conflict, Corrupt, InvalidInput
from treering.graphs.graph import Graphs
from treering.threads.hooks import HOOK_NAMES, CheckpointEvent, SaveRequest


def joined(state, writes):
    return [*state, *(each for write in writes for each in write)]


class Deltas(TypedDict):
    seen: Annotated[list, DeltaChannel(joined, snapshot_frequency=5)]


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


def deltas(saver):
    builder = StateGraph(Deltas)
    builder.add_node("work", lambda state: {"seen": [f"{len(state['seen'])}"]})
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


# Delta channels
def test_delta_channels_are_rebuilt(store):
    for number in range(14):
        state = deltas(TreeringSaver(store)).invoke({"seen": [f"in {number}"]}, config())
    assert len(state["seen"]) == 28
    graph = deltas(TreeringSaver(store))
    assert graph.get_state(config()).values == state
    sizes = [len(each.values.get("seen", [])) for each in graph.get_state_history(config())]
    assert sizes[0] == 28
    assert sorted(sizes, reverse=True) == sizes


def test_a_branch_of_a_delta_channel_does_not_replay_the_branch_that_was_left(store):
    graph = deltas(TreeringSaver(store))
    graph.invoke({"seen": ["one"]}, config())
    graph.invoke({"seen": ["two"]}, config())
    thread = store.thread("alice")
    thread.rewind(1)
    state = deltas(TreeringSaver(store)).invoke({"seen": ["other"]}, config())
    assert state["seen"] == ["one", "1", "other", "3"]
    assert deltas(TreeringSaver(store)).get_state(config()).values == state


def test_pruning_keeps_what_a_delta_channel_is_made_of(store):
    saver = TreeringSaver(store)
    for number in range(7):
        state = deltas(saver).invoke({"seen": [f"in {number}"]}, config())
    before = len(list(saver.list(config())))
    saver.prune(["alice"])
    assert 1 < len(list(saver.list(config()))) < before
    assert deltas(TreeringSaver(store)).get_state(config()).values == state
    assert store.verify().ok


def test_a_severed_past_is_an_error_and_never_an_empty_state(store):
    saver = TreeringSaver(store)
    for number in range(3):
        deltas(saver).invoke({"seen": [f"in {number}"]}, config())
    records = store.engine.scan(store.space, EventQuery(kinds=("checkpoint",))).records
    store.engine.erase(store.space, Erasure(event_seqs=tuple(each.seq for each in records[:-1])))
    with pytest.raises(Corrupt, match="lost its parent"):
        deltas(TreeringSaver(store)).get_state(config())


def test_a_lost_checkpoint_is_an_error_and_never_a_new_thread(store):
    saver = TreeringSaver(store)
    put(saver, {"x": 1})
    records = store.engine.scan(store.space, EventQuery(kinds=("checkpoint",))).records
    store.engine.erase(store.space, Erasure(event_seqs=(records[-1].seq,)))
    with pytest.raises(Corrupt, match="not stored"):
        TreeringSaver(store).get_tuple(config())


def test_the_list_that_views_show_of_a_delta_channel_is_exact_or_absent(store):
    def saved(saver, parent, since, **values):
        metadata = (
            {"step": since, "counters_since_delta_snapshot": {"messages": (since, since)}} if since else {}
        )
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = values
        checkpoint["channel_versions"] = {"messages": since + 1}
        return saver.put(parent, checkpoint, metadata, {"messages": since + 1})

    def shown():
        return [each["id"] for each in store.thread("alice").load().messages]

    one, other = TreeringSaver(store), TreeringSaver(store)
    where = saved(one, config(checkpoint_ns=""), 0, messages=DeltaSnapshot([HumanMessage("a", id="a")]))
    one.put_writes(where, [("messages", [AIMessage("b", id="b"), AIMessage("c", id="c")])], "task")
    where = saved(one, where, 1)
    assert shown() == ["a", "b", "c"]
    one.put_writes(where, [("messages", [RemoveMessage(id="b"), AIMessage("C", id="c")])], "task")
    where = saved(one, where, 2)
    assert shown() == ["a", "c"]
    assert "messages" not in one.get(where)["channel_values"]
    one.put_writes(where, [("messages", [AIMessage("d", id="d")])], "task")
    one.get_tuple(where)  # commits what waits
    other.get_tuple(where)
    where = saved(other, where, 3)
    assert shown() == []
    assert REMOVE_ALL == REMOVE_ALL_MESSAGES
    history = one.get_delta_channel_history(config=where, channels=["messages"])["messages"]
    assert history["seed"] == DeltaSnapshot([HumanMessage("a", id="a")])
    assert [len(value) for _, _, value in history["writes"]] == [2, 2, 1]


# Removing
def test_pruning_keeps_the_newest_state_and_gives_space_back(store):
    saver = TreeringSaver(store)
    where, messages = None, []
    for number in range(30):
        messages = [*messages, HumanMessage("x" * 500, id=f"{number}")]
        where = put(saver, {"messages": messages, "files": {"a": "y" * 5000 + str(number)}}, parent=where)
    bytes_before = sum(store.stats().bytes.values())
    saver.prune(["alice"])
    assert len(list(saver.list(config()))) == 1
    assert TreeringSaver(store).get(config())["channel_values"]["messages"] == messages
    assert sum(store.stats().bytes.values()) < bytes_before
    assert [each.step for each in store.thread("alice").history()] == [0]
    put(saver, {"messages": [*messages, HumanMessage("more", id="more")]}, parent=where)
    assert len(TreeringSaver(store).get(config())["channel_values"]["messages"]) == 31


def test_deleting_the_run_at_the_head_moves_the_head_back(store):
    saver = TreeringSaver(store)
    first = put(saver, {"x": 1}, metadata={"step": 0, "run_id": "a"})
    put(saver, {"x": 2}, parent=first, metadata={"step": 1, "run_id": "b"})
    saver.delete_for_runs(["b"])
    assert saver.get(config())["channel_values"] == {"x": 1}
    assert TreeringSaver(store).get(config())["channel_values"] == {"x": 1}


@pytest.mark.parametrize("remove", ["delete_for_runs", "prune"])
def test_removing_goes_on_when_a_graph_that_still_runs_saves_meanwhile(store, monkeypatch, remove):
    saver, running = TreeringSaver(store), TreeringSaver(store)
    first = put(saver, {"x": 1}, metadata={"step": 0, "run_id": "a"})
    second = put(saver, {"x": 2}, parent=first, metadata={"step": 1, "run_id": "b"})
    unsaved = [True]
    find_head = Graphs.head

    def save_once(self, key):
        found = find_head(self, key)
        if unsaved and unsaved.pop():
            put(running, {"x": 3}, parent=second, metadata={"step": 2, "run_id": "b"})
            list(running.list(config()))  # commits what waits
        return found

    monkeypatch.setattr(Graphs, "head", save_once)
    saver.delete_for_runs(["b"]) if remove == "delete_for_runs" else saver.prune(["alice"])
    monkeypatch.undo()
    expected = {"x": 1} if remove == "delete_for_runs" else {"x": 3}
    assert TreeringSaver(store).get(config())["channel_values"] == expected
    assert store.verify().ok


def test_a_copy_does_not_depend_on_its_source(store):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": [HumanMessage("a", id="a")], "files": {"f": "y" * 9000, "g": "z"}})
    saver.put_writes(where, [("messages", [AIMessage("b" * 9000, id="b")]), ("n", 1)], "task", "path")
    where = put(saver, {"messages": [HumanMessage("a", id="a"), AIMessage("b" * 9000, id="b")]}, parent=where)
    source = list(saver.list(config()))
    saver.copy_thread("alice", "bob")
    with pytest.raises(Conflict):
        saver.copy_thread("alice", "bob")
    saver.delete_thread("alice")
    copied = list(TreeringSaver(store).list(config("bob")))
    assert [each.checkpoint for each in copied] == [each.checkpoint for each in source]
    assert [each.pending_writes for each in copied] == [each.pending_writes for each in source]
    assert store.verify().ok


def test_a_thread_with_forks_is_not_deleted_by_accident(store):
    saver = TreeringSaver(store)
    put(saver, {"messages": [HumanMessage("a", id="a")]})
    store.thread("alice").fork("bob")
    with pytest.raises(Conflict, match=r"forks in .* share this past"):
        saver.delete_thread("alice")
    assert saver.get(config()) is not None


def test_putting_a_checkpoint_again_replaces_it(store):
    saver = TreeringSaver(store)
    first = put(saver, {"x": 1})
    checkpoint = saver.get(first)
    again = {**checkpoint, "channel_values": {"x": 2}}
    saver.put(config(checkpoint_ns=""), checkpoint, {"source": "loop", "step": 0}, {"x": 1})
    assert len(list(saver.list(config()))) == 1
    saver.put(config(checkpoint_ns=""), again, {"source": "loop", "step": 0}, {"x": 1})
    assert [each.checkpoint["channel_values"] for each in TreeringSaver(store).list(config())] == [{"x": 2}]
    assert TreeringSaver(store).get(config())["channel_values"] == {"x": 2}


# Configs
def test_an_empty_checkpoint_id_is_the_newest(store):
    graph = deltas(TreeringSaver(store))
    for number in range(4):
        graph.invoke({"seen": [number]}, config())
    saver = TreeringSaver(store)
    newest, none = config(checkpoint_ns=""), config(checkpoint_ns="", checkpoint_id="")
    assert saver.get_tuple(none) == saver.get_tuple(newest)
    assert list(saver.list(none)) == list(saver.list(newest, before=none)) == list(saver.list(newest))
    history = saver.get_delta_channel_history(config=newest, channels=["seen"])
    assert saver.get_delta_channel_history(config=none, channels=["seen"]) == history
    assert history["seen"]["writes"]
    assert asyncio.run(saver.aget_delta_channel_history(config=none, channels=["seen"])) == history
    saved = put(saver, {"x": 1}, parent=config("bob", checkpoint_ns="", checkpoint_id=""))
    assert saver.get_tuple(saved).parent_config is None


@pytest.mark.parametrize("missing", [{}, {"checkpoint_id": ""}, {"checkpoint_id": None}])
def test_writes_on_no_checkpoint_are_refused(store, missing):
    saver, where = TreeringSaver(store), config(checkpoint_ns="", **missing)
    put(saver, {"x": 1})
    with pytest.raises(InvalidInput, match="no checkpoint to write on"):
        saver.put_writes(where, [("x", 2)], "task")
    with pytest.raises(InvalidInput, match="no checkpoint to write on"):
        asyncio.run(saver.aput_writes(where, [("x", 2)], "task"))


@pytest.mark.parametrize("kind", [TreeringSaver, TreeringStore])
def test_setup_may_be_called_and_awaited_as_on_langgraphs_own(store, kind):
    made = kind(store)

    async def awaited():
        await made.setup()
        await made.asetup()

    for _ in range(2):
        made.setup()
        asyncio.run(awaited())
    assert TreeringSaver(store).get_tuple(put(TreeringSaver(store), {"x": 1})) is not None


# Filters
def test_filters_are_compared_and_never_become_sql(store):
    saver = TreeringSaver(store)
    hostile = "x') OR 1=1 --"
    put(saver, {"x": 1}, metadata={"step": 0, hostile: "yes", "nested": {"a": [1]}})
    put(saver, {"x": 2}, metadata={"step": 1}, thread="bob")

    def found(wanted):
        return [each.checkpoint["channel_values"]["x"] for each in saver.list(None, filter=wanted)]

    assert found({hostile: "yes"}) == [1]
    assert found({"x') OR 1=1 OR ('": 1}) == []
    assert found({"nested": {"a": [1]}}) == [1]
    assert found({"step": 1}) == [2]
    assert found({"missing": None}) == [2, 1]


def test_metadata_is_listed_without_the_content(store):
    saver = TreeringSaver(store)
    where = put(
        saver, {"x": 1}, metadata={"step": 0, "_graph": "mine", "forked_from": "me", "when": date(2026, 1, 2)}
    )
    put(saver, {"x": 2}, parent=where, metadata={"step": 1})
    put(saver, {"x": 3}, parent=config(checkpoint_ns="child"), metadata={"step": 7})
    listed = [(each.checkpoint["id"], each.metadata) for each in saver.list(config(checkpoint_ns=""))]
    assert saver.metadata(config()) == listed
    assert listed[1][1] == {"step": 0, "_graph": "mine", "forked_from": "me", "when": date(2026, 1, 2)}
    assert [each[1] for each in saver.metadata(config(checkpoint_ns="child"))] == [{"step": 7}]


# Hooks
def test_hooks_of_the_store_fire_for_the_saver(store):
    seen: list[str] = []

    def stamp(saving):
        seen.append(f"saving {len(saving.checkpoint.messages)}")
        if saving.messages and saving.messages[-1]["content"] == "secret":
            return False
        return {"metadata": {**saving.metadata, "stamped": True}}

    def redact(saving):
        if saving.messages:
            return {
                "messages": [
                    {**each, "content": each["content"].replace("4711", "****")} for each in saving.messages
                ]
            }
        return None

    store.hooks.add("pre_checkpoint_save", stamp, redact)
    store.hooks.add("post_checkpoint_save", lambda saved: seen.append(f"saved {saved.checkpoint.step}"))
    store.hooks.add("post_checkpoint_load", lambda saved: seen.append(f"loaded {saved.thread_id}"))
    saver = TreeringSaver(store)
    where = put(saver, {"messages": [HumanMessage("my pin is 4711", id="1")]}, metadata={"step": 0})
    vetoed = put(
        saver,
        {"messages": [HumanMessage("my pin is 4711", id="1"), HumanMessage("secret", id="2")]},
        parent=where,
    )
    assert saver.get_tuple(config()).metadata == {"step": 0, "stamped": True}
    third = [HumanMessage("my pin is 4711", id="1"), HumanMessage("fine", id="3")]
    put(saver, {"messages": third}, parent=vetoed, metadata={"step": 2})
    kept = TreeringSaver(store).get_tuple(config())
    assert kept.checkpoint["channel_values"]["messages"][0] == HumanMessage("my pin is ****", id="1")
    assert kept.parent_config == where
    assert seen == ["saving 1", "saved 0", "saving 2", "loaded alice", "saving 2", "saved 2", "loaded alice"]


def test_async_hooks_are_awaited_whether_the_graph_is_or_not(store):
    """A graph that is awaited runs them in its own loop; a plain one in a loop of ours."""
    seen = []

    async def hook(result):
        await asyncio.sleep(0)
        seen.append((type(result), asyncio.get_running_loop()))
        return {"metadata": {**result.metadata, "stamped": True}} if isinstance(result, SaveRequest) else None

    for name in HOOK_NAMES:
        store.hooks.add(name, hook)
    graph = deltas(TreeringSaver(store))

    async def awaited():
        await graph.ainvoke({"seen": ["in"]}, config("awaited"))
        await graph.aget_state(config("awaited"))
        return asyncio.get_running_loop()

    loop = asyncio.run(awaited())
    steps = [SaveRequest, CheckpointEvent] * 3
    assert seen == [(each, loop) for each in (*steps, CheckpointEvent)]
    seen.clear()
    graph.invoke({"seen": ["in"]}, config("plain"))
    graph.get_state(config("plain"))
    assert [each for each, _ in seen] == [*steps, CheckpointEvent]
    for thread in ("awaited", "plain"):
        assert all(each.metadata["stamped"] for each in graph.get_state_history(config(thread)))
