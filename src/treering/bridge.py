"""The bridge from async code to the synchronous core.

A call runs in a small pool of threads; a commit needs none, it awaits the future that the engine returns.
Coroutines that the call meets (a user's hooks, a user's async key-value store) run in the caller's event loop
meanwhile. **Invariant:** cancelling an await cancels the waiting, never the work: a call that has begun runs
to its end, and a submitted batch is committed whole or refused whole. So a cancelled write is never torn, and
submitting the same batch again tells whether it happened.

The async API is asyncio's. Adapters of frameworks that also run under trio await their calls with
`Bridge.call`, `wait` and `settle`, which work under both.

A call that is made from such a coroutine gets a thread of its own: the call that awaits the coroutine holds a
thread of the pool, and if every thread of the pool were held in this way, none would ever be released.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

from treering.errors import Closed
from treering.runs.follow import E, Follower
from treering.sync_async import has_borrowed_loop, lend_running_loop, runs_trio

P = ParamSpec("P")
T = TypeVar("T")

POOL_SIZE: Final = 8
"""As many concurrent calls as a store's own pool of read connections serves well."""

_READ_AHEAD: Final = 256
"""How many events a follower reads before they are awaited."""

_END: Final[Any] = object()


def async_repr(sync: object) -> str:
    """Return the repr of an async twin, made from that of its sync object."""
    name = repr(sync)
    return f"<Async{name[1:]}" if name.startswith("<") else f"Async{name}"


class Bridge:
    """The threads of one async store and of everything that was reached through it."""

    def __init__(self, *, threads: int = POOL_SIZE) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="treering-aio")
        self._open = True

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in the pool, with the caller's context variables.

        Coroutines that it meets run in the caller's event loop, if the caller has one.
        """
        if not self._open:
            raise Closed("the store was closed; open it again")
        context = contextvars.copy_context()
        context.run(lend_running_loop)
        if has_borrowed_loop():
            return _run_in_new_thread(lambda: context.run(function, *args, **kwargs))
        return self._pool.submit(context.run, function, *args, **kwargs)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a function that runs in the pool."""
        return await self.wait(self.submit(function, *args, **kwargs))

    async def wait(self, future: Future[T]) -> T:
        """Await a future of another thread, under asyncio or trio. Cancelling cancels only the waiting."""
        if not runs_trio():
            return await self.future(future)
        await _trio_done(future)
        return future.result()

    async def settle(self, future: Future[T]) -> T:
        """Await a future of another thread; if cancelled, raise that only when it is done.

        Code that catches the cancellation then sees the store in its final state.
        """
        if runs_trio():
            import trio

            with trio.CancelScope(shield=True):
                await _trio_done(future)
            await trio.lowlevel.checkpoint_if_cancelled()
            return future.result()
        done = self.future(future)
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

    def future(self, future: Future[T]) -> asyncio.Future[T]:
        """Return a future of this loop for one of another thread, which cancelling does not cancel."""
        return asyncio.shield(asyncio.wrap_future(future))

    async def iterate(
        self, function: Callable[P, Iterator[T]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        """Yield the items of an iterator whose steps block, each of them read in the pool."""
        iterator = await self.call(function, *args, **kwargs)
        if isinstance(iterator, Follower):
            async for item in _followed(cast("Follower[Any]", iterator)):
                yield item
            return
        try:
            while (item := await self.call(next, iterator, _END)) is not _END:
                yield item
        finally:
            if isinstance(iterator, Generator):
                await self.call(iterator.close)

    def in_loop(self, callback: Callable[[T], None] | None) -> Callable[[T], None] | None:
        """Wrap a callback for use in the pool, so that it runs in the current event loop."""
        if callback is None:
            return None
        loop = asyncio.get_running_loop()

        def post(value: T) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, value)

        return post

    async def finish(self, close: Callable[[], None]) -> None:
        """Make the last call and end the threads. Does nothing when called again."""
        if not self._open:
            return
        closing = self.submit(close)
        self.shut_down()
        await self.wait(closing)

    def shut_down(self) -> None:
        """Accept no more calls; the threads end when they have finished theirs."""
        self._open = False
        self._pool.shutdown(wait=False)


class HasBridge(Protocol):
    """An object whose awaited methods run on a bridge."""

    @property
    def bridge(self) -> Bridge:
        """The threads of this object."""
        ...


OwnerT = TypeVar("OwnerT", bound=HasBridge)


def awaited(
    method: Callable[Concatenate[OwnerT, P], T],
) -> Callable[Concatenate[OwnerT, P], Coroutine[Any, Any, T]]:
    """Return the async twin of a method.

    For a class that has both on one object: ``asave = awaited(save)``.
    """

    @wraps(method)
    async def twin(self: OwnerT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.bridge.call(method, self, *args, **kwargs)

    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{twin.__name__}"
    twin.__doc__ = f"Async twin of `{method.__name__}`."
    return twin


async def _trio_done(future: Future[Any]) -> None:
    """Wait in trio until a future of another thread is done."""
    import trio

    token = trio.lowlevel.current_trio_token()
    done = trio.Event()

    def wake(_: Future[Any]) -> None:
        with suppress(trio.RunFinishedError):  # nobody waits any more
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    await done.wait()


def _run_in_new_thread(function: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)

    threading.Thread(target=run, name="treering-aio-nested", daemon=True).start()
    return future


async def _followed(following: Follower[E]) -> AsyncIterator[E]:
    """Yield what an endless iterator returns.

    It is read in a thread of its own, because it waits most of the time and would hold a thread of the pool
    for ever. A slow reader makes it wait.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[E | BaseException | None] = asyncio.Queue()
    free = threading.Semaphore(_READ_AHEAD)

    def post(item: E | BaseException | None) -> bool:
        try:
            loop.call_soon_threadsafe(queue.put_nowait, item)
        except RuntimeError:  # the loop was closed
            return False
        return True

    def read() -> None:
        try:
            for event in following:
                free.acquire()
                if not post(event):
                    return
        except Exception as error:  # noqa: BLE001 - raised where the events are awaited
            post(error)
        else:
            post(None)

    threading.Thread(target=read, name="treering-following", daemon=True).start()
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            free.release()
            yield item
    finally:
        following.close()
        free.release()
