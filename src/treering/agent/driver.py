"""Driving: one description of an agent's steps, carried out for plain code and for asyncio.

The loop is a generator. It yields a `Call` for everything that takes time (the model, a tool, a checkpoint)
and gets the result sent back, or the error thrown in; it yields a `Part` for whoever watches. The two drivers
here are the only code that knows whether it waits or awaits, so plain and async models, tools, middleware
and savers mix freely. **Invariant:** no running event loop is ever blocked. Under asyncio, the plain
functions of a run are called in a thread that is the run's own, so runs never wait for each other's.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from treering.agent.results import Part
from treering.sync_async import call, lent

END: Final[Any] = object()
"""What a stream gives when it is over (see `next_piece`)."""


class Call(msgspec.Struct, frozen=True):
    """A function to be called; it may be plain or async.

    One that ``settles`` is waited for even by a caller who is cancelled: so whoever catches the cancellation
    finds a thread as it will stay, not one that is still being saved.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    settles: bool = False


Steps = Generator[Call | Part, Any, None]


class Drivable(Protocol):
    """What a driver carries out, and the model's stream that is open meanwhile, if one is."""

    stream: Any

    def steps(self) -> Steps:
        """The steps; made once."""
        ...


def drive(run: Drivable) -> Iterator[Part]:
    """Carry out the steps, waiting for each."""
    steps = run.steps()
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer = error = None
            if isinstance(step, Part):
                yield step
                continue
            try:
                answer = call(step.function, *step.args)
            except StopIteration as stopped:
                error = _told_apart(step.function, stopped)
            except Exception as raised:  # noqa: BLE001 - the loop decides what an error means
                error = raised
    finally:
        steps.close()
        if run.stream is not None:
            call(_close, run.stream)


async def drive_async(run: Drivable) -> AsyncIterator[Part]:
    """Carry out the steps, awaiting each."""
    steps = run.steps()
    worker = Worker()
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer = error = None
            if isinstance(step, Part):
                yield step
                continue
            try:
                result = worker.awaited(step.function, *step.args)
                answer = await (_settled(result) if step.settles else result)
            except Exception as raised:  # noqa: BLE001 - the loop decides what an error means
                error = raised
    finally:
        steps.close()
        try:
            if run.stream is not None:
                await worker.close_stream(run.stream)
        finally:
            worker.close()


def open_stream(reply: Any) -> Any:
    """The iterator behind something that can be iterated over."""
    return aiter(reply) if hasattr(reply, "__aiter__") else iter(reply)


def next_piece(stream: Any) -> Call:
    """The call that gives the next piece of a stream, or `END`."""
    return Call(_next_async if hasattr(stream, "__anext__") else _next, (stream,))


class Worker:
    """A thread in which plain functions are called, one after the other; it begins at the first need."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    async def awaited(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function that may be plain or async.

        What a plain one calls that is async (a hook, a tool behind plain middleware) is awaited in this
        loop all the same.
        """
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await asyncio.wrap_future(self._submit(function, *args))
        return await result if inspect.isawaitable(result) else result

    async def close_stream(self, stream: Any) -> None:
        """Let go of a stream that nobody will read to its end.

        A plain one whose next piece is still being made (its reader was cancelled) is closed after that.
        """
        if hasattr(stream, "__anext__"):
            result = _close(stream)
            if inspect.isawaitable(result):
                await result
            return
        is_idle = self._last is None or self._last.done()
        closing = self._submit(_close, stream)
        if is_idle:
            await asyncio.wrap_future(closing)

    def close(self) -> None:
        """Take no more calls; the thread ends when it has finished its own."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="treering-agent")
        context = contextvars.copy_context()
        self._last = self._pool.submit(context.run, _lent_to, asyncio.get_running_loop(), function, *args)
        return self._last


async def _settled(result: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.ensure_future(result)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        task.exception()  # looked at, so that asyncio does not complain about it
        raise cancelled
    return task.result()


def _next(stream: Any) -> Any:
    return next(stream, END)


async def _next_async(stream: Any) -> Any:
    with suppress(StopAsyncIteration):
        return await anext(stream)
    return END


def _close(stream: Any) -> Any:
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    return None if close is None else close()


def _lent_to(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> Any:
    try:
        with lent(loop):
            return function(*args)
    except StopIteration as stopped:
        raise _told_apart(function, stopped) from stopped


def _told_apart(function: Callable[..., Any], stopped: StopIteration) -> RuntimeError:
    # A StopIteration would end the generator of the steps, and asyncio cannot carry one at all.
    error = RuntimeError(f"{getattr(function, '__qualname__', function)} raised StopIteration")
    error.__cause__ = stopped
    return error
