"""OTLP over HTTP: ``/v1/traces`` and ``/v1/logs``, in protobuf or JSON, gzipped or not.

An answer of 200 says that everything in the request which could be stored is durable; what could not be is
counted and named as a partial success. Requests that arrive together are committed together. What may be
sent again is answered with 503 and ``Retry-After``, so that an exporter keeps it; what never will be accepted
is answered with 400.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response

from treering.errors import InvalidInput, TooMany, TreeringError
from treering.server.endpoints import Call, endpoint
from treering.server.http import read_body

if TYPE_CHECKING:
    from starlette.requests import Request

    from treering.runs.otlp.ingest import Form, Ingested, Signal

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_FORMS: Final[dict[str, Form]] = {PROTOBUF: "protobuf", "application/protobuf": "protobuf", JSON: "json"}
_REFUSED: Final[dict[Signal, str]] = {"traces": "rejectedSpans", "logs": "rejectedLogRecords"}
_BAD: Final = 400
_LATER: Final = 503
_UNAVAILABLE: Final = 14
_INVALID: Final = 3
"""Codes of ``google.rpc.Status``, which the protocol wants in the body of an error."""


@endpoint("POST", "/v1/traces", tag="otlp", raw_body=True)
async def export_traces(call: Call[None, None]) -> Response:
    """Take spans in OTLP (protobuf or JSON); answers when they are durable."""
    return await _export(call, "traces")


@endpoint("POST", "/v1/logs", tag="otlp", raw_body=True)
async def export_logs(call: Call[None, None]) -> Response:
    """Take log records in OTLP (protobuf or JSON); answers when they are durable."""
    return await _export(call, "logs")


ENDPOINTS: Final = (export_traces, export_logs)


async def _export(call: Call[None, None], signal: Signal) -> Response:
    request = call.request
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = _FORMS.get(media)
    if form is None:
        return Response(f"send {PROTOBUF} or {JSON}, not {media[:80]!r}\n", status_code=415)
    try:
        data = await read_body(request, limit=_limit(request))
        ingested = await asyncio.wrap_future(call.store.otlp.submit(data, signal=signal, form=form))
    except TreeringError as error:
        return _failed(error, form)
    return Response(_answer(ingested, signal, form), media_type=media)


def _limit(request: Request) -> int:
    return request.app.state.treering.settings.max_body


def _answer(ingested: Ingested, signal: Signal, form: Form) -> bytes:
    if form == "json":
        if not ingested.refused:
            return b"{}"
        told = {_REFUSED[signal]: str(ingested.refused), "errorMessage": ingested.message}
        return msgspec.json.encode({"partialSuccess": told})
    if not ingested.refused:
        return b""
    return _field(1, _number(1, ingested.refused) + _field(2, ingested.message.encode()))


def _failed(error: TreeringError, form: Form) -> Response:
    """An error as the protocol wants it: the status says whether to send again."""
    if isinstance(error, TooMany):
        status = error.http_status
    elif error.retryable:
        status = _LATER
    else:
        status = _BAD if isinstance(error, InvalidInput) else error.http_status
    code = _UNAVAILABLE if error.retryable else _INVALID
    headers = {"retry-after": "1"} if error.retryable else {}
    if form == "json":
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
