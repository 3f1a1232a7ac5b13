"""OTLP over HTTP with the real exporters and instrumentations, against a server that really runs."""

from __future__ import annotations

import gzip
import json

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

import treering
from tests.runs.otlp.exports import TRACE, span, traces
from tests.server.running import running
from treering.server.settings import Settings

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def url(store):
    with running(store) as address:
        yield address


@pytest.fixture
def provider(url):
    made = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    exporter = OTLPSpanExporter(f"{url}/v1/traces", compression=Compression.Gzip)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    made.shutdown()


def test_spans_of_the_real_exporter_are_durable_when_it_returns(store, provider):
    tracer = provider.get_tracer("shop", "1.2")
    with tracer.start_as_current_span("checkout") as root:
        with tracer.start_as_current_span("chat gpt-5") as call:
            call.set_attribute("gen_ai.operation.name", "chat")
            call.set_attribute("gen_ai.request.model", "gpt-5")
            call.set_attribute("gen_ai.usage.input_tokens", 12)
            call.set_attribute("gen_ai.usage.output_tokens", 3)
        with pytest.raises(KeyError), tracer.start_as_current_span("lookup"):
            raise KeyError("order")
    run_id = f"{root.get_span_context().trace_id:032x}"
    run = store.runs.load(run_id)
    assert (run.status, run.agent, run.meta["name"]) == ("ok", "shop", "checkout")
    assert run.meta["scopes"] == ["shop 1.2"]
    lines = store.timeline.of_run(run_id, everything=True).events
    assert [line.label.split(" (")[0] for line in lines if line.type.endswith("start")] == [
        "▶ checkout",
        "▶ chat gpt-5",
        "▶ lookup",
    ]
    assert store.cost.of_run(run_id).total.tokens == 15


def test_an_answer_in_protobuf_is_read_by_the_real_exporter(url):
    provider = TracerProvider()
    tracer = provider.get_tracer("t")
    with tracer.start_as_current_span("one") as one:
        pass
    exporter = OTLPSpanExporter(f"{url}/v1/traces")
    assert exporter.export([one]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    provider.shutdown()


def test_a_partial_success_says_what_was_refused_in_both_forms(url, store):
    good, bad = span("good", id=1), span("bad", id=0)
    answer = httpx.post(f"{url}/v1/traces", content=traces(good, bad), headers=JSON)
    found = answer.json()["partialSuccess"]
    assert (answer.status_code, found["rejectedSpans"]) == (200, "1")
    assert "bad" in found["errorMessage"]
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    spans.add(trace_id=b"x" * 16, span_id=b"y" * 8, name="fine", start_time_unix_nano=10**18)
    spans.add(trace_id=b"x" * 16, span_id=b"", name="broken", start_time_unix_nano=10**18)
    answer = httpx.post(f"{url}/v1/traces", content=request.SerializeToString(), headers=PROTOBUF)
    found = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, found.rejected_spans) == (200, 1)
    assert "broken" in found.error_message
    assert {run.id for run in store.runs.page().runs} == {(b"x" * 16).hex(), TRACE}


@pytest.mark.parametrize(
    "body, headers, status",
    [
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b"\xff\xff\xff", PROTOBUF, 400),
        (b"not gzip", {**JSON, "content-encoding": "gzip"}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {**JSON, "content-encoding": "br"}, 400),
    ],
)
def test_what_cannot_be_read_is_never_to_be_sent_again(url, body, headers, status):
    answer = httpx.post(f"{url}/v1/traces", content=body, headers=headers)
    assert answer.status_code == status
    assert "retry-after" not in answer.headers


def test_a_small_body_that_unfolds_into_a_large_one_is_refused(store):
    bomb = gzip.compress(b" " * 20_000_000)
    assert len(bomb) < 100_000
    with running(store, Settings(max_body=1_000_000)) as url:
        answer = httpx.post(f"{url}/v1/traces", content=bomb, headers={**JSON, "content-encoding": "gzip"})
    assert answer.status_code == 413


def test_a_server_that_has_too_much_to_write_asks_to_wait(store, url, monkeypatch):
    ingest = store.otlp
    monkeypatch.setattr(ingest, "_queue_bytes", 10)
    monkeypatch.setattr(ingest, "_thread", object())  # nobody writes
    waiting = ingest.submit(traces(span("first", id=1)), signal="traces", encoding="json")
    answer = httpx.post(f"{url}/v1/traces", content=traces(span("second", id=2)), headers=JSON)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    monkeypatch.setattr(ingest, "_thread", None)
    monkeypatch.undo()
    ingest.write(traces(span("third", id=3)), encoding="json")
    assert waiting.result().accepted == 1


def test_logs_and_traces_of_one_run_meet(url, store):
    httpx.post(f"{url}/v1/traces", content=traces(span("chat", id=1)), headers=JSON)
    record = {
        "timeUnixNano": "1760000000000000000",
        "traceId": TRACE,
        "spanId": f"{1:016x}",
        "eventName": "gen_ai.user.message",
        "body": {
            "kvlistValue": {
                "values": [{"key": "content", "value": {"stringValue": "Where is my refund?"}}],
            }
        },
    }
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
    answer = httpx.post(f"{url}/v1/logs", content=json.dumps(body).encode(), headers=JSON)
    assert (answer.status_code, answer.json()) == (200, {})
    (message,) = [line for line in store.timeline.of_run(TRACE).events if line.type == "message"]
    assert message.label == "user message"
    assert store.timeline.content(message.body) == ["Where is my refund?"]
