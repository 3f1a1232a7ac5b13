"""Write the files of a restore: fetch contents, verify them, stage them, and swap them in.

Small files are written in batches: runs of files, from whichever folders, that are worth one read and fit
into memory. They cost many short system calls, and two threads that make short calls lose more to handing the
interpreter lock back and forth than they gain, so the calling thread writes all of them, while a second one
reads, verifies and scans the next batches. A large file is few long calls: a third thread writes those
meanwhile, object by object. What is already in place in the old version of a large file is copied from there
by the kernel instead of being fetched (`ExistingFile`).

**Invariant:** no file is written in its final place. All of them go into folders of the staging area, where
they are complete and have their mode before anything in the target changes (`restore`). Runs of zeros in
large files become holes again.

`StagingArea` swaps them in: a rename each, with a log of what to do to undo it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat as stats
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate, count
from typing import Any, Final, NamedTuple, Protocol, Self

from treering.core import failpoints
from treering.core.chunking import WHOLE_BYTES
from treering.core.content import Content
from treering.core.ids import new_id
from treering.core.tree import FileEntry
from treering.errors import Corrupt
from treering.files import translate_os_errors
from treering.secret_scan import SecretMatch, scan_secrets
from treering.workspaces.ignore import TEMPORARY
from treering.workspaces.scan import (
    FILE_FLAGS,
    FOLDER_FLAGS,
    CachedFile,
    FileStamp,
    file_stamp,
    open_subfolder,
)
from treering.workspaces.snapshot import BATCH_BYTES, BATCH_OBJECTS, batches
from treering.workspaces.virtual_fs import remove_tree

_READ_AHEAD: Final = 4
"""How many batches of small files, and of a large file's objects, are announced before they are needed."""
_MAX_QUEUED: Final = 16
"""How many large files may wait for their thread; the caller waits when there are more."""
_PROGRESS_SECONDS: Final = 0.2  # between two reports while a large file is written
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
    "restore.file_written", "a restored file is complete in the staging area"
)
_PLACED: Final = failpoints.declare("restore.file_placed", "a restored file is in place, others are not yet")


class ContentSource(Protocol):
    """Where contents come from. Three threads use it."""

    def contents(self, names: Sequence[str]) -> Mapping[str, Content]:
        """Return verified contents by name."""
        ...

    def expect(self, names: Sequence[str]) -> None:
        """Take note of what will be read soon."""
        ...


class TargetFolder(Protocol):
    """A folder whose files are written. It is open until all batches with a file of it are finished."""

    path: str
    staged: int
    """The folder in the staging area, which the files are written into."""
    existing: int
    """The folder as it is in the target, if ``cached`` has files."""
    cached: dict[str, CachedFile]
    """Its previous files."""
    stamps: dict[str, FileStamp]
    """Stamps of the written files, by name."""
    cuts: dict[str, tuple[int, ...]]
    """Object sizes of the large ones among them."""
    secrets: dict[str, tuple[SecretMatch, ...]]
    """What looks like a key in the small ones among them."""


class FileBatch:
    """Some small files that are written together, or one large file."""

    __slots__ = ("contents", "files", "future", "size")

    def __init__(self) -> None:
        self.files: list[tuple[TargetFolder, FileEntry]] = []
        self.size = 0
        self.contents: Future[list[_FileContent]] | None = None
        """Of small files: what is in each of them."""
        self.future: Future[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether finishing it does not wait for the other thread."""
        return self.future is None or self.future.done()


class _FileContent(NamedTuple):
    pieces: list[bytes]
    secrets: tuple[SecretMatch, ...]


class _Stopped(Exception):
    """The restore was abandoned while a large file was written."""


class FileWriter:
    """Writes the files of one restore; ``on_progress`` is told how many files and bytes are written."""

    def __init__(
        self, source: ContentSource, *, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._source = source
        self._on_progress = on_progress
        self._small_files = self._small_bytes = 0
        self._large_files = self._large_bytes = 0  # counted by the other thread
        self._large = ThreadPoolExecutor(1, "treering-large")
        self._small = ThreadPoolExecutor(1, "treering-small")
        self._queued: deque[Future[None]] = deque()
        self._upcoming: deque[list[str]] = deque()
        self._full: deque[FileBatch] = deque()
        self._open = FileBatch()
        self._is_stopped = False
        self._umask = _umask()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for each in (self._small, self._large):
            each.shutdown(wait=True, cancel_futures=True)

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
            self._await(batch.future)
            batch.future.result()
        if batch is self._open:
            self._close_batch()
        while batch in self._full:
            self._write_batch(self._full.popleft())

    def wait(self) -> None:
        """Wait until one more large file is done or has failed."""
        self._await(self._queued.popleft())

    def _await(self, written: Future[None]) -> None:
        pause = None if self._on_progress is None else _PROGRESS_SECONDS
        while wait([written], timeout=pause).not_done:
            self._tell()
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._small_files + self._large_files, self._small_bytes + self._large_bytes)

    def _close_batch(self) -> None:
        batch, self._open = self._open, FileBatch()
        self._full.append(batch)
        self._source.expect(_names(batch))
        batch.contents = self._small.submit(self._read_batch, batch.files)

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

    def _read_batch(self, files: Sequence[tuple[TargetFolder, FileEntry]]) -> list[_FileContent]:
        names = [name for _, entry in files for name in entry.content]
        found = self._source.contents(names) if names else dict[str, Content]()
        read: list[_FileContent] = []
        for _, entry in files:
            if self._is_stopped:
                raise _Stopped
            pieces = [found[name].data for name in entry.content] if entry.data is None else [entry.data]
            read.append(_FileContent(pieces, scan_secrets(pieces[0] if len(pieces) == 1 else pieces)))
        return read

    def _write_batch(self, batch: FileBatch) -> None:
        assert batch.contents is not None  # noqa: S101 - it was closed
        for (folder, entry), read in zip(batch.files, batch.contents.result(), strict=True):
            self._write(folder, entry, read.pieces)
            folder.secrets[entry.name] = read.secrets
            self._small_files += 1
            self._small_bytes += entry.size
            self._tell()
        batch.files, batch.contents = [], None

    def _write_large(self, folder: TargetFolder, entry: FileEntry) -> None:
        cuts: list[int] = []
        existing = open_existing(entry.name, folder.existing, folder.cached.get(entry.name))
        try:
            self._write(folder, entry, merge_ranges(self._pieces(entry, existing, cuts)), existing)
        except FileChanged:
            self._write(folder, entry, self._pieces(entry, None, cuts))
        finally:
            if existing is not None:
                existing.close()
        folder.cuts[entry.name] = tuple(cuts)
        self._large_files += 1

    def _pieces(
        self, entry: FileEntry, existing: ExistingFile | None, cuts: list[int]
    ) -> Iterator[bytes | CopyRange]:
        ranges: Mapping[str, CopyRange] = {} if existing is None else existing.ranges
        self._large_bytes -= sum(cuts)  # what was written of a file that changed, and begins again
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
                self._large_bytes += cuts[-1]
                yield piece

    def _write(
        self,
        folder: TargetFolder,
        entry: FileEntry,
        pieces: Iterable[bytes | CopyRange],
        existing: ExistingFile | None = None,
    ) -> None:
        try:
            file = os.open(entry.name, _NEW_FILE, entry.mode | 0o200, dir_fd=folder.staged)
            try:
                self._fill(file, pieces, entry, folder.path, existing)
                folder.stamps[entry.name] = file_stamp(os.fstat(file))
            except BaseException:  # a changed file is written again
                os.unlink(entry.name, dir_fd=folder.staged)
                raise
            finally:
                os.close(file)
            failpoints.hit(_WRITTEN)
        except OSError as error:  # a context manager per file would be too slow
            with errors_for(folder.path + entry.name):
                raise error from None

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


class StagedFolder(NamedTuple):
    """A folder in the staging area."""

    area: int
    name: str

    def open(self) -> int:
        """Open it."""
        return os.open(self.name, FOLDER_FLAGS, dir_fd=self.area)


class StagingArea:
    """Where a restore prepares everything before it changes anything, and keeps what it replaces.

    This is a hidden folder in the target, and one more on each file system that is mounted below it, since a
    rename does not cross mounts. It is locked while its restore lives, so that no other one takes it for
    stale. What is swapped out of the target stays in it until `close`, so that `undo` can swap it back.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._name = f"{TEMPORARY}{new_id()}"
        self._areas: dict[int, tuple[int, int]] = {}  # by mount: the folder that it is in, and itself
        self._names = map(str, count())
        self._log: list[tuple[str, Callable[[int], object]]] = []

    def prepare(self, folder: int) -> int:
        """Return the area for the entries of an open folder; create it in this folder if it has to be new."""
        mount = _mount_of(folder)
        if mount not in self._areas:
            os.mkdir(self._name, 0o700, dir_fd=folder)
            area = os.open(self._name, FOLDER_FLAGS, dir_fd=folder)
            self._areas[mount] = (os.dup(folder), area)
            fcntl.flock(area, fcntl.LOCK_EX)
        return self._areas[mount][1]

    def new_folder(self, beside: int) -> StagedFolder:
        """Create a folder for what goes into an open folder."""
        made = StagedFolder(self.prepare(beside), next(self._names))
        os.mkdir(made.name, 0o700, dir_fd=made.area)
        return made

    def place(
        self, name: str, staged: StagedFolder, source: int, folder: int, path: str, *, exists: bool
    ) -> None:
        """Move a file, link or new folder from a staged folder (open: ``source``) to ``path`` in the target.

        If it ``exists``, the two are exchanged: ``renameat2`` with RENAME_EXCHANGE (Linux; called
        through ctypes). A rename over a file is just as atomic, but loses the old one; and ext4 would write
        the new one out at once, which makes restoring a thousand files slow.
        """
        if not exists:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=folder)
            self.log(path, lambda into: _between(staged, lambda out: _move(name, into, out)))
        elif _exchange(name, source, folder):
            if stats.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
                _exchange(name, source, folder)
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            self.log(path, lambda into: _between(staged, lambda out: _must_exchange(name, out, into)))
        else:
            old = next(self._names)
            try:
                os.link(name, old, src_dir_fd=folder, dst_dir_fd=staged.area, follow_symlinks=False)
            except FileNotFoundError:
                self.log(path, lambda into: os.unlink(name, dir_fd=into))
            except OSError as error:
                self.log(path, _raising(error))
            else:
                self.log(path, lambda into: os.rename(old, name, src_dir_fd=staged.area, dst_dir_fd=into))
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=folder)
        failpoints.hit(_PLACED)

    def take_away(self, name: str, folder: int, path: str) -> None:
        """Move a file or link of the target into the area."""
        area, kept = self.prepare(folder), next(self._names)
        os.rename(name, kept, src_dir_fd=folder, dst_dir_fd=area)
        if stats.S_ISDIR(os.stat(kept, dir_fd=area, follow_symlinks=False).st_mode):
            os.rename(kept, name, src_dir_fd=area, dst_dir_fd=folder)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        self.log(path, lambda into: os.rename(kept, name, src_dir_fd=area, dst_dir_fd=into))

    def log(self, path: str, undo: Callable[[int], object]) -> None:
        """Note how to undo a change to the folder at ``path`` of the target; called with its descriptor."""
        self._log.append((path, undo))

    def undo(self) -> list[str]:
        """Undo all changes, the last one first; return the folders in which that failed."""
        failed: list[str] = []
        for path, undo in reversed(self._log):
            try:
                folder = open_subfolder(self._target, path)
                try:
                    undo(folder)
                finally:
                    os.close(folder)
            except OSError:
                failed.append(path)
        return failed

    def close(self) -> None:
        """Remove the area, with what was replaced."""
        for above, area in self._areas.values():
            with contextlib.suppress(OSError):
                remove_tree(above, self._name, force=True)
            os.close(area)
            os.close(above)
        self._areas.clear()


def _between(staged: StagedFolder, act: Callable[[int], None]) -> None:
    source = staged.open()
    try:
        act(source)
    finally:
        os.close(source)


def _move(name: str, source: int, folder: int) -> None:
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=folder)


def _exchange(name: str, one: int, other: int) -> bool:
    """Exchange two entries of one name; return whether that was possible."""
    raw = os.fsencode(name)
    return _renameat2 is not None and _renameat2(one, raw, other, raw, _EXCHANGE) == 0


def _must_exchange(name: str, one: int, other: int) -> None:
    if not _exchange(name, one, other):
        raise OSError(ctypes.get_errno(), "cannot be exchanged")


def _raising(error: OSError) -> Callable[[int], None]:
    def undo(_: int) -> None:
        raise error

    return undo


def _mount_of(folder: int) -> int:
    """Return what identifies the mount that a folder is on."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/self/fdinfo/{folder}", "rb") as info:  # noqa: PTH123
        for line in info:
            if line.startswith(b"mnt_id:"):
                return int(line[7:])
    return -os.fstat(folder).st_dev - 1


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
