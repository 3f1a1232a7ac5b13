"""LangGraph gives a message its id in place while a thread of its own saves it.

A saver that encodes the message first and looks at it afterwards remembers a message that it never stored,
and the conversation has it twice after a restart. Here encoding is made slow at random places, and every
run is read back by a saver that knows nothing.
"""

from __future__ import annotations

import random
import time

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState

import treering
from tests.adapters.langgraph.scripts import ONE_TASK, config, put
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.langgraph.channels import StoredList
from treering.adapters.langgraph.values import ValueCodec, fingerprint, matches


def graph_of(saver, steps):
    """Messages without ids, which the reducer gives them in place."""

    def work(state: MessagesState):
        number = len(state["messages"])
        return {
            "messages": [
                AIMessage(f"step {number}"),
                ToolMessage(f"result {number}", tool_call_id=f"{number}"),
            ]
        }

    def is_done(state: MessagesState):
        return END if len(state["messages"]) > 2 * steps else "work"

    builder = StateGraph(MessagesState)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", is_done)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("seed", range(6))
def test_no_message_is_kept_twice_or_without_its_id(seed, tmp_path, monkeypatch):
    chance = random.Random(seed)
    encode_message = ValueCodec.encode_message

    def slowly(self, message, known):
        time.sleep(chance.choice((0, 0, 0.0005, 0.002)))
        content = encode_message(self, message, known)
        time.sleep(chance.choice((0, 0, 0.0005)))
        return content

    monkeypatch.setattr(ValueCodec, "encode_message", slowly)
    with treering.open(tmp_path / "store", durability="fast") as store:
        for round_ in range(3):
            graph = graph_of(TreeringSaver(store), steps=8 * (round_ + 1))
            last = graph.invoke({"messages": [HumanMessage(f"go {round_}")]}, config())
            fresh = graph_of(TreeringSaver(store), steps=0).get_state(config()).values["messages"]
            assert fresh == last["messages"]
            ids = [message.id for message in fresh]
            assert None not in ids
            assert len(set(ids)) == len(ids)
        for state in graph_of(TreeringSaver(store), steps=0).get_state_history(config()):
            ids = [message.id for message in state.values.get("messages", [])]
            assert None not in ids
            assert len(set(ids)) == len(ids)


def test_this_test_catches_a_saver_that_looks_after_it_encoded(tmp_path, monkeypatch):
    """The same run with the mistake built in: the fingerprint is taken off the message, too late."""
    extend = StoredList.extend

    def too_late(self, items, fingerprints):  # noqa: ARG001
        for message in items:
            message.content = "changed"
        extend(self, items, [fingerprint(message) for message in items])

    monkeypatch.setattr(StoredList, "extend", too_late)
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver, start, stale = TreeringSaver(store), HumanMessage("start", id="s"), AIMessage("stale", id="a")
        where = _step(saver, [start])
        saver.put_writes(where, [("messages", [stale])], "task")
        _step(saver, [start, stale], where)
        assert TreeringSaver(store).get(config())["channel_values"]["messages"][1].content == "stale"


def _step(saver, messages, parent=None, number=[0]):  # noqa: B006 - one counter for all calls
    number[0] += 1
    metadata = {"step": number[0]}
    return put(saver, {"messages": messages}, parent=parent, metadata=metadata, updated=ONE_TASK)


def test_a_write_that_changes_while_it_is_saved_is_not_taken_for_the_message(tmp_path):
    """The id comes after the write was stored: the list gets the message as it is, not as it was."""
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        message = AIMessage("late", response_metadata={"tokens": [1]})
        saver.put_writes(_step(saver, []), [("messages", [message])], "task")
        message.id = "named"
        message.response_metadata["tokens"].append(2)
        _step(saver, [message])
        assert TreeringSaver(store).get(config())["channel_values"]["messages"] == [message]


def test_a_message_that_was_changed_in_place_is_saved_again(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        messages = [
            AIMessage(f"{number}", id=f"{number}", additional_kwargs={"deep": [{}]}) for number in range(5)
        ]
        _step(saver, messages)
        messages[1].additional_kwargs["deep"][0]["x"] = 1
        _step(saver, messages)
        messages[3].content = [{"type": "text", "text": "changed"}]
        _step(saver, [*messages, HumanMessage("more", id="more")])
        messages[0].new_field = "an extra field"
        _step(saver, [*messages, HumanMessage("more", id="more")])
        history = [
            each.checkpoint["channel_values"]["messages"] for each in TreeringSaver(store).list(config())
        ]
        assert history[0] == [*messages, HumanMessage("more", id="more")]
        assert history[0][0].new_field == "an extra field"
        assert [len(each) for each in history] == [6, 6, 5, 5]
        assert history[3][1].additional_kwargs == {"deep": [{}]}
        assert history[2][1].additional_kwargs == {"deep": [{"x": 1}]}
        assert history[2][3].content == "3"


def test_a_change_is_noticed_at_once_wherever_it_is_in_a_long_list(tmp_path):
    def stored():
        return TreeringSaver(store).get(config())["channel_values"]["messages"]

    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        messages = [HumanMessage(f"{number}", id=f"{number}") for number in range(400)]
        _step(saver, messages)
        messages[7] = HumanMessage("another object", id="7")
        _step(saver, messages)
        assert stored() == messages
        messages[9].content = "the same object"
        _step(saver, [*messages, HumanMessage("more", id="more")])
        assert stored() == [*messages, HumanMessage("more", id="more")]


def test_a_change_inside_a_message_of_long_ago_is_noticed_in_its_turn(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        messages = [HumanMessage(f"{number}", id=f"{number}") for number in range(400)]
        _step(saver, messages)
        messages[9].additional_kwargs["seen"] = True
        for number in range(6):
            messages.append(HumanMessage("more", id=f"more {number}"))
            _step(saver, messages)
        assert TreeringSaver(store).get(config())["channel_values"]["messages"] == messages


def test_a_change_inside_a_long_list_of_plain_data_is_noticed_at_once(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        tasks = [{"title": "x" * 60, "steps": [{"done": False}]} for _ in range(400)]
        _step(saver, tasks)
        tasks[3]["steps"][0]["done"] = True
        _step(saver, tasks)
        assert TreeringSaver(store).get(config())["channel_values"]["messages"] == tasks


def test_equal_objects_take_the_place_of_those_that_were_saved(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        _step(saver, [HumanMessage("a", id="a"), HumanMessage("b", id="b")])
        copies = [HumanMessage("a", id="a"), HumanMessage("b", id="b"), HumanMessage("c", id="c")]
        _step(saver, copies)
        copies[0].content = "changed"
        _step(saver, copies)
        found = [
            each.checkpoint["channel_values"]["messages"] for each in TreeringSaver(store).list(config())
        ]
        assert [[message.content for message in each] for each in found] == [
            ["changed", "b", "c"],
            ["a", "b", "c"],
            ["a", "b"],
        ]


def test_a_fingerprint_shares_nothing_that_can_change():
    message = AIMessage(
        [{"type": "text", "text": "a"}], tool_calls=[{"name": "f", "args": {"a": [1]}, "id": "1"}]
    )
    known = fingerprint(message)
    assert matches(message, known)
    message.tool_calls[0]["args"]["a"].append(2)
    assert not matches(message, known)
