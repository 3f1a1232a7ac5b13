"""Stores that compare and swap: savers of several processes meet on a thread, and nothing is lost or torn."""

from __future__ import annotations

import random

import pytest

import treering
from tests.compat.savers.savers_under_test import PlainStore, say
from treering.compat.savers import KeyValueStoreSaver
from treering.errors import Conflict
from treering.keyvalue import InMemoryStore, RedisStore


@pytest.fixture(params=["dict", pytest.param("redis", marks=pytest.mark.redis)])
def swapping(request):
    return InMemoryStore() if request.param == "dict" else RedisStore(request.getfixturevalue("redis_url"))


@pytest.mark.parametrize("value", ["text", "", b"\x00bytes", {"a": [1, None]}, 0, False])
def test_a_value_is_swapped_only_for_the_one_that_is_there(swapping, value):
    assert not swapping.compare_and_swap("k", value, "new")
    assert swapping.compare_and_swap("k", None, value)
    assert not swapping.compare_and_swap("k", None, "new")
    assert not swapping.compare_and_swap("k", "another", None)
    assert swapping.get("k") == value
    assert swapping.compare_and_swap("k", value, "new")
    assert swapping.get("k") == "new"
    assert swapping.compare_and_swap("k", "new", None)
    assert swapping.list() == []
    assert swapping.compare_and_swap("k", None, None)


def _nothing(_call, _key):
    pass


class Interrupted(InMemoryStore):
    """Does something of another process in between two calls."""

    def __init__(self):
        super().__init__()
        self.between = _nothing
        self._is_between = False

    def get(self, key):
        self._interrupt("get", key)
        return super().get(key)

    def set(self, key, value):
        self._interrupt("set", key)
        super().set(key, value)

    def delete(self, key):
        self._interrupt("delete", key)
        super().delete(key)

    def compare_and_swap(self, key, old, new):
        self._interrupt("swap", key)
        return super().compare_and_swap(key, old, new)

    def list(self, prefix=""):
        self._interrupt("list", prefix)
        return super().list(prefix)

    def _interrupt(self, call, key):
        if not self._is_between:
            self._is_between = True
            try:
                self.between(call, key)
            finally:
                self._is_between = False


def once(wanted, action):
    """Do it at the first checkpoint at which a head is treated so."""
    left = [action]

    def between(call, key):
        if left and call == wanted and "head/" in key:
            left.pop()()

    return between


def texts(history):
    return [[message["content"] for message in each.messages] for each in history]


def test_a_save_comes_behind_the_one_that_was_faster():
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    before = len(store.list())
    store.between = once("swap", lambda: theirs.save(thread_id="t", messages=[say("one"), say("theirs")]))
    mine.save(thread_id="t", messages=[say("one"), say("mine")])
    history = list(mine.list("t"))
    assert texts(history) == [["one", "mine"], ["one", "theirs"], ["one"]]
    assert [each.step for each in history] == [2, 1, 0]
    assert len(store.list()) == before + 4  # a record and a chunk each; the first try left nothing


def test_without_it_the_later_head_stays():
    class Plain(PlainStore):
        between = None

        def set(self, key, value):
            if self.between is not None and "head/" in key:
                action, self.between = self.between, None
                action()
            self[key] = value

    store = Plain()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    store.between = lambda: theirs.save(thread_id="t", messages=[say("theirs")])
    mine.save(thread_id="t", messages=[say("mine")])
    assert texts(mine.list("t")) == [["mine"], ["one"]]


def test_a_delete_takes_along_what_was_saved_while_it_looked():
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    looked = []

    def between(call, key):
        if call == "list":
            looked.append(key)
        elif call == "get" and "head/" in key and len(looked) == 1:
            looked.append(key)
            theirs.save(thread_id="t", messages=[say("one"), say("theirs")])

    store.between = between
    assert mine.delete("t")
    assert store.list() == []


def test_a_save_that_is_about_to_be_taken_back_is_no_lost_head():
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    deleted, seen = [], []

    def between(call, key):
        if call == "set" and "/ckpt_" in key and not deleted:
            deleted.append(theirs.delete("t"))
        elif call == "swap" and "head/" in key and deleted and not seen:
            seen.append((len(store.list()), theirs.load("t")))

    store.between = between
    mine.save(thread_id="t", messages=[say("one"), say("mine")])
    assert (deleted, seen) == ([True], [(1, None)])
    assert texts(mine.list("t")) == [["one", "mine"]]


def test_of_two_forks_to_one_name_one_is_told():
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    store.between = once("swap", lambda: theirs.fork("t", "f"))
    with pytest.raises(Conflict, match="exists already"):
        mine.fork("t", "f")
    assert texts(mine.list("f")) == [["one"]]


@pytest.mark.parametrize("checkpoint", ["list", "get", "swap", "delete"])
def test_what_is_saved_while_a_thread_is_deleted_is_whole_or_gone(checkpoint):
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    saved = []

    def between(call, _key):
        if call == checkpoint and not saved:
            saved.append(theirs.save(thread_id="t", messages=[say("one"), say("two")]))

    store.between = between
    mine.delete("t")
    store.between = _nothing
    assert saved
    assert texts(mine.list("t")) in ([], [["one", "two"]], [["one", "two"], ["one"]])
    if not texts(mine.list("t")):
        assert store.list() == []


def test_a_save_that_a_deletion_overtakes_begins_anew():
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    store.between = once("swap", lambda: theirs.delete("t"))
    mine.save(thread_id="t", messages=[say("one"), say("two")])
    assert texts(mine.list("t")) == [["one", "two"]]
    mine.delete("t")
    assert store.list() == []


@pytest.mark.parametrize("seed", [*range(25), 272])
def test_whatever_meets_the_thread_can_be_read(seed):
    """Two savers with retention save, delete and look at one thread, each in the middle of the other."""
    dice = random.Random(seed)
    store = Interrupted()
    keep = treering.Keep(last=2, tagged=("stays",))
    savers = [KeyValueStoreSaver(store, keep=keep), KeyValueStoreSaver(store, keep=keep)]

    def act(saver):
        if dice.random() < 0.05:
            saver.delete("t")
        else:
            known = saver.load("t")
            messages = [] if known is None else list(known.messages)
            tags = ("stays",) if dice.random() < 0.2 else ()
            state = {"files": {"a": str(dice.random()) * 200}} if dice.random() < 0.5 else None
            saver.save(thread_id="t", messages=[*messages, say(str(dice.random()))], state=state, tags=tags)

    store.between = lambda *_: act(savers[1]) if dice.random() < 0.1 else None
    for _ in range(40):
        act(savers[0])
    store.between = _nothing
    fresh = KeyValueStoreSaver(store)
    for each in fresh.list("t"):
        assert each.messages
        assert each.state is not None
    fresh.delete("t")
    assert fresh.load("t") is None
