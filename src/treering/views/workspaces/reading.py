"""Reading a file that may change, grow or have holes: never more than the size that it had."""

from __future__ import annotations

import errno
import os


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
