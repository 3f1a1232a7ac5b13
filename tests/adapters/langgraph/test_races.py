"""LangGraph gives a message its id in place while a thread of its own saves it.

A saver that encodes the message first and looks at it afterwards remembers a message that it never stored,
and the conversation has it twice after a restart. Here encoding is made slow at random places, and every
run is read back by a saver that knows nothing.
"""

from __future__ import annotations

import random
import threading
import time

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState

import treering
from tests.adapters.langgraph.scripts import config
from treering.adapters.langgraph import TreeringSaver, pending
from treering.adapters.langgraph.messages import is_like, likeness
from treering.adapters.langgraph.values import Values


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
    encode_message = Values.encode_message

    def slowly(self, message, known):
        time.sleep(chance.choice((0, 0, 0.0005, 0.002)))
        content = encode_message(self, message, known)
        time.sleep(chance.choice((0, 0, 0.0005)))
        return content

    monkeypatch.setattr(Values, "encode_message", slowly)
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
    """The same run with the mistake built in: what is remembered is read off the message, too late."""

    class Forgetful(pending.PendingMessage):
        def __init__(self, message, known, content, scope):
            deadline = time.monotonic() + 30
            while message.id is None and time.monotonic() < deadline:
                time.sleep(0.001)
            super().__init__(message, likeness(message) if known["id"] is None else known, content, scope)

    monkeypatch.setattr(pending, "PendingMessage", Forgetful)
    with treering.open(tmp_path / "store", durability="fast") as store:
        saver = TreeringSaver(store)
        stale = AIMessage("stale")
        saver.put_writes(_step(saver, []), [("messages", [_named_later(stale)])], "task")
        _step(saver, [stale])
        assert TreeringSaver(store).get(config())["channel_values"]["messages"][0].id is None


def _named_later(message):
    def name():
        message.id = "named"

    threading.Timer(0.02, name).start()
    return message


def _step(saver, messages, number=[0]):  # noqa: B006 - one counter for all calls
    from langgraph.checkpoint.base import empty_checkpoint

    number[0] += 1
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages}
    checkpoint["channel_versions"] = {"messages": number[0]}
    return saver.put(config(checkpoint_ns=""), checkpoint, {"step": number[0]}, {"messages": number[0]})


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


def test_a_likeness_shares_nothing_that_can_change():
    message = AIMessage(
        [{"type": "text", "text": "a"}], tool_calls=[{"name": "f", "args": {"a": [1]}, "id": "1"}]
    )
    known = likeness(message)
    assert is_like(message, known)
    message.tool_calls[0]["args"]["a"].append(2)
    assert not is_like(message, known)
