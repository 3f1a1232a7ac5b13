"""Checkpoints in a bucket or a folder that has nothing besides it: no database, no server.

::

    format.json                          the version of this layout
    packs/ab/<sha256>.pack               the files, many objects each
    index/<id>                           what lies in which pack
    checkpoints/<9999999999 - n>.json    one small entry a checkpoint; the newest is listed first
    tags/<tag>/<9999999999 - n>          where those of one session are

Everything is written once under a name of its own; only the numbers of checkpoints are contended, and those
are taken by conditional writes. The order is packs, index, tag, checkpoint: whatever can be read is whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from treering.core.storage import Blobs
from treering.sandbox.archive import Archive, Archived
from treering.sandbox.bucket_log import BucketLog
from treering.sandbox.bucket_objects import BucketObjects
from treering.sandbox.records import CheckpointInfo
from treering.views.workspaces.known import Shelf
from treering.views.workspaces.snapshots import Camera

_SPACE: Final = "default"


class BucketStorage:
    """One bucket or folder. ``cache`` is where stat caches may lie; it may be lost at any time."""

    def __init__(self, blobs: Blobs, *, cache: Path | None) -> None:
        self._blobs = blobs
        self._objects = BucketObjects(blobs)
        self._log = BucketLog(blobs)
        self._archive = Archive(self._objects, _SPACE, Camera(self._objects, _SPACE, Shelf(cache)))

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
        self._objects.give_up()  # what an earlier failure left half staged
        self._log.prepare()

    def commit(self, archived: Archived, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:  # noqa: ARG002
        """Send what is staged, then write the entry."""
        self._objects.flush()
        return self._log.append(make)

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints."""
        return self._log.newest_first(tag=tag, limit=limit)

    def get(self, id: str) -> CheckpointInfo:
        """One checkpoint."""
        return self._log.get(id)

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
