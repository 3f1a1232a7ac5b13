"""A virtual file system for an agent: a root folder with mounts, which no path leaves.

All paths of the agent are virtual: ``/report.md`` is in the root folder, ``/host/docs/a.pdf`` in the folder
mounted there, and ``..`` stops at the virtual root. The names of a path decide which folder it belongs to;
the kernel then resolves it below that folder's descriptor (`safe_open`). Reads are chunked and limited, so a
sparse terabyte raises an error instead of exhausting memory. Writes go to a temporary file that is renamed,
so a hard link to a file outside is replaced, never written through. Errors name the virtual path, never the
real one.

This confines paths, not processes: an agent that may run commands needs a container as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stats
from collections.abc import Generator, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from treering.core.clock import to_datetime
from treering.core.ids import new_id
from treering.errors import Conflict, InvalidInput, NotFound, ReadOnly, TreeringError, Unreachable
from treering.files import translate_os_errors
from treering.workspaces.ignore import TEMPORARY, glob_pattern
from treering.workspaces.safe_open import ConfinedFolder
from treering.workspaces.scan import FOLDER_FLAGS, MAX_DEPTH

FileKind = Literal["file", "folder", "link", "other"]

_KINDS: Final[dict[int, FileKind]] = {
    stats.S_IFREG: "file",
    stats.S_IFDIR: "folder",
    stats.S_IFLNK: "link",
}
_PIECE: Final = 256 * 1024
_OUTSIDE: Final = frozenset({errno.EXDEV, errno.ELOOP})

MountAccess = Literal["ro", "rw"]

MAX_READ_BYTES: Final = 16 * 1024 * 1024
"""The most that one read returns; larger files are read by lines."""

_READ: Final = os.O_RDONLY | os.O_NONBLOCK
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SKIPPED: Final = (NotFound, InvalidInput, ReadOnly, Unreachable)
"""Errors that a search skips: the file is gone, was replaced, or may not be read."""


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file, folder or link at a virtual path."""

    path: str
    kind: FileKind
    size: int = 0
    modified_at_us: int = 0

    @property
    def modified_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.modified_at_us)


class GrepMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A line that contains the text; lines count from 1."""

    path: str
    line: int
    text: str


class _Mount:
    def __init__(
        self, names: tuple[str, ...], path: Path, access: MountAccess, *, follow_links: bool
    ) -> None:
        self.names = names
        self.access = access
        self.folder = ConfinedFolder(path, walks=not follow_links)


class VirtualFiles:
    """The files below one root and its mounts. Use it as a context manager, or `close` it.

    Without ``follow_links``, a path through a link is refused even if the link stays inside, so that every
    file has exactly one path.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        mounts: Mapping[str, tuple[str | Path, MountAccess]] | None = None,
        follow_links: bool = True,
    ) -> None:
        self._mounts: list[_Mount] = []
        self._follow_links = follow_links
        try:
            self._add((), root, "rw")
            for place, mount in (mounts or {}).items():
                if isinstance(mount, str | Path):
                    raise InvalidInput(
                        f"mount {place!r} lacks its access mode; pass ({str(mount)!r}, 'ro') or 'rw'"
                    )
                self._add(parse_path(place), *mount)
        except BaseException:
            self.close()
            raise
        self._mounts.sort(key=lambda each: -len(each.names))

    def close(self) -> None:
        """Close the folders."""
        for mount in self._mounts:
            mount.folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Files with {len(self._mounts) - 1} mounts>"

    def ls(self, path: str = "/") -> list[FileInfo]:
        """List a folder, sorted by name; mounts appear as folders."""
        names = parse_path(path)
        found = {
            each: FileInfo(path=format_path((*names, each)), kind="folder")
            for each in self._mount_names(names)
        }
        try:
            with self._open_folder(names) as folder, os.scandir(folder) as listed:
                for entry in listed:
                    if entry.name in found or entry.name.startswith(TEMPORARY):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        info = _file_info((*names, entry.name), entry.stat(follow_symlinks=False))
                        found[entry.name] = info
        except NotFound:
            if not found:
                raise
        return [found[name] for name in sorted(found)]

    def stat(self, path: str) -> FileInfo:
        """Return what is at a path; links are followed as long as they stay inside."""
        names = parse_path(path)
        if self._mount_names(names) or not names:
            return FileInfo(path=format_path(names), kind="folder")
        with self._open(names, _READ) as file:
            return _file_info(names, os.fstat(file))

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> str:
        """Return the text of a file, or ``limit`` lines of it starting at line ``offset`` (from 0).

        Bytes that are not UTF-8 become U+FFFD. Whole files are limited to 16 MiB; read larger ones by lines.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise InvalidInput(f"offset={offset} and limit={limit} must not be negative")
        if not offset and limit is None:
            return self.read_bytes(path).decode("utf-8", "replace")
        lines: list[bytes] = []
        size = 0
        for number, line in enumerate(self._lines(parse_path(path))):
            if limit is not None and number >= offset + limit:
                break
            if number >= offset:
                size += len(line)
                if size > MAX_READ_BYTES:
                    raise InvalidInput(f"these lines of {_shorten(path)!r} exceed 16 MiB; read fewer at once")
                lines.append(line)
        return b"".join(lines).decode("utf-8", "replace")

    def read_bytes(self, path: str, *, max_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Return the bytes of a file, which may have at most ``max_bytes``."""
        names = parse_path(path)
        with self._open_file(names) as file:
            size = os.fstat(file).st_size
            data = b"" if size > max_bytes else _read_up_to(file, max_bytes + 1)
        if size > max_bytes or len(data) > max_bytes:
            raise InvalidInput(f"{format_path(names)!r} is larger than {max_bytes:,} bytes; read it by lines")
        return data

    def glob(self, pattern: str, path: str = "/") -> list[FileInfo]:
        """List files and folders below ``path`` whose relative path matches: ``*.py``, ``src/**/*.ts``."""
        wanted = glob_pattern(pattern)
        base = len(parse_path(path))
        return [
            info for names, info in self._walk(parse_path(path)) if wanted.fullmatch("/".join(names[base:]))
        ]

    def grep(
        self, text: str, path: str = "/", *, glob: str | None = None, limit: int = 1000
    ) -> list[GrepMatch]:
        """Return the lines below ``path`` that contain a text, literally; binary files are skipped."""
        if not text or "\n" in text:
            raise InvalidInput("grep searches within lines; pass a text that is not empty and has no newline")
        needle = text.encode("utf-8", "surrogateescape")
        wanted = None if glob is None else glob_pattern(glob)
        base = len(parse_path(path))
        matches: list[GrepMatch] = []
        for names, info in self._walk(parse_path(path), also_itself=True):
            relative = "/".join(names[base:]) or names[-1]
            if info.kind != "file" or (
                wanted is not None and not (wanted.fullmatch(relative) or wanted.fullmatch(names[-1]))
            ):
                continue
            for number, line in self._matching_lines(names, needle):
                matches.append(GrepMatch(path=format_path(names), line=number, text=line))
                if len(matches) >= limit:
                    return matches
        return matches

    def each(self, path: str = "/") -> Iterator[tuple[str, FileInfo]]:
        """Iterate over all files below a folder, with their relative paths; a file yields itself."""
        base = len(parse_path(path))
        for names, info in self._walk(parse_path(path), also_itself=True):
            if info.kind == "file":
                yield "/".join(names[base:]) or names[-1], info

    def lines_with(self, path: str, text: str) -> Iterator[tuple[int, str]]:
        """Iterate over the lines of a file that contain a text, numbered from 1; none of a binary file."""
        return self._matching_lines(parse_path(path), text.encode("utf-8", "surrogateescape"))

    def numbered_lines(self, path: str, *, until: int) -> Iterator[tuple[int, str]]:
        """Iterate over the lines of a file up to a number, numbered from 1."""
        with contextlib.suppress(*_SKIPPED):
            for number, line in enumerate(islice(self._lines(parse_path(path)), until), 1):
                yield number, _line_text(line)

    def write(self, path: str, content: str | bytes, *, overwrite: bool = True) -> FileInfo:
        """Write a file atomically, creating missing folders and replacing an existing file."""
        if not isinstance(content, str | bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - agents call this
            raise InvalidInput(f"{type(content).__name__} cannot be written to {path!r}; pass str or bytes")
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        names = self._check_writable(path)
        with self._open_parent(names, make=True) as folder:
            self._write_file(names, folder, data, overwrite=overwrite)
            return _file_info(names, os.stat(names[-1], dir_fd=folder, follow_symlinks=False))

    def edit(self, path: str, old: str, new: str, *, every: bool = False) -> int:
        """Replace a text in a file; return the number of replacements.

        The text must occur exactly once, unless ``every`` is set.
        """
        if not old:
            raise InvalidInput("edit needs a text to replace; use write() to create a file")
        names = self._check_writable(path)
        data = self.read_bytes(path)
        was = old.encode("utf-8", "surrogateescape")
        count = data.count(was)
        if not count:
            raise NotFound(f"{format_path(names)!r} does not contain that text; read the file again")
        if count > 1 and not every:
            raise Conflict(
                f"{format_path(names)!r} contains that text {count} times; pass more of its surroundings, "
                "or every=True"
            )
        with self._open_parent(names) as folder:
            self._write_file(
                names, folder, data.replace(was, new.encode("utf-8", "surrogateescape")), overwrite=True
            )
        return count

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link or an empty folder; with ``recursive``, a folder and everything in it."""
        names = self._check_writable(path)
        if self._mount_names(names):
            raise ReadOnly(f"{format_path(names)!r} contains a mount and cannot be deleted")
        with self._open_parent(names) as folder:
            found = os.stat(names[-1], dir_fd=folder, follow_symlinks=False)
            if not stats.S_ISDIR(found.st_mode):
                os.unlink(names[-1], dir_fd=folder)
            elif recursive:
                remove_tree(folder, names[-1])
            else:
                try:
                    os.rmdir(names[-1], dir_fd=folder)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
                    raise Conflict(f"{format_path(names)!r} is not empty; pass recursive=True") from None

    def _add(self, names: tuple[str, ...], path: str | Path, access: MountAccess) -> None:
        if access not in ("ro", "rw"):
            raise InvalidInput(f"access of a mount must be 'ro' or 'rw', not {access!r}")
        if any(each.names == names for each in self._mounts):
            raise InvalidInput(f"{format_path(names)!r} is mounted twice")
        try:
            mount = _Mount(names, Path(path).expanduser(), access, follow_links=self._follow_links)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"{path} cannot be opened as a folder: {error.strerror}") from error
        except OSError as error:
            with translate_os_errors(f"folder {path}", writing=False):
                raise error from None
        self._mounts.append(mount)

    def _mount(self, names: tuple[str, ...]) -> tuple[_Mount, tuple[str, ...]]:
        for mount in self._mounts:
            depth = len(mount.names)
            if names[:depth] == mount.names:
                return mount, names[depth:]
        raise NotFound(f"{format_path(names)!r} not found; list the folder to see what exists")

    def _mount_names(self, names: tuple[str, ...]) -> set[str]:
        """Return the names in a folder that are mounts, or lead to one."""
        depth = len(names)
        return {
            each.names[depth]
            for each in self._mounts
            if len(each.names) > depth and each.names[:depth] == names
        }

    def _check_writable(self, path: str) -> tuple[str, ...]:
        names = parse_path(path)
        mount, below = self._mount(names)
        if mount.access == "ro":
            raise ReadOnly(f"{format_path(names)!r} is mounted read-only; write somewhere else")
        if not below:
            raise InvalidInput(f"{format_path(names)!r} is the root or a mount; name a file in it")
        return names

    @contextlib.contextmanager
    def _open(self, names: tuple[str, ...], flags: int) -> Generator[int]:
        mount, below = self._mount(names)
        with _translate_errors(names):
            file = mount.folder.open(below, flags)
            try:
                yield file
            finally:
                os.close(file)

    @contextlib.contextmanager
    def _open_file(self, names: tuple[str, ...]) -> Generator[int]:
        with self._open(names, _READ) as file:
            if not stats.S_ISREG(os.fstat(file).st_mode):
                raise InvalidInput(f"{format_path(names)!r} is not a file")
            yield file

    @contextlib.contextmanager
    def _open_folder(self, names: tuple[str, ...]) -> Generator[int]:
        with self._open(names, os.O_RDONLY | os.O_DIRECTORY) as folder:
            yield folder

    @contextlib.contextmanager
    def _open_parent(self, names: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        """Open the folder that contains a path."""
        mount, below = self._mount(names)
        with _translate_errors(names):
            folder = mount.folder.open_folder(below[:-1], make=make)
            try:
                yield folder
            finally:
                os.close(folder)

    def _lines(self, names: tuple[str, ...]) -> Iterator[bytes]:
        """Iterate over the lines of a file; a line of more than 16 MiB is yielded in parts."""
        rest = b""
        with self._open_file(names) as file:
            while piece := os.read(file, _PIECE):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield line + b"\n"
                if len(rest) > MAX_READ_BYTES:
                    yield rest
                    rest = b""
        if rest:
            yield rest

    def _matching_lines(self, names: tuple[str, ...], needle: bytes) -> Iterator[tuple[int, str]]:
        with contextlib.suppress(*_SKIPPED):
            for number, line in enumerate(self._lines(names), 1):
                if b"\0" in line:
                    return
                if needle in line:
                    yield number, _line_text(line)

    def _walk(
        self, names: tuple[str, ...], *, also_itself: bool = False, depth: int = 0
    ) -> Iterator[tuple[tuple[str, ...], FileInfo]]:
        """Iterate over everything below a folder, following no links."""
        if depth > MAX_DEPTH:
            raise InvalidInput(
                f"{format_path(names)[:80]!r}... is deeper than {MAX_DEPTH} folders; start further down"
            )
        if also_itself and names and not self._mount_names(names):
            info = self.stat(format_path(names))
            if info.kind != "folder":
                yield names, info
                return
        try:
            listed = self.ls(format_path(names))
        except _SKIPPED:
            if not depth:
                raise
            return
        for info in listed:
            below = (*names, info.path.rpartition("/")[2])
            yield below, info
            if info.kind == "folder":
                yield from self._walk(below, depth=depth + 1)

    def _write_file(self, names: tuple[str, ...], folder: int, data: bytes, *, overwrite: bool) -> None:
        name, mode = names[-1], 0o644
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not overwrite:
                raise Conflict(f"{format_path(names)!r} already exists; edit it, or pass overwrite=True")
            if not stats.S_ISREG(found.st_mode):
                raise InvalidInput(f"{format_path(names)!r} is not a regular file; choose another path")
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


def _line_text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "replace")


def parse_path(path: str) -> tuple[str, ...]:
    """Return the names of a virtual path. ``..`` goes up to the virtual root and no further."""
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance] - agents call this
        raise InvalidInput(f"{path!r} is not a path: it is not a string")
    if "\0" in path:
        raise InvalidInput(f"{_shorten(path)!r} is not a path: it contains a NUL")
    names: list[str] = []
    for each in path.split("/"):
        if each == "..":
            if not names:
                raise InvalidInput(f"{_shorten(path)!r} leaves the workspace")
            names.pop()
        elif each not in ("", "."):
            names.append(each)
    return tuple(names)


def format_path(names: tuple[str, ...]) -> str:
    """Return a virtual path as a string."""
    return "/" + "/".join(names)


def _shorten(path: str) -> str:
    """Cut a caller's text to a length that fits into a message."""
    return path[:200]


def _file_info(names: tuple[str, ...], found: os.stat_result) -> FileInfo:
    """Return what callers see of a path."""
    kind = _KINDS.get(stats.S_IFMT(found.st_mode), "other")
    size = found.st_size if kind == "file" else 0
    return FileInfo(path=format_path(names), kind=kind, size=size, modified_at_us=found.st_mtime_ns // 1000)


def _read_up_to(file: int, size: int) -> bytes:
    """Read up to ``size`` bytes."""
    pieces: list[bytes] = []
    while size and (piece := os.read(file, min(size, _PIECE))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def remove_tree(above: int, name: str, depth: int = 0, *, force: bool = False) -> None:
    """Remove a folder and everything in it, by descriptors, following no link.

    ``force`` makes folders writable first.
    """
    if depth > MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, "too deep")
    folder = os.open(name, FOLDER_FLAGS, dir_fd=above)
    try:
        if force:
            os.fchmod(folder, 0o700)
        with os.scandir(folder) as listed:
            entries = [(each.name, each.is_dir(follow_symlinks=False)) for each in listed]
        for each, is_folder in entries:
            if is_folder:
                remove_tree(folder, each, depth + 1, force=force)
            else:
                os.unlink(each, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=above)


@contextlib.contextmanager
def _translate_errors(names: tuple[str, ...]) -> Generator[None]:
    """Translate errors of the operating system, naming the virtual path."""
    try:
        yield
    except OSError as error:
        raise _to_error(error, format_path(names)) from None


def _to_error(error: OSError, path: str) -> TreeringError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.ENOENT:
        return NotFound(f"{path!r} not found; list the folder to see what exists")
    if error.errno in _OUTSIDE:
        return InvalidInput(f"{path!r} leads out of the workspace, or through a link that does")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnly(f"access to {path!r} denied: {reason}")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO):
        return InvalidInput(f"{path!r}: {reason}")
    return Unreachable(f"{path!r}: {reason}")
