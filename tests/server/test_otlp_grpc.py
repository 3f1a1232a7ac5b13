"""OTLP over gRPC with the SDK's own exporters, against a server that really runs."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

import treering
from treering.core.query import EventQuery
from treering.errors import Overloaded
from treering.server.auth import Keys
from treering.server.endpoints import ServerState
from treering.server.otlp_grpc import serving_grpc
from treering.server.settings import Settings

SHOP = Resource.create({"service.name": "shop"})
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


@contextmanager
def serving(store, **settings):
    with serving_grpc(ServerState(store, Settings(**settings)), 0) as port:
        yield f"http://127.0.0.1:{port}"


def one_span():
    provider = TracerProvider(resource=SHOP)
    with provider.get_tracer("t").start_as_current_span("checkout") as made:
        pass
    return made


def request(count=1, span_id=b"y" * 8):
    body = ExportTraceServiceRequest()
    spans = body.resource_spans.add().scope_spans.add().spans
    for number in range(count):
        name = f"fine {number}"
        spans.add(trace_id=b"x" * 16, span_id=span_id, name=name, start_time_unix_nano=10**18)
    return body


def call(address, data, **options):
    """Call the method by itself, without the retries of an exporter."""
    with grpc.insecure_channel(address.removeprefix("http://")) as channel:
        return channel.unary_unary(METHOD)(data, timeout=60, **options)


def test_traces_logs_and_metrics_of_the_real_exporters_are_durable_when_they_return(store):
    with serving(store) as address:
        traces = TracerProvider(resource=SHOP)
        exporter = OTLPSpanExporter(address, insecure=True, compression=grpc.Compression.Gzip)
        traces.add_span_processor(SimpleSpanProcessor(exporter))
        logs = LoggerProvider(resource=SHOP)
        logs.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(address, insecure=True)))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(address, insecure=True))
        metrics = MeterProvider([reader], resource=SHOP)
        with traces.get_tracer("t").start_as_current_span("checkout") as root:
            record = LogRecord(body="paid", severity_number=SeverityNumber.INFO, timestamp=10**18)
            logs.get_logger("t").emit(record)
        metrics.get_meter("t").create_counter("orders").add(3, {"shop": "north"})
        metrics.force_flush()
        run = store.runs.load(f"{root.get_span_context().trace_id:032x}")
        assert (run.status, run.agent) == ("ok", "shop")
        kinds = ("log", "metric")
        found = [each.event for each in store.engine.scan(store.space, EventQuery(kinds=kinds)).records]
        assert sorted((each.kind, each.name) for each in found) == [("log", None), ("metric", "orders")]
        for provider in (traces, logs, metrics):
            provider.shutdown()


def test_a_call_needs_a_key_that_may_write(store):
    keys = Keys(store.engine, clock=store.clock)
    write = keys.create(project="north", scope="write").token
    read = keys.create(project="north", scope="read").token
    with serving(store) as address:
        for metadata, code in (
            ((), grpc.StatusCode.UNAUTHENTICATED),
            ((("authorization", "Bearer tr_no_no"),), grpc.StatusCode.UNAUTHENTICATED),
            ((("authorization", f"Bearer {read}"),), grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.RpcError) as failed:
                call(address, request().SerializeToString(), metadata=metadata)
            assert failed.value.code() is code
        exporter = OTLPSpanExporter(address, insecure=True, headers={"authorization": f"Bearer {write}"})
        assert exporter.export([one_span()]) is SpanExportResult.SUCCESS
        exporter.shutdown()
    assert store.runs.page().runs == ()
    assert len(store.in_namespace("north").runs.page().runs) == 1


def test_what_cannot_be_stored_is_named_and_what_cannot_be_read_is_never_to_be_sent_again(store):
    with serving(store, max_body=1_000_000) as address:
        reply = call(address, request(span_id=b"").SerializeToString())
        partial = ExportTraceServiceResponse.FromString(reply).partial_success
        assert partial.rejected_spans == 1
        assert "fine 0" in partial.error_message
        with pytest.raises(grpc.RpcError) as failed:
            call(address, b"\xff\xff\xff")
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        large = request(30_000).SerializeToString()
        assert len(gzip.compress(large)) < 1_000_000 < len(large)
        with pytest.raises(grpc.RpcError) as failed:
            call(address, large, compression=grpc.Compression.Gzip)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_request_that_finds_the_server_overloaded_is_to_be_sent_again(store, monkeypatch):
    def full(*_, **__):
        raise Overloaded("too much is queued")

    with serving(store) as address:
        with monkeypatch.context() as patched:
            patched.setattr(store.otlp, "submit", full)
            with pytest.raises(grpc.RpcError, match="too much is queued") as failed:
                call(address, request().SerializeToString())
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        call(address, request().SerializeToString())
    assert len(store.runs.page().runs) == 1


def test_an_unexpected_error_is_in_the_log_and_not_in_the_reply(store, monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("a secret path")

    with serving(store) as address:
        monkeypatch.setattr(store.otlp, "submit", broken)
        with pytest.raises(grpc.RpcError) as failed:
            call(address, request().SerializeToString())
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    reference = re.search(r"see the server log for (\w+)", failed.value.details())[1]
    assert "secret" not in failed.value.details()
    assert reference in caplog.text


def test_the_command_serves_both(tmp_path):
    command = [sys.executable, "-m", "treering", "serve", "--port", "0", "--grpc-port", "0"]
    environment = {name: each for name, each in os.environ.items() if not name.startswith("TREERING_")}
    with subprocess.Popen(
        [*command, "--store", str(tmp_path / "store")], stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            address = re.search(r"OTLP over gRPC at (http://\S+)", server.stderr.readline())[1]
            call(address, request().SerializeToString())
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    with treering.open(tmp_path / "store") as store:
        assert [run.id for run in store.runs.page().runs] == [(b"x" * 16).hex()]
