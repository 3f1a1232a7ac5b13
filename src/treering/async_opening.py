"""The result of `treering.open_async`: awaitable, and an async context manager."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from treering.aio import AsyncStore
from treering.bridge import Bridge
from treering.store import Store


class Opening:
    """A store to be opened, in a thread, when this is awaited or entered."""

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener = opener
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()

    async def _open(self) -> AsyncStore:
        bridge = Bridge()
        opening = bridge.submit(self._opener)
        try:
            return AsyncStore(await bridge.future(opening), bridge)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)  # the thread is still opening a store that nobody will receive
            bridge.shut_down()
            raise
        except BaseException:
            bridge.shut_down()
            raise


def _close(opened: Future[Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
