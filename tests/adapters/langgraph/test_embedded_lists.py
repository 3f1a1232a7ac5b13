"""Messages that are sent along inside of other values: stored once, and there again when it is read."""

from __future__ import annotations

from io import BytesIO
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

import treering
from tests.adapters.langgraph.scripts import config
from tests.importers.jsonl_histories import exported
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.langgraph.channels import LEAST_EMBEDDED, extract_lists
from treering.adapters.langgraph.known_types import ClosedSerializer, KnownTypes
from treering.adapters.langgraph.values import ValueCodec
from treering.importers.jsonl_import import import_jsonl

TEXT = "word " * 100


class Talk(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    turn: int
    box: Any


class Both(TreeringSaver):
    """Saves what it is given in LangGraph's own memory too, to be compared with."""

    def __init__(self, store: treering.Store, **options: Any) -> None:
        super().__init__(store, **options)
        self.theirs = InMemorySaver()

    def put(self, config, checkpoint, metadata, new_versions):
        self.theirs.put(config, checkpoint, metadata, new_versions)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config, writes, task_id, task_path=""):
        self.theirs.put_writes(config, writes, task_id, task_path)
        super().put_writes(config, writes, task_id, task_path)


def message(number: int) -> AIMessage:
    return AIMessage(f"{number} {TEXT}", id=f"m{number}")


def agent(saver: Any, turns: int, box=lambda state: state["messages"]):
    """Each turn says something and sends the whole state to a worker, as ready-made agents do."""

    def speak(state: Talk):
        return {"messages": [message(state["turn"])], "turn": state["turn"] + 1}

    def sent(state: Talk):
        return [Send("work", {"call": state["turn"], "state": {**state, "messages": box(state)}})]

    def work(given: Any):
        count = len(given["state"]["messages"])
        return {"messages": [HumanMessage(f"saw {count}", id=f"w{given['call']}")]}

    builder = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_node("work", work)
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", sent, ["work"])
    builder.add_conditional_edges("work", lambda state: END if state["turn"] >= turns else "speak")
    return builder.compile(checkpointer=saver)


def run(saver: Any, turns: int = 12, **given: Any):
    graph = agent(saver, turns, **given)
    graph.invoke({"messages": [HumanMessage("go", id="go")], "turn": 0}, {**config(), "recursion_limit": 999})
    return graph


def everything(saver: Any, thread: str = "alice") -> list[Any]:
    """All that a saver has of a thread, newest first."""
    return [
        (
            found.checkpoint["id"],
            {name: told(value) for name, value in found.checkpoint["channel_values"].items()},
            [(channel, told(value)) for _, channel, value in found.pending_writes],
        )
        for found in saver.list(config(thread))
    ]


def size_of(store: treering.Store) -> int:
    return sum(store.engine.stats(store.space).bytes.values())


def told(value: Any) -> Any:
    if isinstance(value, Send):
        return ("send", value.node, value.arg)
    return [told(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


def test_all_that_was_given_comes_back(store):
    saver = Both(store)
    run(saver)
    expected = everything(saver.theirs)
    assert everything(TreeringSaver(store)) == expected
    assert sum("send" in str(each) for each in expected) >= 12


def test_it_costs_what_is_new(tmp_path):
    def size(turns: int) -> int:
        with treering.open(tmp_path / str(turns)) as store:
            run(TreeringSaver(store), turns)
            return size_of(store)

    short, long = size(15), size(60)
    assert long / short < 4.1


@pytest.mark.parametrize(
    "box",
    [
        lambda state: state["messages"][:-1],
        lambda state: state["messages"][2:],
        lambda state: [*state["messages"], HumanMessage("not said", id="x")],
        lambda state: [*state["messages"][:LEAST_EMBEDDED], *map(message, range(90, 95))],
        lambda state: [each.model_copy() for each in state["messages"]],
        lambda state: [each.model_copy(update={"content": "other"}) for each in state["messages"]],
        lambda state: {"deep": [{"deeper": state["messages"]}], "tuple": (state["messages"],)},
        lambda _: [f"treering-list-{number}-0" for number in range(9)],
        lambda state: {"a": "treering-list-0-0", "b": state["messages"], "treering-list-0-1": 0},
    ],
    ids=["shorter", "later", "longer", "other", "copies", "edited", "deep", "like_marks", "beside_marks"],
)
def test_whatever_is_inside_comes_back(store, box):
    saver = Both(store)
    run(saver, 8, box=box)
    assert everything(TreeringSaver(store)) == everything(saver.theirs)


def test_a_value_with_messages_stays_as_it_was_when_they_change(store):
    """It is not saved again, because nobody wrote it, and the list that it was saved with is another now."""

    def fill(state: Talk):
        return {"box": {"kept": list(state["messages"])}}

    def change(_: Talk):
        return {"messages": [message(1).model_copy(update={"content": "changed"}), RemoveMessage(id="m2")]}

    builder = StateGraph(Talk)
    builder.add_node("fill", fill)
    builder.add_node("change", change)
    builder.add_edge(START, "fill")
    builder.add_edge("fill", "change")
    saver = Both(store)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [message(number) for number in range(9)]}, config())
    assert everything(TreeringSaver(store)) == everything(saver.theirs)
    assert len(graph.get_state(config()).values["box"]["kept"]) == 9
    assert len(graph.get_state(config()).values["messages"]) == 8


def test_a_conversation_that_is_handed_in_whole_is_stored_once(store):
    builder = StateGraph(Talk)
    builder.add_node("speak", lambda state: {"messages": [message(len(state["messages"]))]})
    builder.add_edge(START, "speak")
    saver = Both(store)
    graph = builder.compile(checkpointer=saver)
    said: list[Any] = [HumanMessage("go", id="go")]
    for turn in range(30):
        said = graph.invoke({"messages": said}, config())["messages"]
        said = [*said, HumanMessage(f"more {turn}", id=f"h{turn}")]
    assert everything(TreeringSaver(store)) == everything(saver.theirs)
    assert size_of(store) < 30 * 6000


def test_it_outlives_the_thread_that_it_was_copied_from(store):
    saver = Both(store)
    run(saver)
    expected = [each[1:] for each in everything(saver.theirs)]
    mine = TreeringSaver(store)
    mine.copy_thread("alice", "copy")
    mine.delete_thread("alice")
    store.gc(grace_seconds=0)
    assert [each[1:] for each in everything(TreeringSaver(store), "copy")] == expected


def test_an_export_takes_it_along(store):
    saver = Both(store)
    run(saver)
    with treering.open("memory:") as other, treering.open("memory:") as third:
        import_jsonl(BytesIO(exported(store)), other)
        import_jsonl(BytesIO(exported(other)), third)
        for each in (other, third):
            assert everything(TreeringSaver(each)) == everything(saver.theirs)


def test_a_graph_goes_on_from_each_checkpoint(store):
    graph = run(TreeringSaver(store), 6)
    finals = set()
    for checkpoint in list(graph.get_state_history(config())):
        if checkpoint.next:
            again = agent(TreeringSaver(store), 6).invoke(None, checkpoint.config)
            finals.add(tuple((each.id, each.content) for each in again["messages"]))
    assert len(finals) == 1


def test_a_fork_goes_on_when_its_origin_has_moved_on(store):
    final = run(TreeringSaver(store), 6).get_state(config()).values["messages"]
    for number, checkpoint in enumerate(store.thread("alice").history()):
        store.thread("alice").fork(f"fork-{number}", at=checkpoint)
    store.gc(grace_seconds=0)
    for number in range(len(list(store.thread("alice").history()))):
        graph = agent(TreeringSaver(store), 6)
        if graph.get_state(config(f"fork-{number}")).next:
            graph.invoke(None, config(f"fork-{number}"))
        assert graph.get_state(config(f"fork-{number}")).values["messages"] == final


def test_a_serializer_of_ones_own_is_given_everything_whole(store):
    class Own:
        def dumps_typed(self, value):
            return ClosedSerializer(KnownTypes()).dumps_typed(value)

        def loads_typed(self, given):
            return ClosedSerializer(KnownTypes()).loads_typed(given)

    saver = Both(store, serde=Own())
    run(saver, 6)
    assert everything(TreeringSaver(store, serde=Own())) == everything(saver.theirs)
    assert extract_lists(ValueCodec(Own()), {"a": [message(1)] * 9}, lambda items: items) is None
