"""Files that are there whole or not at all, and what the operating system's refusals mean.

A file is first a draft: written under a name of its own in the hidden folder ``.drafts``, synced, and only
then renamed to where it belongs, after which the folder is synced too. A process that dies on the way
leaves a draft, which nobody reads; a day later the next writer sweeps it away. Every draft is locked as long
as its writer lives, so whoever cannot wait for that day (`Drafts.clear`) can tell the dead. **Invariant:**
under its own name a file is always complete, and once `Draft.publish` returned it survives a loss of power.

Folders are reached by descriptors, one component at a time, and a symbolic link is never followed on the
way: what is planted inside a store's folder cannot lead a read or a write out of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Final

from treering.core import failpoints
from treering.core.clock import DAY_US, Clock
from treering.core.ids import new_id
from treering.errors import InvalidInput, ReadOnly, StoreFull, TreeringError, Unreachable

DRAFTS: Final = ".drafts"

_PIECES: Final = 256
"""So many are written in one call; the system allows 1,024."""
_GATHERED: Final = 1 << 20

_SYNCED: Final = failpoints.declare("file.synced", "a file is complete and synced, but only as a draft")
_RENAMED: Final = failpoints.declare("file.renamed", "a file has its name, but its folder is not synced")

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DRAFT_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_MISPLACED: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


class Draft:
    """A file that is complete and synced, and has no name yet."""

    def __init__(self, drafts: int, name: str) -> None:
        self._drafts = drafts
        self._name = name

    def rename(self, folder: int, name: str) -> None:
        """Give it its name, in place of the file that may have it; `sync` the folder afterwards."""
        os.rename(self._name, name, src_dir_fd=self._drafts, dst_dir_fd=folder)
        failpoints.hit(_RENAMED)

    def publish(self, folder: int, name: str) -> None:
        """Give it its name, for good."""
        self.rename(folder, name)
        os.fsync(folder)


class Drafts:
    """Where the files of one folder are written before they get their names."""

    def __init__(self, root: Path, *, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._swept = False

    @contextlib.contextmanager
    def write(self, pieces: Iterable[bytes | bytearray | memoryview]) -> Generator[Draft]:
        """A draft of these bytes; what is not renamed inside the block is removed behind it."""
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
        """Remove the drafts of writers that died, however young they are."""
        with contextlib.suppress(FileNotFoundError), opened_folder(self._root, (DRAFTS,)) as drafts:
            for name in os.listdir(drafts):  # noqa: PTH208 - by descriptor, which a Path has none of
                with contextlib.suppress(OSError):
                    _remove_unlocked(drafts, name)

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Keep out every other holder of this lock, in any thread and any process on this machine."""
        with self._opened() as drafts:
            fcntl.flock(drafts, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Closing is not enough: a child forked meanwhile holds a copy of the descriptor.
                fcntl.flock(drafts, fcntl.LOCK_UN)

    def _opened(self) -> contextlib.AbstractContextManager[int]:
        return opened_folder(self._root, (DRAFTS,), make=True)


@contextlib.contextmanager
def opened_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Generator[int]:
    """A descriptor of the folder ``parts`` below ``root``; ``make`` makes what is missing, durably.

    A symbolic link below ``root`` raises `NotADirectoryError`.
    """
    if make:
        _make_root(root)
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
def translated(where: str, *, writing: bool) -> Generator[None]:
    """Turn the operating system's errors into ours; ``where`` names the place in the message."""
    try:
        yield
    except OSError as error:
        raise _meaning(error, where, writing=writing) from error


def read_range(file: int, start: int, stop: int) -> bytes:
    """The bytes of a file from ``start`` up to ``stop`` or its end."""
    pieces: list[bytes] = []
    while start < stop and (piece := os.pread(file, stop - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _meaning(error: OSError, where: str, *, writing: bool) -> TreeringError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(f"{where}: {reason}; nothing of this write was kept, free space and try again")
    if error.errno in _REFUSED and writing:
        return ReadOnly(f"{where} cannot be written: {reason}; check its permissions, or open another folder")
    if error.errno in _MISPLACED:
        return InvalidInput(f"{where}: {reason}; a link or a file of another kind is in the way")
    return Unreachable(f"{where}: {reason}; check that it is mounted and may be accessed")


def _make_root(root: Path) -> None:
    if root.is_dir():
        return
    _make_root(root.parent)
    with contextlib.suppress(FileExistsError):
        root.mkdir()
    with opened_folder(root.parent) as parent:
        os.fsync(parent)


def _below(folder: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    os.fsync(folder)
    return os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)


def _write_all(file: int, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write pieces one behind the other, many small ones in one call."""
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
    for piece in pieces:  # a disk that is nearly full takes a part
        rest = piece[written:]
        written = max(0, written - len(piece))
        while rest:
            rest = rest[os.write(file, rest) :]


def _new_draft(drafts: int) -> tuple[str, int]:
    """A new file, locked, and its name."""
    while True:
        name = new_id()
        file = os.open(name, _DRAFT_FLAGS, 0o666, dir_fd=drafts)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return name, file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # cleared away in the moment before it was locked


def _remove_unlocked(drafts: int, name: str) -> None:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=drafts)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=drafts)
    finally:
        os.close(file)


def _sweep(drafts: int, *, before_us: int) -> None:
    for name in os.listdir(drafts):
        # Another process may sweep at the same moment, and what cannot be removed is only litter.
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=drafts, follow_symlinks=False).st_mtime_ns // 1000 < before_us:
                os.unlink(name, dir_fd=drafts)
