"""Looking at a folder: which files are as they were, and the bytes of those that are not.

The walk goes by descriptors, one name at a time, and never follows a link: of a folder that is swapped for
a link to somewhere else while it is walked, nothing is read. Files whose stamp is known are not opened. The
others are read in the order of their paths and handed out as contents for `stage`, so that memory stays
bounded; what their objects are called is known afterwards (`Scan.finish`), and with it the trees. Files that
changed only just now are read last: by then the clock has moved on, and their stamps can be trusted. A file
that changes while it is read is read again, and if it will not hold still, kept as it was read and named in
``changed``. **Invariant:** equal folders give equal trees, in whatever order the file system lists them.
"""

from __future__ import annotations

import errno
import os
import stat as stats
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from time import monotonic, time_ns
from typing import Final

import msgspec

from treering.core.chunking import WHOLE_BYTES, stream_chunks
from treering.core.content import Content
from treering.errors import InvalidInput, TimedOut
from treering.files import translated
from treering.views.workspaces.known import (
    KnownFolder,
    is_young,
    stamp_of,
    trusted,
    untrusted,
)
from treering.views.workspaces.progress import FileProgress
from treering.views.workspaces.reading import Reader, read_whole
from treering.views.workspaces.rules import TEMPORARY, Rules
from treering.views.workspaces.seen import Fresh, Seen, settled

MAX_DEPTH: Final = 256
READ_TRIES: Final = 3

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe that was swapped in would wait for its other end.
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_BLOCK: Final = 512  # what st_blocks counts in
_SWAPPED: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a snapshot or a restore may touch; past it, nothing is written and the error says what."""

    entries: int = 5_000_000
    bytes: int = 1 << 42
    depth: int = MAX_DEPTH


class LeftOut(msgspec.Struct, frozen=True):
    """Something that is in the folder and not in the snapshot, though no ordinary pattern says so."""

    path: str
    reason: str
    """``credential``, ``socket``, ``pipe``, ``device`` or ``unreadable``."""


class Scan:
    """One look at one folder. First run `contents` to its end, then call `finish` with the names."""

    def __init__(
        self,
        rules: Rules,
        *,
        known: KnownFolder | None = None,
        avoid: frozenset[tuple[int, int]] = frozenset(),
        limits: Limits | None = None,
        deadline: float | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        self._rules = rules
        self._known = known
        self._avoid = avoid
        self._limits = limits or Limits()
        self._deadline = deadline
        self._on_progress = on_progress
        self._root: Seen | KnownFolder | None = None
        self._young: list[tuple[Seen, str, str, os.stat_result]] = []
        self._at = ""
        self._given = 0
        self._repeated: list[int] = []
        self._entries = 0
        self._read_bytes = 0
        self.read_files = 0
        self.left_out: list[LeftOut] = []
        self.changed: list[str] = []
        self.litter: list[str] = []
        """What a restore that died left half-written."""

    def contents(self, folder: int) -> Iterator[Content]:
        """The contents of all files that are not known, below an open folder."""
        try:
            self._root = yield from self._walk(folder, "", self._known, 0, 0)
            yield from self._read_young(folder)
        except OSError as error:
            with translated(f"{self._at or '.'!r} in the workspace", writing=False):
                raise error from None

    def finish(self, names: Sequence[str]) -> tuple[KnownFolder, list[Content]]:
        """The folder as it was seen, and the trees that are new, those below before those above.

        ``names`` are those of the contents, in the order in which they were given.
        """
        assert self._root is not None  # noqa: S101 - contents() ran before
        return settled(self._root, _spread(names, self._repeated), self._rules)

    # Walking
    def _walk(  # noqa: C901 - one loop over one folder, as flat as it can be: every file passes here
        self, folder: int, path: str, known: KnownFolder | None, mode: int, depth: int
    ) -> Generator[Content, None, Seen | KnownFolder]:
        if depth > self._limits.depth:
            raise InvalidInput(
                f"folder {path[:80]!r}... is deeper than {self._limits.depth}; exclude it or move it up"
            )
        self._check_time()
        known_files = {} if known is None else known.files
        known_links = {} if known is None else known.links
        known_folders = {} if known is None else known.folders
        seen = Seen(mode)
        fresh: list[tuple[str, os.stat_result]] = []
        below: list[tuple[str, int]] = []
        files = seen.files
        with os.scandir(folder) as listed:
            for entry in listed:
                name = entry.name
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:  # names can be read in this folder, and nothing else
                    self._leave_out(path + name, "unreadable")
                    continue
                st_mode = stat.st_mode
                kind = st_mode & 0o170000
                if kind == stats.S_IFREG:
                    row = known_files.get(name)
                    if row is not None:
                        if row.stamp == (
                            stat.st_ino,
                            stat.st_size,
                            stat.st_mtime_ns,
                            stat.st_ctime_ns,
                            st_mode,
                        ):
                            files[name] = row
                        else:
                            fresh.append((name, stat))
                    elif self._is_wanted(path + name, is_folder=False):
                        fresh.append((name, stat))
                elif kind == stats.S_IFDIR:
                    if (stat.st_dev, stat.st_ino) not in self._avoid and (
                        name in known_folders or self._is_wanted(path + name, is_folder=True)
                    ):
                        below.append((name, st_mode & 0o777))
                elif kind == stats.S_IFLNK:
                    if name in known_links or self._is_wanted(path + name, is_folder=False):
                        self._link(folder, name, path, seen)
                else:
                    self._leave_out(path + name, _KINDS.get(kind, "device"))
        self._count(len(files) + len(fresh) + len(below) + len(seen.links), path)
        yield from self._fresh(folder, path, seen, fresh)
        is_same = (
            known is not None
            and bool(known.tree)
            and not fresh
            and len(files) == len(known_files)
            and seen.links == known_links
            and len(below) == len(known_folders)
        )
        for name, folder_mode in sorted(below, key=_by_name):
            was = known_folders.get(name)
            got = yield from self._below(folder, name, path, was, folder_mode, depth)
            if got is None:
                is_same = False
                continue
            seen.folders[name] = got
            is_same = is_same and got is was
        if is_same and known is not None and known.mode == mode:
            return known
        return seen

    def _below(
        self, folder: int, name: str, path: str, known: KnownFolder | None, mode: int, depth: int
    ) -> Generator[Content, None, Seen | KnownFolder | None]:
        self._at = path + name
        try:
            inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        except NotADirectoryError:  # it became something else just now
            self.changed.append(path + name)
            return None
        except PermissionError:
            self.left_out.append(LeftOut(path + name, "unreadable"))
            return None
        try:
            return (yield from self._walk(inner, f"{path}{name}/", known, mode, depth + 1))
        finally:
            os.close(inner)

    def _link(self, folder: int, name: str, path: str, seen: Seen) -> None:
        try:
            seen.links[name] = os.readlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.changed.append(path + name)  # it became something else just now

    def _fresh(
        self, folder: int, path: str, seen: Seen, fresh: list[tuple[str, os.stat_result]]
    ) -> Iterator[Content]:
        """The files of one folder that are not known, but for those that are put off."""
        for name, stat in sorted(fresh, key=_by_name):
            if is_young(stat.st_ctime_ns, now_ns=time_ns()):
                self._young.append((seen, path, name, stat))
            elif (read := (yield from self._file(folder, name, path + name, stat))) is not None:
                seen.files[name] = read

    def _read_young(self, root: int) -> Iterator[Content]:
        """The files that were put off; a folder that went meanwhile took its files along."""
        for seen, path, name, stat in self._young:
            try:
                folder = _opened_below(root, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _SWAPPED:
                    raise
                self.changed.append(path + name)
                continue
            try:
                read = yield from self._file(folder, name, path + name, stat)
            finally:
                os.close(folder)
            if read is not None:
                seen.files[name] = read

    def _is_wanted(self, path: str, *, is_folder: bool) -> bool:
        reason = self._rules.reason(path, is_folder=is_folder)
        if reason == "credential":
            self.left_out.append(LeftOut(path, reason))
        elif reason == "reserved" and TEMPORARY in path:
            self.litter.append(path)
        return reason is None

    def _leave_out(self, path: str, reason: str) -> None:
        if self._rules.reason(path, is_folder=False) is None:
            self.left_out.append(LeftOut(path, reason))

    def _count(self, entries: int, path: str) -> None:
        self._entries += entries
        if self._entries > self._limits.entries:
            raise InvalidInput(
                f"the workspace has more than {self._limits.entries:,} entries (seen up to {path!r}); "
                "exclude some with .treeringignore, or raise limits="
            )

    def _check_time(self) -> None:
        if self._deadline is not None and monotonic() > self._deadline:
            raise TimedOut(
                f"the workspace was not read in time ({self.read_files:,} files so far); "
                "nothing was kept, what was read counts for the next try"
            )

    # Reading
    def _file(
        self, folder: int, name: str, path: str, stat: os.stat_result
    ) -> Generator[Content, None, Fresh | None]:
        self._at = path
        start = size = 0
        cuts: list[int] = []
        for attempt in range(1, READ_TRIES + 1):
            try:
                file = os.open(name, FILE_FLAGS, dir_fd=folder)
            except FileNotFoundError:
                return None
            except PermissionError:
                self.left_out.append(LeftOut(path, "unreadable"))
                return None
            except OSError as error:
                if error.errno not in _SWAPPED:
                    raise
                self.changed.append(path)
                return None
            try:
                stat = os.fstat(file)
                if not stats.S_ISREG(stat.st_mode):
                    self.changed.append(path)
                    return None
                read_at_ns = time_ns()
                start = self._given
                if stat.st_size <= WHOLE_BYTES:
                    data = read_whole(file, stat.st_size)
                    size = len(data)
                    is_still = size == stat.st_size and _is_same(stat, os.fstat(file))
                    if data and (is_still or attempt == READ_TRIES):
                        yield from self._pieces((data,), path)
                else:
                    cuts.clear()
                    reader = Reader(file, stat.st_size)
                    holes = reader if stat.st_blocks * _BLOCK < stat.st_size else None
                    yield from self._pieces(_noted(stream_chunks(reader.read, holes), cuts), path)
                    size = os.lseek(file, 0, os.SEEK_CUR)
                    is_still = size == stat.st_size and _is_same(stat, os.fstat(file))
            finally:
                os.close(file)
            if is_still:
                stamp = trusted(stamp_of(stat), read_at_ns=read_at_ns)
                return self._done(Fresh(start, self._given - start, size, stamp, tuple(cuts)))
        self.changed.append(path)
        return self._done(Fresh(start, self._given - start, size, untrusted(stat.st_mode), tuple(cuts)))

    def _pieces(self, pieces: Iterable[bytes], path: str) -> Iterator[Content]:
        last: bytes | None = None
        for piece in pieces:
            self._given += 1
            self._read_bytes += len(piece)
            if self._read_bytes > self._limits.bytes:
                raise InvalidInput(
                    f"the workspace has more than {self._limits.bytes:,} bytes (read up to {path!r}); "
                    "exclude some with .treeringignore, or raise limits="
                )
            self._check_time()
            if piece is last:  # a hole goes on
                self._repeated.append(self._given - 1)
                continue
            last = piece
            yield Content("bytes", piece)

    def _done(self, fresh: Fresh) -> Fresh:
        self.read_files += 1
        if self._on_progress is not None:
            self._on_progress(FileProgress(self.read_files, self._read_bytes))
        return fresh


_KINDS: Final = {
    stats.S_IFSOCK: "socket",
    stats.S_IFIFO: "pipe",
    stats.S_IFCHR: "device",
    stats.S_IFBLK: "device",
}


def _opened_below(root: int, path: str) -> int:
    """A descriptor of a folder, reached one name at a time and by no link."""
    folder = os.dup(root)
    for name in path.split("/")[:-1]:
        try:
            below = os.open(name, FOLDER_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _spread(names: Sequence[str], repeated: Sequence[int]) -> Sequence[str]:
    """Names with those in between, at the ``repeated`` places, that are the same as the one before."""
    if not repeated:
        return names
    spread: list[str] = []
    start = 0
    for done, place in enumerate(repeated):
        spread += names[start : place - done]
        start = place - done
        spread.append(spread[-1])
    return spread + list(names[start:])


def _noted(pieces: Iterable[bytes], cuts: list[int]) -> Iterator[bytes]:
    for piece in pieces:
        cuts.append(len(piece))
        yield piece


def _by_name(each: tuple[str, object]) -> bytes:
    return os.fsencode(each[0])


def _is_same(before: os.stat_result, after: os.stat_result) -> bool:
    return stamp_of(before) == stamp_of(after)
