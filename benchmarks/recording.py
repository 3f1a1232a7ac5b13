"""What recording costs the agent: the time that a span takes from the code that it is around.

Ours writes to SQLite (`full`) in its thread; the peer is OpenTelemetry's batch processor with an exporter
that throws everything away, so it is measured at its best. Both record the same: a name, an input of 500 and
an output of 400 characters, nested below a running one.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import treering
from benchmarks.report import Measurement, Section, at_most

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPANS = 400
"""In a burst; then the writers get their turn, as they would beside an agent that waits for a model."""
BURSTS = 25
LIMIT_US = 5.0
INPUT = "i" * 500
OUTPUT = "o" * 400


class Nowhere(SpanExporter):
    """An exporter that costs nothing."""

    def export(self, spans):  # noqa: ARG002
        return SpanExportResult.SUCCESS


def run(scratch: Path) -> Section:
    """Measure bursts of spans, in turns."""
    ours: list[float] = []
    peer: list[float] = []
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=50_000))
    tracer = provider.get_tracer("benchmark")
    with treering.open(scratch / "store") as store:
        with store.run(agent="agent") as recorded, tracer.start_as_current_span("agent"):

            def one_of_ours() -> None:
                with recorded.span("search", kind="tool", input=INPUT) as span:
                    span.output = OUTPUT

            def one_of_theirs() -> None:
                with tracer.start_as_current_span("search") as span:
                    span.set_attribute("input.value", INPUT)
                    span.set_attribute("output.value", OUTPUT)

            for _ in range(BURSTS):
                ours += _burst(one_of_ours)
                store.flush()
                peer += _burst(one_of_theirs)
                provider.force_flush()
        store.flush()
        kept = store.cost.of_run(recorded.id, by="kind")
        written = {part.key: part.events for part in kept.parts}["span.tool"]
    provider.shutdown()
    if written != SPANS * BURSTS:
        raise RuntimeError(f"{written} of {SPANS * BURSTS} spans are in the store")
    middle, theirs = statistics.median(ours), statistics.median(peer)
    limit, met = at_most(middle / LIMIT_US, 1)
    target, beats = at_most(middle / theirs, 0.5)
    worst = statistics.quantiles(ours, n=100)[98]
    return Section(
        title="Recording",
        about="One span around nothing, p50 of bursts; the peer is OpenTelemetry's batch processor, which "
        "exports to nowhere. Ours is durable in SQLite afterwards.",
        measurements=[
            Measurement(
                claim=f"cost to the agent per span, against {LIMIT_US:g} us",
                ours=f"{middle:.1f} us",
                peer=f"{LIMIT_US:g} us",
                ratio=middle / LIMIT_US,
                target=limit,
                met=met,
                note=f"p99 {worst:.0f} us; all {written} spans were read back",
            ),
            Measurement(
                claim="cost to the agent per span, against OpenTelemetry",
                ours=f"{middle:.1f} us",
                peer=f"{theirs:.1f} us",
                ratio=middle / theirs,
                target=target,
                met=beats,
            ),
        ],
    )


def _burst(work: Callable[[], None]) -> list[float]:
    taken: list[float] = []
    clock = time.perf_counter_ns
    for _ in range(SPANS):
        start = clock()
        work()
        taken.append((clock() - start) / 1000)
    return taken
