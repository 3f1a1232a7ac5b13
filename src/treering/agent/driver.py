"""Drivers: run the steps of an agent, sync or async.

The loop is a generator. It yields a `Call` for everything that takes time (the model, a tool, a checkpoint)
and receives the result, or the error is thrown into it; it yields an `AgentEvent` for the caller. Only the
two drivers know whether they wait or await, so sync and async models, tools, middleware and savers can be
mixed. **Invariant:** no running event loop is ever blocked. Under asyncio, the sync functions of a run are
called in a thread of the run's own, so runs never wait for each other.
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

from treering.agent.results import AgentEvent
from treering.sync_async import call, lent

END: Final[Any] = object()
"""The result of `next_piece` at the end of a stream."""


class Call(msgspec.Struct, frozen=True):
    """A function to call; it may be sync or async.

    A ``shielded`` call is finished even if its caller is cancelled, so that code which catches the
    cancellation finds the thread as it will stay, not while it is being saved.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    shielded: bool = False


Steps = Generator[Call | AgentEvent, Any, None]


class Drivable(Protocol):
    """What a driver runs, and the model's stream that is open at the moment, if any."""

    stream: Any

    def steps(self) -> Steps:
        """Return the steps. Called once."""
        ...


def drive(run: Drivable) -> Iterator[AgentEvent]:
    """Run the steps, waiting for each."""
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
            if isinstance(step, AgentEvent):
                yield step
                continue
            try:
                answer = call(step.function, *step.args)
            except StopIteration as stopped:
                error = _wrap_stop_iteration(step.function, stopped)
            except Exception as raised:  # noqa: BLE001 - the loop decides what an error means
                error = raised
    finally:
        steps.close()
        if run.stream is not None:
            call(_close, run.stream)


async def drive_async(run: Drivable) -> AsyncIterator[AgentEvent]:
    """Run the steps, awaiting each."""
    steps = run.steps()
    worker = WorkerThread()
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer = error = None
            if isinstance(step, AgentEvent):
                yield step
                continue
            try:
                result = worker.awaited(step.function, *step.args)
                answer = await (_await_shielded(result) if step.shielded else result)
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
    """Return the iterator of an iterable or an async iterable."""
    return aiter(reply) if hasattr(reply, "__aiter__") else iter(reply)


def next_piece(stream: Any) -> Call:
    """Return the call that reads the next piece of a stream, or `END`."""
    return Call(_next_async if hasattr(stream, "__anext__") else _next, (stream,))


class WorkerThread:
    """A thread that calls sync functions, one at a time. It starts when it is first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    async def awaited(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function that may be sync or async.

        Coroutines below a sync one (a hook, a tool behind sync middleware) run in this loop.
        """
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await asyncio.wrap_future(self._submit(function, *args))
        return await result if inspect.isawaitable(result) else result

    async def close_stream(self, stream: Any) -> None:
        """Close a stream that will not be read to its end.

        If the next piece of a sync stream is being read (its reader was cancelled), it is closed after that.
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
        """Accept no more calls; the thread ends when the current one has finished."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="treering-agent")
        context = contextvars.copy_context()
        self._last = self._pool.submit(
            context.run, _run_with_loop, asyncio.get_running_loop(), function, *args
        )
        return self._last


async def _await_shielded(result: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.ensure_future(result)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        task.exception()  # retrieved, so that asyncio does not log it
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


def _run_with_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> Any:
    try:
        with lent(loop):
            return function(*args)
    except StopIteration as stopped:
        raise _wrap_stop_iteration(function, stopped) from stopped


def _wrap_stop_iteration(function: Callable[..., Any], stopped: StopIteration) -> RuntimeError:
    # A StopIteration would end the generator of the steps, and asyncio cannot carry one at all.
    error = RuntimeError(f"{getattr(function, '__qualname__', function)} raised StopIteration")
    error.__cause__ = stopped
    return error
