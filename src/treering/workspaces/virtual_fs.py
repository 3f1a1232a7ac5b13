"""Files for an agent: a virtual root with mounts, which no path leaves.

Every path that an agent gives is a virtual one: ``/report.md`` lies in the root folder, ``/host/docs/a.pdf``
in the folder that is mounted there, and ``..`` stops at the virtual root. Which folder a path belongs to is
decided by its names alone; what is there is decided by the kernel, beneath that folder's descriptor
(`beneath`). Files are read in pieces and only up to a limit, so a sparse terabyte is an error and not the end
of the process. They are written beside their place and renamed, so a hard link to a file outside is replaced
and never written through. Errors name the virtual path, never the real one.

This confines paths, not processes: an agent that may run commands needs a container around it as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stats
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from treering.core.ids import new_id
from treering.errors import Conflict, InvalidInput, NotFound, ReadOnly, TreeringError, Unreachable
from treering.workspaces.ignore import TEMPORARY, glob_pattern
from treering.workspaces.safe_open import Beneath
from treering.workspaces.scan import FOLDER_FLAGS, MAX_DEPTH

# -----------------------------------------------------------------------------------------------------------
# Virtual paths: their names, what is told of what lies there, and how errors speak of them.


FileKind = Literal["file", "folder", "link", "other"]

_KINDS: Final[dict[int, FileKind]] = {
    stats.S_IFREG: "file",
    stats.S_IFDIR: "folder",
    stats.S_IFLNK: "link",
}
_PIECE: Final = 256 * 1024
_OUTSIDE: Final = frozenset({errno.EXDEV, errno.ELOOP})


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual path: a file, a folder or a link."""

    path: str
    kind: FileKind
    size: int = 0
    modified_at_us: int = 0


def names_of(path: str) -> tuple[str, ...]:
    """The names of a virtual path. ``..`` goes up to the virtual root and no further."""
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] - agents call this
        raise InvalidInput(f"{path!r} is not a path: it is no text")
    if "\0" in path:
        raise InvalidInput(f"{given(path)!r} is not a path: it has a NUL in it")
    names: list[str] = []
    for each in path.split("/"):
        if each == "..":
            if not names:
                raise InvalidInput(f"{given(path)!r} leaves the workspace")
            names.pop()
        elif each not in ("", "."):
            names.append(each)
    return tuple(names)


def shown(names: tuple[str, ...]) -> str:
    """A virtual path as it is told."""
    return "/" + "/".join(names)


def given(path: str) -> str:
    """As much of a caller's text as fits into a message."""
    return path[:200]


def info_of(names: tuple[str, ...], found: os.stat_result) -> FileInfo:
    """What is told of a path."""
    kind = _KINDS.get(stats.S_IFMT(found.st_mode), "other")
    size = found.st_size if kind == "file" else 0
    return FileInfo(path=shown(names), kind=kind, size=size, modified_at_us=found.st_mtime_ns // 1000)


def read_up_to(file: int, size: int) -> bytes:
    """The first bytes of a file, at most ``size``."""
    pieces: list[bytes] = []
    while size and (piece := os.read(file, min(size, _PIECE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def remove(above: int, name: str, depth: int = 0) -> None:
    """Remove a folder with what is in it, by descriptors, following no link."""
    if depth > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, "too deep")
    folder = os.open(name, FOLDER_FLAGS, dir_fd=above)
    try:
        with os.scandir(folder) as listed:
            entries = [(each.name, each.is_dir(follow_symlinks=False)) for each in listed]
        for each, is_folder in entries:
            if is_folder:
                remove(folder, each, depth + 1)
            else:
                os.unlink(each, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


@contextlib.contextmanager
def told(names: tuple[str, ...]) -> Generator[None]:
    """Errors of the operating system, told of the virtual path."""
    try:
        yield
    except OSError as error:
        raise _meaning(error, shown(names)) from None


def _meaning(error: OSError, path: str) -> TreeringError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOENT:
        return NotFound(f"there is no {path!r}")
    if error.errno in _OUTSIDE:
        return InvalidInput(f"{path!r} leads out of the workspace, or through a link that does")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(f"{path!r} may not be accessed: {reason}")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO):
        return InvalidInput(f"{path!r}: {reason}")
    return Unreachable(f"{path!r}: {reason}")


# -----------------------------------------------------------------------------------------------------------

Access = Literal["ro", "rw"]

MAX_READ_BYTES: Final = 16 * 1024 * 1024
"""What one read gives at most; larger files are read by lines."""

_READ: Final = os.O_RDONLY | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_VIRTUAL_PIECE: Final = 256 * 1024

_PASSED_OVER: Final = (NotFound, InvalidInput, ReadOnly, Unreachable)
"""What a search meets on its way and goes on: it went, became something else, or may not be read."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A line in which a text was found; lines count from 1."""

    path: str
    line: int
    text: str


class _Mount:
    def __init__(self, names: tuple[str, ...], path: Path, access: Access, *, follow_links: bool) -> None:
        self.names = names
        self.access = access
        self.beneath = Beneath(path, walks=not follow_links)


class Files:
    """The files below one root and its mounts. Use it as a context manager, or `close` it.

    Without ``follow_links``, a path that goes through a link is refused even where the link stays inside, so
    that everything has one path only.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        mounts: Mapping[str, tuple[str | Path, Access]] | None = None,
        follow_links: bool = True,
    ) -> None:
        self._mounts: list[_Mount] = []
        self._follow_links = follow_links
        try:
            self._add((), root, "rw")
            for place, mount in (mounts or {}).items():
                if isinstance(mount, str | Path):
                    raise InvalidInput(
                        f"mount {place!r} lacks its access; give ({str(mount)!r}, 'ro') or 'rw'"
                    )
                self._add(names_of(place), *mount)
        except BaseException:
            self.close()
            raise
        self._mounts.sort(key=lambda each: -len(each.names))

    def close(self) -> None:
        """Let go of the folders."""
        for mount in self._mounts:
            mount.beneath.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Files with {len(self._mounts) - 1} mounts>"

    # Looking
    def ls(self, path: str = "/") -> list[FileInfo]:
        """What a folder holds, by name; mounts show as folders."""
        names = names_of(path)
        found = {each: FileInfo(path=shown((*names, each)), kind="folder") for each in self._mounted(names)}
        try:
            with self._opened_folder(names) as folder, os.scandir(folder) as listed:
                for entry in listed:
                    if entry.name in found or entry.name.startswith(TEMPORARY):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        info = info_of((*names, entry.name), entry.stat(follow_symlinks=False))
                        found[entry.name] = info
        except NotFound:
            if not found:
                raise
        return [found[name] for name in sorted(found)]

    def stat(self, path: str) -> FileInfo:
        """What is at a path; links are followed as far as they stay inside."""
        names = names_of(path)
        if self._mounted(names) or not names:
            return FileInfo(path=shown(names), kind="folder")
        with self._opened(names, _READ) as file:
            return info_of(names, os.fstat(file))

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        """The text of a file, or ``limit`` lines of it from line ``offset`` (counted from 0) on.

        What is not UTF-8 comes as U+FFFD. A whole file of more than 16 MiB is refused; read it by lines.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise InvalidInput(f"offset={offset}, limit={limit}: lines count from 0 up")
        if not offset and limit is None:
            return self.read_bytes(path).decode("utf-8", "replace")
        lines: list[bytes] = []
        size = 0
        for number, line in enumerate(self._lines(names_of(path))):
            if limit is not None and number >= offset + limit:
                break
            if number >= offset:
                size += len(line)
                if size > MAX_READ_BYTES:
                    raise InvalidInput(f"these lines of {given(path)!r} are more than 16 MiB; ask for fewer")
                lines.append(line)
        return b"".join(lines).decode("utf-8", "replace")

    def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        """The bytes of a file of at most ``max_bytes``."""
        names = names_of(path)
        with self._opened_file(names) as file:
            size = os.fstat(file).st_size
            data = b"" if size > max_bytes else read_up_to(file, max_bytes + 1)
        if size > max_bytes or len(data) > max_bytes:
            raise InvalidInput(f"{shown(names)!r} has more than {max_bytes:,} bytes; read it by lines")
        return data

    def glob(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """Files and folders below ``path`` whose path from there matches: ``*.py``, ``src/**/*.ts``."""
        wanted = glob_pattern(pattern)
        base = len(names_of(path))
        return [
            info for names, info in self._walk(names_of(path)) if wanted.fullmatch("/".join(names[base:]))
        ]

    def grep(self, text: str, path: str = "/", *, glob: str | None = None, limit: int = 1000) -> list[Match]:
        """The lines below ``path`` that hold a text, as it is written; binary files are passed over."""
        if not text or "\n" in text:
            raise InvalidInput("grep looks for a text within a line; give one that is not empty")
        needle = text.encode("utf-8", "surrogateescape")
        wanted = None if glob is None else glob_pattern(glob)
        base = len(names_of(path))
        matches: list[Match] = []
        for names, info in self._walk(names_of(path), also_itself=True):
            relative = "/".join(names[base:]) or names[-1]
            if info.kind != "file" or (
                wanted is not None and not (wanted.fullmatch(relative) or wanted.fullmatch(names[-1]))
            ):
                continue
            for number, line in self._matching(names, needle):
                matches.append(Match(path=shown(names), line=number, text=line))
                if len(matches) >= limit:
                    return matches
        return matches

    def each(self, path: str = "/") -> Iterator[tuple[str, FileInfo]]:
        """Every file below a folder, one by one, with its path from there; a file stands for itself."""
        base = len(names_of(path))
        for names, info in self._walk(names_of(path), also_itself=True):
            if info.kind == "file":
                yield "/".join(names[base:]) or names[-1], info

    def lines_with(self, path: str, text: str) -> Iterator[tuple[int, str]]:
        """The lines of a file that hold a text, with their numbers from 1 on; none of a binary file."""
        return self._matching(names_of(path), text.encode("utf-8", "surrogateescape"))

    # Changing
    def write(self, path: str, content: str | bytes, *, overwrite: bool = True) -> FileInfo:
        """Make a file, whole or not at all, with the folders above it; one that is there is replaced."""
        if not isinstance(content, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - agents call this
            raise InvalidInput(f"{path!r} cannot hold {type(content).__name__}; give text or bytes")
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        names = self._changing(path)
        with self._above(names, make=True) as folder:
            self._place(names, folder, data, overwrite=overwrite)
            return info_of(names, os.stat(names[-1], dir_fd=folder, follow_symlinks=False))

    def edit(self, path: str, old: str, new: str, *, every: bool = False) -> int:
        """Replace a text in a file; how often. It must be there, and only once unless ``every`` is given."""
        if not old:
            raise InvalidInput("edit needs the text to replace; write() makes a file")
        names = self._changing(path)
        data = self.read_bytes(path)
        was = old.encode("utf-8", "surrogateescape")
        count = data.count(was)
        if not count:
            raise NotFound(f"{shown(names)!r} does not hold that text; read it again")
        if count > 1 and not every:
            raise Conflict(
                f"{shown(names)!r} holds that text {count} times; give more of what is around it, "
                "or every=True"
            )
        with self._above(names) as folder:
            self._place(
                names, folder, data.replace(was, new.encode("utf-8", "surrogateescape")), overwrite=True
            )
        return count

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty folder; ``recursive`` removes a folder with what is in it."""
        names = self._changing(path)
        if self._mounted(names):
            raise ReadOnly(f"{shown(names)!r} has a mount in it and stays")
        with self._above(names) as folder:
            found = os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
            if not stats.S_ISDIR(found.st_mode):
                os.unlink(names[-1], dir_fd=folder)
            elif recursive:
                remove(folder, names[-1])
            else:
                try:
                    os.rmdir(names[-1], dir_fd=folder)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    raise Conflict(f"{shown(names)!r} is not empty; say recursive=True") from None

    # Where a path lies
    def _add(self, names: tuple[str, ...], path: str | Path, access: Access) -> None:
        if access not in ("ro", "rw"):
            raise InvalidInput(f"a mount is 'ro' or 'rw', not {access!r}")
        if any(each.names == names for each in self._mounts):
            raise InvalidInput(f"{shown(names)!r} is mounted twice")
        try:
            mount = _Mount(names, Path(path).expanduser(), access, follow_links=self._follow_links)
        except OSError as error:
            raise NotFound(f"{path} cannot be opened as a folder: {error.strerror}") from error
        self._mounts.append(mount)

    def _mount(self, names: tuple[str, ...]) -> tuple[_Mount, tuple[str, ...]]:
        for mount in self._mounts:
            depth = len(mount.names)
            if names[:depth] == mount.names:
                return mount, names[depth:]
        raise NotFound(f"there is no {shown(names)!r}")

    def _mounted(self, names: tuple[str, ...]) -> set[str]:
        """The names below a folder under which something is mounted."""
        depth = len(names)
        return {
            each.names[depth]
            for each in self._mounts
            if len(each.names) > depth and each.names[:depth] == names
        }

    def _changing(self, path: str) -> tuple[str, ...]:
        names = names_of(path)
        mount, below = self._mount(names)
        if mount.access == "ro":
            raise ReadOnly(f"{shown(names)!r} is mounted read-only; write somewhere else")
        if not below:
            raise InvalidInput(f"{shown(names)!r} is a whole folder; name a file in it")
        return names

    # Descriptors
    @contextlib.contextmanager
    def _opened(self, names: tuple[str, ...], flags: int) -> Generator[int]:
        mount, below = self._mount(names)
        with told(names):
            file = mount.beneath.open(below, flags)
            try:
                yield file
            finally:
                os.close(file)

    @contextlib.contextmanager
    def _opened_file(self, names: tuple[str, ...]) -> Generator[int]:
        with self._opened(names, _READ) as file:
            if not stats.S_ISREG(os.fstat(file).st_mode):
                raise InvalidInput(f"{shown(names)!r} is not a file")
            yield file

    @contextlib.contextmanager
    def _opened_folder(self, names: tuple[str, ...]) -> Generator[int]:
        with self._opened(names, os.O_RDONLY | os.O_DIRECTORY) as folder:
            yield folder

    @contextlib.contextmanager
    def _above(self, names: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        """The folder that a path's last name is in."""
        mount, below = self._mount(names)
        with told(names):
            folder = mount.beneath.open_folder(below[:-1], make=make)
            try:
                yield folder
            finally:
                os.close(folder)

    # Reading
    def _lines(self, names: tuple[str, ...]) -> Iterator[bytes]:
        """The lines of a file; one of more than 16 MiB comes in parts."""
        rest = b""
        with self._opened_file(names) as file:
            while piece := os.read(file, _VIRTUAL_PIECE):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line + b"\n"
                if len(rest) > MAX_READ_BYTES:
                    yield rest
                    rest = b""
        if rest:
            yield rest

    def _matching(self, names: tuple[str, ...], needle: bytes) -> Iterator[tuple[int, str]]:
        with contextlib.suppress(*_PASSED_OVER):
            for number, line in enumerate(self._lines(names), 1):
                if b"\0" in line:
                    return
                if needle in line:
                    yield number, line.rstrip(b"\r\n").decode("utf-8", "replace")

    def _walk(
        self, names: tuple[str, ...], *, also_itself: bool = False, depth: int = 0
    ) -> Iterator[tuple[tuple[str, ...], FileInfo]]:
        """Everything below a folder, without following links."""
        if depth > MAX_DEPTH:
            raise InvalidInput(f"{shown(names)[:80]!r}... is deeper than {MAX_DEPTH}; look further down")
        if also_itself and names and not self._mounted(names):
            info = self.stat(shown(names))
            if info.kind != "folder":
                yield names, info
                return
        try:
            listed = self.ls(shown(names))
        except _PASSED_OVER:
            if not depth:
                raise
            return
        for info in listed:
            below = (*names, info.path.rpartition("/")[2])
            yield below, info
            if info.kind == "folder":
                yield from self._walk(below, depth=depth + 1)

    # Writing
    def _place(self, names: tuple[str, ...], folder: int, data: bytes, *, overwrite: bool) -> None:
        name, mode = names[-1], 0o644
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not overwrite:
                raise Conflict(f"{shown(names)!r} is there already; edit it, or say overwrite=True")
            if not stats.S_ISREG(found.st_mode):
                raise InvalidInput(f"{shown(names)!r} is not a file; name another one, or what it points at")
            mode = stats.S_IMODE(found.st_mode) & 0o777
        draft = f"{TEMPORARY}{new_id()}"
        file = os.open(draft, _NEW, mode, dir_fd=folder)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
            finally:
                os.close(file)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
