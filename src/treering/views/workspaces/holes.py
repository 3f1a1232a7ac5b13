"""Writing with holes: blocks of zeros are passed over, and take no space on the disk."""

from __future__ import annotations

import os
from typing import Final

_BLOCK: Final = 4096
_ZEROS: Final = bytes(_BLOCK)


def write_all(file: int, data: bytes | memoryview) -> None:
    """Write where the file is at."""
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, memoryview(data)[written:])


def write_with_holes(file: int, piece: bytes) -> None:
    """The same, but whole blocks of zeros only move the place; a file that ends so has to be stretched."""
    if _ZEROS not in piece:
        write_all(file, piece)
        return
    if piece.startswith(_ZEROS) and piece == bytes(len(piece)):
        os.lseek(file, len(piece), os.SEEK_CUR)
        return
    view = memoryview(piece)
    offset = os.lseek(file, 0, os.SEEK_CUR)
    written = 0
    for start, stop in _holes(piece, offset):
        if start > written:
            write_all(file, view[written:start])
        os.lseek(file, offset + stop, os.SEEK_SET)
        written = stop
    if written < len(piece):
        write_all(file, view[written:])


def _holes(piece: bytes, offset: int) -> list[tuple[int, int]]:
    """Where a piece that lies at an offset is nothing but zeros, from block to block.

    At the ends of a piece a hole may go on in its neighbour, so there it need not begin or end with a block.
    """
    found: list[tuple[int, int]] = []
    at = 0
    while (start := piece.find(_ZEROS, at)) >= 0:
        at = start + -(offset + start) % _BLOCK
        start = start and at
        while piece.startswith(_ZEROS, at):
            at += _BLOCK
        if len(piece) - at < _BLOCK and not any(piece[at:]):
            at = len(piece)
        if start < at:
            found.append((start, at))
    return found
