"""The store that an adapter works on: one that the caller opened, or one that is opened here by its URL.

Frameworks pass an adapter whatever their user has: a `Store`, an `AsyncStore`, a URL or a folder. All
adapters of a store share one small thread pool, so an adapter per request costs no thread of its own.
**Invariant:** a store is closed here only if it was opened here.

Frameworks call a session from several tasks at once and expect what they write to be in the order of their
calls, which a thread pool does not keep. A `SerialExecutor` runs its calls one after the other in the store's
pool; while it is idle it holds no thread.
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
"""What an adapter accepts: an open store, or where to open one (see `treering.open`)."""


class Opened:
    """A store, whether to close it, and the threads that asyncio code uses it in.

    ``None`` opens the default store (TREERING_URL, or ``./.treering``).
    """

    def __init__(self, source: StoreOrUrl | None) -> None:
        given: Any = source  # not checked by the caller
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
        """The thread pool that all adapters of this store share."""
        with _lock:
            bridge = _bridges.get(self.store)
            if bridge is None:
                bridge = _bridges[self.store] = Bridge()
            return bridge

    def close(self) -> None:
        """Close the store if it was opened here. May be called twice."""
        if self._is_ours:
            with _lock:
                bridge = _bridges.get(self.store)
            if bridge is not None:
                bridge.shut_down()
            self.store.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        if self._is_ours:
            await self.bridge.finish(self.store.close)


_lock: Final = Lock()
_bridges: Final[WeakKeyDictionary[Store, Bridge]] = WeakKeyDictionary()


P = ParamSpec("P")
T = TypeVar("T")


class SerialExecutor:
    """Runs calls in the thread pool of a store, one at a time, in the order in which they were made."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._lock = Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._is_busy = False

    @property
    def is_idle(self) -> bool:
        """Whether no call is running or queued."""
        return not self._is_busy

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Queue a call and await its result. Cancelling cancels the waiting, never the call."""
        return await self._bridge.future(self._enqueue(function, *args, **kwargs))

    async def settle(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Queue a call and await its result; if cancelled, raise that only when the call has ended.

        Code that catches the cancellation then sees the store in its final state.
        """
        done = self._bridge.future(self._enqueue(function, *args, **kwargs))
        cancelled: asyncio.CancelledError | None = None
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
        if cancelled is not None:
            done.exception()  # retrieve it, so that asyncio does not warn
            raise cancelled
        return done.result()

    def _enqueue(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        context = contextvars.copy_context()
        context.run(lend_running_loop)  # for hooks that are coroutines, as `Bridge` does
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
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                done.set_exception(error)
            else:
                done.set_result(result)
            del done, call  # keep nothing alive while idle
