"""The services for asyncio: the same functions under the same names.

Each call runs in a thread of a small pool. Cancelling an await cancels the waiting, never the write. A
session belongs to one task: ``async with get_session() as session``, with ``await session.acommit()`` at its
end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache, wraps
from typing import Any, Final, ParamSpec, TypeVar

from treering.bridge import Bridge
from treering.compat import services

__all__: list[str] = []
__all__ += services.__all__

Session = services.Session
get_session = services.get_session
use = services.use

P = ParamSpec("P")
T = TypeVar("T")

_bridge: Final = cache(Bridge)


def _awaitable(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await _bridge().call(function, *args, **kwargs)

    return call


create_run: Final = _awaitable(services.create_run)
end_run: Final = _awaitable(services.end_run)
start_span: Final = _awaitable(services.start_span)
end_span: Final = _awaitable(services.end_span)
save_message: Final = _awaitable(services.save_message)
save_tool_call: Final = _awaitable(services.save_tool_call)
save_tool_result: Final = _awaitable(services.save_tool_result)
save_blob: Final = _awaitable(services.save_blob)
get_run_timeline: Final = _awaitable(services.get_run_timeline)
get_run_cost: Final = _awaitable(services.get_run_cost)
