"""Keeping: where the checkpoints of one sandbox go. It is opened when it is first needed."""

from __future__ import annotations

from pathlib import Path

from treering.errors import InvalidInput
from treering.sandbox.config import StorageConfig
from treering.sandbox.depots import Depot
from treering.sandbox.opening import depot_in, open_depot, open_gateway
from treering.store import Store


class Keeping:
    """The storage that was chosen; without one, the store if there is one."""

    def __init__(self, storage: StorageConfig | str | Path | None, store: Store | None) -> None:
        self._storage = StorageConfig(storage) if isinstance(storage, str | Path) else storage
        self._store = store
        self._server: Store | None = None
        self._depot: Depot | None = None

    @property
    def timeline(self) -> Store | None:
        """Where runs are recorded: the store, else the treering server that the checkpoints go to."""
        return self._store or self._server

    def depot(self) -> Depot | None:
        """The checkpoints; ``None`` when nothing says where they go."""
        if self._depot is None:
            if self._storage is None:
                self._depot = None if self._store is None else depot_in(self._store)
            elif self._storage.is_gateway:
                self._server = open_gateway(self._storage)
                self._depot = depot_in(self._server)
            else:
                self._depot = open_depot(self._storage)
        return self._depot

    def needed(self) -> Depot:
        """The checkpoints; to have none is an error."""
        depot = self.depot()
        if depot is None:
            raise InvalidInput("this sandbox has no storage; pass storage=StorageConfig(...) or store=")
        return depot

    def close(self) -> None:
        """Let go of what was opened here."""
        depot, self._depot = self._depot, None
        server, self._server = self._server, None
        if depot is not None:
            depot.close()
        if server is not None:
            server.close()
