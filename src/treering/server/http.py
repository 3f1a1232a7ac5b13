"""HTTP in both directions: errors as RFC 9457 problem documents, request bodies within limits.

A problem's ``type`` is the class of the error, so that a client can raise the same one; ``detail`` is its
message. An unexpected exception is logged under a reference, and only the reference is sent. **Invariant:**
no body makes the server hold more than its limit, however it is compressed or sent.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from typing import Any, Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from treering.errors import (
    BudgetExceeded,
    InvalidInput,
    MissingObjects,
    TooLarge,
    TooMany,
    TreeringError,
    Unauthorized,
)

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:treering:error:"
_FLUSH_BYTES: Final = 64 * 1024
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
        TooLarge: It has more than ``limit`` bytes, before or after decompression.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise InvalidInput(
            "the client disconnected before the body was complete; nothing was written"
        ) from None
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return bytes(data)
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InvalidInput(f"unknown content-encoding {encoding[:40]!r}; send gzip, deflate or none")
    return inflate(bytes(data), limit=limit)


def inflate(data: bytes, *, limit: int) -> bytes:
    """Decompress gzip or zlib data of any number of members, up to ``limit`` bytes."""
    whole = bytearray()
    while data:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            whole += member.decompress(data, limit + 1 - len(whole))
            if len(whole) > limit:
                raise _too_large(limit)
            whole += member.flush(_FLUSH_BYTES)
        except zlib.error as error:
            raise InvalidInput(f"the body cannot be decompressed: {error}; nothing was written") from None
        if len(whole) > limit:
            raise _too_large(limit)
        if not member.eof:
            raise InvalidInput("the compressed body is truncated; nothing was written")
        data = member.unused_data
    return bytes(whole)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the body is larger than {limit:,} bytes; send it in smaller requests (nothing was written)"
    )
