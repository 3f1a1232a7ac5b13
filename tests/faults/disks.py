"""A small disk that can be filled to the brim and freed again.

Under root it is a file system of its own (tmpfs), so that everything that writes there really runs out of
room. Where nothing may be mounted, the operating system's answer is played instead: the database may not grow
(``max_page_count``), and files end in ENOSPC by a failpoint, or at a length that this process may not pass.
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
    """A folder with little room."""

    refusal: type[TreeringError] = StoreFull
    """How a file that is not of an open store is refused here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, store: Store | None, *, room: int = 0) -> None:
        """Leave only so many bytes."""
        del store
        with self._ballast.open("wb", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            ballast.truncate(max(ballast.tell() - room, 0))

    def free(self, store: Store | None) -> None:
        """Let there be room again."""
        del store
        self._ballast.unlink()


class PlayedDisk(SmallDisk):
    """A folder of a large disk that behaves like a small one."""

    refusal = TreeringError  # a file that is too long is no full disk to SQLite, and it does not say more

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
    """A small disk at a folder, for as long as the block runs."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield PlayedDisk(folder)
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
