"""The threads in which the awaited calls of a saver do their work.

What is ``async`` below that work (a user's key-value store, a hook of the store) is awaited in the loop of
whoever waits for it. **Invariant:** cancelling an await leaves the work to finish: no save is torn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio

    from treering.bridge import Bridge

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """The threads of one saver and of its other namespaces; none before the first awaited call."""

    def __init__(self) -> None:
        self._bridge: Bridge | None = None

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run plain code in a thread, with what is async below it awaited in this loop."""
        import asyncio

        if self._bridge is None:
            from treering.bridge import Bridge

            self._bridge = Bridge()
        return await self._bridge.call(_with_loop, asyncio.get_running_loop(), function, *args, **kwargs)

    def close(self) -> None:
        """Let the threads end when they have finished."""
        if self._bridge is not None:
            self._bridge.shut_down()
            self._bridge = None


def _with_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    from treering.keyvalue.awaiting import lent

    with lent(loop):
        return function(*args, **kwargs)
