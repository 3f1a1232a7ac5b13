"""A graph's own types come back as themselves, as on LangGraph's savers; unknown ones are refused at once."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from typing import Any, TypedDict

import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

import treering
from tests.adapters.langgraph import shop
from tests.adapters.langgraph.scripts import config, put
from treering.adapters.langgraph import TreeringSaver, TreeringStore
from treering.errors import InvalidInput, Unencodable
from treering.importers.langgraph import import_langgraph

MAIN = "from tests.adapters.langgraph import shop; shop.main()"


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


def start(name: str, saver) -> Any:
    graph = shop.GRAPHS[name]().compile(checkpointer=saver)
    return graph.invoke({} if name == "functional" else {"messages": []}, config())


def expected(name: str) -> str:
    with SqliteSaver.from_conn_string(":memory:") as saver:
        start(name, saver)
        return shop.resume(name, saver)


def check(name: str, answer: str) -> None:
    if name == "local":  # SqliteSaver returns dicts for such types
        assert "[(4, 'yes')]" in answer
    else:
        assert answer == expected(name)


def test_each_graph_ends_as_on_sqlite_saver_when_another_process_resumes_it(tmp_path):
    for name in shop.GRAPHS:
        with TreeringSaver(tmp_path / name) as saver:
            start(name, saver)
    command = [sys.executable, "-c", MAIN, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    for name, answer in zip(shop.GRAPHS, found.stdout.splitlines(), strict=True):
        check(name, answer)


@pytest.mark.parametrize("name", shop.GRAPHS)
def test_a_new_saver_and_a_new_graph_know_the_types(store, name):
    start(name, TreeringSaver(store, writes="with_checkpoint"))
    check(name, shop.resume(name, TreeringSaver(store, writes="with_checkpoint")))


def test_asyncio_knows_the_types(store):
    async def both() -> tuple[Any, Any]:
        graph = shop.typed().compile(checkpointer=TreeringSaver(store))
        asked = (await graph.ainvoke({"messages": []}, config()))["__interrupt__"]
        again = shop.typed().compile(checkpointer=TreeringSaver(store))
        answers = Command(resume={each.id: shop.Answer(text="yes") for each in asked})
        return asked, await again.ainvoke(answers, config())

    asked, ended = asyncio.run(both())
    assert sorted(each.value.text for each in asked) == ["item 1?", "item 2?"]
    assert ended["item"] == shop.RareItem(id=7)
    assert sorted(ended["seen"]) == [(1, "yes"), (2, "yes")]


@dataclasses.dataclass
class Stranger:
    """No graph of these tests names it."""

    value: int


class AnyState(TypedDict):
    value: Any


def graph_of(saver, make):
    builder = StateGraph(AnyState)
    builder.add_node("make", lambda state: {"value": make()})  # noqa: ARG005
    builder.add_edge(START, "make")
    return builder.compile(checkpointer=saver)


NAMES = {"Stranger": Stranger}


def hidden() -> Any:
    return globals()["NAMES"]["Stranger"](1)


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"a": [x]}, lambda x: [ToolMessage("a", tool_call_id="1", artifact=x)]]
)
def test_an_unknown_type_is_refused_when_it_is_stored_and_the_error_names_the_line_that_allows_it(
    store, wrap
):
    saver = TreeringSaver(store)
    line = rf"TreeringSaver\(\.\.\., allow=\[\('{__name__}', 'Stranger'\)\]\)"
    with pytest.raises(Unencodable, match=line):
        graph_of(saver, lambda: wrap(hidden())).invoke({"value": None}, config())
    with pytest.raises(Unencodable, match=line):
        put(saver, {"value": wrap(Stranger(1))}, thread="bob")
    where = put(saver, {}, thread="carol")
    with pytest.raises(Unencodable, match=line):
        saver.put_writes(where, [("value", wrap(Stranger(1)))], "task")
    assert saver.get_tuple(config("bob")) is None
    assert saver.get_tuple(config("carol")).pending_writes == []
    allowed = TreeringSaver(store, allow=[(__name__, "Stranger")])
    put(allowed, {"value": wrap(Stranger(1))}, thread="bob")
    assert allowed.get(config("bob"))["channel_values"]["value"] == wrap(Stranger(1))


def test_a_stored_type_that_this_process_does_not_know_raises_and_is_not_built(store):
    put(TreeringSaver(store, allow=[Stranger]), {"value": Stranger(1)})
    with pytest.raises(InvalidInput, match=f"{__name__}.Stranger, which no graph of this saver names"):
        TreeringSaver(store).get(config())


def test_a_graph_that_another_saver_was_compiled_into_names_nothing(store, tmp_path):
    first, second = TreeringSaver(store), TreeringSaver(tmp_path / "other")
    graph = graph_of(first, lambda: Stranger(1))
    put(first, {"value": Stranger(1)})
    with pytest.raises(Unencodable):
        put(second, {"value": Stranger(1)})
    graph.checkpointer = second
    put(second, {"value": Stranger(1)})
    second.close()


def test_a_type_that_lost_its_fields_raises_instead_of_coming_back_as_a_dict(store, monkeypatch):
    put(TreeringSaver(store, allow=[Stranger]), {"value": Stranger(1)})

    @dataclasses.dataclass
    class Changed:
        other: int

    Changed.__name__ = "Stranger"
    monkeypatch.setattr(sys.modules[__name__], "Stranger", Changed)
    with pytest.raises(InvalidInput, match=r"a stored .*Stranger cannot be built"):
        TreeringSaver(store, allow=[(__name__, "Stranger")]).get(config())


def test_a_store_refuses_a_value_that_json_cannot_hold(store):
    memory = TreeringStore(store)
    with pytest.raises(Unencodable, match=r"shop\.Item"):
        memory.put(("users",), "a", {"item": shop.Item(id=1)})
    assert memory.get(("users",), "a") is None


def test_an_imported_thread_keeps_types_that_the_import_does_not_know(store, tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as source:
        start("typed", source)
        answer = expected("typed")
        import_langgraph(path, store)
    assert shop.resume("typed", TreeringSaver(store)) == answer
