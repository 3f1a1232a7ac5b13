"""The wire: messages of the gateway as frames, in requests and in answers alike.

A frame is a tag ``u8``, a length ``u32`` (big-endian) and that many bytes. The tag says what they are: a
message (MessagePack), a tick (nothing; the other side is still at work), a problem (JSON, the answer ends
with it) or the end. Its highest bit says that the bytes are compressed with zstd. **Invariant:** an answer
without its end or its problem was cut off and is never taken for a whole one, and no frame unfolds to more
than the reader's limit.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from treering.errors import InvalidInput, TooLarge

if sys.version_info >= (3, 14) and not TYPE_CHECKING:
    from compression import zstd
else:
    from backports import zstd

MESSAGE: Final = 1
TICK: Final = 2
PROBLEM: Final = 3
END: Final = 4
_ZSTD: Final = 0x80

COMPRESS_FROM: Final = 4096
"""Below this many bytes, compressing takes longer than sending."""
_LEVEL: Final = 1

HEAD: Final = struct.Struct(">BI")

Read = Callable[[int], bytes]
"""Reads exactly so many bytes, or fewer where there are no more."""


class CutOff(Exception):
    """The bytes ended in the middle."""


def frame(tag: int, data: bytes = b"") -> bytes:
    """A frame, compressed when it is long enough and shrinks."""
    if len(data) >= COMPRESS_FROM:
        packed = zstd.compress(data, _LEVEL)
        if len(packed) < len(data):
            return HEAD.pack(tag | _ZSTD, len(packed)) + packed
    return HEAD.pack(tag, len(data)) + data


def frames(read: Read, *, limit: int) -> Iterator[tuple[int, bytes]]:
    """The tags and bytes of frames, until the source ends behind one of them."""
    while head := read(HEAD.size):
        if len(head) < HEAD.size:
            raise CutOff
        tag, length = HEAD.unpack(head)
        if length > limit:
            raise _too_large(limit)
        data = read(length) if length else b""
        if len(data) < length:
            raise CutOff
        yield tag & ~_ZSTD, _inflate(data, limit) if tag & _ZSTD else data


def reader(data: bytes) -> Read:
    """Reads from bytes at hand."""
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        piece = data[position : position + size]
        position += len(piece)
        return piece

    return read


def _inflate(data: bytes, limit: int) -> bytes:
    # Not zstd.decompress: it goes on into frames behind the first, whose sizes nobody has looked at.
    decompressor = zstd.ZstdDecompressor()
    try:
        size: int | None = cast("Any", zstd.get_frame_info(data)).decompressed_size
        if size is not None and size > limit:
            raise _too_large(limit)
        whole = decompressor.decompress(data, (limit if size is None else size) + 1)
    except zstd.ZstdError as error:
        raise InvalidInput(f"a compressed frame is damaged ({error}); send it again") from None
    if len(whole) > limit:
        raise _too_large(limit)
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidInput("a compressed frame is cut, or has something behind it; send it again")
    return whole


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a frame is larger than {limit:,} bytes; send less at once (nothing was written)")
