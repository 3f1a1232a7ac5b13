"""Content-defined chunking: large files are cut where their bytes say so, not at fixed offsets.

A rolling "gear" hash runs over the bytes, and a cut falls where its masked bits are all zero, so an
insertion moves the cuts with the content: the chunks before it stay, one or two around it change, and the
ones after it come out equal again and are stored already. The algorithm is FastCDC (2020, as in
``fastcdc-rs``), normalised level 1, from 64 KiB to 1 MiB, centred on 256 KiB; files of up to 1 MiB are
one chunk. **Invariant:** these numbers, the gear table and therefore every cut are part of the stored
format. Another cut would lose no data, but every large file would be stored a second time.

pyfastcdc's compiled code does the work at 2 GB/s; where it is not installed, the Python below finds the
same cuts at about 5 MB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import md5
from mmap import mmap
from typing import Final, Protocol

import msgspec

WHOLE_BYTES: Final = 1024 * 1024
"""Up to this size, data is one chunk."""

_MIN_BYTES: Final = 64 * 1024
_AVERAGE_BYTES: Final = 256 * 1024
_MAX_BYTES: Final = 1024 * 1024
_MASK_BELOW_AVERAGE: Final = 0x0000D91707537000
_MASK_ABOVE_AVERAGE: Final = 0x0000D90703537000
_64_BITS: Final = (1 << 64) - 1

_READ_BYTES: Final = 4 * _MAX_BYTES


class ByteRange(msgspec.Struct, frozen=True):
    """The bytes from ``start`` up to, not including, ``stop``."""

    start: int
    stop: int


class Holes(Protocol):
    """What is known of a stream without reading it."""

    def ahead(self) -> int:
        """How many of the next bytes are zeros for certain."""
        ...

    def skip(self, size: int) -> None:
        """Pass over some of them."""
        ...


Cutter = Callable[[memoryview], Iterator[int]]
"""Yields where each chunk of a buffer ends; the last one ends where the buffer does."""


def chunks(data: bytes | memoryview | mmap) -> Iterator[ByteRange]:
    """The spans that cover ``data`` in order, without a gap; none if it is empty."""
    if len(data) <= WHOLE_BYTES:
        if len(data):
            yield ByteRange(0, len(data))
        return
    start = 0
    for stop in _cutter()(memoryview(data)):
        yield ByteRange(start, stop)
        start = stop


def stream_chunks(read: Callable[[memoryview], int], holes: Holes | None = None) -> Iterator[bytes]:
    """The same chunks of what ``read`` puts into the buffers that it is given, until it says 0.

    Takes a buffer of 4 MiB and the chunk that was given out last. Of long ``holes`` nothing is read, and
    their chunks are one object, given out again and again.
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
            # A cut depends on the 1 MiB after its chunk begins, so without that much it is not final yet.
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
            while left >= _MAX_BYTES:  # a cut depends on no more than these
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
    """The chunk that a run of zeros begins with."""
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
    """The cutter where there is no compiled one."""
    start = 0
    while start < len(data):
        start += _first_cut(data[start : start + _MAX_BYTES])
        yield start


def _first_cut(window: memoryview) -> int:
    # The reference reads two bytes a turn and never looks at the odd byte before a boundary.
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
    # The published table, by its recipe: 64 times the byte, MD5, the first eight bytes.
    return tuple(
        int.from_bytes(md5(bytes([byte]) * 64, usedforsecurity=False).digest()[:8], "big")
        for byte in range(256)
    )
