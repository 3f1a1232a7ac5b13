"""From a config to its checkpoints: the one place that chooses between bucket, folder and server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from treering.core.clock import SystemClock, from_datetime, to_iso
from treering.core.retention import Keep
from treering.errors import InvalidInput, NotFound
from treering.sandbox.archive import Archive, Archived, Place
from treering.sandbox.config import StorageConfig, gateway_of, open_bucket
from treering.sandbox.records import LATEST, CheckpointInfo, Forgotten, Label, Pruned, dropped_by
from treering.store import Store
from treering.workspaces.browse import SnapshotCheck, SnapshotEntry, cat, ls, select
from treering.workspaces.restore import download
from treering.workspaces.snapshot import ensure_folder

# -----------------------------------------------------------------------------------------------------------
# Depots: where checkpoints of sandboxes go, whichever kind of storage that is.


DEFAULT_LIMIT: Final = 100
MOST: Final = 500


class Storage(Protocol):
    """The little that the two kinds of storage do differently."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def archive(self) -> Archive:
        """The files."""
        ...

    def prepare(self) -> None:
        """Refuse a place that cannot keep checkpoints, before anything is written to it."""
        ...

    def commit(self, archived: Archived, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Write the entry of a checkpoint, whose files are stored when this returns."""
        ...

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints."""
        ...

    def get(self, id: str) -> CheckpointInfo:
        """One checkpoint; `NotFound` without it."""
        ...

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first."""
        ...

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Let there be no such checkpoints; one that is gone already is no error."""
        ...

    def prune(
        self, *, grace_seconds: float | None, dry_run: bool, as_if_without: Collection[str] = ()
    ) -> Pruned:
        """Free what no checkpoint needs."""
        ...

    def reindex(self) -> int:
        """Rebuild what is derived."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Depot:
    """Checkpoints in one storage: saved, listed, found, restored, read."""

    def __init__(self, storage: Storage, *, now_iso: Callable[[], str]) -> None:
        self._storage = storage
        self._now_iso = now_iso
        self._saving = Lock()

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        return self._storage.url

    def save(self, place: Place, label: Label) -> CheckpointInfo:
        """Keep a sandbox's files, and say so in an entry of its own, also when no file changed.

        Threads may share a depot; one saves after the other.
        """

        def commit(archived: Archived) -> CheckpointInfo:
            timestamp = self._now_iso()
            return self._storage.commit(archived, lambda made: _info(made, archived, label, timestamp))

        with self._saving:
            self._storage.prepare()
            return self._storage.archive.keep(place, commit)

    def list(self, *, limit: int = DEFAULT_LIMIT, tag: str | None = None) -> list[CheckpointInfo]:
        """The newest checkpoints, newest first; ``tag`` filters before ``limit`` counts (at most 500)."""
        if not 1 <= limit <= MOST:
            raise InvalidInput(f"limit={limit} is not acceptable; use 1 to {MOST}")
        return self._storage.newest_first(tag=tag, limit=limit)

    def find(self, which: str) -> CheckpointInfo:
        """A checkpoint by its id, or ``latest``: the newest of the whole storage."""
        if which != LATEST:
            return self._storage.get(which)
        newest = self._storage.newest_first(tag=None, limit=1)
        if not newest:
            raise NotFound(
                f"{self.url} holds no checkpoint yet, so there is no {LATEST!r}; run without from_ first"
            )
        return newest[0]

    def restore(self, info: CheckpointInfo, place: Place) -> None:
        """Bring the files of a checkpoint back; each object is checked against its hash."""
        self._storage.archive.restore(info.hash, place)

    def ls(self, info: CheckpointInfo, path: str = "", *, recursive: bool = False) -> list[SnapshotEntry]:
        """What a checkpoint holds: ``workspace/...`` and the agent's folders."""
        return list(ls(self._storage.archive.snapshot(info.hash), path, recursive=recursive))

    def cat(self, info: CheckpointInfo, path: str) -> bytes:
        """One file of a checkpoint."""
        return cat(self._storage.archive.snapshot(info.hash), path)

    def download(
        self, info: CheckpointInfo, files: str | Iterable[str], target: str | Path, *, overwrite: bool = False
    ) -> tuple[str, ...]:
        """Write some files of a checkpoint into a folder, without restoring it; which ones."""
        snapshot = self._storage.archive.snapshot(info.hash)
        return download(
            snapshot, select(snapshot, files), ensure_folder(target).resolve(), overwrite=overwrite
        )

    def check(self, info: CheckpointInfo) -> SnapshotCheck:
        """Read and rehash everything that a checkpoint names; says what could not be restored."""
        return self._storage.archive.check(info.hash)

    def forget(
        self,
        *ids: str,
        tag: str | None = None,
        keep: Keep | None = None,
        per_session: bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Drop single checkpoints, all of a session (``tag``), or what ``keep`` does not want.

        ``keep`` decides on all checkpoints together (of the session, with a tag), or with ``per_session``
        on those of each session by themselves; the newest one stays. Files are freed by `prune`.
        """
        if bool(ids) == (tag is not None or keep is not None):
            raise InvalidInput("forget what? give ids of checkpoints, or tag= and keep=")
        if ids:
            dropped = [self._storage.get(each) for each in dict.fromkeys(ids)]
            held = sum(1 for _ in self._storage.each(tag=None))
        else:
            found = list(self._storage.each(tag=tag))
            held = len(found)
            dropped = (
                found
                if keep is None
                else dropped_by(keep, found, now_us=self._now_us(), per_session=per_session)
            )
        if not dry_run:
            self._storage.forget(dropped)
        return Forgotten(dropped=tuple(dropped), kept=held - len(dropped), dry_run=dry_run)

    def prune(
        self,
        *,
        grace_seconds: float | None = None,
        dry_run: bool = False,
        as_if_without: Collection[str] = (),
    ) -> Pruned:
        """Free what no checkpoint needs any more; safe beside writers and readers.

        From a bucket or a folder, packs go in two steps: one prune condemns them, and one that comes at
        least ``grace_seconds`` (a day) later deletes them; 0 does both, and is for when nobody restores or
        writes. In a store this is `Store.gc`, whose grace is an hour. A dry run can tell what would be if
        some checkpoints were forgotten first.
        """
        if as_if_without and not dry_run:
            raise InvalidInput("as_if_without= is for dry runs; forget the checkpoints first")
        with self._saving:
            return self._storage.prune(
                grace_seconds=grace_seconds, dry_run=dry_run, as_if_without=as_if_without
            )

    def reindex(self) -> int:
        """Rebuild what says where the files are, out of the files themselves; how many packs were lost."""
        return self._storage.reindex()

    def close(self) -> None:
        """Let go of it."""
        self._storage.close()

    def _now_us(self) -> int:
        return from_datetime(datetime.fromisoformat(self._now_iso()))


def _info(id: str, archived: Archived, label: Label, timestamp: str) -> CheckpointInfo:
    return CheckpointInfo(
        id=id,
        hash=archived.root,
        tag=label.tag,
        timestamp=timestamp,
        size_bytes=archived.size_bytes,
        agent_type=label.agent_type,
        model=label.model,
        workspace_mode=label.workspace_mode,
        parent_id=label.parent_id,
        comment=label.comment,
        files=archived.files,
        workspace_path=label.workspace_path,
    )


# -----------------------------------------------------------------------------------------------------------


def open_depot(config: StorageConfig | str | Path) -> Depot:
    """The checkpoints that a config (or just its URL) stands for."""
    chosen = config if isinstance(config, StorageConfig) else StorageConfig(config)
    if chosen.is_gateway:
        return depot_in(open_gateway(chosen), owned=True)
    from treering.sandbox.bucket import BucketStorage, cache_of

    blobs = open_bucket(chosen)
    return Depot(BucketStorage(blobs, cache=cache_of(blobs.url)), now_iso=_now_iso)


def open_gateway(config: StorageConfig) -> Store:
    """The treering server that a config without URL means."""
    from treering.api import open as open_store

    gateway = gateway_of(config)
    return open_store(gateway.url, api_key=gateway.api_key)


def depot_in(store: Store, *, owned: bool = False) -> Depot:
    """The checkpoints that lie in a treering store."""
    from treering.sandbox.store_storage import StoreStorage

    return Depot(StoreStorage(store, owned=owned), now_iso=_now_iso)


@contextmanager
def opened_depot(config: StorageConfig | str | Path) -> Generator[Depot]:
    """As `open_depot`, closed at the end."""
    depot = open_depot(config)
    try:
        yield depot
    finally:
        depot.close()


def list_checkpoints(
    storage: StorageConfig | str | Path | None = None, *, limit: int = DEFAULT_LIMIT, tag: str | None = None
) -> list[CheckpointInfo]:
    """The checkpoints of a storage, newest first; without one, those of the treering server.

    ``tag`` names a session and filters before ``limit`` (1 to 500) counts. Takes about ``limit`` requests,
    however many checkpoints there are.
    """
    with opened_depot(storage if storage is not None else StorageConfig()) as depot:
        return depot.list(limit=limit, tag=tag)


def download_files(
    storage: StorageConfig | str | Path | None,
    checkpoint: str,
    files: str | list[str],
    target: str | Path,
    *,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Write single files, folders or patterns of a checkpoint into a folder, without restoring it."""
    with opened_depot(storage if storage is not None else StorageConfig()) as depot:
        return depot.download(depot.find(checkpoint), files, target, overwrite=overwrite)


def forget_checkpoints(
    storage: StorageConfig | str | Path | None,
    *ids: str,
    tag: str | None = None,
    keep: Keep | None = None,
    per_session: bool = False,
    dry_run: bool = False,
) -> Forgotten:
    """Drop single checkpoints, all of a session, or what a policy does not want; see `Depot.forget`."""
    with opened_depot(storage if storage is not None else StorageConfig()) as depot:
        return depot.forget(*ids, tag=tag, keep=keep, per_session=per_session, dry_run=dry_run)


def prune_storage(
    storage: StorageConfig | str | Path | None = None,
    *,
    grace_seconds: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Free what no checkpoint of a storage needs any more; see `Depot.prune`."""
    with opened_depot(storage if storage is not None else StorageConfig()) as depot:
        return depot.prune(grace_seconds=grace_seconds, dry_run=dry_run)


def _now_iso() -> str:
    return to_iso(SystemClock().now_us())
