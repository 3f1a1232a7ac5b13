"""Scan a folder: find the files that changed since the last scan, and read them.

The walk uses descriptors, one name at a time, and never follows a link: if a folder is swapped for a link to
somewhere else during the walk, nothing is read from there. Files whose stamp is in the stat cache are not
opened. The others are read in the order of their paths and yielded as contents for `stage`, so memory stays
bounded; the names of their objects, and with them the trees, are only known afterwards (`Scan.finish`). Files
that changed just now are read last: by then the clock has moved on, and their stamps can be trusted. A file
that changes while it is read is read again; if it keeps changing, it is stored as it was read and listed in
``changed``. **Invariant:** equal folders produce equal trees, whatever order the file system lists them in.

**The stat cache.** Reading every file to find that none changed would take a second each time; a ``stat``
takes a microsecond. So each snapshot leaves a cache behind: the stamp (inode, size, mtime, ctime, mode) and
the objects of each file, and the tree of each folder. A file whose stamp is the same is not read again. A
change in the same clock tick as the read would not show in the stamp, so a file that was read too soon after
its last change is cached without a stamp. The cache can be deleted at any time, and a damaged one counts as
deleted. **Invariant:** every object in a cache can be reached from one of its ``roots``; so while those are
stored (and the commit that builds on them requires them), all of it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stats
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Lock
from time import monotonic, time_ns
from typing import Final

import msgspec

from treering.core.chunking import WHOLE_BYTES, stream_chunks
from treering.core.content import MAX_PAYLOAD, Content, seal_pieces, unseal
from treering.core.ids import new_id
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, TreeEntry, encode_tree
from treering.errors import Corrupt, InvalidInput, TimedOut
from treering.files import make_folder, open_private, translate_os_errors
from treering.secret_scan import FoundSecret, SecretMatch, SecretScanner, scan_secrets
from treering.workspaces.ignore import RESERVED, TEMPORARY, Rules

FileStamp = tuple[int, int, int, int, int]
"""Inode, size, mtime and ctime in nanoseconds, mode."""

MAX_DEPTH: Final = 256

FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe that was swapped in would wait for its other end.
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_READ_TRIES: Final = 3
_TICK_NS: Final = 50_000_000
_COARSE_NS: Final = 2_100_000_000
_SECOND_NS: Final = 1_000_000_000
_BLOCK: Final = 512  # what st_blocks counts in
_SWAPPED: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR})
_RULES_MODE: Final = 0o600
_KINDS: Final = {
    stats.S_IFSOCK: "socket",
    stats.S_IFIFO: "pipe",
    stats.S_IFCHR: "device",
    stats.S_IFBLK: "device",
}


class FileProgress(msgspec.Struct, frozen=True):
    """The number of files, and of bytes in them, that were read or written so far, and that there are."""

    files: int
    bytes: int
    of_files: int | None = None
    of_bytes: int | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for a snapshot or a restore. Beyond them, it raises and writes nothing."""

    entries: int = 5_000_000
    bytes: int = 1 << 42
    depth: int = MAX_DEPTH


class LeftOut(msgspec.Struct, frozen=True):
    """A path of the folder that is not in the snapshot although no pattern excludes it."""

    path: str
    reason: str
    """``credential``, ``socket``, ``pipe``, ``device`` or ``unreadable``."""


class Scan:
    """One scan of one folder. Exhaust `contents` first, then call `finish` with the names."""

    def __init__(
        self,
        rules: Rules,
        *,
        cached: CachedFolder | None = None,
        avoid: frozenset[tuple[int, int]] = frozenset(),
        limits: Limits | None = None,
        deadline: float | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        self._rules = rules
        self._entries_by_folder = cached
        self._avoid = avoid
        self._limits = limits or Limits()
        self._deadline = deadline
        self._on_progress = on_progress
        self._root: WalkedFolder | CachedFolder | None = None
        self._recent: list[tuple[WalkedFolder, str, str, os.stat_result]] = []
        self._current = ""
        self._yielded = 0
        self._repeated: list[int] = []
        self._entries = 0
        self._read_bytes = 0
        self._of_files = 0
        self._of_bytes = 0
        self.read_files = 0
        self.left_out: list[LeftOut] = []
        self.changed: list[str] = []
        self.stale_temporaries: list[str] = []
        """Temporary files and folders of restores, which may have died."""

    def contents(self, folder: int) -> Iterator[Content]:
        """Read the files below an open folder that the cache does not know; yield their contents."""
        try:
            if self._on_progress is not None:
                self._measure(folder, "", self._entries_by_folder)
            self._root = yield from self._walk(folder, "", self._entries_by_folder, 0, 0)
            yield from self._read_recent(folder)
        except OSError as error:
            with translate_os_errors(f"{self._current or '.'!r} in the workspace", writing=False):
                raise error from None

    def finish(self, names: Sequence[str]) -> tuple[CachedFolder, list[Content]]:
        """Return the folder as it was scanned, and its new trees, children before parents.

        ``names`` are the object names of the yielded contents, in order.
        """
        assert self._root is not None  # noqa: S101 - contents() ran before
        return build_trees(self._root, _expand_repeats(names, self._repeated), self._rules)

    # Walking
    def _walk(  # noqa: C901, PLR0915 - the hot loop: runs for every file
        self, folder: int, path: str, cached: CachedFolder | None, mode: int, depth: int
    ) -> Generator[Content, None, WalkedFolder | CachedFolder]:
        if depth > self._limits.depth:
            raise InvalidInput(
                f"folder {path[:80]!r}... is nested deeper than {self._limits.depth} folders; exclude it"
            )
        self._check_time()
        cached_files = {} if cached is None else cached.files
        cached_links = {} if cached is None else cached.links
        cached_folders = {} if cached is None else cached.folders
        walked = WalkedFolder(mode)
        to_read: list[tuple[str, os.stat_result]] = []
        has_unscanned = False
        subfolders: list[tuple[str, int]] = []
        files = walked.files
        with os.scandir(folder) as listed:
            for entry in listed:
                name = entry.name
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:  # the folder is readable but not searchable
                    self._leave_out(path + name, "unreadable")
                    continue
                st_mode = stat.st_mode
                kind = st_mode & 0o170000
                if kind == stats.S_IFREG:
                    row = cached_files.get(name)
                    if row is not None:
                        if row.stamp == (
                            stat.st_ino,
                            stat.st_size,
                            stat.st_mtime_ns,
                            stat.st_ctime_ns,
                            st_mode,
                        ):
                            if row.secrets is None:
                                row, has_unscanned = self._scanned(folder, name, row), True
                            files[name] = row
                        else:
                            to_read.append((name, stat))
                    elif self._is_wanted(path + name, is_folder=False):
                        to_read.append((name, stat))
                elif kind == stats.S_IFDIR:
                    if (stat.st_dev, stat.st_ino) not in self._avoid and (
                        name in cached_folders or self._is_wanted(path + name, is_folder=True)
                    ):
                        subfolders.append((name, st_mode & 0o777))
                elif kind == stats.S_IFLNK:
                    if name in cached_links or self._is_wanted(path + name, is_folder=False):
                        self._add_link(folder, name, path, walked)
                else:
                    self._leave_out(path + name, _KINDS.get(kind, "device"))
        self._count(len(files) + len(to_read) + len(subfolders) + len(walked.links), path)
        yield from self._read_new(folder, path, walked, to_read)
        is_same = (
            cached is not None
            and bool(cached.tree)
            and not to_read
            and not has_unscanned
            and len(files) == len(cached_files)
            and walked.links == cached_links
            and len(subfolders) == len(cached_folders)
        )
        for name, folder_mode in sorted(subfolders, key=_by_name):
            was = cached_folders.get(name)
            inner = yield from self._walk_into(folder, name, path, was, folder_mode, depth)
            if inner is None:
                is_same = False
                continue
            walked.folders[name] = inner
            is_same = is_same and inner is was
        if is_same and cached is not None and cached.mode == mode:
            return cached
        return walked

    def _measure(self, folder: int, path: str, cached: CachedFolder | None) -> None:
        """Count what there is to read, for progress; what cannot be listed is left to the walk."""
        files = {} if cached is None else cached.files
        subfolders: list[str] = []
        self._check_time()
        with contextlib.suppress(OSError), os.scandir(folder) as listed:
            for entry in listed:
                stat = entry.stat(follow_symlinks=False)
                row = files.get(entry.name)
                if stats.S_ISDIR(stat.st_mode):
                    if (stat.st_dev, stat.st_ino) not in self._avoid:
                        subfolders.append(entry.name)
                elif stats.S_ISREG(stat.st_mode) and (
                    row.stamp != _stamp(stat)
                    if row is not None
                    else self._rules.reason(path + entry.name, is_folder=False) is None
                ):
                    self._of_files += 1
                    self._of_bytes += stat.st_size
        for name in subfolders:
            if self._rules.reason(path + name, is_folder=True) is not None:
                continue
            with contextlib.suppress(OSError):
                inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
                try:
                    self._measure(
                        inner, f"{path}{name}/", None if cached is None else cached.folders.get(name)
                    )
                finally:
                    os.close(inner)

    def _walk_into(
        self, folder: int, name: str, path: str, cached: CachedFolder | None, mode: int, depth: int
    ) -> Generator[Content, None, WalkedFolder | CachedFolder | None]:
        self._current = path + name
        try:
            inner = os.open(name, FOLDER_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        except NotADirectoryError:  # replaced since it was listed
            self.changed.append(path + name)
            return None
        except PermissionError:
            self.left_out.append(LeftOut(path + name, "unreadable"))
            return None
        try:
            return (yield from self._walk(inner, f"{path}{name}/", cached, mode, depth + 1))
        finally:
            os.close(inner)

    def _add_link(self, folder: int, name: str, path: str, walked: WalkedFolder) -> None:
        try:
            walked.links[name] = os.readlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.changed.append(path + name)  # replaced since it was listed

    def _read_new(
        self, folder: int, path: str, walked: WalkedFolder, to_read: list[tuple[str, os.stat_result]]
    ) -> Iterator[Content]:
        """Read the new files of one folder; postpone those that changed just now."""
        for name, stat in sorted(to_read, key=_by_name):
            if is_recent(stat.st_ctime_ns, now_ns=time_ns()):
                self._recent.append((walked, path, name, stat))
            elif (read := (yield from self._file(folder, name, path + name, stat))) is not None:
                walked.files[name] = read

    def _read_recent(self, root: int) -> Iterator[Content]:
        """Read the postponed files; those whose folder is gone are gone as well."""
        for walked, path, name, stat in self._recent:
            try:
                folder = open_subfolder(root, path)
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
                walked.files[name] = read

    def _is_wanted(self, path: str, *, is_folder: bool) -> bool:
        reason = self._rules.reason(path, is_folder=is_folder)
        if reason == "credential":
            self.left_out.append(LeftOut(path, reason))
        elif reason == "reserved" and TEMPORARY in path:
            self.stale_temporaries.append(path)
        return reason is None

    def _leave_out(self, path: str, reason: str) -> None:
        if self._rules.reason(path, is_folder=False) is None:
            self.left_out.append(LeftOut(path, reason))

    def _count(self, entries: int, path: str) -> None:
        self._entries += entries
        if self._entries > self._limits.entries:
            raise InvalidInput(
                f"the workspace has more than {self._limits.entries:,} entries (counted up to {path!r}); "
                "exclude some with .treeringignore, or raise limits="
            )

    def _check_time(self) -> None:
        if self._deadline is not None and monotonic() > self._deadline:
            raise TimedOut(
                f"the workspace was not read in time ({self.read_files:,} files so far); no snapshot was "
                "taken. Files that are already staged are not uploaded again by the next try"
            )

    # Reading
    def _file(
        self, folder: int, name: str, path: str, stat: os.stat_result
    ) -> Generator[Content, None, ReadFile | None]:
        self._current = path
        start = size = 0
        cuts: list[int] = []
        secrets: tuple[SecretMatch, ...] = ()
        for attempt in range(1, _READ_TRIES + 1):
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
                start = self._yielded
                if stat.st_size <= WHOLE_BYTES:
                    data = read_whole(file, stat.st_size)
                    size = len(data)
                    is_still = size == stat.st_size and _is_same(stat, os.fstat(file))
                    if data and (is_still or attempt == _READ_TRIES):
                        secrets = scan_secrets(data)
                        yield from self._emit((data,), path)
                else:
                    cuts.clear()
                    reader = FileReader(file, stat.st_size)
                    holes = reader if stat.st_blocks * _BLOCK < stat.st_size else None
                    scanner = SecretScanner()
                    pieces = _watched(stream_chunks(reader.read, holes), cuts, scanner)
                    yield from self._emit(pieces, path)
                    secrets = scanner.finish()
                    size = os.lseek(file, 0, os.SEEK_CUR)
                    is_still = size == stat.st_size and _is_same(stat, os.fstat(file))
            finally:
                os.close(file)
            if is_still:
                stamp = trusted_stamp(file_stamp(stat), read_at_ns=read_at_ns)
                return self._file_done(
                    ReadFile(start, self._yielded - start, size, stamp, tuple(cuts), secrets)
                )
        self.changed.append(path)
        return self._file_done(
            ReadFile(start, self._yielded - start, size, untrusted_stamp(stat.st_mode), tuple(cuts), secrets)
        )

    def _scanned(self, folder: int, name: str, row: CachedFile) -> CachedFile:
        """Look for secrets in an unchanged file that nobody has looked at; a restore wrote it."""
        scanner = SecretScanner()
        try:
            file = os.open(name, FILE_FLAGS, dir_fd=folder)
        except OSError:
            return row
        try:
            reader = FileReader(file, row.size)
            buffer = memoryview(bytearray(WHOLE_BYTES))
            while count := reader.read(buffer):
                scanner.feed(bytes(buffer[:count]))
                self._check_time()
        finally:
            os.close(file)
        return msgspec.structs.replace(row, secrets=scanner.finish())

    def _emit(self, pieces: Iterable[bytes], path: str) -> Iterator[Content]:
        last: bytes | None = None
        for piece in pieces:
            self._yielded += 1
            self._read_bytes += len(piece)
            if self._read_bytes > self._limits.bytes:
                raise InvalidInput(
                    f"the workspace has more than {self._limits.bytes:,} bytes (read up to {path!r}); "
                    "exclude some with .treeringignore, or raise limits="
                )
            self._check_time()
            if piece is last:  # the same hole continues
                self._repeated.append(self._yielded - 1)
                continue
            last = piece
            yield Content("bytes", piece)

    def _file_done(self, to_read: ReadFile) -> ReadFile:
        self.read_files += 1
        if self._on_progress is not None:
            self._on_progress(FileProgress(self.read_files, self._read_bytes, self._of_files, self._of_bytes))
        return to_read


def _stamp(stat: os.stat_result) -> tuple[int, int, int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_mode


def open_subfolder(root: int, path: str) -> int:
    """Open a folder below another one, name by name, following no link."""
    folder = os.dup(root)
    for name in path.split("/")[:-1]:
        try:
            subfolders = os.open(name, FOLDER_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = subfolders
    return folder


def _expand_repeats(names: Sequence[str], repeated: Sequence[int]) -> Sequence[str]:
    """Insert names at the ``repeated`` positions, each equal to the name before it."""
    if not repeated:
        return names
    spread: list[str] = []
    start = 0
    for done, place in enumerate(repeated):
        spread += names[start : place - done]
        start = place - done
        spread.append(spread[-1])
    return spread + list(names[start:])


def _watched(pieces: Iterable[bytes], cuts: list[int], scanner: SecretScanner) -> Iterator[bytes]:
    """Record the sizes of the pieces, and look for secrets in them; a hole that continues has none."""
    last: bytes | None = None
    for piece in pieces:
        cuts.append(len(piece))
        if piece is not last:
            scanner.feed(piece)
        last = piece
        yield piece


def _by_name(each: tuple[str, object]) -> bytes:
    return os.fsencode(each[0])


def _is_same(before: os.stat_result, after: os.stat_result) -> bool:
    return file_stamp(before) == file_stamp(after)


class ReadFile:
    """A file that was read: its objects are the ``count`` contents from number ``start``."""

    __slots__ = ("count", "cuts", "secrets", "size", "stamp", "start")

    def __init__(
        self,
        start: int,
        count: int,
        size: int,
        stamp: FileStamp,
        cuts: tuple[int, ...],
        secrets: tuple[SecretMatch, ...],
    ) -> None:
        self.start = start
        self.count = count
        self.cuts = cuts
        self.secrets = secrets
        self.size = size
        self.stamp = stamp


class WalkedFolder:
    """A folder that differs from the cache."""

    __slots__ = ("files", "folders", "links", "mode")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.files: dict[str, CachedFile | ReadFile] = {}
        self.links: dict[str, str] = {}
        self.folders: dict[str, WalkedFolder | CachedFolder] = {}


def build_trees(
    root: WalkedFolder | CachedFolder, names: Sequence[str], rules: Rules
) -> tuple[CachedFolder, list[Content]]:
    """Return the folder for the cache, and the new trees, children before parents.

    ``names`` are the object names of the contents in the order they were read. The root stores the rules.
    """
    if isinstance(root, CachedFolder):
        return root, []
    trees: list[Content] = []
    entries: list[TreeEntry] = []
    if (rules_bytes := rules.to_bytes()) is not None:
        trees.append(Content("bytes", rules_bytes))
        content = (trees[0].name,)
        entries.append(FileEntry(name=RESERVED, mode=_RULES_MODE, size=len(rules_bytes), content=content))
    return _build_folder(root, names, trees, entries), trees


def _build_folder(
    walked: WalkedFolder | CachedFolder, names: Sequence[str], trees: list[Content], entries: list[TreeEntry]
) -> CachedFolder:
    if isinstance(walked, CachedFolder):
        return walked
    files: dict[str, CachedFile] = {}
    size = 0
    for name, each in walked.files.items():
        cached = each
        if isinstance(cached, ReadFile):
            content = tuple(names[cached.start : cached.start + cached.count])
            cached = CachedFile(cached.stamp, cached.size, content, cached.cuts, cached.secrets)
        files[name] = cached
        size += cached.size
        mode = cached.stamp[4] & 0o777
        entries.append(FileEntry(name=name, mode=mode, size=cached.size, content=cached.content))
    folders = {name: _build_folder(each, names, trees, []) for name, each in walked.folders.items()}
    entries += [FolderEntry(name=name, mode=each.mode, tree=each.tree) for name, each in folders.items()]
    entries += [LinkEntry(name=name, target=target) for name, target in walked.links.items()]
    tree = encode_tree(Tree(entries=tuple(entries)))
    trees.append(tree)
    return CachedFolder(
        tree=tree.name,
        mode=walked.mode,
        files=files,
        links=walked.links,
        folders=folders,
        count=len(files) + len(walked.links) + sum(each.count for each in folders.values()),
        size=size + sum(each.size for each in folders.values()),
        secrets=count_secrets(files, folders),
    )


def count_secrets(files: dict[str, CachedFile], folders: dict[str, CachedFolder]) -> int:
    """Return the number of secrets in a folder, recursively."""
    inner = sum(each.secrets for each in folders.values())
    return inner + sum(len(each.secrets) for each in files.values() if each.secrets)


def found_secrets(folder: CachedFolder, path: str = "") -> Iterator[FoundSecret]:
    """Yield the secrets in the files of a folder, by path."""
    if not folder.secrets:
        return
    for name in sorted({*folder.files, *folder.folders}):
        if (inner := folder.folders.get(name)) is not None:
            yield from found_secrets(inner, f"{path}{name}/")
        elif secrets := folder.files[name].secrets:
            for each in secrets:
                yield FoundSecret(path=path + name, rule=each.rule, line=each.line, hint=each.hint)


def read_whole(file: int, size: int) -> bytes:
    """Read up to ``size`` bytes; fewer if the file has become shorter."""
    data = os.read(file, size)
    if not data or len(data) == size:
        return data
    pieces = [data]
    left = size - len(data)
    while left and (data := os.read(file, left)):
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)


class FileReader:
    """Reads a file up to the size it had when it was opened, so a file that keeps growing has an end."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, buffer: memoryview) -> int:
        """Read into a buffer; return the number of bytes."""
        count = os.readv(self._file, [buffer[: self._left]])
        self._left -= count
        return count

    def ahead(self) -> int:
        """Return the size of the hole at the current offset; 0 if there is none."""
        at = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            data = os.lseek(self._file, at, os.SEEK_DATA)
        except OSError as error:
            return self._left if error.errno == errno.ENXIO else 0  # ENXIO: a hole up to the end
        os.lseek(self._file, at, os.SEEK_SET)
        return min(data - at, self._left)

    def skip(self, size: int) -> None:
        """Skip part of a hole."""
        os.lseek(self._file, size, os.SEEK_CUR)
        self._left -= size


class CachedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was last read: its stamp, size and objects.

    ``cuts`` are the sizes of the objects, if there are several and their sizes are known. ``secrets`` are
    what looks like keys in it; ``None`` if nobody has looked.
    """

    stamp: FileStamp
    size: int
    content: tuple[str, ...]
    cuts: tuple[int, ...] = ()
    secrets: tuple[SecretMatch, ...] | None = ()


class CachedFolder(msgspec.Struct, array_like=True):
    """A folder as it was last scanned. ``tree`` is empty if no stored tree equals it."""

    tree: str
    mode: int
    files: dict[str, CachedFile]
    links: dict[str, str]
    folders: dict[str, CachedFolder]
    count: int
    """The number of files and links in it, recursively."""
    size: int
    """The size of all files in it, recursively."""
    secrets: int = 0
    """The number of secrets in its files, recursively."""


class CachedWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace as it was last scanned, the rules of the scan, and the stored roots that hold its content.

    ``patterns`` are the user's rules, ``lists`` is the digest of the built-in ones (`LISTS_DIGEST`).
    """

    roots: tuple[str, ...]
    patterns: tuple[str, ...]
    lists: str
    folder: CachedFolder


class StatCache:
    """The cached workspaces, by real path: in this process, and as files in ``folder`` for the next one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._entries_by_folder: dict[str, CachedWorkspace] = {}
        self._unwritten: set[str] = set()
        self._lock = Lock()

    def load(self, folder: str) -> CachedWorkspace | None:
        """Return what is cached of a folder, by its real path."""
        with self._lock:
            if folder in self._entries_by_folder or self._folder is None:
                return self._entries_by_folder.get(folder)
        try:
            cached = _decoder.decode(
                unseal(self._file(folder).read_bytes(), "a stat cache", limit=MAX_PAYLOAD)
            )
        except (OSError, Corrupt, msgspec.MsgspecError, ValueError):
            return None
        with self._lock:
            return self._entries_by_folder.setdefault(folder, cached)

    def remember(self, folder: str, cached: CachedWorkspace) -> None:
        """Cache in this process only; `save` follows soon."""
        with self._lock:
            self._entries_by_folder[folder] = cached
            self._unwritten.add(folder)

    def save(self, folder: str, cached: CachedWorkspace) -> None:
        """Cache in this process and on disk. If the disk cannot be written, in this process only."""
        with self._lock:
            if self._entries_by_folder.get(folder) is cached and folder not in self._unwritten:
                return
            self._entries_by_folder[folder] = cached
            self._unwritten.discard(folder)
        if self._folder is None:
            return
        # No fsync: a torn file fails its checksum, and the folder is read again.
        file = self._file(folder)
        draft = file.with_name(f"{new_id()}.tmp")
        with contextlib.suppress(OSError):
            make_folder(file.parent)
            try:
                with open_private(draft, "wb") as written:
                    written.writelines(seal_pieces(_encode(cached), compress_from=MAX_PAYLOAD))
                draft.rename(file)
            finally:
                draft.unlink(missing_ok=True)

    def drop(self, folder: str) -> None:
        """Remove what is cached of a folder."""
        with self._lock:
            self._entries_by_folder.pop(folder, None)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._file(folder).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all caches. They contain file names, so erasing data includes this."""
        with self._lock:
            self._entries_by_folder.clear()
        if self._folder is not None:
            for file in self._folder.glob("*.known"):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)

    def _file(self, folder: str) -> Path:
        assert self._folder is not None  # noqa: S101 - the callers checked
        return self._folder / f"{sha256(os.fsencode(folder)).hexdigest()[:32]}.known"


def file_stamp(stat: os.stat_result) -> FileStamp:
    """Return the stamp of a file."""
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_mode)


def trusted_stamp(stamp: FileStamp, *, read_at_ns: int) -> FileStamp:
    """Return the stamp if it will reveal the next change, else one that no file has.

    Every change of content moves ctime, which cannot be set by hand. A ctime in whole seconds means that the
    file system has no finer resolution.
    """
    return untrusted_stamp(stamp[4]) if is_recent(stamp[3], now_ns=read_at_ns) else stamp


def is_recent(ctime_ns: int, *, now_ns: int) -> bool:
    """Return whether a change now might not move the ctime."""
    tick_ns = _TICK_NS if ctime_ns % _SECOND_NS else _COARSE_NS
    return ctime_ns + tick_ns >= now_ns


def untrusted_stamp(mode: int) -> FileStamp:
    """Return a stamp that no file has, so that the file is read next time."""
    return (0, 0, 0, 0, mode)


_decoder: Final = msgspec.msgpack.Decoder(CachedWorkspace)


def _encode(cached: CachedWorkspace) -> bytes:
    try:
        return msgspec.msgpack.encode(cached)
    except UnicodeEncodeError:  # some name is not UTF-8: leave these out, they are read again
        return msgspec.msgpack.encode(
            msgspec.structs.replace(cached, folder=_without_odd_names(cached.folder))
        )


def _without_odd_names(folder: CachedFolder) -> CachedFolder:
    return CachedFolder(
        folder.tree,
        folder.mode,
        {name: each for name, each in folder.files.items() if _is_text(name)},
        {name: each for name, each in folder.links.items() if _is_text(name) and _is_text(each)},
        {name: _without_odd_names(each) for name, each in folder.folders.items() if _is_text(name)},
        folder.count,
        folder.size,
        folder.secrets,
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
