"""Real instrumentation packages, each through the real exporter into a server that really runs."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from agents import Agent, Runner, function_tool
from agents import trace as agents_trace
from agents.testing import ScriptedModel, assistant_message, function_call
from langchain.agents import create_agent
from openai import OpenAI
from openinference.instrumentation.langchain import LangChainInstrumentor
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import InstrumentationSettings
from pydantic_ai.models.test import TestModel

import treering
from tests.adapters.langgraph.scripts import Scripted
from tests.server.running import running
from treering.core.query import EventQuery

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


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
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    yield made
    made.shutdown()


def only_run(store):
    (run,) = store.runs.page().runs
    return run


def rows(store, kind):
    query = EventQuery(run=only_run(store).id, order="time")
    return [each.event for each in store.engine.scan(store.space, query).records if each.event.kind == kind]


def given(store, event):
    return store.timeline.content(event.links[json.loads(event.data)["input"]])[0]


def came(store, event):
    return store.timeline.content(event.body)[0]


def test_a_langgraph_agent_by_openinference(store, provider):
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        agent = create_agent(model=Scripted(rounds=2), tools=[add], name="adder")
        said = agent.invoke({"messages": [("user", "add up")]}, {"metadata": {"session_id": "alice"}})[
            "messages"
        ][-1]
    finally:
        instrumentor.uninstrument()
    provider.force_flush()
    run = only_run(store)
    assert (run.status, run.thread) == ("ok", "alice")
    calls = rows(store, "span.llm")
    assert len(calls) == 3
    assert said.content in json.dumps(came(store, calls[-1]))
    assert "add up" in json.dumps(given(store, calls[0]))
    tools = rows(store, "span.tool")
    assert [(event.name, event.status) for event in tools] == [("add", "ok"), ("add", "ok")]
    assert [line.type for line in store.timeline.of_run(run.id).events].count("message") == 3
    assert store.verify().ok


def test_agents_of_openai_by_openinference(store, provider):
    @function_tool
    def weather(city: str) -> str:
        """The weather."""
        return f"sunny in {city}"

    instrumentor = OpenAIAgentsInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        model = ScriptedModel(
            [[function_call("weather", {"city": "Bonn"}, call_id="c1")], [assistant_message("Sunny.")]]
        )
        agent = Agent(name="forecaster", model=model, tools=[weather])
        with agents_trace("forecast"):
            result = asyncio.run(Runner.run(agent, "Bonn?"))
    finally:
        instrumentor.uninstrument()
    assert result.final_output == "Sunny."
    provider.force_flush()
    run = only_run(store)
    assert run.status == "ok"
    (tool,) = rows(store, "span.tool")
    assert (tool.name, tool.agent) == ("weather", "forecaster")
    assert came(store, tool) == "sunny in Bonn"
    assert [event.name for event in rows(store, "span.agent")] == ["forecast", "forecaster"]
    assert store.verify().ok


def test_an_agent_of_pydantic_ai(store, provider):
    agent = PydanticAgent(TestModel(custom_output_text="Done."), name="helper")
    agent.instrument = InstrumentationSettings(tracer_provider=provider)

    @agent.tool_plain
    def lookup(order: str) -> str:
        """Find an order."""
        return f"order {order}"

    assert asyncio.run(agent.run("Where is it?")).output == "Done."
    provider.force_flush()
    run = only_run(store)
    assert (run.agent, run.status) == ("helper", "ok")
    calls = rows(store, "span.llm")
    assert [event.agent for event in calls] == ["helper", "helper"]
    assert all(event.usage is not None and event.usage.total for event in calls)
    # The agent's span tells the sum of its calls once more, and that is not counted.
    assert store.cost.of_run(run.id).total.tokens == sum(event.usage.total for event in calls if event.usage)
    (tool,) = rows(store, "span.tool")
    assert (tool.name, tool.agent) == ("lookup", "helper")
    assert "Done." in json.dumps(came(store, calls[-1]))
    assert store.verify().ok


class Scripts(BaseHTTPRequestHandler):
    """An endpoint that speaks like OpenAI's."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "gpt-4o-mini-2024-07-18",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "On page 3."},
                }
            ],
            "usage": {
                "prompt_tokens": 1000,
                "completion_tokens": 50,
                "total_tokens": 1050,
                "prompt_tokens_details": {"cached_tokens": 200},
            },
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def openai_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripts)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_openai_by_its_own_opentelemetry_instrumentation(store, url, provider, openai_url, monkeypatch):
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_AND_EVENT")
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    logs = LoggerProvider(resource=Resource.create({"service.name": "shop"}))
    logs.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"{url}/v1/logs")))
    instrumentor = OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=provider, logger_provider=logs)
    try:
        with OpenAI(base_url=openai_url, api_key="none") as client:
            client.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": "Where is my refund?"}]
            )
    finally:
        instrumentor.uninstrument()
        logs.shutdown()
    provider.force_flush()
    (call,) = rows(store, "span.llm")
    assert call.model == "gpt-4o-mini-2024-07-18"
    assert call.usage is not None
    assert (call.usage.total, call.usage.output) == (1050, 50)
    assert call.cost_nanos is not None
    found = json.loads(call.data)
    assert found["provider"] == "openai"
    assert found["attributes"]["gen_ai.response.id"] == "chatcmpl-1"
    everything = json.dumps([came(store, each) for kind in ("message", "log", "span.llm")
                             for each in rows(store, kind) if each.body])  # fmt: skip
    assert "On page 3." in everything
    assert store.verify().ok
