"""Ingest OTLP requests: many in one commit, and each is answered once it is durable.

Requests wait in a queue that is bounded in bytes. A thread takes what is queued (up to a limit), decodes it
and commits it as one batch; while that is made durable, the next requests gather. **Invariant:** a request is
answered after its spans are durable, or with an error. After an error it is safe to send it again: it is
stored once. When the queue is full, requests are refused (`Overloaded`), so memory is bounded and the sender
keeps its spans.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.batch import Draft
from treering.errors import Closed, InvalidInput, Overloaded, RefMoved, TreeringError
from treering.runs.otlp.decode import (
    Encoding,
    ExportRequest,
    OtlpLog,
    OtlpSpan,
    Rejected,
    Signal,
    decode_request,
)
from treering.runs.otlp.logs import Series, assign_log_ids, run_of, write_logs
from treering.runs.otlp.traces import Traces, write_spans
from treering.runs.run import QUIET_SECONDS, run_ref

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from treering.core.batch import Event
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.runs.otlp.traces import Trace

QUEUE_BYTES: Final = 64 << 20
"""How much may be queued; requests beyond that are refused."""
GROUP_BYTES: Final = 2 << 20
"""How much goes into one commit; a larger request goes into one of its own."""
COMMIT_LIMIT: Final = 10_000
"""How many spans and log records go into one commit; a request with more takes several commits."""
_CHECK_SECONDS: Final = 30.0
_IDLE_CHECKS: Final = 40
"""The thread ends after this many checks without a request; the next request starts it again."""
_ATTEMPTS: Final = 5
_MAX_REASONS: Final = 5


class IngestResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many spans or log records of a request were stored, how many were rejected, and why."""

    accepted: int
    rejected: int = 0
    message: str = ""


class _Request:
    __slots__ = ("content", "data", "encoding", "future", "signal")

    def __init__(self, data: bytes, signal: Signal, encoding: Encoding) -> None:
        self.data = data
        self.signal: Signal = signal
        self.encoding: Encoding = encoding
        self.future: Future[IngestResult] = Future()
        self.future.set_running_or_notify_cancel()  # cancelling the future does not cancel the write
        self.content: ExportRequest | None = None


class Ingest:
    """Ingests OTLP into one space. Its thread starts with the first request and ends with `close`."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        *,
        clock: Clock,
        queue_bytes: int = QUEUE_BYTES,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._queue_bytes = queue_bytes
        self._quiet_seconds = quiet_seconds
        self._traces = Traces(engine, space)
        self._series = Series()
        self._queue: deque[_Request] = deque()
        self._queued_bytes = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, data: bytes, *, signal: Signal, encoding: Encoding) -> Future[IngestResult]:
        """Queue a request (decompressed); the future resolves when it is durable.

        A body that cannot be decoded sets `InvalidInput` on the future.

        Raises:
            Overloaded: Too much is queued already.
        """
        request = _Request(data, signal, encoding)
        with self._condition:
            if self._is_closed:
                raise Closed("the store was closed; open it again")
            if self._queue and self._queued_bytes + len(data) > self._queue_bytes:
                raise Overloaded(
                    f"{self._queued_bytes:,} bytes of spans are queued, and the limit is "
                    f"{self._queue_bytes:,}; send this request again later"
                )
            self._queue.append(request)
            self._queued_bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-otlp", daemon=True)
                self._thread.start()
            self._condition.notify()
        return request.future

    def write(
        self, data: bytes, *, signal: Signal = "traces", encoding: Encoding = "protobuf"
    ) -> IngestResult:
        """Queue a request and wait until it is durable."""
        return self.submit(data, signal=signal, encoding=encoding).result()

    @property
    def queued_bytes(self) -> int:
        """How many bytes are queued."""
        return self._queued_bytes

    def close(self) -> None:
        """Write what is queued, then stop."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        """Run the thread: write groups of requests, and every now and then end quiet runs."""
        check_at = time.monotonic() + _CHECK_SECONDS
        idle = 0
        while True:
            with self._condition:
                while not self._queue and not self._is_closed and time.monotonic() < check_at:
                    self._condition.wait(max(check_at - time.monotonic(), 0.001))
                if not self._queue and (self._is_closed or idle >= _IDLE_CHECKS):
                    self._thread = None
                    return
                group = self._next_group()
            if group:
                idle = 0
                self._serve(group)
                with self._condition:
                    self._queued_bytes -= sum(len(request.data) for request in group)
            del group  # do not keep the bodies in memory while waiting
            if time.monotonic() >= check_at:
                idle += 1
                self._end_quiet_runs()
                check_at = time.monotonic() + _CHECK_SECONDS

    def _next_group(self) -> list[_Request]:
        group: list[_Request] = []
        size = 0
        while self._queue and (not group or size + len(self._queue[0].data) <= GROUP_BYTES):
            request = self._queue.popleft()
            size += len(request.data)
            group.append(request)
        return group

    def _serve(self, group: Sequence[_Request]) -> None:
        decoded: list[_Request] = []
        for request in group:
            try:
                request.content = decode_request(request.data, request.signal, request.encoding)
                assign_log_ids(request.content)
                decoded.append(request)
            except Exception as error:  # noqa: BLE001 - reported to the sender
                request.future.set_exception(error)
        if decoded:
            self._write(decoded)

    def _write(self, group: Sequence[_Request]) -> None:
        """Write requests together; if that fails because of one of them, write each by itself."""
        contents = [request.content for request in group if request.content is not None]
        try:
            self._commit(contents)
        except Exception as error:  # noqa: BLE001 - reported to the senders
            is_store_error = isinstance(error, TreeringError) and (
                error.retryable or isinstance(error, Closed)
            )
            if is_store_error or (len(group) == 1 and not isinstance(error, InvalidInput)):
                for request in group:
                    request.future.set_exception(error)
            elif len(group) > 1:
                for request in group:
                    self._write([request])
            else:
                self._write_one_by_one(group[0], contents[0])
            return
        for request in group:
            if request.content is not None:
                request.future.set_result(_result(request.content))

    def _write_one_by_one(self, request: _Request, content: ExportRequest) -> None:
        """Write each span and log record of a request by itself, and reject those that cannot be stored."""
        stored = ExportRequest(rejected=list(content.rejected))
        singles = [ExportRequest(spans=[span]) for span in content.spans]
        singles += [ExportRequest(logs=[log]) for log in content.logs]
        for single in singles:
            try:
                self._commit([single])
            except InvalidInput as error:
                name = single.spans[0].name if single.spans else single.logs[0].event
                what = f"{'span' if single.spans else 'log'} {name[:80]!r}"
                stored.rejected.append(Rejected(what, str(error)))
            except Exception as error:  # noqa: BLE001 - reported to the sender
                request.future.set_exception(error)
                return
            else:
                stored.spans += single.spans
                stored.logs += single.logs
        request.future.set_result(_result(stored))

    def _commit(self, requests: Sequence[ExportRequest]) -> None:
        """Write requests in as few commits as possible."""
        now_us = self._clock.now_us()
        records = [log for request in requests for log in request.logs if not self._series.is_unchanged(log)]
        items = [*(span for request in requests for span in request.spans), *records]
        for start in range(0, len(items), COMMIT_LIMIT):
            spans: dict[str, list[OtlpSpan]] = {}
            logs: dict[str | None, list[OtlpLog]] = {}
            for each in items[start : start + COMMIT_LIMIT]:
                if isinstance(each, OtlpSpan):
                    spans.setdefault(each.trace, []).append(each)
                else:
                    each.ts_us = each.ts_us or now_us
                    logs.setdefault(run_of(each), []).append(each)
            self._commit_with_retries(spans, logs)
        self._series.remember(records)

    def _commit_with_retries(
        self, spans: dict[str, list[OtlpSpan]], logs: dict[str | None, list[OtlpLog]]
    ) -> None:
        names = [*spans, *(name for name in logs if name is not None)]
        for attempt in range(_ATTEMPTS):
            traces = self._traces.get(names)
            try:
                self._commit_once(traces, spans, logs)
            except RefMoved:
                self._traces.evict(names)  # another server wrote to the same run
                if attempt == _ATTEMPTS - 1:
                    raise
            except BaseException:
                self._traces.evict(names)  # their state in memory was not written
                raise
            else:
                return

    def _commit_once(
        self,
        traces: dict[str, Trace],
        spans: dict[str, list[OtlpSpan]],
        logs: dict[str | None, list[OtlpLog]],
    ) -> None:
        draft = Draft(self._space)
        write_items(draft, traces, spans, logs)
        self._finish(draft, list(traces.values()))

    def _finish(self, draft: Draft, traces: Sequence[Trace]) -> None:
        for trace in traces:
            trace.write_to(draft)
        if not draft.is_empty:
            versions = self._engine.commit(draft.batch()).versions
            for trace in traces:
                trace.mark_written(versions.get(run_ref(trace.id)))
        self._traces.mark_seen(traces)

    def _end_quiet_runs(self) -> None:
        """Mark runs as unfinished that nothing came of for a long time."""
        quiet = self._traces.quiet(self._quiet_seconds)
        if not quiet:
            return
        for trace in quiet:
            trace.give_up()
        try:
            self._finish(Draft(self._space), quiet)
        except TreeringError:
            self._traces.evict([trace.id for trace in quiet])


def write_items(
    draft: Draft,
    traces: Mapping[str, Trace],
    spans: Mapping[str, Sequence[OtlpSpan]],
    logs: Mapping[str | None, Sequence[OtlpLog]],
) -> None:
    """Write the spans and log records of some traces (``None``: of no trace), but not the runs themselves."""
    for name, trace_spans in spans.items():
        write_spans(draft, traces[name], trace_spans)
    for name, records in logs.items():
        write_logs(draft, None if name is None else traces[name], records)
    count_rows(draft, traces)


def count_rows(draft: Draft, traces: Mapping[str, Trace]) -> None:
    """Count the rows of a draft that belong to these traces."""
    rows: dict[str | None, list[Event]] = {}
    for event in draft.events:
        rows.setdefault(event.run, []).append(event)
    for name, trace in traces.items():
        trace.add_rows(draft, rows.get(name, ()))


def _result(request: ExportRequest) -> IngestResult:
    rejected = request.rejected
    message = "; ".join(str(each) for each in rejected[:_MAX_REASONS])
    if len(rejected) > _MAX_REASONS:
        message += f"; and {len(rejected) - _MAX_REASONS} more"
    return IngestResult(accepted=len(request), rejected=len(rejected), message=message)
