"""Log records: what coding agents report of themselves, messages beside spans, and plain logs."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.runs.otlp.exports import START_NS, TRACE, attributes, log, logs, metrics, span, total, traces
from treering.core.query import EventQuery
from treering.errors import StoreFull
from treering.runs.otlp.decode import decode_request

CLAUDE = {"service.name": "claude-code", "service.version": "2.1.0"}
SESSION = {"session.id": "5b0c", "organization.id": "org-1", "terminal.type": "xterm"}
PROMPT = log(
    body="claude_code.user_prompt",
    attributes=SESSION | {"event.name": "user_prompt", "prompt_length": "11", "prompt": "fix the bug"},
)
REQUEST = log(
    body="claude_code.api_request",
    at_ms=5000,
    attributes=SESSION
    | {
        "event.name": "api_request",
        "model": "claude-sonnet-4-5-20250929",
        "cost_usd": "0.0153",
        "duration_ms": "1200",
        "input_tokens": "1000",
        "output_tokens": "200",
        "cache_read_tokens": "5000",
        "cache_creation_tokens": "300",
    },
)
TOOL = log(
    body="claude_code.tool_result",
    at_ms=6000,
    attributes=SESSION
    | {
        "event.name": "tool_result",
        "tool_name": "Bash",
        "success": "false",
        "error": "exit 1",
        "duration_ms": 340,
        "tool_parameters": '{"command": "make"}',
    },
)


def send(store, *records, **options):
    return store.otlp.write(logs(*records, **options), signal="logs", encoding="json")


def rows(store, run):
    return [
        record.event for record in store.engine.scan(store.space, EventQuery(run=run, order="time")).records
    ]


def test_a_session_of_claude_code_is_a_run_with_its_cost(store):
    assert send(store, PROMPT, REQUEST, TOOL, resource=CLAUDE).accepted == 3
    run = store.runs.load("5b0c")
    assert (run.agent, run.thread, run.status) == ("claude-code", "5b0c", "running")
    assert run.meta["resources"] == [CLAUDE]
    lines = store.timeline.of_run("5b0c").events
    assert [line.type for line in lines] == ["message", "message", "tool.call", "tool.result"]
    assert store.timeline.content(lines[0].body) == ["fix the bug"]
    call = next(event for event in rows(store, "5b0c") if event.kind == "span.llm")
    assert call.usage is not None
    used = call.usage
    assert (used.input, used.cache_read, used.cache_write, used.output) == (1000, 5000, 300, 200)
    assert (call.cost_nanos, call.currency, call.duration_us) == (15_300_000, "USD", 1_200_000)
    assert call.ts_us == START_NS // 1000 + 3_800_000
    # Sonnet 4.5: 3, 0.30, 3.75 and 15 dollars a million.
    computed = json.loads(call.data or b"")["computed_cost"]
    assert computed["nanos"] == 1000 * 3000 + 5000 * 300 + 300 * 3750 + 200 * 15_000
    tool = next(event for event in rows(store, "5b0c") if event.kind == "span.tool")
    assert (tool.name, tool.status, tool.duration_us) == ("Bash", "error", 340_000)
    assert json.loads(tool.data or b"")["error"]["message"] == "exit 1"
    assert store.timeline.content(lines[2].body) == [{"command": "make"}]
    assert store.cost.of_run("5b0c").total.tokens == 6500
    assert store.verify().ok


def test_records_that_are_sent_again_are_stored_once_and_twins_stay_twins(store):
    for _ in range(2):
        send(store, PROMPT, REQUEST, REQUEST, resource=CLAUDE)
    assert [event.kind for event in rows(store, "5b0c")] == ["message", "span.llm", "span.llm"]
    assert store.cost.of_run("5b0c").total.tokens == 13_000


def test_a_prompt_that_was_not_sent_is_recorded_by_its_length(store):
    record = log(attributes=SESSION | {"event.name": "user_prompt", "prompt_length": 42})
    send(store, record, resource=CLAUDE)
    (line,) = store.timeline.of_run("5b0c").events
    assert store.timeline.content(line.body) == ["(42 characters, not sent)"]


def test_tokens_of_codex_count_the_cache_into_the_input(store):
    record = log(
        "codex.sse_event",
        attributes={
            "event.kind": "response.completed",
            "conversation.id": "c-1",
            "model": "gpt-5-codex",
            "input_token_count": 1000,
            "cached_token_count": 800,
            "output_token_count": 60,
            "reasoning_token_count": 40,
        },
    )
    delta = log("codex.sse_event", attributes={"event.kind": "response.delta", "conversation.id": "c-1"})
    send(store, record, delta, resource={"service.name": "codex_cli_rs"})
    call = next(event for event in rows(store, "c-1") if event.kind == "span.llm")
    assert call.usage is not None
    assert (call.usage.input, call.usage.cache_read, call.usage.reasoning) == (200, 800, 40)
    assert store.cost.of_run("c-1").total.tokens == 1060


def test_messages_beside_a_span_lie_in_its_run(store):
    store.otlp.write(traces(span("chat", id=7)), encoding="json")
    place = {"traceId": TRACE, "spanId": f"{7:016x}"}
    send(
        store,
        log("gen_ai.user.message", body={"content": "Hi"}, attributes={"gen_ai.system": "openai"}, **place),
        log(
            "gen_ai.choice",
            body={"index": 0, "message": {"role": "assistant", "content": "Hello"}},
            attributes={},
            **place,
        ),
    )
    messages = [event for event in rows(store, TRACE) if event.kind == "message"]
    (chat,) = [event for event in rows(store, TRACE) if event.id.endswith(f".{7:016x}")]
    assert [(event.role, event.span) for event in messages] == [("user", chat.id), ("assistant", chat.id)]
    assert store.timeline.content(messages[0].body) == ["Hi"]


def test_a_plain_log_keeps_all_that_it_says(store):
    record = log(body={"text": "disk is full", "free": 0}, attributes={"host": "a"}, severityText="ERROR")
    assert send(store, record).accepted == 1
    (found,) = store.engine.scan(store.space, EventQuery(kinds=("log",))).records
    assert found.event.run is None
    assert json.loads(found.event.data or b"") == {"severity": "ERROR", "attributes": {"host": "a"}}
    assert store.timeline.content(found.event.body) == [{"text": "disk is full", "free": 0}]


def test_a_record_of_the_wrong_shape_is_counted(store):
    result = send(store, PROMPT, {"timeUnixNano": "soon"}, resource=CLAUDE)
    assert (result.accepted, result.rejected) == (1, 1)


def test_a_quiet_session_ends_and_may_continue(store, monkeypatch):
    send(store, PROMPT, resource=CLAUDE)
    ingest = store.otlp
    monkeypatch.setattr(ingest, "_quiet_seconds", -1.0)
    ingest._end_quiet_runs()
    run = store.runs.load("5b0c")
    assert (run.status, run.duration_us) == ("unfinished", 0)
    send(store, REQUEST, resource=CLAUDE)
    assert store.runs.load("5b0c").status == "running"


def test_a_record_that_cannot_be_stored_does_not_take_the_others_along(store):
    deep = []
    for _ in range(250):
        deep = [deep]
    actual = send(store, log(body="fine", attributes={}), log("deep", body=deep, attributes={}))
    assert (actual.accepted, actual.rejected) == (1, 1)
    assert "log 'deep'" in actual.message


def test_a_request_of_codex_is_a_call_only_when_it_failed(store):
    session = {"conversation.id": "c-2", "model": "gpt-5-codex"}
    request = {"http.response.status_code": 200, "duration_ms": 500}
    failure = {"http.response.status_code": 529, "error.message": "overloaded", "duration_ms": 90}
    answer = {"event.kind": "response.completed", "input_token_count": 10, "output_token_count": 5}
    send(
        store,
        log("codex.api_request", attributes=session | failure),
        log("codex.api_request", attributes=session | request, at_ms=100),
        log("codex.sse_event", attributes=session | answer, at_ms=200),
        resource={"service.name": "codex_cli_rs"},
    )
    failed, answered = (event for event in rows(store, "c-2") if event.kind == "span.llm")
    assert (failed.status, answered.status) == ("error", "ok")
    assert json.loads(failed.data)["error"] == {"type": "529", "message": "overloaded"}
    assert store.cost.of_run("c-2").total.tokens == 15


def points(store):
    return [record.event for record in store.engine.scan(store.space, EventQuery(kinds=("metric",))).records]


def send_metrics(store, *given, resource=None):
    return store.otlp.write(metrics(*given, resource=resource), signal="metrics", encoding="json")


def test_a_data_point_of_a_session_is_in_its_run_and_counts_no_tokens(store):
    tokens = total("claude_code.token.usage", 900, **{"session.id": "5b0c", "type": "input"})
    send(store, REQUEST, resource=CLAUDE)
    before = store.cost.of_run("5b0c").total
    assert before.usage.input == 1000
    assert send_metrics(store, tokens, resource=CLAUDE).accepted == 1
    (point,) = points(store)
    assert (point.run, point.name) == ("5b0c", "claude_code.token.usage")
    assert store.timeline.content(point.body) == [{"value": 900, "type": "sum", "temporality": "cumulative"}]
    assert json.loads(point.data)["attributes"]["type"] == "input"
    after = store.cost.of_run("5b0c").total
    assert (after.usage, after.nanos) == (before.usage, before.nanos)


def test_a_series_that_has_not_changed_is_not_written_again(store):
    for at_ms, number in enumerate([5, 5, 5, 6, 6]):
        assert send_metrics(store, total("requests", number, at_ms=at_ms)).accepted == 1
    send_metrics(store, total("requests", 6, at_ms=9, route="/other"))
    assert len(points(store)) == 3
    for at_ms in range(3):
        send_metrics(store, total("sent", 1, at_ms=at_ms, delta=True))
    assert len(points(store)) == 6


def test_a_point_that_was_not_stored_is_written_when_it_is_sent_again(store, monkeypatch):
    def full(*_):
        raise StoreFull("no space")

    with monkeypatch.context() as patched:
        patched.setattr(store.otlp, "_commit_once", full)
        with pytest.raises(StoreFull):
            send_metrics(store, total("requests", 5))
    send_metrics(store, total("requests", 5))
    assert len(points(store)) == 1


def test_both_encodings_give_the_same_points(store):
    when = {"timeUnixNano": str(START_NS), "attributes": attributes({"model": "gpt-5"})}
    histogram = {"count": "3", "sum": 7.5, "bucketCounts": ["1", "2"], "explicitBounds": [5.0]}
    exponential = {
        "count": "2",
        "scale": 1,
        "zeroCount": "1",
        "positive": {"offset": 2, "bucketCounts": ["1"]},
    }
    summary = {"count": "2", "sum": 3.0, "quantileValues": [{"quantile": 0.5, "value": 1.5}]}
    given = [
        {"name": "temperature", "unit": "Cel", "gauge": {"dataPoints": [when | {"asDouble": 20.5}]}},
        {"name": "seconds", "unit": "s",
         "histogram": {"dataPoints": [when | histogram], "aggregationTemporality": 1}},
        {"name": "bytes",
         "exponentialHistogram": {"dataPoints": [when | exponential], "aggregationTemporality": 2}},
        {"name": "old", "summary": {"dataPoints": [when | summary]}},
    ]  # fmt: skip
    data = metrics(*given)
    message = ParseDict(json.loads(data), ExportMetricsServiceRequest())
    read = [
        decode_request(data, "metrics", "json"),
        decode_request(message.SerializeToString(), "metrics", "protobuf"),
    ]
    assert read[0] == read[1]
    assert [log.body for log in read[0].logs] == [
        {"value": 20.5, "type": "gauge", "unit": "Cel"},
        {"count": 3, "sum": 7.5, "bucketCounts": [1, 2], "explicitBounds": [5.0], "type": "histogram",
         "unit": "s", "temporality": "delta"},
        {"count": 2, "scale": 1, "zeroCount": 1, "positive": {"offset": 2, "bucketCounts": [1]},
         "type": "exponentialHistogram", "temporality": "cumulative"},
        {"count": 2, "sum": 3.0, "quantileValues": [{"quantile": 0.5, "value": 1.5}], "type": "summary"},
    ]  # fmt: skip
    result = send_metrics(store, {"name": "bad", "sum": {"dataPoints": [{"asInt": "many"}]}}, given[0])
    assert (result.accepted, result.rejected) == (1, 1)
