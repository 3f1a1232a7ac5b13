"""What all requests of a server share."""

from __future__ import annotations

import threading

from treering.server.auth import Gate
from treering.server.metrics import Metrics
from treering.server.settings import Settings
from treering.server.streams import Streams
from treering.store import Store


class Projects:
    """The store of each project, all over one engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stores: dict[str, Store] = {store.space: store}
        self._lock = threading.Lock()

    def store(self, project: str) -> Store:
        """Return the store of a project. It is always the same object, so that a project has one recorder."""
        with self._lock:
            if project not in self._stores:
                self._stores[project] = self._store.in_namespace(project)
            return self._stores[project]


class ServerState:
    """The server's settings, stores, authentication, metrics and live streams."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.projects = Projects(store)
        self.gate = Gate(store.engine, settings, clock=store.clock)
        self.metrics = Metrics()
        self.streams = Streams(store.engine)
