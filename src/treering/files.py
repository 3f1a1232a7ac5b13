"""Atomic, durable files, safe access to folders, and translation of operating system errors.

A file is first written as a draft: under a unique name in the hidden folder ``.drafts``, synced, and only
then renamed to its final name, after which its folder is synced too. A process that dies halfway leaves a
draft that nobody reads; a writer removes it after a day. A draft is locked while its writer lives, so
`Drafts.clear` can remove the drafts of dead writers immediately. **Invariant:** a file with its final name is
always complete, and it survives power loss once `Draft.publish` returned.

Folders are opened by descriptor, one component at a time, without following symbolic links: nothing planted
inside the folder of a store can redirect a read or a write out of it.

What agents said is private: whatever the umask is, a new file may be read by its owner only (`FILE_MODE`),
and a new folder entered by its owner only (`FOLDER_MODE`). Existing files and folders keep their modes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from treering.core import failpoints
from treering.core.clock import DAY_US, Clock
from treering.core.ids import new_id
from treering.errors import InvalidInput, ReadOnly, StoreFull, TreeringError, Unreachable

DRAFTS: Final = ".drafts"
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_PIECES: Final = 256
"""Pieces written in one call; the system allows 1,024."""
_GATHERED: Final = 1 << 20

_SYNCED: Final = failpoints.declare("file.synced", "a file is complete and synced, but still a draft")
_RENAMED: Final = failpoints.declare("file.renamed", "a file has its name, but its folder is not synced yet")

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DRAFT_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_TOO_MANY_OPEN: Final = frozenset({errno.EMFILE, errno.ENFILE})
_MISPLACED: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


class Draft:
    """A complete, synced file without its final name."""

    def __init__(self, drafts: int, name: str) -> None:
        self._drafts = drafts
        self._name = name

    def rename(self, folder: int, name: str) -> None:
        """Rename it, replacing an existing file. The caller must sync the folder afterwards."""
        os.rename(self._name, name, src_dir_fd=self._drafts, dst_dir_fd=folder)
        failpoints.hit(_RENAMED)

    def publish(self, folder: int, name: str) -> None:
        """Rename it and sync the folder."""
        self.rename(folder, name)
        os.fsync(folder)


class Drafts:
    """The drafts of one folder."""

    def __init__(self, root: Path, *, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._swept = False

    @contextlib.contextmanager
    def write(self, pieces: Iterable[bytes | bytearray | memoryview]) -> Generator[Draft]:
        """Write a draft; unless it is renamed inside the block, it is removed afterwards."""
        with self._opened() as drafts:
            if not self._swept:
                self._swept = True
                _sweep(drafts, before_us=self._clock.now_us() - DAY_US)
            name, file = _new_draft(drafts)
            try:
                _write_all(file, pieces)
                os.fsync(file)
                failpoints.hit(_SYNCED)
                yield Draft(drafts, name)
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=drafts)
                os.close(file)

    def clear(self) -> None:
        """Remove the drafts of dead writers, however recent."""
        with contextlib.suppress(FileNotFoundError), open_folder(self._root, (DRAFTS,)) as drafts:
            for name in os.listdir(drafts):  # noqa: PTH208 - by descriptor, which Path does not support
                with contextlib.suppress(OSError):
                    _remove_unlocked(drafts, name)

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Hold an exclusive lock among all threads and processes of this machine."""
        with self._opened() as drafts:
            fcntl.flock(drafts, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Closing is not enough: a child forked meanwhile has a copy of the descriptor.
                fcntl.flock(drafts, fcntl.LOCK_UN)

    def _opened(self) -> contextlib.AbstractContextManager[int]:
        return open_folder(self._root, (DRAFTS,), make=True)


def write_durably(path: Path, data: bytes) -> None:
    """Create or replace a small file atomically and durably, in a folder that only its owner writes to."""
    with translate_os_errors(str(path), writing=True), open_folder(path.parent) as folder:
        name = f".{path.name}.{new_id()}"
        file = os.open(name, _DRAFT_FLAGS, FILE_MODE, dir_fd=folder)
        try:
            _write_all(file, [data])
            os.fsync(file)
            Draft(folder, name).publish(folder, path.name)
        finally:
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)


@contextlib.contextmanager
def open_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Generator[int]:
    """Open the folder ``parts`` below ``root`` as a descriptor; ``make`` creates missing folders durably.

    A symbolic link below ``root`` raises `NotADirectoryError`.
    """
    if make:
        make_folder(root)
    folder = os.open(root, _FOLDER_FLAGS)
    try:
        for part in parts:
            below = _below(folder, part, make=make)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def translate_os_errors(where: str, *, writing: bool) -> Generator[None]:
    """Translate `OSError` into treering's errors; ``where`` is the location for the message."""
    try:
        yield
    except OSError as error:
        raise _translate(error, where, writing=writing) from error


def read_range(file: int, start: int, stop: int) -> bytes:
    """Return the bytes of a file from ``start`` up to ``stop`` or its end."""
    pieces: list[bytes] = []
    while start < stop and (piece := os.pread(file, stop - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _translate(error: OSError, where: str, *, writing: bool) -> TreeringError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(f"{where}: {reason}; nothing was written, free some space and try again")
    if error.errno in _REFUSED and writing:
        return ReadOnly(f"cannot write {where}: {reason}; check its permissions, or use another folder")
    if error.errno in _MISPLACED:
        return InvalidInput(f"{where}: {reason}; the path contains a link or is not of the expected kind")
    if error.errno in _TOO_MANY_OPEN:
        return Unreachable(f"{where}: {reason}; close some, or raise the limit (ulimit -n)")
    return Unreachable(f"{where}: {reason}; check that it is mounted and accessible")


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file as `open` does; if that creates it, only its owner may read it."""
    encoding = None if "b" in mode else "utf-8"
    return open(path, mode, encoding=encoding, opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def make_folder(root: Path) -> None:
    """Create a folder and those above it, durably, unless they exist."""
    if root.is_dir():
        return
    make_folder(root.parent)
    with contextlib.suppress(FileExistsError):
        root.mkdir(FOLDER_MODE)
    with open_folder(root.parent) as parent:
        os.fsync(parent)


def host_name() -> str:
    """The name of this machine, which a container changes when it starts again."""
    return os.uname().nodename  # importing `socket` for this would slow down every start


def _below(folder: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, FOLDER_MODE, dir_fd=folder)
    os.fsync(folder)
    return os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)


def _write_all(file: int, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write pieces in sequence, combining small ones into one call."""
    some: list[memoryview] = []
    size = 0
    for piece in pieces:
        some.append(memoryview(piece).cast("B"))
        size += len(some[-1])
        if len(some) >= _PIECES or size >= _GATHERED:
            _write_some(file, some)
            some, size = [], 0
    _write_some(file, some)


def _write_some(file: int, pieces: list[memoryview]) -> None:
    written = os.writev(file, pieces) if pieces else 0
    for piece in pieces:  # a nearly full disk accepts only a part
        rest = piece[written:]
        written = max(0, written - len(piece))
        while rest:
            rest = rest[os.write(file, rest) :]


def _new_draft(drafts: int) -> tuple[str, int]:
    """Create and lock a new file; return its name and descriptor."""
    while True:
        name = new_id()
        file = os.open(name, _DRAFT_FLAGS, FILE_MODE, dir_fd=drafts)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return name, file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # removed by `clear` before it was locked


def _remove_unlocked(drafts: int, name: str) -> None:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=drafts)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=drafts)
    finally:
        os.close(file)


def _sweep(drafts: int, *, before_us: int) -> None:
    for name in os.listdir(drafts):
        # Another process may be sweeping too; a draft that cannot be removed does no harm.
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=drafts, follow_symlinks=False).st_mtime_ns // 1000 < before_us:
                os.unlink(name, dir_fd=drafts)
