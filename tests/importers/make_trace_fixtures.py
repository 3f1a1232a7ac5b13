"""Make ``fixtures/traces``: one agent, recorded by the SDKs of Phoenix (OpenInference) and Langfuse.

    pip install arize-phoenix langfuse openinference-instrumentation-openai openai
    PHOENIX_PORT=6006 phoenix serve &
    PYTHONPATH=. python tests/importers/make_trace_fixtures.py http://127.0.0.1:6006

Phoenix's files are what its server exports: ``phoenix.jsonl`` of its REST API, ``phoenix-dataframe.jsonl`` of
``get_spans_dataframe().to_json(orient="records", lines=True)``, ``phoenix-otlp.json`` of ``/spans/otlpv1``.
``openinference.jsonl`` and ``langfuse-sdk.bin`` are what the SDKs send, in the two formats of the Collector's
file exporter. Langfuse's server is no package and needs ClickHouse, so its exports (``langfuse.jsonl`` of
enriched observations, ``langfuse-trace.json`` of a trace with its observations) are made of what its SDK
sent, by the fields of its export reference; ``langfuse-api.json``, the answer of its API's
``/v2/observations``, is what the SDK's own types make of the same.

Phoenix 20 wants ``PHOENIX_DISABLE_AGENT_ASSISTANT=true`` where it cannot reach the internet.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.replays.provider import plan, provider

FOLDER = Path(__file__).parent / "fixtures/traces"
QUESTION = plan(
    ("I look it up.", [("search_orders", {"customer": "alice"})]), "Your refund was sent on Monday."
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search_orders",
            "description": "Find the orders of a customer.",
            "parameters": {"type": "object", "properties": {"customer": {"type": "string"}}},
        },
    }
]


def search_orders(customer: str) -> str:
    """Find the orders of a customer."""
    return f"order 4711 of {customer}: refunded"


def support(client: Any, search: Callable[..., str] = search_orders, **options: Any) -> str:
    """The agent: it asks the model, calls the tool, and streams the answer."""
    messages: list[Any] = [
        {"role": "system", "content": "You help customers."},
        {"role": "user", "content": QUESTION},
    ]
    reply = client.chat.completions.create(
        model="gpt-5", messages=messages, tools=TOOLS, temperature=0, **options
    )
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        found = search(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    stream = client.chat.completions.create(
        model="gpt-5",
        messages=messages,
        tools=TOOLS,
        stream=True,
        stream_options={"include_usage": True},
        **options,
    )
    return "".join(each.choices[0].delta.content or "" for each in stream if each.choices)


def main(phoenix: str) -> None:  # noqa: PLR0915 - one script, step by step
    import httpx
    import openai
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.trace import TracerProvider

    FOLDER.mkdir(parents=True, exist_ok=True)
    with provider() as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-x")

        # OpenInference, to Phoenix and to a file
        from openinference.instrumentation import TracerProvider as OpenInferenceProvider
        from openinference.instrumentation import using_session
        from openinference.instrumentation.openai import OpenAIInstrumentor
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import (
            SimpleSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )

        class ToFile(SpanExporter):
            def __init__(self, file: Any) -> None:
                self.file = file

            def export(self, spans: Any) -> SpanExportResult:
                self.file.write(json.dumps(otlp_json(encode_spans(spans))) + "\n")
                return SpanExportResult.SUCCESS

        with (FOLDER / "openinference.jsonl").open("w") as file:
            tracing = OpenInferenceProvider()
            tracing.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{phoenix}/v1/traces")))
            tracing.add_span_processor(SimpleSpanProcessor(ToFile(file)))
            OpenAIInstrumentor().instrument(tracer_provider=tracing)
            tracer = tracing.get_tracer("support")
            agent = tracer.agent(name="support")(lambda _: support(client, tracer.tool(search_orders)))
            with using_session("support/alice"):
                agent("Where is my refund?")
            tracing.force_flush()
            OpenAIInstrumentor().uninstrument()
        time.sleep(3)
        spans = httpx.get(f"{phoenix}/v1/projects/default/spans").json()
        (FOLDER / "phoenix.jsonl").write_text("".join(json.dumps(each) + "\n" for each in spans["data"]))
        page = httpx.get(f"{phoenix}/v1/projects/default/spans/otlpv1").json()
        (FOLDER / "phoenix-otlp.json").write_text(json.dumps(page, indent=1))
        from phoenix.client import Client

        frame = Client(base_url=phoenix).spans.get_spans_dataframe(project_identifier="default")
        frame.to_json(FOLDER / "phoenix-dataframe.jsonl", orient="records", lines=True, date_format="iso")

        # Langfuse
        sent: list[bytes] = []

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if "traces" in self.path:
                    import gzip

                    sent.append(
                        gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data
                    )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        Thread(target=receiver.serve_forever, daemon=True).start()
        import langfuse
        from langfuse.openai import OpenAI

        lf = langfuse.Langfuse(
            public_key="pk-lf-1",
            secret_key="sk-lf-1",
            host=f"http://127.0.0.1:{receiver.server_port}",
            tracer_provider=TracerProvider(),
        )
        traced = OpenAI(base_url=f"{server.url}/v1", api_key="sk-x")
        named = getattr(langfuse, "propagate_attributes", None)
        with (
            lf.start_as_current_observation(
                name="support", as_type="agent", input={"question": "Where is my refund?"}
            ) as root,
            named(session_id="support/alice", user_id="alice", tags=["demo"]) if named else nullcontext(),
        ):

            def search(customer: str) -> str:
                with lf.start_as_current_observation(
                    name="search_orders", as_type="tool", input={"customer": customer}
                ) as tool:
                    found = search_orders(customer)
                    tool.update(output=found)
                    return found

            root.update(output=support(traced, search))
        lf.flush()
        receiver.shutdown()
    with (FOLDER / "langfuse-sdk.bin").open("wb") as file:
        for each in sent:
            file.write(len(each).to_bytes(4, "big") + each)
    rows = [
        row for each in sent for row in observations(otlp_json(ExportTraceServiceRequest.FromString(each)))
    ]
    from langfuse.api import ObservationsV2Response

    answer = ObservationsV2Response.model_validate({"data": rows, "meta": {"cursor": None}})
    (FOLDER / "langfuse-api.json").write_text(json.dumps(json.loads(answer.json()), indent=1))
    (FOLDER / "langfuse.jsonl").write_text("".join(json.dumps(exported(row)) + "\n" for row in rows))
    first = next(row for row in rows if row["parent_observation_id"] is None)
    trace = {
        "id": first["trace_id"],
        "name": first["trace_name"],
        "timestamp": first["start_time"],
        "sessionId": first["session_id"],
        "userId": first["user_id"],
        "tags": first["tags"],
        "environment": "default",
        "input": first["input"],
        "output": first["output"],
        "metadata": {},
        "observations": [{camel(name): value for name, value in row.items()} for row in rows],
    }
    (FOLDER / "langfuse-trace.json").write_text(json.dumps(trace, indent=1))


def otlp_json(message: Any) -> Any:
    """Protobuf as OTLP's JSON: ids are hex, not base64."""
    from base64 import b64decode

    from google.protobuf.json_format import MessageToDict

    def fix(value: Any) -> Any:
        if isinstance(value, list):
            return [fix(each) for each in value]
        if isinstance(value, dict):
            return {
                name: b64decode(each).hex() if name in ("traceId", "spanId", "parentSpanId") else fix(each)
                for name, each in value.items()
            }
        return value

    return fix(MessageToDict(message, use_integers_for_enums=True))


def observations(request: Any) -> list[dict[str, Any]]:
    """What Langfuse's server makes of the spans of a request."""
    rows = []
    for span in (
        span
        for resource in request["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ):
        given = {each["key"]: next(iter(each["value"].values()), None) for each in span.get("attributes", [])}

        def loaded(name: str, given: dict[str, Any] = given) -> Any:
            value = given.get(f"langfuse.observation.{name}")
            try:
                return None if value is None else json.loads(value)
            except ValueError:
                return value

        first = loaded("completion_start_time")
        costs = {"input": 0.0001, "output": 0.0002, "total": 0.0003}
        is_generation = given.get("langfuse.observation.type") == "generation"
        rows.append(
            {
                "id": span["spanId"],
                "trace_id": span["traceId"],
                "project_id": "p1",
                "environment": "default",
                "type": given.get("langfuse.observation.type", "span").upper(),
                "parent_observation_id": span.get("parentSpanId"),
                "start_time": iso(span["startTimeUnixNano"]),
                "end_time": iso(span["endTimeUnixNano"]),
                "name": span["name"],
                "metadata": {},
                "level": given.get("langfuse.observation.level", "DEFAULT"),
                "status_message": given.get("langfuse.observation.status_message"),
                "version": None,
                "input": loaded("input"),
                "output": loaded("output"),
                "model": given.get("langfuse.observation.model.name"),
                "model_parameters": loaded("model.parameters"),
                "usage_details": usage(loaded("usage_details") or {}),
                "cost_details": costs if is_generation else {},
                "total_cost": costs["total"] if is_generation else None,
                "completion_start_time": first,
                "session_id": given.get("session.id"),
                "user_id": given.get("user.id"),
                "tags": ["demo"],
                "trace_name": given.get("langfuse.trace.name", "support"),
            }
        )
    return rows


def usage(sent: dict[str, Any]) -> dict[str, int]:
    """Langfuse's server counts under names of its own."""
    names = {"prompt_tokens": "input", "completion_tokens": "output", "total_tokens": "total"}
    return {names[name]: count for name, count in sent.items() if name in names}


def exported(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the export to a bucket writes it: values are text, the model has another name."""
    row = {("provided_model_name" if name == "model" else name): value for name, value in row.items()}
    for name in ("input", "output", "model_parameters"):
        if row[name] is not None and not isinstance(row[name], str):
            row[name] = json.dumps(row[name])
    for name in ("start_time", "end_time", "completion_start_time"):
        if row[name]:
            row[name] = row[name].replace("T", " ").removesuffix("Z")
    return row


def iso(nanos: str) -> str:
    return (
        datetime.fromtimestamp(int(nanos) // 1000 / 1e6, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)


if __name__ == "__main__":
    main(sys.argv[1])
