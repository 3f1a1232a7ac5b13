"""What savers open, accept and refuse, and what closing them closes."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import treering
from tests.compat.savers.savers_under_test import AsyncStore, PlainStore, say, talk
from treering.compat.savers import FileSaver, KeyValueStoreSaver, MemorySaver, PostgresSaver, SqliteSaver
from treering.errors import Closed, InvalidInput, MissingExtra
from treering.keyvalue import InMemoryStore


def test_a_store_that_was_handed_in_stays_open(tmp_path):
    with treering.open(tmp_path, durability="fast") as store:
        for made in (SqliteSaver(store), MemorySaver(store), PostgresSaver(store)):
            with made as saver:
                talk(saver, type(saver).__name__, steps=1)
        assert store.thread("SqliteSaver").load().messages == [say("message 0")]
        assert {info.id for info in store.threads()} == {"SqliteSaver", "MemorySaver", "PostgresSaver"}


def test_a_store_that_the_saver_opened_is_closed_with_it(tmp_path):
    saver = SqliteSaver(tmp_path, durability="fast")
    talk(saver)
    saver.close()
    saver.close()
    with pytest.raises(Closed):
        saver.load("conversation-1")
    with treering.open(tmp_path) as store:
        assert store.thread("conversation-1").load().step == 4


def test_an_async_store_is_shared():
    async def main():
        async with treering.open_async("memory:") as store:
            saver = MemorySaver(store)
            await saver.asave(thread_id="t", messages=[say("a")])
            assert (await store.thread("t").load()).step == 0
            await saver.aclose()
            assert await store.thread("t").get() is not None

    asyncio.run(main())


def test_savers_and_threads_write_one_history():
    with treering.open("memory:") as store:
        saver, thread = MemorySaver(store, namespace="alice"), store.thread("t", namespace="alice")
        saver.save(thread_id="t", messages=[say("from the saver")])
        thread.append(say("from the thread"))
        saved = saver.save(thread_id="t", messages=[*thread.load().messages, say("and back")])
        assert saved.step == 2
        assert thread.load().step == 2
        assert [checkpoint.step for checkpoint in thread.history()] == [2, 1, 0]
        thread.rewind(0)
        assert saver.load("t").messages == [say("from the saver")]
        assert [each.step for each in saver.list("t")] == [0]


@pytest.mark.parametrize(
    "make",
    [
        lambda _: SqliteSaver("postgresql://nowhere/x"),
        lambda _: SqliteSaver("memory:"),
        lambda folder: PostgresSaver(str(folder)),
        lambda _: MemorySaver(namespace="new\nline"),
        lambda folder: SqliteSaver(folder, namespace="new\nline"),
        lambda folder: SqliteSaver(folder, hooks={"no such hook": []}),
        lambda folder: FileSaver(folder, namespace="\0"),
        lambda folder: FileSaver(folder, max_checkpoints=-1),
        lambda _: KeyValueStoreSaver({}),
        lambda _: KeyValueStoreSaver(PlainStore(), namespace="x" * 600),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_created(make, tmp_path):
    with pytest.raises(InvalidInput):
        make(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "treering.engines.postgres", raising=False)
    for name in [name for name in sys.modules if name.startswith("treering.engines.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"pip install 'treering\[postgres\]'"):
        PostgresSaver("postgresql://localhost/x")


def test_a_saver_imports_only_what_it_needs():
    code = """
import sys
from treering.compat.savers import FileSaver
from treering.keyvalue import InMemoryStore
FileSaver("unused")
assert not {"sqlite3", "psycopg", "redis", "sqlalchemy", "treering.engines.sqlite.engine"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_folder_that_cannot_be_written_can_still_be_read(tmp_path):
    talk(FileSaver(tmp_path / "kept"))
    (tmp_path / "kept" / ".locks").rename(tmp_path / "locks")
    (tmp_path / "kept" / ".drafts").rename(tmp_path / "drafts")
    assert len(FileSaver(tmp_path / "kept").load("conversation-1").messages) == 5
    assert not (tmp_path / "kept" / ".locks").exists()


class BytesKeys(PlainStore):
    """Lists keys as Redis does without ``decode_responses``."""

    def list(self, prefix=""):
        return (key.encode() for key in super().list(prefix))


class GeneratedKeys(AsyncStore):
    """Lists keys as ``redis.asyncio`` does with ``scan_iter``."""

    async def list(self, prefix=""):
        for key in await super().list(prefix):
            yield key.encode()


@pytest.mark.parametrize("make", [BytesKeys, GeneratedKeys])
def test_a_users_store_may_list_bytes_or_generate_its_keys(make):
    store = make()
    with KeyValueStoreSaver(store) as saver:
        talk(saver)
        saver.fork("conversation-1", "other")
        assert sorted(each.thread_id for each in saver.list()) == ["conversation-1", "other"]
        assert len(list(saver.list("conversation-1"))) == 5
        saver.delete("other")

    async def scene():
        saver = KeyValueStoreSaver(make())
        await saver.asave(thread_id="t", messages=[say("a")])
        assert [each.thread_id async for each in saver.alist()] == ["t"]

    asyncio.run(scene())


@pytest.mark.parametrize("listed", [None, 3, "a key", [1], ["unasked"], [b"\xff"]])
def test_a_store_that_lists_no_keys_is_named(listed):
    class Listing(PlainStore):
        def list(self, _prefix=""):
            return listed

    saver = KeyValueStoreSaver(Listing())
    saver.save(thread_id="t", messages=[say("a")])
    with pytest.raises(InvalidInput, match=r"Listing\.list.* returned .*; return "):
        list(saver.list())


def test_keys_stay_short_whatever_the_ids():
    kept = PlainStore()
    saver = KeyValueStoreSaver(kept, namespace="n" * 500)
    talk(saver, "😀" * 500, steps=9)
    assert max(map(len, kept)) <= 360
    assert max(len(key.encode()) for key in kept) <= 360


@pytest.mark.parametrize("wrong", [None, 7, b"bytes", ["list"], object()])
def test_a_place_that_is_none_is_refused_in_words(wrong):
    with pytest.raises(InvalidInput, match=r"cannot keep checkpoints; give a folder, or an open store"):
        SqliteSaver(wrong)
    with pytest.raises(InvalidInput, match=r"give the URL of a database, or an open store"):
        PostgresSaver(wrong)
    with pytest.raises(InvalidInput, match=r"directory is .*; give the folder"):
        FileSaver(wrong)


def test_retention_and_hooks_that_are_none_are_refused_before_anything_opens(tmp_path):
    for wrong in (7, "last 5", {"last": 5}):
        for make in (MemorySaver, lambda **given: SqliteSaver(tmp_path / "s", **given)):
            with pytest.raises(InvalidInput, match=r"keep is of type .*; give treering.Keep"):
                make(keep=wrong)
        with pytest.raises(InvalidInput, match=r"keep is of type"):
            FileSaver(tmp_path / "f", keep=wrong)
        with pytest.raises(InvalidInput, match=r"keep is of type"):
            KeyValueStoreSaver(InMemoryStore(), keep=wrong)
    for wrong in (7, "tell", [print]):
        with pytest.raises(InvalidInput, match=r"hooks is of type .*; give a dict"):
            SqliteSaver(tmp_path / "s", hooks=wrong)
    assert not list(tmp_path.iterdir())
