"""Driving: one description of an agent's steps, carried out for plain code and for asyncio.

The loop is a generator. It yields a `Call` for everything that takes time (the model, a tool, a checkpoint)
and gets the result sent back, or the error thrown in; it yields a `Part` for whoever watches. The two drivers
here are the only code that knows whether it waits or awaits, so plain and async models, tools, middleware
and savers mix freely. **Invariant:** no running event loop is ever blocked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from treering.agent.parts import Part
from treering.keyvalue.awaiting import call, call_async, lent

END: Final[Any] = object()
"""What `advance` gives when a stream is over."""


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
            call(close_stream, run.stream)


async def drive_async(run: Drivable) -> AsyncIterator[Part]:
    """Carry out the steps, awaiting each; plain functions run in a worker thread."""
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
                wait = _settled if step.settles else awaited
                answer = await wait(step.function, *step.args)
            except Exception as raised:  # noqa: BLE001 - the loop decides what an error means
                error = raised
    finally:
        steps.close()
        if run.stream is not None:
            await awaited(close_stream, run.stream)


async def awaited(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function that may be plain or async.

    A plain one runs in a worker thread; what it calls that is async (a hook, a tool behind plain middleware)
    is awaited in this loop all the same.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    return await call_async(_lent_to, asyncio.get_running_loop(), function, *args)


async def _settled(function: Callable[..., Any], *args: Any) -> Any:
    task = asyncio.ensure_future(awaited(function, *args))
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


def pieces_of(stream: Any) -> Call:
    """The call that gives the next piece of a stream, or `END`."""
    if hasattr(stream, "__anext__"):
        return Call(_advance_async, (stream,))
    return Call(_advance, (stream,))


def opened(stream: Any) -> Any:
    """The iterator behind something that can be iterated over."""
    return aiter(stream) if hasattr(stream, "__aiter__") else iter(stream)


def close_stream(stream: Any) -> Any:
    """Let go of a stream that nobody will read to its end."""
    for name in ("aclose", "close"):
        close = getattr(stream, name, None)
        if close is not None:
            return close()
    return None


def _advance(stream: Any) -> Any:
    return next(stream, END)


async def _advance_async(stream: Any) -> Any:
    with suppress(StopAsyncIteration):
        return await anext(stream)
    return END


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
