"""Orchestrator: the timeline of a run, as in the response of its documentation."""

from __future__ import annotations

import pytest

import treering
from treering.compat import services
from treering.compat.services import (
    create_run,
    end_span,
    get_run_timeline,
    save_blob,
    save_message,
    save_tool_call,
    save_tool_result,
    start_span,
)
from treering.core.clock import ManualClock, to_iso
from treering.errors import InvalidInput, NotFound
from treering.store import Store

START_US = 1_772_452_800_000_000  # 2026-03-02T12:00:00Z
RUN_ID = "123e4567-e89b-12d3-a456-426614174000"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def clock(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    clock = ManualClock(START_US)
    with treering.open(url) as opened:
        services.use(Store(opened.engine, clock=clock))
        yield clock
        services.use(None)


@pytest.fixture
def ids(clock):
    """The document's example: a planner takes 8.23 seconds, with one message and one call."""
    create_run(id=RUN_ID)
    span = start_span(RUN_ID, "planner", input_ref=save_blob("text", "x" * 1024))
    clock.advance(seconds=1)
    message = save_message(
        RUN_ID, "assistant", "I look.", "planner", "gpt-4", {"total": 150}, cost_eur=0.0045
    )
    clock.advance(seconds=1)
    call = save_tool_call(RUN_ID, "planner", "list_items", span_id=span)
    clock.advance(seconds=1)
    result = save_tool_result(call, "ok", output_ref=save_blob("json", []))
    clock.advance(seconds=5.23)
    end_span(span)
    return span, message, call, result


def test_the_document_s_response(ids):
    span, message, call, result = ids

    def line(type_, seconds, label, ref, meta):
        return {
            "type": type_,
            "ts": to_iso(START_US + round(seconds * 1_000_000)),
            "run_id": RUN_ID,
            "agent": "planner",
            "label": label,
            "ref": ref,
            "meta": meta,
        }

    assert get_run_timeline(RUN_ID) == {
        "events": [
            line("agent.span.start", 0, "▶ planner", {"span_id": span}, {"input_size": 1024}),
            line(
                "message",
                1,
                "assistant message",
                {"message_id": message},
                {"model": "gpt-4", "tokens": 150, "cost_eur": 0.0045},
            ),
            line("tool.call", 2, "call list_items", {"tool_call_id": call}, {}),
            line("tool.result", 3, "list_items result", {"tool_result_id": result}, {"status": "ok"}),
            line(
                "agent.span.end",
                8.23,
                "■ planner (8.23s)",
                {"span_id": span},
                {"status": "ok", "duration": 8.23},
            ),
        ],
        "next_cursor": None,
    }


def test_times_have_an_offset(ids):
    assert ids
    assert get_run_timeline(RUN_ID)["events"][0]["ts"] == "2026-03-02T12:00:00+00:00"


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_cursor_really_pages(ids, clock, limit):
    whole = get_run_timeline(RUN_ID)["events"]
    paged, cursor = [], None
    while True:
        page = get_run_timeline(RUN_ID, limit=limit, cursor=cursor)
        assert len(page["events"]) <= limit
        paged += page["events"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        # What comes in meanwhile, later than everything so far, is at the end and repeats nothing.
        clock.advance(seconds=1)
        if len(paged) <= limit:
            save_message(RUN_ID, "user", "later")
    assert paged[: len(whole)] == whole
    assert [event["label"] for event in paged[len(whole) :]] == ["user message"]
    assert ids


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_limits_out_of_range_are_refused(ids, limit):
    assert ids
    with pytest.raises(InvalidInput, match="1 to 1000") as refused:
        get_run_timeline(RUN_ID, limit=limit)
    assert refused.value.http_status == 422


@pytest.mark.usefixtures("clock")
def test_an_unknown_run_is_not_found():
    with pytest.raises(NotFound) as missing:
        get_run_timeline("nothing")
    assert missing.value.http_status == 404


@pytest.mark.usefixtures("clock")
def test_a_cost_in_dollars_is_shown_in_euros():
    create_run(id="r")
    save_message("r", "assistant", "x", model="gpt-4", tokens={"prompt": 1000})
    save_message("r", "assistant", "x", model="my-own-llama", tokens={"prompt": 1000})
    save_message("r", "user", "x")
    priced, unpriced, plain = (event["meta"] for event in get_run_timeline("r")["events"])
    assert 0.02 < priced["cost_eur"] < 0.03  # 0.03 dollars
    assert unpriced == {"model": "my-own-llama", "tokens": 1000, "cost_eur": None}
    assert plain == {"model": None, "tokens": None, "cost_eur": None}
