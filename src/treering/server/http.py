"""HTTP in both directions: errors as RFC 9457 problem documents, request bodies within limits.

A problem's ``type`` is the class of the error, so that a client can raise the same one; ``detail`` is its
message. An unexpected exception is logged under a reference, and only the reference is sent. **Invariant:**
no body makes the server hold more than its limit, however it is compressed or sent, and none is decompressed
or parsed on the event loop, unless it is small.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import zlib
from typing import Any, Final

import msgspec
from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from treering.errors import (
    BudgetExceeded,
    InvalidInput,
    MissingObjects,
    TimedOut,
    TooLarge,
    TooMany,
    TreeringError,
    Unauthorized,
)

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:treering:error:"
SMALL_BYTES: Final = 64 * 1024
"""A body up to this size is parsed on the event loop, which is faster than changing to a thread."""
BODY_SECONDS: Final = 300.0
"""Time limit for receiving a body."""
MAX_MEMBERS: Final = 1024
"""How many gzip members a body may consist of: as many as bgzip makes of 64 MB."""
MAX_VALUES: Final = 500_000
"""How many values a JSON body may have: parsing holds Python's global lock, so many would stop the server."""
_PIECE_BYTES: Final = 64 * 1024
_SCAN_BYTES: Final = 1024 * 1024
_log: Final = logging.getLogger("treering.server")


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error: its class, message, HTTP status, and whether retrying may succeed."""

    type: str
    title: str
    status: int
    detail: str
    retryable: bool = False
    more: dict[str, Any] = {}
    """Fields of that class of error, such as ``hashes`` or ``budget``."""


def problem_of(error: TreeringError) -> Problem:
    """Return an error as a problem document."""
    kind = type(error)
    return Problem(
        type=TYPE + kind.__name__,
        title=(kind.__doc__ or kind.__name__).strip().partition("\n")[0],
        status=kind.http_status,
        detail=str(error) or kind.__name__,
        retryable=kind.retryable,
        more=_more(error),
    )


def respond(error: TreeringError) -> Response:
    """Return the response to a call that failed."""
    problem = problem_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, TooMany):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    elif problem.status == 503:  # noqa: PLR2004 - unavailable
        headers["retry-after"] = "1"
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = 'Bearer realm="treering"'
    return Response(
        msgspec.json.encode(problem), status_code=problem.status, media_type=MEDIA_TYPE, headers=headers
    )


def respond_unexpected(error: Exception, where: str) -> Response:
    """Return the response to an unexpected exception: a reference into the server log, no details."""
    reference = secrets.token_hex(4)
    _log.error("%s failed [%s]", where, reference, exc_info=error)
    return problem_response(500, "Internal server error", f"see the server log for {reference}")


def problem_response(
    status: int, title: str, detail: str, *, headers: dict[str, str] | None = None
) -> Response:
    """Return a problem that is not a `TreeringError`: unknown route, wrong method, internal error."""
    problem = Problem(type="about:blank", title=title, status=status, detail=detail)
    return Response(
        msgspec.json.encode(problem), status_code=status, media_type=MEDIA_TYPE, headers=headers or {}
    )


def _more(error: TreeringError) -> dict[str, Any]:
    if isinstance(error, MissingObjects):
        return {"hashes": list(error.hashes)}
    if isinstance(error, BudgetExceeded):
        return {"budget": error.budget, "limit": error.limit, "count": error.count}
    if isinstance(error, TooMany):
        return {"retry_after": error.retry_after}
    return {}


async def read_body(request: Request, *, limit: int) -> bytes:
    """Read the body and decompress it (gzip or deflate).

    Raises:
        TooLarge: It has more than ``limit`` bytes, before or after decompression, or too many gzip members.
        TimedOut: It did not arrive in time.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await _receive(request, limit)
    except ClientDisconnect:
        raise InvalidInput(
            "the client disconnected before the body was complete; nothing was written"
        ) from None
    except TimeoutError:
        raise TimedOut(
            f"the request did not arrive within {BODY_SECONDS:.0f} seconds; send it again"
        ) from None
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return data
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InvalidInput(f"unknown content-encoding {encoding[:40]!r}; send gzip, deflate or none")
    return await to_thread.run_sync(lambda: inflate(data, limit=limit))


async def _receive(request: Request, limit: int) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limit:
            raise _too_large(limit)
    return bytes(data)


def inflate(data: bytes, *, limit: int) -> bytes:
    """Decompress gzip or zlib data of up to `MAX_MEMBERS` members and ``limit`` bytes.

    The data is passed to zlib in small pieces, because it copies what it has not used yet: at the end of each
    member all that follows.
    """
    whole = bytearray()
    member: Any = None
    members = 0
    pieces = (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))
    for next_piece in pieces:
        piece = next_piece
        while piece:
            if member is None:
                member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
                members += 1
                if members > MAX_MEMBERS:
                    raise TooLarge(
                        f"the body has more than {MAX_MEMBERS:,} gzip members; compress it as a whole "
                        "(nothing was written)"
                    )
            try:
                whole += member.decompress(piece, limit + 1 - len(whole))
            except zlib.error as error:
                raise InvalidInput(f"the body cannot be decompressed: {error}; nothing was written") from None
            if len(whole) > limit:
                raise _too_large(limit)
            piece = member.unused_data or member.unconsumed_tail
            if member.eof:
                member = None
    if member is not None:
        raise InvalidInput("the compressed body is truncated; nothing was written")
    return bytes(whole)


async def parse_json(data: bytes, kind: Any) -> Any:
    """Return a JSON body as a type; a large one is parsed in a worker thread.

    Raises:
        InvalidInput: It is not JSON, or not of that type.
        TooLarge: It has more than `MAX_VALUES` values.
    """
    if len(data) <= SMALL_BYTES:
        return _parse_json(data, kind)
    return await to_thread.run_sync(_parse_json, data, kind)


def _parse_json(data: bytes, kind: Any) -> Any:
    check_values(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"invalid body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply; nothing was written") from None


def check_values(data: bytes) -> None:
    """Raise `TooLarge` if JSON has more than `MAX_VALUES` values, without parsing it."""
    if len(data) <= MAX_VALUES:  # a value has a byte at least
        return
    count = 0
    is_text = False
    rest = b""
    for start in range(0, len(data), _SCAN_BYTES):  # other threads may run in between
        piece = (rest + data[start : start + _SCAN_BYTES]).replace(rb"\\", b"").replace(rb"\"", b"")
        rest = b"\\" if piece.endswith(b"\\") else b""  # it escapes what the next piece begins with
        parts = piece.split(b'"')
        outside = b"".join(parts[is_text::2])
        is_text ^= len(parts) % 2 == 0
        count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if count > MAX_VALUES:
            raise TooLarge(
                f"the body has more than {MAX_VALUES:,} values; send it in smaller requests "
                "(nothing was written)"
            )


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {limit:,} bytes; send it in smaller requests (nothing was written)"
    )
