"""The store that an adapter works on: one that the caller opened, or one that is opened here by its URL.

Frameworks hand an adapter whatever their user has: a `Store`, an `AsyncStore`, a URL or a folder.
**Invariant:** only what was opened here is closed here; a store that was given stays the caller's, however
many adapters share it. They share its threads too: one small pool for all adapters of a store, so that an
object per request costs no thread of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from treering.aio import AsyncStore
from treering.api import open as open_store
from treering.bridge import Bridge
from treering.errors import InvalidInput
from treering.store import Store
from treering.sync_async import lend_running_loop

StoreOrUrl = Store | AsyncStore | str | Path
"""What an adapter takes: an open store, or where one is (see `treering.open`)."""


class Opened:
    """A store, whether it is to be closed, and the threads in which asyncio's callers use it.

    ``None`` opens the default store (TREERING_URL, or ``./.treering``).
    """

    def __init__(self, source: StoreOrUrl | None) -> None:
        given: Any = source  # of any type, whatever the caller's checker said
        self._is_ours = False
        if isinstance(given, AsyncStore):
            self.store = given.sync
        elif isinstance(given, Store):
            self.store = given
        elif given is None or isinstance(given, (str, Path)):
            self.store = open_store(given)
            self._is_ours = True
        else:
            raise InvalidInput(
                f"{type(given).__name__} is not a store; pass a Store, an AsyncStore, a URL or a folder"
            )

    @property
    def bridge(self) -> Bridge:
        """The threads that all adapters of this store share."""
        with _lock:
            bridge = _bridges.get(self.store)
            if bridge is None:
                bridge = _bridges[self.store] = Bridge()
            return bridge

    def close(self) -> None:
        """Close the store if it was opened here; a store that was given stays open. May be called twice."""
        if self._is_ours:
            with _lock:
                bridge = _bridges.get(self.store)
            if bridge is not None:
                bridge.shut_down()
            self.store.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        if self._is_ours:
            await self.bridge.finish(self.store.close)


_lock: Final = Lock()
_bridges: Final[WeakKeyDictionary[Store, Bridge]] = WeakKeyDictionary()


# -----------------------------------------------------------------------------------------------------------
# A lane: calls that run one at a time, in the order in which they were made.
#
# Frameworks call a session from many tasks at once and expect what they wrote to stand in the order of their
# calls. A pool of threads keeps no order, and a `Thread` is not to be used by two of them. A lane runs its
# calls in the store's pool, one behind the other; while it is idle it holds no thread.


P = ParamSpec("P")
T = TypeVar("T")


class Lane:
    """One queue of calls on the threads of a store."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._lock = Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_busy = False

    @property
    def is_idle(self) -> bool:
        """Whether no call runs or waits."""
        return not self._is_busy

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a call in its turn. Cancelling cancels the waiting, never the call."""
        return await self._bridge.future(self._enqueue(function, *args, **kwargs))

    async def settle(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a call in its turn; a cancelled caller hears of it only when the call has ended.

        So whoever catches the cancellation finds the store as it will stay.
        """
        done = self._bridge.future(self._enqueue(function, *args, **kwargs))
        cancelled: asyncio.CancelledError | None = None
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            done.exception()  # looked at, so that asyncio does not complain about it
            raise cancelled
        return done.result()

    def _enqueue(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(lend_running_loop)  # for hooks that are coroutines, as the bridge does it
        with self._lock:
            if not self._is_busy:
                self._bridge.submit(self._work)
                self._is_busy = True
            self._waiting.append((done, lambda: context.run(function, *args, **kwargs)))
        return done

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_busy = False
                    return
                done, call = self._waiting.popleft()
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                done.set_exception(error)
            else:
                done.set_result(result)
            del done, call  # an idle lane keeps nothing alive
