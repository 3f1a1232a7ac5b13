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
from typing import Final

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


class Span(msgspec.Struct, frozen=True):
    """The bytes from ``start`` up to, not including, ``stop``."""

    start: int
    stop: int


Cutter = Callable[[memoryview], Iterator[int]]
"""Yields where each chunk of a buffer ends; the last one ends where the buffer does."""


def chunks(data: bytes | memoryview | mmap) -> Iterator[Span]:
    """The spans that cover ``data`` in order, without a gap; none if it is empty."""
    if len(data) <= WHOLE_BYTES:
        if len(data):
            yield Span(0, len(data))
        return
    start = 0
    for stop in _cutter()(memoryview(data)):
        yield Span(start, stop)
        start = stop


def stream_chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The same chunks of what ``read(size)`` gives until it gives ``b""``, holding about 8 MiB at a time."""
    window = _fill(read, b"")
    if len(window) <= WHOLE_BYTES:
        if window:
            yield window
        return
    while window:
        is_last = len(window) < _READ_BYTES
        start = 0
        for stop in _cutter()(memoryview(window)):
            # A cut depends on the 1 MiB after its chunk begins, so without that much it is not final yet.
            if len(window) - start < _MAX_BYTES and not is_last:
                break
            yield window[start:stop]
            start = stop
        window = b"" if is_last else _fill(read, window[start:])


def _fill(read: Callable[[int], bytes], carried: bytes) -> bytes:
    pieces = [carried]
    wanted = _READ_BYTES - len(carried)
    while wanted and (piece := read(wanted)):
        pieces.append(piece)
        wanted -= len(piece)
    return b"".join(pieces)


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
