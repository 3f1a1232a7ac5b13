"""Spans of the OpenTelemetry SDK, written to a store in the same process."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_protobuf
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceState,
)

import treering
from tests.replays.provider import plan, provider
from treering.adapters.opentelemetry import TreeringSpanExporter, encode_spans
from treering.runs.otlp.decode import decode_request

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-5"}


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def provider_for(exporter: TreeringSpanExporter) -> TracerProvider:
    made = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


def test_a_trace_is_a_run_with_agents_tools_tokens_and_cost(store):
    tracer = provider_for(TreeringSpanExporter(store)).get_tracer("test", "1.0")
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"}
    with tracer.start_as_current_span(
        "invoke_agent planner", attributes={**agent, "gen_ai.conversation.id": "alice"}
    ) as root:
        with tracer.start_as_current_span(
            "execute_tool search",
            attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"},
        ):
            pass
        with tracer.start_as_current_span(
            "chat gpt-5",
            attributes={
                **CHAT,
                "gen_ai.provider.name": "openai",
                "gen_ai.usage.input_tokens": 412,
                "gen_ai.usage.output_tokens": 96,
            },
        ):
            pass
    run_id = f"{root.get_span_context().trace_id:032x}"
    run = store.runs.load(run_id)
    assert (run.agent, run.thread, run.status) == ("planner", "alice", "ok")
    assert store.cost.of_run(run_id).total.usage.input == 412
    assert str(store.cost.of_run(run_id).total.amounts["USD"]) == "0.001475000"
    assert [event.type for event in store.timeline.of_run(run_id).events] == [
        "agent.span.start", "tool.call", "tool.result", "message", "agent.span.end",
    ]  # fmt: skip


def test_a_span_is_what_the_sdks_own_exporter_sends():
    exported: list[Any] = []

    class Kept(SpanExporter):
        def export(self, spans):
            exported.extend(spans)
            return SpanExportResult.SUCCESS

    made = TracerProvider(resource=Resource.create({"service.name": "shop", "service.instance.id": "1"}))
    made.add_span_processor(SimpleSpanProcessor(Kept()))
    tracer = made.get_tracer("test", "1.0", attributes={"suite": "ours"})
    with tracer.start_as_current_span("earlier") as earlier:
        linked = earlier.get_span_context()
    far = SpanContext(
        linked.trace_id,
        7,
        is_remote=True,
        trace_flags=linked.trace_flags,
        trace_state=TraceState([("vendor", "x")]),
    )
    above = trace.set_span_in_context(NonRecordingSpan(far))
    span = tracer.start_span("work", above, kind=SpanKind.CLIENT, links=[Link(linked, {"why": "before"})])
    span.set_attributes({
        "text": "ring \u00e9", "yes": True, "many": [1, 2], "words": ["a", "b"], "big": 2**62, "half": 0.5,
        "infinite": float("inf"),
    })  # fmt: skip
    span.add_event("tried", {"again": False})
    span.record_exception(ValueError("no such order"))
    span.set_status(Status(StatusCode.ERROR, "it failed"))
    span.end()
    theirs = decode_request(encode_protobuf(exported).SerializeToString(), "traces", "protobuf")
    ours = decode_request(encode_spans(exported), "traces", "json")
    assert len(ours.spans) == 2
    assert ours.spans == theirs.spans
    assert not ours.rejected


def test_spans_that_are_exported_twice_are_stored_once(store):
    exported: list[Any] = []

    class Twice(TreeringSpanExporter):
        def export(self, spans):
            exported.extend(spans)
            super().export(spans)
            return super().export(spans)

    tracer = provider_for(Twice(store)).get_tracer("test")
    with tracer.start_as_current_span("chat", attributes=CHAT | {"gen_ai.usage.input_tokens": 5}) as span:
        pass
    run_id = f"{span.get_span_context().trace_id:032x}"
    assert len(exported) == 1
    assert store.cost.of_run(run_id).total.usage.input == 5


def test_a_closed_store_is_a_failed_export_and_a_warning(tmp_path):
    store = treering.open(tmp_path)
    exporter = TreeringSpanExporter(store)
    tracer = TracerProvider().get_tracer("test")
    span = tracer.start_span("late")
    span.end()
    store.close()
    with pytest.warns(RuntimeWarning, match="1 spans could not be stored"):
        assert exporter.export([span]) is SpanExportResult.FAILURE


def test_it_closes_the_store_that_it_opened_and_no_other(store, tmp_path):
    own = TreeringSpanExporter(tmp_path / "own")
    made = provider_for(own)
    with made.get_tracer("test").start_as_current_span("one") as span:
        pass
    made.shutdown()
    own.shutdown()
    with treering.open(tmp_path / "own") as opened:
        assert opened.runs.load(f"{span.get_span_context().trace_id:032x}").status == "ok"
    TreeringSpanExporter(store).shutdown()
    assert list(store.runs.each()) == []


def test_an_instrumented_langgraph_agent_leaves_a_run(store):
    """OpenInference's instrumentation, a batch processor, and a model that is asked over HTTP."""
    from langchain_anthropic import ChatAnthropic
    from openinference.instrumentation.langchain import LangChainInstrumentor

    made = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    made.add_span_processor(BatchSpanProcessor(TreeringSpanExporter(store)))
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=made)
    try:
        with provider() as server:
            chat: Any = ChatAnthropic
            model = chat(model="claude-sonnet-4-6", api_key="sk-1", base_url=server.url, max_retries=0)
            with made.get_tracer("test").start_as_current_span("question") as root:
                said = model.invoke(plan("On page 3."))
    finally:
        instrumentor.uninstrument()
    made.force_flush()
    assert "On page 3." in said.content
    run_id = f"{root.get_span_context().trace_id:032x}"
    cost = store.cost.of_run(run_id).total
    assert cost.usage.input == said.usage_metadata["input_tokens"]
    assert cost.usage.output == said.usage_metadata["output_tokens"]
    assert cost.amounts["USD"] > 0
    made.shutdown()
    assert trace.get_tracer_provider() is not made  # nothing global was changed
