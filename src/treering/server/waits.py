"""Waiting for news without a thread for everyone who waits.

One thread looks after all who wait for the same space; it begins with the first of them and ends with the
last. **Invariant:** whoever waits behind a number hears of the first commit past it, also of one that came
while they were signing in.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final

import msgspec
from anyio import to_thread

from treering.core.engine import Engine

MAX_THREADS: Final = 256
"""For so many spaces a thread looks on; those who wait for further ones look by themselves, now and then."""

_LOOK_SECONDS: Final = 1.0
"""How often a thread looks whether anybody is still waiting, and how often those without one look."""


class _Waiter(msgspec.Struct, frozen=True, eq=False):
    after_seq: int
    loop: asyncio.AbstractEventLoop
    news: asyncio.Future[int]


class _Watch:
    """Those who wait for one space, and the last number that was seen there."""

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq
        self.waiters: list[_Waiter] = []


class Waits:
    """Everyone who waits for an engine's spaces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}

    async def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """The last sequence number of a space once it is past ``after_seq``, or when time is up."""
        last_seq = await to_thread.run_sync(self._now, space)
        if last_seq > after_seq or seconds <= 0:
            return last_seq
        waiter = _Waiter(after_seq, asyncio.get_running_loop(), asyncio.get_running_loop().create_future())
        with self._lock:
            watch = self._watches.get(space)
            if watch is not None and watch.last_seq > after_seq:
                return watch.last_seq
            if watch is None and len(self._watches) < MAX_THREADS:
                watch = self._watches[space] = _Watch(last_seq)
                threading.Thread(
                    target=self._look, args=(space, watch), name="treering-waits", daemon=True
                ).start()
            if watch is not None:
                watch.waiters.append(waiter)
        if watch is None:
            return await self._poll(space, after_seq, seconds)
        try:
            return await asyncio.wait_for(waiter.news, seconds)
        except TimeoutError:
            return await to_thread.run_sync(self._now, space)
        finally:
            with self._lock:
                if waiter in watch.waiters:
                    watch.waiters.remove(waiter)

    async def _poll(self, space: str, after_seq: int, seconds: float) -> int:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            await asyncio.sleep(max(0.0, min(left, _LOOK_SECONDS)))
            last_seq = await to_thread.run_sync(self._now, space)
            if last_seq > after_seq or left <= _LOOK_SECONDS:
                return last_seq

    def _now(self, space: str) -> int:
        return self._engine.wait(space, 0, seconds=0)

    def _look(self, space: str, watch: _Watch) -> None:
        while True:
            error: Exception | None = None
            last_seq = watch.last_seq
            try:
                last_seq = self._engine.wait(space, watch.last_seq, seconds=_LOOK_SECONDS)
            except Exception as caught:  # noqa: BLE001 - it belongs to those who wait
                error = caught
            with self._lock:
                watch.last_seq = max(watch.last_seq, last_seq)
                told = [each for each in watch.waiters if error is not None or each.after_seq < last_seq]
                watch.waiters = [each for each in watch.waiters if each not in told]
                is_done = error is not None or not watch.waiters
                if is_done:
                    del self._watches[space]
            for waiter in told:
                waiter.loop.call_soon_threadsafe(_tell, waiter.news, last_seq, error)
            if is_done:
                return


def _tell(news: asyncio.Future[int], last_seq: int, error: Exception | None) -> None:
    if news.done():
        return
    if error is None:
        news.set_result(last_seq)
    else:
        news.set_exception(error)
