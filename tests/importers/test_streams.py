"""Streams of the real CLIs (see `clis`) become messages, tool calls and tokens, each counted once."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

import treering
from tests.importers.clis import CODEX_MODEL, FIXTURES
from treering.core.batch import Usage
from treering.core.clock import ManualClock
from treering.errors import InvalidInput
from treering.importers.streams import record_stream

CLAUDE = FIXTURES / "claude-code"
CODEX = FIXTURES / "codex"


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


def recorded(store, format, given, **options):
    with store.run(agent=format) as run:
        summary = record_stream(run, format, given, **options)
    store.flush()
    return run, summary


def labels(store, run):
    return [(event.agent, event.label.split(" (")[0]) for event in store.timeline.of_run(run.id).events]


def told_cost(path):
    return Decimal(str(json.loads(lines(path)[-1])["total_cost_usd"])).quantize(Decimal("1e-9"))


def test_claude_code_costs_what_its_own_last_line_says(store):
    run, summary = recorded(store, "claude-code", lines(CLAUDE / "stream-0.jsonl"))
    total = store.cost.of_run(run.id).total
    assert total.amounts == {"USD": told_cost(CLAUDE / "stream-0.jsonl")}
    assert total.usage == Usage(input=1526, cache_read=6250, cache_write=600, cache_write_1h=1500, output=217)
    assert summary.usage == {"claude-sonnet-4-5": total.usage}
    assert (summary.result, summary.is_error, summary.unknown, summary.bad) == (
        "It was checked.",
        False,
        {},
        (),
    )


def test_claude_codes_tools_and_subagents_are_nested(store):
    run, _ = recorded(store, "claude-code", lines(CLAUDE / "stream-0.jsonl"))
    found = labels(store, run)
    assert [each for each in found if each[1].startswith(("call", "▶"))] == [
        ("claude-code", "call Bash"),
        ("claude-code", "call Agent"),
        ("claude-code", "call Bash"),
        ("general-purpose", "▶ general-purpose"),
        ("general-purpose", "call Read"),
    ]
    events = {event.label: event for event in store.timeline.of_run(run.id).events}
    failed = [event.meta for event in store.timeline.of_run(run.id).events if event.label == "Bash result"]
    assert [each["status"] for each in failed] == ["ok", "error"]
    assert store.timeline.content(events["call Read"].body) == [{"file_path": "/home/ada/shop/note.txt"}]
    parts = {part.key: part.usage.output for part in store.cost.of_run(run.id).parts}
    assert set(parts) == {"claude-code", "general-purpose"}


def test_one_answer_is_one_message_however_many_lines_it_came_in(store):
    run, _ = recorded(store, "claude-code", lines(CLAUDE / "stream-0.jsonl"))
    said = [
        store.timeline.content(event.body)[0]
        for event in store.timeline.of_run(run.id).events
        if event.label == "assistant message"
    ]
    assert [[block["type"] for block in each] for each in said][:2] == [
        ["thinking", "text", "tool_use"],
        ["text", "tool_use", "tool_use"],
    ]
    assert len(said) == 6


@pytest.mark.parametrize("knows", [True, False], ids=["with what was before", "knowing only that it was"])
def test_a_session_that_is_resumed_is_not_counted_twice(store, knows):
    first, before = recorded(store, "claude-code", lines(CLAUDE / "stream-0.jsonl"))
    options = {"before": before.usage} if knows else {"is_resumed": True}
    second, summary = recorded(store, "claude-code", lines(CLAUDE / "stream-1.jsonl"), **options)
    assert summary.session == before.session
    assert store.cost.of_run(second.id).total.usage == Usage(input=9, cache_read=2200, output=8)
    spent = [store.cost.of_run(run.id).total.amount("USD") for run in (first, second)]
    assert sum(spent) == told_cost(CLAUDE / "stream-1.jsonl")


def test_codex_tells_its_tools_and_what_the_turn_took(store):
    run, summary = recorded(store, "codex", lines(CODEX / "stream-0.jsonl"), model=CODEX_MODEL)
    assert [each[1] for each in labels(store, run)] == [
        "error message",
        "reasoning message",
        "assistant message",
        "call shell",
        "shell result",
        "call shell",
        "shell result",
        "assistant message",
        "usage message",
    ]
    total = store.cost.of_run(run.id).total
    assert total.usage == Usage(input=400, cache_read=3500, output=72, reasoning=20)
    assert total.amounts == {"USD": Decimal("0.0016575")}
    assert summary.result == "The note is there, and says: ring."
    again, _ = recorded(
        store, "codex", lines(CODEX / "stream-1.jsonl"), model=CODEX_MODEL, before=summary.usage
    )
    assert store.cost.of_run(again.id).total.usage == Usage(input=100, cache_read=1400, output=9)


def test_codex_without_a_model_is_unpriced_and_not_free(store):
    run, _ = recorded(store, "codex", lines(CODEX / "stream-0.jsonl"))
    total = store.cost.of_run(run.id).total
    assert total.is_unpriced
    assert total.amount("USD") is None


def acp(kind, **update):
    given = {"sessionId": "s1", "update": {"sessionUpdate": kind, **update}}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": given}).encode()


def text(value):
    return {"type": "text", "text": value}


def test_chunks_of_acp_are_one_message_that_keeps_its_times(store):
    clock = ManualClock()
    ended = {"stopReason": "end_turn", "usage": {"inputTokens": 10, "outputTokens": 4, "totalTokens": 14}}

    def slowly():
        for line in (
            acp("agent_thought_chunk", content=text("Let me ")),
            acp("agent_thought_chunk", content=text("see.")),
            acp("agent_message_chunk", content=text("It is ")),
            acp("agent_message_chunk", content=text("on ")),
            acp("agent_message_chunk", content=text("page 3.")),
            acp("tool_call", toolCallId="c1", title="Read page 3", status="pending", rawInput={"page": 3}),
            acp("tool_call_update", toolCallId="c1", status="completed", content=[text("refunds")]),
            acp("available_commands_update", availableCommands=[]),
            json.dumps({"jsonrpc": "2.0", "id": 3, "result": ended}),
        ):
            yield line
            clock.advance(seconds=0.5)

    run, summary = recorded(store, "acp", slowly(), model="gpt-5", clock=clock)
    events = store.timeline.of_run(run.id).events
    assert [event.label for event in events] == [
        "reasoning message",
        "assistant message",
        "call Read page 3",
        "Read page 3 result",
        "usage message",
    ]
    assert store.timeline.content(events[1].body, events[3].body) == ["It is on page 3.", [text("refunds")]]
    (kept,) = [
        each.event
        for each in store.engine.scan(store.space, treering.core.query.EventQuery(run=run.id)).records
        if each.event.role == "assistant"
    ]
    assert json.loads(kept.data) == {"chunks_us": [0, 500_000, 1_000_000]}
    assert store.cost.of_run(run.id).total.usage == Usage(input=10, output=4)
    assert (summary.session, summary.result) == ("s1", "It is on page 3.")


@pytest.mark.parametrize("format", ["claude-code", "codex", "acp"])
def test_unknown_lines_are_kept_and_counted(store, format):
    odd = [b"warning: something\n", b'{"type": "hologram", "x": 1}\n', b"\n", b"[1]\n"]
    run, summary = recorded(store, format, odd)
    assert summary.bad == (1,)
    assert sum(summary.unknown.values()) == 2
    assert summary.unknown["hologram"] == 1
    events = store.timeline.of_run(run.id).events
    assert [event.label for event in events] == ["line message"] * 3
    assert store.timeline.content(*(event.body for event in events)) == [
        "warning: something\n",
        {"type": "hologram", "x": 1},
        [1],
    ]


def test_a_call_without_a_result_is_unfinished_when_the_stream_ends(store):
    cut = [line for line in lines(CLAUDE / "stream-0.jsonl") if b'"id": "toolu_write"' in line][:1]
    run, _ = recorded(store, "claude-code", cut)
    (result,) = [event for event in store.timeline.of_run(run.id).events if event.type == "tool.result"]
    assert result.meta["status"] == "unfinished"


def test_another_format_is_refused(store):
    with pytest.raises(InvalidInput, match="claude-code, codex, acp"):
        recorded(store, "morse", [])
