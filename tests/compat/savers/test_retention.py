"""Retention: the newest N of each thread, or a `Keep` policy; nothing else is deleted."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from tests.compat.savers.savers_under_test import KEY_VALUES, PlainStore, kinds, place, say, talk
from treering.compat.savers import FileSaver, KeyValueStoreSaver, MemorySaver
from treering.compat.savers.kv_thread import MARKER, _values_in
from treering.core.clock import ManualClock
from treering.errors import InvalidInput


def test_a_thread_keeps_its_newest(anywhere):
    saver = anywhere.open(keep=treering.Keep(last=3))
    messages = talk(saver, steps=20)
    talk(saver, "other", steps=2)
    history = list(saver.list("conversation-1"))
    assert [each.step for each in history] == [19, 18, 17]
    assert [each.messages for each in history] == [messages, messages[:19], messages[:18]]
    assert [each.state["todos"] for each in history] == [["todo 19"], ["todo 18"], ["todo 17"]]
    assert len(list(saver.list("other"))) == 2
    again = anywhere.open(keep=treering.Keep(last=2))
    again.save(thread_id="conversation-1", metadata={"again": True})
    assert [each.step for each in saver.list("conversation-1")] == [20, 19]
    assert saver.load("conversation-1").messages == messages


def test_tagged_checkpoints_stay(anywhere):
    saver = anywhere.open(keep=treering.Keep(last=2, tagged=("release",)))
    for step in range(12):
        saver.save(
            thread_id="t",
            messages=[say(str(number)) for number in range(step + 1)],
            state={"files": {"a": "x" * 3000 + str(step), "b": "y" * 3000}},
            tags=("release",) if step in (3, 7) else (),
        )
    history = list(saver.list("t"))
    assert [each.step for each in history] == [11, 10, 7, 3]
    for each in history:
        assert [message["content"] for message in each.messages] == [str(n) for n in range(each.step + 1)]
        assert each.state["files"]["a"] == "x" * 3000 + str(each.step)


def test_the_file_saver_keeps_max_checkpoints(tmp_path):
    saver = FileSaver(tmp_path, max_checkpoints=4)
    talk(saver, steps=10)
    assert [each.step for each in saver.list("conversation-1")] == [9, 8, 7, 6]
    usual = FileSaver(tmp_path / "usual")
    talk(usual, steps=103)
    assert [each.step for each in usual.list("conversation-1")] == list(range(102, 2, -1))
    everything = FileSaver(tmp_path / "all", max_checkpoints=None)
    talk(everything, steps=10)
    assert len(list(everything.list("conversation-1"))) == 10
    with pytest.raises(InvalidInput):
        FileSaver(tmp_path, max_checkpoints=0)


def test_values_that_only_dropped_checkpoints_needed_are_deleted():
    kept, all_of_it = PlainStore(), PlainStore()
    small, whole = KeyValueStoreSaver(kept, keep=treering.Keep(last=1)), KeyValueStoreSaver(all_of_it)
    for saver in (small, whole):
        for step in range(70):
            saver.save(
                thread_id="t",
                messages=[say(f"summary {step}"), say("x" * 2000 + str(step))],
                state={"files": {"a": "x" * 5000 + str(step), "b": "y" * 5000}},
            )
    assert len(all_of_it) > 200
    assert sorted(key.split("/")[-1][:2] for key in kept) == ["ck", "m-", "ma", "s-", "s-", "t"]
    assert small.load("t") is not None


def test_messages_of_dropped_checkpoints_stay_while_later_ones_share_them():
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept, keep=treering.Keep(last=2))
    messages = talk(saver, steps=100)
    assert sum("/m-" in key for key in kept) == 100
    assert sum("/ckpt_" in key for key in kept) == 2
    assert KeyValueStoreSaver(kept).load("conversation-1").messages == messages


def test_an_older_clock_does_not_drop_the_newest():
    clock = ManualClock()
    saver = KeyValueStoreSaver(PlainStore(), keep=treering.Keep(last=2), clock=clock)
    for _ in range(5):
        last = saver.save(thread_id="t")
        clock.advance(seconds=-3600)
    assert saver.load("t") == last
    assert [each.step for each in saver.list("t")] == [4, 3]


def needed_by(saver, thread_id):
    """The names of all values that the checkpoints of a thread refer to."""
    thread = saver.storage._thread(thread_id)
    names = {thread_id, MARKER}
    for checkpoint in thread.history(thread.newest()):
        names |= {checkpoint.id, *_values_in(checkpoint.state)}
        for items in (checkpoint.messages, checkpoint.archived):
            names |= {chunk.id for chunk in thread._chunks(items, checkpoint)}
    return names


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_whatever_is_saved_and_dropped_the_rest_reads_back(seed, last):
    chance = random.Random(seed)
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept, keep=treering.Keep(last=last, tagged=("pin",)))
    expected: list[tuple[str, list, dict]] = []
    pinned = set()
    messages: list = []
    for step in range(chance.randint(1, 40)):
        if chance.random() < 0.25:
            messages = messages[: chance.randint(0, len(messages))]
        messages = [*messages, *(say(f"{step}.{number}") for number in range(chance.randint(0, 3)))]
        state = {
            "a": chance.choice(["x", "y"]) * 600,
            "b": {"p": "q" * 5000, "r": chance.choice("stu") * 600},
        }
        tags = ("pin",) if chance.random() < 0.1 else ()
        if chance.random() < 0.1:
            saver = KeyValueStoreSaver(kept, keep=treering.Keep(last=last, tagged=("pin",)))
        saved = saver.save(thread_id="t", messages=messages, state=state, tags=tags)
        expected.append((saved.id, messages, state))
        pinned |= {saved.id} if tags else set()
        newest = {each[0] for each in expected[-last:]}
        expected = [each for each in expected if each[0] in newest | pinned]
    history = list(KeyValueStoreSaver(kept).list("t"))
    assert [(each.id, each.messages, each.state) for each in history] == expected[::-1]
    assert {key.rsplit("/")[-1] for key in kept} == needed_by(saver, "t")
    saver.delete("t")
    assert not kept


def test_the_journal_records_what_was_dropped():
    with treering.open("memory:") as store:
        talk(MemorySaver(store, keep=treering.Keep(last=2)), steps=6)
        thread = store.thread("conversation-1")
        assert [checkpoint.step for checkpoint in thread.history()] == [5, 4]
        assert store.verify().ok
        store.gc(grace_seconds=0)
        assert len(thread.load().messages) == 6
        assert store.verify().ok


@pytest.mark.parametrize("kind", kinds(KEY_VALUES))
def test_deleting_leaves_nothing_behind(kind, request):
    made = place(kind, request)
    saver = made.open(namespace="alice", keep=treering.Keep(last=5))
    talk(saver, steps=12)
    assert made.keys()
    saver.save(thread_id="conversation-1", state={"files": {"a": "x" * 9000}})
    saver.delete("conversation-1")
    assert made.keys() == []


def test_looking_through_a_history_that_is_dropped_meanwhile_ends_well(somewhere):
    saver = somewhere.open()
    talk(saver, steps=8)
    listed = iter(saver.list("conversation-1"))
    assert [next(listed).step for _ in range(2)] == [7, 6]
    somewhere.open(keep=treering.Keep(last=1)).save(thread_id="conversation-1", metadata={"late": True})
    assert [each.step for each in listed] in ([], [5], [5, 4, 3, 2, 1, 0])
    assert [each.step for each in saver.list("conversation-1")] == [8]


def test_a_load_during_a_delete_returns_the_old_or_the_new_thread():
    with treering.open("memory:") as store:
        saver = MemorySaver(store)
        talk(saver)
        gone = []

        def replace(_):
            if not gone:
                gone.append(True)
                saver.delete("conversation-1")
                saver.save(thread_id="conversation-1", messages=[say("new")])

        store.hooks.add("post_checkpoint_load", replace)
        assert saver.load("conversation-1").messages == [say("new")]
