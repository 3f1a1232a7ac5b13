"""Write the files of a restore: fetch contents, verify them, and put each file in place atomically.

Small files are written in batches: runs of files, from whichever folders, that are worth one read and fit
into memory. They cost many short system calls, and two threads that make short calls lose more to handing the
interpreter lock back and forth than they gain, so the calling thread writes all of them. A large file is few
long calls: a second thread writes those meanwhile, object by object. What is already in place in the old
version of a large file is copied from there by the kernel instead of being fetched (`ExistingFile`).

**Invariant:** under its own name a file is always whole. It is written under a temporary name beside its
place and renamed when it is complete and has its mode; or into a folder that has no name yet. Runs of zeros
in large files become holes again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol, Self

from treering.core import failpoints
from treering.core.chunking import WHOLE_BYTES
from treering.core.content import Content
from treering.core.ids import new_id
from treering.core.tree import FileEntry
from treering.errors import Corrupt
from treering.files import translate_os_errors
from treering.workspaces.ignore import TEMPORARY
from treering.workspaces.scan import FILE_FLAGS, CachedFile, FileStamp, file_stamp, untrusted_stamp
from treering.workspaces.snapshot import BATCH_BYTES, BATCH_OBJECTS, batches

_READ_AHEAD: Final = 4
"""How many batches of small files, and of a large file's objects, are announced before they are needed."""
_MAX_QUEUED: Final = 16
"""How many large files may wait for their thread; the caller waits when there are more."""
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ST_BLOCK: Final = 512  # what st_blocks counts in
_COPY_BYTES: Final = 1 << 20
_HOLE_BLOCK: Final = 4096
_ZEROS: Final = bytes(_HOLE_BLOCK)
_NOT_SUPPORTED: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.EPERM})
_EXCHANGE: Final = 2
_library: Final = ctypes.CDLL(None, use_errno=True)
_renameat2: Final[Any] = getattr(_library, "renameat2", None)

_WRITTEN: Final = failpoints.declare(
    "restore.file_written", "a restored file is complete under a temporary name"
)
_PLACED: Final = failpoints.declare("restore.file_placed", "a restored file has its name, others do not yet")


class ContentSource(Protocol):
    """Where contents come from. Two threads use it."""

    def contents(self, names: Sequence[str]) -> Mapping[str, Content]:
        """Return verified contents by name."""
        ...

    def expect(self, names: Sequence[str]) -> None:
        """Take note of what will be read soon."""
        ...


class TargetFolder(Protocol):
    """A folder that files are written into."""

    path: str
    folder: int
    """Its descriptor, open until all batches with a file of it are finished."""
    is_new: bool
    """Whether it has a temporary name until all its files are in it."""
    cached: dict[str, CachedFile]
    """Its previous files."""
    stamps: dict[str, FileStamp]
    """Stamps of the written files, by name."""
    cuts: dict[str, tuple[int, ...]]
    """Object sizes of the large ones among them."""


class FileBatch:
    """Some small files that are written together, or one large file."""

    __slots__ = ("files", "future", "size")

    def __init__(self) -> None:
        self.files: list[tuple[TargetFolder, FileEntry]] = []
        self.size = 0
        self.future: Future[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether finishing it does not wait for the other thread."""
        return self.future is None or self.future.done()


class _Stopped(Exception):
    """The restore was abandoned while a large file was written."""


class FileWriter:
    """Writes the files of one restore."""

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self._large = ThreadPoolExecutor(1, "treering-large")
        self._queued: deque[Future[None]] = deque()
        self._upcoming: deque[list[str]] = deque()
        self._full: deque[FileBatch] = deque()
        self._open = FileBatch()
        self._is_stopped = False
        self._umask = _umask()
        self._temporary = temporary_names()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._large.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Abandon the large file that is being written, if any."""
        self._is_stopped = True

    def add(self, folder: TargetFolder, entry: FileEntry) -> FileBatch:
        """Queue a file; `finish` the returned batch to be sure that it is written."""
        if len(entry.content) > 1:
            return self._add_large(folder, entry)
        batch = self._open
        batch.files.append((folder, entry))
        batch.size += entry.size
        if batch.size >= BATCH_BYTES or len(batch.files) >= BATCH_OBJECTS:
            self._close_batch()
        while len(self._full) > _READ_AHEAD:
            self._write_batch(self._full.popleft())
        return batch

    def finish(self, batch: FileBatch) -> None:
        """Return when all files of a batch are written; raise what went wrong."""
        if batch.future is not None:
            batch.future.result()
        if batch is self._open:
            self._close_batch()
        while batch in self._full:
            self._write_batch(self._full.popleft())

    def wait(self) -> None:
        """Wait until one more large file is done or has failed."""
        wait([self._queued.popleft()])

    def _close_batch(self) -> None:
        batch, self._open = self._open, FileBatch()
        self._full.append(batch)
        self._source.expect(_names(batch))

    def _add_large(self, folder: TargetFolder, entry: FileEntry) -> FileBatch:
        batch = FileBatch()
        cached = folder.cached.get(entry.name)
        existing = frozenset(cached.content) if cached is not None and cached.cuts else frozenset[str]()
        self._upcoming += ([name for name in names if name not in existing] for names in batches([entry]))
        batch.future = self._large.submit(self._write_large, folder, entry)
        self._queued.append(batch.future)
        if len(self._queued) > _MAX_QUEUED:
            self.wait()
        return batch

    def _write_batch(self, batch: FileBatch) -> None:
        names = _names(batch)
        found = self._source.contents(names) if names else dict[str, Content]()
        for folder, entry in batch.files:
            self._write(folder, entry, [found[name].data for name in entry.content])
        batch.files.clear()

    def _write_large(self, folder: TargetFolder, entry: FileEntry) -> None:
        cuts: list[int] = []
        existing = open_existing(entry.name, folder.folder, folder.cached.get(entry.name))
        try:
            self._write(folder, entry, merge_ranges(self._pieces(entry, existing, cuts)), existing)
        except FileChanged:
            self._write(folder, entry, self._pieces(entry, None, cuts))
        finally:
            if existing is not None:
                existing.close()
        folder.cuts[entry.name] = tuple(cuts)

    def _pieces(
        self, entry: FileEntry, existing: ExistingFile | None, cuts: list[int]
    ) -> Iterator[bytes | CopyRange]:
        ranges: Mapping[str, CopyRange] = {} if existing is None else existing.ranges
        cuts.clear()
        for names in batches([entry]):
            if self._is_stopped:
                raise _Stopped
            if self._upcoming:
                self._upcoming.popleft()
            for upcoming in tuple(self._upcoming)[:_READ_AHEAD]:
                self._source.expect(upcoming)
            wanted = [name for name in names if name not in ranges]
            found = self._source.contents(wanted) if wanted else dict[str, Content]()
            for name in names:
                piece = ranges.get(name) or found[name].data
                cuts.append(piece.size if isinstance(piece, CopyRange) else len(piece))
                yield piece

    def _write(
        self,
        folder: TargetFolder,
        entry: FileEntry,
        pieces: Iterable[bytes | CopyRange],
        existing: ExistingFile | None = None,
    ) -> None:
        write = self._write_in_place if folder.is_new else self._write_beside
        try:
            folder.stamps[entry.name] = write(folder, entry, pieces, existing)
        except OSError as error:  # a context manager per file would be too slow
            with errors_for(folder.path + entry.name):
                raise error from None

    def _write_in_place(
        self,
        folder: TargetFolder,
        entry: FileEntry,
        pieces: Iterable[bytes | CopyRange],
        existing: ExistingFile | None,
    ) -> FileStamp:
        """Write a file of a new folder under its own name: the folder's name is the temporary one."""
        file = os.open(entry.name, _NEW_FILE, entry.mode | 0o200, dir_fd=folder.folder)
        try:
            self._fill(file, pieces, entry, folder.path, existing)
            stamp = file_stamp(os.fstat(file))
        finally:
            os.close(file)
        failpoints.hit(_WRITTEN)
        return stamp

    def _write_beside(
        self,
        target: TargetFolder,
        entry: FileEntry,
        pieces: Iterable[bytes | CopyRange],
        existing: ExistingFile | None,
    ) -> FileStamp:
        folder, temporary = target.folder, next(self._temporary)
        file = os.open(temporary, _NEW_FILE, entry.mode | 0o200, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # while its writer lives, the file is not stale
            self._fill(file, pieces, entry, target.path, existing)
            written = os.fstat(file)
            failpoints.hit(_WRITTEN)
            if not (entry.name in target.cached and _replace_by_exchange(temporary, entry.name, folder)):
                os.rename(temporary, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        finally:
            os.close(file)
        failpoints.hit(_PLACED)
        # Renaming moves ctime. Any other difference means that someone has changed the file since.
        stamp = file_stamp(os.stat(entry.name, dir_fd=folder, follow_symlinks=False))
        return stamp if stamp[:3] == file_stamp(written)[:3] else untrusted_stamp(stamp[4])

    def _fill(
        self,
        file: int,
        pieces: Iterable[bytes | CopyRange],
        entry: FileEntry,
        above: str,
        existing: ExistingFile | None,
    ) -> None:
        size = 0
        for piece in pieces:
            size += piece.size if isinstance(piece, CopyRange) else len(piece)
            if size > entry.size:
                break
            if isinstance(piece, CopyRange):
                if existing is not None:
                    existing.copy(piece, file)
            elif entry.size > WHOLE_BYTES:
                write_sparse(file, piece)
            else:
                write_all(file, piece)
        if size != entry.size:
            raise Corrupt(
                f"file {above + entry.name!r} does not have the {entry.size} bytes that the snapshot says; "
                "it was not written. Run verify"
            )
        if existing is not None:
            existing.check()
        if entry.size > WHOLE_BYTES:  # it may end with a hole
            os.ftruncate(file, size)
        if (entry.mode | 0o200) & ~self._umask != entry.mode:
            os.fchmod(file, entry.mode)


def _names(batch: FileBatch) -> list[str]:
    return [name for _, entry in batch.files for name in entry.content]


class FileChanged(Exception):
    """The existing file is not as it was scanned."""


class CopyRange(NamedTuple):
    """A range of the existing file."""

    start: int
    size: int


class ExistingFile:
    """The previous version of a large file, which the new one copies ranges from.

    Going one step back in a large file changes a few of its objects. If its stamp is as it was scanned, the
    others are in it, at the offsets that its ``cuts`` tell; the kernel copies them without their passing
    through this process. The stamp is compared again after the last copy. **Invariant:** if the file changes
    in between, `FileChanged` is raised before the new file gets its name.
    """

    def __init__(self, file: int, cached: CachedFile) -> None:
        self._file = file
        self._stamp = cached.stamp
        starts = accumulate(cached.cuts, initial=0)
        self.ranges: Mapping[str, CopyRange] = {
            name: CopyRange(start, size)
            for name, start, size in zip(cached.content, starts, cached.cuts, strict=False)
        }

    def copy(self, some: CopyRange, into: int) -> None:
        """Append a range to another file."""
        start, left = some
        while left:
            copied = _copy(self._file, into, left, start)
            if not copied:
                raise FileChanged
            start, left = start + copied, left - copied

    def check(self) -> None:
        """Raise `FileChanged` unless the file is as it was scanned."""
        if file_stamp(os.fstat(self._file)) != self._stamp:
            raise FileChanged

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def open_existing(name: str, folder: int, cached: CachedFile | None) -> ExistingFile | None:
    """Open a file to copy ranges from, if that is possible.

    From a sparse one it is not: it would lose its holes.
    """
    if cached is None or len(cached.cuts) != len(cached.content) or not cached.cuts:
        return None
    try:
        file = os.open(name, FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    stat = os.fstat(file)
    if file_stamp(stat) != cached.stamp or stat.st_blocks * _ST_BLOCK < stat.st_size:
        os.close(file)
        return None
    return ExistingFile(file, cached)


def merge_ranges(pieces: Iterator[bytes | CopyRange]) -> Iterator[bytes | CopyRange]:
    """Merge ranges that adjoin."""
    last: CopyRange | None = None
    for piece in pieces:
        if isinstance(piece, CopyRange) and last is not None and last.start + last.size == piece.start:
            last = CopyRange(last.start, last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece if isinstance(piece, CopyRange) else None
        if last is None:
            yield piece
    if last is not None:
        yield last


def _copy(source: int, into: int, size: int, start: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, into, size, start)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
    return os.write(into, os.pread(source, min(size, _COPY_BYTES), start))


def _replace_by_exchange(temporary: str, name: str, folder: int) -> bool:
    """Exchange a new file with the old one and remove the old one; return whether the system can do that.

    A rename over a file is just as atomic, but ext4 then writes the new file out at once, which makes
    restoring a thousand files slow. ``renameat2`` with RENAME_EXCHANGE (Linux; called through ctypes) does
    not. If ``name`` is no longer a file, it is put back and the error is raised.
    """
    if not _exchange(temporary, name, folder):
        return False
    try:
        os.unlink(temporary, dir_fd=folder)
    except OSError:
        _exchange(temporary, name, folder)
        raise
    return True


def _exchange(one: str, other: str, folder: int) -> bool:
    if _renameat2 is None:
        return False
    return _renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE) == 0


def write_all(file: int, data: bytes | memoryview) -> None:
    """Write all bytes at the current offset."""
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, memoryview(data)[written:])


def write_sparse(file: int, piece: bytes) -> None:
    """Write at the current offset, skipping whole blocks of zeros.

    A file that ends with them must be truncated.
    """
    if _ZEROS not in piece:
        write_all(file, piece)
        return
    if piece.startswith(_ZEROS) and piece == bytes(len(piece)):
        os.lseek(file, len(piece), os.SEEK_CUR)
        return
    view = memoryview(piece)
    offset = os.lseek(file, 0, os.SEEK_CUR)
    written = 0
    for start, stop in _holes(piece, offset):
        if start > written:
            write_all(file, view[written:start])
        os.lseek(file, offset + stop, os.SEEK_SET)
        written = stop
    if written < len(piece):
        write_all(file, view[written:])


def _holes(piece: bytes, offset: int) -> list[tuple[int, int]]:
    """Return the runs of zeros in a piece at a file offset, aligned to blocks.

    A run at either end of the piece need not be aligned there, as it may continue in the neighbouring piece.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while (start := piece.find(_ZEROS, at)) >= 0:
        at = start + -(offset + start) % _HOLE_BLOCK
        start = start and at
        while piece.startswith(_ZEROS, at):
            at += _HOLE_BLOCK
        if len(piece) - at < _HOLE_BLOCK and not any(piece[at:]):
            at = len(piece)
        if start < at:
            found.append((start, at))
    return found


def temporary_names() -> Iterator[str]:
    """Return unique names for unfinished files and folders. Threads may share the iterator."""
    prefix = f"{TEMPORARY}{new_id()}"
    return map(f"{prefix}-{{}}".format, iter(range(1 << 62)))


@contextlib.contextmanager
def errors_for(path: str) -> Generator[None]:
    """Translate errors of the operating system, naming an entry."""
    with translate_os_errors(f"entry {path!r}", writing=True):
        yield


def _umask() -> int:
    """Return the umask of this process.

    `os.umask` has to set it to read it, which races with other threads.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o777  # unknown: every file gets its mode explicitly
