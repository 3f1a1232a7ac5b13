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
import traceback
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
LARGE_BYTES: Final = 1024 * 1024
"""A body of this size, as sent or decompressed, waits for its turn."""
LARGE_AT_ONCE: Final = 4
"""How many large bodies a caller may send at once."""
PROCESSED_AT_ONCE: Final = 2
"""How many large bodies are processed at once in all. More would not be quicker, because parsing holds
Python's global lock, and each would keep the event loop waiting for it.
"""
_DEFLATE_RATIO: Final = 1032
"""A byte of compressed data becomes at most so many."""
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


def clear_frames(error: BaseException) -> None:
    """Let go of what the code that raised an error was working on.

    An error that came out of a worker thread is part of a reference cycle, which would keep a large body in
    memory until the next garbage collection.
    """
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None  # frames that still run cannot be cleared
        each = each.__context__


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


class LargeBodies:
    """Bounds the memory and time that large bodies take together, whoever sends them.

    Only a few are received from each caller at once, so that slow senders keep no others waiting, and only a
    few are decompressed, parsed and handled at once in all.
    """

    def __init__(self) -> None:
        self._processing = asyncio.Semaphore(PROCESSED_AT_ONCE)
        self._receiving: dict[str, asyncio.Semaphore] = {}

    def turn(self, caller: str) -> BodyTurn:
        """Return the turn of a request, which `BodyTurn.end` ends."""
        receiving = self._receiving.setdefault(caller, asyncio.Semaphore(LARGE_AT_ONCE))
        return BodyTurn(receiving, self._processing)


class BodyTurn:
    """The turn of one request, taken once its body turns out to be large."""

    def __init__(self, receiving: asyncio.Semaphore, processing: asyncio.Semaphore) -> None:
        self._steps = (receiving, processing)
        self._taken = 0

    async def receive(self) -> None:
        """Wait until a large body may be received."""
        await self._take(1)

    async def process(self) -> None:
        """Wait until a large body may be decompressed and parsed."""
        await self._take(2)

    async def _take(self, steps: int) -> None:
        for step in self._steps[self._taken : steps]:
            await step.acquire()
            self._taken += 1

    def end(self) -> None:
        """Let others have their turn."""
        while self._taken:
            self._taken -= 1
            self._steps[self._taken].release()


async def read_body(request: Request, *, limit: int) -> bytes:
    """Read the body and decompress it (gzip or deflate), in the turn of the request if it is large.

    Raises:
        TooLarge: It has more than ``limit`` bytes, before or after decompression, or too many gzip members.
        TimedOut: It did not arrive in time.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    turn: BodyTurn = request.state.turn
    is_large = int(declared) >= LARGE_BYTES if declared.isdigit() else "transfer-encoding" in request.headers
    if is_large:
        await turn.receive()
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
    is_plain = encoding in {"", "identity"}
    if len(data) * (1 if is_plain else _DEFLATE_RATIO) >= LARGE_BYTES:
        await turn.process()
    elif is_large:
        turn.end()
    if is_plain:
        return data
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InvalidInput(f"unknown content-encoding {encoding[:40]!r}; send gzip, deflate or none")
    whole = await to_thread.run_sync(lambda: inflate(data, limit=limit))
    if len(whole) < LARGE_BYTES:
        turn.end()
    return whole


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
