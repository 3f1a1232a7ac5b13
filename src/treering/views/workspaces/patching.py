"""Patching: what of a large file is in its place already is copied from there instead of being fetched.

One step back in a large file changes a few of its objects. If the file is still the one that was looked at
(its stamp says so, as for every file that a restore leaves alone), the others lie in it where its ``cuts``
say; the kernel copies them into the new file without their passing through here. After the last of them the
stamp is compared again. **Invariant:** a file that changed meanwhile is not patched: `Moved` is raised before
the new one gets its name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from treering.views.workspaces.known import KnownFile, stamp_of
from treering.views.workspaces.scanning import FILE_FLAGS

_BLOCK: Final = 512
_PIECE: Final = 1 << 20
_NOT_OFFERED: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV, errno.EPERM})


class Moved(Exception):
    """The file is not as it was known."""


class Range(NamedTuple):
    """Some bytes of the file that is there."""

    start: int
    size: int


class Present:
    """A large file that is there, open and as it was known."""

    def __init__(self, file: int, known: KnownFile) -> None:
        self._file = file
        self._stamp = known.stamp
        starts = accumulate(known.cuts, initial=0)
        self.ranges: Mapping[str, Range] = {
            name: Range(start, size)
            for name, start, size in zip(known.content, starts, known.cuts, strict=False)
        }

    def copy(self, some: Range, into: int) -> None:
        """Append these bytes to another file."""
        start, left = some
        while left:
            copied = _copied(self._file, into, left, start)
            if not copied:
                raise Moved
            start, left = start + copied, left - copied

    def check(self) -> None:
        """`Moved` unless the file is still as it was known."""
        if stamp_of(os.fstat(self._file)) != self._stamp:
            raise Moved

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def opened_present(name: str, folder: int, known: KnownFile | None) -> Present | None:
    """The file of this name, if it can be patched: one with holes would lose them."""
    if known is None or len(known.cuts) != len(known.content) or not known.cuts:
        return None
    try:
        file = os.open(name, FILE_FLAGS, dir_fd=folder)
    except OSError:
        return None
    stat = os.fstat(file)
    if stamp_of(stat) != known.stamp or stat.st_blocks * _BLOCK < stat.st_size:
        os.close(file)
        return None
    return Present(file, known)


def joined(pieces: Iterator[bytes | Range]) -> Iterator[bytes | Range]:
    """The same, with neighbouring ranges as one."""
    last: Range | None = None
    for piece in pieces:
        if isinstance(piece, Range) and last is not None and last.start + last.size == piece.start:
            last = Range(last.start, last.size + piece.size)
            continue
        if last is not None:
            yield last
        last = piece if isinstance(piece, Range) else None
        if last is None:
            yield piece
    if last is not None:
        yield last


def _copied(source: int, into: int, size: int, start: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, into, size, start)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
    return os.write(into, os.pread(source, min(size, _PIECE), start))
