"""The messages of a step's only task go to the end of the list that the next checkpoint has them in."""

from __future__ import annotations

import random

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import empty_checkpoint

import treering
from tests.adapters.langgraph.scripts import ONE_TASK, config
from treering.adapters.langgraph import TreeringSaver


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


def put(saver, messages, parent=None, updated=ONE_TASK):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages}
    versions = {"messages": checkpoint["id"]}
    checkpoint["channel_versions"] = versions
    checkpoint["updated_channels"] = ["messages", *updated]
    return saver.put(parent or config(checkpoint_ns=""), checkpoint, {"source": "loop", "step": 0}, versions)


def write(saver, where, task, *messages):
    saver.put_writes(where, [("messages", list(messages))], task)


def head_list(store):
    """The list of the newest messages: its id, how much of it belongs to the head, how long it is."""
    stretch = store.thread("alice").head.record.lists["messages"]
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


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_tasks_side_by_side_leave_the_list_to_the_checkpoint(store, order):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")], updated=["branch:to:a", "branch:to:b"])
    first = head_list(store)[0]
    made = {"a": ai("one"), "b": ai("two")}
    for task in order:
        write(saver, where, task, made[task])
    assert head_list(store) == (first, 1, 1)
    state = [ai("start"), made["a"], made["b"]]
    put(saver, state, where)
    assert head_list(store) == (first, 3, 3)
    assert stored(store) == state
    assert [each.pending_writes for each in TreeringSaver(store).list(config())][-1] == [
        ("a", "messages", [made["a"]]),
        ("b", "messages", [made["b"]]),
    ]


def test_a_list_that_branched_off_is_not_written_ahead_again(store):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")])
    write(saver, where, "task", ai("as written"))
    state = [ai("start"), ai("as a reducer made it")]
    where = put(saver, state, where)
    second, length, there = head_list(store)
    assert length == there == 2
    for again in (saver, TreeringSaver(store)):
        again.get_tuple(config())
        write(again, where, "task", new := ai(f"more {id(again)}"))
        assert head_list(store) == (second, len(state), len(state))
        state = [*state, new]
        where = put(again, state, where)
    assert head_list(store)[0] == second
    assert stored(store) == state


def test_what_was_written_ahead_may_come_behind_something_else(store):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")])
    unnamed = AIMessage("one")
    write(saver, where, "a", unnamed)
    write(saver, where, "b", two := ai("two"))
    unnamed.id = "given by LangGraph"
    put(saver, [ai("start"), unnamed, two], where)
    assert stored(store) == [ai("start"), unnamed, two]
    assert [each.pending_writes for each in TreeringSaver(store).list(config())][-1] == [
        ("a", "messages", [AIMessage("one")]),
        ("b", "messages", [two]),
    ]


def test_less_than_what_was_written_ahead_may_be_taken_over(store):
    saver = TreeringSaver(store)
    where = put(saver, [ai("start")])
    one, two = ai("one"), ai("two")
    write(saver, where, "a", one, two)
    where = put(saver, [ai("start"), one], where)
    assert stored(store) == [ai("start"), one]
    put(saver, [ai("start"), one, ai("three")], where)
    assert stored(store) == [ai("start"), one, ai("three")]


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


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_written_and_put_comes_back(store, seed):
    """Tasks in any order, with and without ids; states that take over some of it, edited, from any past."""
    chance = random.Random(seed)
    savers = [TreeringSaver(store), TreeringSaver(store), TreeringSaver(store, writes="with_checkpoint")]
    states, written, live = {}, {}, {}
    where = put(savers[0], [ai("start")])
    places = [where]

    def keep(place, messages):
        live[name_of(place)] = messages
        states[name_of(place)] = [message.model_copy(deep=True) for message in messages]

    keep(where, [ai("start")])
    for step in range(30):
        saver = chance.choice(savers)
        where = places[-1] if chance.random() < 0.8 else chance.choice(places)
        messages, new = list(live[name_of(where)]), []
        for task in chance.sample(range(3), chance.randrange(4)):
            given = None if chance.random() < 0.2 else f"{step}.{task}"
            size = chance.choice((1, 1, 5000))
            made = [AIMessage(f"{step}.{task} " * size, id=given, additional_kwargs={"seen": []})]
            if chance.random() < 0.2:
                made.append(ai(f"{step}.{task} more"))
            write(saver, where, f"{step}.{task}", *made)
            copies = [message.model_copy(deep=True) for message in made]
            written.setdefault(name_of(where), {})[f"{step}.{task}"] = copies
            new += made
        for number, message in enumerate(new):
            message.id = message.id or f"given {step}.{number}"
        if chance.random() < 0.2:
            chance.shuffle(new)
        if chance.random() < 0.2:
            chance.choice(messages).additional_kwargs["seen"] = [step]
        if chance.random() < 0.1:
            messages.pop(chance.randrange(len(messages)))
        if chance.random() < 0.1:
            new.append(ai(f"{step} not written"))
        messages += new[: chance.choice((9, 9, 9, 1))]
        where = put(saver, messages or [ai("anew")], where)
        keep(where, messages or [ai("anew")])
        places.append(where)
    for saver in savers:
        saver.close()
    found = list(TreeringSaver(store).list(config()))
    assert len(found) == len(states)
    for each in found:
        name = each.checkpoint["id"]
        assert each.checkpoint["channel_values"]["messages"] == states[name]
        assert {write[0]: write[2] for write in each.pending_writes} == written.get(name, {})
    assert store.verify().ok


def name_of(place):
    return place["configurable"]["checkpoint_id"]
