"""Looking at a thread: pages, tails, filters, ids, and writers that meet."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tracemalloc
from decimal import Decimal
from threading import Barrier, Event, Thread

import pytest

import treering
from tests.threads.sample_threads import damage, sample_thread, say, steps
from treering.errors import Corrupt, InvalidInput, NotFound, Vetoed
from treering.threads.head import ThreadMoved


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


# Pages
def test_pages_go_on_behind_the_last_checkpoint(store):
    thread = sample_thread(store, steps=7)
    fork = thread.fork("f", at=4)
    fork.append(say("elsewhere"))
    whole = [checkpoint.id for checkpoint in fork.history()]
    paged, cursor = [], None
    while page := list(fork.history(last=2, after=cursor)):
        paged += [checkpoint.id for checkpoint in page]
        cursor = page[-1].id
    assert paged == whole
    assert len(whole) == 7
    assert steps(thread.history(after=thread.at(3))) == [2, 1, 0]


def test_pages_of_everything_go_on_too(store):
    thread = sample_thread(store)
    thread.rewind(1)
    thread.append(say("another way"))
    first = list(thread.history(last=2, everything=True))
    rest = list(thread.history(after=first[-1].id, everything=True))
    assert steps(first) + steps(rest) == [2, 4, 3, 2, 1, 0]


def test_a_page_stays_where_it_is_while_the_thread_grows(store):
    thread = sample_thread(store)
    first = list(thread.history(last=2))
    thread.append(say("more"))
    assert steps(thread.history(after=first[-1].id)) == [2, 1, 0]


def test_a_cursor_that_is_not_there_is_an_error(store):
    thread = sample_thread(store)
    other = store.thread("t", namespace="bob")
    with pytest.raises(NotFound):
        list(other.history(after=thread.head.id))
    with pytest.raises(InvalidInput):
        list(thread.history(after="not an id"))


def test_filters_choose_before_the_limit(store):
    thread = sample_thread(store, steps=9)
    assert steps(thread.history(tags=["third"], last=2)) == [6, 3]
    assert steps(thread.history(metadata={"even": True}, tags=["third"])) == [6, 0]
    assert steps(thread.history(metadata={"even": 2})) == []
    assert steps(thread.history(metadata={"'; DROP TABLE event; --": 1})) == []


def test_history_shows_what_others_saved_without_building_on_it(store):
    first, second = sample_thread(store), store.thread("t")
    second.load()
    first.append(say("first"))
    assert steps(second.history(last=1)) == [5]
    with pytest.raises(ThreadMoved):
        second.append(say("second"))


# Tails and lists
def test_load_reads_only_the_tail(store):
    checkpoint = sample_thread(store) and store.thread("t").load(last=2)
    assert [each["content"] for each in checkpoint.messages] == ["message 3", "message 4"]
    assert checkpoint.message_count == 5
    assert store.thread("t").load(last=0).messages == []
    assert len(store.thread("t").load(last=99).messages) == 5
    with pytest.raises(InvalidInput):
        store.thread("t").load(last=-1)


def test_a_tail_does_not_touch_what_comes_before_it(folder):
    for _ in range(2):  # what settles at another time is in rows of its own
        with treering.open(folder) as store:
            sample_thread(store)
    damage(folder, "DELETE FROM item WHERE (key & 0xffffffff) < 3")
    with treering.open(folder) as store:
        assert len(store.thread("t").load(last=2).messages) == 2
        with pytest.raises(Corrupt):
            _ = store.thread("t").load().messages


def test_one_who_reads_does_not_wait_for_another(store, monkeypatch):
    slow, quick = sample_thread(store, "slow").load(), sample_thread(store, "quick").load()
    is_reading, may_go_on = Event(), Event()
    read_list = store.engine.read_list

    def reading(space, list_id, start, stop):
        if list_id == slow.record.lists["messages"].list:
            is_reading.set()
            assert may_go_on.wait(20)
        return read_list(space, list_id, start, stop)

    monkeypatch.setattr(store.engine, "read_list", reading)
    one = Thread(target=lambda: slow.messages)
    other = Thread(target=lambda: quick.messages)
    one.start()
    assert is_reading.wait(20)
    other.start()
    other.join(10)
    waited = other.is_alive()
    may_go_on.set()
    one.join()
    other.join()
    assert not waited
    assert quick.messages is quick.messages


def test_declared_lists_are_kept_as_lists(store):
    thread, notes = store.thread("t"), []
    for number in range(10):
        notes.append({"note": number})
        thread.checkpoint([say("x")], {"n": number}, lists={"notes": notes})
    thread.append(say("y"))
    again = store.thread("t").load()
    assert again.items("notes") == notes
    assert again.items("notes", last=2) == notes[-2:]
    assert again.items("no such list") == []
    assert set(again.list_names) == {"messages", "notes"}
    assert store.engine.stats(store.space).items == 10 + 2
    assert thread.at(3).items("notes") == notes[:4]


def test_one_state_value_is_read_alone(store):
    checkpoint = store.thread("t").checkpoint([], {"a": 1, "big": {"k": "x" * 5000, "l": "y"}})
    assert checkpoint.value("a") == 1
    assert checkpoint.value("big") == {"k": "x" * 5000, "l": "y"}
    assert checkpoint.value("none") is None


def test_a_checkpoint_as_a_dict(store):
    checkpoint = store.thread("t", namespace="ns").checkpoint(
        [say("a")], {"n": 1}, lists={"notes": [1]}, metadata={"m": 2}, note="first", tags=["x"]
    )
    told_ = checkpoint.to_dict()
    assert told_ == {
        "id": checkpoint.id,
        "thread": "t",
        "namespace": "ns",
        "parent": None,
        "step": 0,
        "created_at": checkpoint.created_at.isoformat(),
        "note": "first",
        "tags": ["x"],
        "metadata": {"m": 2},
        "pending_interrupt": None,
        "message_count": 1,
        "snapshot": None,
        "messages": [say("a")],
        "state": {"n": 1},
        "lists": {"notes": [1]},
    }
    assert "messages" not in checkpoint.to_dict(content=False)


def test_a_checkpoint_is_forked_where_it_is_found(store):
    thread = sample_thread(store)
    fork = thread.at(2).fork("bolder")
    assert fork.head.step == 2
    assert fork.head.metadata["forked_from"] == thread.at(2).id
    inner = next(fork.history(after=fork.head)).fork("from the past of a fork")
    assert len(inner.head.messages) == 3


# Writers
def test_a_retried_append_goes_behind_what_came_in_between(store):
    first, second = sample_thread(store, steps=1), store.thread("t")
    second.load()
    first.append(say("first"))
    second.append(say("second"), on_conflict="retry")
    assert [each["content"] for each in store.thread("t").load().messages] == ["message 0", "first", "second"]
    assert steps(second.history()) == [2, 1, 0]


APPENDER = """
import sys, treering
with treering.open(sys.argv[1], durability="fast") as store:
    thread = store.thread("t")
    thread.get()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(25):
        thread.append({"role": "user", "content": f"{sys.argv[2]}.{number}"}, on_conflict="retry")
"""


def test_two_processes_that_retry_lose_nothing(folder):
    told_by = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for each in told_by:
        assert each.stdout.readline() == "ready\n"
    for each in told_by:
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in told_by:
        each.communicate(timeout=60)
        assert each.returncode == 0
    with treering.open(folder) as store:
        messages = [each["content"] for each in store.thread("t").load().messages]
        for name in "ab":
            assert [each for each in messages if each[0] == name] == [f"{name}.{n}" for n in range(25)]
        assert steps(store.thread("t").history()) == list(range(49, -1, -1))
        assert store.verify().ok


def test_one_object_may_be_used_from_several_threads(store):
    thread, barrier = store.thread("t"), Barrier(4)

    def work(name):
        barrier.wait()
        for number in range(10):
            thread.append(say(f"{name}.{number}"))

    workers = [Thread(target=work, args=(name,)) for name in "abcd"]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    messages = [each["content"] for each in store.thread("t").load().messages]
    assert len(messages) == 40
    for name in "abcd":
        assert [each for each in messages if each[0] == name] == [f"{name}.{number}" for number in range(10)]


def test_a_save_that_failed_leaves_nothing_in_what_is_remembered(store):
    first, second = store.thread("t"), store.thread("t")
    first.checkpoint([say("a")])
    second.load()
    first.append(say("b"))
    history = [say("a"), say("mine")]
    for _ in range(2):
        with pytest.raises(ThreadMoved) as caught:
            second.checkpoint(history)
        with pytest.raises(ThreadMoved):
            second.append(say("mine"))
    assert caught.value.actual == first.head.id
    assert caught.value.expected == first.at(0).id
    assert caught.value.actual in str(caught.value)
    assert caught.value.expected in str(caught.value)
    second.load()
    second.checkpoint([say("a"), say("b"), say("c")])
    assert store.thread("t").load().messages == [say("a"), say("b"), say("c")]


def test_append_and_checkpoint_know_of_each_other(store):
    thread = store.thread("t")
    thread.append(say("a"))
    thread.checkpoint([say("a"), say("b")])
    thread.append(say("c"))
    thread.checkpoint([say("a"), say("b"), say("c"), say("d")])
    assert store.engine.stats(store.space).items == 4
    thread.checkpoint([say("a"), say("B"), say("c"), say("d")])
    assert store.thread("t").load().messages == [say("a"), say("B"), say("c"), say("d")]


def test_hooks_see_and_change_lists_and_know_what_is_appended(store):
    seen = []
    store.hooks.add("pre_checkpoint_save", lambda saving: seen.append((saving.appends, dict(saving.lists))))
    store.hooks.add("pre_checkpoint_save", lambda saving: {"lists": {"notes": [*saving.lists["notes"], "x"]}})
    thread = store.thread("t")
    thread.checkpoint([say("a")], lists={"notes": [1]})
    assert thread.head.items("notes") == [1, "x"]
    store.hooks.add("pre_checkpoint_save", lambda _: False)
    store.hooks.remove("pre_checkpoint_save", store.hooks._hooks["pre_checkpoint_save"][1])
    with pytest.raises(Vetoed):
        thread.append(say("b"))
    assert seen == [(False, {"notes": [1]}), (True, {})]


def test_async_hooks_run_in_the_loop_of_the_async_store(tmp_path):
    async def main():
        seen = []

        async def hook(_):
            await asyncio.sleep(0)
            seen.append(asyncio.get_running_loop())

        async with treering.open_async(tmp_path / "store") as store:
            store.hooks.add("pre_checkpoint_save", hook)
            store.hooks.add("post_checkpoint_load", hook)
            await store.thread("t").append(say("a"))
            await store.thread("t").load()
        return seen == [asyncio.get_running_loop()] * 2

    assert asyncio.run(main())


# Records
@pytest.mark.parametrize("note", ["two\nlines", "x" * 5000, "\n", "\t", "", "tab\there", "ünïcode"])
def test_a_note_may_be_any_text(store, note):
    store.thread("t").append(say("a"), note=note)
    assert store.thread("t").load().note in {note, note or None}


@pytest.mark.parametrize(
    "odd",
    [
        {"$decimal": "1"},
        {"$$x": {"$y": 1}},
        {"a": Decimal("1.10"), "b": (1, 2), "c": {3}},
        {"lone": "\ud800"},
        {1: "a"},
        {"big": 1 << 70, "nan": float("inf")},
        {"$": []},
    ],
)
def test_records_keep_what_json_cannot_say(store, odd):
    thread = store.thread("t")
    named = {str(key): value for key, value in odd.items()}
    thread.checkpoint(
        [odd], named, lists={"$list": [odd]}, metadata=named, pending_interrupt=odd, tags=["$t"]
    )
    again = store.thread("t").load()
    assert again.metadata == named
    assert again.state == named
    assert again.pending_interrupt == odd
    assert again.messages == again.items("$list") == [odd]
    assert again.tags == ("$t",)
    assert next(thread.history()) == again


# Ids
@pytest.mark.parametrize(
    "thread_id", ["a//b", "..", "%2F", "thread/", "x" * 500, "naïve 名前", "a b", "~", "?#"]
)
def test_any_readable_id_names_one_thread(store, thread_id):
    thread = store.thread(thread_id)
    thread.append(say("a"))
    assert store.thread(thread_id).load().messages == [say("a")]
    assert [info.id for info in store.threads()] == [thread_id]
    assert store.thread("a", namespace=thread_id[:100]).get() is None


def test_no_two_threads_share_a_head(store):
    pairs = [("a//b", ""), ("b", "a"), ("b", "a/"), ("/b", "a"), ("a/b", ""), ("b", "a%2F"), ("b", "a/ ")]
    for thread_id, namespace in pairs:
        store.thread(thread_id, namespace).append(say(f"{thread_id} in {namespace}"))
    for thread_id, namespace in pairs:
        assert store.thread(thread_id, namespace).load().messages == [say(f"{thread_id} in {namespace}")]


def test_an_id_that_is_too_long_says_so(store):
    with pytest.raises(InvalidInput, match="limit is 512"):
        store.thread("/" * 400)
    with pytest.raises(InvalidInput, match="empty"):
        store.thread("")


def test_a_fork_into_another_namespace_does_not_open_the_first_one(store):
    thread = sample_thread(store)
    fork = thread.fork("f", namespace="bob")
    assert len(fork.load().messages) == 5
    assert [(checkpoint.namespace, checkpoint.step) for checkpoint in fork.history()] == [("bob", 4)]


# Memory
def test_loading_a_long_thread_takes_little_more_than_its_state(tmp_path):
    count = 10_000
    with treering.open(tmp_path / "store", durability="fast") as store:
        thread = store.thread("t")
        for start in range(0, count, 500):
            texts = [f"{number} " + "lorem ipsum " * 40 for number in range(start, start + 500)]
            thread.append(*map(say, texts), state={"count": start})
    with treering.open(tmp_path / "store") as store:
        thread = store.thread("t")
        thread.load(last=1).messages  # noqa: B018 - what is loaded once is not counted
        tracemalloc.start()
        try:
            messages = thread.load().messages
            own, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(messages) == count
    assert peak < 1.5 * own
