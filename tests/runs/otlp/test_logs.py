"""Log records: what coding agents report of themselves, messages beside spans, and plain logs."""

from __future__ import annotations

import json

from tests.runs.otlp.exports import START_NS, TRACE, log, logs, span, traces
from treering.core.query import EventQuery

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
    run = store.runs.get("5b0c")
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
    assert [(event.role, event.span) for event in messages] == [
        ("user", f"{TRACE[-8:]}.{7:016x}"),
        ("assistant", f"{TRACE[-8:]}.{7:016x}"),
    ]
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
    run = store.runs.get("5b0c")
    assert (run.status, run.duration_us) == ("unfinished", 0)
    send(store, REQUEST, resource=CLAUDE)
    assert store.runs.get("5b0c").status == "running"


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
