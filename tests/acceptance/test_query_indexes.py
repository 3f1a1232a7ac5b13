"""Orchestrator: every query of the endpoints, the services and the entities uses an index."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import event as sql_events
from sqlmodel import select

import treering
from treering.compat import services
from treering.compat.models import AgentSpan, BlobRef, Message, Run, ToolCall, ToolResult, open_session
from treering.engines.sqlite.connection import SqliteSession
from treering.runs.timeline import TimelineFilter

TABLES = "event|ref|rollup|commits|body|object|item|list|scope|e|o|c"
SCAN = re.compile(rf"SCAN (?:{TABLES})\b|SEARCH \w+ USING .*\(space=\?(?: AND run>\?)?\)$")
"""A whole table, or all that a tenant has in it."""


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        services.use(opened)
        yield opened
        services.use(None)


@pytest.fixture
def ids(store):
    run = services.create_run()
    blob = services.save_blob("text", "x")
    span = services.start_span(run, "planner", input_ref=blob)
    call = services.save_tool_call(run, "planner", "list_items", span_id=span)
    message = services.save_message(run, "user", "x")
    looked = services.save_tool_call(run, "planner", "look")
    result = services.save_tool_result(looked, "ok", output_ref=blob)
    with store.run(agent="a", thread="t") as other:
        other.message("user", "y")
    store.flush()
    return {
        "run": run,
        "span": span,
        "call": call,
        "result": result,
        "message": message,
        "blob": blob,
        "other": other.id,
    }


@pytest.fixture
def asked(store, monkeypatch):
    """What the engine asks SQLite, as plans, while it is used."""
    questions = {}

    def noted(name):
        original = getattr(SqliteSession, name)

        def query(self, sql, parameters=()):
            if sql.lstrip().upper().startswith(("SELECT", "WITH")):
                questions.setdefault(sql, list(parameters))
            return original(self, sql, parameters)

        monkeypatch.setattr(SqliteSession, name, query)

    noted("rows")
    noted("query")
    yield questions
    monkeypatch.undo()
    connection = store.engine.sql_connection()
    for sql, parameters in questions.items():
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, parameters)]
        assert not [line for line in plan if SCAN.match(line)], (sql, plan)
    connection.close()


def test_the_endpoints_and_the_services(store, asked, ids):
    services.get_run_timeline(ids["run"], limit=1)
    cursor = services.get_run_timeline(ids["run"], limit=2)["next_cursor"]
    services.get_run_timeline(ids["run"], cursor=cursor)
    services.get_run_cost(ids["run"])
    only = TimelineFilter(span=ids["span"], kind="tool", status="running", text="x")
    store.timeline.of_run(ids["run"], filter=only)
    store.timeline.of_thread("t")
    store.cost.of_thread("t")
    store.cost.of_days(by="agent")
    store.runs.page()
    store.runs.load(ids["other"])
    services.save_tool_result(ids["call"], "ok", output_ref=ids["blob"])
    services.end_span(ids["span"])
    services.end_run(ids["run"])
    with pytest.raises(treering.errors.Conflict):
        services.end_span(ids["span"])
    tables = {word for sql in asked for word in re.findall(r"(?:FROM|JOIN) (\w+)", sql)}
    assert {"event", "ref", "rollup"} <= tables


# What the document names indexes for, and every way from one entity to another.
QUESTIONS = {
    "a run": lambda ids: select(Run).where(Run.id == ids["run"]),
    "spans of a run": lambda ids: (
        select(AgentSpan).where(AgentSpan.run_id == ids["run"]).order_by(AgentSpan.start_ts)
    ),
    "messages of a run": lambda ids: select(Message).where(Message.run_id == ids["run"]).order_by(Message.ts),
    "a message": lambda ids: select(Message).where(Message.id == ids["message"]),
    "a span": lambda ids: select(AgentSpan).where(AgentSpan.id == ids["span"]),
    "a call": lambda ids: select(ToolCall).where(ToolCall.id == ids["call"]),
    "a result": lambda ids: select(ToolResult).where(ToolResult.id == ids["result"]),
    "calls of a run": lambda ids: select(ToolCall).where(ToolCall.run_id == ids["run"]).order_by(ToolCall.ts),
    "results of a run": lambda ids: select(ToolResult).where(ToolResult.run_id == ids["run"]),
    "a payload": lambda ids: select(BlobRef).where(BlobRef.id == ids["blob"]),
    "runs with messages": lambda ids: select(Run, Message).join(Message).where(Run.id == ids["run"]),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_selects_of_entities(store, ids, question):
    plans = []
    with open_session(store) as session:
        connection = session.connection()

        def noted(_, __, sql, parameters, *___):
            raw = connection.connection.driver_connection
            plans.append([row[3] for row in raw.execute("EXPLAIN QUERY PLAN " + sql, parameters)])

        sql_events.listen(connection, "before_cursor_execute", noted)
        found = session.exec(QUESTIONS[question](ids)).all()
        assert found
        for row in found:  # touching a relationship asks another question
            entity = row[0] if isinstance(row, tuple) or hasattr(row, "_fields") else row
            for relation in type(entity).__mapper__.relationships:
                getattr(entity, relation.key)
    assert plans
    for plan in plans:
        assert not [line for line in plan if SCAN.match(line)], plan
        assert any("USING" in line for line in plan), plan


def test_a_scan_would_be_found(store):
    connection = store.engine.sql_connection()
    (row,) = connection.execute("EXPLAIN QUERY PLAN SELECT * FROM event e WHERE e.body = 'x'").fetchall()
    connection.close()
    assert SCAN.match(row[3])
