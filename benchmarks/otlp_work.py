"""The workload of the trace benchmarks: runs of 25 spans (4 agents, 11 models, 10 tools), about 1 KB a span.

The texts are ordinary words in random order, so that they compress about like what agents write and not like
a repeated block. Everything follows from a seed.
"""

from __future__ import annotations

import json
import random
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

SPANS_A_RUN = 25
AGENTS = ("planner", "researcher", "writer", "reviewer")
TOOLS = ("search_docs", "read_file", "run_tests", "query_orders", "send_mail")
MODELS = (("openai", "gpt-5"), ("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5-mini"))
WORDS = (
    "the of and to in a is that for it was on are as with they be at one have this from or had by hot but "
    "some what there we can out other were all your when up use word how said an each she which do their "
    "time if will way about many then them would write like so these her long make thing see him two has "
    "look more day could go come did my sound no most number who over know water than call first people "
    "may down side been now find refund order customer invoice payment shipping account address delivery "
    "package tracking status policy report summary section document table figure result analysis error "
    "retry timeout request response token function module import return value index cursor query commit "
    "branch merge test failure assertion python server client database schema column migration latency "
    "throughput memory cache queue worker schedule agent"
).split()


def requests(
    runs: int, *, runs_a_request: int = 20, seed: int = 7, start_ns: int | None = None
) -> list[bytes]:
    """Export requests in protobuf, each with some whole runs."""
    draw = random.Random(seed)
    now_ns = time.time_ns() - 3_600_000_000_000 if start_ns is None else start_ns
    made: list[bytes] = []
    for first in range(0, runs, runs_a_request):
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add()
        _set(resource_spans.resource.attributes, {"service.name": "bench", "service.version": "1.0"})
        scope_spans = resource_spans.scope_spans.add()
        scope_spans.scope.name = "bench"
        for number in range(first, min(first + runs_a_request, runs)):
            scope_spans.spans.extend(_run(draw, now_ns + number * 1_000_000_000, number))
        made.append(request.SerializeToString())
    return made


def _run(draw: random.Random, start_ns: int, number: int) -> list[Span]:
    trace = draw.randbytes(16)
    conversation = f"conversation-{number // 4}"
    spans: list[Span] = []
    root = _span(draw, trace, b"", "invoke_agent planner", start_ns, 60_000)
    agents = [root]
    _set(root.attributes, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": AGENTS[0]})
    for name in AGENTS[1:]:
        agent = _span(draw, trace, root.span_id, f"invoke_agent {name}", start_ns + 1000, 50_000)
        _set(agent.attributes, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name})
        agents.append(agent)
    for index in range(11):
        provider, model = MODELS[index % 3]
        span = _span(draw, trace, agents[index % 4].span_id, f"chat {model}", start_ns + index * 10**9, 2_000)
        asked = [{"role": "user", "parts": [{"type": "text", "content": text(draw, 600)}]}]
        came = [{"role": "assistant", "parts": [{"type": "text", "content": text(draw, 420)}]}]
        _set(
            span.attributes,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": provider,
                "gen_ai.request.model": model,
                "gen_ai.response.id": f"resp_{draw.randbytes(6).hex()}",
                "gen_ai.usage.input_tokens": draw.randrange(200, 4000),
                "gen_ai.usage.output_tokens": draw.randrange(20, 800),
                "gen_ai.input.messages": _json(asked),
                "gen_ai.output.messages": _json(came),
            },
        )
        spans.append(span)
    for index in range(10):
        tool = TOOLS[index % 5]
        span = _span(
            draw, trace, agents[index % 4].span_id, f"execute_tool {tool}", start_ns + index * 10**9, 300
        )
        _set(
            span.attributes,
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.call.id": f"call_{draw.randbytes(6).hex()}",
                "gen_ai.tool.call.arguments": _json({"query": text(draw, 150)}),
                "gen_ai.tool.call.result": _json({"result": text(draw, 750)}),
            },
        )
        if draw.random() < 0.02:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = "timed out"
        spans.append(span)
    for agent in agents:
        _set(agent.attributes, {"gen_ai.conversation.id": conversation, "input.value": text(draw, 500)})
        _set(agent.attributes, {"output.value": text(draw, 480)})
    return [*spans, *agents[1:], root]


def text(draw: random.Random, size: int) -> str:
    """About so many characters of words."""
    words: list[str] = []
    left = size
    while left > 0:
        word = draw.choice(WORDS)
        words.append(word)
        left -= len(word) + 1
    return " ".join(words)


def _json(value: object) -> str:
    return json.dumps(value)


def _span(draw: random.Random, trace: bytes, parent: bytes, name: str, start_ns: int, most_ms: int) -> Span:
    begun = start_ns + draw.randrange(0, 10**9)
    return Span(
        trace_id=trace,
        span_id=draw.randbytes(8),
        parent_span_id=parent,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=begun,
        end_time_unix_nano=begun + draw.randrange(1_000_000, most_ms * 1_000_000),
    )


def _set(attributes: object, values: dict[str, str | int]) -> None:
    for key, value in values.items():
        pair = attributes.add()  # type: ignore[attr-defined]
        pair.key = key
        if isinstance(value, int):
            pair.value.int_value = value
        else:
            pair.value.string_value = value
