"""One million spans through a server: does it take them at the end as fast as at the beginning?

The spans are those of the trace benchmark, sent again and again under other ids and later times, so that the
indexes grow as they would with a million spans of their own. Compared are the first rounds with the last,
and then what is read over HTTP: one run's timeline, and the agents by their cost.
"""

from __future__ import annotations

import os
import statistics
import time
from hashlib import blake2b
from typing import TYPE_CHECKING

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.otlp import Server, get, least, most, send, size_of, timelines
from benchmarks.otlp_work import SPANS_A_RUN, requests
from benchmarks.report import Section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROUND = 50_000
ROUNDS = int(os.environ.get("TREERING_BENCH_ROUNDS", "20"))
ROUND_NS = 3_600_000_000_000
TURNS = 3
"""Of the first rounds and of the last, the best of so many is compared: noise only adds."""
QUESTIONS = 40


def run(scratch: Path) -> Section:
    """Send all rounds to one server, then ask it."""
    pattern = requests(ROUND // SPANS_A_RUN, start_ns=time.time_ns() - (ROUNDS + 1) * ROUND_NS)
    server = Server(scratch / "store")
    seconds: list[float] = []
    cpu_us: list[float] = []
    try:
        send(server, requests(20, seed=99))  # loads the price table
        for number in range(ROUNDS):
            work = list(_again(pattern, number))
            before = server.cpu_seconds
            seconds.append(send(server, work))
            cpu_us.append((server.cpu_seconds - before) / ROUND * 1e6)
            print(f"{(number + 1) * ROUND:,}: {ROUND / seconds[-1]:,.0f}/s, {cpu_us[-1]:.0f} us", flush=True)
        rss = server.rss_mb
        timeline_ms = timelines(server)
        agents_ms = _agents(server)
    finally:
        server.kill()
    first, last = (ROUND / min(some) for some in (seconds[:TURNS], seconds[-TURNS:]))
    disk = size_of(scratch / "store") / (ROUND * ROUNDS)
    return Section(
        title="A million spans",
        about=f"{ROUND * ROUNDS:,} spans over HTTP into one SQLite store (`full`), in rounds of {ROUND:,}; "
        f"the best of the first {TURNS} is compared with the best of the last. Peers' figures are quoted, at "
        "50,000 spans.",
        measurements=[
            least("spans/s in the last rounds, against the first", f"{last:,.0f}", f"{first:,.0f}",
                  last / first, 0.8,
                  note=f"CPU a span: {min(cpu_us[:TURNS]):.0f} us at first, "
                  f"{min(cpu_us[-TURNS:]):.0f} us at last; {disk:,.0f} B a span on disk; "
                  f"{rss:.0f} MB in the server"),
            most("one run's timeline over HTTP, p50, against 5 ms", f"{timeline_ms:.1f} ms", "5 ms",
                 timeline_ms / 5, 1, note="Phoenix 16 ms and more, MLflow 22 ms"),
            most("agents by cost over HTTP, p50, against 5 ms", f"{agents_ms:.1f} ms", "5 ms",
                 agents_ms / 5, 1, note="MLflow 269 ms and more"),
        ],
    )  # fmt: skip


def _again(pattern: list[bytes], number: int) -> Iterator[bytes]:
    """The requests under other ids, and later."""
    for body in pattern:
        request = ExportTraceServiceRequest.FromString(body)
        traces: dict[bytes, tuple[bytes, int]] = {}
        for span in request.resource_spans[0].scope_spans[0].spans:
            made = traces.get(span.trace_id)
            if made is None:
                digest = blake2b(span.trace_id + number.to_bytes(4), digest_size=24).digest()
                made = traces[span.trace_id] = digest[:16], int.from_bytes(digest[16:])
            span.trace_id = made[0]
            span.span_id = _other(span.span_id, made[1])
            if span.parent_span_id:
                span.parent_span_id = _other(span.parent_span_id, made[1])
            span.start_time_unix_nano += number * ROUND_NS
            span.end_time_unix_nano += number * ROUND_NS
        yield request.SerializeToString()


def _other(id: bytes, mask: int) -> bytes:
    return (int.from_bytes(id) ^ mask).to_bytes(8)


def _agents(server: Server) -> float:
    """Milliseconds until the agents are told by their cost, over all days."""
    connection = server.connect()
    taken: list[float] = []
    for _ in range(QUESTIONS):
        begun = time.perf_counter()
        status, result = get(connection, "/cost?by=agent")
        taken.append((time.perf_counter() - begun) * 1000)
        if status != 200 or len(result["parts"]) < 4:
            raise RuntimeError(f"the server told {status} {result}")
    return statistics.median(taken)
