"""Checkpoints in a treering store: its journal says which there are, its objects hold the files.

The store may be a folder, PostgreSQL or a treering server. A checkpoint is one event whose scope is its
session, so those of a session are found by an index and forgotten together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec

from treering.core.batch import Draft, Event
from treering.core.clock import SystemClock
from treering.core.content import object_address
from treering.core.encoding import encode
from treering.core.ids import Scope, new_id
from treering.core.paging import each_record
from treering.core.query import Erasure, EventQuery
from treering.core.records import Record
from treering.errors import NotFound
from treering.maintenance.audit_events import record_audit_event
from treering.sandbox.archive import Archive, Archived
from treering.sandbox.records import CheckpointInfo, Pruned, time_of
from treering.store import Store

KIND: Final = "sandbox_checkpoint"
GRACE_SECONDS: Final = 3600.0
_BATCH: Final = 500


class StoreStorage:
    """The checkpoints of one space. The store stays open when this is closed, unless ``owned``."""

    def __init__(self, store: Store, *, owned: bool) -> None:
        self._store = store
        self._owned = owned
        self._archive = Archive(store.engine, store.space, store.workspace.writer())

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
                ts_us=time_of(info),
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
        return [_read(each.event) for each in page.records]

    def get(self, id: str) -> CheckpointInfo:
        """One checkpoint."""
        query = EventQuery(kinds=(KIND,), ids=(id,))
        page = self._store.engine.scan(self._store.space, query, limit=1)
        if not page.records:
            raise NotFound(f"{self.url} holds no checkpoint {id!r}; list_checkpoints() shows what it has")
        return _read(page.records[0].event)

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first."""
        query = EventQuery(kinds=(KIND,), scope=None if tag is None else _scope(tag), newest_first=True)
        return (_read(each.event) for each in self._records(query))

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Drop the events of checkpoints; the journal says first which."""
        ids = [info.id for info in infos]
        if not ids:
            return
        store = self._store
        record_audit_event(
            store.engine,
            store.space,
            kind="retention",
            data={"dropped": {KIND: len(ids)}},
            body=encode({KIND: ids}),
            clock=SystemClock(),
        )
        for start in range(0, len(ids), _BATCH):
            query = EventQuery(kinds=(KIND,), ids=tuple(ids[start : start + _BATCH]))
            seqs = tuple(each.seq for each in self._records(query))
            if seqs:
                store.engine.erase(store.space, Erasure(event_seqs=seqs))

    def prune(
        self,
        *,
        grace_seconds: float | None,
        dry_run: bool,
        as_if_without: Collection[str] = (),  # noqa: ARG002 - files go with the events that name them
    ) -> Pruned:
        """Sweep the store."""
        grace = GRACE_SECONDS if grace_seconds is None else grace_seconds
        swept = self._store.gc(grace_seconds=grace, dry_run=dry_run).swept
        return Pruned(deleted=swept.packs, freed_bytes=swept.bytes, dry_run=dry_run)

    def _records(self, query: EventQuery) -> Iterator[Record]:
        return each_record(self._store.engine, self._store.space, query, limit=_BATCH)

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


def _read(event: Event) -> CheckpointInfo:
    return msgspec.json.decode(event.data or b"{}", type=CheckpointInfo)
