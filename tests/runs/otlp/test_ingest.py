"""Requests with spans: in any order, more than once, from several senders, too large, and partly bad."""

from __future__ import annotations

import random

from tests.runs.otlp.exports import TRACE, span, traces
from tests.runs.otlp.test_traces import GENAI, ROOT, came, rows, send, told
from treering.runs.otlp.traces import Trace


def test_spans_in_any_order_and_in_many_requests_are_the_same_run(store):
    spans = [ROOT] + [
        span(f"chat {number}", id=number, parent=1, at_ms=number, attributes=GENAI) for number in range(2, 12)
    ]
    random.Random(3).shuffle(spans)
    for each in spans:
        assert send(store, each).accepted == 1
    assert len(rows(store, "span.")) == 11
    assert len(store.runs.page().runs) == 1
    run = store.runs.load(TRACE)
    assert (run.status, run.duration_us, run.agent) == ("ok", 900_000, "planner")
    assert store.verify().ok


def test_a_repeated_request_is_stored_once(store):
    request = traces(ROOT, span("chat", id=2, parent=1, attributes=GENAI))
    for _ in range(3):
        assert store.otlp.write(request, encoding="json").accepted == 2
    before = store.stats().rows["events"]
    # Another server, which remembers nothing of it, knows it from the journal.
    other = store.in_namespace(store.space)
    assert other.otlp.write(request, encoding="json").accepted == 2
    other.otlp.close()
    assert store.stats().rows["events"] == before
    assert store.cost.of_run(TRACE).total.tokens == 1200


def test_a_run_without_its_first_span_is_running(store):
    send(store, span("chat", id=2, parent=1, at_ms=5, ms=20, attributes=GENAI))
    run = store.runs.load(TRACE)
    assert (run.status, run.ended_at_us, run.agent) == ("running", None, "shop")
    send(store, ROOT)
    assert store.runs.load(TRACE).status == "ok"
    assert store.runs.load(TRACE).duration_us == 900_000


def test_spans_that_arrive_after_the_end_still_count(store):
    send(store, ROOT)
    send(store, span("late", id=9, parent=1, at_ms=800, ms=700))
    run = store.runs.load(TRACE)
    assert (run.status, run.duration_us) == ("ok", 1_500_000)
    assert [event.name for event in rows(store)] == ["planner", "late"]


def test_a_span_whose_parent_is_in_another_process_ends_the_run_too(store):
    send(store, span("handle", id=2, parent=1, ms=40, flags=0x301))
    assert (store.runs.load(TRACE).status, store.runs.load(TRACE).duration_us) == ("ok", 40_000)


def test_senders_are_distinguished(store):
    send(store, ROOT)
    send(store, span("pay", id=2, parent=1), resource={"service.name": "bank"}, scope="other")
    meta = store.runs.load(TRACE).meta
    assert meta["resources"] == [{"service.name": "shop"}, {"service.name": "bank"}]
    assert meta["scopes"] == ["test", "other"]
    assert told(rows(store)[1])["resource"] == 1


def test_bad_spans_are_named_and_the_good_ones_stay(store):
    bad = span("no id", id=5, spanId="zz")
    short = span("short", id=6, traceId="abcd")
    nil = span("nil", id=0)
    result = send(store, ROOT, bad, short, nil)
    assert (result.accepted, result.rejected) == (1, 3)
    assert "no id" in result.message
    assert "short" in result.message
    assert [event.name for event in rows(store)] == ["planner"]


def test_one_span_that_cannot_be_stored_does_not_take_the_others_along(store):
    deep = []
    for _ in range(250):
        deep = [deep]
    result = send(
        store, ROOT, span("too deep", id=2, parent=1, attributes={"it": deep}), span("fine", id=3, parent=1)
    )
    assert (result.accepted, result.rejected) == (2, 1)
    assert "too deep" in result.message
    assert [event.name for event in rows(store)] == ["planner", "fine"]
    assert store.verify().ok


def test_a_request_with_very_many_spans_takes_several_commits(store, monkeypatch):
    monkeypatch.setattr("treering.runs.otlp.ingest.COMMIT_LIMIT", 7)
    many = [span(f"step {number}", id=number, parent=1) for number in range(2, 32)]
    assert send(store, ROOT, *many).accepted == 31
    assert len(rows(store)) == 31
    assert store.stats().rows["commits"] == 5


def test_long_sender_descriptions_are_stored_with_each_span(store):
    send(store, ROOT)
    large = {"service.name": "bank", "process.command_args": ["x" * 100] * 100}
    send(store, span("pay", id=2, parent=1), resource=large)
    assert store.runs.load(TRACE).meta["resources"] == [{"service.name": "shop"}]
    (more,) = rows(store, "attributes")
    assert came(store, more)["resource"] == large


def test_two_servers_may_take_spans_of_one_run(store):
    other = store.in_namespace(store.space)
    send(store, span("one", id=2, parent=1, at_ms=1))
    send(other, span("two", id=3, parent=1, at_ms=2))
    send(store, ROOT)
    send(other, span("three", id=4, parent=1, at_ms=3, ms=2000))
    send(store, span("four", id=5, parent=1, at_ms=4))
    other.otlp.close()
    assert [event.name for event in rows(store)] == ["planner", "one", "two", "three", "four"]
    run = store.runs.load(TRACE)
    assert (run.status, run.agent, run.duration_us) == ("ok", "planner", 2_003_000)
    assert len(store.runs.page().runs) == 1


def test_cancelling_the_future_does_not_cancel_the_write(store):
    waiting = store.otlp.submit(traces(ROOT), signal="traces", encoding="json")
    assert not waiting.cancel()
    assert send(store, span("next", id=2, parent=1)).accepted == 1
    assert waiting.result().accepted == 1
    assert [event.name for event in rows(store)] == ["planner", "next"]


def test_the_spans_of_a_trace_are_adjacent_in_the_index_of_ids():
    ids = [Trace("ab" * 16).row_id(f"{number:016x}") for number in (1, 2)]
    assert [each[:9] for each in ids] == [ids[0][:8] + "."] * 2
    assert ids[1][9:] == f"{2:016x}"
    alike = {Trace(each).row_id("1")[:8] for each in ("ab" * 16, "ab" * 15 + "ac", "ac" + "ab" * 15, "x")}
    assert len(alike) == 4, "traces whose ids begin or end alike have rows of their own"


def test_half_a_character_loses_nothing_else(store):
    cut = span("cut", id=2, attributes={"text": "half of it: \ud83d", "whole": "\U0001f333"})
    assert b"\\ud83d" in traces(cut)  # as a sender in JavaScript writes it
    assert send(store, ROOT, cut).accepted == 2
    assert told(rows(store)[-1])["attributes"] == {"text": "half of it: ?", "whole": "\U0001f333"}


def test_a_cost_that_nobody_can_have_paid_is_kept_and_not_counted(store):
    sent = span("chat", id=2, attributes=GENAI | {"gen_ai.usage.cost": "1e400"})
    assert send(store, sent).accepted == 1
    (row,) = rows(store)
    assert told(row)["reported_cost"] == "1e400"
    assert row.cost_nanos is not None
    assert 0 < row.cost_nanos < 10**9
