"""Request bodies: read whole, within limits, decompressed within limits.

**Invariant:** no body makes the server hold more than its limit, however it is compressed or sent.
"""

from __future__ import annotations

import zlib
from typing import Final

from starlette.requests import ClientDisconnect, Request

from treering.errors import InvalidInput, TooLarge

_PIECE: Final = 64 * 1024


async def read_body(request: Request, *, limit: int) -> bytes:
    """The body, decompressed (gzip or deflate); `TooLarge` past ``limit`` bytes before or after that."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise InvalidInput("the client went away before the body was complete; nothing was written") from None
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return bytes(data)
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InvalidInput(f"content-encoding {encoding[:40]!r} is not known; send gzip, deflate or none")
    return inflate(bytes(data), limit=limit)


def inflate(data: bytes, *, limit: int) -> bytes:
    """Decompress gzip or zlib data of any number of members, as long as it stays within ``limit``."""
    whole = bytearray()
    while data:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            whole += member.decompress(data, limit + 1 - len(whole))
            if len(whole) > limit:
                raise _too_large(limit)
            whole += member.flush(_PIECE)
        except zlib.error as error:
            raise InvalidInput(f"the compressed body cannot be read: {error}; nothing was written") from None
        if len(whole) > limit:
            raise _too_large(limit)
        if not member.eof:
            raise InvalidInput("the compressed body ends too early; nothing was written")
        data = member.unused_data
    return bytes(whole)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit:,} bytes; send it in pieces (nothing was written)")
