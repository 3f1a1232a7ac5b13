"""Search by words: ranking on every engine, and queries that cannot be ranked."""

from __future__ import annotations

import pytest

import treering
from treering.errors import InvalidInput

NOTES = {
    "refund": "The refund for order 118 was sent on Monday by bank transfer.",
    "tone": "Alice prefers concise replies without small talk.",
    "allergy": "Alice is allergic to peanuts; never suggest satay.",
    "travel": "Bob travels to Lisbon every spring and likes trains.",
    "deploy": "Deployments run on Fridays at noon; the rollback script is in ops/.",
    "garden": "The walnut tree in the garden was planted in 1987.",
}

QUESTIONS = {
    "what food must we not give to alice, peanut?": "allergy",
    "When is the next deployment?": "deploy",
    "travelling by train": "travel",
    "how concise should a reply be": "tone",
    "was my refund transferred": "refund",
    "trees planted in a garden": "garden",
    "lisbon": "travel",
    "rolling back a deployment": "deploy",
}


@pytest.fixture
def notes(store):
    for name, text in NOTES.items():
        store.memory.save(name, text, tags=["alice"] if "Alice" in text else [])
    return store.memory


def test_queries_find_their_document_first(store, notes):
    if store.url == "memory:":
        pytest.skip("the engine for tests knows only the simplest endings")
    first = {question: notes.search(question).hits[0].document.id for question in QUESTIONS}
    assert first == QUESTIONS


def test_better_matches_score_higher_and_tags_filter(notes):
    found = notes.search("alice peanuts")
    assert found.ranked
    assert [hit.document.id for hit in found] == ["allergy", "tone"]
    assert found.hits[0].score > found.hits[1].score
    tagged = notes.search("alice garden", tags=["alice"]).documents
    assert sorted(each.id for each in tagged) == ["allergy", "tone"]
    assert notes.search("elephants").hits == ()
    assert notes.search("elephants").ranked


def test_a_rare_tag_is_found_among_many_better_matches(store):
    for number in range(120):
        store.memory.save(f"common/{number}", "walnut walnut walnut")
    store.memory.save("rare", "one walnut among many other words about trees", tags=["rare"])
    assert [each.id for each in store.memory.search("walnut", tags=["rare"], limit=1).documents] == ["rare"]


@pytest.mark.parametrize("question", ["", "   ", "?!", "...", "🌳"])
def test_a_query_without_words_is_not_ranked(notes, question):
    found = notes.search(question)
    assert (found.hits, found.ranked) == ((), False)
    assert "no word" in found.note


def test_scripts_without_spaces_are_searched_by_trigrams(store):
    store.memory.save("tokyo", "東京の天気は晴れです")
    store.memory.save("kyoto", "京都の寺院を訪れる予定")
    store.memory.save("plain", "no such characters")
    assert [each.id for each in store.memory.search("天気は晴れ").documents] == ["tokyo"]
    assert [each.id for each in store.memory.search("寺院を訪れる").documents] == ["kyoto"]
    short = store.memory.search("天気")
    assert [each.id for each in short.documents] == ["tokyo"]
    assert not short.ranked
    assert "3 characters" in short.note
    store.memory.save("tokyo", "now in English")
    assert store.memory.search("天気は晴れ").hits == ()
    assert [each.id for each in store.memory.search("english").documents] == ["tokyo"]


def test_former_and_deleted_texts_are_not_found(notes):
    notes.save("tone", "Alice now wants long replies with anecdotes.")
    assert notes.search("concise").hits == ()
    notes.delete("tone")
    assert notes.search("anecdotes").hits == ()
    notes.restore("tone", 1)
    assert [each.id for each in notes.search("concise").documents] == ["tone"]


def test_reindex_keeps_the_results(store, notes):
    before = {question: [hit.document.id for hit in notes.search(question)] for question in QUESTIONS}
    store.reindex()
    assert {question: [hit.document.id for hit in notes.search(question)] for question in QUESTIONS} == before


def test_neighbours_of_a_match_score_higher():
    with treering.open("memory:") as store:
        turns = [
            "Good morning!",
            "Where did you go on your birthday?",
            "To the aquarium, with my sister.",
            "Nice weather today.",
            "The birthday cake was gone in minutes.",
        ]
        for number, text in enumerate(turns):
            store.memory.save(f"talk/turn-{number}", text)
        alone = [each.id for each in store.memory.search("where on your birthday", limit=4).documents]
        helped = [
            each.id
            for each in store.memory.search("where on your birthday", limit=4, neighbours=0.4).documents
        ]
        assert "talk/turn-2" not in alone
        assert "talk/turn-2" in helped


def test_a_limit_below_one_is_rejected(notes):
    with pytest.raises(InvalidInput, match="limit is 0"):
        notes.search("alice", limit=0)
