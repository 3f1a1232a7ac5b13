"""Who may write to a thread: one writer at a time, where that can be arranged.

`ProcessLocks` keeps the threads of one saver apart. `FolderLocks` keeps apart all processes of a machine, by
locks of the operating system, which end with the process that holds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from threading import Lock
from typing import Final, Protocol
from zlib import crc32

from treering.files import opened_folder, translated

_STRIPES: Final = 64
_FOLDER: Final = ".locks"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Locks(Protocol):
    """Locks by name. Two names may share one lock, so nobody may hold two of them."""

    @property
    def everywhere(self) -> bool:
        """Whether they keep out every writer there can be, not only those of this saver."""
        ...

    def holding(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Keep every other holder of this name out."""
        ...


class ProcessLocks:
    """Locks among the threads of this process."""

    everywhere = False

    def __init__(self) -> None:
        self._locks = tuple(Lock() for _ in range(_STRIPES))

    @contextlib.contextmanager
    def holding(self, name: str) -> Generator[None]:
        """Keep other threads out."""
        with self._locks[_stripe(name)]:
            yield


class FolderLocks:
    """Locks among all threads and processes that use one folder."""

    everywhere = True

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def holding(self, name: str) -> Generator[None]:
        """Keep other threads and processes out."""
        with translated(str(self._root / _FOLDER), writing=True):
            with opened_folder(self._root, (_FOLDER,), make=True) as folder:
                file = os.open(f"{_stripe(name):02}", _FLAGS, 0o666, dir_fd=folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a child forked meanwhile holds a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _stripe(name: str) -> int:
    return crc32(name.encode()) % _STRIPES
