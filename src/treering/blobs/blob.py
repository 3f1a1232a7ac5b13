"""Names of blobs: relative paths that mean the same in a folder and in every bucket.

Servers differ over what they do to odd names (one turns a backslash into a slash, another drops a trailing
slash, clients refuse control characters), so a name that any of them would change is refused before the
first byte is sent. **Invariant:** whatever `check_name` accepts is listed back exactly as it was put.
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
"""A bucket allows 1,024 for its own prefix and the name together."""

MAX_PART_BYTES: Final = 255

RESERVED: Final = ".drafts"
"""The folder at the root of every store where unfinished things live; no blob has a name in it."""

_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_name(name: str) -> tuple[str, ...]:
    """The components of a name that every store can hold; any other name raises `InvalidInput`."""
    parts = tuple(name.split("/"))
    problem = _problem(name, parts)
    if problem:
        raise InvalidInput(f"blob name {name[:100]!a} {problem}")
    return parts


def check_folder(folder: str) -> tuple[str, ...]:
    """The components of a folder to list, given with or without a slash at its end; '' is all."""
    return check_name(folder.removesuffix("/")) if folder else ()


def check_range(name: str, start: int, stop: int | None) -> None:
    """Refuse a range that counts from the end."""
    if start < 0 or (stop is not None and stop < 0):
        raise InvalidInput(f"range {start}:{stop} of blob {name!r} is not acceptable; count from 0")


def is_name(name: str) -> bool:
    """Whether a blob can have this name."""
    return not _problem(name, tuple(name.split("/")))


def _problem(name: str, parts: tuple[str, ...]) -> str:
    if "" in parts:
        return "has an empty component; write it as 'packs/ab/name', without a slash at either end"
    if "." in parts or ".." in parts:
        return "has '.' or '..' as a component; give the path from the root of the store"
    if found := _FORBIDDEN.search(name):
        return f"contains U+{ord(found[0]):04X}; leave out control characters, surrogates and backslashes"
    if len(name.encode()) > MAX_NAME_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"is too long; the limit is {MAX_NAME_BYTES} bytes, and {MAX_PART_BYTES} between two slashes"
    if parts[0] == RESERVED:
        return f"lies in {RESERVED}, which the store keeps for itself; choose another folder"
    return ""


# -----------------------------------------------------------------------------------------------------------
# What a blob is made of: bytes at hand, in one piece or several, or a file that is too large to hold.
#
# A file is read in pieces, so that the memory in use does not depend on its size. Its errors are told apart
# from those of the store: a file that cannot be read is the caller's, and nothing was written.


_PIECE: Final = 1 << 20


def size_of(data: BlobData) -> int:
    """How many bytes there are."""
    if isinstance(data, tuple):
        return sum(map(len, data))
    if not isinstance(data, Path):
        return memoryview(data).nbytes
    try:
        return data.stat().st_size
    except OSError as error:
        raise _unreadable(data, error) from error


def pieces_of(data: BlobData) -> Iterator[bytes | bytearray | memoryview]:
    """The bytes: those of a file a megabyte at a time, others as they came."""
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
    """The bytes, all at once."""
    return data if isinstance(data, bytes) else b"".join(pieces_of(data))


def _next_piece(file: FileIO, path: Path) -> bytes:
    try:
        return file.read(_PIECE)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be read ({error.strerror or error}); nothing was written")
