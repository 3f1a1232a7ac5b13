"""An interrupted save happened or did not; a damaged checkpoint is an error."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest

import treering
from tests.compat.savers.savers_under_test import KEY_VALUES, PlainStore, kinds, place, say, talk
from treering.compat.savers import (
    FileSaver,
    KeyValueStoreSaver,
    MemorySaver,
    SqliteSaver,
    migrate_checkpoints,
)
from treering.errors import Corrupt, NotFound
from treering.keyvalue import FolderStore, InMemoryStore

VICTIM = """
import sys
import treering
from treering.compat.savers import FileSaver, SqliteSaver
kind, folder, last = sys.argv[1:]
keep = treering.Keep(last=int(last))
saver = FileSaver(folder, keep=keep) if kind == "files" else SqliteSaver(folder, keep=keep, durability="fast")
messages = list(getattr(saver.load("t"), "messages", ()))
while True:
    messages.append({"role": "user", "content": str(len(messages))})
    files = {"a": "x" * 5000 + str(len(messages)), "b": ""}
    saver.save(thread_id="t", messages=messages, state={"files": files})
    print(len(messages), flush=True)
"""


class Power(Exception):
    """The machine went out."""


class FailingStore(PlainStore):
    """Works until it has written so many times, and never again."""

    def __init__(self, kept, writes):
        super().__init__(kept)
        self.left = writes

    def set(self, key, value):
        self._count()
        self[key] = value

    def delete(self, key):
        self._count()
        self.pop(key, None)

    def _count(self):
        if self.left == 0:
            raise Power
        self.left -= 1


def contents(saver, thread_id="t"):
    return [(each.id, each.messages, each.state) for each in saver.list(thread_id)]


@pytest.mark.parametrize("keep", [None, treering.Keep(last=2), treering.Keep(last=2, tagged=("odd",))])
def test_a_save_interrupted_at_any_write_keeps_the_history(keep):
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept, keep=keep)
    messages = []
    for step in range(14):
        messages.append(say(str(step)))
        saver.save(
            thread_id="t", messages=messages, state={"a": "x" * 900 + str(step)}, tags=("odd",) * (step % 2)
        )
    before = contents(saver)
    for writes in range(100):
        store = FailingStore(kept, writes)
        changed = [*messages[:9], say("changed")]
        try:
            KeyValueStoreSaver(store, keep=keep).save(thread_id="t", messages=changed, state={"a": "z" * 900})
        except Power:
            finished = False
        else:
            finished = True
        store.left = -1
        again = KeyValueStoreSaver(store, keep=keep)
        newest, *older = contents(again)
        if newest == before[0]:
            assert [newest, *older] == before, writes
        else:
            assert newest[1:] == (changed, {"a": "z" * 900})
            assert older[0] == before[0]
            assert set(map(repr, older)) <= set(map(repr, before))
        again.save(thread_id="t", messages=[*changed, say("goes on")])
        assert again.load("t").messages == [*changed, say("goes on")]
        if finished:
            break
    assert finished
    assert writes >= 4


def test_a_delete_cut_short_can_be_finished():
    kept = PlainStore()
    talk(KeyValueStoreSaver(kept), "t")
    for writes in range(100):
        store = FailingStore(kept, writes)
        try:
            KeyValueStoreSaver(store).delete("t")
        except Power:
            store.left = -1
            saver = KeyValueStoreSaver(store)
            assert saver.exists("t") == (writes == 0)
            saver.delete("t")
        assert not store
        if writes > len(kept):
            break


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["files", "sqlite"])
def test_killed_while_saving_nothing_acknowledged_is_lost(kind, tmp_path):
    result = 0
    for round_ in range(4):
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, kind, str(tmp_path / "kept"), "3"],
            stdout=subprocess.PIPE,
            text=True,
        )
        with victim:
            for _ in range(3 + round_):
                result = int(victim.stdout.readline())
            os.kill(victim.pid, signal.SIGKILL)
        with FileSaver(tmp_path / "kept") if kind == "files" else SqliteSaver(tmp_path / "kept") as saver:
            history = list(saver.list("t"))
            assert len(history[0].messages) >= result
            for each in history:
                assert [message["content"] for message in each.messages] == [
                    str(number) for number in range(len(each.messages))
                ]
                assert each.state["files"]["a"] == "x" * 5000 + str(len(each.messages))
            result = len(history[0].messages)


@pytest.mark.faults
@pytest.mark.parametrize("failpoint", ["file.synced", "file.renamed"])
def test_killed_at_any_file_the_files_are_whole(failpoint, tmp_path):
    saver = FileSaver(tmp_path, max_checkpoints=2)
    messages = [say(str(number)) for number in range(4)]
    for count in (1, 2, 3, 4):
        saver.save(thread_id="t", messages=messages[:count])
    result = 4
    for hit in range(1, 8):
        victim = subprocess.run(
            [sys.executable, "-c", VICTIM, "files", str(tmp_path), "2"],
            env=os.environ | {"TREERING_FAILPOINTS": f"{failpoint}=kill:{hit}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert victim.returncode == -signal.SIGKILL
        result = max([result, *map(int, victim.stdout.split())])
        history = list(FileSaver(tmp_path).list("t"))
        assert len(history[0].messages) in (result, result + 1)
        for each in history:
            assert [m["content"] for m in each.messages] == [str(n) for n in range(len(each.messages))]
        assert len(history) <= 3
        result = len(history[0].messages)
    last = FileSaver(tmp_path, max_checkpoints=2)
    last.save(thread_id="t", messages=[say("only this")])
    last.save(thread_id="t", messages=[say("only this")])
    left = sorted(path.name[:2] for path in (tmp_path / "data" / "t").iterdir())
    assert left == ["ck", "ck", "m-", "ma", "s-"]


def damage(path, how):
    raw = path.read_bytes()
    if how == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        path.write_bytes(raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut", "empty", "flipped", "missing"])
@pytest.mark.parametrize("part", ["head/odd", "data/odd*/ckpt_", "data/odd*/m-", "data/odd*/s-"])
@pytest.mark.parametrize("compress", [True, False])
def test_a_damaged_file_is_named_and_never_empty(tmp_path, how, part, compress):
    saver = FileSaver(tmp_path, compress=compress)
    saver.save(thread_id="odd/thread", messages=[say("x" * 3000)], state={"files": {"a": "y" * 9000}})
    saver.save(thread_id="other", messages=[say("fine")])
    (path,) = tmp_path.glob(f"{part}*")
    damage(path, how)
    again = FileSaver(tmp_path, compress=compress)
    with pytest.raises(Corrupt, match=r"thread 'odd/thread'.*(restore|missing)"):
        again.load("odd/thread")
    with pytest.raises(Corrupt):
        [each.to_dict() for each in again.list()]
    assert again.load("other").messages == [say("fine")]
    assert again.delete("odd/thread")
    assert [each.thread_id for each in again.list()] == ["other"]


def test_a_history_with_a_missing_checkpoint_is_an_error_and_not_a_short_one(tmp_path):
    saver = FileSaver(tmp_path)
    talk(saver)
    third = list(saver.list("conversation-1"))[2]
    (tmp_path / "data" / "conversation-1" / third.id).unlink()
    with pytest.raises(Corrupt, match=third.id):
        list(saver.list("conversation-1"))
    assert len(saver.load("conversation-1").messages) == 5
    with pytest.raises(NotFound):
        saver.load("conversation-1", third.id)


def test_a_thread_whose_head_was_removed_by_hand_is_neither_empty_nor_saved_over(tmp_path):
    saver = FileSaver(tmp_path)
    talk(saver)
    newest = saver.load("conversation-1")
    (tmp_path / "head" / "conversation-1").unlink()
    for refused in (
        lambda: saver.load("conversation-1"),
        lambda: saver.exists("conversation-1"),
        lambda: saver.save(thread_id="conversation-1", messages=[say("again")]),
        lambda: list(saver.list()),
    ):
        with pytest.raises(Corrupt, match=f"head 'head/conversation-1' is missing.*{newest.id}"):
            refused()
    assert saver.load("conversation-1", newest.id).messages == newest.messages
    assert saver.delete("conversation-1")
    assert saver.load("conversation-1") is None
    assert [path for path in tmp_path.rglob("*conversation-1*") if "lock" not in str(path)] == []


@pytest.mark.parametrize("kind", kinds(KEY_VALUES))
def test_a_lost_head_is_an_error(kind, request):
    where = place(kind, request)
    saver = where.open()
    talk(saver, "other", 1)
    talk(saver)
    newest = saver.load("conversation-1")
    where.delete("checkpoints/head/conversation-1")
    for ask in (saver, where.open()):
        for refused in (
            lambda ask=ask: ask.load("conversation-1"),
            lambda ask=ask: ask.exists("conversation-1"),
            lambda ask=ask: ask.save(thread_id="conversation-1", messages=[say("again")]),
            lambda ask=ask: ask.fork("other", "conversation-1"),
            lambda ask=ask: list(ask.list()),
        ):
            with pytest.raises(Corrupt, match=f"is missing.*{newest.id}"):
                refused()
    result = migrate_checkpoints(source=saver, destination=MemorySaver())
    assert (result.threads, len(result.failed)) == (1, 1)
    assert saver.load("conversation-1", newest.id).messages == newest.messages
    assert saver.delete("conversation-1")
    assert saver.load("conversation-1") is None
    talk(saver)
    assert saver.delete("other")
    assert saver.delete("conversation-1")
    assert where.keys() == []


@pytest.mark.parametrize("make", [PlainStore, InMemoryStore])
def test_a_delete_that_was_cut_short_leaves_no_thread_and_no_damage(make):
    class Dying(make):
        left = 1000

        def delete(self, key):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            super().delete(key)

    for left in range(12):
        kept = Dying()
        saver = KeyValueStoreSaver(kept)
        talk(saver)
        kept.left = left
        with contextlib.suppress(KeyboardInterrupt):
            saver.delete("conversation-1")
        kept.left = 1000
        again = KeyValueStoreSaver(kept)
        assert again.load("conversation-1") is None
        talk(again)
        assert len(list(again.list("conversation-1"))) == 5
        again.delete("conversation-1")
        assert kept.list() == []


def test_a_value_under_another_key_is_not_taken_for_its_own():
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept)
    talk(saver, "alice")
    talk(saver, "bob")
    kept["checkpoints/head/bob"] = kept["checkpoints/head/alice"]
    with pytest.raises(Corrupt, match=r"'bob' is damaged.*belongs to key 'checkpoints/head/alice'"):
        saver.load("bob")
    kept["checkpoints/head/bob"] = {"not": "ours"}
    with pytest.raises(Corrupt, match=r"'bob' is damaged.*dict"):
        saver.load("bob")


def test_a_folder_store_that_is_damaged_says_which_thread(tmp_path):
    saver = KeyValueStoreSaver(FolderStore(tmp_path))
    talk(saver)
    for path in tmp_path.glob("*head*"):
        damage(path, "cut")
    with pytest.raises(Corrupt, match="thread 'conversation-1' is damaged"):
        saver.load("conversation-1")


def test_a_checkpoint_that_goes_while_it_is_read_is_not_called_corrupt():
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept, keep=treering.Keep(last=2))
    saver.save(thread_id="t", messages=[say("a")], state={"x": "1" * 900})
    listed = saver.list("t")[0]
    for step in range(4):
        saver.save(thread_id="t", messages=[say(str(step))], state={"x": str(step) * 900})
    with pytest.raises(NotFound, match="removed since"):
        listed.messages  # noqa: B018
    history = iter(saver.list("t"))
    next(history)
    saver.delete("t")
    assert list(history) == []


def test_links_do_not_lead_out_of_the_folder(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    saver = FileSaver(tmp_path / "kept")
    talk(saver, "t")
    (tmp_path / "kept" / "data" / "evil").symlink_to(outside)
    with pytest.raises(treering.errors.TreeringError):
        saver.save(thread_id="evil", messages=[say("x")])
    assert list(outside.iterdir()) == []


def test_the_files_are_those_of_the_docstring(tmp_path):
    saver = FileSaver(tmp_path, compress=False)
    saver.save(thread_id="conversation-1", messages=[say("hello")])
    saver.in_namespace("alice").save(thread_id="a/b", messages=[say("hello")])
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    shown = {name for name in files if not name.startswith(".")}
    assert {re.sub(r"~[0-9a-f]{32}|ckpt_.*|(?<=/m-).*", "*", name) for name in shown} == {
        "head/conversation-1",
        "data/conversation-1/*",
        "data/conversation-1/marker",
        "data/conversation-1/m-*",
        "@alice/head/a-b*",
        "@alice/data/a-b*/*",
        "@alice/data/a-b*/marker",
        "@alice/data/a-b*/m-*",
    }
    raw = next((tmp_path / "data" / "conversation-1").glob("m-*")).read_bytes()
    key, chunk = json.loads(raw[8 + 8 :])
    assert key.startswith("data/conversation-1/m-")
    assert chunk == {"items": [say("hello")]}
