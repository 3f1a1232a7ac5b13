"""Messages of durable writes go to the end of the list that should hold them next; if not, no harm."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import empty_checkpoint

import treering
from tests.adapters.langgraph_scripts import config
from treering.adapters.langgraph import TreeringSaver


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


def put(saver, messages, parent=None):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages}
    versions = {"messages": checkpoint["id"]}
    checkpoint["channel_versions"] = versions
    return saver.put(parent or config(checkpoint_ns=""), checkpoint, {"source": "loop", "step": 0}, versions)


def write(saver, where, task, *messages):
    saver.put_writes(where, [("messages", list(messages))], task)


def head_list(store):
    """The list of the newest messages: its id, how much of it belongs to the head, how long it is."""
    stretch = store.thread("alice").head.checkpoint.lists["messages"]
    return stretch.list, stretch.length, store.engine.list_info(store.space, stretch.list).length


def stored(store):
    return TreeringSaver(store).get_tuple(config()).checkpoint["channel_values"]["messages"]


def ai(text):
    return AIMessage(text, id=text)


def test_a_checkpoint_takes_over_what_was_written_ahead(store):
    saver = TreeringSaver(store)
    state = [HumanMessage("hello", id="hello")]
    where = put(saver, state)
    first = head_list(store)[0]
    for number in range(3):
        new = [ai(f"{number} a"), AIMessage("large " * 2000, id=f"{number} b")]
        write(saver, where, f"task {number}", *new)
        assert head_list(store) == (first, len(state), len(state) + 2)
        state = state + new
        where = put(saver, state, where)
        assert head_list(store) == (first, len(state), len(state))
    assert stored(store) == state
    pending = [each.pending_writes for each in TreeringSaver(store).list(config())]
    assert pending[0] == []
    assert pending[1] == [("task 2", "messages", state[-2:])]
    assert store.verify().ok


def test_tasks_that_come_in_another_order_cost_a_branch_once(store):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")])
    first = head_list(store)[0]
    one, two = ai("one"), ai("two")
    write(saver, where, "b", two)
    write(saver, where, "a", one)
    state = [ai("start"), one, two]
    where = put(saver, state, where)
    second, length, there = head_list(store)
    assert second != first
    assert length == there == 3
    assert stored(store) == state
    for again in (saver, TreeringSaver(store)):
        again.get_tuple(config())
        write(again, where, "a", three := ai(f"three {id(again)}"))
        assert head_list(store) == (second, len(state), len(state))
        state = [*state, three]
        where = put(again, state, where)
    assert head_list(store)[0] == second
    assert stored(store) == state
    assert [each.pending_writes for each in TreeringSaver(store).list(config())][-1] == [
        ("a", "messages", [one]),
        ("b", "messages", [two]),
    ]


def test_what_was_written_ahead_and_never_taken_over_does_not_show(store):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")])
    write(saver, where, "task", ai("lost"))
    assert stored(store) == [ai("start")]
    fresh = TreeringSaver(store)
    assert fresh.get_tuple(config()).pending_writes == [("task", "messages", [ai("lost")])]
    put(fresh, [ai("start"), ai("another")], where)
    assert stored(store) == [ai("start"), ai("another")]
    assert store.verify().ok


def test_a_list_that_went_on_elsewhere_is_left_alone(store):
    one, two = TreeringSaver(store), TreeringSaver(store)
    where = put(one, [ai("start")])
    two.get_tuple(config())
    write(one, where, "task", mine := ai("mine"))
    write(two, where, "task", theirs := ai("theirs"))
    put(one, [ai("start"), mine], where)
    assert stored(store) == [ai("start"), mine]
    put(two, [ai("start"), theirs], where)
    assert stored(store) == [ai("start"), theirs]
    assert store.verify().ok


@pytest.mark.parametrize("odd", [AIMessage("no id yet"), RemoveMessage("start")])
def test_what_will_not_come_next_as_it_is_is_not_written_ahead(store, odd):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")])
    write(saver, where, "task", odd)
    assert head_list(store)[1:] == (1, 1)
