"""A key-value saver does not walk through everything for each new thread, and still misses no lost head."""

from __future__ import annotations

import asyncio

import pytest

from tests.compat.savers.savers_under_test import AsyncStore, PlainStore, say
from treering.compat.savers import KeyValueStoreSaver
from treering.compat.savers.kv_thread import WITNESS
from treering.errors import Corrupt
from treering.keyvalue import InMemoryStore


class Counting(PlainStore):
    """Counts how often it had to list."""

    lists = 0

    def list(self, prefix=""):
        self.lists += 1
        return super().list(prefix)


def head_of(kept, thread_id="t"):
    return next(key for key in kept if key.endswith(f"head/{thread_id}"))


def test_new_and_missing_threads_take_one_list_for_all():
    kept = Counting()
    saver = KeyValueStoreSaver(kept)
    for number in range(50):
        assert not saver.exists(f"t{number}")
        saver.save(thread_id=f"t{number}", messages=[say("hi")])
        assert saver.load(f"never {number}") is None
    assert kept.lists == 1
    again = KeyValueStoreSaver(kept)
    for number in range(50):
        again.save(thread_id=f"t{number}", messages=[say("hi"), say("again")])
        again.save(thread_id=f"new {number}", messages=[say("hi")])
    assert kept.lists == 2


@pytest.mark.parametrize("make", [PlainStore, InMemoryStore])
def test_a_head_that_goes_after_the_list_is_missed(make):
    """Of a thread that another saver began meanwhile, too."""
    kept = make()
    saver, other = KeyValueStoreSaver(kept), KeyValueStoreSaver(kept)
    assert saver.load("t") is None
    other.save(thread_id="t", messages=[say("one")])
    kept.delete(head_of(kept.list()))
    for ask in (
        lambda: saver.load("t"),
        lambda: saver.exists("t"),
        lambda: saver.save(thread_id="t", messages=[say("anew")]),
        lambda: KeyValueStoreSaver(kept).load("t"),
    ):
        with pytest.raises(Corrupt, match=r"its head .* is missing"):
            ask()
    saver.delete("t")
    assert list(kept.list()) == []
    saver.save(thread_id="t", messages=[say("anew")])
    assert saver.load("t").messages == [say("anew")]


def test_threads_of_before_are_known_without_a_witness():
    kept = PlainStore()
    first = KeyValueStoreSaver(kept)
    for thread_id in ("t", "u"):
        first.save(thread_id=thread_id, messages=[say("one")])
        kept.delete(next(key for key in kept if key.endswith(f"/{thread_id}/{WITNESS}")))
    saver = KeyValueStoreSaver(kept)
    assert saver.load("new") is None
    saver.save(thread_id="u", messages=[say("one"), say("two")])
    for thread_id in ("t", "u"):
        kept.delete(head_of(kept, thread_id))
        with pytest.raises(Corrupt, match=r"its head .* is missing"):
            saver.save(thread_id=thread_id, messages=[say("anew")])


def test_a_witness_alone_is_no_thread():
    """As a save leaves it that began beside a deletion."""
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept)
    saver.save(thread_id="t", messages=[say("one")])
    for key in list(kept):
        if not key.endswith(WITNESS):
            kept.delete(key)
    assert saver.load("t") is None
    assert list(KeyValueStoreSaver(kept).list()) == []
    saver.save(thread_id="t", messages=[say("two")])
    assert saver.load("t").messages == [say("two")]


def test_an_async_store_is_asked_in_the_same_way():
    async def talk():
        saver = KeyValueStoreSaver(AsyncStore())
        for number in range(5):
            await saver.asave(thread_id=f"t{number}", messages=[say(f"{number}")])
        assert await saver.aload("never") is None
        return [(await saver.aload(f"t{number}")).messages for number in range(5)]

    assert asyncio.run(talk()) == [[say(f"{number}")] for number in range(5)]
