"""The store that the services use when nobody hands one over."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING

from treering import api

if TYPE_CHECKING:
    from treering.store import Store


class _Default:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None

    def get(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = api.open()
                atexit.register(self._store.close)
            return self._store

    def set(self, store: Store | None) -> None:
        with self._lock:
            self._store = store


_default = _Default()


def use(store: Store | None) -> None:
    """Make this the store of the services in this process.

    Until then (and after ``use(None)``) it is the one that `treering.open()` opens: that of
    ``TREERING_URL``, or the folder ``.treering``. Whoever opened a store closes it; the default one is
    closed at exit.
    """
    _default.set(store)


def current() -> Store:
    """The store in use."""
    return _default.get()
