"""Checkpoints in a bucket or a folder that has nothing besides it: no database, no server.

::

    format.json                          the version of this layout
    packs/ab/<sha256>.pack               the files, many objects each
    index/<id>                           what lies in which pack
    checkpoints/<9999999999 - n>.json    one small entry a checkpoint; the newest is listed first
    tags/<tag>/<9999999999 - n>          where those of one session are
    condemned.json                       packs that will be deleted; there since the first prune

Everything is written once under a name of its own; only the numbers of checkpoints are contended, and those
are taken by conditional writes. The order is packs, index, tag, checkpoint: whatever can be read is whole.
What is deleted, when, and why no writer is hurt by it: `treering.sandbox.bucket_pruning`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from treering.core import failpoints
from treering.core.storage import Blobs
from treering.errors import MissingObjects
from treering.sandbox.archive import Archive, Archived
from treering.sandbox.bucket_log import BucketLog
from treering.sandbox.bucket_objects import BucketObjects
from treering.sandbox.bucket_pruning import GRACE_SECONDS, prune
from treering.sandbox.records import CheckpointInfo, Pruned
from treering.views.workspaces.known import Shelf
from treering.views.workspaces.snapshots import Camera

_SPACE: Final = "default"

_ENTERED: Final = failpoints.declare(
    "bucket.entered", "a checkpoint can be seen, and it is not yet known whether a prune took part of it"
)
_FORGOTTEN: Final = failpoints.declare("bucket.forgotten", "a checkpoint is forgotten, others are not yet")


class BucketStorage:
    """One bucket or folder. ``cache`` is where stat caches may lie; it may be lost at any time."""

    def __init__(self, blobs: Blobs, *, cache: Path | None) -> None:
        self._blobs = blobs
        self._objects = BucketObjects(blobs)
        self._log = BucketLog(blobs)
        camera = Camera(self._objects, _SPACE, Shelf(cache), has_all_of=self._objects.has_all_of)
        self._archive = Archive(self._objects, _SPACE, camera)

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        return self._blobs.url

    @property
    def archive(self) -> Archive:
        """The files."""
        return self._archive

    def prepare(self) -> None:
        """Refuse a bucket that ignores conditions, or that a newer treering wrote."""
        self._log.prepare()
        self._objects.begin()  # drops what an earlier failure left half staged

    def commit(self, archived: Archived, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Send what is staged, then write the entry; `MissingObjects` if a prune got in between."""
        self._objects.flush()
        info = self._log.append(make)
        failpoints.hit(_ENTERED)
        if not self._objects.is_settled():
            self._log.forget(info)
            raise MissingObjects(archived.requires)
        self._objects.index.gather()
        return info

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints."""
        return self._log.newest_first(tag=tag, limit=limit)

    def get(self, id: str) -> CheckpointInfo:
        """One checkpoint."""
        return self._log.get(id)

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first."""
        return self._log.each(tag=tag)

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Let there be no such checkpoints."""
        for info in infos:
            self._log.forget(info)
            failpoints.hit(_FORGOTTEN)

    def prune(
        self, *, grace_seconds: float | None, dry_run: bool, as_if_without: Collection[str] = ()
    ) -> Pruned:
        """Delete what no checkpoint needs."""
        return prune(
            self._blobs,
            self._log,
            self._objects,
            grace_seconds=GRACE_SECONDS if grace_seconds is None else grace_seconds,
            dry_run=dry_run,
            as_if_without=as_if_without,
        )

    def reindex(self) -> int:
        """Bring back packs that no index names; how many."""
        return self._objects.reindex()

    def close(self) -> None:
        """Let go of the threads."""
        self._objects.close()


def cache_of(url: str) -> Path | None:
    """Where this machine keeps what it saw of folders, for one bucket."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may lack a home
    key = sha256(url.encode()).hexdigest()[:32]
    return Path(base) / "treering" / "buckets" / key if Path(base).is_absolute() else None
