"""The bridge from asyncio to the synchronous core.

Calls hop to a small pool of threads; commits need no thread, they wait for the future that the engine gives
anyway. **Invariant:** cancelling an await cancels the waiting, never the work: a call that has begun runs to
its end, and a batch that was submitted is committed whole or refused whole. So a cancelled write is never
torn; whether it happened can be asked by sending the same batch again.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar, cast

from treering.errors import Closed
from treering.runs.follow import Following, LiveEvent
from treering.sync_async import lend_running_loop

P = ParamSpec("P")
T = TypeVar("T")

POOL_SIZE: Final = 8
"""As many calls at once as a store's own pool of read connections serves well."""

_AHEAD: Final = 256
"""Events that a follower reads ahead of whoever awaits them."""

_END: Final[Any] = object()


def shown(of: object) -> str:
    """How an async twin is shown: as what it is the twin of."""
    name = repr(of)
    return f"<Async{name[1:]}" if name.startswith("<") else f"Async{name}"


class Bridge:
    """The threads of one async store and of everything that was reached through it."""

    def __init__(self, *, threads: int = POOL_SIZE) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="treering-aio")
        self._open = True

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in the pool, with the caller's context variables.

        Coroutines that it meets (hooks) run in the caller's event loop, if there is one.
        """
        if not self._open:
            raise Closed("the store was closed; open it again")
        context = contextvars.copy_context()
        context.run(lend_running_loop)
        return self._pool.submit(context.run, function, *args, **kwargs)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a function that runs in the pool."""
        return await self.future(self.submit(function, *args, **kwargs))

    def future(self, future: Future[T]) -> asyncio.Future[T]:
        """A future of another thread as one of this loop; cancelling it leaves the other one alone."""
        return asyncio.shield(asyncio.wrap_future(future))

    async def iterate(
        self, function: Callable[P, Iterator[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        """The items of an iterator whose steps block, one hop each."""
        iterator = await self.call(function, *args, **kwargs)
        if isinstance(iterator, Following):
            async for item in _followed(iterator):
                yield cast("T", item)
            return
        try:
            while (item := await self.call(next, iterator, _END)) is not _END:
                yield item
        finally:
            if isinstance(iterator, Generator):
                await self.call(iterator.close)

    def in_loop(self, callback: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """The same callback for use in the pool: it runs in the event loop that asked."""
        if callback is None:
            return None
        loop = asyncio.get_running_loop()

        def post(value: T) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, value)

        return post

    async def finish(self, close: Callable[[], None]) -> None:
        """Make the last call and let the threads end; only the first time."""
        if not self._open:
            return
        closing = self.submit(close)
        self.shut_down()
        await self.future(closing)

    def shut_down(self) -> None:
        """Take no more calls; the threads end when they have finished theirs."""
        self._open = False
        self._pool.shutdown(wait=False)


async def _followed(following: Following) -> AsyncIterator[LiveEvent]:
    """What an endless iterator gives, from a thread of its own: it waits most of the time, and must not do
    that in the pool. A loop that does not keep up makes it wait.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[LiveEvent | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)

    def post(item: LiveEvent | BaseException | None) -> bool:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:  # the loop was closed
            return False
        return True

    def work() -> None:
        try:
            for event in following:
                room.acquire()
                if not post(event):
                    return
        except Exception as error:  # noqa: BLE001 - whoever follows must hear of it
            post(error)
        else:
            post(None)

    threading.Thread(target=work, name="treering-following", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item
    finally:
        following.close()
        room.release()
