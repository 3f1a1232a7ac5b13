"""Import files of OpenTelemetry, as the Collector's file exporter and SDKs write them.

A file has one request a line in JSON (the OTLP file format), or is one JSON document, or has requests in
protobuf, each behind its length in four bytes, big-endian (``format: proto``). With ``compression: zstd``,
each request is compressed behind its length. A file with a single request in protobuf, without a length, is
read too. Traces, log records and metrics are told apart by what a request contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treering.core.content import zstd
from treering.errors import InvalidInput
from treering.importers.lines import BadLines, open_file, raw_lines
from treering.importers.traces.importing import Item, import_traces
from treering.runs.otlp.decode import Encoding, ExportRequest, Signal, decode_request
from treering.runs.otlp.logs import assign_log_ids

if TYPE_CHECKING:
    from treering.importers.registry import ImportReport
    from treering.store import Store

_SIGNALS: Final[dict[bytes, Signal]] = {
    b'"resourceSpans"': "traces",
    b'"resourceLogs"': "logs",
    b'"resourceMetrics"': "metrics",
}
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MAX_REQUEST: Final = 9 << 24
"""A larger request is a damaged length, or a bomb. JSON begins with a larger byte than such a length."""
_FIRST_FIELD: Final = 0x0A
_LENGTH: Final = 4


def import_otlp(source: str | Path, store: Store, **options: Any) -> ImportReport:
    """Import a file of OpenTelemetry, or a folder of them."""
    return import_traces("otlp", source, store, _read, **options)


def _read(path: Path, name: str, bad: BadLines) -> Iterator[Item]:
    with open_file(path) as file:
        start: bytes = file.read(16)
    if not start:
        return
    requests = _messages(path, name, bad) if _is_protobuf(start) else _lines(path, name, bad)
    for place, request in requests:
        for each in request.rejected:
            bad.add(place, each)
        for log in request.logs:
            if log.ts_us:
                yield log
            else:
                bad.add(place, f"log {log.event[:80]!r} has no time")
        yield from request.spans


def _is_protobuf(start: bytes) -> bool:
    """Whether a file begins with a length, or with the first field of a request."""
    if start[_LENGTH:].startswith(_ZSTD) or start[0] < _FIRST_FIELD:
        return True
    return start[0] == _FIRST_FIELD and not start.lstrip().startswith(b'{"')


def _lines(path: Path, name: str, bad: BadLines) -> Iterator[tuple[str, ExportRequest]]:
    whole = _one_document(path)
    if whole is not None:
        request = ExportRequest()
        with bad.skipping(name):
            request = _decode_json(whole)
        yield name, request
        return
    for line in raw_lines(path):
        request = ExportRequest()
        with bad.skipping(name, line.number):
            request = _decode_json(line.text)
        yield f"{name} line {line.number}", request


def _one_document(path: Path) -> bytes | None:
    """Return a file that is one JSON document over several lines; ``None`` if it has one a line."""
    with open_file(path) as file:
        if file.readline().strip() not in (b"{", b"\xef\xbb\xbf{"):
            return None
        file.seek(0)
        return file.read().removeprefix(b"\xef\xbb\xbf")


def _decode_json(text: bytes) -> ExportRequest:
    for mark, signal in _SIGNALS.items():
        if mark in text:
            return _decode(text, signal, "json")
    raise InvalidInput("it has no resourceSpans, resourceLogs or resourceMetrics, so it is no OTLP in JSON")


def _messages(path: Path, name: str, bad: BadLines) -> Iterator[tuple[str, ExportRequest]]:
    with open_file(path) as file:
        size = path.stat().st_size
        first = file.read(_LENGTH)
        file.seek(0)
        if first[0] >= _FIRST_FIELD:
            request = ExportRequest()
            with bad.skipping(name):
                request = _decode(file.read(), "traces", "protobuf")
            yield name, request
            return
        number = 0
        while prefix := file.read(_LENGTH):
            number += 1
            length = int.from_bytes(prefix, "big")
            if len(prefix) < _LENGTH or length > min(size - file.tell(), _MAX_REQUEST):
                bad.add(f"{name} message {number}", "it is cut off, or its length is damaged")
                return
            request = ExportRequest()
            with bad.skipping(f"{name} message {number}"):
                request = _decode_message(file.read(length))
            yield f"{name} message {number}", request


def _decode_message(data: bytes) -> ExportRequest:
    if data.startswith(_ZSTD):
        try:
            data = zstd.decompress(data)
        except zstd.ZstdError as error:
            raise InvalidInput(f"it cannot be decompressed ({error})") from None
    if data.lstrip().startswith(b"{"):
        return _decode_json(data)
    return _decode(data, _signal_of(data), "protobuf")


def _signal_of(data: bytes) -> Signal:
    """Return what a request in protobuf holds: the three messages look alike, so its content decides.

    A span and a log record differ in their first fields: a trace id has 16 bytes, a time is a fixed number.
    """
    traces = _try(partial(_decode, data, "traces", "protobuf"))
    if traces is not None and (traces.spans or not data):
        return "traces"
    for signal in ("logs", "metrics"):
        found = _try(partial(_decode, data, signal, "protobuf"))
        if found is not None and len(found):
            return signal
    return "traces"


def _try(decode: Any) -> ExportRequest | None:
    try:
        return decode()
    except InvalidInput:
        return None


def _decode(data: bytes, signal: Signal, encoding: Encoding) -> ExportRequest:
    request = decode_request(data, signal, encoding)
    assign_log_ids(request)
    return request
