"""Savers on a treering store: in memory, in a folder (SQLite), in PostgreSQL.

Each opens a store of its own, or takes one that is open: then its checkpoints lie beside everything else in
that store, and closing the saver leaves it open.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treering import api
from treering.errors import InvalidInput
from treering.savers.fields import checked_namespace
from treering.savers.saver import HooksLike, Saver
from treering.savers.store_shelf import StoreShelf
from treering.store import Store

if TYPE_CHECKING:
    from treering.api import Durability
    from treering.core.retention import Keep


class MemorySaver(Saver):
    """Checkpoints in memory, for development and tests: they end with the process."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
    ) -> None:
        checked = checked_namespace(namespace)
        shelf = StoreShelf(store or api.open("memory:"), namespace=checked, keep=keep, owned=store is None)
        super().__init__(shelf, hooks=_own(hooks, store))


class SqliteSaver(Saver):
    """Checkpoints in a folder with a SQLite database; any number of processes may use it."""

    def __init__(
        self,
        path: str | Path | Store,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        durability: Durability = "full",
    ) -> None:
        checked = checked_namespace(namespace)
        if isinstance(path, Store):
            store, owned = path, False
        else:
            place = api.locate(path)
            if place.folder is None:
                raise InvalidInput(f"{place.shown} is no folder; SqliteSaver keeps its database in one")
            store, owned = api.open(path, durability=durability), True
        shelf = StoreShelf(store, namespace=checked, keep=keep, owned=owned)
        super().__init__(shelf, hooks=_own(hooks, path))


class PostgresSaver(Saver):
    """Checkpoints in a PostgreSQL database; needs ``treering[postgres]``."""

    def __init__(
        self,
        url: str | Store,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
    ) -> None:
        checked = checked_namespace(namespace)
        if isinstance(url, Store):
            store, owned = url, False
        else:
            place = api.locate(url)
            if place.scheme not in {"postgresql", "postgres"}:
                raise InvalidInput(f"{place.shown} is no PostgreSQL; use postgresql://user@host/database")
            store, owned = api.open(url), True
        shelf = StoreShelf(store, namespace=checked, keep=keep, owned=owned)
        super().__init__(shelf, hooks=_own(hooks, url))


def _own(hooks: HooksLike | None, store: object) -> HooksLike | None:
    """A store's own hooks fire where it saves; they are not run a second time around it."""
    return None if isinstance(store, Store) and hooks is store.hooks else hooks
