"""Savers on a treering store: in memory, in a folder (SQLite), in PostgreSQL.

Each opens a store of its own, or takes one that is open (plain or async): then its checkpoints lie beside
everything else in that store, and closing the saver leaves it open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from treering import api
from treering.errors import InvalidInput
from treering.savers.fields import checked_keep, checked_namespace
from treering.savers.saver import HooksLike, Saver, as_hooks
from treering.savers.store_shelf import StoreShelf
from treering.store import Store

if TYPE_CHECKING:
    from treering.aio import AsyncStore
    from treering.api import Durability
    from treering.core.retention import Keep


class StoreSaver(Saver):
    """A saver on a store that is open, or is opened once everything else was found to be right."""

    _place = "nothing"
    """What a caller can say instead of an open store."""

    def __init__(
        self,
        store: Store | AsyncStore | Callable[[], Store],
        *,
        namespace: str,
        hooks: HooksLike | None,
        keep: Keep | None,
    ) -> None:
        own, checked, kept = as_hooks(hooks), checked_namespace(namespace), checked_keep(keep)
        given: Any = store
        if isinstance(given, Store):
            opened, owned = given, False
        elif callable(given):
            opened, owned = cast("Callable[[], Store]", given)(), True
        elif isinstance(given_sync := getattr(given, "sync", None), Store):
            opened, owned = given_sync, False
        else:
            raise InvalidInput(
                f"{type(given).__name__} is no place for checkpoints; give {self._place}, or an open store"
            )
        # A store's own hooks fire where it saves; they are not run a second time around it.
        super().__init__(
            StoreShelf(opened, namespace=checked, keep=kept, owned=owned),
            hooks=None if own is opened.hooks else own,
        )


class MemorySaver(StoreSaver):
    """Checkpoints in memory, for development and tests: they end with the process."""

    def __init__(
        self,
        store: Store | AsyncStore | None = None,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(
            (lambda: api.open("memory:")) if store is None else store,
            namespace=namespace,
            hooks=hooks,
            keep=keep,
        )


class SqliteSaver(StoreSaver):
    """Checkpoints in a folder with a SQLite database; any number of processes may use it."""

    _place = "a folder"

    def __init__(
        self,
        path: str | Path | Store | AsyncStore,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        durability: Durability = "full",
    ) -> None:
        super().__init__(
            (lambda: _open_folder(path, durability)) if isinstance(path, (str, Path)) else path,
            namespace=namespace,
            hooks=hooks,
            keep=keep,
        )


class PostgresSaver(StoreSaver):
    """Checkpoints in a PostgreSQL database; needs ``treering[postgres]``."""

    _place = "the URL of a database"

    def __init__(
        self,
        url: str | Store | AsyncStore,
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(
            (lambda: _open_postgres(url)) if isinstance(url, str) else url,
            namespace=namespace,
            hooks=hooks,
            keep=keep,
        )


def _open_folder(path: str | Path, durability: Durability) -> Store:
    place = api.locate(path)
    if place.folder is None:
        raise InvalidInput(f"{place.shown} is no folder; SqliteSaver keeps its database in one")
    return api.open(path, durability=durability)


def _open_postgres(url: str) -> Store:
    place = api.locate(url)
    if place.scheme not in {"postgresql", "postgres"}:
        raise InvalidInput(f"{place.shown} is no PostgreSQL; use postgresql://user@host/database")
    return api.open(url)
