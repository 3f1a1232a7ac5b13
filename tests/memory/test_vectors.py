"""Semantic search: what it finds, how vectors stay current, and how they are forgotten."""

from __future__ import annotations

import asyncio
import math
import sys
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from treering.compat.memory import FunctionEmbedder, StaticEmbedder
from treering.errors import InvalidInput, MissingExtra, NotFound
from treering.memory.search import MIN_COSINE
from treering.memory.vectors import VECTOR_REFS, VectorIndex, decode_vector, embed_texts

NOTES = {
    "allergy": "Alice must never eat peanuts or walnuts.",
    "travel": "Bob goes to Lisbon by train every spring.",
    "deploy": "We release the software on Friday at noon.",
    "pets": "Carol has a small dog called Rex.",
    "money": "The invoice was paid by bank transfer.",
}
IN_OTHER_WORDS = {
    "which puppy": "pets",
    "holiday in Portugal": "travel",
    "is almond butter dangerous?": "allergy",
}
TOPICS = ("nuts peanuts walnuts almond", "train holiday travel lisbon", "dog puppy pets cat")


def by_topic(texts):
    """Return how many words of each topic a text has."""
    return [
        [float(sum(word in text.lower() for word in topic.split())) for topic in TOPICS] for text in texts
    ]


class Counting:
    """An embedder that records the texts it embeds."""

    name = "counting"

    def __init__(self):
        self.texts = []

    def embed(self, texts):
        self.texts += texts
        return by_topic(texts)


@pytest.fixture(scope="module")
def static():
    return StaticEmbedder()


def ids(found):
    return [hit.document.id for hit in found]


def vectors_in(store):
    return [ref.name for ref in store.engine.scan_refs(store.space, VECTOR_REFS)]


def test_documents_without_a_common_word_are_found_by_meaning(store, static):
    memory = store.memory.with_embedder(static)
    memory.save_many({"id": name, "content": text} for name, text in NOTES.items())
    for question, wanted in IN_OTHER_WORDS.items():
        assert wanted not in ids(store.memory.search(question))
        assert ids(memory.search(question))[0] == wanted
        assert ids(store.memory.search(question, embedder=static))[0] == wanted
        assert ids(store.memory.search(question, embedder=static, everywhere=True))[0] == wanted
    assert ids(memory.search("invoice"))[0] == "money"


def test_dissimilar_documents_are_not_found(static):
    with treering.open("memory:") as store:
        memory = store.memory.with_embedder(static)
        memory.save_many({"id": name, "content": text} for name, text in NOTES.items())
        assert len(memory.search("quantum chromodynamics", limit=5)) == 0


def test_each_text_is_embedded_once(store):
    counting = Counting()
    memory = store.memory.with_embedder(counting)
    memory.save("a", "dog", tags=["x"])
    memory.save("a", "dog", tags=["y"])
    memory.save("a", "dog", tags=["y"])
    assert counting.texts == ["dog"]
    memory.update("a", lambda text: text + " and cat")
    memory.save_many([{"id": "a", "content": "dog and cat"}, {"id": "b", "content": "train"}])
    assert counting.texts == ["dog", "dog and cat", "train"]
    assert len(vectors_in(store)) == 2


def test_changes_by_another_process_are_picked_up(tmp_path):
    embedder = Counting()
    with treering.open(tmp_path / "s") as one, treering.open(tmp_path / "s") as two:
        here, there = one.memory.with_embedder(embedder), two.memory.with_embedder(embedder)
        there.save("x", "about a puppy")
        assert ids(here.search("dog?")) == ["x"]
        there.save("y", "a cat")
        assert set(ids(here.search("dog?"))) == {"x", "y"}
        there.save("x", "about a train")
        assert ids(here.search("dog?")) == ["y"]
        there.delete("y")
        assert ids(here.search("dog?")) == []
        there.restore("y", 1)
        assert ids(here.search("dog?")) == ["y"]
        two.forget(scope="/memory/y")
        assert ids(here.search("dog?")) == []
        assert ids(here.search("dog?", everywhere=True)) == []


def test_a_vector_of_a_former_text_does_not_count(store):
    memory = store.memory.with_embedder(Counting())
    memory.save("a", "puppy puppy")
    store.memory.save("a", "now about holiday")  # by someone who has no embedder
    assert ids(memory.search("dog")) == []
    assert ids(memory.search("holiday")) == ["a"]
    by_words = store.memory.search("holiday").hits[0]
    assert by_words.document.content == "now about holiday"
    assert memory.embed() == 1
    assert memory.embed() == 0
    assert ids(memory.search("lisbon")) == ["a"]


def test_missing_vectors_are_reported_and_can_be_created(store):
    store.memory.save("a", "dog")
    memory = store.memory.with_embedder(Counting())
    found = memory.search("dog")
    assert ids(found) == ["a"]
    assert "no document here has a vector" in found.note
    assert ids(memory.search("puppy")) == []
    assert memory.embed() == 1
    assert ids(memory.search("puppy")) == ["a"]
    assert memory.search("puppy").note == ""
    assert [version.version for version in memory.history("a")] == [1]
    with pytest.raises(InvalidInput, match="no embedder"):
        store.memory.embed()


def test_namespaces_are_separate(store):
    memory = store.memory.with_embedder(Counting())
    memory.in_namespace("user/a").save("x", "puppy")
    memory.in_namespace("user").save("y", "puppy")
    assert ids(memory.in_namespace("user/a").search("dog")) == ["x"]
    assert ids(memory.in_namespace("user").search("dog")) == ["y"]
    assert ids(memory.search("dog")) == []
    assert {hit.namespace for hit in memory.search("dog", everywhere=True)} == {"user", "user/a"}


def test_vectors_are_deleted_and_forgotten_with_their_document(store):
    memory = store.memory.with_embedder(Counting())
    memory.save("a", "dog")
    memory.save("b", "dog")
    memory.in_namespace("user/c").save("c", "dog")
    memory.delete("a")
    assert len(vectors_in(store)) == 2
    memory.forget("b")
    store.forget(namespace="user/c")
    assert vectors_in(store) == []
    assert store.verify().ok


def test_forgetting_leaves_no_byte_of_a_vector(tmp_path):
    odd = [0.123456 + number / 1000 for number in range(64)]
    embedder = FunctionEmbedder("odd", lambda texts: [odd for _ in texts])
    with treering.open(tmp_path / "s") as store:
        memory = store.memory.with_embedder(embedder)
        memory.save("a", "something")
        (ref,) = store.engine.scan_refs(store.space, VECTOR_REFS)
        canary = decode_vector(ref.value).numbers
        store.memory.forget("a")
    left = [path for path in (tmp_path / "s").rglob("*") if path.is_file() and canary in path.read_bytes()]
    assert left == []


@pytest.mark.parametrize("text", ["dog", "dog " * 3000], ids=["small", "shared"])
def test_no_vector_is_created_for_a_text_forgotten_meanwhile(store, text):
    """Someone forgets a document while another process is embedding what has no vector yet."""
    store.memory.save("a", text)
    store.memory.in_namespace("other").save("same", text)  # large content is stored once for both

    def forgetting(texts):
        store.memory.forget("a")
        return by_topic(texts)

    memory = store.memory.with_embedder(FunctionEmbedder("late", forgetting))
    assert memory.embed() == 0
    assert vectors_in(store) == []
    assert list(memory.history("a")) == []
    with pytest.raises(NotFound):
        store.forget(scope="/memory/a")


def test_a_copied_store_has_the_vectors(tmp_path):
    with treering.open(tmp_path / "s") as store, treering.open(tmp_path / "t") as other:
        store.memory.with_embedder(Counting()).save("a", "puppy")
        store.copy_to(other)
        assert ids(other.memory.with_embedder(Counting()).search("dog")) == ["a"]


def test_the_async_api(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "s") as store:
            memory = store.memory.with_embedder(Counting())
            await memory.save("a", "puppy")
            assert ids(await memory.search("dog")) == ["a"]
            assert await memory.embed() == 0

    asyncio.run(main())


def test_neighbours_and_tags_combine_with_semantic_search(store):
    memory = store.memory.with_embedder(Counting())
    for number, text in enumerate(["puppy", "yes, it is lovely", "something else", "train"]):
        memory.save(f"turn-{number}", text, tags=["odd"] if number % 2 else [])
    assert ids(memory.search("dog", neighbours=0.3)) == ["turn-0", "turn-1"]
    assert ids(memory.search("dog", neighbours=0.3, tags=["odd"])) == ["turn-1"]


@pytest.mark.parametrize(
    "vectors, what",
    [
        ([], "returned 0 vectors"),
        ([[1.0], [1.0]], "returned 2 vectors"),
        ([[]], "vectors of"),
        ([[math.nan]], "not finite"),
    ],
)
def test_an_invalid_embedder_result_changes_nothing(store, vectors, what):
    memory = store.memory.with_embedder(FunctionEmbedder("bad", lambda _: vectors))
    with pytest.raises(InvalidInput, match=what):
        memory.save("a", "x")
    assert store.memory.get("a") is None


def test_a_model_that_changed_under_its_name_is_an_error():
    with treering.open("memory:") as store:
        store.memory.with_embedder(FunctionEmbedder("e", lambda texts: [[1.0, 0.0]] * len(texts))).save(
            "a", "x"
        )
        other = store.memory.with_embedder(FunctionEmbedder("e", lambda texts: [[1.0]] * len(texts)))
        with pytest.raises(InvalidInput, match="rename an embedder"):
            other.search("x")
        with pytest.raises(InvalidInput, match="is not an embedder"):
            store.memory.with_embedder(by_topic)
        with pytest.raises(InvalidInput, match="semantic_weight is 2"):
            store.memory.search("x", semantic_weight=2)


def test_a_function_embedder_calls_in_batches():
    seen = []

    def function(texts):
        seen.append(len(texts))
        return [[1.0]] * len(texts)

    assert len(FunctionEmbedder("f", function, batch=3).embed(list("abcdefg"))) == 7
    assert seen == [3, 3, 1]


def test_the_static_embedder_needs_its_extra(static, monkeypatch):
    once, again = static.embed(["a small dog"]), static.embed(["something else", "a small dog"])
    assert once[0] == again[1]
    assert static.embed(["", "x"])[0] == [0.0] * 256
    monkeypatch.setitem(sys.modules, "wordllama", None)
    monkeypatch.setattr("treering.memory.vectors.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"treering\[embeddings\]"):
        StaticEmbedder()


def test_what_all_vectors_share_is_removed():
    """Vectors with a large common part are distinguished by the rest."""
    random = Random(1)
    rest = [[random.gauss(0, 1) for _ in range(32)] for _ in range(300)]
    shifted = {f"text {number}": [each + 20 for each in numbers] for number, numbers in enumerate(rest)}
    embedder = FunctionEmbedder("shifted", lambda texts: [shifted[text] for text in texts])
    with treering.open("memory:") as store:
        memory = store.memory.with_embedder(embedder)
        memory.save_many({"id": str(number), "content": f"text {number}"} for number in range(300))
        similar = VectorIndex().compare(
            store.engine, store.space, "", embedder, "text 7", limit=2, include=["memory//9", "memory//none"]
        )
        assert similar.scores["memory//7"] > 0.99
        assert similar.scores["memory//9"] < 0.9
        assert set(similar.scores) >= {"memory//7", "memory//9"}
        assert similar.rows == 300


CHANGES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["dog", "cat dog", "train", "peanuts", None])),
    max_size=12,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(CHANGES)
def test_an_index_kept_current_equals_a_new_one(changes):
    embedder = Counting()
    with treering.open("memory:") as store:
        memory = store.memory.with_embedder(embedder)
        for name, text in changes:
            if text is None:
                memory.delete(name)
            else:
                memory.save(name, text)
            grown = memory.search("puppy train", limit=10)
            fresh = VectorIndex()
            found = fresh.compare(
                store.engine, store.space, "", embedder, "puppy train", limit=10, include=()
            ).scores
            assert {f"memory//{hit.document.id}" for hit in grown} == {
                each for each, cosine in found.items() if cosine >= MIN_COSINE
            } | {f"memory//{each.id}" for each in memory.query(filter=lambda d: "train" in d.content)}


@given(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4).filter(lambda v: math.hypot(*v) > 1e-3))
def test_a_stored_vector_has_length_one(numbers):
    (stored,) = embed_texts(FunctionEmbedder("f", lambda _: [numbers]), ["x"])
    import numpy as np

    assert abs(float(np.linalg.norm(np.frombuffer(stored, "<f2").astype("f4"))) - 1) < 0.01
