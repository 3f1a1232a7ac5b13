"""What a blob is made of: bytes at hand, in one piece or several, or a file that is too large to hold.

A file is read in pieces, so that the memory in use does not depend on its size. Its errors are told apart
from those of the store: a file that cannot be read is the caller's, and nothing was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

from treering.core.storage import BlobData
from treering.errors import InvalidInput

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
