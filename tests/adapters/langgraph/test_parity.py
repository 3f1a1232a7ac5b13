"""Beside LangGraph's own `InMemorySaver`: the same answers, states, histories, metadata and pending writes.

Ids and times differ from run to run, so ids are replaced by the order in which they come up. Three things may
differ: the order of questions that are asked side by side, tuples (which LangGraph's serializer gives back as
lists, ours as they were), and where a delta channel that did not change is shown whole.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt

import treering
from tests.adapters.langgraph.scenarios import SCENARIOS, Basket
from tests.adapters.langgraph.talk import Talk
from treering.adapters.langgraph import TreeringSaver

IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")
ALLOWED = [Basket]
THEIRS = JsonPlusSerializer(allowed_msgpack_modules=ALLOWED)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open(
        "memory:" if request.param == "memory" else tmp_path / "store", durability="fast"
    ) as opened:
        yield opened


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_graph_does_the_same_as_in_memory(store, name, awaits):
    with TreeringSaver(store, allow=ALLOWED) as saver:
        ours = portrait(name, saver, awaits=awaits)
    assert ours == theirs(name, awaits)
    assert store.verify().ok


class Given(TreeringSaver):
    """Remembers each checkpoint as the graph put it."""

    def put(self, config, checkpoint, metadata, new_versions):
        given[checkpoint["id"]] = copy.deepcopy(checkpoint)
        return super().put(config, checkpoint, metadata, new_versions)


given: dict[str, Any] = {}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_checkpoint_comes_back_exactly_as_the_graph_put_it(store, name):
    given.clear()
    with Given(store, allow=ALLOWED) as saver:
        # Saved before the next step: a Topic hands out its own list, which that step extends.
        talk = Talk(saver, awaits=False, durability="sync")
        SCENARIOS[name](talk)
        found = [each for thread in talk.threads for each in talk.kept(thread)]
        for each in [*found, *map(saver.get_tuple, [each.config for each in found])]:
            # What a hook of its own put was never a graph's.
            assert each.checkpoint == given.get(each.checkpoint["id"], each.checkpoint)
    assert len(given) >= len(found) > 0


@cache
def theirs(name, awaits):
    return portrait(name, InMemorySaver(serde=THEIRS), awaits=awaits)


def portrait(name: str, saver, *, awaits: bool) -> list[str]:
    """A scenario's answers and all that was kept of it, line by line."""
    talk = Talk(saver, awaits=awaits)
    SCENARIOS[name](talk)
    told = _Teller()
    lines = [told(each) for each in talk.log]
    for thread, graph in talk.threads.items():
        lines.append(f"thread {thread}")
        for each in talk.history(thread, graph):
            lines += [told(each.config), told(each.parent_config), told(each.tasks), told(each.next)]
            lines += [told(each.values), told(each.metadata), told(each.interrupts)]
        # In the order of their namespaces: which graph inside saves first is no checkpointer's affair.
        for each in sorted(
            talk.kept(thread), key=lambda it: told(it.config["configurable"]["checkpoint_ns"])
        ):
            lines += _kept(told, each)
    return lines


def _kept(told, each) -> list[str]:
    checkpoint = each.checkpoint
    values = {
        name: value
        for name, value in checkpoint["channel_values"].items()
        if not isinstance(value, _DeltaSnapshot)  # theirs shows it again at steps that did not change it
    }
    return [
        told(each.config),
        told(each.parent_config),
        told(each.metadata),
        told(values),
        told(_versions(checkpoint["channel_versions"])),
        told({node: _versions(seen) for node, seen in checkpoint["versions_seen"].items()}),
        told(sorted(checkpoint["updated_channels"] or ())),
        *sorted(told(list(write)) for write in each.pending_writes or ()),
    ]


def _versions(versions) -> dict[str, int]:
    """As numbers: `InMemorySaver` has texts that begin with one."""
    return {name: int(str(version).partition(".")[0]) for name, version in versions.items()}


class _Teller:
    """Says what a value is, with ids by the order in which they come up."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __call__(self, value: Any) -> str:
        return IDS.sub(lambda found: self._ids.setdefault(found[0], f"#{len(self._ids)}"), _plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, BaseMessage):
        return f"{type(value).__name__}{_plain(value.model_dump())}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = {name: each for name, each in value._asdict().items() if name != "created_at"}
        return f"{type(value).__name__}{_plain(fields)}"
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], Interrupt):
            value = sorted(value, key=lambda each: repr(each.value))
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, set):
        return f"set({', '.join(sorted(map(_plain, value)))})"
    return repr(value)
