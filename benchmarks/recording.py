"""What recording costs the agent: the time that a span takes from the code that it is around.

Ours writes to SQLite (`full`) in its thread; the peer is OpenTelemetry's batch processor with an exporter
that throws everything away, so it is measured at its best. Both record the same: a name, an input of 500 and
an output of 400 characters, nested below a running one. A call of a model is one of httpx whose transport
answers at once, so beside it is the client alone; its conversation of 40 messages has 20 KB.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING

import httpx
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import treering
from benchmarks.report import Measurement, Section, at_most
from treering.runs.exchanges import read_exchanges

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPANS = 400
"""In a burst; then the writers get their turn, as they would beside an agent that waits for a model."""
BURSTS = 25
LIMIT_US = 5.0
CALLS = 60
"""Calls of a model in a burst."""
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
    within, calls, bare = _recorded_calls(scratch)
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
            Measurement(
                claim=f"cost to the agent per span within treering.record(), against {LIMIT_US:g} us",
                ours=f"{within:.1f} us",
                peer=f"{LIMIT_US:g} us",
                ratio=within / LIMIT_US,
                target=at_most(0, 1)[0],
                met=within <= LIMIT_US,
                note="every request and answer is kept whole at the same time, and written behind",
            ),
            Measurement(
                claim="a recorded call of a model, against the client without recording",
                ours=f"{calls:.0f} us",
                peer=f"{bare:.0f} us",
                ratio=calls / bare,
                target=at_most(0, 1.5)[0],
                met=calls / bare <= 1.5,
                note=f"{calls - bare:.0f} us more, of a call that takes a second or more of a real model",
            ),
        ],
    )


def _recorded_calls(scratch: Path) -> tuple[float, float, float]:
    """Return the p50 of a span and of a model's call in a recorded run, and of the call without."""
    answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": OUTPUT}}]}).encode()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=answer))
    messages = [{"role": "user", "content": f"{number} {INPUT}"} for number in range(40)]
    spans: list[float] = []
    recorded: list[float] = []
    bare: list[float] = []
    with treering.open(scratch / "recorded") as store, httpx.Client(transport=transport) as client:

        def call() -> None:
            client.post("http://models.test/v1/chat/completions", json={"model": "m", "messages": messages})

        for _ in range(BURSTS):
            with treering.record(store, agent="agent", spans=False) as run:

                def span() -> None:
                    with run.span("search", kind="tool", input=INPUT) as open_span:
                        open_span.output = OUTPUT

                recorded += _burst(call, CALLS)
                spans += _burst(span)
            bare += _burst(call, CALLS)
        store.flush()
        kept = read_exchanges(store.engine, store.space, run.id)
    if len(kept) != CALLS or kept[-1].body["messages"] != messages:
        raise RuntimeError(f"{len(kept)} of {CALLS} calls are in the store")
    return statistics.median(spans), statistics.median(recorded), statistics.median(bare)


def _burst(work: Callable[[], None], times: int = SPANS) -> list[float]:
    taken: list[float] = []
    clock = time.perf_counter_ns
    for _ in range(times):
        start = clock()
        work()
        taken.append((clock() - start) / 1000)
    return taken
