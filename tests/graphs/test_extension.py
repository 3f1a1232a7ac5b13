"""Rows of checkpoints: what they leave out is restored when they are read."""

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.query import EventQuery
from treering.errors import Corrupt
from treering.graphs.extension import GRAPH, lengthened, shortened
from treering.threads.checkpoint import KIND, read_checkpoint

names = st.sampled_from(["messages", "branch:to:agent", "files", "a", "1", "0", ""])
versions = st.integers(0, 3) | st.booleans() | st.none() | st.sampled_from(["1", "00000.5", ""])
numbered = st.dictionaries(names, versions, max_size=5)
values = st.dictionaries(names, st.none() | st.integers(0, 9) | st.text(max_size=4), min_size=1, max_size=4)
graphs = st.fixed_dictionaries(
    {
        "id": st.text(min_size=1, max_size=8),
        "v": st.integers(1, 4),
        "ts": st.text(max_size=8),
        "versions": numbered,
        "seen": st.dictionaries(names, numbered, max_size=3),
    },
    optional={
        "parent": st.text(min_size=1, max_size=8),
        "updated": st.lists(names, max_size=4),
        "values": values,
        "messages": st.lists(names, min_size=1, max_size=3),
        "ns": st.text(min_size=1, max_size=4),
        "hidden": st.dictionaries(names, st.integers(0, 9), min_size=1, max_size=2),
        "shadows": st.lists(names, min_size=1, max_size=2),
    },
)


@given(graphs)
def test_what_is_shortened_comes_back_as_it_was(graph):
    stored = orjson.dumps(shortened(graph))
    back = lengthened(orjson.loads(stored))
    assert back == graph
    assert orjson.dumps(back, option=orjson.OPT_SORT_KEYS) == orjson.dumps(graph, option=orjson.OPT_SORT_KEYS)
    assert list(back["versions"]) == list(graph["versions"])


GRAPH_FIELDS = {
    "id": "1f1e23df-5dde-6bcd-83e7-6dd12d5fa3f5",
    "v": 4,
    "ts": "2026-11-16T07:00:00.000000+00:00",
    "versions": {"messages": 7, "branch:to:agent": 7},
    "seen": {"__input__": {}, "agent": {"branch:to:agent": 6}},
    "parent": "1f1e23df-5ddc-640c-83e6-a811ba7d18da",
    "updated": ["branch:to:agent", "messages"],
    "values": {"branch:to:agent": None},
    "messages": ["messages"],
}


@pytest.fixture
def saved():
    """A thread of two checkpoints, and what its store holds of the second one."""
    with treering.open("memory://") as store:
        thread = store.thread("talk/1", namespace="a/b")
        thread.checkpoint(messages=["one"])
        thread.checkpoint(messages=["one", "two"], metadata={"step": 1, GRAPH: GRAPH_FIELDS}, step=1)
        query = EventQuery(kinds=(KIND,), newest_first=True)
        yield store, store.engine.scan(store.space, query).records


def test_a_row_leaves_out_what_its_event_says(saved):
    store, (record, first) = saved
    row = orjson.loads(record.event.data)
    assert set(row) == {"parent", "lists", "metadata", "graph"}
    assert first.event.id.endswith(row["parent"])
    assert len(row["parent"]) < len(first.event.id)
    found = read_checkpoint(store.engine, store.space, record)
    assert (found.thread, found.namespace, found.step, found.parent) == ("talk/1", "a/b", 1, first.event.id)
    assert found.metadata == {"step": 1, GRAPH: GRAPH_FIELDS}


def test_a_parent_that_is_much_older_is_stored_with_its_whole_id(saved):
    store, (record, _) = saved
    old = "ckpt_00000000000000000000000001"
    row = orjson.loads(record.event.data) | {"parent": old}
    event = msgspec.structs.replace(record.event, data=orjson.dumps(row))
    changed = msgspec.structs.replace(record, event=event)
    assert read_checkpoint(store.engine, store.space, changed).parent == old


@pytest.mark.parametrize(
    "odd", ["mine", None, {"id": 1}, {**GRAPH_FIELDS, "updated": "ab"}, {**GRAPH_FIELDS, "seen": []}]
)
def test_metadata_that_only_has_the_name_stays_as_it_is(saved, odd):
    store, _ = saved
    saved = store.thread("other").checkpoint(messages=["one"], metadata={GRAPH: odd})
    (record,) = store.engine.scan(store.space, EventQuery(kinds=(KIND,), ids=(saved.id,))).records
    assert read_checkpoint(store.engine, store.space, record).metadata == {GRAPH: odd}


@pytest.mark.parametrize(
    "row",
    [
        b"{}",
        b'{"step":',
        b'{"step":"1"}',
        b'{"metadata":{"step":1},"graph":[1]}',
        b'{"step":1,"graph":{}}',
    ],
)
def test_a_row_that_makes_no_sense_is_corrupt(saved, row):
    store, (record, _) = saved
    event = msgspec.structs.replace(record.event, data=row)
    with pytest.raises(Corrupt, match="cannot be read"):
        read_checkpoint(store.engine, store.space, msgspec.structs.replace(record, event=event))
