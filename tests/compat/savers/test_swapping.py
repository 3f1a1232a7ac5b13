"""Stores that compare and swap: several processes may save to one thread, and nothing is lost or torn."""

from __future__ import annotations

import random
import threading

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
def test_a_value_is_swapped_only_for_the_current_one(swapping, value):
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
    """Runs something of another process before any call."""

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
    """Run the action before the first such call for a head."""
    left = [action]

    def between(call, key):
        if left and call == wanted and "head/" in key:
            left.pop()()

    return between


def texts(history):
    return [[message["content"] for message in each.messages] for each in history]


def test_a_slower_save_follows_the_faster_one():
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


@pytest.mark.parametrize("held_at", ["ckpt_", "m-"])
def test_a_save_whose_past_is_pruned_while_it_reads_it_starts_again(held_at):
    """A saver that does not know the thread yet reads its history, and then its messages."""
    store, keep = Interrupted(), treering.Keep(last=3)
    theirs = KeyValueStoreSaver(store, keep=keep)
    for step in range(3):
        theirs.save(thread_id="t", messages=[say(f"{step}")])
    newest = theirs.load("t").id
    left = [lambda step=step: theirs.save(thread_id="t", messages=[say(f"{step}")]) for step in range(3, 7)]

    def between(call, key):
        if call == "get" and f"/{held_at}" in key and newest not in key:
            while left:
                left.pop(0)()

    store.between = between
    mine = KeyValueStoreSaver(store, keep=keep)
    mine.save(thread_id="t", messages=[say("mine")])
    assert not left
    assert texts(mine.list("t")) == [["mine"], ["6"], ["5"]]
    mine.delete("t")
    assert store.list() == []


def test_a_history_that_is_pruned_while_it_is_read_continues_with_what_is_kept():
    store, keep = Interrupted(), treering.Keep(last=2, tagged=("pin",))
    theirs = KeyValueStoreSaver(store, keep=keep)
    for step in range(6):
        theirs.save(thread_id="t", messages=[say(f"{step}")], tags=("pin",) if step in (0, 2) else ())
    history = iter(KeyValueStoreSaver(store).list("t"))
    assert next(history).step == 5
    for step in range(6, 9):
        theirs.save(thread_id="t", messages=[say(f"{step}")])
    assert texts(history) == [["2"], ["0"]]


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


def test_a_delete_includes_what_was_saved_while_it_listed():
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


def test_a_save_that_is_about_to_be_undone_is_no_lost_head():
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


def test_of_two_forks_to_one_name_one_is_refused():
    store = Interrupted()
    mine, theirs = KeyValueStoreSaver(store), KeyValueStoreSaver(store)
    mine.save(thread_id="t", messages=[say("one")])
    store.between = once("swap", lambda: theirs.fork("t", "f"))
    with pytest.raises(Conflict, match="already exists"):
        mine.fork("t", "f")
    assert texts(mine.list("f")) == [["one"]]


@pytest.mark.parametrize("checkpoint", ["list", "get", "swap", "delete"])
def test_a_save_during_a_delete_is_whole_or_deleted(checkpoint):
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
def test_a_thread_that_two_savers_change_at_random_can_always_be_read(seed):
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


class Turns(InMemoryStore):
    """Lets writers take turns, one store call each, in an order that a seed decides."""

    def __init__(self, seed):
        super().__init__()
        self._dice = random.Random(seed)
        self._may_call = {}
        self._has_called = threading.Semaphore(0)
        self._running = threading.local()

    def run(self, writers):
        """Run all writers to their end, each in a thread of its own; return their errors."""
        errors, left = [], set(range(len(writers)))
        self._may_call = {number: threading.Semaphore(0) for number in left}

        def work(number):
            self._running.number = number
            self._may_call[number].acquire()
            try:
                writers[number]()
            except Exception as error:  # noqa: BLE001 - returned to the test
                errors.append(error)
            left.discard(number)
            self._has_called.release()

        threads = [threading.Thread(target=work, args=(number,)) for number in sorted(left)]
        for thread in threads:
            thread.start()
        while left:
            self._may_call[self._dice.choice(sorted(left))].release()
            self._has_called.acquire()
        for thread in threads:
            thread.join()
        return errors

    def get(self, key):
        self._wait_for_turn()
        return super().get(key)

    def set(self, key, value):
        self._wait_for_turn()
        super().set(key, value)

    def delete(self, key):
        self._wait_for_turn()
        super().delete(key)

    def compare_and_swap(self, key, old, new):
        self._wait_for_turn()
        return super().compare_and_swap(key, old, new)

    def list(self, prefix=""):
        self._wait_for_turn()
        return super().list(prefix)

    def _wait_for_turn(self):
        number = getattr(self._running, "number", None)
        if number is not None:
            self._has_called.release()
            self._may_call[number].acquire()


@pytest.mark.parametrize(
    "keep", [treering.Keep(last=2), treering.Keep(last=1), treering.Keep(last=2, tagged=("pin",))]
)
@pytest.mark.parametrize("seed", [*range(40), 49, 58, 61, 82, 85, 89])
def test_three_savers_that_prune_one_thread_step_by_step_lose_nothing(seed, keep):
    store = Turns(seed)

    def writer(number):
        saver = KeyValueStoreSaver(store, keep=keep)

        def write():
            for step in range(4):
                messages = [say(f"{number}"), say(f"{number} {step}")]
                saver.save(thread_id="t", messages=messages, tags=("pin",) if step == 1 else ())

        return write

    assert store.run([writer(number) for number in range(3)]) == []
    saver = KeyValueStoreSaver(store)
    history = list(saver.list("t"))
    assert history[0].step == 11
    assert all(len(each.messages) == 2 for each in history)
    if keep.tagged:
        assert sum(bool(each.tags) for each in history) == 3
    else:
        assert len(history) == keep.last
    saver.delete("t")
    assert store.list() == []
