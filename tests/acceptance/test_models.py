"""Orchestrator: typed entities, read with ``select`` on SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from sqlalchemy import func
from sqlalchemy.exc import DBAPIError
from sqlmodel import select

import treering
from treering.compat import services
from treering.compat.models import AgentSpan, BlobRef, Message, Run, ToolCall, ToolResult, open_session
from treering.compat.services import (
    create_run,
    end_run,
    end_span,
    get_session,
    save_blob,
    save_message,
    save_tool_call,
    save_tool_result,
    start_span,
)
from treering.errors import ReadOnly, Unsupported

# Every column of the document's diagram, under its own name.
ERD = {
    Run: "id project_id created_at status meta",
    AgentSpan: "id run_id agent_name start_ts end_ts status input_ref output_ref meta",
    Message: "id run_id agent_name role content_ref model prompt_tokens completion_tokens total_tokens "
    "cost_eur ts",
    ToolCall: "id run_id agent_name tool_name input_ref ts span_id",
    ToolResult: "id run_id tool_call_id output_ref status ts",
    BlobRef: "id kind data sha256 created_at",
}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = tmp_path / "store"
    with treering.open(url) as opened:
        services.use(opened)
        yield opened
        services.use(None)


@pytest.fixture
def ids(store):
    """A run as the services write it, and one as the recorder does."""
    found = {"run": create_run(project_id=7, meta={"goal": "refund"})}
    found["span"] = start_span(
        found["run"], "writer", input_ref=save_blob("json", {"input": "data"}), meta={"try": 1}
    )
    found["message"] = save_message(
        found["run"],
        "assistant",
        "Response text",
        "writer",
        "gpt-4",
        {"total": 150, "prompt": 100, "completion": 50},
        cost_eur=0.0045,
    )
    found["call"] = save_tool_call(
        found["run"],
        "writer",
        "list_items",
        span_id=found["span"],
        input_ref=save_blob("text", "q" * 9000),
    )
    found["result"] = save_tool_result(found["call"], "ok", output_ref=save_blob("json", ["an item"]))
    end_span(found["span"], output_ref=save_blob("text", "all done"))
    found["open"] = start_span(found["run"], "reader")
    found["pending"] = save_tool_call(found["run"], "reader", "read", span_id=found["open"])

    with store.run(agent="planner", thread="support/alice") as run:
        with run.span("planner", input={"goal": "refund"}) as span:
            with span.tool("search", {"q": "refunds"}) as call:
                call.output = ["page 3"]
            span.message("assistant", "On page 3.", cost=2, currency="USD", usage={"output": 5})
            span.output = "x" * 5000
        run.message("user", "thanks")
    store.flush()
    return {**found, "recorded": run.id}


def test_entities_have_every_column_of_the_diagram():
    for entity, names in ERD.items():
        assert list(entity.model_fields) == names.split()


def test_what_the_services_wrote_is_selected(ids):
    with get_session() as session:
        run = session.exec(select(Run).where(Run.id == ids["run"])).first()
        assert (run.id, run.project_id, run.status, run.meta) == (
            ids["run"],
            7,
            "running",
            {"goal": "refund"},
        )
        assert run.created_at.tzinfo is UTC
        assert run.created_at <= datetime.now(UTC)
        span, still_open = session.exec(
            select(AgentSpan).where(AgentSpan.run_id == run.id).order_by(AgentSpan.start_ts)
        ).all()
        assert (span.id, span.agent_name, span.status, span.meta) == (ids["span"], "writer", "ok", {"try": 1})
        assert span.start_ts <= span.end_ts
        assert (still_open.id, still_open.status, still_open.end_ts) == (ids["open"], "running", None)
        message = session.exec(select(Message).where(Message.run_id == run.id)).one()
        assert message.id == ids["message"]
        assert (message.prompt_tokens, message.completion_tokens, message.total_tokens) == (100, 50, 150)
        assert (message.cost_eur, message.model, message.role) == (0.0045, "gpt-4", "assistant")
        calls = session.exec(select(ToolCall).where(ToolCall.run_id == run.id).order_by(ToolCall.ts)).all()
        assert [(call.id, call.tool_name, call.span_id) for call in calls] == [
            (ids["call"], "list_items", ids["span"]),
            (ids["pending"], "read", ids["open"]),
        ]
        result = session.exec(select(ToolResult).where(ToolResult.run_id == run.id)).one()
        assert (result.id, result.tool_call_id, result.status) == (ids["result"], ids["call"], "ok")
        assert session.exec(select(Run).where(Run.id == "nothing")).first() is None


@pytest.mark.usefixtures("ids")
def test_every_reference_leads_to_a_payload():
    with get_session() as session:
        found = {}
        for entity, column in (
            (AgentSpan, "input_ref"),
            (AgentSpan, "output_ref"),
            (Message, "content_ref"),
            (ToolCall, "input_ref"),
            (ToolResult, "output_ref"),
        ):
            for row in session.exec(select(entity)).all():
                reference = getattr(row, column)
                if reference is None:
                    continue
                blob = session.exec(select(BlobRef).where(BlobRef.id == reference)).one()
                assert blob.id == reference
                data = blob.data
                if blob.kind == "json":
                    data = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                assert blob.sha256 == hashlib.sha256(data.encode()).hexdigest()
                assert blob.created_at.year >= 2024
                found.setdefault((entity, column), []).append((blob.kind, blob.data))
        assert sorted(map(str, found[AgentSpan, "input_ref"])) == [
            "('json', {'goal': 'refund'})",
            "('json', {'input': 'data'})",
        ]
        assert sorted(map(str, found[AgentSpan, "output_ref"])) == [
            "('text', 'all done')",
            f"('text', '{'x' * 5000}')",
        ]
        assert sorted(map(str, found[Message, "content_ref"])) == [
            "('text', 'On page 3.')",
            "('text', 'Response text')",
            "('text', 'thanks')",
        ]
        assert sorted(map(str, found[ToolCall, "input_ref"])) == [
            "('json', {'q': 'refunds'})",
            f"('text', '{'q' * 9000}')",
        ]
        assert sorted(map(str, found[ToolResult, "output_ref"])) == [
            "('json', ['an item'])",
            "('json', ['page 3'])",
        ]
        everything = session.exec(select(BlobRef)).all()
        assert len(everything) == len({blob.id for blob in everything}) == sum(map(len, found.values()))
        assert session.exec(select(BlobRef).where(BlobRef.id == "nothing")).first() is None
        assert session.exec(select(BlobRef).where(BlobRef.id == "o:" + "0" * 64)).first() is None
        with pytest.raises(Exception, match="select it by id"):
            session.exec(select(BlobRef).where(BlobRef.kind == "json")).all()


def test_the_relationships_of_the_diagram(ids):
    with get_session() as session:
        run = session.exec(select(Run).where(Run.id == ids["run"])).one()
        assert [span.id for span in run.spans] == [ids["span"], ids["open"]]
        assert [message.id for message in run.messages] == [ids["message"]]
        assert [call.id for call in run.tool_calls] == [ids["call"], ids["pending"]]
        assert [result.id for result in run.tool_results] == [ids["result"]]
        span = run.spans[0]
        assert span.run is run
        assert [call.id for call in span.tool_calls] == [ids["call"]]
        call = span.tool_calls[0]
        assert call.span is span
        assert call.result.id == ids["result"]
        assert call.result.tool_call is call
        assert call.result.output.data == ["an item"]
        assert call.input.data == "q" * 9000
        assert (span.input.data, span.output.data) == ({"input": "data"}, "all done")
        assert run.messages[0].content.data == "Response text"
        assert run.tool_calls[1].result is None
        assert run.tool_calls[1].input is None


def test_questions_across_entities(ids):
    with get_session() as session:
        rows = session.exec(
            select(Run.id, Message.role).join(Message, Message.run_id == Run.id).order_by(Run.id, Message.ts)
        ).all()
        assert rows == [
            (ids["run"], "assistant"),
            (ids["recorded"], "assistant"),
            (ids["recorded"], "user"),
        ]
        assert (
            rows
            == session.exec(select(Run.id, Message.role).join(Message).order_by(Run.id, Message.ts)).all()
        )
        counted = select(Message.agent_name, func.sum(Message.total_tokens)).group_by(Message.agent_name)
        by_agent = dict(session.exec(counted).all())
        assert by_agent == {"writer": 150, "planner": 5}
        recent = session.exec(select(Run).where(Run.created_at > datetime(2024, 1, 1, tzinfo=UTC))).all()
        assert len(recent) == 2
        dear = session.exec(select(Message).where(Message.cost_eur > 0.5)).one()
        assert 0.5 < dear.cost_eur < 2
        assert dear.run.id == ids["recorded"]
        for entity, name in (
            (Message, "message"),
            (AgentSpan, "span"),
            (AgentSpan, "open"),
            (ToolCall, "call"),
            (ToolCall, "pending"),
            (ToolResult, "result"),
        ):
            assert session.exec(select(entity).where(entity.id == ids[name])).one().id == ids[name]
            assert session.exec(select(entity).where(entity.id == "nothing")).first() is None
        assert session.exec(select(Run).where(Run.id.in_([ids["run"], "other"]))).one().id == ids["run"]


def test_costs_are_the_same_everywhere(store, ids):
    with get_session() as session:
        total = session.exec(select(func.sum(Message.cost_eur))).one()
    reports = [services.get_run_cost(ids[name])["total"]["cost_eur"] for name in ("run", "recorded")]
    assert total == pytest.approx(sum(reports))
    assert reports[0] == 0.0045
    assert store.verify().ok


def test_a_session_sees_what_others_committed_meanwhile(ids):
    with get_session() as session:
        assert session.exec(select(Run).where(Run.id == ids["run"])).one().status == "running"
        end_run(ids["run"])
        assert session.exec(select(Run).where(Run.id == ids["run"])).one().status == "ok"
        run_id = create_run(session=session)
        assert session.exec(select(Run).where(Run.id == run_id)).first() is None
        session.commit()
        assert session.exec(select(Run).where(Run.id == run_id)).one().status == "running"


def test_entities_outlive_their_session(ids):
    with get_session() as session:
        run = session.exec(select(Run).where(Run.id == ids["run"])).one()
        messages = session.exec(select(Message).where(Message.run_id == ids["run"])).all()
        session.commit()
    assert (run.status, messages[0].role) == ("running", "assistant")


WITHOUT = """
import sys
sys.modules["sqlmodel"] = None
import treering, treering.compat.services
from treering.errors import MissingExtra
try:
    with treering.open("s") as store, treering.compat.services.Session(store) as session:
        session.exec(None)
except MissingExtra as error:
    assert "treering[models]" in str(error)
else:
    raise AssertionError
"""


def test_without_the_extra_it_is_named(tmp_path):
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, cwd=tmp_path)


def test_entities_are_read_only(store, ids):
    with open_session(store) as session:
        run = session.exec(select(Run).where(Run.id == ids["run"])).one()
        for attempt in (
            lambda: session.add(Run(id="x")),
            lambda: session.add_all([Run(id="x")]),
            lambda: session.merge(run),
            lambda: session.delete(run),
        ):
            with pytest.raises(ReadOnly, match="services"):
                attempt()
        run.status = "changed"
        with pytest.raises(ReadOnly):
            session.commit()
    with get_session() as session:
        read = session.exec(select(Run)).first()
        messages = len(session.exec(select(Message)).all())
        services.save_message(read.id, "user", "with the change or not at all", session=session)
        read.status = "changed"
        with pytest.raises(ReadOnly):
            session.commit()
        session.commit()
        assert len(session.exec(select(Message)).all()) == messages
    with open_session(store) as session, pytest.raises(DBAPIError):
        session.connection().exec_driver_sql("DELETE FROM event")
    assert store.verify().ok


def test_a_space_sees_its_own_only(store, ids):
    other = store.in_namespace("other")
    services.use(other)
    create_run(id="theirs")
    with get_session() as session:
        assert [run.id for run in session.exec(select(Run)).all()] == ["theirs"]
        for entity in (AgentSpan, Message, ToolCall, ToolResult, BlobRef):
            assert session.exec(select(entity)).all() == []
        assert session.exec(select(Run).where(Run.id == ids["run"])).first() is None


def test_what_was_forgotten_is_not_selected(store, ids):
    store.forget(thread="support/alice")
    with get_session() as session:
        assert [run.id for run in session.exec(select(Run)).all()] == [ids["run"]]
        assert len(session.exec(select(Message)).all()) == 1


def test_memory_has_no_sql():
    with treering.open("memory:") as store, pytest.raises(Unsupported, match="SQLite and PostgreSQL"):
        open_session(store)
