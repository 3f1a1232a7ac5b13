"""Scan a folder: find the files that changed since the last scan, and read them.

The walk uses descriptors, one name at a time, and never follows a link: if a folder is swapped for a link to
somewhere else during the walk, nothing is read from there. Files whose stamp is in the stat cache are not
opened. The others are read in the order of their paths and yielded as contents for `stage`, and so is the
tree of each folder once everything below it has been read; so memory stays bounded. Trees are yielded many at
a time, which keeps them together in packs. Files that changed just now are read last: by then the clock has
moved on, and their stamps can be trusted. A file that changes while it is read is read again; if it keeps
changing, it is stored as it was read and listed in ``changed``. **Invariant:** equal folders produce equal
trees, whatever order the file system lists them in.

**The stat cache.** Reading every file to find that none changed would take a second each time; a ``stat``
takes a microsecond. So each snapshot leaves a cache behind: the stamp (inode, size, mtime, ctime, mode) and
the objects of each file, and the tree of each folder. A file whose stamp is the same is not read again. A
change in the same clock tick as the read would not show in the stamp, so a file that was read too soon after
its last change is cached without a stamp. A million files have to fit: those of a folder are kept encoded,
about 90 bytes each, beside a digest of all their stamps, and are decoded only if the digest differs. The
cache can be deleted at any time, and a damaged one counts as deleted. **Invariant:** every object in a cache
can be reached from one of its ``roots``; so while those are stored (and the commit that builds on them
requires them), all of it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stats
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from hashlib import blake2b, sha256
from pathlib import Path
from threading import Lock
from time import monotonic, time_ns
from types import MappingProxyType
from typing import Final

import msgspec

from treering.core.chunking import WHOLE_BYTES, stream_chunks
from treering.core.content import MAX_PAYLOAD, Content, object_name, seal_pieces, unseal
from treering.core.ids import new_id
from treering.core.tree import (
    INLINE_BYTES,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Tree,
    TreeEntry,
    encode_tree,
)
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
_HASH_BYTES: Final = 32
_SWAPPED: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR})
_RULES_MODE: Final = 0o600
_INLINE_FILES: Final = 10_000
"""In a folder with more files, none is kept in the tree: it would be large, and stored anew each time."""
_TREE_BYTES: Final = 8 << 20
"""How many bytes of trees are collected before they are yielded."""
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


class NamedContent(Content, frozen=True, gc=False):
    """Content whose name is known, which saves hashing it again."""

    known: str

    @property
    def name(self) -> str:
        """The object name of this content."""
        return self.known


class Scan:
    """One scan of one folder. Stage `contents`, then `trees`; ``folder`` is the folder as it was scanned."""

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
        self._cached = cached
        self._avoid = avoid
        self._limits = limits or Limits()
        self._deadline = deadline
        self._on_progress = on_progress
        self._recent: list[tuple[WalkedFolder, str, str]] = []
        self._trees: list[Content] = []
        self._tree_bytes = 0
        self._current = ""
        self._entries = 0
        self._read_bytes = 0
        self._of_files = 0
        self._of_bytes = 0
        self.folder = cached_folder("", 0)
        """The folder as it was scanned."""
        self.top: Tree | None = None
        """Its tree; ``None`` if that is the cached one."""
        self.read_files = 0
        self.left_out: list[LeftOut] = []
        self.changed: list[str] = []
        self.stale_temporaries: list[str] = []
        """Temporary files and folders of restores, which may have died."""

    def contents(self, folder: int) -> Iterator[Content]:
        """Read the files below an open folder that the cache does not know; yield what has to be stored.

        Where there are many trees, most of them are yielded too.
        """
        try:
            if self._on_progress is not None:
                self._measure(folder, "", self._cached)
            root = yield from self._walk(folder, "", self._cached, 0, 0)
            yield from self._read_recent(folder)
        except OSError as error:
            with translate_os_errors(f"{self._current or '.'!r} in the workspace", writing=False):
                raise error from None
        if isinstance(root, WalkedFolder):
            entries: list[TreeEntry] = []
            if (rules := self._rules.to_bytes()) is not None:
                stored = NamedContent("bytes", rules, object_name("bytes", rules))
                yield stored
                entries.append(
                    FileEntry(name=RESERVED, mode=_RULES_MODE, size=len(rules), content=(stored.name,))
                )
            root = self._build(root, entries)
        self.folder = root

    # Walking
    def _walk(  # noqa: C901, PLR0915 - the hot loop: runs for every file
        self, folder: int, path: str, cached: CachedFolder | None, mode: int, depth: int
    ) -> Generator[Content, None, WalkedFolder | CachedFolder]:
        if depth > self._limits.depth:
            raise InvalidInput(
                f"folder {path[:80]!r}... is nested deeper than {self._limits.depth} folders; exclude it"
            )
        self._check_time()
        cached_links = {} if cached is None else cached.links
        cached_folders = {} if cached is None else cached.folders
        walked = WalkedFolder(mode)
        listing = walked.listing
        subfolders: list[tuple[str, int]] = []
        with os.scandir(folder) as listed:
            for entry in listed:
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:  # the folder is readable but not searchable
                    self._leave_out(path + entry.name, "unreadable")
                    continue
                name = entry.name
                st_mode = stat.st_mode
                kind = st_mode & 0o170000
                if kind == stats.S_IFREG:
                    stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, st_mode)
                    listing.append((name, stamp))
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
        is_listed = cached is not None and bool(cached.stamps) and cached.stamps == _digest(listing)
        has_same_files = is_listed
        if is_listed:
            self._count(len(listing) + len(subfolders) + len(walked.links), path)
            walked.is_large = len(listing) > _INLINE_FILES
        else:
            has_same_files = yield from self._walk_files(folder, path, cached, walked, len(subfolders))
        is_same = (
            cached is not None
            and bool(cached.tree)
            and has_same_files
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
            walked.is_open = walked.is_open or isinstance(inner, WalkedFolder)
            is_same = is_same and inner is was
        if cached is not None:
            if is_same and cached.mode == mode:
                return cached
            if is_listed:
                walked.files = cached.files
        yield from self._read_inline(folder, path, walked)
        if walked.is_open or not depth:  # the root has an entry more
            return walked
        built = self._build(walked, [])
        if self._tree_bytes >= _TREE_BYTES:
            yield from self.trees()
        return built

    def _walk_files(
        self, folder: int, path: str, cached: CachedFolder | None, walked: WalkedFolder, subfolders: int
    ) -> Generator[Content, None, bool]:
        """Read what is new of the listed files; return whether all of them are as they are cached."""
        cached_files = {} if cached is None else cached.files
        to_read: list[tuple[str, FileStamp]] = []
        has_unscanned = False
        for name, stamp in walked.listing:
            row = cached_files.get(name)
            if row is not None:
                if row.stamp == stamp:
                    if row.secrets is None:
                        row, has_unscanned = self._scanned(folder, name, row), True
                    walked.files[name] = row
                else:
                    to_read.append((name, stamp))
            elif self._is_wanted(path + name, is_folder=False):
                to_read.append((name, stamp))
        self._count(len(walked.files) + len(to_read) + subfolders + len(walked.links), path)
        walked.is_large = len(walked.files) + len(to_read) > _INLINE_FILES
        yield from self._read_new(folder, path, walked, to_read)
        return not (to_read or has_unscanned) and len(walked.files) == len(cached_files)

    def _build(self, walked: WalkedFolder, entries: list[TreeEntry]) -> CachedFolder:
        """Add the tree of a folder to those to yield, after those below it; return it for the cache."""
        folders = {
            name: self._build(each, []) if isinstance(each, WalkedFolder) else each
            for name, each in walked.folders.items()
        }
        for name, each in walked.files.items():
            mode = each.stamp[4] & 0o777
            data = walked.data.get(name)
            content = each.content if data is None else ()
            entries.append(FileEntry(name=name, mode=mode, size=each.size, content=content, data=data))
        entries += [FolderEntry(name=name, mode=each.mode, tree=each.tree) for name, each in folders.items()]
        entries += [LinkEntry(name=name, target=target) for name, target in walked.links.items()]
        self.top = Tree(entries=tuple(entries))
        tree = encode_tree(self.top)
        named = NamedContent(tree.kind, tree.data, tree.name)
        self._trees.append(named)
        self._tree_bytes += len(tree.data)
        return cached_folder(
            named.name,
            walked.mode,
            files=walked.files,
            links=walked.links,
            folders=folders,
            stamps=_digest(walked.listing) if _are_all_in(walked.listing, walked.files) else b"",
        )

    def trees(self) -> list[Content]:
        """Return the trees that have not been yielded yet, children before parents."""
        trees, self._trees, self._tree_bytes = self._trees, [], 0
        return trees

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
                    row.stamp != file_stamp(stat)
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
        self, folder: int, path: str, walked: WalkedFolder, to_read: list[tuple[str, FileStamp]]
    ) -> Iterator[Content]:
        """Read the new files of one folder; postpone those that changed just now."""
        for name, stamp in sorted(to_read, key=_by_name):
            if is_recent(stamp[3], now_ns=time_ns()):
                self._recent.append((walked, path, name))
                walked.is_open = True
            else:
                yield from self._read_into(walked, folder, name, path, is_new=True)

    def _read_recent(self, root: int) -> Iterator[Content]:
        """Read the postponed files; those whose folder is gone are gone as well."""
        for walked, path, name in self._recent:
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
                yield from self._read_into(walked, folder, name, path, is_new=True)
            finally:
                os.close(folder)

    def _read_inline(self, folder: int, path: str, walked: WalkedFolder) -> Iterator[Content]:
        """Read the unchanged files whose bytes are part of a tree that has to be built anew, or were."""
        for name, row in tuple(walked.files.items()):
            is_wanted = row.is_inline if walked.is_large else 0 < row.size <= INLINE_BYTES
            if is_wanted and name not in walked.data:
                yield from self._read_into(walked, folder, name, path, is_new=False)

    def _read_into(
        self, walked: WalkedFolder, folder: int, name: str, path: str, *, is_new: bool
    ) -> Iterator[Content]:
        walked.files.pop(name, None)
        read = yield from self._file(folder, name, path + name, inline=not walked.is_large)
        if read is None:
            return
        walked.files[name], data = read
        if data is not None:
            walked.data[name] = data
        if is_new:
            self.read_files += 1
            if self._on_progress is not None:
                self._on_progress(
                    FileProgress(self.read_files, self._read_bytes, self._of_files, self._of_bytes)
                )

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
    def _file(  # noqa: PLR0915 - every way in which a file can change meanwhile
        self, folder: int, name: str, path: str, *, inline: bool
    ) -> Generator[Content, None, tuple[CachedFile, bytes | None] | None]:
        """Read a file, and yield its objects; return its bytes if they belong into the tree."""
        self._current = path
        mode = size = 0
        data: bytes | None = None
        names: list[str] = []
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
                mode = stat.st_mode
                names, data = [], None
                cuts.clear()
                if stat.st_size <= WHOLE_BYTES:
                    whole = read_whole(file, stat.st_size)
                    size = len(whole)
                    is_still = size == stat.st_size and _is_same(stat, os.fstat(file))
                    if whole and (is_still or attempt == _READ_TRIES):
                        secrets = scan_secrets(whole)
                        if inline and size <= INLINE_BYTES:
                            self._note(size, path)
                            data = whole
                            names.append(object_name("bytes", whole))
                        else:
                            yield from self._emit((whole,), path, names)
                else:
                    reader = FileReader(file, stat.st_size)
                    holes = reader if stat.st_blocks * _BLOCK < stat.st_size else None
                    scanner = SecretScanner()
                    pieces = _watched(stream_chunks(reader.read, holes), cuts, scanner)
                    yield from self._emit(pieces, path, names)
                    secrets = scanner.finish()
                    size = os.lseek(file, 0, os.SEEK_CUR)
                    is_still = size == stat.st_size and _is_same(stat, os.fstat(file))
            finally:
                os.close(file)
            if is_still:
                stamp = trusted_stamp(file_stamp(stat), read_at_ns=read_at_ns)
                break
        else:
            self.changed.append(path)
            stamp = untrusted_stamp(mode)
        return CachedFile(stamp, size, tuple(names), tuple(cuts), secrets, data is not None), data

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

    def _emit(self, pieces: Iterable[bytes], path: str, names: list[str]) -> Iterator[Content]:
        last: bytes | None = None
        for piece in pieces:
            self._note(len(piece), path)
            if piece is not last:  # else the same hole continues
                content = NamedContent("bytes", piece, object_name("bytes", piece))
                yield content
                names.append(content.known)
            else:
                names.append(names[-1])
            last = piece

    def _note(self, size: int, path: str) -> None:
        self._read_bytes += size
        if self._read_bytes > self._limits.bytes:
            raise InvalidInput(
                f"the workspace has more than {self._limits.bytes:,} bytes (read up to {path!r}); "
                "exclude some with .treeringignore, or raise limits="
            )
        self._check_time()


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


class WalkedFolder:
    """A folder that differs from the cache."""

    __slots__ = ("data", "files", "folders", "is_large", "is_open", "links", "listing", "mode")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.listing: list[tuple[str, FileStamp]] = []
        """The regular files in it."""
        self.files: dict[str, CachedFile] = {}
        self.data: dict[str, bytes] = {}
        """The bytes of those files that are kept in the tree."""
        self.links: dict[str, str] = {}
        self.folders: dict[str, WalkedFolder | CachedFolder] = {}
        self.is_large = False
        """Whether it has too many files to keep any of them in its tree."""
        self.is_open = False
        """Whether files in it, or below it, are still to be read."""


def _digest(listing: list[tuple[str, FileStamp]]) -> bytes:
    """Return a digest of the names and stamps of a folder's files; nothing if a name is not UTF-8."""
    try:
        return blake2b(_encoder.encode(listing), digest_size=16).digest()
    except UnicodeEncodeError:
        return b""


def _are_all_in(listing: list[tuple[str, FileStamp]], files: dict[str, CachedFile]) -> bool:
    """Return whether these files, with these stamps, are all that a folder has, and were scanned."""
    if len(listing) != len(files):
        return False
    found = ((files.get(name), stamp) for name, stamp in listing)
    return all(row is not None and row.stamp == stamp and row.secrets is not None for row, stamp in found)


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


class CachedFile(msgspec.Struct, frozen=True, gc=False):
    """A file as it was last read: its stamp, size and objects.

    ``cuts`` are the sizes of the objects, if there are several and their sizes are known. ``secrets`` are
    what looks like keys in it; ``None`` if nobody has looked. ``content`` of a file that is kept in its tree
    (``is_inline``) is the name that an object with its bytes would have.
    """

    stamp: FileStamp
    size: int
    content: tuple[str, ...]
    cuts: tuple[int, ...] = ()
    secrets: tuple[SecretMatch, ...] | None = ()
    is_inline: bool = False


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it is encoded."""

    name: bytes
    stamp: FileStamp
    size: int
    content: bytes
    cuts: tuple[int, ...]
    secrets: tuple[SecretMatch, ...] | None
    is_inline: bool


class CachedFolder(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """A folder as it was last scanned. ``tree`` is empty if no stored tree equals it."""

    tree: str
    mode: int
    rows: bytes
    """Its files, encoded."""
    links: dict[str, str]
    folders: dict[str, CachedFolder]
    count: int
    """The number of files and links in it, recursively."""
    size: int
    """The size of all files in it, recursively."""
    secrets: int
    """The number of secrets in its files, recursively."""
    stamps: bytes
    """The digest of the stamps of its files, if it has no others and all of them can be trusted."""

    @property
    def files(self) -> dict[str, CachedFile]:
        """Its files, decoded."""
        return {
            os.fsdecode(each.name): CachedFile(
                each.stamp, each.size, _names_in(each.content), each.cuts, each.secrets, each.is_inline
            )
            for each in _rows_decoder.decode(self.rows)
        }


def cached_folder(
    tree: str,
    mode: int,
    *,
    files: Mapping[str, CachedFile] = MappingProxyType({}),
    links: dict[str, str] | None = None,
    folders: dict[str, CachedFolder] | None = None,
    stamps: bytes = b"",
) -> CachedFolder:
    """Return a folder for the cache."""
    links, folders = links or {}, folders or {}
    rows = [
        _Row(
            os.fsencode(name),
            each.stamp,
            each.size,
            bytes.fromhex("".join(each.content)),
            each.cuts,
            each.secrets,
            each.is_inline,
        )
        for name, each in files.items()
    ]
    inner = folders.values()
    return CachedFolder(
        tree=tree,
        mode=mode,
        rows=_encoder.encode(rows),
        links=links,
        folders=folders,
        count=len(rows) + len(links) + sum(each.count for each in inner),
        size=sum(each.size for each in rows) + sum(each.size for each in inner),
        secrets=sum(len(each.secrets or ()) for each in rows) + sum(each.secrets for each in inner),
        stamps=stamps,
    )


def _names_in(content: bytes) -> tuple[str, ...]:
    if len(content) == _HASH_BYTES:
        return (content.hex(),)
    return tuple([content[at : at + _HASH_BYTES].hex() for at in range(0, len(content), _HASH_BYTES)])


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
_rows_decoder: Final = msgspec.msgpack.Decoder(list[_Row])
_encoder: Final = msgspec.msgpack.Encoder()


def _encode(cached: CachedWorkspace) -> bytes:
    try:
        return _encoder.encode(cached)
    except UnicodeEncodeError:  # some name is not UTF-8: leave these out, they are looked at again
        return _encoder.encode(msgspec.structs.replace(cached, folder=_without_odd_names(cached.folder)))


def _without_odd_names(folder: CachedFolder) -> CachedFolder:
    return msgspec.structs.replace(
        folder,
        links={name: each for name, each in folder.links.items() if _is_text(name) and _is_text(each)},
        folders={name: _without_odd_names(each) for name, each in folder.folders.items() if _is_text(name)},
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
