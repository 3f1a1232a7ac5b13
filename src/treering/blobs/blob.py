"""Names and data of blobs, for every kind of store.

A name is a relative path that means the same in a folder and in every bucket. Servers handle unusual names
differently (one turns a backslash into a slash, another drops a trailing slash, clients reject control
characters), so a name that any of them would change is rejected before anything is sent. **Invariant:** a
name that `check_name` accepts is listed exactly as it was written.

Data is bytes, in one or several pieces, or a file too large to hold in memory, which is read piece by piece.
Errors of such a file are distinguished from errors of the store: an unreadable file is the caller's problem,
and nothing was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from treering.core.storage import BlobData
from treering.errors import InvalidInput

MAX_NAME_BYTES: Final = 800
"""A bucket allows 1,024 bytes for its prefix and the name together."""

MAX_PART_BYTES: Final = 255

RESERVED: Final = ".drafts"
"""The folder at the root of every store for unfinished writes; blobs cannot have a name in it."""

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_name(name: str) -> tuple[str, ...]:
    """Return the components of a name, or raise `InvalidInput`."""
    parts = tuple(name.split("/"))
    problem = _problem(name, parts)
    if problem:
        raise InvalidInput(f"blob name {name[:100]!a} {problem}")
    return parts


def check_folder(folder: str) -> tuple[str, ...]:
    """Return the components of a folder; a trailing slash is optional, and '' is the root."""
    return check_name(folder.removesuffix("/")) if folder else ()


def check_range(name: str, start: int, stop: int | None) -> None:
    """Reject a range with negative numbers."""
    if start < 0 or (stop is not None and stop < 0):
        raise InvalidInput(f"range {start}:{stop} of blob {name!r} is invalid; count from 0")


def is_name(name: str) -> bool:
    """Whether this is a valid name."""
    return not _problem(name, tuple(name.split("/")))


def _problem(name: str, parts: tuple[str, ...]) -> str:
    if "" in parts:
        return "has an empty component; write it as 'packs/ab/name', without a slash at either end"
    if "." in parts or ".." in parts:
        return "has '.' or '..' as a component; use the path from the root of the store"
    if found := _FORBIDDEN.search(name):
        return f"contains U+{ord(found[0]):04X}; remove control characters, surrogates and backslashes"
    if len(name.encode()) > MAX_NAME_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"is too long; the limit is {MAX_NAME_BYTES} bytes, and {MAX_PART_BYTES} per component"
    if parts[0] == RESERVED:
        return f"is in {RESERVED}, which is reserved; use another folder"
    return ""


_PIECE: Final = 1 << 20


def size_of(data: BlobData) -> int:
    """Return the size in bytes."""
    if isinstance(data, tuple):
        return sum(map(len, data))
    if not isinstance(data, Path):
        return memoryview(data).nbytes
    try:
        return data.stat().st_size
    except OSError as error:
        raise _unreadable(data, error) from error


def pieces_of(data: BlobData) -> Iterator[bytes | bytearray | memoryview]:
    """Yield the bytes: those of a file one megabyte at a time, others as given."""
    if isinstance(data, tuple):
        yield from data
        return
    if not isinstance(data, Path):
        yield data
        return
    try:
        file = data.open("rb", buffering=0)
    except OSError as error:
        raise _unreadable(data, error) from error
    with file:
        while piece := _next_piece(file, data):
            yield piece


def whole_of(data: BlobData) -> bytes:
    """Return all bytes at once."""
    return data if isinstance(data, bytes) else b"".join(pieces_of(data))


def _next_piece(file: FileIO, path: Path) -> bytes:
    try:
        return file.read(_PIECE)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"cannot read {path} ({error.strerror or error}); nothing was written")
