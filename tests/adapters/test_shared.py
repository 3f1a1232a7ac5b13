"""What the adapters share: serial executors, names, and stores that are opened or given."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from threading import Event, Thread, active_count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.adapters.conversation import read_heads
from treering.adapters.shared import Opened, SerialExecutor, is_plain, thread_name
from treering.bridge import Bridge
from treering.core.ids import check_id
from treering.errors import Closed, InvalidInput


@pytest.fixture
def bridge():
    made = Bridge(threads=4)
    yield made
    made.shut_down()


def test_an_executor_runs_one_call_at_a_time_in_the_order_of_the_calls(bridge):
    running, done = [], []

    def work(number):
        running.append(number)
        assert running == [number]
        running.remove(number)
        done.append(number)
        if number % 3 == 0:
            raise ValueError(number)
        return number * 2

    async def main():
        executor = SerialExecutor(bridge)
        assert executor.is_idle
        found = await asyncio.gather(
            *(executor.call(work, number) for number in range(20)), return_exceptions=True
        )
        assert [each for each in found if isinstance(each, int)] == [n * 2 for n in range(20) if n % 3]
        assert [each.args for each in found if isinstance(each, ValueError)] == [
            (n,) for n in range(0, 20, 3)
        ]

    asyncio.run(main())
    assert done == list(range(20))


def test_a_busy_executor_does_not_delay_another(bridge):
    go_on = Event()

    async def main():
        slow, quick = SerialExecutor(bridge), SerialExecutor(bridge)
        waiting = [asyncio.ensure_future(slow.call(go_on.wait, 30)) for _ in range(20)]
        assert await quick.call(lambda: "done") == "done"
        assert not slow.is_idle
        go_on.set()
        assert await asyncio.gather(*waiting) == [True] * 20

    asyncio.run(main())


def test_calls_from_several_loops_share_an_executor(bridge):
    executor, done = SerialExecutor(bridge), []

    async def write(name):
        for number in range(20):
            await executor.call(done.append, (name, number))

    writers = [Thread(target=lambda name=name: asyncio.run(write(name))) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(done) == 40
    assert [each for each in done if each[0] == "a"] == [("a", number) for number in range(20)]


def test_a_call_has_the_context_of_its_caller(bridge):
    user = contextvars.ContextVar("user")

    async def main():
        executor = SerialExecutor(bridge)

        async def ask(name):
            user.set(name)
            return await executor.call(user.get)

        assert await asyncio.gather(ask("alice"), ask("bob")) == ["alice", "bob"]

    asyncio.run(main())


def test_a_cancelled_call_that_settles_has_ended_and_its_error_is_not_lost_noisily(bridge):
    entered, go_on = Event(), Event()

    def work():
        entered.set()
        assert go_on.wait(30)
        raise ValueError("nobody waits for this")

    async def main():
        executor = SerialExecutor(bridge)
        waiting = asyncio.ensure_future(executor.settle(work))
        await asyncio.to_thread(entered.wait)
        waiting.cancel()
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await executor.settle(lambda: 1) == 1

    asyncio.run(main())


def test_an_executor_of_a_closed_store_raises():
    made = Bridge()
    made.shut_down()
    executor = SerialExecutor(made)
    for _ in range(2):
        with pytest.raises(Closed):
            asyncio.run(executor.call(lambda: 1))


@given(st.text(), st.text())
def test_two_names_never_share_an_id(one, other):
    first, second = thread_name(one, "name"), thread_name(other, "name")
    assert (first == second) == (one == other)
    assert check_id(first, "name") == first
    assert (first == one) == is_plain(one)
    assert thread_name(first, "name") != first or is_plain(one)


@given(st.text("ab/~", max_size=8))
def test_a_name_without_slashes_has_none(name):
    made = thread_name(name, "name", limit=5, slashes=False)
    assert "/" not in made
    assert (made == name) == (0 < len(name) <= 5 and "/" not in name)


def test_ordinary_names_are_their_own_ids():
    for name in ("alice", "support/alice", "a//b", "50%", "~/project", "ü \U0001f600", "x" * 512):
        assert thread_name(name, "name") == name
    with pytest.raises(InvalidInput, match="session id is of type bytes; pass a str"):
        thread_name(b"alice", "session id")


def test_adapters_of_a_store_share_its_threads(tmp_path):
    with treering.open("memory:") as store:
        before = active_count()
        many = [Opened(store) for _ in range(50)]
        assert len({id(each.bridge) for each in many}) == 1

        async def main():
            for each in many:
                await each.bridge.call(lambda: None)

        asyncio.run(main())
        assert active_count() <= before + 8
        for each in many:
            each.close()
        assert list(store.threads()) == []
    own = Opened(tmp_path / "own")
    asyncio.run(own.aclose())
    asyncio.run(own.aclose())
    own.close()
    with pytest.raises(Closed):
        own.store.thread("t").load()


def test_the_default_store_is_opened_when_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TREERING_URL", str(tmp_path / "default"))
    opened = Opened(None)
    opened.store.thread("t").append("hi")
    opened.close()
    assert Path(tmp_path / "default" / "treering.db").exists()


def test_heads_are_read_with_the_state_that_they_have():
    with treering.open("memory:") as store:
        store.thread("a").checkpoint([], {"x": 1, "big": {"k": "v" * 5000, "l": 2}})
        store.thread("b").checkpoint([], {"y": 2})
        gone = store.thread("c")
        gone.checkpoint([], {"x": 3})
        threads = list(store.threads())
        gone.delete()
        found = {info.id: state for info, _, state in read_heads(store, threads, "x", "big")}
        assert found == {"a": {"x": 1, "big": {"k": "v" * 5000, "l": 2}}, "b": {}}
