"""Closing: what is used in a ``with`` statement, plain or async, and closed at its end."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self

from treering.errors import Unsupported


class Closing(ABC):
    """Leaving the ``with`` statement closes; the two forms differ only in who waits."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what was opened. May be called twice."""

    @abstractmethod
    async def aclose(self) -> None:
        """As `close`, for async code."""

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


# -----------------------------------------------------------------------------------------------------------
# Calling a store that may be plain or ``async``, from code that may be either.
#
# =================  ==========================================  ==========================================
# the method is plain                         the method is ``async``
# =================  ==========================================  ==========================================
# `call`             called here                                 run on a private loop, this thread waits
# `call_async`       called in a worker thread                   awaited in the caller's own loop
# =================  ==========================================  ==========================================
#
# Longer work that is written as plain code can be lent a loop: inside `lent`, in a worker thread, `call` runs
# what is ``async`` on the loop of whoever waits for that thread, instead of the private one.
#
# The private loop runs in one daemon thread of the process, made at the first need. **Invariant:** no running
# loop is ever blocked. That is why `call` refuses an async store on a thread that runs a loop: waiting there
# would stop that loop, and for ever if the store's own connections belong to it. A store that keeps
# connections should be used from one side only, because asyncio ties a connection to the loop that made it.


def call(method: Callable[..., Any], /, *args: Any) -> Any:
    """The result of ``method(*args)``, waited for if it is awaitable.

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
    return asyncio.run_coroutine_threadsafe(_awaited(result), loop).result()


async def call_async(method: Callable[..., Any], /, *args: Any) -> Any:
    """The result of ``method(*args)``, awaited if need be; a plain method runs in a worker thread."""
    if inspect.iscoroutinefunction(method):
        return await method(*args)
    result = await asyncio.to_thread(method, *args)
    return await result if inspect.isawaitable(result) else result


def refuse_to_block(*methods: Callable[..., Any]) -> None:
    """Raise `Unsupported` where `call` would for one of these: ask before taking a lock."""
    for method in methods:
        if inspect.iscoroutinefunction(method) and _runs_a_loop():
            raise _would_block(method)


@contextlib.contextmanager
def lent(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Let `call` run what is async on this loop, which must go on running in another thread."""
    token = _lent.set(loop)
    try:
        yield
    finally:
        _lent.reset(token)


def lend_running_loop() -> None:
    """As `lent` for the rest of this context, with the loop that runs on this thread (if one does)."""
    if _runs_a_loop():
        _lent.set(asyncio.get_running_loop())


class _PrivateLoop:
    """An event loop in a thread of its own; a forked child starts another one."""

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
        # Its thread is not in the child, and the parent still uses its pipes: leave it, open or not.
        self._lock = Lock()
        self._loop = None


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _would_block(method: Callable[..., Any]) -> Unsupported:
    return Unsupported(
        f"{getattr(method, '__qualname__', method)} is async and this thread runs an event loop, "
        "which waiting would block; await the async form of this call instead"
    )


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_lent: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("treering_lent_loop", default=None)
_private_loop = _PrivateLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_private_loop.abandon)
