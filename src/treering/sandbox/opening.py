"""From a config to its checkpoints: the one place that chooses between bucket, folder and server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from treering.core.clock import SystemClock, to_iso
from treering.core.retention import Keep
from treering.sandbox.config import StorageConfig, gateway_of, open_bucket
from treering.sandbox.depots import DEFAULT_LIMIT, Depot
from treering.sandbox.records import CheckpointInfo, Forgotten, Pruned
from treering.store import Store


def open_depot(config: StorageConfig | str | Path) -> Depot:
    """The checkpoints that a config (or just its URL) stands for."""
    chosen = config if isinstance(config, StorageConfig) else StorageConfig(config)
    if chosen.is_gateway:
        return depot_in(open_gateway(chosen), owned=True)
    from treering.sandbox.bucket_storage import BucketStorage, cache_of

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
