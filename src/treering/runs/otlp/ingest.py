"""Ingest: requests in, one commit for many of them, and an answer only when that is durable.

A request waits in a queue of bounded bytes. One thread takes all that wait (up to a limit), reads them, and
writes them as one batch; while that is made durable the next ones gather. **Invariant:** a request is
answered after its spans are durable, or with an error; what was answered with an error may be sent again and
is stored once. When the queue is full nothing more is taken (`Overloaded`), so the server's memory is bounded
and the sender keeps its spans.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.batch import Draft
from treering.errors import Closed, InvalidInput, Overloaded, RefMoved, TreeringError
from treering.runs.otlp import decode_json, decode_protobuf
from treering.runs.otlp.logs import name_logs, run_of, write_logs
from treering.runs.otlp.records import Received, ReceivedLog, ReceivedSpan, Refused
from treering.runs.otlp.spans import write_spans
from treering.runs.otlp.traces import Traces
from treering.runs.run import run_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.runs.otlp.traces import Trace

Signal = Literal["traces", "logs"]
Form = Literal["protobuf", "json"]

QUEUE_BYTES: Final = 64 << 20
"""What waits at most; a request on top of that is refused for now."""
GROUP_BYTES: Final = 2 << 20
"""How much goes into one commit at most (one request always does)."""
COMMIT_LIMIT: Final = 10_000
"""Spans and records in one commit at most; a larger request takes several, and is answered after the last."""
QUIET_SECONDS: Final = 900.0
"""A run of which nothing came for so long, and whose end was not seen, counts as unfinished."""
_LOOK_SECONDS: Final = 30.0
_IDLE_LOOKS: Final = 40
"""After so many looks at nothing the thread ends; the next request starts another."""
_ATTEMPTS: Final = 5
_SHOWN: Final = 5

_READERS: Final[dict[tuple[Signal, Form], Callable[[bytes], Received]]] = {
    ("traces", "protobuf"): decode_protobuf.read_traces,
    ("traces", "json"): decode_json.read_traces,
    ("logs", "protobuf"): decode_protobuf.read_logs,
    ("logs", "json"): decode_json.read_logs,
}


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """How a request fared: how many were taken, how many refused, and why."""

    accepted: int
    refused: int = 0
    message: str = ""


class _Request:
    __slots__ = ("data", "form", "future", "received", "signal")

    def __init__(self, data: bytes, signal: Signal, form: Form) -> None:
        self.data = data
        self.signal: Signal = signal
        self.form: Form = form
        self.future: Future[Ingested] = Future()
        self.future.set_running_or_notify_cancel()  # who stops waiting does not stop the writing
        self.received: Received | None = None


class Ingest:
    """OTLP into one space. Its thread starts with the first request and ends with `close`."""

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
        self._waiting: deque[_Request] = deque()
        self._bytes = 0
        self._bell = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, data: bytes, *, signal: Signal, form: Form) -> Future[Ingested]:
        """Take a request (decompressed); the future resolves when it is durable.

        Raises `Overloaded` when too much waits already. A body that cannot be read is an `InvalidInput` in
        the future.
        """
        request = _Request(data, signal, form)
        with self._bell:
            if self._is_closed:
                raise Closed("the store was closed; open it again")
            if self._waiting and self._bytes + len(data) > self._queue_bytes:
                raise Overloaded(
                    f"{self._bytes:,} bytes of spans wait to be written, and more than "
                    f"{self._queue_bytes:,} may not; send this again later"
                )
            self._waiting.append(request)
            self._bytes += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-otlp", daemon=True)
                self._thread.start()
            self._bell.notify()
        return request.future

    def write(self, data: bytes, *, signal: Signal = "traces", form: Form = "protobuf") -> Ingested:
        """Take a request and wait until it is durable."""
        return self.submit(data, signal=signal, form=form).result()

    @property
    def waiting_bytes(self) -> int:
        """How much waits to be written."""
        return self._bytes

    def close(self) -> None:
        """Write what waits, then stop."""
        with self._bell:
            self._is_closed = True
            self._bell.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    # The thread
    def _work(self) -> None:
        look_at = time.monotonic() + _LOOK_SECONDS
        idle = 0
        while True:
            with self._bell:
                while not self._waiting and not self._is_closed and time.monotonic() < look_at:
                    self._bell.wait(max(look_at - time.monotonic(), 0.001))
                if not self._waiting and (self._is_closed or idle >= _IDLE_LOOKS):
                    self._thread = None
                    return
                group = self._next_group()
            if group:
                idle = 0
                self._serve(group)
                with self._bell:
                    self._bytes -= sum(len(request.data) for request in group)
            del group  # while nothing comes, nothing of it shall be held
            if time.monotonic() >= look_at:
                idle += 1
                self._settle_quiet()
                look_at = time.monotonic() + _LOOK_SECONDS

    def _next_group(self) -> list[_Request]:
        group: list[_Request] = []
        size = 0
        while self._waiting and (not group or size + len(self._waiting[0].data) <= GROUP_BYTES):
            request = self._waiting.popleft()
            size += len(request.data)
            group.append(request)
        return group

    def _serve(self, group: Sequence[_Request]) -> None:
        readable: list[_Request] = []
        for request in group:
            try:
                request.received = _READERS[request.signal, request.form](request.data)
                name_logs(request.received)
                readable.append(request)
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
                request.future.set_exception(error)
        if readable:
            self._write(readable)

    def _write(self, group: Sequence[_Request]) -> None:
        """Write requests together; when something in one of them breaks that, each by itself."""
        received = [request.received for request in group if request.received is not None]
        try:
            self._commit(received)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            of_the_store = isinstance(error, TreeringError) and (error.retryable or isinstance(error, Closed))
            if of_the_store or (len(group) == 1 and not isinstance(error, InvalidInput)):
                for request in group:
                    request.future.set_exception(error)
            elif len(group) > 1:
                for request in group:
                    self._write([request])
            else:
                self._write_one_by_one(group[0], received[0])
            return
        for request in group:
            if request.received is not None:
                request.future.set_result(_told(request.received))

    def _write_one_by_one(self, request: _Request, received: Received) -> None:
        """Something in a request cannot be stored: find out what, and store the rest."""
        kept = Received(refused=list(received.refused))
        singles = [Received(spans=[span]) for span in received.spans]
        singles += [Received(logs=[log]) for log in received.logs]
        for single in singles:
            try:
                self._commit([single])
            except InvalidInput as error:
                name = single.spans[0].name if single.spans else single.logs[0].event
                kept.refused.append(Refused(f"{'span' if single.spans else 'log'} {name[:80]!r}", str(error)))
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
                request.future.set_exception(error)
                return
            else:
                kept.spans += single.spans
                kept.logs += single.logs
        request.future.set_result(_told(kept))

    def _commit(self, received: Sequence[Received]) -> None:
        """Write everything, in as few commits as there may be."""
        now_us = self._clock.now_us()
        every = [each for some in received for each in (*some.spans, *some.logs)]
        for start in range(0, len(every), COMMIT_LIMIT):
            spans: dict[str, list[ReceivedSpan]] = {}
            logs: dict[str | None, list[ReceivedLog]] = {}
            for each in every[start : start + COMMIT_LIMIT]:
                if isinstance(each, ReceivedSpan):
                    spans.setdefault(each.trace, []).append(each)
                else:
                    each.ts_us = each.ts_us or now_us
                    logs.setdefault(run_of(each), []).append(each)
            self._commit_some(spans, logs)

    def _commit_some(
        self, spans: dict[str, list[ReceivedSpan]], logs: dict[str | None, list[ReceivedLog]]
    ) -> None:
        names = [*spans, *(name for name in logs if name is not None)]
        for attempt in range(_ATTEMPTS):
            traces = self._traces.get(names)
            try:
                self._commit_once(traces, spans, logs)
            except RefMoved:
                self._traces.forget(names)  # another server writes the same run: see what it did
                if attempt == _ATTEMPTS - 1:
                    raise
            except BaseException:
                self._traces.forget(names)  # what they remember now was not written
                raise
            else:
                return

    def _commit_once(
        self,
        traces: dict[str, Trace],
        spans: dict[str, list[ReceivedSpan]],
        logs: dict[str | None, list[ReceivedLog]],
    ) -> None:
        draft = Draft(self._space)
        for name, some in spans.items():
            write_spans(draft, traces[name], some)
        for name, records in logs.items():
            write_logs(draft, None if name is None else traces[name], records)
        self._finish(draft, list(traces.values()))

    def _finish(self, draft: Draft, traces: Sequence[Trace]) -> None:
        for trace in traces:
            trace.write_to(draft)
        if not draft.is_empty:
            versions = self._engine.commit(draft.batch()).versions
            for trace in traces:
                trace.written(versions.get(run_ref(trace.id)))
        self._traces.settled(traces)

    def _settle_quiet(self) -> None:
        """Runs that nothing came of any more: they are over, as far as anyone can tell."""
        quiet = self._traces.quiet(self._quiet_seconds)
        if not quiet:
            return
        for trace in quiet:
            trace.settle()
        try:
            self._finish(Draft(self._space), quiet)
        except TreeringError:
            self._traces.forget([trace.id for trace in quiet])  # later, if they come up again


def _told(received: Received) -> Ingested:
    refused: Sequence[Refused] = received.refused
    message = "; ".join(str(each) for each in refused[:_SHOWN])
    if len(refused) > _SHOWN:
        message += f"; and {len(refused) - _SHOWN} more"
    return Ingested(accepted=len(received), refused=len(refused), message=message)
