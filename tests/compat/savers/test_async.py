"""Async methods of savers: nothing blocks the loop, and a user's async store runs in it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.compat.savers.savers_under_test import AsyncStore, PlainStore, say
from treering.compat.savers import KeyValueStoreSaver, MemorySaver
from treering.errors import Conflict, NotFound, Unsupported


def test_every_call_can_be_awaited(saver):
    async def main():
        assert await saver.aload("t") is None
        assert not await saver.aexists("t")
        first = await saver.asave(thread_id="t", messages=[say("a")], metadata={"n": 1})
        await saver.asave(
            {"thread_id": "t", "messages": [say("a"), say("b")], "state": {"todos": ["x" * 9000]}}
        )
        loaded = await saver.aload("t")
        assert loaded.messages == [say("a"), say("b")]
        assert loaded.state == {"todos": ["x" * 9000]}
        assert (await saver.aload("t", first.id)).messages == [say("a")]
        assert [each.messages async for each in saver.alist("t")] == [[say("a"), say("b")], [say("a")]]
        assert [each.thread_id async for each in saver.alist()] == ["t"]
        asked = await saver.ainterrupt("t", {"tool": "rm"})
        assert asked.messages == [say("a"), say("b")]
        with pytest.raises(Conflict):
            await saver.aresume("t", "approve", interrupt_id="other")
        resumed = await saver.aresume("t", "deny", interrupt_id=asked.pending_interrupt["id"])
        assert resumed.metadata["resumed"]["decision"] == "deny"
        fork = await saver.afork("t", "u", checkpoint_id=first.id)
        assert fork.messages == [say("a")]
        with pytest.raises(NotFound):
            await saver.afork("nobody", "v")
        assert await saver.adelete("u")
        assert not await saver.aexists("u")
        assert await saver.in_namespace("bob").aload("t") is None

    asyncio.run(main())


def test_saves_of_many_tasks_are_all_kept(saver):
    async def main():
        await asyncio.gather(
            *(saver.asave(thread_id=f"t{number % 3}", messages=[say(str(number))]) for number in range(30))
        )
        found = {name: [each async for each in saver.alist(name)] for name in ("t0", "t1", "t2")}
        for name, history in found.items():
            assert [each.step for each in history] == list(range(9, -1, -1)), name
            said = {each.messages[0]["content"] for each in history}
            assert said == {str(number) for number in range(30) if f"t{number % 3}" == name}

    asyncio.run(main())


def test_a_users_async_store_is_awaited_in_the_callers_loop():
    store = AsyncStore()
    saver = KeyValueStoreSaver(store)

    async def main():
        await saver.asave(thread_id="t", messages=[say("a")])
        assert [each.messages async for each in saver.alist("t")] == [[say("a")]]
        assert store.loops == {asyncio.get_running_loop()}
        for mistaken in (
            lambda: saver.save(thread_id="t"),
            lambda: saver.load("t"),
            saver.list,
            lambda: saver.exists("t"),
            lambda: saver.delete("t"),
            lambda: saver.resume("t", "approve"),
        ):
            with pytest.raises(Unsupported, match=r"AsyncStore\.get is async"):
                mistaken()

    asyncio.run(main())
    assert saver.load("t").messages == [say("a")]
    assert len(store.loops) == 2


def test_a_slow_plain_store_does_not_hold_up_the_loop():
    ticking = threading.Event()

    class Slow(PlainStore):
        def get(self, key):
            assert ticking.wait(60)
            return super().get(key)

    async def main():
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(ticking.set))
        assert await KeyValueStoreSaver(Slow()).aload("t") is None

    asyncio.run(main())


def test_a_cancelled_save_is_finished_all_the_same():
    begun, go_on = threading.Event(), threading.Event()

    class Slow(PlainStore):
        def set(self, key, value):
            begun.set()
            assert go_on.wait(60)
            super().__setitem__(key, value)

    saver = KeyValueStoreSaver(Slow())

    async def main():
        saving = asyncio.create_task(saver.asave(thread_id="t", messages=[say("a")]))
        await asyncio.to_thread(begun.wait)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        go_on.set()
        await saver.asave(thread_id="t", messages=[say("a"), say("b")])  # waits for its turn
        assert [len(each.messages) async for each in saver.alist("t")] == [2, 1]

    asyncio.run(main())


def test_async_hooks_run_in_the_callers_loop_and_may_use_the_saver():
    seen = []

    async def before(saving):
        seen.append(asyncio.get_running_loop())
        return {"metadata": {"before": (await saver.aload(saving.thread_id)) is not None}}

    async def after(saved):
        seen.append(asyncio.get_running_loop())
        assert (await saver.aload(saved.thread_id)).id == saved.checkpoint.id

    saver = MemorySaver(hooks={"pre_checkpoint_save": [before], "post_checkpoint_save": after})

    async def main():
        await asyncio.gather(*(saver.asave(thread_id=f"t{number}") for number in range(20)))
        assert (await saver.asave(thread_id="t0")).metadata == {"before": True}
        assert set(seen) == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_async_context_managers_close(somewhere):
    async def main():
        async with somewhere.open() as saver:
            await saver.asave(thread_id="t")
        async with somewhere.open() as again:
            assert await again.aexists("t") == (await again.aload("t") is not None)

    asyncio.run(main())
