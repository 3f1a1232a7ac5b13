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
from treering.core.content import Content
from treering.core.frame import MAX_PAYLOAD, seal_pieces, unseal
from treering.core.ids import new_id
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, TreeEntry, encode_tree
from treering.errors import Corrupt, InvalidInput, TimedOut
from treering.files import translated
from treering.workspaces.ignore import RESERVED, TEMPORARY, Rules

# -----------------------------------------------------------------------------------------------------------
# What is known of a folder since it was last looked at: the stat cache.
#
# Reading every file to see that none changed would cost a second each time; asking for its stamp (inode,
# size, the times of its last change, mode) costs a microsecond. So each snapshot leaves behind what it saw:
# per file the stamp and the objects of its content, per folder the tree. A file whose stamp is the same is
# not read again. A change in the same tick of the clock as the read would leave the stamp as it was, so a
# file that was read that soon after its last change is remembered without a stamp, and read again.
#
# All of this is only a shortcut: it may be lost at any time, and a damaged one counts as lost. **Invariant:**
# every content that is named here can be reached from one of ``roots``; so while those are stored (and the
# commit that builds on them requires them), all of it is.


Stamp = tuple[int, int, int, int, int]
"""Inode, size, mtime and ctime in nanoseconds, mode."""

_TICK_NS: Final = 50_000_000
_COARSE_NS: Final = 2_100_000_000
_SECOND_NS: Final = 1_000_000_000


class KnownFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was read: its stamp then, how many bytes it had, and the objects that hold them.

    ``cuts`` are the sizes of the objects, if there are several and their sizes are known.
    """

    stamp: Stamp
    size: int
    content: tuple[str, ...]
    cuts: tuple[int, ...] = ()


class KnownFolder(msgspec.Struct, array_like=True):
    """A folder as it was read. ``tree`` is empty when no stored tree says exactly this."""

    tree: str
    mode: int
    files: dict[str, KnownFile]
    links: dict[str, str]
    folders: dict[str, KnownFolder]
    count: int
    """Files and links in it, at any depth."""
    size: int
    """Bytes of all files in it, at any depth."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A whole workspace as it was read, by which rules, and the stored roots that hold its content.

    ``lists`` are those of `rules` that went without saying.
    """

    roots: tuple[str, ...]
    patterns: tuple[str, ...]
    lists: str
    folder: KnownFolder


class Shelf:
    """Remembers what is known of each folder: in this process, and in ``place`` for the next one."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._known: dict[str, Known] = {}
        self._unwritten: set[str] = set()
        self._lock = Lock()

    def load(self, folder: str) -> Known | None:
        """What is known of a folder, by its real path."""
        with self._lock:
            if folder in self._known or self._place is None:
                return self._known.get(folder)
        try:
            known = _decoder.decode(
                unseal(self._file(folder).read_bytes(), "a stat cache", limit=MAX_PAYLOAD)
            )
        except (OSError, Corrupt, msgspec.MsgspecError, ValueError):
            return None
        with self._lock:
            return self._known.setdefault(folder, known)

    def note(self, folder: str, known: Known) -> None:
        """Remember it in this process; it is soon followed by more."""
        with self._lock:
            self._known[folder] = known
            self._unwritten.add(folder)

    def save(self, folder: str, known: Known) -> None:
        """Remember it. What cannot be written down is remembered in this process only."""
        with self._lock:
            if self._known.get(folder) is known and folder not in self._unwritten:
                return
            self._known[folder] = known
            self._unwritten.discard(folder)
        if self._place is None:
            return
        # No sync: a torn file has the wrong checksum, and then everything is read once more.
        file = self._file(folder)
        draft = file.with_name(f"{new_id()}.tmp")
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("wb") as written:
                    written.writelines(seal_pieces(_encode(known), compress_from=MAX_PAYLOAD))
                draft.rename(file)
            finally:
                draft.unlink(missing_ok=True)

    def drop(self, folder: str) -> None:
        """Forget it."""
        with self._lock:
            self._known.pop(folder, None)
        if self._place is not None:
            with contextlib.suppress(OSError):
                self._file(folder).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything: the names of files are here, too."""
        with self._lock:
            self._known.clear()
        if self._place is not None:
            for file in self._place.glob("*.known"):
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)

    def _file(self, folder: str) -> Path:
        assert self._place is not None  # noqa: S101 - the callers looked
        return self._place / f"{sha256(os.fsencode(folder)).hexdigest()[:32]}.known"


def stamp_of(stat: os.stat_result) -> Stamp:
    """A file's stamp."""
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_mode)


def trusted(stamp: Stamp, *, read_at_ns: int) -> Stamp:
    """A stamp that will show the next change; one that no file has, if the read came too soon after the last.

    Every change of content moves ctime, and nobody can set it. Whole seconds say that the file system knows
    no finer ones.
    """
    return untrusted(stamp[4]) if is_young(stamp[3], now_ns=read_at_ns) else stamp


def is_young(ctime_ns: int, *, now_ns: int) -> bool:
    """Whether a change now could leave a file's stamp as it is."""
    tick_ns = _TICK_NS if ctime_ns % _SECOND_NS else _COARSE_NS
    return ctime_ns + tick_ns >= now_ns


def untrusted(mode: int) -> Stamp:
    """A stamp that no file has: whoever meets it reads the file."""
    return (0, 0, 0, 0, mode)


_decoder: Final = msgspec.msgpack.Decoder(Known)


def _encode(known: Known) -> bytes:
    try:
        return msgspec.msgpack.encode(known)
    except UnicodeEncodeError:  # a name that is not UTF-8: leave such names out, they are read again
        return msgspec.msgpack.encode(msgspec.structs.replace(known, folder=_readable(known.folder)))


def _readable(folder: KnownFolder) -> KnownFolder:
    return KnownFolder(
        folder.tree,
        folder.mode,
        {name: each for name, each in folder.files.items() if _is_text(name)},
        {name: each for name, each in folder.links.items() if _is_text(name) and _is_text(each)},
        {name: _readable(each) for name, each in folder.folders.items() if _is_text(name)},
        folder.count,
        folder.size,
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# -----------------------------------------------------------------------------------------------------------
# What a walk saw of a folder, and the trees that follow from it once all objects have their names.


_RULES_MODE: Final = 0o600


class Fresh:
    """A file that was read: its objects are the ``count`` contents from the ``start``-th on."""

    __slots__ = ("count", "cuts", "size", "stamp", "start")

    def __init__(self, start: int, count: int, size: int, stamp: Stamp, cuts: tuple[int, ...]) -> None:
        self.start = start
        self.count = count
        self.cuts = cuts
        self.size = size
        self.stamp = stamp


class Seen:
    """A folder that was walked and is not as it was known."""

    __slots__ = ("files", "folders", "links", "mode")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.files: dict[str, KnownFile | Fresh] = {}
        self.links: dict[str, str] = {}
        self.folders: dict[str, Seen | KnownFolder] = {}


def settled(
    root: Seen | KnownFolder, names: Sequence[str], rules: Rules
) -> tuple[KnownFolder, list[Content]]:
    """The folder as it is known now, and the trees that are new, those below before those above.

    ``names`` are those of the contents in the order in which they were read; the root keeps the rules.
    """
    if isinstance(root, KnownFolder):
        return root, []
    trees: list[Content] = []
    entries: list[TreeEntry] = []
    if (kept := rules.to_bytes()) is not None:
        trees.append(Content("bytes", kept))
        content = (trees[0].name,)
        entries.append(FileEntry(name=RESERVED, mode=_RULES_MODE, size=len(kept), content=content))
    return _settled(root, names, trees, entries), trees


def _settled(
    seen: Seen | KnownFolder, names: Sequence[str], trees: list[Content], entries: list[TreeEntry]
) -> KnownFolder:
    if isinstance(seen, KnownFolder):
        return seen
    files: dict[str, KnownFile] = {}
    size = 0
    for name, each in seen.files.items():
        known = each
        if isinstance(known, Fresh):
            content = tuple(names[known.start : known.start + known.count])
            known = KnownFile(known.stamp, known.size, content, known.cuts)
        files[name] = known
        size += known.size
        mode = known.stamp[4] & 0o777
        entries.append(FileEntry(name=name, mode=mode, size=known.size, content=known.content))
    folders = {name: _settled(each, names, trees, []) for name, each in seen.folders.items()}
    entries += [FolderEntry(name=name, mode=each.mode, tree=each.tree) for name, each in folders.items()]
    entries += [LinkEntry(name=name, target=target) for name, target in seen.links.items()]
    tree = encode_tree(Tree(entries=tuple(entries)))
    trees.append(tree)
    return KnownFolder(
        tree=tree.name,
        mode=seen.mode,
        files=files,
        links=seen.links,
        folders=folders,
        count=len(files) + len(seen.links) + sum(each.count for each in folders.values()),
        size=size + sum(each.size for each in folders.values()),
    )


# -----------------------------------------------------------------------------------------------------------
# Reading a file that may change, grow or have holes: never more than the size that it had.


def read_whole(file: int, size: int) -> bytes:
    """Up to so many bytes at once; fewer, if the file became shorter."""
    data = os.read(file, size)
    if not data or len(data) == size:
        return data
    pieces = [data]
    left = size - len(data)
    while left and (data := os.read(file, left)):
        pieces.append(data)
        left -= len(data)
    return b"".join(pieces)


class Reader:
    """Reads up to the size that the file had: one that grows and grows still has an end."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, buffer: memoryview) -> int:
        """Fill a buffer as far as one read does."""
        got = os.readv(self._file, [buffer[: self._left]])
        self._left -= got
        return got

    def ahead(self) -> int:
        """As much of a hole as comes next; file systems that know none say 0."""
        at = os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            data = os.lseek(self._file, at, os.SEEK_DATA)
        except OSError as error:
            return self._left if error.errno == errno.ENXIO else 0  # nothing but a hole up to the end
        os.lseek(self._file, at, os.SEEK_SET)
        return min(data - at, self._left)

    def skip(self, size: int) -> None:
        """Go on behind a part of a hole."""
        os.lseek(self._file, size, os.SEEK_CUR)
        self._left -= size


# -----------------------------------------------------------------------------------------------------------
# How far a long look at files is.


class FileProgress(msgspec.Struct, frozen=True):
    """How many files were read or written so far, and how many bytes of them."""

    files: int
    bytes: int


# -----------------------------------------------------------------------------------------------------------

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
