"""A file of JSON lines that follows a part of the journal, for people who read along.

The journal is the record; the file is a copy that can be tailed, grepped and carried off. Whatever happens to
it is put right at the next append: a torn last line is taken off (it would be glued to the next one), and
lines that never arrived are written. **Invariant:** after an append the file holds the journal's lines in the
journal's order, each whole and each once, however many processes write.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_UN, flock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from treering.files import read_range, translated

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

_BLOCK: Final = 1 << 20


class Source(Protocol):
    """Where the lines come from."""

    def __call__(self, *, skip: int = 0, after: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Lines in order, each behind its cursor: those after a cursor, or all but the first ``skip``."""
        ...


class _Left(NamedTuple):
    """How we left the file: its size, its lines, and the cursor of the last one."""

    size: int
    lines: int
    cursor: str | None


class LineFile:
    """One file of lines."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        self._source = source
        self._left: _Left | None = None

    def catch_up(self) -> None:
        """Write what the journal has and the file has not."""
        with translated(str(self.path), writing=True), self._locked() as file:
            size, count, cursor = self._whole_lines(file)
            lines = self._source(after=cursor) if cursor is not None else self._source(skip=count)
            for position, line in lines:
                piece = line + b"\n"
                while piece:
                    written = os.pwrite(file, piece, size)
                    size += written
                    piece = piece[written:]
                count += 1
                cursor = position
            self._left = _Left(size, count, cursor)

    def remove(self) -> None:
        """Take the file away, if it is there."""
        with translated(str(self.path), writing=True):
            self.path.unlink(missing_ok=True)
        self._left = None

    @contextmanager
    def _locked(self) -> Generator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            flock(file, LOCK_EX)
            yield file
        finally:
            flock(file, LOCK_UN)
            os.close(file)

    def _whole_lines(self, file: int) -> _Left:
        """Cut the file behind its last whole line; what is in it now."""
        size = os.fstat(file).st_size
        if self._left is not None and self._left.size == size:
            return self._left
        count, end = 0, 0
        for start in range(0, size, _BLOCK):
            block = read_range(file, start, min(start + _BLOCK, size))
            count += block.count(b"\n")
            if (last := block.rfind(b"\n")) >= 0:
                end = start + last + 1
        if end < size:
            os.ftruncate(file, end)
        return _Left(end, count, None)
