"""What LangGraph's own savers kept comes over whole: every checkpoint, every write, every namespace."""

from __future__ import annotations

import operator
import sqlite3
from typing import Annotated, TypedDict

import msgspec
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.types import Command, interrupt

import treering
from tests.adapters.langgraph.scripts import config
from treering.adapters.langgraph import TreeringSaver
from treering.errors import InvalidInput, NotFound
from treering.importers.langgraph import import_langgraph


class Inner(TypedDict):
    steps: Annotated[list[str], operator.add]


def joined(state, writes):
    return [*state, *(each for write in writes for each in write)]


class Deltas(TypedDict):
    seen: Annotated[list, DeltaChannel(joined, snapshot_frequency=4)]


def talking(saver):
    """A graph with a subgraph that asks."""
    inner = StateGraph(Inner)
    inner.add_node("ask", lambda state: {"steps": [interrupt("go on?")]})  # noqa: ARG005
    inner.add_edge(START, "ask")
    outer = StateGraph(MessagesState)
    outer.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    compiled = inner.compile()
    outer.add_node("inner", lambda state, config: compiled.invoke({"steps": []}, config) and {"messages": []})  # noqa: ARG005
    outer.add_edge(START, "answer")
    outer.add_edge("answer", "inner")
    return outer.compile(checkpointer=saver)


def deltas(saver):
    builder = StateGraph(Deltas)
    builder.add_node("work", lambda state: {"seen": [f"{len(state['seen'])}"]})
    builder.add_edge(START, "work")
    return builder.compile(checkpointer=saver)


def fill(saver):
    graph = talking(saver)
    for number in range(3):
        graph.invoke({"messages": [HumanMessage(f"hi {number}")]}, config("alice"))
        if number < 2:
            graph.invoke(Command(resume="yes"), config("alice"))
    old = list(graph.get_state_history(config("alice")))[-3]
    graph.invoke(None, old.config)
    for number in range(5):
        deltas(saver).invoke({"seen": [f"in {number}"]}, config("odd\nname"))


def portrait(saver, thread):
    return [
        (each.config, each.checkpoint, each.metadata, each.parent_config, each.pending_writes)
        for each in saver.list(config(thread))
    ]


def same(one, other):
    """Compares checkpoints of two savers."""
    assert len(one) == len(other)
    for mine, theirs in zip(sorted(one, key=_key), sorted(other, key=_key), strict=True):
        assert mine[0]["configurable"] == theirs[0]["configurable"]
        assert mine[1] == theirs[1]
        assert mine[2] == theirs[2]
        assert mine[3] == theirs[3]
        assert mine[4] == theirs[4]


def _key(each):
    chosen = each[0]["configurable"]
    return chosen["checkpoint_ns"], chosen["checkpoint_id"]


@pytest.fixture
def sqlite_source(tmp_path):
    path = tmp_path / "checkpoints.db"
    with sqlite3.connect(path, check_same_thread=False) as connection:
        saver = SqliteSaver(connection)
        fill(saver)
        yield path, saver


def test_a_sqlite_saver_comes_over_whole(sqlite_source, tmp_path):
    path, theirs = sqlite_source
    result: list[tuple[int, int | None]] = []
    with treering.open(tmp_path / "store") as store:
        dry = import_langgraph(path, store, dry_run=True)
        assert list(store.threads()) == []
        report = import_langgraph(path, store, on_progress=lambda done, total: result.append((done, total)))
        ours = TreeringSaver(store)
        for thread in ("alice", "odd\nname"):
            same(portrait(ours, thread), portrait(theirs, thread))
        found = [file.found for file in report.files]
        assert [file.new for file in report.files] == found == [file.new for file in dry.files]
        assert found[0] == sum(1 for _ in theirs.list(None))
        assert result[-1] == (found[0], found[0])
        for info in store.threads():  # listed by the time of what it holds
            newest = store.thread(info.id).load()
            assert info.updated_at_us == newest.record.created_at_us
        again = import_langgraph(path, store)
        assert (again.new, [file.known for file in again.files]) == (0, found)
        assert talking(ours).get_state(config("alice")) == talking(theirs).get_state(config("alice"))
        assert (
            deltas(ours).get_state(config("odd\nname")).values
            == deltas(theirs).get_state(config("odd\nname")).values
        )
        went_on = deltas(ours).invoke({"seen": ["more"]}, config("odd\nname"))
        assert went_on["seen"] == deltas(theirs).invoke({"seen": ["more"]}, config("odd\nname"))["seen"]
        assert store.verify().ok


def test_a_postgres_saver_comes_over_whole(empty_postgres_url, tmp_path):
    with PostgresSaver.from_conn_string(empty_postgres_url) as theirs:
        theirs.setup()
        fill(theirs)
        with treering.open(tmp_path / "store") as store:
            report = import_langgraph(empty_postgres_url, store)
            assert report.new == sum(file.found for file in report.files) > 0
            ours = TreeringSaver(store)
            for thread in ("alice", "odd\nname"):
                same(portrait(ours, thread), portrait(theirs, thread))


def test_a_database_of_an_early_postgres_saver(empty_postgres_url):
    with treering.open("memory:") as store:
        with pytest.raises(InvalidInput, match="lacks tables of a PostgresSaver"):
            import_langgraph(empty_postgres_url, store)
        with PostgresSaver.from_conn_string(empty_postgres_url) as theirs:
            theirs.setup()
            fill(theirs)
            theirs.conn.execute("ALTER TABLE checkpoint_writes DROP COLUMN task_path")
        report = import_langgraph(empty_postgres_url, store)
        assert report.new == sum(file.found for file in report.files) > 0


def test_an_interrupted_import_goes_on(sqlite_source, tmp_path):
    path, theirs = sqlite_source

    def stop(done, total):  # noqa: ARG001
        if done == 7:
            raise KeyboardInterrupt

    with treering.open(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            import_langgraph(path, store, on_progress=stop)
        report = import_langgraph(path, store)
        assert report.files[0].known == 7
        same(portrait(TreeringSaver(store), "alice"), portrait(theirs, "alice"))


def test_what_is_no_saver_is_refused(tmp_path):
    (tmp_path / "other.db").touch()
    with treering.open("memory:") as store:
        with pytest.raises(NotFound):
            import_langgraph(tmp_path / "nothing.db", store)
        with pytest.raises(InvalidInput):
            import_langgraph(tmp_path / "other.db", store)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET checkpoint = x'c1c1' WHERE rowid = 3",
        "UPDATE checkpoints SET checkpoint = NULL WHERE rowid = 3",
        "UPDATE checkpoints SET type = 'pickle' WHERE rowid = 3",
        "UPDATE checkpoints SET metadata = x'7b22' WHERE rowid = 3",
        "UPDATE checkpoints SET metadata = '[1]' WHERE rowid = 3",
        "UPDATE writes SET type = 'msgpack', value = x'c1c1' WHERE rowid = 3",
    ],
)
def test_a_damaged_row_is_named_and_costs_only_itself(sqlite_source, tmp_path, damage):
    path, saver = sqlite_source
    with saver.conn as connection:
        assert connection.execute(damage).rowcount == 1
        (damaged,) = connection.execute(
            f"SELECT checkpoint_id FROM {damage.split()[1]} WHERE rowid = 3"
        ).fetchone()
    with treering.open(tmp_path / "store") as store:
        with pytest.raises(InvalidInput, match=damaged):
            import_langgraph(path, store, strict=True)
        assert store.stats().rows["events"] == 0
        would = import_langgraph(path, store, dry_run=True)
        report = import_langgraph(path, store)
        assert [msgspec.structs.astuple(each) for each in report.files] == [
            msgspec.structs.astuple(each) for each in would.files
        ]
        table = damage.split()[1]
        assert [each.left_out for each in report.files if each.path == table] == [1]
        assert [damaged in each for each in report.bad] == [True]
        assert all(each.found == each.new + each.left_out for each in report.files)
        assert import_langgraph(path, store).new == 0
        assert store.verify().ok
