"""Kept steps of a graph can be read: nothing that they depend on is dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.paging import each_record
from treering.core.query import EventQuery
from treering.core.retention import DeltaStep, delta_dependencies
from treering.graphs.step import delta_step

CHANNELS = ("a", "b")
some = st.frozensets(st.sampled_from(CHANNELS))


@st.composite
def histories(draw):
    """Steps with earlier steps as parents; each stores some channels and refers to its parent for others."""
    steps = {}
    for number in range(draw(st.integers(1, 12))):
        parent = f"{draw(st.integers(0, number - 1))}" if number and draw(st.booleans()) else None
        held = draw(some)
        copied = parent if draw(st.integers(0, 4)) == 0 else None
        steps[f"{number}"] = DeltaStep(parent, copied, frozenset(CHANNELS) - held, held)
    return steps


def is_readable(name, steps, stored):
    step = steps[name]
    if step.copy_of is not None and step.copy_of not in stored:
        return False
    missing, parent = step.open, step.parent
    while missing and parent is not None:
        if parent not in stored:
            return False
        missing, parent = missing - steps[parent].held, steps[parent].parent
    return True


@given(steps=histories(), chosen=st.sets(st.integers(0, 11).map(str)))
def test_kept_steps_can_be_read(steps, chosen):
    kept = chosen & steps.keys()
    needed = delta_dependencies(kept, steps)
    assert needed.isdisjoint(kept)
    assert all(is_readable(each, steps, kept | needed) for each in kept | needed)


def test_a_step_that_stores_everything_depends_on_no_other():
    steps = {
        "0": DeltaStep(None, None, frozenset("a"), frozenset()),
        "1": DeltaStep("0", None, frozenset(), frozenset("a")),
        "2": DeltaStep("1", None, frozenset("a"), frozenset()),
        "3": DeltaStep("2", None, frozenset("a"), frozenset()),
    }
    assert delta_dependencies({"1"}, steps) == set()
    assert delta_dependencies({"3"}, steps) == {"1", "2"}


def test_a_row_names_its_open_channels():
    graph = {"id": "x", "v": 4, "ts": "now", "versions": {"a": 1, "b": 1, "c": 1, "d": 1}, "seen": {}}
    graph |= {"values": {"b": 1}, "shadows": ["c"]}
    counted = {"a": [1, 1], "b": [1, 1], "c": [1, 1], "not yet": [0, 0]}
    with treering.open("memory:") as store:
        plain = store.thread("t").checkpoint(lists={"c": [1]}, state={"d": 2})
        store.thread("t").checkpoint(
            metadata={"_graph": graph, "counters_since_delta_snapshot": counted, "step": 1}
        )
        store.thread("t").checkpoint(metadata={"_graph": "a user's own"})
        records = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
        found = [delta_step(store.engine, store.space, each) for each in records]
    assert found == [None, DeltaStep(plain.id, None, frozenset("ac"), frozenset("bd")), None]
