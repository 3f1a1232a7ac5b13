"""Checkpoints in a treering store: its journal says which there are, its objects hold the files.

The store may be a folder, PostgreSQL or a treering server. A checkpoint is one event whose scope is its
session, so those of a session are found by an index and forgotten together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from treering.core.address import object_address
from treering.core.batch import Event
from treering.core.clock import from_datetime
from treering.core.draft import Draft
from treering.core.ids import new_id
from treering.core.query import EventQuery
from treering.core.scopes import Scope
from treering.errors import NotFound
from treering.sandbox.archive import Archive, Archived
from treering.sandbox.records import CheckpointInfo
from treering.store import Store

KIND: Final = "sandbox_checkpoint"
_DROPPED: Final = ("id",)


class StoreStorage:
    """The checkpoints of one space. The store stays open when this is closed, unless ``owned``."""

    def __init__(self, store: Store, *, owned: bool) -> None:
        self._store = store
        self._owned = owned
        self._archive = Archive(store.engine, store.space, store.workspace.camera())

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._store.url

    @property
    def archive(self) -> Archive:
        """The files."""
        return self._archive

    def prepare(self) -> None:
        """A store can always keep checkpoints."""

    def commit(self, archived: Archived, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Write the event of a checkpoint, which requires its files."""
        info = make(f"ckpt_{new_id()}")
        draft = Draft(self._store.space)
        draft.require(*archived.requires)
        draft.event(
            Event(
                id=info.id,
                kind=KIND,
                ts_us=_time(info),
                scope=_scope(info.tag),
                agent=info.agent_type,
                model=info.model,
                name=info.comment,
                data=msgspec.json.encode(info),
                links=tuple(object_address(each) for each in archived.roots),
            )
        )
        self._store.commit(draft)
        return info

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints, by the order of their commits."""
        query = EventQuery(kinds=(KIND,), scope=None if tag is None else _scope(tag), newest_first=True)
        page = self._store.engine.scan(self._store.space, query, limit=limit)
        return [_read(record.event) for record in page.records]

    def get(self, id: str) -> CheckpointInfo:
        """One checkpoint."""
        query = EventQuery(kinds=(KIND,), ids=(id,))
        page = self._store.engine.scan(self._store.space, query, limit=1)
        if not page.records:
            raise NotFound(f"{self.url} holds no checkpoint {id!r}; list_checkpoints() shows what it has")
        return _read(page.records[0].event)

    def reindex(self) -> int:
        """Rebuild the store's roll-ups and search index; its rows say where files are, none can be lost."""
        self._store.reindex()
        return 0

    def close(self) -> None:
        """Close the store, if it was opened for this."""
        if self._owned:
            self._store.close()


def _scope(tag: str) -> str:
    return str(Scope("", "sandbox", tag))


def _time(info: CheckpointInfo) -> int:
    from datetime import datetime

    return from_datetime(datetime.fromisoformat(info.timestamp))


def _read(event: Event) -> CheckpointInfo:
    return msgspec.json.decode(event.data or b"{}", type=CheckpointInfo)
