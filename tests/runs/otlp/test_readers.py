"""Entities, reports, search and forgetting work on runs that arrived by OTLP."""

from __future__ import annotations

import pytest
from sqlmodel import select

from tests.runs.otlp.exports import TRACE, span, traces
from tests.runs.otlp.test_traces import GENAI, ROOT
from treering.compat.models import Message, Run, ToolCall, ToolResult, open_session
from treering.core.query import EventQuery
from treering.errors import NotFound
from treering.runs.cost import cost_report
from treering.runs.timeline import timeline_report

TOOL = span(
    "execute_tool search",
    id=2,
    parent=1,
    at_ms=5,
    attributes={
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": '{"q": "refund"}',
        "gen_ai.tool.call.result": "page 3",
    },
)
CALL = span("chat gpt-5", id=3, parent=1, at_ms=50, attributes=GENAI)


@pytest.fixture
def sent(store):
    store.otlp.write(traces(ROOT, TOOL, CALL), encoding="json")
    return store


def test_entities_are_readable(sent):
    if sent.url == "memory:":
        pytest.skip("entities are read from a database")
    with open_session(sent) as session:
        assert session.exec(select(Run.id, Run.status)).all() == [(TRACE, "ok")]
        (message,) = session.exec(select(Message)).all()
        assert (message.role, message.agent_name, message.total_tokens) == ("assistant", "planner", 1200)
        assert message.cost_eur is not None
        (call,) = session.exec(select(ToolCall)).all()
        (result,) = session.exec(select(ToolResult)).all()
        assert (call.tool_name, result.tool_call_id, result.status) == ("search", call.id, "ok")


def test_reports_include_otlp_runs(sent):
    events = timeline_report(sent.engine, sent.space, TRACE)["events"]
    assert [each["type"] for each in events] == [
        "agent.span.start",
        "tool.call",
        "tool.result",
        "message",
        "agent.span.end",
    ]
    assert events[3]["meta"]["tokens"] == 1200
    assert cost_report(sent.engine, sent.space, TRACE)["by_agent"][0]["agent"] == "planner"


def test_messages_are_found(sent):
    found = sent.timeline.search("hello")
    assert [hit.run for hit in found.hits] == [TRACE]


def test_forgetting_a_thread_takes_its_runs_along_whenever_the_thread_was_known(store):
    store.otlp.write(traces(TOOL), encoding="json")  # nothing says yet whose it is
    store.otlp.write(traces(ROOT), encoding="json")
    store.otlp.write(traces(CALL), encoding="json")
    assert store.runs.load(TRACE).thread == "alice"
    store.forget(thread="alice")
    left = [record.event.kind for record in store.engine.scan(store.space, EventQuery()).records]
    assert not [kind for kind in left if kind.startswith("span")]
    with pytest.raises(NotFound):
        store.runs.load(TRACE)
    assert store.verify().ok
