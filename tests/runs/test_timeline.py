"""Timelines of threads and spans, and filters: whole spans, real cursors, the same on every engine."""

from __future__ import annotations

from contextlib import suppress

import pytest

from treering.compat import services
from treering.core.batch import Event
from treering.errors import InvalidInput, NotFound
from treering.runs.timeline import TimelineFilter


@pytest.fixture
def run(store):
    """A planner that asks a writer, which fails once."""
    with store.run(agent="planner", thread="alice") as recorded:
        recorded.message("user", "Where is my refund?")
        with recorded.span("plan", kind="agent", agent="planner") as plan:
            with plan.tool("search_docs", {"query": "refunds"}) as call:
                call.output = "The refund was sent on Monday."
            with plan.span("write", kind="agent", agent="writer") as write:
                with suppress(RuntimeError), write.tool("send", {"to": "alice"}):
                    raise RuntimeError("no route")
                write.message("assistant", "It is on its way.")
    store.flush()
    return recorded


def labels(page):
    return [event.label for event in page.events]


def test_the_timeline_of_a_thread_has_all_its_runs_in_order(store, run):
    with store.run(agent="planner", thread="alice") as second:
        second.message("user", "Thank you.")
    with store.run(agent="planner", thread="bob") as other:
        other.message("user", "Hello.")
    with store.run(agent="planner", thread="alice", namespace="elsewhere") as namesake:
        namesake.message("user", "Not me.")
    store.flush()
    page = store.timeline.of_thread("alice")
    assert [event.run_id for event in page.events] == [run.id] * 10 + [second.id]
    assert labels(page)[:-1] == labels(store.timeline.of_run(run.id))
    assert [event.run_id for event in store.timeline.of_thread("alice", namespace="elsewhere").events] == [
        namesake.id
    ]
    assert store.timeline.of_thread("nobody").events == ()


def test_by_span_everything_below_it_is_filtered(store, run):
    (write,) = [event for event in store.timeline.of_run(run.id).events if event.label == "▶ write"]
    below = labels(store.timeline.of_run(run.id, filter=TimelineFilter(span=write.ref["span_id"])))
    assert below[:4] == ["▶ write", "call send", "send result", "assistant message"]
    assert below[4].startswith("■ write")
    assert len(below) == 5
    with pytest.raises(NotFound, match="span 'nope' not found"):
        store.timeline.of_run(run.id, filter=TimelineFilter(span="nope"))


def test_filter_by_agent_kind_status_and_text(store, run):
    def filtered(**fields):
        return labels(store.timeline.of_run(run.id, filter=TimelineFilter(**fields)))

    assert filtered(kind="message") == ["user message", "assistant message"]
    assert filtered(kind="tool", status="error") == ["call send", "send result"]
    assert filtered(status="error") == ["call send", "send result"]
    assert filtered(agent="writer", kind="message") == ["assistant message"]
    assert filtered(text="refunded Monday") == ["call search_docs", "search_docs result"]
    assert filtered(text="refund") == ["user message", "call search_docs", "search_docs result"]
    assert filtered(text="refund zebra") == []
    assert filtered(text="send") == ["call send", "send result"]  # its name
    assert labels(store.timeline.of_thread("alice", filter=TimelineFilter(kind="message", text="way"))) == [
        "assistant message"
    ]
    with pytest.raises(InvalidInput, match="no words"):
        filtered(text="...")


def test_a_requested_kind_is_shown(store):
    with store.run(agent="a") as recorded, recorded.span("look", kind="retrieval"):
        pass
    store.flush()
    assert labels(store.timeline.of_run(recorded.id)) == []
    assert len(labels(store.timeline.of_run(recorded.id, filter=TimelineFilter(kind="retrieval")))) == 2


@pytest.mark.parametrize("first", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    "fields", [{}, {"status": "ok"}, {"text": "parcel"}, {"kind": "tool", "text": "parcel", "status": "ok"}]
)
def test_pages_of_any_size_have_the_same_events(store, first, fields):
    with store.run(agent="a", thread="t") as recorded:
        for number in range(7):
            with recorded.tool("look", {"for": f"parcel {number}" if number % 2 else "nothing"}) as call:
                call.output = number
            recorded.message("user", f"parcel {number}")
    store.flush()
    whole = store.timeline.of_thread("t", filter=TimelineFilter(**fields)).events
    assert len(whole) == (
        21 if not fields else 14 if fields == {"status": "ok"} else 6 if "kind" in fields else 13
    )
    paged, cursor = [], None
    while True:
        page = store.timeline.of_thread("t", first=first, cursor=cursor, filter=TimelineFilter(**fields))
        assert len(page.events) <= first
        paged += page.events
        cursor = page.cursor
        if cursor is None:
            break
    assert tuple(paged) == whole


@pytest.mark.parametrize("scanned", [1, 500])
def test_an_announced_span_is_returned_whole(store, monkeypatch, scanned):
    """Its words are in the row of its beginning, its status in that of its end, and pages may part them."""
    monkeypatch.setattr("treering.runs.timeline._PAGE", scanned)
    services.use(store)
    try:
        run = services.create_run()
        given = services.save_blob("text", "where is the parcel")
        came = services.save_blob("text", "on Monday")
        call = services.save_tool_call(run, "planner", "look", input_ref=given)
        services.save_tool_result(call, "error", output_ref=came)
        services.start_span(run, "planner", input_ref=given)
    finally:
        services.use(None)

    def filtered(**fields):
        return labels(store.timeline.of_run(run, filter=TimelineFilter(**fields)))

    assert filtered(text="parcel Monday") == ["call look", "look result"]
    assert filtered(status="error") == ["call look", "look result"]
    assert filtered(text="parcel", status="running") == ["▶ planner"]
    assert filtered(status="ok") == []


def test_a_cycle_of_parents_terminates(store):
    """OTLP takes what it is sent."""
    run = store.run(agent="a")
    with run:
        pass
    store.flush()
    draft = store.draft()
    for own, parent in (("one", "two"), ("two", "one")):
        draft.event(
            Event(
                id=own,
                kind="span.agent",
                ts_us=1,
                scope="/run/r",
                run=run.id,
                span=own,
                parent=parent,
                name=own,
            )
        )
    store.commit(draft)
    assert len(store.timeline.of_run(run.id, filter=TimelineFilter(span="one")).events) == 4
