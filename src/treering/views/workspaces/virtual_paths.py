"""Virtual paths: their names, what is told of what lies there, and how errors speak of them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as stats
from collections.abc import Generator
from typing import Final, Literal

import msgspec

from treering.errors import InvalidInput, NotFound, ReadOnly, TreeringError, Unreachable
from treering.views.workspaces.scanning import FOLDER_FLAGS, MAX_DEPTH

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
