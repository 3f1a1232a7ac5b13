"""The services, awaited: the same functions under the same names, for code that runs an event loop.

Each call runs in a thread of a small pool; cancelling an await cancels the waiting, never the write. A
session is for one task: ``async with get_session() as session``, and ``await session.acommit()`` at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache, wraps
from typing import Any, Final, ParamSpec, TypeVar

from treering.bridge import Bridge
from treering.compat import services
from treering.compat.services import Session, get_session, use

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await _bridge().call(function, *args, **kwargs)

    return call


@cache
def _bridge() -> Bridge:
    return Bridge()


create_run: Final = _awaited(services.create_run)
end_run: Final = _awaited(services.end_run)
start_span: Final = _awaited(services.start_span)
end_span: Final = _awaited(services.end_span)
save_message: Final = _awaited(services.save_message)
save_tool_call: Final = _awaited(services.save_tool_call)
save_tool_result: Final = _awaited(services.save_tool_result)
save_blob: Final = _awaited(services.save_blob)
get_run_timeline: Final = _awaited(services.get_run_timeline)
get_run_cost: Final = _awaited(services.get_run_cost)

__all__ = [
    "Session",
    "create_run",
    "end_run",
    "end_span",
    "get_run_cost",
    "get_run_timeline",
    "get_session",
    "save_blob",
    "save_message",
    "save_tool_call",
    "save_tool_result",
    "start_span",
    "use",
]
