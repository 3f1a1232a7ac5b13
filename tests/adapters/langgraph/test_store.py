"""`TreeringStore` against LangGraph's own in-memory store, and in graphs that are run."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TypedDict

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

import treering
from tests.server.test_background import eventually
from treering.adapters.langgraph import TreeringSaver, TreeringStore
from treering.adapters.langgraph.store import UnrankedWarning
from treering.core.clock import ManualClock
from treering.errors import InvalidInput


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as store:
        yield store


def test_items_come_back_with_their_times(opened):
    store = TreeringStore(opened)
    store.put(("users", "alice"), "tone", {"text": "concise", "n": 1})
    first = store.get(("users", "alice"), "tone")
    assert (first.value, first.key, first.namespace) == (
        {"text": "concise", "n": 1},
        "tone",
        ("users", "alice"),
    )
    store.put(("users", "alice"), "tone", {"text": "long"})
    second = store.get(("users", "alice"), "tone")
    assert second.value == {"text": "long"}
    assert second.created_at == first.created_at <= second.updated_at
    store.delete(("users", "alice"), "tone")
    assert store.get(("users", "alice"), "tone") is None
    assert opened.verify().ok


def test_a_query_is_ranked_and_returns_matches_only(opened):
    store = TreeringStore(opened)
    store.put(("docs", "a"), "1", {"text": "the walnut tree"})
    store.put(("docs", "a"), "2", {"text": "walnut walnut walnut cake"})
    store.put(("docs", "b", "c"), "3", {"text": "nothing of it", "kind": "x"})
    store.put(("other",), "4", {"text": "walnut"})
    found = store.search(("docs",), query="walnut cake")
    assert [each.key for each in found] == ["2", "1"]
    assert found[0].score > found[1].score
    assert [each.key for each in store.search(("docs",), query="walnut", limit=1, offset=1)] != []
    assert store.search(("docs", "b"), query="walnut") == []
    assert [each.key for each in store.search((), query="walnut", filter={"text": "walnut"})] == ["4"]
    with pytest.warns(UnrankedWarning, match="no words to search for"):
        assert store.search(("docs",), query="???") == []


def test_many_namespaces_are_searched_together(opened):
    store = TreeringStore(opened)
    store.batch([PutOp(("many", f"n{number}"), "k", {"text": f"walnut {number}"}) for number in range(20)])
    assert len(store.search(("many",), query="walnut", limit=50)) == 20
    assert store.search(("many",), query="walnut 7")[0].namespace == ("many", "n7")


def test_what_is_indexed_can_be_chosen(opened):
    store = TreeringStore(opened, index={"fields": ["title", "tags[*]"]})
    store.put(("a",), "1", {"title": "oak", "body": "beech", "tags": ["elm", "ash"]})
    store.put(("a",), "2", {"title": "oak", "body": "beech"}, index=["body"])
    store.put(("a",), "3", {"title": "oak"}, index=False)
    assert sorted(each.key for each in store.search(("a",), query="oak")) == ["1"]
    assert [each.key for each in store.search(("a",), query="beech")] == ["2"]
    assert [each.key for each in store.search(("a",), query="ash")] == ["1"]
    assert len(store.search(("a",))) == 3
    store.put(("a",), "1", {"title": "oak"}, index=False)
    assert store.search(("a",), query="elm") == []


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def count_letters(texts):
    """A small embedder: two texts with the same letters have the same vector."""
    return [[float(text.lower().count(letter)) for letter in LETTERS] for text in texts]


async def count_letters_async(texts):
    await asyncio.sleep(0)
    return count_letters(texts)


class LetterEmbeddings(Embeddings):
    model = "letters"

    def embed_documents(self, texts):
        return count_letters(texts)

    def embed_query(self, text):
        return count_letters([text])[0]


ITEMS = {
    "oak": {"text": "an oak in the wood", "tags": ["tree", "hard"], "n": 1},
    "cat": {"text": "a cat on the mat", "tags": ["animal"], "n": 2},
    "act": {"text": "the act of a lama", "tags": [], "n": 3},
}


@pytest.mark.parametrize("embed", [count_letters, count_letters_async, LetterEmbeddings()])
@pytest.mark.parametrize("fields", [None, ["text"], ["text", "tags[*]"]])
def test_with_an_embedder_items_are_ranked_as_langgraphs_own_store_ranks_them(opened, embed, fields):
    given = {"dims": 26, "embed": embed} | ({"fields": fields} if fields else {})
    ours, theirs = TreeringStore(opened, index=given), InMemoryStore(index=given)

    async def scene(store):
        for key, value in ITEMS.items():
            await store.aput(("things",), key, value)
        await store.aput(("things", "below"), "mat", {"text": "tac tac", "n": 2})
        found = []
        for query in ("cat", "wooden oak", "lama"):
            found.append(await store.asearch(("things",), query=query))
            found.append(await store.asearch(("things",), query=query, limit=1, offset=1))
            found.append(await store.asearch((), query=query, filter={"n": {"$gte": 2}}))
        return [[(each.key, round(each.score, 2)) for each in hits] for hits in found]

    assert asyncio.run(scene(ours)) == asyncio.run(scene(theirs))
    assert [each.key for each in ours.search(("things",), query="cat", limit=1)] == ["mat"]  # sync as well
    assert opened.verify().ok


@pytest.mark.parametrize("index", [{"fields": "text"}, {"text_fields": ["text"]}, {"fields": ("text",)}])
def test_fields_are_also_one_name_or_what_langgraphs_sqlite_store_calls_them(opened, index):
    store = TreeringStore(opened, index={"embed": count_letters, **index})
    store.put(("a",), "one", {"text": "cat", "more": "zebra zebra"})
    (found,) = store.search(("a",), query="cat")
    assert round(found.score, 2) == 1  # of the whole item, it would be less


@pytest.mark.parametrize("fields", [5, [5], [None, "text"]])
def test_fields_that_are_none_are_refused(opened, fields):
    with pytest.raises(InvalidInput, match="no fields; pass a list"):
        TreeringStore(opened, index={"fields": fields})


def test_a_vector_goes_with_its_item(opened):
    store = TreeringStore(opened, index={"embed": count_letters, "fields": ["text"]})
    plain = TreeringStore(opened)

    def keys(query):
        return [each.key for each in store.search(("a",), query=query)]

    store.put(("a",), "1", {"text": "zzz"})
    store.put(("a",), "2", {"text": "zzy"})
    assert keys("zzz") == ["1", "2"]
    store.put(("a",), "1", {"text": "zzz"}, index=False)
    assert keys("zzz") == ["2"]
    plain.put(("a",), "2", {"text": "qqq"})  # without an embedder: the vector is of an older value
    plain.put(("a",), "3", {"text": "zzz"})
    assert keys("zzz") == []
    assert store.embed_items() == 2
    assert asyncio.run(store.aembed_items()) == 0
    assert keys("zzz") == ["3", "2"]
    plain.delete(("a",), "3")
    assert keys("zzz") == ["2"]
    assert not [
        ref for ref in opened.engine.scan_refs(opened.space, "langgraph-vectors/") if ref.name[-1] == "3"
    ]
    opened.forget(namespace="a")
    assert not opened.engine.scan_refs(opened.space, "langgraph")
    assert opened.verify().ok


def test_an_embedder_that_does_not_fit_is_refused(opened):
    with pytest.raises(InvalidInput, match="26 dimensions, and index has dims=2"):
        TreeringStore(opened, index={"dims": 2, "embed": count_letters}).put(("a",), "k", {"text": "x"})
    with pytest.raises(InvalidInput, match="no embedder"):
        TreeringStore(opened).embed_items()
    renamed = TreeringStore(opened, index={"embed": LetterEmbeddings()})
    renamed.put(("a",), "k", {"text": "x"})
    assert TreeringStore(opened, index={"embed": count_letters}).search(("a",), query="x") == []


def test_a_sweeper_removes_expired_items_until_it_is_stopped(opened):
    clock = ManualClock()
    store = TreeringStore(opened, ttl={"default_ttl": 1, "sweep_interval_minutes": 0.0001}, clock=clock)
    store.put(("a",), "k", {"text": "walnut"})
    sweeper = store.start_ttl_sweeper()
    assert store.start_ttl_sweeper() is sweeper
    clock.advance(seconds=61)
    assert eventually(lambda: not opened.engine.scan_refs(opened.space, "langgraph/"))
    assert store.stop_ttl_sweeper()
    assert sweeper.result(timeout=30) is None

    async def started_by_awaiting():
        task = await store.start_ttl_sweeper(1)
        assert not task.done()
        task.cancel()
        return await store.astop_ttl_sweeper(30), task.cancelled()

    assert asyncio.run(started_by_awaiting()) == (True, True)
    assert TreeringStore(opened).start_ttl_sweeper().done()
    with TreeringStore(opened, ttl={"default_ttl": 1}) as other:
        running = other.start_ttl_sweeper()
    assert running.done()


def test_time_to_live_ends_and_is_renewed_by_reading(opened):
    clock = ManualClock()
    store = TreeringStore(opened, ttl={"refresh_on_read": True, "default_ttl": 10}, clock=clock)
    store.put(("a",), "read", {"text": "walnut"})
    store.put(("a",), "unread", {"text": "walnut"})
    store.put(("b",), "forever", {"text": "walnut"}, ttl=None)
    clock.advance(seconds=6 * 60)
    assert store.get(("a",), "read") is not None
    assert store.get(("a",), "unread", refresh_ttl=False) is not None
    clock.advance(seconds=6 * 60)
    assert store.get(("a",), "unread") is None
    assert [each.key for each in store.search((), query="walnut", refresh_ttl=False)] != ["unread"]
    assert sorted(each.key for each in store.search((), refresh_ttl=False)) == ["forever", "read"]
    assert store.sweep_ttl() == 1
    clock.advance(seconds=11 * 60)
    assert store.list_namespaces() == [("b",)]
    assert asyncio.run(store.asweep_ttl()) == 1
    assert store.sweep_ttl() == 0
    assert opened.verify().ok


def test_awkward_labels_and_keys_stay_apart(opened):
    store = TreeringStore(opened)
    places = [
        (("a", "b"), "c"),
        (("a",), "b/c"),
        (("a/b",), "c"),
        (("a%2fb",), "c"),
        (("a",), "b//c"),
        (("a", "b"), ""),
        (("a",), "b\nc"),
        (("日本",), "鍵"),
    ]
    for number, (namespace, key) in enumerate(places):
        store.put(namespace, key, {"n": number})
    assert [store.get(*place).value["n"] for place in places] == list(range(len(places)))
    found = {(each.namespace, each.key): each.value["n"] for each in store.search((), limit=50)}
    assert found == {place: number for number, place in enumerate(places)}
    assert sorted(each.value["n"] for each in store.search(("a",), limit=50)) == [0, 1, 4, 5, 6]
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(("a.b",), "k", {"v": 1})])


def test_forgetting_a_namespace_takes_its_items(opened):
    store = TreeringStore(opened)
    store.put(("users", "alice"), "k", {"text": "walnut"})
    store.put(("users", "bob"), "k", {"text": "walnut"})
    opened.forget(namespace="users/alice")
    assert store.list_namespaces() == [("users", "bob")]
    assert [each.namespace for each in store.search((), query="walnut")] == [("users", "bob")]


def test_a_graph_remembers_across_threads(opened):
    class State(TypedDict):
        said: str
        known: list[str]

    def node(state, *, store):
        known = [each.value["text"] for each in store.search(("facts",), query=state["said"])]
        store.put(("facts",), state["said"], {"text": state["said"]})
        return {"known": known}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=TreeringSaver(opened), store=TreeringStore(opened))
    first = graph.invoke({"said": "I like walnuts", "known": []}, {"configurable": {"thread_id": "1"}})
    second = graph.invoke({"said": "what do I like", "known": []}, {"configurable": {"thread_id": "2"}})
    assert (first["known"], second["known"]) == ([], ["I like walnuts"])


def test_the_same_awaited(tmp_path):
    async def scene():
        async with TreeringStore(tmp_path / "store") as store:
            await store.aput(("a",), "k", {"text": "walnut"})
            assert (await store.aget(("a",), "k")).value == {"text": "walnut"}
            assert len(await store.asearch(("a",), query="walnut")) == 1
            assert await store.alist_namespaces() == [("a",)]
            await store.adelete(("a",), "k")
            assert await store.aget(("a",), "k") is None

    asyncio.run(scene())


LABELS = ["a", "b", "a/b", "ä", "*x"]
FILTERS = [
    None,
    {"n": 3},
    {"s": "x"},
    {"d": {"e": [1, None, "z"]}},
    {"s": {"$ne": "x"}},
    {"s": {"$eq": "y"}},
    {"d": {"e": [1]}},
]


def _path(random, low, high, *more):
    return tuple(random.choice([*LABELS, *more]) for _ in range(random.randint(low, high)))


def _any_op(random):
    namespace, key = _path(random, 1, 3), random.choice(["k", "l", "k/l", ""])
    kind = random.randrange(6)
    if kind < 3:
        value = {"n": random.randint(0, 5), "s": random.choice("xy"), "d": {"e": [1, None, "z"]}}
        chosen = {name: each for name, each in value.items() if random.random() < 0.6}
        return PutOp(namespace, key, None if kind == 0 else chosen)
    if kind == 3:
        return GetOp(namespace, key)
    if kind == 4:
        return SearchOp(_path(random, 0, 2), filter=random.choice(FILTERS), limit=1000)
    conditions = tuple(
        MatchCondition(match_type=random.choice(["prefix", "suffix"]), path=_path(random, 1, 2, "*"))
        for _ in range(random.randint(0, 2))
    )
    return ListNamespacesOp(conditions, random.choice([None, 1, 2]), 1000, 0)


def _plain(result):
    if isinstance(result, list):
        return sorted((_plain(each) for each in result), key=repr)
    return (result.namespace, result.key, result.value) if hasattr(result, "key") else result


@pytest.mark.parametrize("seed", range(10))
def test_any_batches_give_what_langgraphs_own_store_gives(seed):
    random = Random(seed)
    theirs = InMemoryStore()
    with treering.open("memory:") as opened:
        ours = TreeringStore(opened)
        for _ in range(40):
            ops = [_any_op(random) for _ in range(random.randint(1, 5))]
            lists = [op for op in ops if isinstance(op, ListNamespacesOp)]
            ops = lists or ops  # theirs lists a namespace that was only asked for, or is empty again
            for space in [space for space, items in theirs._data.items() if not items]:
                del theirs._data[space]
            expected = theirs.batch(ops)
            for op, got, wanted in zip(ops, ours.batch(ops), expected, strict=True):
                assert _plain(got) == _plain(wanted), op
        everything = {(each.namespace, each.key): each.value for each in ours.search((), limit=1000)}
        assert everything == {
            (space, key): item.value for space, items in theirs._data.items() for key, item in items.items()
        }
