"""A small disk that can be filled up and freed again.

As root, it is a separate file system (tmpfs), so that writes really run out of space. If mounting is not
allowed, the error is simulated: the database may not grow (``max_page_count``), and writing files fails
with ENOSPC by a failpoint, or at a size limit of this process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from treering.core import failpoints
from treering.errors import StoreFull, TreeringError
from treering.store import Store

SIZE = 12 * 1024 * 1024
_ENDLESS = 1 << 30


class SmallDisk:
    """A folder with little space."""

    file_error: type[TreeringError] = StoreFull
    """The error for a file outside of an open store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, store: Store | None, *, room: int = 0) -> None:
        """Use up the space except for ``room`` bytes."""
        del store
        with self._ballast.open("wb", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            ballast.truncate(max(ballast.tell() - room, 0))

    def free(self, store: Store | None) -> None:
        """Free the space again."""
        del store
        self._ballast.unlink()


class SimulatedFullDisk(SmallDisk):
    """A folder on a large disk that behaves like a small one."""

    file_error = TreeringError  # SQLite does not report a file size limit as a full disk

    def fill(self, store: Store | None, *, room: int = 0) -> None:
        failpoints.arm("file.synced", "raise:ENOSPC")
        if store is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max(room, 1), resource.RLIM_INFINITY))
        else:
            writer = store.engine._sqlite.writer()
            ((pages,),) = writer.execute("PRAGMA page_count").fetchall()
            writer.execute(f"PRAGMA max_page_count = {pages + room // 4096}").fetchall()

    def free(self, store: Store | None) -> None:
        failpoints.disarm("file.synced")
        if store is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            store.engine._sqlite.writer().execute(f"PRAGMA max_page_count = {_ENDLESS}").fetchall()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """A small disk at a folder, while the block runs."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield SimulatedFullDisk(folder)
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
