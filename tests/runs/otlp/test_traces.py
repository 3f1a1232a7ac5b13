"""Spans of every convention become rows of the journal, and nothing that they say is lost."""

from __future__ import annotations

import json

import pytest

from tests.runs.otlp.exports import START_NS, TRACE, span, traces
from treering.core.batch import Usage
from treering.core.query import EventQuery

ROOT = span("invoke_agent planner", id=1, ms=900, attributes={"gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "planner", "gen_ai.conversation.id": "alice"})  # fmt: skip


def send(store, *spans, **options):
    return store.otlp.write(traces(*spans, **options), encoding="json")


def rows(store, kind="span."):
    page = store.engine.scan(store.space, EventQuery(run=TRACE, order="time"))
    return [record.event for record in page.records if record.event.kind.startswith(kind)]


def told(event):
    return json.loads(event.data) if event.data else {}


def given(store, event):
    return store.timeline.content(event.links[told(event)["input"]])[0]


def came(store, event):
    return store.timeline.content(event.body)[0]


GENAI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-5",
    "gen_ai.usage.input_tokens": 1000,
    "gen_ai.usage.cache_read.input_tokens": 400,
    "gen_ai.usage.output_tokens": 200,
    "gen_ai.usage.reasoning.output_tokens": 50,
    "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]',
    "gen_ai.output.messages": '[{"role": "assistant", "parts": [{"type": "text", "content": "hello"}]}]',
}


OLDER = {
    "gen_ai.system": "openai",
    "gen_ai.request.model": "gpt-5",
    "gen_ai.usage.prompt_tokens": 1000,
    "gen_ai.usage.cache_read_input_tokens": 400,
    "gen_ai.usage.completion_tokens": 200,
    "gen_ai.usage.reasoning_tokens": 50,
    "llm.request.type": "chat",
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "hi",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "hello",
}


OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.provider": "openai",
    "llm.model_name": "gpt-5",
    "llm.token_count.prompt": 1000,
    "llm.token_count.prompt_details.cache_read": 400,
    "llm.token_count.completion": 200,
    "llm.token_count.completion_details.reasoning": 50,
    "llm.token_count.total": 1200,
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "hi",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "hello",
}


@pytest.mark.parametrize("attributes", [GENAI, OLDER, OPENINFERENCE], ids=["genai", "older", "openinference"])
def test_a_call_of_a_model_is_the_same_in_every_convention(store, attributes):
    send(store, ROOT, span("chat gpt-5", id=2, parent=1, at_ms=5, attributes=attributes))
    (call,) = rows(store, "span.llm")
    assert (call.model, call.role, call.agent, call.status) == ("gpt-5", "assistant", "planner", "ok")
    assert call.usage is not None
    used = call.usage
    assert (used.input, used.cache_read, used.output, used.reasoning) == (600, 400, 200, 50)
    # gpt-5 in October 2025: 1.25 and 10 dollars a million, 0.125 from the cache.
    assert (call.cost_nanos, call.currency) == (600 * 1250 + 400 * 125 + 200 * 10_000, "USD")
    assert told(call)["priced_by"] == "openai/gpt-5"
    assert "hi" in json.dumps(given(store, call))
    assert "hello" in json.dumps(came(store, call))
    assert "attributes" not in told(call), "all of it was understood"


def test_a_trace_is_a_run_of_its_conversation(store):
    send(
        store,
        ROOT,
        span("execute_tool search", id=2, parent=1, at_ms=5, ms=30, attributes={
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search",
            "gen_ai.tool.call.arguments": '{"q": "refund"}', "gen_ai.tool.call.result": "page 3"}),
        span("chat gpt-5", id=3, parent=1, at_ms=50, attributes=GENAI),
    )  # fmt: skip
    run = store.runs.load(TRACE)
    assert (run.agent, run.thread, run.status) == ("planner", "alice", "ok")
    assert (run.started_at_us, run.duration_us) == (START_NS // 1000, 900_000)
    assert [page.id for page in store.runs.page().runs] == [TRACE]
    lines = [(line.type, line.label) for line in store.timeline.of_run(TRACE).events]
    assert [kind for kind, _ in lines] == [
        "agent.span.start",
        "tool.call",
        "tool.result",
        "message",
        "agent.span.end",
    ]
    assert lines[1][1] == "call search"
    message = store.timeline.of_run(TRACE).events[3]
    assert message.label == "assistant message"
    assert (message.meta["model"], message.meta["tokens"]) == ("gpt-5", 1200)
    assert store.cost.of_run(TRACE).total.nanos["USD"] == 600 * 1250 + 400 * 125 + 200 * 10_000
    assert store.verify().ok


def test_attributes_that_nobody_knows_are_kept(store):
    long = "x" * 5000
    nested = {"deep": [1, {"er": True}]}
    attributes = {"shop.cart": 7, "shop.note": "gift", "shop.long": long, "shop.nested": nested, "ok": True}
    links = [{"traceId": "ab" * 16, "spanId": "cd" * 8, "attributes": []}]
    send(store, span("checkout", id=2, attributes=attributes, links=links, traceState="a=1"))
    (step,) = rows(store)
    assert step.kind == "span.step"
    small = told(step)["attributes"]
    (more,) = rows(store, "attributes")
    assert more.span == step.span
    rest = came(store, more)
    assert small | rest["attributes"] == attributes
    assert rest["links"] == [{"trace": "ab" * 16, "span": "cd" * 8}]
    assert rest["trace_state"] == "a=1"
    assert store.runs.load(TRACE).meta["resources"] == [{"service.name": "shop"}]


def test_an_exception_has_the_recorders_format(store):
    exception = {
        "name": "exception",
        "timeUnixNano": str(START_NS),
        "attributes": [
            {"key": "exception.type", "value": {"stringValue": "ValueError"}},
            {"key": "exception.message", "value": {"stringValue": "no such order"}},
            {"key": "exception.stacktrace", "value": {"stringValue": "Traceback ..."}},
        ],
    }
    send(store, span("lookup", id=2, status={"code": 2, "message": "no"}, events=[exception]))
    (step,) = rows(store)
    assert step.status == "error"
    assert told(step)["error"] == {
        "type": "ValueError",
        "message": "no such order",
        "traceback": "Traceback ...",
    }
    assert store.runs.load(TRACE).status == "error"


def _began(name, at_ms):
    return {"name": name, "timeUnixNano": str(START_NS + at_ms * 1_000_000)}


@pytest.mark.parametrize(
    "attributes, events, first_us",
    [
        ({"gen_ai.response.time_to_first_chunk": 0.25}, [], 250_000),
        ({"gen_ai.response.time_to_first_token": 0.3}, [], 300_000),
        ({}, [_began("First Token Stream Event", 105)], 100_000),
        (
            {},
            [_began("llm.content.completion.chunk", 205), _began("llm.content.completion.chunk", 55)],
            50_000,
        ),
        ({}, [_began("something else", 105)], None),
        ({"gen_ai.response.time_to_first_chunk": "soon"}, [], None),
        ({"gen_ai.response.time_to_first_chunk": 99.0}, [_began("First Token Stream Event", 9999)], None),
    ],
)
def test_when_a_stream_began_is_known_in_every_convention(store, attributes, events, first_us):
    send(store, span("chat", id=2, at_ms=5, ms=400, attributes={**GENAI, **attributes}, events=events))
    (call,) = rows(store, "span.llm")
    assert told(call).get("first_token_us") == first_us
    (row,) = store.performance.report(by="model").rows
    assert (row.first_token and row.first_token.mean_us) == first_us


@pytest.mark.parametrize(
    "name",
    [
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.usage.cache_write_input_tokens",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
    ],
)
def test_tokens_written_to_the_cache_are_counted_under_every_name(store, name):
    send(store, span("chat", id=2, attributes=GENAI | {name: 300}))
    (call,) = rows(store, "span.llm")
    assert call.usage == Usage(input=300, cache_read=400, cache_write=300, output=200, reasoning=50)
    assert name not in told(call).get("attributes", {})


def test_modalities_are_parts_of_the_tokens_and_of_the_price(store):
    spoken = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gemini-2.5-flash",
        "gen_ai.usage.text.input_tokens": 600,
        "gen_ai.usage.audio.input_tokens": 400,
        "gen_ai.usage.audio.cache_read.input_tokens": 100,
        "gen_ai.usage.text.output_tokens": 50,
    }
    totals = {"gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 50}
    send(store, span("chat", id=2, attributes=spoken), span("chat", id=3, attributes=spoken | totals))
    for call in rows(store, "span.llm"):
        assert call.usage == Usage(input=900, cache_read=100, output=50)
        assert call.cost_nanos == 600 * 300 + 300 * 1_000 + 100 * 100 + 50 * 2_500
        assert told(call)["modalities"]["audio_input"] == 400


def test_a_total_above_its_parts_is_kept(store):
    attributes = OPENINFERENCE | {"llm.token_count.total": 1500}
    send(store, span("ChatOpenAI", id=2, attributes=attributes))
    (call,) = rows(store, "span.llm")
    assert call.usage is not None
    assert call.usage.total == 1500


def test_a_call_says_that_its_conversation_was_compacted(store):
    compacted = GENAI | {"gen_ai.conversation.compacted": True}
    send(store, span("chat", id=2, attributes=compacted), span("chat", id=3, at_ms=1, attributes=GENAI))
    first, second = (event for event in store.timeline.of_run(TRACE).events if event.type == "message")
    assert first.meta["compacted"] is True
    assert "compacted" not in second.meta


def test_tokens_that_two_instrumentations_tell_are_counted_once(store):
    outer = span("ChatOpenAI", id=2, parent=1, at_ms=5, ms=50, attributes=OPENINFERENCE)
    inner = span("chat gpt-5", id=3, parent=2, at_ms=6, ms=40, attributes=GENAI)
    for order in ([outer, inner], [inner, outer]):
        space = store.in_namespace(f"order-{order[0]['name'][:4]}")
        space.otlp.write(traces(ROOT, *order), encoding="json")
        assert space.cost.of_run(TRACE).total.tokens == 1200
        space.otlp.close()
    send(store, inner)
    send(store, outer)
    assert store.cost.of_run(TRACE).total.tokens == 1200
    kept = [told(event) for event in rows(store, "span.llm") if event.usage is None]
    assert kept[0]["usage_counted_below"]["output"] == 200


def test_what_an_agent_says_of_all_its_calls_is_not_counted_again(store):
    whole = {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 1000}
    send(
        store, span("invoke_agent a", id=1, attributes=whole), span("chat", id=2, parent=1, attributes=GENAI)
    )
    assert store.cost.of_run(TRACE).total.tokens == 1200
    (agent,) = rows(store, "span.agent")
    assert told(agent)["attributes"]["gen_ai.usage.input_tokens"] == 1000


def test_a_reported_cost_is_kept_beside_the_computed_one(store):
    send(store, span("chat", id=2, attributes=GENAI | {"operation.cost": 0.5}))
    (call,) = rows(store, "span.llm")
    assert call.cost_nanos == 500_000_000
    assert told(call)["computed_cost"]["nanos"] == 600 * 1250 + 400 * 125 + 200 * 10_000


def test_a_model_without_a_price_is_unpriced_and_not_free(store):
    send(store, span("chat", id=2, attributes=GENAI | {"gen_ai.request.model": "nobody-knows-1"}))
    total = store.cost.of_run(TRACE).total
    assert (total.unpriced_tokens, total.nanos) == (1200, {})


def test_a_pending_span_of_logfire_shows_a_run_while_it_runs(store):
    pending = {"logfire.span_type": "pending_span", "logfire.pending_parent_id": f"{1:016x}"}
    send(store, span("slow", id=77, parent=2, at_ms=5, ms=0, attributes=pending))
    assert [event.kind for event in rows(store, "open.")] == ["open.step"]
    assert store.runs.load(TRACE).status == "running"
    send(store, span("slow", id=2, parent=1, at_ms=5, ms=500))
    send(store, span("slow", id=77, parent=2, at_ms=5, ms=0, attributes=pending))
    send(store, ROOT)
    types = [line.type for line in store.timeline.of_run(TRACE, everything=True).events]
    assert types.count("step.span.start") == 1
    assert types.count("step.span.end") == 1


def test_traceloop_spans_are_agents_tools_and_workflows(store):
    send(
        store,
        span("joke.workflow", id=1, attributes={"traceloop.span.kind": "workflow",
             "traceloop.entity.name": "joke", "traceloop.association.properties.session_id": "s-1"}),
        span("fetch.tool", id=2, parent=1, attributes={"traceloop.span.kind": "tool",
             "traceloop.entity.name": "fetch", "traceloop.entity.input": '{"url": "x"}',
             "traceloop.entity.output": '"done"'}),
    )  # fmt: skip
    workflow, tool = rows(store)
    assert (workflow.kind, tool.kind, tool.name) == ("span.workflow", "span.tool", "fetch")
    assert given(store, tool) == {"url": "x"}
    assert store.runs.load(TRACE).thread == "s-1"


def test_retrieved_documents_are_put_together(store):
    send(store, span("retrieve", id=2, attributes={
        "openinference.span.kind": "RETRIEVER", "input.value": "refund",
        "retrieval.documents.0.document.content": "page 3", "retrieval.documents.0.document.score": 0.5,
        "retrieval.documents.1.document.content": "page 9"}))  # fmt: skip
    (step,) = rows(store, "span.retrieval")
    assert came(store, step) == [{"content": "page 3", "score": 0.5}, {"content": "page 9"}]


def test_names_that_no_column_can_hold_are_cleaned(store):
    send(store, span("a\x00b\n" + "c" * 2000, id=2))
    (step,) = rows(store)
    assert step.name is not None
    assert step.name.startswith("a b c")
    assert len(step.name) <= 512


@pytest.mark.parametrize(
    "text",
    [
        '{"$decimal": "1.5"}',
        '{ "$decimal" : "1.5", "b": {"$bytes": "AA=="} }',
        '[{"$ref": "#/x"}, {\n"$set": [1]}]',
        '{"a": 12345678901234567890, "b": 1e400}',
        "{not json",
        "[1, 2",
        "plain",
        '"quoted"',
        "",
    ],
)
def test_text_that_is_json_is_kept_as_what_it_says(store, text):
    send(store, span("s", id=2, attributes={"input.value": text, "output.value": text}))
    (step,) = rows(store)
    try:
        plain = json.loads(text)
    except ValueError:
        plain = text
    expected = plain if text[:1] in ("{", "[") else text
    if "1e400" in text:
        expected = text  # no number that anyone could hold
    assert given(store, step) == expected
    assert came(store, step) == expected
    assert store.verify().ok


VERCEL = {
    "ai.model.id": "gpt-5",
    "ai.model.provider": "openai.chat",
    "ai.usage.inputTokens": 1000,
    "ai.usage.cachedInputTokens": 400,
    "ai.usage.outputTokens": 200,
    "ai.usage.reasoningTokens": 50,
    "ai.response.text": "hello",
}


def test_spans_of_vercels_sdk_are_calls_and_tools_and_count_once(store):
    send(
        store,
        span("ai.streamText.doStream", id=2, parent=1, ms=20, at_ms=1, attributes=VERCEL | {
            "ai.operationId": "ai.streamText.doStream", "ai.prompt.messages": '[{"role": "user"}]',
            "ai.response.msToFirstChunk": 3.5}),
        span("ai.toolCall", id=3, parent=1, at_ms=30, attributes={"ai.operationId": "ai.toolCall",
             "ai.toolCall.name": "weather", "ai.toolCall.args": '{"city": "Oslo"}',
             "ai.toolCall.result": '{"degrees": 3}'}),
    )  # fmt: skip
    outer = VERCEL | {"ai.operationId": "ai.streamText", "ai.prompt": '{"prompt": "hi"}'}
    send(store, span("ai.streamText", id=1, ms=60, attributes=outer))
    chain, call, tool = rows(store)
    assert (chain.kind, call.kind, tool.kind, tool.name) == ("span.chain", "span.llm", "span.tool", "weather")
    assert (call.model, call.usage.input, call.usage.cache_read, call.usage.reasoning) == (
        "gpt-5",
        600,
        400,
        50,
    )
    assert (given(store, call), came(store, call)) == ([{"role": "user"}], "hello")
    assert (given(store, tool), came(store, tool)) == ({"city": "Oslo"}, {"degrees": 3})
    assert told(call)["first_token_us"] == 3500
    assert chain.usage is None
    assert store.cost.of_run(TRACE).total.tokens == 1200


def test_a_total_of_vercels_sdk_counts_without_calls(store):
    send(store, span("ai.generateText", id=1, attributes=VERCEL | {"ai.operationId": "ai.generateText"}))
    assert store.cost.of_run(TRACE).total.tokens == 1200
