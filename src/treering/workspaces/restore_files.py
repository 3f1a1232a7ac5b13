"""Filling files: contents are fetched, checked and written, a portion of files at a time.

A portion is a run of small files that is worth one read and fits into memory, whichever folders they lie in.
Small files cost many short calls, and between two threads that make such calls Python's lock goes back and
forth for more than the calls themselves cost; so one thread, the caller's, writes them all. A large file is
few long calls: a second thread writes those meanwhile, piece by piece, and takes over what is in its place
already (`patching`). **Invariant:** under its own name a
file is always whole: it is written beside its place under a name of its own and renamed when it is complete
and has its mode, or into a folder that has no name yet. Runs of zeros in large files become holes again.
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
from treering.files import translated
from treering.workspaces.ignore import TEMPORARY
from treering.workspaces.scan import FILE_FLAGS, KnownFile, Stamp, stamp_of, untrusted

# -----------------------------------------------------------------------------------------------------------
# Patching: what of a large file is in its place already is copied from there instead of being fetched.
#
# One step back in a large file changes a few of its objects. If the file is still the one that was looked
# at (its stamp says so, as for every file that a restore leaves alone), the others lie in it where its
# ``cuts`` say; the kernel copies them into the new file without their passing through here. After the last
# of them the stamp is compared again. **Invariant:** a file that changed meanwhile is not patched: `Moved`
# is raised before the new one gets its name.


_BLOCK: Final = 512
_PIECE: Final = 1 << 20
_NOT_OFFERED: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.EPERM})


class Moved(Exception):
    """The file is not as it was known."""


class Range(NamedTuple):
    """Some bytes of the file that is there."""

    start: int
    size: int


class Present:
    """A large file that is there, open and as it was known."""

    def __init__(self, file: int, known: KnownFile) -> None:
        self._file = file
        self._stamp = known.stamp
        starts = accumulate(known.cuts, initial=0)
        self.ranges: Mapping[str, Range] = {
            name: Range(start, size)
            for name, start, size in zip(known.content, starts, known.cuts, strict=False)
        }

    def copy(self, some: Range, into: int) -> None:
        """Append these bytes to another file."""
        start, left = some
        while left:
            copied = _copied(self._file, into, left, start)
            if not copied:
                raise Moved
            start, left = start + copied, left - copied

    def check(self) -> None:
        """`Moved` unless the file is still as it was known."""
        if stamp_of(os.fstat(self._file)) != self._stamp:
            raise Moved

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def opened_present(name: str, folder: int, known: KnownFile | None) -> Present | None:
    """The file of this name, if it can be patched: one with holes would lose them."""
    if known is None or len(known.cuts) != len(known.content) or not known.cuts:
        return None
    try:
        file = os.open(name, FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    stat = os.fstat(file)
    if stamp_of(stat) != known.stamp or stat.st_blocks * _BLOCK < stat.st_size:
        os.close(file)
        return None
    return Present(file, known)


def joined(pieces: Iterator[bytes | Range]) -> Iterator[bytes | Range]:
    """The same, with neighbouring ranges as one."""
    last: Range | None = None
    for piece in pieces:
        if isinstance(piece, Range) and last is not None and last.start + last.size == piece.start:
            last = Range(last.start, last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece if isinstance(piece, Range) else None
        if last is None:
            yield piece
    if last is not None:
        yield last


def _copied(source: int, into: int, size: int, start: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, into, size, start)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
    return os.write(into, os.pread(source, min(size, _PIECE), start))


# -----------------------------------------------------------------------------------------------------------
# Replacing a file by another one: they change places in one step, then the old one is removed.
#
# A plain rename over a file is as atomic, but ext4 then begins to write the new file out at once, which makes
# bringing back a thousand files slow. ``renameat2`` with RENAME_EXCHANGE (Linux; called through ctypes) does
# not.


_EXCHANGE: Final = 2
_library: Final = ctypes.CDLL(None, use_errno=True)
_renameat2: Final[Any] = getattr(_library, "renameat2", None)


def swap(draft: str, name: str, folder: int) -> bool:
    """Put a draft in the place of a file and remove what was there; whether that could be done so.

    If it could not, both are as they were. Something that is no file any more is put back.
    """
    if not _exchange(draft, name, folder):
        return False
    try:
        os.unlink(draft, dir_fd=folder)
    except OSError:
        _exchange(draft, name, folder)
        raise
    return True


def _exchange(one: str, other: str, folder: int) -> bool:
    if _renameat2 is None:
        return False
    return _renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE) == 0


# -----------------------------------------------------------------------------------------------------------
# Writing with holes: blocks of zeros are passed over, and take no space on the disk.


_HOLES_BLOCK: Final = 4096
_ZEROS: Final = bytes(_HOLES_BLOCK)


def write_all(file: int, data: bytes | memoryview) -> None:
    """Write where the file is at."""
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, memoryview(data)[written:])


def write_with_holes(file: int, piece: bytes) -> None:
    """The same, but whole blocks of zeros only move the place; a file that ends so has to be stretched."""
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
    """Where a piece that lies at an offset is nothing but zeros, from block to block.

    At the ends of a piece a hole may go on in its neighbour, so there it need not begin or end with a block.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while (start := piece.find(_ZEROS, at)) >= 0:
        at = start + -(offset + start) % _HOLES_BLOCK
        start = start and at
        while piece.startswith(_ZEROS, at):
            at += _HOLES_BLOCK
        if len(piece) - at < _HOLES_BLOCK and not any(piece[at:]):
            at = len(piece)
        if start < at:
            found.append((start, at))
    return found


# -----------------------------------------------------------------------------------------------------------
# Batches: the objects of many files in order, in runs that are worth one read and fit into memory.


BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_OBJECTS: Final = 500


def batches(files: Iterable[FileEntry]) -> Iterator[list[str]]:
    """The objects of files in order, in runs that are worth one read and fit into memory."""
    names: list[str] = []
    size = 0.0
    for entry in files:
        for name in entry.content:
            if not names or name != names[-1]:  # as the pieces of a hole are: read once
                size += entry.size / len(entry.content)
            names.append(name)
            if size >= BATCH_BYTES or len(names) >= BATCH_OBJECTS:
                yield names
                names, size = [], 0.0
    if names:
        yield names


# -----------------------------------------------------------------------------------------------------------

_READY: Final = 4
"""So many portions of small files, and pieces of large ones, are announced before the first is written:
whoever fetches can do so meanwhile."""

_WAITING: Final = 16
"""So many large files wait for their thread at most; whoever adds more waits as well."""

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_WRITTEN: Final = failpoints.declare(
    "restore.file_written", "a restored file is complete under a temporary name"
)
_PLACED: Final = failpoints.declare("restore.file_placed", "a restored file has its name, others do not yet")


class Source(Protocol):
    """Where contents come from. Two threads ask."""

    def contents(self, names: Sequence[str]) -> Mapping[str, Content]:
        """Contents by name, verified."""
        ...

    def expect(self, names: Sequence[str]) -> None:
        """Hear what will be asked for soon."""
        ...


class Site(Protocol):
    """A folder that is being filled."""

    path: str
    folder: int
    """Its descriptor, open until all portions with a file of it are done."""
    is_nameless: bool
    """Whether it is new and gets its name when all its files are in it."""
    known: dict[str, KnownFile]
    """The files that it had."""
    stamps: dict[str, Stamp]
    """Of the files that were written, by name."""
    cuts: dict[str, tuple[int, ...]]
    """Sizes of the objects of the large ones of them."""


class _Stopped(Exception):
    """Nobody waits for this file any more."""


class Portion:
    """Some files that are written together, or one that is large."""

    __slots__ = ("files", "future", "size")

    def __init__(self) -> None:
        self.files: list[tuple[Site, FileEntry]] = []
        self.size = 0
        self.future: Future[None] | None = None

    @property
    def is_at_hand(self) -> bool:
        """Whether settling it does not wait for the other thread."""
        return self.future is None or self.future.done()


class Filler:
    """Writes the files of one restore."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._large = ThreadPoolExecutor(1, "treering-large")
        self._waiting: deque[Future[None]] = deque()
        self._coming: deque[list[str]] = deque()
        self._ready: deque[Portion] = deque()
        self._open = Portion()
        self._is_stopped = False
        self._umask = _umask()
        self._temporary = temporary_names()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._large.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Give up the large file that is being written, if there is one."""
        self._is_stopped = True

    def add(self, site: Site, entry: FileEntry) -> Portion:
        """Have a file written; `settle` with what this gives back sees to it that it is."""
        if len(entry.content) > 1:
            return self._later(site, entry)
        portion = self._open
        portion.files.append((site, entry))
        portion.size += entry.size
        if portion.size >= BATCH_BYTES or len(portion.files) >= BATCH_OBJECTS:
            self._complete()
        while len(self._ready) > _READY:
            self._write(self._ready.popleft())
        return portion

    def settle(self, portion: Portion) -> None:
        """See to it that all files of a portion are written; raises what went wrong."""
        if portion.future is not None:
            portion.future.result()
        if portion is self._open:
            self._complete()
        while portion in self._ready:
            self._write(self._ready.popleft())

    def wait(self) -> None:
        """Wait until one more large file is written, or has failed to be."""
        wait([self._waiting.popleft()])

    def _complete(self) -> None:
        portion, self._open = self._open, Portion()
        self._ready.append(portion)
        self._source.expect(_names(portion))

    def _later(self, site: Site, entry: FileEntry) -> Portion:
        portion = Portion()
        known = site.known.get(entry.name)
        there = frozenset(known.content) if known is not None and known.cuts else frozenset[str]()
        self._coming += ([name for name in names if name not in there] for names in batches([entry]))
        portion.future = self._large.submit(self._large_file, site, entry)
        self._waiting.append(portion.future)
        if len(self._waiting) > _WAITING:
            self.wait()
        return portion

    def _write(self, portion: Portion) -> None:
        names = _names(portion)
        found = self._source.contents(names) if names else dict[str, Content]()
        for site, entry in portion.files:
            self._file(site, entry, [found[name].data for name in entry.content])
        portion.files.clear()

    def _large_file(self, site: Site, entry: FileEntry) -> None:
        cuts: list[int] = []
        present = opened_present(entry.name, site.folder, site.known.get(entry.name))
        try:
            self._file(site, entry, joined(self._pieces(entry, present, cuts)), present)
        except Moved:
            self._file(site, entry, self._pieces(entry, None, cuts))
        finally:
            if present is not None:
                present.close()
        site.cuts[entry.name] = tuple(cuts)

    def _pieces(self, entry: FileEntry, present: Present | None, cuts: list[int]) -> Iterator[bytes | Range]:
        there: Mapping[str, Range] = {} if present is None else present.ranges
        cuts.clear()
        for names in batches([entry]):
            if self._is_stopped:
                raise _Stopped
            if self._coming:
                self._coming.popleft()
            for ahead in tuple(self._coming)[:_READY]:
                self._source.expect(ahead)
            wanted = [name for name in names if name not in there]
            found = self._source.contents(wanted) if wanted else dict[str, Content]()
            for name in names:
                piece = there.get(name) or found[name].data
                cuts.append(piece.size if isinstance(piece, Range) else len(piece))
                yield piece

    def _file(
        self, site: Site, entry: FileEntry, pieces: Iterable[bytes | Range], present: Present | None = None
    ) -> None:
        write = self._write_in_place if site.is_nameless else self._write_beside
        try:
            site.stamps[entry.name] = write(site, entry, pieces, present)
        except OSError as error:  # not a context manager around each: there are many
            with where(site.path + entry.name):
                raise error from None

    def _write_in_place(
        self, site: Site, entry: FileEntry, pieces: Iterable[bytes | Range], present: Present | None
    ) -> Stamp:
        """A file of a folder that has no name yet needs no temporary one itself."""
        file = os.open(entry.name, _NEW_FILE, entry.mode | 0o200, dir_fd=site.folder)
        try:
            self._fill(file, pieces, entry, site.path, present)
            stamp = stamp_of(os.fstat(file))
        finally:
            os.close(file)
        failpoints.hit(_WRITTEN)
        return stamp

    def _write_beside(
        self, site: Site, entry: FileEntry, pieces: Iterable[bytes | Range], present: Present | None
    ) -> Stamp:
        folder, temporary = site.folder, next(self._temporary)
        file = os.open(temporary, _NEW_FILE, entry.mode | 0o200, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # while its writer lives, nobody takes it for litter
            self._fill(file, pieces, entry, site.path, present)
            written = os.fstat(file)
            failpoints.hit(_WRITTEN)
            if not (entry.name in site.known and swap(temporary, entry.name, folder)):
                os.rename(temporary, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        finally:
            os.close(file)
        failpoints.hit(_PLACED)
        # Renaming moves ctime; everything else is as it was when the file was closed, or someone was faster.
        stamp = stamp_of(os.stat(entry.name, dir_fd=folder, follow_symlinks=False))
        return stamp if stamp[:3] == stamp_of(written)[:3] else untrusted(stamp[4])

    def _fill(
        self,
        file: int,
        pieces: Iterable[bytes | Range],
        entry: FileEntry,
        above: str,
        present: Present | None,
    ) -> None:
        size = 0
        for piece in pieces:
            size += piece.size if isinstance(piece, Range) else len(piece)
            if size > entry.size:
                break
            if isinstance(piece, Range):
                if present is not None:
                    present.copy(piece, file)
            elif entry.size > WHOLE_BYTES:
                write_with_holes(file, piece)
            else:
                write_all(file, piece)
        if size != entry.size:
            raise Corrupt(
                f"file {above + entry.name!r} has not the {entry.size} bytes that the snapshot says; "
                "it was not written"
            )
        if present is not None:
            present.check()
        if entry.size > WHOLE_BYTES:  # it may end with a hole
            os.ftruncate(file, size)
        if (entry.mode | 0o200) & ~self._umask != entry.mode:
            os.fchmod(file, entry.mode)


def _names(portion: Portion) -> list[str]:
    return [name for _, entry in portion.files for name in entry.content]


def temporary_names() -> Iterator[str]:
    """Names for what is not finished, no two alike; threads may share them."""
    made = f"{TEMPORARY}{new_id()}"
    return map(f"{made}-{{}}".format, iter(range(1 << 62)))


@contextlib.contextmanager
def where(path: str) -> Generator[None]:
    """Refusals of the operating system, told of an entry."""
    with translated(f"entry {path!r}", writing=True):
        yield


def _umask() -> int:
    """This process's umask. Asking for it by setting it would race with other threads."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o777  # unknown: every file gets its mode explicitly
