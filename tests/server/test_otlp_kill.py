"""A server that is killed under load: every span that it acknowledged is there, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from benchmarks.otlp_work import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import treering
from tests.server.test_serving import Server
from treering.core.query import EventQuery

REQUESTS = 240
HEADERS = {"content-type": "application/x-protobuf"}


def spans_of(request):
    message = ExportTraceServiceRequest.FromString(request)
    return {
        (span.trace_id.hex(), span.span_id.hex())
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def stored(store):
    found = []
    after = None
    while True:
        page = store.engine.scan(store.space, EventQuery(), after=after, limit=1000)
        found += [
            (record.event.run, record.event.span.partition(".")[2])
            for record in page.records
            if record.event.kind.startswith("span.")
        ]
        if page.cursor is None:
            return found
        after = page.cursor


@pytest.mark.faults
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_every_acknowledged_span_survives_a_kill(engine, tmp_path, request):
    if engine == "postgres":
        request.applymarker("postgres")
    url = tmp_path / "store" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    work = requests(REQUESTS, runs_a_request=1, seed=11, start_ns=1_760_000_000_000_000_000)

    def send(client, number):
        try:
            answer = client.post("/v1/traces", content=work[number], headers=HEADERS)
        except httpx.HTTPError:
            return None
        return number if answer.status_code == 200 else None

    with (
        Server(url) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        waiting = [pool.submit(send, client, number) for number in range(REQUESTS)]
        for each in waiting[: REQUESTS // 3]:
            assert each.result() is not None
        server.process.kill()
        kept = [number for each in waiting if (number := each.result()) is not None]
    assert REQUESTS // 3 <= len(kept) < REQUESTS
    with treering.open(url) as store:
        there = stored(store)
        assert len(there) == len(set(there))
        for number in kept:
            assert spans_of(work[number]) <= set(there)
        # What was not acknowledged is sent again, and then everything is there once.
        for each in work:
            store.otlp.write(each)
        assert sorted(stored(store)) == sorted(set().union(*map(spans_of, work)))
        assert len(list(store.runs.each())) == REQUESTS
        assert store.verify().ok
