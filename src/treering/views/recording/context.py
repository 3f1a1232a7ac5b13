"""Where in a run the code is that is just running: tasks inherit it, threads take it along with `carry`."""

from __future__ import annotations

import functools
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.views.recording.spans import Place

P = ParamSpec("P")
R = TypeVar("R")

here: Final[ContextVar[Place | None]] = ContextVar("treering_here", default=None)


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """The function, to be called in another thread as if it were called here.

    ``executor.submit(carry(work), ...)`` records under the run and span of whoever submitted it.
    """
    context = copy_context()

    @functools.wraps(function)
    def carried(*arguments: P.args, **options: P.kwargs) -> R:
        return context.copy().run(function, *arguments, **options)

    return carried
