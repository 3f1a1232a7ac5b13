"""Key-value stores: four methods over a dict, a folder, Redis, or a user's own class, sync or async.

Each claim is tested with every store, from sync and from async code.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from treering.bridge import Bridge
from treering.errors import Corrupt, InvalidInput, MissingExtra, Unencodable, Unreachable, Unsupported
from treering.keyvalue import FolderStore, InMemoryStore, KeyValueStore, RedisStore
from treering.sync_async import call, lent, refuse_to_block


class OwnAsyncStore:
    """The document's own example: a class with four async methods."""

    def __init__(self):
        self.kept = InMemoryStore()
        self.loops = set()

    async def get(self, key):
        return await self._later(self.kept.get, key)

    async def set(self, key, value):
        return await self._later(self.kept.set, key, value)

    async def delete(self, key):
        return await self._later(self.kept.delete, key)

    async def list(self, prefix=""):
        return await self._later(self.kept.list, prefix)

    async def _later(self, method, *args):
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return method(*args)


class OwnPlainStore(dict):
    """As little as a user can write."""

    set = dict.__setitem__

    def delete(self, key):
        self.pop(key, None)

    def list(self, prefix=""):
        return (key for key in self if key.startswith(prefix))


OURS = ["memory", "folder", "compressed folder", "redis"]
ALL = [*OURS, "a user's async store"]
VALUE = {
    "threadId": "conversation-1",
    "step": 3,
    "messages": [{"role": "user", "content": "Hello, my name is Alice 😀"}],
    "state": {"todos": [], "files": {"a.bin": b"\x00\xff"}},
    "ratio": 0.1,
    "none": None,
    "at": datetime(2026, 11, 16, 12, 30, tzinfo=UTC),
}


def make(kind, request) -> KeyValueStore:
    match kind:
        case "memory":
            return InMemoryStore()
        case "folder":
            return FolderStore(request.getfixturevalue("tmp_path") / "values")
        case "compressed folder":
            return FolderStore(request.getfixturevalue("tmp_path") / "values", compress=True)
        case "redis":
            return RedisStore(request.getfixturevalue("redis_url"))
        case _:
            return OwnAsyncStore()


def marked(kinds):
    return [pytest.param(kind, marks=pytest.mark.redis if kind == "redis" else ()) for kind in kinds]


@pytest.fixture(params=marked(ALL))
def store(request):
    return make(request.param, request)


@pytest.fixture(params=marked(OURS))
def own(request):
    return make(request.param, request)


@pytest.fixture(params=["from sync code", "from async code"])
def do(request):
    if request.param == "from sync code":
        return call
    return lambda method, *args: asyncio.run(Bridge().call(call, method, *args))


def test_a_value_comes_back_as_it_was(store, do):
    do(store.set, "conversation-1", VALUE)
    assert do(store.get, "conversation-1") == VALUE


@pytest.mark.parametrize(
    "value",
    [
        "",
        "text",
        b"",
        b"\x00\x80\xff",
        0,
        -1.5,
        True,
        None,
        [],
        {},
        [1, [2, {"three": b"3"}]],
        Decimal("1.10"),
        UUID(int=7),
        "json:{}",
        {"$": 1},
    ],
)
def test_every_kind_of_value_keeps_its_type(store, do, value):
    do(store.set, "key", value)
    found = do(store.get, "key")
    assert found == value
    assert type(found) is type(value)


def test_a_key_that_was_never_set_has_no_value(store, do):
    assert do(store.get, "never") is None


def test_setting_again_replaces(store, do):
    do(store.set, "key", {"a": "long value " * 100})
    do(store.set, "key", 2)
    assert do(store.get, "key") == 2
    assert list(do(store.list, "")) == ["key"]


def test_deleting_is_for_good_and_may_be_repeated(store, do):
    do(store.set, "key", 1)
    do(store.delete, "key")
    do(store.delete, "key")
    assert do(store.get, "key") is None
    assert list(do(store.list, "")) == []


@pytest.mark.parametrize(
    "prefix, expected",
    [
        ("", ["a", "a*b", "a/1", "a/2", "aXb", "a[bc]", "a\\d", "ab", "é😀/x"]),
        ("a/", ["a/1", "a/2"]),
        ("a*", ["a*b"]),
        ("a[", ["a[bc]"]),
        ("a\\", ["a\\d"]),
        ("a?", []),
        ("é", ["é😀/x"]),
        ("nothing", []),
    ],
)
def test_keys_are_listed_by_their_exact_beginning(store, do, prefix, expected):
    for key in ("a", "a*b", "a/1", "a/2", "aXb", "a[bc]", "a\\d", "ab", "é😀/x"):
        do(store.set, key, 1)
    assert sorted(do(store.list, prefix)) == expected


def test_many_keys_are_listed_once_each(own):
    keys = [f"thread/{number:04}" for number in range(1200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: own.set(key, 1), keys))
    assert own.list("thread/") == keys
    assert own.list() == keys


def test_what_a_caller_changes_afterwards_is_not_stored(own):
    value = {"todos": ["one"]}
    own.set("key", value)
    value["todos"].append("two")
    own.get("key")["todos"].append("three")
    assert own.get("key") == {"todos": ["one"]}


@pytest.mark.parametrize("key", ["", "nul\0", "new\nline", "lone\ud800", "x" * 10_000, 7, None])
def test_a_key_that_cannot_be_kept_is_refused(own, key):
    for method in (lambda: own.get(key), lambda: own.set(key, 1), lambda: own.delete(key)):
        with pytest.raises(InvalidInput, match="key"):
            method()


@pytest.mark.parametrize(
    "key", ["a/b", "..", ".", "~", "con", "😀", "x" * 512, " spaced ", "a\u200db", "%2F"]
)
def test_odd_keys_are_ordinary(own, key):
    own.set(key, key)
    assert own.get(key) == key
    assert own.list() == [key]


def test_a_value_that_cannot_be_stored_says_where_it_cannot(own):
    with pytest.raises(Unencodable, match="todos"):
        own.set("key", {"todos": [object()]})
    assert own.get("key") is None


def test_values_outlive_the_object_that_wrote_them(tmp_path, redis_url):
    for reopen in (lambda: FolderStore(tmp_path), lambda: RedisStore(redis_url)):
        reopen().set("a/key", VALUE)
        assert reopen().get("a/key") == VALUE
        assert reopen().list() == ["a/key"]


def test_threads_share_a_store(own):
    def work(number):
        own.set(f"key-{number}", number)
        return own.get(f"key-{number}")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(50))) == list(range(50))


# A user's own store, either kind


def test_the_least_a_user_can_write_is_a_store():
    store: KeyValueStore = OwnPlainStore()
    call(store.set, "a/1", 1)
    assert asyncio.run(Bridge().call(call, store.get, "a/1")) == 1
    assert list(call(store.list, "a/")) == ["a/1"]


def test_async_stores_run_on_one_loop_of_our_own_when_called_from_plain_code():
    store = OwnAsyncStore()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: call(store.set, f"key-{number}", number), range(20)))
    call(store.list, "")
    assert len(store.loops) == 1


def test_a_running_loop_is_never_blocked():
    store = OwnAsyncStore()

    async def mistaken():
        call(store.get, "key")

    with pytest.raises(Unsupported, match=r"OwnAsyncStore\.get is async.*await"):
        asyncio.run(mistaken())


def test_a_sync_store_does_not_block_the_loop_that_calls_it():
    ticking, threads = threading.Event(), []

    def slow(_key):
        threads.append(threading.current_thread())
        return ticking.wait(timeout=60)

    async def main():
        asyncio.get_running_loop().call_soon(ticking.set)
        return await Bridge().call(call, slow, "key")

    assert asyncio.run(main()) is True
    assert threads != [threading.main_thread()]


def test_an_async_store_is_awaited_in_the_callers_own_loop():
    store = OwnAsyncStore()

    async def main():
        await Bridge().call(call, store.set, "key", 1)
        assert store.loops == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_errors_of_a_users_store_are_raised_unchanged():
    async def fails(_key):
        raise LookupError("their own")

    with pytest.raises(LookupError, match="their own"):
        call(fails, "key")
    with pytest.raises(LookupError, match="their own"):
        asyncio.run(Bridge().call(call, fails, "key"))


# Redis in particular


def test_stores_with_different_prefixes_share_a_database(redis_url):
    ours, theirs = RedisStore(redis_url, prefix="ours:"), RedisStore(redis_url, prefix="theirs:")
    ours.set("key", 1)
    theirs.set("key", 2)
    assert (ours.get("key"), theirs.get("key")) == (1, 2)
    assert ours.list() == theirs.list() == ["key"]


def test_a_client_that_exists_already_is_used(redis_url):
    import redis

    with redis.Redis.from_url(redis_url) as client:
        RedisStore(client=client).set("key", {"a": 1})
        assert client.get("treering:key") == b'json:{"a":1}'
    with (
        redis.Redis.from_url(redis_url, decode_responses=True) as decoding,
        pytest.raises(InvalidInput, match="decode_responses=False"),
    ):
        RedisStore(client=decoding)
    with pytest.raises(InvalidInput, match=r"pass a redis\.Redis"):
        RedisStore(client=redis.asyncio.Redis())


def test_foreign_values_under_our_prefix_are_named(redis_url):
    import redis

    store = RedisStore(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        client.set("treering:foreign", b"no kind")
        client.rpush("treering:list", "item")
    for key in ("foreign", "list"):
        with pytest.raises(Corrupt, match=key):
            store.get(key)


def test_a_server_that_is_not_there_is_unreachable_and_its_password_not_shown():
    store = RedisStore("redis://user:password@127.0.0.1:1/0")
    for method in (lambda: store.get("key"), lambda: store.set("key", 1), store.list):
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1") as caught:
            method()
        assert caught.value.retryable
        assert "password" not in str(caught.value)


def test_a_wrong_password_is_the_callers_mistake(redis_url):
    with pytest.raises(InvalidInput, match="credentials"):
        RedisStore(redis_url.replace("redis://", "redis://user:wrong@")).get("key")


def test_a_url_of_another_kind_is_refused():
    with pytest.raises(InvalidInput, match="redis://"):
        RedisStore("http://localhost")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"pip install 'treering\[redis\]'"):
        RedisStore()


def test_the_private_loop_starts_again_in_a_forked_child():
    script = """
import os, signal
from treering.sync_async import call
async def answer(): return 7
assert call(answer) == 7
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(call(answer))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert call(answer) == 7
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_sync_code_in_a_worker_thread_can_use_the_callers_loop():
    store = OwnAsyncStore()

    def plain(loop):
        with lent(loop):
            call(store.set, "key", 1)
            return call(store.get, "key")

    async def main():
        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(plain, loop) == 1
        assert store.loops == {loop}
        with pytest.raises(Unsupported, match=r"OwnAsyncStore\.set is async"):
            refuse_to_block(store.kept.get, store.set)

    asyncio.run(main())
    refuse_to_block(store.set)
