"""The store that an adapter works on: one that the caller opened, or one that is opened here by its URL.

Frameworks hand an adapter whatever their user has: a `Store`, an `AsyncStore`, a URL or a folder.
**Invariant:** only what was opened here is closed here; a store that was given stays the caller's, however
many adapters share it. They share its threads too: one small pool for all adapters of a store, so that an
object per request costs no thread of its own.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from treering.aio import AsyncStore
from treering.api import open as open_store
from treering.bridge import Bridge
from treering.errors import InvalidInput
from treering.store import Store

StoreOrUrl = Store | AsyncStore | str | Path
"""What an adapter takes: an open store, or where one is (see `treering.open`)."""


class Opened:
    """A store, whether it is to be closed, and the threads in which asyncio's callers use it.

    ``None`` opens the default store (TREERING_URL, or ``./.treering``).
    """

    def __init__(self, source: StoreOrUrl | None) -> None:
        given: Any = source  # of any type, whatever the caller's checker said
        self._is_ours = False
        if isinstance(given, AsyncStore):
            self.store = given.sync
        elif isinstance(given, Store):
            self.store = given
        elif given is None or isinstance(given, (str, Path)):
            self.store = open_store(given)
            self._is_ours = True
        else:
            raise InvalidInput(
                f"{type(given).__name__} is not a store; pass a Store, an AsyncStore, a URL or a folder"
            )

    @property
    def bridge(self) -> Bridge:
        """The threads that all adapters of this store share."""
        with _lock:
            bridge = _bridges.get(self.store)
            if bridge is None:
                bridge = _bridges[self.store] = Bridge()
            return bridge

    def close(self) -> None:
        """Close the store if it was opened here; a store that was given stays open. May be called twice."""
        if self._is_ours:
            with _lock:
                bridge = _bridges.get(self.store)
            if bridge is not None:
                bridge.shut_down()
            self.store.close()

    async def aclose(self) -> None:
        """`close`, without blocking the event loop."""
        if self._is_ours:
            await self.bridge.finish(self.store.close)


_lock: Final = Lock()
_bridges: Final[WeakKeyDictionary[Store, Bridge]] = WeakKeyDictionary()
