"""Recording a function each time it is called: what went in, what came out, how long it took.

Inside a run a call becomes a span below whatever is running. An agent that is called outside of any run
begins one; a tool that is called outside of any run is simply called.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from treering.errors import InvalidInput
from treering.views.recording.context import here

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.views.recording.runs import Run
    from treering.views.recording.spans import Span

P = ParamSpec("P")
R = TypeVar("R")


def recording(
    name: str | Callable[..., Any] | None, *, kind: str, new_run: Callable[[str], Run] | None
) -> Callable[..., Any]:
    """A decorator that calls a function by this name, or by its own; or the function itself, decorated."""
    if callable(name):
        return recording(None, kind=kind, new_run=new_run)(name)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = name or getattr(function, "__name__", type(function).__name__)
        return recorded(function, name=own, kind=kind, new_run=new_run)

    return decorate


def recorded(
    function: Callable[P, R], *, name: str, kind: str, new_run: Callable[[str], Run] | None
) -> Callable[P, R]:
    """The function, recorded; ``new_run`` makes the run for a call that is in none."""
    signature = inspect.signature(function)

    def given(arguments: Any, options: Any) -> Any:
        return dict(signature.bind(*arguments, **options).arguments)

    def opened(stack: ExitStack, arguments: Any, options: Any) -> Span | None:
        place = here.get()
        if place is None:
            if new_run is None:
                return None
            place = stack.enter_context(new_run(name))
        return stack.enter_context(place.span(name, kind=kind, input=given(arguments, options)))

    @functools.wraps(function)
    def plain(*arguments: P.args, **options: P.kwargs) -> R:
        with ExitStack() as stack:
            span = opened(stack, arguments, options)
            result = function(*arguments, **options)
            if span is not None:
                span.output = result
            return result

    @functools.wraps(function)
    async def awaited(*arguments: P.args, **options: P.kwargs) -> Any:
        with ExitStack() as stack:
            span = opened(stack, arguments, options)
            result = await cast("Any", function(*arguments, **options))
            if span is not None:
                span.output = result
            return result

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            f"{name!r} is a generator, which runs in pieces; record it with run.span(...) in its body"
        )
    return cast("Callable[P, R]", awaited) if inspect.iscoroutinefunction(function) else plain
