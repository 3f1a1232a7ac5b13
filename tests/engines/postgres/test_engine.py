"""Search on PostgreSQL: scores, odd texts, and namespaces."""

from __future__ import annotations

import pytest

from treering.core.batch import Draft, Text
from treering.core.query import SearchQuery
from treering.engines.postgres import open_postgres
from treering.testing import batches


@pytest.fixture
def engine(postgres_url):
    engine = open_postgres(postgres_url)
    yield engine
    engine.close()


@pytest.fixture
def found(engine):
    def found(text, **fields):
        query = SearchQuery(**{"collection": "notes", "text": text} | fields)
        return [(hit.name, hit.score) for hit in engine.search("default", query).hits]

    return found


def _index(engine, texts, **fields):
    for name, text in texts.items():
        engine.commit(batches.index_text("default", name, text, **fields))


def _names(hits):
    return [name for name, _ in hits]


def test_rare_words_count_more(engine, found):
    _index(engine, {f"common {number}": "maple leaf" for number in range(20)})
    _index(engine, {"both": "maple walnut", "rare": "walnut trunk"})
    assert _names(found("maple walnut", limit=2)) == ["both", "rare"]


def test_repeated_words_count_a_little_more_and_length_a_little_less(engine, found):
    filler = " ".join(f"word{number}" for number in range(40))
    _index(engine, {"long": f"cedar {filler}", "short": "cedar bark", "twice": "cedar cedar bark"})
    assert _names(found("cedar")) == ["twice", "short", "long"]
    scores = [score for _, score in found("cedar")]
    assert scores[0] < 3 * scores[2]


def test_equal_texts_come_in_the_order_of_their_age_and_always_the_same(engine, found):
    names = [f"note {number}" for number in (3, 1, 2, 5, 4)]
    _index(engine, dict.fromkeys(names, "the same larch"))
    assert [found("larch") for _ in range(3)] == [found("larch")] * 3
    assert _names(found("larch")) == names


def test_common_words_are_found_when_they_are_all_there_is(engine, found):
    _index(engine, {"hamlet": "To be, or not to be", "other": "a question"})
    assert _names(found("to be or not")) == ["hamlet"]


@pytest.mark.parametrize(
    "text",
    [
        "needle \x00 in a text with NUL",
        "needle " + "x" * 100_000,
        "needle " + " ".join(f"w{number}" for number in range(200_000)),
        "needle " * 10_000,
        "needle ' \\ : | & ! ( ) <-> 'quoted' \\' '' ",
        "needle 🌲 Ünïcödé \u202e",
    ],
)
@pytest.mark.parametrize("tokens", ["words", "trigrams"])
def test_any_text_can_be_indexed(engine, found, text, tokens):
    _index(engine, {"odd": text}, tokens=tokens)
    assert _names(found("needle")) == ["odd"]


def test_trigrams_are_no_marks_of_namespaces(engine, found):
    """A text may contain what stands for a collection or a namespace inside the index."""
    _index(engine, {"a": "\x011 1.2 \x01\x01 juniper"}, tokens="trigrams", namespace="one")
    _index(engine, {"b": "plain juniper"}, tokens="trigrams", namespace="two")
    assert _names(found("juniper", namespace="two")) == ["b"]
    assert _names(found("juniper", namespace="")) == []


def test_many_texts_in_one_batch_are_all_indexed_and_replaced(engine, found):
    for word in ("birch", "aspen"):
        draft = Draft("default")
        for number in range(100):
            source = draft.put(batches.words(f"{word} number{number}"), scope="s")
            draft.set_ref(f"r{number}", b"", scope="s", links=(source,))
            collection = "notes" if number % 2 else "other"
            draft.text(Text(collection=collection, name=f"n{number}", scope="s", source=source))
        engine.commit(draft.batch())
    assert found("birch") == []
    assert len(found("aspen", limit=200)) == 50
    assert _names(found("number99")) == ["n99"]
