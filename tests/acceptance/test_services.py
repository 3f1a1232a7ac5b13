"""Orchestrator: the service layer, following the example of its documentation."""

from __future__ import annotations

import subprocess
import sys

import pytest

import treering
from treering.compat import services
from treering.compat.services import (
    create_run,
    end_run,
    end_span,
    get_run_cost,
    get_run_timeline,
    get_session,
    save_blob,
    save_message,
    save_tool_call,
    save_tool_result,
    start_span,
)
from treering.core.clock import ManualClock
from treering.errors import Conflict, InvalidInput, NotFound, ReadOnly, Unreachable
from treering.store import Store


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as opened:
        services.use(opened)
        yield opened
        services.use(None)


def test_the_document_s_own_example(store):
    run_id = create_run(project_id=7, meta={"goal": "refund"})

    # Blob storage
    blob_id = save_blob("json", {"input": "data"})
    output_blob_id = save_blob("text", "all done")
    result_blob_id = save_blob("json", ["an item"])

    # Span tracking
    span_id = start_span(run_id, "writer", input_ref=blob_id)

    # Message tracking
    message_id = save_message(
        run_id,
        role="assistant",
        content="Response text",
        agent_name="writer",
        model="gpt-4",
        tokens={"total": 150, "prompt": 100, "completion": 50},
        cost_eur=0.0045,
    )

    # Tool tracking
    call_id = save_tool_call(run_id, "writer", "list_items", span_id=span_id)
    result_id = save_tool_result(call_id, "ok", output_ref=result_blob_id)
    end_span(span_id, status="ok", output_ref=output_blob_id)
    end_run(run_id)

    # Data retrieval
    timeline = get_run_timeline(run_id, limit=100)
    assert timeline["next_cursor"] is None
    assert [event["type"] for event in timeline["events"]] == [
        "agent.span.start",
        "message",
        "tool.call",
        "tool.result",
        "agent.span.end",
    ]
    assert [event["ref"] for event in timeline["events"]] == [
        {"span_id": span_id},
        {"message_id": message_id},
        {"tool_call_id": call_id},
        {"tool_result_id": result_id},
        {"span_id": span_id},
    ]
    assert get_run_cost(run_id) == {
        "by_agent": [{"agent": "writer", "tokens": 150, "cost_eur": 0.0045}],
        "total": {"agent": None, "tokens": 150, "cost_eur": 0.0045},
    }
    info = store.runs.load(run_id)
    assert (info.project_id, info.meta, info.status) == (7, {"goal": "refund"}, "ok")
    bodies = [event.body for event in store.timeline.of_run(run_id).events if event.body is not None]
    assert store.timeline.content(*bodies) == [{"input": "data"}, "Response text", ["an item"], "all done"]
    assert store.verify().ok


@pytest.mark.usefixtures("store")
def test_one_session_is_one_transaction():
    run_id = create_run()
    with get_session() as session:
        span_id = start_span(run_id, "agent", session=session)
        message_id = save_message(run_id, "user", "Hello", session=session)
        call_id = save_tool_call(
            run_id,
            "agent",
            "search",
            span_id=span_id,
            input_ref=save_blob("text", "q", session=session),
            session=session,
        )
        save_tool_result(call_id, "ok", session=session)
        end_span(span_id, session=session)
        assert get_run_timeline(run_id)["events"] == []
        session.commit()
    events = get_run_timeline(run_id)["events"]
    assert len(events) == 5
    assert {"message_id": message_id} in [event["ref"] for event in events]


def test_leaving_without_commit_rolls_back(store):
    run_id = create_run()
    before = store.stats().rows
    with get_session() as session:
        start_span(run_id, "agent", session=session)
        save_blob("json", {"a": 1}, session=session)
        other = create_run(session=session)
        save_message(other, "user", "of a run that never was", session=session)
    with get_session() as session:
        save_message(run_id, "user", "taken back", session=session)
        session.rollback()
        save_message(run_id, "user", "kept", session=session)
        session.commit()
    with pytest.raises(NotFound):
        get_run_timeline(other)
    (event,) = get_run_timeline(run_id)["events"]
    assert event["label"] == "user message"
    assert store.stats().rows["objects"] == before["objects"]


def test_a_run_can_begin_and_end_in_one_session(store):
    with get_session() as session:
        run_id = create_run(agent="planner", session=session)
        span_id = start_span(run_id, "planner", session=session)
        end_span(span_id, session=session)
        end_run(run_id, status="error", session=session)
        session.commit()
    assert store.runs.load(run_id).status == "error"
    assert [info.id for info in store.runs.each()] == [run_id]
    assert len(get_run_timeline(run_id)["events"]) == 2


def test_equal_content_and_kind_have_one_id(store):
    small = save_blob("json", {"a": 1, "b": 2})
    assert save_blob("json", {"b": 2, "a": 1}) == small
    assert save_blob("text", '{"a":1,"b":2}') != small
    large = save_blob("text", "x" * 100_000)
    with get_session() as session:
        assert save_blob("text", "x" * 100_000, session=session) == large
        session.commit()
    assert store.stats().rows["objects"] == 3
    with pytest.raises(InvalidInput, match="'json' or 'text'"):
        save_blob("pickle", b"")
    with pytest.raises(InvalidInput, match="str"):
        save_blob("text", {"a": 1})


def test_a_run_that_could_not_be_read_again_is_refused(store):
    with pytest.raises(InvalidInput, match="project_id"):
        create_run(project_id="shop")
    assert store.runs.page().runs == ()


def test_a_payload_is_kept_until_nothing_refers_to_it(store):
    blob_id = save_blob("text", "only mine")
    store.gc(grace_seconds=0)
    run_id = create_run(thread="support/alice")
    span_id = start_span(run_id, "agent", input_ref=blob_id)
    end_span(span_id, output_ref=save_blob("text", "an answer"))
    store.gc(grace_seconds=0)
    assert store.verify().ok
    assert store.engine.get(store.space, [blob_id])[0].data == b"only mine"
    store.forget(thread="support/alice")
    store.gc(grace_seconds=0)
    with pytest.raises(NotFound):
        store.engine.get(store.space, [blob_id])
    with pytest.raises(NotFound):
        start_span(create_run(), "agent", input_ref=blob_id)


@pytest.mark.usefixtures("store")
def test_unknown_ids_are_not_found():
    run_id = create_run()
    blob_id = save_blob("text", "x")
    for attempt in (
        lambda: start_span("nothing", "agent"),
        lambda: start_span(run_id, "agent", input_ref="nothing"),
        lambda: start_span(run_id, "agent", input_ref="o:" + "0" * 64),
        lambda: start_span(run_id, "agent", parent_id="nothing"),
        lambda: end_span("nothing"),
        lambda: end_span("01k" + "0" * 23),
        lambda: save_message("nothing", "user", "x"),
        lambda: save_message(run_id, "user", "x", span_id="nothing"),
        lambda: save_tool_call("nothing", "agent", "tool"),
        lambda: save_tool_call(run_id, "agent", "tool", span_id="nothing"),
        lambda: save_tool_call(run_id, "agent", "tool", input_ref="s:nothing:0.0"),
        lambda: save_tool_result("nothing", "ok"),
        lambda: save_tool_result(save_tool_call(run_id, "agent", "tool"), "ok", output_ref="nothing"),
        lambda: end_run("nothing"),
        lambda: get_run_timeline("nothing"),
        lambda: get_run_cost("nothing"),
    ):
        with pytest.raises(NotFound):
            attempt()
    assert start_span(run_id, "agent", input_ref=blob_id)


@pytest.mark.usefixtures("store")
def test_ending_twice_is_a_conflict():
    run_id = create_run()
    span_id = start_span(run_id, "agent")
    call_id = save_tool_call(run_id, "agent", "search", span_id=span_id)
    with pytest.raises(InvalidInput, match="tool call"):
        end_span(call_id)
    save_tool_result(call_id, "ok")
    with pytest.raises(Conflict, match="result"):
        save_tool_result(call_id, "error")
    end_span(span_id)
    with pytest.raises(Conflict):
        end_span(span_id)
    with get_session() as session:
        other = save_tool_call(run_id, "agent", "search", session=session)
        save_tool_result(other, "ok", session=session)
        with pytest.raises(NotFound):  # it was never there: it began and ended in this session
            save_tool_result("another", "ok", session=session)
    end_run(run_id)
    with pytest.raises(Conflict, match="already ended"):
        end_run(run_id)
    with pytest.raises(Conflict):
        create_run(id=run_id)


@pytest.mark.usefixtures("store")
def test_of_two_results_at_once_one_is_a_conflict_and_leaves_nothing():
    run_id = create_run()
    call_id = save_tool_call(run_id, "agent", "search")
    with get_session() as one, get_session() as other:
        save_tool_result(call_id, "ok", session=one)
        save_tool_result(call_id, "error", session=other)
        save_message(run_id, "user", "goes down with it", session=other)
        one.commit()
        with pytest.raises(Conflict):
            other.commit()
    assert [event["label"] for event in get_run_timeline(run_id)["events"]] == [
        "call search",
        "search result",
    ]
    assert get_run_timeline(run_id)["events"][1]["meta"] == {"status": "ok"}


def test_a_commit_may_be_tried_again_when_the_store_was_away(store, monkeypatch):
    commit, failures = store.engine.commit, [Unreachable("not now"), Conflict("no")]

    def failing(batch):
        if failures:
            raise failures.pop(0)
        return commit(batch)

    monkeypatch.setattr(store.engine, "commit", failing)
    with get_session() as session:
        run_id = create_run(session=session)
        save_message(run_id, "user", "x", session=session)
        with pytest.raises(Unreachable):
            session.commit()
        failing_again = failures.pop()
        session.commit()
        assert len(get_run_timeline(run_id)["events"]) == 1
        save_message(run_id, "user", "y", session=session)
        failures.append(failing_again)
        with pytest.raises(Conflict):
            session.commit()
        session.commit()
        assert len(get_run_timeline(run_id)["events"]) == 1


@pytest.mark.usefixtures("store")
def test_entities_are_for_reading():
    with get_session() as session, pytest.raises(ReadOnly, match="save_message"):
        session.add(object())


def test_costs_are_computed_when_none_is_given():
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=ManualClock(1_772_452_800_000_000))  # 2026-03-02
        services.use(store)
        run_id = create_run()
        save_message(run_id, "assistant", "x", "planner", "gpt-4", {"prompt": 100, "completion": 50})
        save_message(run_id, "assistant", "x", "thinker", "my-own-llama", {"prompt": 10})
        cost = get_run_cost(run_id)
        services.use(None)
    assert cost["rates"][0]["date"] == "2026-03-02"
    assert cost["total"]["cost_eur"] == pytest.approx(0.006 * cost["rates"][0]["rate"])
    assert cost["total"]["unpriced"] == {"tokens": 10, "messages": 1}
    assert cost["by_agent"][1] == {
        "agent": "thinker",
        "tokens": 10,
        "cost_eur": None,
        "unpriced": {"tokens": 10, "messages": 1},
    }


DEFAULT = """
from treering.compat.services import create_run, get_run_timeline, save_message
run_id = create_run(id="r")
save_message(run_id, "user", "Hello")
assert len(get_run_timeline(run_id)["events"]) == 1
"""


def test_without_a_session_the_default_store_is_used(tmp_path):
    subprocess.run([sys.executable, "-c", DEFAULT], check=True, cwd=tmp_path)
    with treering.open(tmp_path / ".treering") as store:
        assert [info.id for info in store.runs.each()] == ["r"]
