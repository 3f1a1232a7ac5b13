"""Code that is sync or async, whichever its caller or its callee is.

`call` returns the result of a method that may be either, such as one of a user's key-value store or a hook:

======================  ===========================================
the method is sync      it is called
the method is async     its coroutine runs in a loop, this thread waits
======================  ===========================================

That loop is the one lent to this context (see `lent`), which the caller of our async API runs in another
thread (an asyncio loop, or trio's), or else a private one in a daemon thread of this process. **Invariant:**
a running loop is never blocked: `call` refuses an async method on a thread that runs a loop, because waiting
there would stop that loop, for ever if the method's own connections belong to it. An object that keeps
connections should be used either from sync or from async code, because asyncio binds a connection to the
loop that created it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable
from contextvars import ContextVar
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from treering.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    import trio


class Closing(ABC):
    """Closed at the end of a ``with`` or ``async with`` statement."""

    @abstractmethod
    def close(self) -> None:
        """Close what was opened. May be called twice."""

    @abstractmethod
    async def aclose(self) -> None:
        """Async twin of `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Done:
    """What a sync method returns that has no result, so that async code may await it all the same."""

    def __await__(self) -> Generator[None]:
        yield from ()


def call(method: Callable[..., Any], /, *args: Any) -> Any:
    """Return the result of ``method(*args)``, waiting for it if it is awaitable.

    Raises `Unsupported` for an async method on a thread that runs an event loop.
    """
    result = method(*args)
    if not inspect.isawaitable(result):
        return result
    if _runs_a_loop():
        if inspect.iscoroutine(result):
            result.close()
        raise _would_block(method)
    loop = _lent.get() or _private_loop.get()
    if isinstance(loop, asyncio.AbstractEventLoop):
        return asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()
    import trio

    return trio.from_thread.run(_awaited, result, trio_token=loop)


def collect(method: Callable[..., Any], /, *args: Any) -> list[Any]:
    """Return what ``method(*args)`` lists: an iterable, an awaitable of one, or an async iterator.

    Raises `Unsupported` where `call` does, and `InvalidInput` for what is not iterable.
    """

    def listed() -> Any:
        result = method(*args)
        return _items(result) if hasattr(result, "__aiter__") else result

    if inspect.isasyncgenfunction(method) and _runs_a_loop():
        raise _would_block(method)
    found = call(listed)
    if not isinstance(found, Iterable) or isinstance(found, str):
        name = getattr(method, "__qualname__", repr(method))
        raise InvalidInput(f"{name} returned {found!r}; return a list, or any other iterable")
    return list(cast("Iterable[Any]", found))


def refuse_to_block(*methods: Callable[..., Any]) -> None:
    """Raise `Unsupported` if `call` would do so for one of these. For use before a lock is taken."""
    for method in methods:
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if is_async and _runs_a_loop():
            raise _would_block(method)


@contextlib.contextmanager
def lent(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Make `call` run coroutines in this loop, which must be running in another thread meanwhile."""
    token = _lent.set(loop)
    try:
        yield
    finally:
        _lent.reset(token)


def lend_running_loop() -> None:
    """Lend the loop that runs on this thread, if one does, for the rest of this context (see `lent`)."""
    if runs_trio():
        _lent.set(sys.modules["trio"].lowlevel.current_trio_token())
    elif _runs_a_loop():
        _lent.set(asyncio.get_running_loop())


def has_borrowed_loop() -> bool:
    """Whether this context is a coroutine that a `call` in another thread waits for, or part of one."""
    return _lent.get() is not None


class _PrivateLoop:
    """An event loop in a thread of its own. A forked child starts another one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="treering-keyvalue", daemon=True).start()
            return self._loop

    def abandon(self) -> None:
        # The child has no such thread, and the parent still uses its pipes: leave it alone.
        self._lock = Lock()
        self._loop = None


async def _items(result: AsyncIterable[Any]) -> list[Any]:
    return [each async for each in result]


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _would_block(method: Callable[..., Any]) -> Unsupported:
    return Unsupported(
        f"{getattr(method, '__qualname__', method)} is async and this thread runs an event loop, "
        "which waiting would block; await the async form of this call instead"
    )


def runs_trio() -> bool:
    """Whether trio runs on this thread."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return runs_trio()
    return True


_lent: ContextVar[asyncio.AbstractEventLoop | trio.lowlevel.TrioToken | None] = ContextVar(
    "treering_lent_loop", default=None
)
_private_loop = _PrivateLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_private_loop.abandon)
