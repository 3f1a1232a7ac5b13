"""Steps: what is stored depends on the calls of a graph, never on when they come."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import orjson
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

import treering
from tests.adapters.langgraph.scripts import ONE_TASK, config, put
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.langgraph import saver as saver_module
from treering.adapters.langgraph.task_writes import parse_place
from treering.core.query import EventQuery, each_record
from treering.errors import StoreFull
from treering.graphs.graph import EMBEDDED_FORM, GRAPH, PREFIX_FORMS, Graphs
from treering.threads.checkpoint import KIND, Value, read_checkpoint

ANSWER = AIMessage("an answer", id="a")
TURNS = 12


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def commits(store, monkeypatch):
    """The batches that are committed."""
    batches = []
    commit = store.engine.commit
    monkeypatch.setattr(store.engine, "commit", lambda batch: batches.append(batch) or commit(batch))
    return batches


@pytest.fixture
def _busy():
    """A thread that never lets go of Python's lock by itself."""
    is_over = threading.Event()

    def spin():
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    is_over.set()
    thread.join()


def stored(store):
    (newest, oldest) = TreeringSaver(store).list(config())
    return newest.checkpoint["channel_values"]["messages"], oldest.pending_writes


# The same graph stores the same rows
class Talk(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    turn: int


def conversation(saver: Any):
    """One node after the other."""

    def speak(state: Talk):
        return {"messages": [AIMessage("word " * 100, id=f"m{state['turn']}")], "turn": state["turn"] + 1}

    builder = StateGraph(Talk)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", lambda state: END if state["turn"] >= TURNS else "speak")
    return builder.compile(checkpointer=saver)


def team(saver: Any):
    """Workers side by side, each of which is sent the whole conversation."""

    def plan(state: Talk):
        return {"messages": [AIMessage("word " * 100, id=f"m{state['turn']}")], "turn": state["turn"] + 1}

    def work(given: Any):
        return {"messages": [HumanMessage(f"saw {len(given['messages'])}", id=given["name"])]}

    def sent(state: Talk):
        return [Send("work", {**state, "name": f"{state['turn']}.{number}"}) for number in range(3)]

    builder = StateGraph(Talk)
    builder.add_node("plan", plan)
    builder.add_node("work", work)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", sent, ["work"])
    builder.add_conditional_edges("work", lambda state: END if state["turn"] >= TURNS else "plan")
    return builder.compile(checkpointer=saver)


def run(graph: Any, *, is_async: bool):
    given = {"messages": [HumanMessage("go", id="go")], "turn": 0}
    where = {**config(), "recursion_limit": 999}
    if is_async:
        asyncio.run(graph.ainvoke(given, where))
    else:
        graph.invoke(given, where)


def rows(store) -> list[Any]:
    """All rows of a store, without ids and times, in an order that does not depend on the commits."""
    engine, space = store.engine, store.space
    records = list(each_record(engine, space, EventQuery()))
    checkpoints = [read_checkpoint(engine, space, each) for each in records if each.event.kind == KIND]
    numbers = {
        graph_id: number
        for number, graph_id in enumerate(sorted(each.metadata[GRAPH]["id"] for each in checkpoints))
    }

    def items(list_id: str) -> tuple[bytes, ...]:
        length = engine.list_info(space, list_id).length
        return tuple(content.data for content in engine.read_list(space, list_id, 0, length))

    def content(place: Any, batch: str) -> Any:
        parsed = parse_place(place, batch)
        if isinstance(parsed, tuple):
            return items(parsed[0]), parsed[1]
        return engine.get(space, [parsed])[0].data

    def prefix(place: Any, batch: str) -> Any:
        return items(place[0]), place[1], [content(each, batch) for each in place[2]]

    def entry(channel: str, form: str, place: Any, batch: str) -> Any:
        if form == "v":
            return channel, place
        if form == "l":
            return channel, [content(each, batch) for each in place]
        if form in PREFIX_FORMS:
            return channel, prefix(place, batch)
        if form == EMBEDDED_FORM:
            return channel, content(place[0], batch), [prefix(each, batch) for each in place[1]]
        return channel, content(place, batch)

    found = []
    for each in checkpoints:
        graph = each.metadata[GRAPH]
        lists = {name: (items(prefix.list), prefix.length) for name, prefix in each.lists.items()}
        state = {
            name: value.digest
            if isinstance(value, Value)
            else {key: part.digest for key, part in value.items()}
            for name, value in each.state.items()
        }
        plain = {**graph, "id": numbers[graph["id"]], "parent": numbers.get(graph.get("parent")), "ts": ""}
        found.append(
            repr(
                (numbers[graph["id"]], "", each.step, each.note, lists, state, sorted(plain.items(), key=str))
            )
        )
    graphs = Graphs(engine, space, "")
    for record in records:
        if record.event.kind == "writes":
            data = graphs.read_written(record).data
            entries = [entry(name, form, place, record.batch) for name, _, form, place in data["writes"]]
            found.append(repr((numbers[data["step"][0]], data["path"], entries)))
    return sorted(found)


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("build", [conversation, team])
def test_a_graph_that_runs_twice_stores_the_same_rows(build, is_async, tmp_path):
    found = []
    for number in range(4):
        with treering.open(tmp_path / str(number), durability="fast") as store:
            run(build(TreeringSaver(store)), is_async=is_async)
            found.append(rows(store))
            assert store.verify().ok
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) > 2 * TURNS


@pytest.mark.parametrize("order", ["writes first", "checkpoint first"])
def test_a_message_is_stored_once_whichever_call_comes_first(store, order):
    start = HumanMessage("hello", id="h")
    saver = TreeringSaver(store)
    where = put(saver, {"messages": [start]}, updated=ONE_TASK)
    if order == "writes first":
        saver.put_writes(where, [("messages", [ANSWER])], "task")
    put(saver, {"messages": [start, ANSWER]}, parent=where)
    if order == "checkpoint first":
        saver.put_writes(where, [("messages", [ANSWER])], "task")
    prefix = store.thread("alice").head.record.lists["messages"]
    (row,) = each_record(store.engine, store.space, EventQuery(kinds=("writes",)))
    assert orjson.loads(row.event.data)["writes"] == [["messages", 0, "l", [[prefix.list, 1]]]]
    assert prefix.length == store.engine.list_info(store.space, prefix.list).length == 2
    assert stored(store) == ([start, ANSWER], [("task", "messages", [ANSWER])])


# Who waits for whom
def test_writes_wait_for_the_checkpoint_that_they_are_made_on(store, monkeypatch):
    saver = TreeringSaver(store)
    first = put(saver, {"messages": [ANSWER]})
    other = TreeringSaver(store)
    where = put(other, {"messages": [ANSWER]}, thread="elsewhere")  # for its id
    where = {"configurable": {**where["configurable"], "thread_id": "alice"}}
    is_waiting = threading.Event()
    arrival = saver._writer.arrival

    def waits(*args):
        found = arrival(*args)
        is_waiting.set()
        return found

    monkeypatch.setattr(saver._writer, "arrival", waits)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(saver.put_writes, where, [("x", 1)], "task")
        assert is_waiting.wait(30)
        assert not writing.done()
        put(saver, {"messages": [ANSWER]}, parent=first, graph_id=where["configurable"]["checkpoint_id"])
        writing.result(30)
    assert TreeringSaver(store).get_tuple(where).pending_writes == [("task", "x", 1)]


def test_writes_do_not_wait_for_a_checkpoint_that_another_saver_has_saved(store, monkeypatch):
    saver, other = TreeringSaver(store), TreeringSaver(store)
    where = put(saver, {"messages": [ANSWER]})
    where = put(other, {"messages": [ANSWER]}, parent=where)
    monkeypatch.setattr(saver_module, "wait", lambda futures, *_: [each.result(0) for each in futures])
    saver.put_writes(where, [("x", 1)], "task")
    assert other.get_tuple(config()).pending_writes == [("task", "x", 1)]


def test_writes_on_a_checkpoint_that_never_comes_are_kept(store, monkeypatch):
    monkeypatch.setattr(saver_module, "ARRIVAL_SECONDS", 0)
    saver = TreeringSaver(store)
    where = put(TreeringSaver(store), {"messages": []}, thread="elsewhere")
    lost = {"configurable": {**where["configurable"], "thread_id": "alice"}}
    saver.put_writes(lost, [("x", 1)], "task")
    asyncio.run(saver.aput_writes(lost, [("x", 2)], "other task"))
    put(saver, {"messages": []}, graph_id=where["configurable"]["checkpoint_id"])
    assert saver.get_tuple(config()).pending_writes == [("other task", "x", 2), ("task", "x", 1)]


@pytest.mark.parametrize("is_async", [False, True])
def test_who_writes_before_the_checkpoint_waits_for_it_once(store, monkeypatch, is_async):
    """As LangGraph's own tests of older checkpoints do, one call after the other."""
    monkeypatch.setattr(saver_module, "ARRIVAL_SECONDS", 0)
    saver, waits = TreeringSaver(store), []
    arrival = saver._writer.arrival
    monkeypatch.setattr(saver._writer, "arrival", lambda *key: waits.append(key) or arrival(*key))
    where = {"configurable": {**config()["configurable"], "checkpoint_id": str(uuid6())}}
    for number in range(3):
        if is_async:
            asyncio.run(saver.aput_writes(where, [("x", number)], f"task {number}"))
        else:
            saver.put_writes(where, [("x", number)], f"task {number}")
    assert len(waits) == 1
    put(saver, {"messages": []}, graph_id=where["configurable"]["checkpoint_id"])
    assert [each[2] for each in saver.get_tuple(config()).pending_writes] == [0, 1, 2]


def test_a_checkpoint_waits_for_the_writes_of_its_parent(store, monkeypatch):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": [ANSWER]})
    has_begun, may_go_on = threading.Event(), threading.Event()
    put_writes = saver._writer.put_writes

    def slow(*args):
        has_begun.set()
        assert may_go_on.wait(30)
        put_writes(*args)

    monkeypatch.setattr(saver._writer, "put_writes", slow)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(saver.put_writes, where, [("x", 1)], "task")
        assert has_begun.wait(30)
        putting = pool.submit(put, saver, {"messages": [ANSWER]}, parent=where)
        another = put(saver, {"messages": []}, thread="bob")  # another thread does not wait
        assert not putting.done()
        may_go_on.set()
        writing.result(30)
        putting.result(30)
    kinds = [each.event.kind for each in each_record(store.engine, store.space, EventQuery())]
    assert kinds == ["checkpoint", "checkpoint", "writes", "checkpoint"]
    assert another


# Durability
def test_writes_are_durable_when_the_call_returns(store, commits):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": [ANSWER]})
    for number in range(3):
        saver.put_writes(where, [("x", number)], f"task {number}")
        assert len(commits) == number + 2
    assert len(TreeringSaver(store).get_tuple(config()).pending_writes) == 3


def test_held_writes_and_their_checkpoint_are_one_commit(store, commits):
    saver = TreeringSaver(store, writes="with_checkpoint")
    where = put(saver, {"messages": []})
    saver.put_writes(where, [("messages", [ANSWER])], "task")
    assert len(commits) == 1
    put(saver, {"messages": [ANSWER]}, parent=where)
    assert len(commits) == 2
    assert stored(store) == ([ANSWER], [("task", "messages", [ANSWER])])
    (row,) = each_record(store.engine, store.space, EventQuery(kinds=("writes",)))
    assert isinstance(orjson.loads(row.event.data)["writes"][0][3][0], list)  # refers to the list
    assert store.verify().ok


def test_held_writes_are_committed_by_a_read_and_by_close(store):
    saver = TreeringSaver(store, writes="with_checkpoint")
    where = put(saver, {"messages": []})
    saver.put_writes(where, [("messages", [ANSWER])], "task")
    assert TreeringSaver(store).get_tuple(config()).pending_writes == []
    assert saver.get_tuple(config()).pending_writes == [("task", "messages", [ANSWER])]
    saver.put_writes(where, [("x", 1)], "other")
    saver.close()
    assert len(TreeringSaver(store).get_tuple(config()).pending_writes) == 2


def test_an_interrupt_commits_everything_that_is_held(store):
    saver = TreeringSaver(store, writes="with_checkpoint")
    where = put(saver, {"messages": []})
    saver.put_writes(where, [("x", 1)], "done")
    saver.put_writes(where, [("__interrupt__", "why?")], "task")
    assert TreeringSaver(store).get_tuple(config()).pending_writes == [
        ("done", "x", 1),
        ("task", "__interrupt__", "why?"),
    ]


def test_held_writes_stay_when_their_checkpoint_is_refused(store, monkeypatch):
    saver = TreeringSaver(store, writes="with_checkpoint")
    where = put(saver, {"messages": []})
    saver.put_writes(where, [("messages", [ANSWER])], "task")
    with monkeypatch.context() as patched:

        def full(batch):  # noqa: ARG001
            raise StoreFull("the disk is full")

        patched.setattr(store.engine, "commit", full)
        with pytest.raises(StoreFull):
            put(saver, {"messages": [ANSWER]}, parent=where)
    put(saver, {"messages": [ANSWER]}, parent=where)
    assert stored(store) == ([ANSWER], [("task", "messages", [ANSWER])])
    assert store.verify().ok
