"""OTLP over HTTP: ``/v1/traces``, ``/v1/logs`` and ``/v1/metrics``, in protobuf or JSON, gzipped or not.

A 200 means that everything in the request that could be stored is durable; the rest is counted and described
as a partial success. Concurrent requests are committed together. A request that is safe to retry is answered
with 503 and ``Retry-After``, so that the exporter keeps it; one that will never be accepted, with 400.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from anyio import to_thread
from starlette.responses import Response

from treering.errors import InvalidInput, TooMany, TreeringError
from treering.server.endpoints import Call, endpoint
from treering.server.http import SMALL_BYTES, check_values, clear_frames, read_body

if TYPE_CHECKING:
    from starlette.requests import Request

    from treering.runs.otlp.decode import Encoding, Signal
    from treering.runs.otlp.ingest import IngestResult

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_ENCODINGS: Final[dict[str, Encoding]] = {
    PROTOBUF: "protobuf",
    "application/protobuf": "protobuf",
    JSON: "json",
}
_REJECTED: Final[dict[Signal, str]] = {
    "traces": "rejectedSpans",
    "logs": "rejectedLogRecords",
    "metrics": "rejectedDataPoints",
}
_BAD: Final = 400
_LATER: Final = 503
_UNAVAILABLE: Final = 14
_INVALID: Final = 3
"""Codes of ``google.rpc.Status``, the body of an error in OTLP."""


@endpoint("POST", "/v1/traces", tag="otlp", raw_body=True)
async def export_traces(call: Call[None, None]) -> Response:
    """Ingest spans in OTLP (protobuf or JSON). Responds when they are durable."""
    return await _export(call, "traces")


@endpoint("POST", "/v1/logs", tag="otlp", raw_body=True)
async def export_logs(call: Call[None, None]) -> Response:
    """Ingest log records in OTLP (protobuf or JSON). Responds when they are durable."""
    return await _export(call, "logs")


@endpoint("POST", "/v1/metrics", tag="otlp", raw_body=True)
async def export_metrics(call: Call[None, None]) -> Response:
    """Ingest metrics in OTLP (protobuf or JSON). Responds when they are durable."""
    return await _export(call, "metrics")


ENDPOINTS: Final = (export_traces, export_logs, export_metrics)


async def _export(call: Call[None, None], signal: Signal) -> Response:
    request = call.request
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = _ENCODINGS.get(media)
    if encoding is None:
        return Response(f"send {PROTOBUF} or {JSON}, not {media[:80]!r}\n", status_code=415)
    try:
        data = await read_body(request, limit=_limit(request))
        if encoding == "json" and len(data) > SMALL_BYTES:
            await to_thread.run_sync(check_values, data)
        future = call.store.otlp.submit(data, signal=signal, encoding=encoding)
        result = await asyncio.wrap_future(future)
    except TreeringError as error:
        clear_frames(error)
        return _error(error, encoding)
    return Response(success(result, signal, encoding), media_type=media)


def _limit(request: Request) -> int:
    return request.app.state.treering.settings.max_body


def success(result: IngestResult, signal: Signal, encoding: Encoding) -> bytes:
    """Return the body of the response to a request that was ingested."""
    if encoding == "json":
        if not result.rejected:
            return b"{}"
        partial = {_REJECTED[signal]: str(result.rejected), "errorMessage": result.message}
        return msgspec.json.encode({"partialSuccess": partial})
    if not result.rejected:
        return b""
    return _field(1, _number(1, result.rejected) + _field(2, result.message.encode()))


def _error(error: TreeringError, encoding: Encoding) -> Response:
    """Return an error as OTLP requires: the status says whether to retry."""
    if isinstance(error, TooMany):
        status = error.http_status
    elif error.retryable:
        status = _LATER
    else:
        status = _BAD if isinstance(error, InvalidInput) else error.http_status
    code = _UNAVAILABLE if error.retryable else _INVALID
    headers = {"retry-after": "1"} if error.retryable else {}
    if encoding == "json":
        body = msgspec.json.encode({"code": code, "message": str(error)})
        return Response(body, status_code=status, media_type=JSON, headers=headers)
    body = _number(1, code) + _field(2, str(error).encode())
    return Response(body, status_code=status, media_type=PROTOBUF, headers=headers)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
