"""Content-defined chunking: large files are cut depending on their bytes, not at fixed offsets.

A rolling "gear" hash runs over the bytes, and a chunk ends where its masked bits are all zero. Inserting
bytes therefore moves the cuts along with the content: chunks before the insertion stay the same, one or two
change, and the following ones are equal again and already stored. The algorithm is FastCDC (2020, as in
``fastcdc-rs``), normalisation level 1, minimum 64 KiB, average 256 KiB, maximum 1 MiB; files of up to 1 MiB
are one chunk. **Invariant:** these numbers and the gear table, and therefore every cut, are part of the
stored format. Different cuts would lose no data, but store every large file a second time.

pyfastcdc (compiled) runs at 2 GB/s. Where it is not installed, the pure Python version below finds the same
cuts at about 5 MB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import md5
from mmap import mmap
from typing import Final, Protocol

import msgspec

WHOLE_BYTES: Final = 1024 * 1024
"""Data of up to this size is a single chunk."""

_MIN_BYTES: Final = 64 * 1024
_AVERAGE_BYTES: Final = 256 * 1024
_MAX_BYTES: Final = 1024 * 1024
_MASK_BELOW_AVERAGE: Final = 0x0000D91707537000
_MASK_ABOVE_AVERAGE: Final = 0x0000D90703537000
_64_BITS: Final = (1 << 64) - 1

_READ_BYTES: Final = 4 * _MAX_BYTES


class ByteRange(msgspec.Struct, frozen=True):
    """The bytes from ``start`` up to, but not including, ``stop``."""

    start: int
    stop: int


class Holes(Protocol):
    """The holes of a sparse file, as far as known without reading it."""

    def ahead(self) -> int:
        """How many of the next bytes are certainly zero."""
        ...

    def skip(self, size: int) -> None:
        """Skip that many bytes of a hole."""
        ...


Cutter = Callable[[memoryview], Iterator[int]]
"""Yields the end of each chunk in a buffer; the last one is the end of the buffer."""


def chunks(data: bytes | memoryview | mmap) -> Iterator[ByteRange]:
    """Yield the ranges of the chunks of ``data``, in order and without gaps; nothing for empty data."""
    if len(data) <= WHOLE_BYTES:
        if len(data):
            yield ByteRange(0, len(data))
        return
    start = 0
    for stop in _cutter()(memoryview(data)):
        yield ByteRange(start, stop)
        start = stop


def stream_chunks(read: Callable[[memoryview], int], holes: Holes | None = None) -> Iterator[bytes]:
    """Yield the same chunks of a stream; ``read`` fills the buffers passed to it and returns 0 at the end.

    Memory use is a buffer of 4 MiB plus the current chunk. Long ``holes`` are not read, and all their
    chunks are the same bytes object.
    """
    window = memoryview(bytearray(_READ_BYTES))
    filled = _fill(read, window)
    if filled <= WHOLE_BYTES:
        if filled:
            yield bytes(window[:filled])
        return
    while filled:
        is_last = filled < _READ_BYTES
        start = 0
        for stop in _cutter()(window[:filled]):
            # A cut depends on the 1 MiB that follows the start of its chunk: with less it is not final yet.
            if filled - start < _MAX_BYTES and not is_last:
                break
            yield bytes(window[start:stop])
            start = stop
        if is_last:
            return
        carried = filled - start
        window[:carried] = window[start:filled]
        if holes is not None and (ahead := holes.ahead()) >= _MAX_BYTES and not any(window[:carried]):
            left = carried + ahead
            while left >= _MAX_BYTES:  # a cut depends on at most this much
                yield _zeros()
                left -= len(_zeros())
            holes.skip(ahead - left)
            carried = 0
        filled = carried + _fill(read, window[carried:])


def _fill(read: Callable[[memoryview], int], buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer) and (got := read(buffer[filled:])):
        filled += got
    return filled


@cache
def _zeros() -> bytes:
    """Return the first chunk of a long run of zeros."""
    return bytes(next(_cutter()(memoryview(bytes(_MAX_BYTES)))))


@cache
def _cutter() -> Cutter:
    try:
        from pyfastcdc import FastCDC
    except ImportError:
        return cut_in_python

    def cut(data: memoryview) -> Iterator[int]:
        cdc = FastCDC(_AVERAGE_BYTES, min_size=_MIN_BYTES, max_size=_MAX_BYTES, normalized_chunking=1, seed=0)
        for chunk in cdc.cut_buf(data):
            yield chunk.offset + chunk.length

    return cut


def cut_in_python(data: memoryview) -> Iterator[int]:
    """Yield cuts without the compiled library."""
    start = 0
    while start < len(data):
        start += _first_cut(data[start : start + _MAX_BYTES])
        yield start


def _first_cut(window: memoryview) -> int:
    # The reference reads two bytes at a time and never looks at the odd byte before a boundary.
    average = min(_AVERAGE_BYTES, len(window)) & ~1
    end = len(window) & ~1
    gear = _gear()
    fingerprint = 0
    for first, stop, mask in (
        (_MIN_BYTES, average, _MASK_BELOW_AVERAGE),
        (average, end, _MASK_ABOVE_AVERAGE),
    ):
        for position, byte in enumerate(window[first:stop], first):
            fingerprint = (fingerprint << 1) + gear[byte] & _64_BITS
            if not fingerprint & mask:
                return position
    return len(window)


@cache
def _gear() -> tuple[int, ...]:
    # How the published table was made: MD5 of the byte repeated 64 times, first eight bytes.
    return tuple(
        int.from_bytes(md5(bytes([byte]) * 64, usedforsecurity=False).digest()[:8], "big")
        for byte in range(256)
    )
