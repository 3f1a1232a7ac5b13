"""A key-value saver notices a lost head without listing all keys for each new thread."""

from __future__ import annotations

import asyncio

import pytest

from tests.compat.savers.savers_under_test import AsyncStore, PlainStore, say
from treering.compat.savers import KeyValueStoreSaver
from treering.compat.savers.kv_thread import MARKER
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


def test_new_and_missing_threads_are_found_without_listing():
    kept = Counting()
    saver = KeyValueStoreSaver(kept)
    for number in range(50):
        assert not saver.exists(f"t{number}")
        saver.save(thread_id=f"t{number}", messages=[say("hi")])
        assert saver.load(f"never {number}") is None
    again = KeyValueStoreSaver(kept)
    for number in range(50):
        again.save(thread_id=f"t{number}", messages=[say("hi"), say("again")])
        again.save(thread_id=f"new {number}", messages=[say("hi")])
    assert kept.lists == 0


@pytest.mark.parametrize("make", [PlainStore, InMemoryStore])
def test_a_lost_head_of_a_thread_that_another_saver_created_is_noticed(make):
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


def test_a_marker_alone_is_no_thread():
    """A save that ran at the same time as a deletion may leave one."""
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept)
    saver.save(thread_id="t", messages=[say("one")])
    for key in list(kept):
        if not key.endswith(MARKER):
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
