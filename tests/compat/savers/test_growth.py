"""A save writes only what is new: its bytes and writes do not depend on the length of the conversation."""

from __future__ import annotations

import pytest

import treering
from tests.compat.savers.savers_under_test import PlainStore, say
from treering.compat.savers import FileSaver, KeyValueStoreSaver


class CountingStore(PlainStore):
    """Counts what is written and read."""

    def __init__(self):
        super().__init__()
        self.written = self.reads = 0
        self.largest = 0

    def set(self, key, value):
        self.written += len(value)
        self.largest = max(self.largest, len(value))
        self[key] = value

    def get(self, key):
        self.reads += 1
        return super().get(key)


def grow(store, steps):
    saver, messages = KeyValueStoreSaver(store), []
    for step in range(steps):
        messages.append(say("x" * 1000 + str(step)))
        saver.save(thread_id="t", messages=messages, state={"todos": [], "files": {"a": "y" * 5000}})
    return messages


def test_bytes_grow_with_the_steps_and_not_with_their_square():
    short, long = CountingStore(), CountingStore()
    grow(short, 100)
    messages = grow(long, 1000)
    assert long.written < 11 * short.written
    assert long.written < 2.2 * sum(len(message["content"]) for message in messages)
    assert long.largest < 20_000
    assert KeyValueStoreSaver(long).load("t").messages == messages


def test_a_save_reads_only_the_head_and_its_checkpoint():
    store = CountingStore()
    saver, messages = KeyValueStoreSaver(store), []
    for step in range(300):
        messages.append(say(str(step)))
        before = store.reads
        saver.save(thread_id="t", messages=messages)
        assert store.reads - before <= 2


def test_a_new_saver_reads_the_history_once_and_writes_only_new_messages():
    store = CountingStore()
    messages = grow(store, 100)
    before = store.written
    KeyValueStoreSaver(store).save(thread_id="t", messages=[*messages, say("new")])
    assert store.written - before < 2000


def test_a_virtual_file_that_did_not_change_is_not_written_again():
    store = CountingStore()
    saver = KeyValueStoreSaver(store)
    files = {f"file{number}": f"{number}" * 5000 for number in range(20)}
    saver.save(thread_id="t", state={"files": files})
    before = store.written
    saver.save(thread_id="t", state={"files": files | {"file3": "changed"}})
    assert store.written - before < 3000


def test_files_on_disk_grow_in_step(tmp_path):
    def size(steps):
        saver, messages = FileSaver(tmp_path / str(steps), None), []
        for step in range(steps):
            messages.append(say("x" * 1000 + str(step)))
            saver.save(thread_id="t", messages=messages)
        return sum(path.stat().st_size for path in (tmp_path / str(steps)).rglob("*") if path.is_file())

    assert size(60) < 11 * size(6)


@pytest.mark.parametrize("keep", [treering.Keep(last=5), treering.Keep(last=5, tagged=("pin",))])
def test_bytes_grow_with_the_steps_under_any_retention(keep):
    def written(steps):
        store = CountingStore()
        saver, messages = KeyValueStoreSaver(store, keep=keep), []
        for step in range(steps):
            messages.append(say("x" * 100 + str(step)))
            saver.save(thread_id="t", messages=messages, tags=("pin",) if step % 3 == 0 else ())
        assert store.largest < 2_000
        return store.written

    assert written(400) < 11 * written(40)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 59, 60])
def test_an_edited_conversation_shares_what_precedes_the_edit(cut):
    store = CountingStore()
    saver, messages = KeyValueStoreSaver(store), []
    for step in range(30):
        messages += [say(f"{step} a"), say(f"{step} b")]
        saver.save(thread_id="t", messages=messages)
    chunks = {key for key in store if "/m-" in key}
    edited = [*messages[:cut], say("edited")]
    saver.save(thread_id="t", messages=edited)
    (new,) = {key for key in store if "/m-" in key} - chunks
    assert len(store[new]) < 200
    saver.save(thread_id="t", messages=[*edited, say("next")])
    saved = [each.messages for each in saver.list("t")]
    assert saved == [[*edited, say("next")], edited, *(messages[: 2 * n] for n in range(30, 0, -1))]
