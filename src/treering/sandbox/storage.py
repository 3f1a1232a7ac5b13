"""Where sandboxes keep their checkpoints: a bucket, a folder, or a treering store or server.

=============================================  ==========================================================
``StorageConfig(url="s3://bucket/prefix")``    your own bucket, with nothing beside it
``StorageConfig(url="https://server/bucket")`` the same on R2, MinIO or any other S3 server
``StorageConfig(bucket="b", endpoint=...)``    the same without a URL; explicit parts override the URL's
``StorageConfig(url="./folder")``              a local folder
``StorageConfig()``                            a treering server: ``TREERING_URL``, ``TREERING_API_KEY``
=============================================  ==========================================================

Keys come from ``credentials``, else from where `treering.blobs.location` finds them. `CheckpointStorage` is
the same for all of them. Two backends differ below it: `treering.sandbox.bucket`, and `StoreStorage` for
stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias
from urllib.parse import urlsplit

import msgspec

from treering.blobs.location import AccessKeys
from treering.core.batch import Draft, Event
from treering.core.clock import SystemClock, from_datetime, to_iso
from treering.core.content import object_address
from treering.core.encoding import encode
from treering.core.ids import ID_CHARS, Scope, new_id, only_match
from treering.core.query import Erasure, EventQuery, each_record
from treering.core.retention import Keep, RetentionEntry, select
from treering.core.text import readable
from treering.core.tree import FolderEntry
from treering.errors import InvalidInput, NotFound
from treering.secret_scan import FoundSecret
from treering.workspaces import browse
from treering.workspaces.restore import download
from treering.workspaces.snapshot import LISTED, Snapshot, target_folder

if TYPE_CHECKING:
    from treering.core.records import Record
    from treering.core.storage import Blobs
    from treering.sandbox.archive import SandboxArchive, SandboxFolders, StagedSandbox
    from treering.store import Store

GATEWAY_URL: Final = "TREERING_URL"
GATEWAY_KEY: Final = "TREERING_API_KEY"
LATEST: Final = "latest"
"""Selects the newest checkpoint of the whole storage, of any session."""
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 500
KIND: Final = "sandbox_checkpoint"
PREFIX: Final = "ckpt_"
OUTPUT: Final = "workspace/output"
"""The folder of a checkpoint in which agents leave their results."""
_MIN_CHARS: Final = 4

_STORE_GRACE_SECONDS: Final = 3600.0
_PAGE: Final = 500
_CAMEL_CASE: Final = {
    "accessKeyId": "access_key_id",
    "secretAccessKey": "secret_access_key",
    "sessionToken": "session_token",
}


class _Url(msgspec.Struct, frozen=True):
    url: str | Path | None = None


class StorageConfig(_Url, frozen=True, kw_only=True):
    """A place for checkpoints; the module docstring lists the forms. Nothing is checked before it is used."""

    bucket: str | None = None
    prefix: str | None = None
    region: str | None = None
    endpoint: str | None = None
    credentials: AccessKeys | Mapping[str, str] | None = None
    api_key: str | None = None

    @property
    def is_gateway(self) -> bool:
        """Whether a treering server keeps the checkpoints."""
        return self.url is None and self.bucket is None

    def __repr__(self) -> str:
        names = ("url", "bucket", "prefix", "region", "endpoint")
        parts = [f"{name}={value!r}" for name in names if (value := getattr(self, name)) is not None]
        return f"StorageConfig({', '.join(parts)})"


_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")
_FIELDS: Final = ("url", "bucket", "prefix", "region", "endpoint", "credentials", "api_key")

StorageLike: TypeAlias = StorageConfig | Mapping[str, Any] | str | Path
"""A config, or what `parse_storage` makes one of."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint of a sandbox: its files at one time, and where they came from.

    ``id`` is what `run(from_=)` accepts. ``hash`` is the SHA-256 name of the root tree: equal files have
    equal hashes, on any machine. ``size_bytes`` is what a restore writes. ``parent_id`` is the checkpoint
    that the sandbox was at before. ``workspace_path`` is where the workspace was when the checkpoint was
    taken; ``sandbox_id`` and ``tag`` are those of the session log. ``secrets`` are what looks like keys and
    passwords in the files, the first 100.
    """

    id: str
    hash: str
    tag: str
    timestamp: str
    size_bytes: int | None = None
    agent_type: str | None = None
    model: str | None = None
    workspace_mode: str | None = None
    parent_id: str | None = None
    comment: str | None = None
    files: int | None = None
    workspace_path: str | None = None
    sandbox_id: str | None = None
    provider: str | None = None
    secrets: tuple[FoundSecret, ...] = ()

    def check_fits(self, *, agent: str, workspace_mode: str) -> None:
        """Raise `InvalidInput` unless a sandbox of this agent and mode can start from it."""
        pairs = (("agent", self.agent_type, agent), ("workspace_mode", self.workspace_mode, workspace_mode))
        for what, made_with, wanted in pairs:
            if made_with is not None and made_with != wanted:
                raise InvalidInput(
                    f"checkpoint {self.id} was made with {what}={made_with!r}, this sandbox has {wanted!r}; "
                    "nothing was downloaded"
                )

    @property
    def time_us(self) -> int:
        """When the checkpoint was taken, by the clock of the machine that took it."""
        return from_datetime(datetime.fromisoformat(self.timestamp))


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a new checkpoint records besides its files."""

    tag: str
    agent_type: str | None = None
    model: str | None = None
    workspace_mode: str | None = None
    parent_id: str | None = None
    comment: str | None = None
    workspace_path: str | None = None
    sandbox_id: str | None = None
    provider: str | None = None


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a session has left in the ``output`` folder of its workspace."""

    path: str
    size_bytes: int


class SessionOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The files in a session's ``output`` folder, and which session it is.

    ``tag`` and ``sandbox_id`` are in the name of the session's log. Without a ``checkpoint`` it is what the
    sandbox has now.
    """

    tag: str | None
    sandbox_id: str | None
    checkpoint: str | None
    files: tuple[OutputFile, ...]


class ForgetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The dropped checkpoints (with ``dry_run``: that would be dropped), newest first, and how many are left.

    A prune frees the bytes that only they needed.
    """

    dropped: tuple[CheckpointInfo, ...]
    kept: int
    dry_run: bool = False


class PruneResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a prune did, or would do with ``dry_run``.

    ``deleted`` packs are gone, which freed ``freed_bytes``. ``waiting`` packs are dropped and will be deleted
    by a prune after the grace period. ``copied_bytes`` of dropped packs are still needed, and were copied to
    new ones.
    """

    deleted: int = 0
    freed_bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    copied_bytes: int = 0
    dry_run: bool = False


class StorageBackend(Protocol):
    """What the two kinds of storage do differently."""

    @property
    def url(self) -> str:
        """The URL, without secrets."""
        ...

    @property
    def archive(self) -> SandboxArchive:
        """The files."""
        ...

    def prepare(self) -> None:
        """Refuse a storage that cannot keep checkpoints, before anything is written to it."""
        ...

    def commit(self, staged: StagedSandbox, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Add the checkpoint that ``make`` returns for an id; its files are durable when this returns."""
        ...

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """Return the newest checkpoints."""
        ...

    def get(self, id: str) -> CheckpointInfo:
        """Return one checkpoint; raise `NotFound` if it does not exist."""
        ...

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """Iterate over all checkpoints, newest first."""
        ...

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Remove checkpoints; those that do not exist are ignored."""
        ...

    def prune(
        self, *, grace_seconds: float | None, dry_run: bool, as_if_without: Collection[str] = ()
    ) -> PruneResult:
        """Free what no checkpoint needs."""
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class CheckpointStorage:
    """The checkpoints of one storage. Use it as a context manager, or `close` it. Threads may share it."""

    def __init__(self, backend: StorageBackend, *, now_iso: Callable[[], str] | None = None) -> None:
        self._backend = backend
        self._now_iso = now_iso or _now_iso
        self._lock = Lock()

    @property
    def url(self) -> str:
        """The URL, without secrets."""
        return self._backend.url

    def save(self, folders: SandboxFolders, metadata: CheckpointMetadata) -> CheckpointInfo:
        """Take a checkpoint of a sandbox's files, even if no file has changed."""

        def commit(staged: StagedSandbox) -> CheckpointInfo:
            timestamp = self._now_iso()
            return self._backend.commit(staged, lambda new_id: _info(new_id, staged, metadata, timestamp))

        with self._lock:
            self._backend.prepare()
            return self._backend.archive.save(folders, commit)

    def list(self, *, limit: int = DEFAULT_LIMIT, tag: str | None = None) -> list[CheckpointInfo]:
        """Return the newest checkpoints (1 to 500), newest first; ``tag`` selects a session."""
        if not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:  # pyright: ignore[reportUnnecessaryIsInstance] - of a caller
            raise InvalidInput(f"limit={limit!r} is out of range; use 1 to {MAX_LIMIT}")
        return self._backend.newest_first(tag=tag, limit=limit)

    def find(self, id: str) -> CheckpointInfo:
        """Return a checkpoint by its id or a unique beginning of it; ``latest`` is the newest of the whole
        storage.
        """
        if id != LATEST:
            return self._get(id)
        newest = self._backend.newest_first(tag=None, limit=1)
        if not newest:
            raise NotFound(
                f"{self.url} has no checkpoint yet, so there is no {LATEST!r}; run without from_ first"
            )
        return newest[0]

    def restore(
        self,
        info: CheckpointInfo,
        folders: SandboxFolders,
        *,
        before_switch: Callable[[], None] | None = None,
    ) -> None:
        """Restore the files of a checkpoint. The workspace changes only after all of it has been verified."""
        self._backend.archive.restore(info.hash, folders, before_switch=before_switch)

    def ls(
        self, info: CheckpointInfo, path: str = "", *, recursive: bool = False
    ) -> list[browse.SnapshotEntry]:
        """List the files of a checkpoint: ``workspace/...`` and the agent's settings folders."""
        return list(browse.ls(self._backend.archive.snapshot(info.hash), path, recursive=recursive))

    def cat(self, info: CheckpointInfo, path: str) -> bytes:
        """Return the bytes of one file of a checkpoint."""
        return b"".join(browse.stream(self._backend.archive.snapshot(info.hash), path))

    def download(
        self, info: CheckpointInfo, files: str | Iterable[str], target: str | Path, *, overwrite: bool = False
    ) -> tuple[str, ...]:
        """Write some files of a checkpoint into a folder, without restoring it; return their paths."""
        snapshot = self._backend.archive.snapshot(info.hash)
        selected = browse.select(snapshot, files)
        with target_folder(target) as folder:
            return download(snapshot, selected, folder.resolve(), overwrite=overwrite)

    def output(self, info: CheckpointInfo) -> SessionOutput:
        """Describe the ``output`` folder of a checkpoint's workspace."""
        snapshot = self._output_of(info)
        entries: Iterable[browse.SnapshotEntry] = ()
        if snapshot is not None:
            entries = browse.ls(snapshot, "", recursive=True)
        return SessionOutput(
            tag=info.tag,
            sandbox_id=info.sandbox_id,
            checkpoint=info.id,
            files=tuple(
                OutputFile(path=each.path, size_bytes=each.size) for each in entries if each.kind == "file"
            ),
        )

    def download_output(
        self, info: CheckpointInfo, target: str | Path, *, overwrite: bool = False
    ) -> tuple[str, ...]:
        """Write what `output` describes into a folder; return the paths in it."""
        snapshot = self._output_of(info)
        with target_folder(target) as folder:
            if snapshot is None:
                return ()
            return download(snapshot, browse.select(snapshot, ""), folder.resolve(), overwrite=overwrite)

    def _output_of(self, info: CheckpointInfo) -> Snapshot | None:
        archive = self._backend.archive
        try:
            entry = archive.snapshot(info.hash).find(OUTPUT)
        except NotFound:
            return None
        return archive.snapshot(entry.tree) if isinstance(entry, FolderEntry) else None

    def check(self, info: CheckpointInfo) -> browse.SnapshotCheck:
        """Read and verify every object of a checkpoint; report what cannot be restored."""
        return self._backend.archive.check(info.hash)

    def forget(
        self,
        *ids: str,
        tag: str | None = None,
        keep: Keep | None = None,
        per_session: bool = False,
        dry_run: bool = False,
    ) -> ForgetResult:
        """Drop single checkpoints, those of a session (``tag``), or those that ``keep`` does not retain.

        ``keep`` applies to all checkpoints (of the session, with a tag) together, or with ``per_session`` to
        those of each session. The newest checkpoint always stays. `prune` frees the files.
        """
        if bool(ids) == (tag is not None or keep is not None):
            raise InvalidInput("nothing to forget: pass ids of checkpoints, or tag= and keep=")
        if ids:
            dropped = [self._get(each) for each in dict.fromkeys(ids)]
            total = sum(1 for _ in self._backend.each(tag=None))
        else:
            found = list(self._backend.each(tag=tag))
            total = len(found)
            now_us = from_datetime(datetime.fromisoformat(self._now_iso()))
            dropped = found if keep is None else _not_retained(keep, found, now_us, per_session=per_session)
        if dropped and not dry_run:
            self._backend.forget(dropped)
        return ForgetResult(dropped=tuple(dropped), kept=total - len(dropped), dry_run=dry_run)

    def prune(
        self,
        *,
        grace_seconds: float | None = None,
        dry_run: bool = False,
        as_if_without: Collection[str] = (),
    ) -> PruneResult:
        """Free what no checkpoint needs any more; safe beside writers and readers.

        In a bucket or a folder, a prune drops packs, and one that runs at least ``grace_seconds`` (a day)
        later deletes them; 0 deletes them at once, for when nobody restores. In a store this is `Store.gc`,
        with a grace of an hour. A dry run can pretend that some checkpoints are forgotten.
        """
        if as_if_without and not dry_run:
            raise InvalidInput("as_if_without= is for dry runs; forget the checkpoints first")
        with self._lock:
            return self._backend.prune(
                grace_seconds=grace_seconds, dry_run=dry_run, as_if_without=as_if_without
            )

    def _get(self, id: str) -> CheckpointInfo:
        if not id.startswith(PREFIX):
            raise InvalidInput(f"{id[:80]!r} is not a checkpoint id: ids start with {PREFIX!r}")
        if _MIN_CHARS <= len(id) - len(PREFIX) < ID_CHARS:
            found = {each.id: each for each in self._backend.each(tag=None)}
            match = only_match(found, id, "checkpoint")
            if match is not None:
                return found[match]
        return self._backend.get(id)

    def close(self) -> None:
        """Close the storage."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _info(id: str, staged: StagedSandbox, metadata: CheckpointMetadata, timestamp: str) -> CheckpointInfo:
    return CheckpointInfo(
        id=id,
        hash=staged.root,
        timestamp=timestamp,
        size_bytes=staged.size_bytes,
        files=staged.files,
        secrets=tuple(
            msgspec.structs.replace(each, path=readable(each.path)) for each in staged.secrets[:LISTED]
        ),
        **msgspec.structs.asdict(metadata),
    )


def _not_retained(
    keep: Keep, newest_first: Sequence[CheckpointInfo], now_us: int, *, per_session: bool
) -> list[CheckpointInfo]:
    """Return the checkpoints that a policy drops, newest first.

    ``tagged`` matches the tag of a session, the prefix of such tags, or a comment; ``max_bytes`` counts what
    restores write. **Invariant:** the newest checkpoint, which ``latest`` selects, is retained.
    """
    groups: dict[str, list[RetentionEntry]] = {}
    by_key: dict[str, CheckpointInfo] = {}
    for position, info in enumerate(newest_first):
        key = f"{len(newest_first) - position:010}"  # of equal times, the one committed later is newer
        by_key[key] = info
        groups.setdefault(info.tag if per_session else "", []).append(
            RetentionEntry(
                id=key,
                ts_us=info.time_us,
                tags=frozenset(filter(None, (info.tag, info.tag.rpartition("-")[0], info.comment))),
                size_bytes=info.size_bytes or 0,
                pinned=position == 0,
            )
        )
    gone = {entry.id for entries in groups.values() for entry in select(entries, keep, now_us=now_us).dropped}
    return [info for key, info in by_key.items() if key in gone]


class StoreStorage:
    """The checkpoints of one space of a store (a folder, PostgreSQL or a treering server).

    A checkpoint is one event in the journal, whose scope is its session, so the checkpoints of a session are
    found by an index and forgotten together. `close` leaves the store open, unless it is ``owned``.
    """

    def __init__(self, store: Store, *, owned: bool) -> None:
        from treering.sandbox.archive import SandboxArchive

        self._store = store
        self._owned = owned
        self._archive = SandboxArchive(store.engine, store.space, store.workspace.writer())

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._store.url

    @property
    def archive(self) -> SandboxArchive:
        """The files."""
        return self._archive

    def prepare(self) -> None:
        """Do nothing: every store can keep checkpoints."""

    def commit(self, staged: StagedSandbox, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Write the event of a checkpoint, which requires its files."""
        info = make(f"{PREFIX}{new_id()}")
        draft = Draft(self._store.space)
        draft.require(*staged.requires)
        draft.event(
            Event(
                id=info.id,
                kind=KIND,
                ts_us=info.time_us,
                scope=_scope(info.tag),
                agent=info.agent_type,
                model=info.model,
                name=info.comment,
                data=msgspec.json.encode(info),
                links=tuple(object_address(each) for each in staged.roots),
            )
        )
        self._store.commit(draft)
        return info

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """Return the newest checkpoints, in the order of their commits."""
        return self.page(tag=tag, limit=limit)[0]

    def page(
        self, *, tag: str | None, limit: int, cursor: str | None = None
    ) -> tuple[list[CheckpointInfo], str | None]:
        """Return checkpoints as `newest_first` does, and the cursor of the next page, if there is one."""
        page = self._store.engine.scan(self._store.space, _query(tag), after=cursor, limit=limit)
        return [_from_event(each.event) for each in page.records], page.cursor

    def get(self, id: str) -> CheckpointInfo:
        """Return one checkpoint; raise `NotFound` if it does not exist."""
        page = self._store.engine.scan(self._store.space, EventQuery(kinds=(KIND,), ids=(id,)), limit=1)
        if not page.records:
            raise NotFound(f"checkpoint {id!r} not found in {self.url}. List them with list_checkpoints()")
        return _from_event(page.records[0].event)

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """Iterate over all checkpoints, newest first."""
        return (_from_event(each.event) for each in self._records(_query(tag)))

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Remove the events of checkpoints, after an event that says which ones."""
        from treering.maintenance.forget import record_audit_event

        ids = [info.id for info in infos]
        store = self._store
        record_audit_event(
            store.engine,
            store.space,
            kind="retention",
            data={"dropped": {KIND: len(ids)}},
            body=encode({KIND: ids}),
            clock=SystemClock(),
        )
        for start in range(0, len(ids), _PAGE):
            query = EventQuery(kinds=(KIND,), ids=tuple(ids[start : start + _PAGE]))
            seqs = tuple(each.seq for each in self._records(query))
            if seqs:
                store.engine.erase(store.space, Erasure(event_seqs=seqs))

    def prune(
        self,
        *,
        grace_seconds: float | None,
        dry_run: bool,
        as_if_without: Collection[str] = (),  # noqa: ARG002 - files go with the events that name them
    ) -> PruneResult:
        """Collect the garbage of the store."""
        grace = _STORE_GRACE_SECONDS if grace_seconds is None else grace_seconds
        swept = self._store.gc(grace_seconds=grace, dry_run=dry_run).swept
        return PruneResult(deleted=swept.packs, freed_bytes=swept.bytes, dry_run=dry_run)

    def close(self) -> None:
        """Close the store, if it is owned."""
        if self._owned:
            self._store.close()

    def _records(self, query: EventQuery) -> Iterator[Record]:
        return each_record(self._store.engine, self._store.space, query, limit=_PAGE)


def _query(tag: str | None) -> EventQuery:
    return EventQuery(kinds=(KIND,), scope=None if tag is None else _scope(tag), newest_first=True)


def _scope(tag: str) -> str:
    return str(Scope("", "sandbox", tag))


def _from_event(event: Event) -> CheckpointInfo:
    return msgspec.json.decode(event.data or b"{}", type=CheckpointInfo)


def parse_storage(storage: StorageLike | None) -> StorageConfig:
    """Return the config that a URL, a folder or a dict of its fields means; ``None`` is the treering server.

    Raises:
        InvalidInput: It is something else, or the dict has other keys.
    """
    wanted = f"pass StorageConfig(...), a URL, a folder, or a dict of {', '.join(_FIELDS)}"
    if isinstance(storage, StorageConfig):
        return _checked(storage)
    if isinstance(storage, str | Path) or storage is None:
        return StorageConfig(storage)
    if not isinstance(storage, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - of a caller
        raise InvalidInput(f"storage is of type {type(storage).__name__}; {wanted}")
    if unknown := [str(key) for key in storage if key not in _FIELDS]:
        raise InvalidInput(f"storage has the unknown key {unknown[0]!r}; {wanted}")
    return _checked(StorageConfig(**storage))


def _checked(config: StorageConfig) -> StorageConfig:
    for name in _FIELDS:
        value = getattr(config, name)
        if name == "credentials":
            types: tuple[type, ...] = (AccessKeys, Mapping)
        else:
            types = (str, Path) if name == "url" else (str,)
        if value is not None and not isinstance(value, types):
            wanted = "access_key_id and secret_access_key" if name == "credentials" else "a string"
            raise InvalidInput(f"{name}= of the storage is of type {type(value).__name__}; pass {wanted}")
    return config


def open_storage(config: StorageLike | None = None) -> CheckpointStorage:
    """Open the storage of a config (or just its URL); by default, that of the treering server."""
    config = parse_storage(config)
    if config.is_gateway:
        return storage_in(open_gateway(config), owned=True)
    from treering.sandbox.bucket import BucketStorage, cache_folder

    blobs = open_bucket(config)
    return CheckpointStorage(BucketStorage(blobs, cache=cache_folder(blobs.url)))


def storage_in(store: Store, *, owned: bool = False) -> CheckpointStorage:
    """Return the checkpoints in a treering store."""
    return CheckpointStorage(StoreStorage(store, owned=owned))


def list_checkpoints(
    storage: StorageLike | None = None, *, limit: int = DEFAULT_LIMIT, tag: str | None = None
) -> list[CheckpointInfo]:
    """Return the newest checkpoints (1 to 500) of a storage, newest first; ``tag`` selects a session."""
    with open_storage(storage) as opened:
        return opened.list(limit=limit, tag=tag)


def download_files(
    storage: StorageLike | None,
    checkpoint: str,
    files: str | list[str],
    target: str | Path,
    *,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Write files, folders or patterns of a checkpoint into a folder; return their paths."""
    with open_storage(storage) as opened:
        return opened.download(opened.find(checkpoint), files, target, overwrite=overwrite)


def forget_checkpoints(
    storage: StorageLike | None,
    *ids: str,
    tag: str | None = None,
    keep: Keep | None = None,
    per_session: bool = False,
    dry_run: bool = False,
) -> ForgetResult:
    """Drop checkpoints of a storage; see `CheckpointStorage.forget`."""
    with open_storage(storage) as opened:
        return opened.forget(*ids, tag=tag, keep=keep, per_session=per_session, dry_run=dry_run)


def prune_storage(
    storage: StorageLike | None = None,
    *,
    grace_seconds: float | None = None,
    dry_run: bool = False,
) -> PruneResult:
    """Free what no checkpoint of a storage needs; see `CheckpointStorage.prune`."""
    with open_storage(storage) as opened:
        return opened.prune(grace_seconds=grace_seconds, dry_run=dry_run)


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A treering server and its API key."""

    url: str
    api_key: str | None

    def __repr__(self) -> str:
        return f"Gateway(url={self.url!r}, api_key='***')"


def open_gateway(config: StorageConfig) -> Store:
    """Open the treering server that a config without a URL means."""
    from treering.api import open as open_store

    gateway = gateway_of(config)
    return open_store(gateway.url, api_key=gateway.api_key)


def gateway_of(config: StorageConfig, *, environment: Mapping[str, str] = os.environ) -> Gateway:
    """Return the server that a config without a URL means; `InvalidInput` names what is missing.

    A server on this machine may need no key.
    """
    stray = [
        name for name in ("prefix", "region", "endpoint", "credentials") if getattr(config, name) is not None
    ]
    if stray:
        raise InvalidInput(f"StorageConfig has {stray[0]}= but neither url= nor bucket=; say which bucket")
    url = environment.get(GATEWAY_URL)
    if not url:
        raise InvalidInput(
            f"StorageConfig() without a URL means a treering server, but {GATEWAY_URL} is not set; "
            "set it, or pass url='s3://bucket/prefix'"
        )
    if not url.startswith(("https://", "http://")):
        raise InvalidInput(
            f"StorageConfig() without a URL means a treering server, but {GATEWAY_URL} is {url[:80]!r}; "
            "set it to https://..., or pass url="
        )
    key = config.api_key or environment.get(GATEWAY_KEY)
    if not key and urlsplit(url).hostname not in _THIS_MACHINE:
        raise InvalidInput(f"the treering server at {url} needs a key; set {GATEWAY_KEY}, or pass api_key=")
    return Gateway(url=url, api_key=key or None)


def open_bucket(config: StorageConfig) -> Blobs:
    """Open the bucket or folder of a config."""
    from treering.blobs.location import open_blobs

    is_server = isinstance(config.url, str) and config.url.startswith(("http://", "https://"))
    if is_server and config.bucket is None and not urlsplit(str(config.url)).path.strip("/"):
        raise InvalidInput(
            f"{config.url} names no bucket; write s3://bucket/prefix or https://server/bucket/prefix. If it "
            f"is a treering server, set {GATEWAY_URL} to it, and leave out url="
        )
    keys = _keys(config.credentials)
    return open_blobs(
        config.url if config.url is not None else f"s3://{config.bucket}",
        bucket=config.bucket,
        prefix=None if config.prefix is None else config.prefix.strip("/"),
        endpoint=config.endpoint,
        region=config.region,
        access_key_id=None if keys is None else keys.access_key_id,
        secret_access_key=None if keys is None else keys.secret_access_key,
        session_token=None if keys is None else keys.session_token,
    )


def _keys(given: AccessKeys | Mapping[str, str] | None) -> AccessKeys | None:
    if given is None or isinstance(given, AccessKeys):
        return given
    fields: dict[str, Any] = {_CAMEL_CASE.get(name, name): value for name, value in given.items()}
    try:
        return msgspec.convert(fields, AccessKeys)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"credentials= needs access_key_id and secret_access_key ({error}); leave it out to use the "
            "environment or a profile"
        ) from error


def _now_iso() -> str:
    return to_iso(SystemClock().now_us())
