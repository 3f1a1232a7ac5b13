"""A task that is sent the whole conversation: exported with what is new in it, and the same elsewhere."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

import treering
from tests.adapters.langgraph.scripts import config
from tests.importers.jsonl_histories import exported, portrait
from treering.adapters.langgraph import TreeringSaver
from treering.errors import InvalidInput
from treering.importers.jsonl_import import import_jsonl

OLD = Path(__file__).parent / "fixtures" / "jsonl" / "graph-whole-lists.jsonl"
"""An export of before: the lists are spelled out in what was written."""


class Talk(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    whole: list
    box: Any


def agent(saver, turns):
    """Sends the whole state to a tool at every turn, and returns a whole list, as some agents do."""

    def speak(state: Talk):
        number = len(state["messages"])
        said = AIMessage(f"{number} " + "word " * 60, id=f"m{number}")
        return {"messages": [said], "whole": [*state.get("whole", []), {"n": number, "text": "x" * 200}]}

    def to_tool(state: Talk):
        if len(state["messages"]) >= 2 * turns:
            return []
        return [Send("tool", {"call": "c" * 20, "state": {"messages": state["messages"]}})]

    def tool(given: dict):
        number = len(given["state"]["messages"])
        return {"messages": [HumanMessage(f"{number} result", id=f"r{number}")], "box": given}

    builder = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_node("tool", tool)
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", to_tool, ["tool"])
    builder.add_edge("tool", "speak")
    return builder.compile(checkpointer=saver)


def grown(store, turns):
    graph = agent(TreeringSaver(store), turns)
    graph.invoke({"messages": [HumanMessage("go", id="go")]}, {**config(), "recursion_limit": 10 * turns})
    return store


def told(store):
    """Every checkpoint with what tasks wrote on it."""
    return [
        (each.config, each.checkpoint, each.metadata, each.pending_writes)
        for each in TreeringSaver(store).list(None)
    ]


def test_an_export_grows_with_what_was_said():
    sizes = []
    for turns in (20, 40):
        with treering.open("memory:") as store:
            sizes.append(len(exported(grown(store, turns))))
    assert sizes[1] < 2.1 * sizes[0]


@pytest.mark.parametrize("url", ["memory:", None])
def test_it_reads_the_same_elsewhere(url, tmp_path):
    with treering.open("memory:") as source, treering.open(url or tmp_path / "store") as target:
        grown(source, 12)
        source.thread("alice").fork("bob")
        agent(TreeringSaver(source), 14).invoke(None, config("bob"))
        data = exported(source)
        assert b'"lists":{"' in data
        import_jsonl(io.BytesIO(data), target)
        assert told(target) == told(source)
        assert portrait(target) == portrait(source)
        assert target.verify().ok
        again = exported(target)
        assert abs(len(again) - len(data)) < 10
        with treering.open("memory:") as third:
            import_jsonl(io.BytesIO(again), third)
            assert told(third) == told(source)
        TreeringSaver(target).delete_thread("bob")
        assert target.verify().ok


def test_an_export_of_before_reads_as_it_did(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        import_jsonl(OLD, store)
        sent = [
            value.arg["state"]["messages"]
            for each in TreeringSaver(store).list(None)
            for _, channel, value in each.pending_writes
            if channel == "__pregel_tasks"
        ]
        assert sorted(map(len, sent)) == [2, 4, 6]
        longest = max(sent, key=len)
        assert [each.type for each in longest] == ["human", "ai", "tool", "ai", "tool", "ai"]
        assert all(each == longest[: len(each)] for each in sent)
        with treering.open("memory:") as other:
            import_jsonl(io.BytesIO(exported(store)), other)
            assert told(other) == told(store)


@pytest.mark.parametrize(
    "change",
    [{"checkpoint": "ckpt_01m7kwwwm27g7kg8swjnneppeh"}, {"name": "gone"}, {"length": 999}, {"length": -1}],
)
def test_a_list_that_is_not_there_is_a_bad_line(change):
    with treering.open("memory:") as source, treering.open("memory:") as target:
        lines = exported(grown(source, 8)).splitlines()
        number, event = next(
            (number, found)
            for number, line in enumerate(lines)
            if (found := msgspec.json.decode(line)).get("lists") and found["kind"] == "event"
        )
        for each in event["lists"].values():
            each.update(change)
        lines[number] = msgspec.json.encode(event)
        with pytest.raises(InvalidInput, match=rf"line {number + 1}: the event needs .* so far"):
            import_jsonl(io.BytesIO(b"\n".join(lines)), target, strict=True)
        assert list(target.threads()) == []
