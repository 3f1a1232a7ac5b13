"""Totals are sums: however events are split and grouped, nothing is lost or counted twice."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from treering.core.batch import Event, Usage
from treering.core.clock import DAY_US, day_of
from treering.core.query import SumQuery
from treering.core.rollups import (
    FAILED,
    MEASURES,
    NO_TIME,
    RELATIVE_ERROR,
    RollupKey,
    bucket_of,
    deltas,
    merge,
    summarise,
    time_of_bucket,
)

COUNTS = st.integers(0, 1000)
USAGES = st.builds(
    Usage,
    input=COUNTS,
    cache_read=COUNTS,
    cache_write=COUNTS,
    cache_write_1h=COUNTS,
    output=COUNTS,
    reasoning=COUNTS,
    other=COUNTS,
)
EVENTS = st.lists(
    st.builds(
        Event,
        id=st.just("e"),
        kind=st.sampled_from(["call", "span.tool", "span.llm", "message"]),
        ts_us=st.integers(0, 3).map(lambda day: day * DAY_US + 5),
        scope=st.just("s"),
        run=st.sampled_from([None, "r1", "r2"]),
        thread=st.sampled_from([None, "t1"]),
        agent=st.sampled_from([None, "a"]),
        model=st.sampled_from([None, "m"]),
        status=st.sampled_from([None, "ok", "error"]),
        usage=st.none() | USAGES,
        cost_nanos=st.none() | st.integers(-(10**9), 10**9),
        currency=st.sampled_from([None, "USD"]),
        duration_us=st.none() | COUNTS,
        name=st.sampled_from([None, "search"]),
        data=st.sampled_from([None, b'{"first_token_us":7}', b'{"said_tokens":3}', b'{"in_call":true}']),
    ),
    max_size=20,
)
GROUPINGS = st.lists(
    st.sampled_from(["key", "day", "agent", "model", "kind", "currency"]), max_size=4, unique=True
).map(tuple)


def numbers(total):
    others = (total.events, total.errors, total.cost_nanos, total.duration_us)
    return [*msgspec.structs.astuple(total.usage), *others, total.unpriced_events, total.unpriced_tokens]


def counted(events):
    """Events about what an agent did."""
    return [
        event
        for event in events
        if any(value is not None for value in (event.run, event.agent, event.usage, event.cost_nanos))
    ]


def added(totals):
    return [sum(column) for column in zip(*map(numbers, totals), strict=True)]


@given(EVENTS, EVENTS)
def test_totals_of_two_halves_add_up_to_those_of_the_whole(one, other):
    whole, first, second = deltas(one + other), deltas(one), deltas(other)
    assert whole.keys() == first.keys() | second.keys()
    nothing = [0] * len(MEASURES)
    for cell, measures in whole.items():
        pair = zip(first.get(cell, nothing), second.get(cell, nothing), strict=True)
        assert measures == [a + b for a, b in pair]


@given(EVENTS, GROUPINGS)
def test_any_grouping_has_the_same_total(events, by):
    totals = summarise(deltas(events), SumQuery(grain="day", by=by))
    (total,) = summarise(deltas(events), SumQuery(grain="day")) or [None]
    events = counted(events)
    if total is None:
        assert totals == events == []
        return
    assert added(totals) == numbers(total)
    assert total.events == len(events)
    assert total.errors == sum(event.status == "error" for event in events)
    assert total.cost_nanos == sum(event.cost_nanos or 0 for event in events)
    assert total.usage.input == sum(event.usage.input for event in events if event.usage)
    groups = [each.group for each in totals]
    assert groups == sorted(set(groups))


@given(EVENTS)
def test_an_event_counts_for_its_day_its_run_and_its_thread(events):
    cells = deltas(events)
    events = counted(events)
    wanted = {
        "day": events,
        "run": [event for event in events if event.run is not None],
        "thread": [event for event in events if event.thread is not None],
    }
    for grain, expected in wanted.items():
        assert sum(measures[0] for cell, measures in cells.items() if cell.grain == grain) == len(expected)


def test_bookkeeping_events_are_not_counted():
    assert deltas([Event(id="e", kind="checkpoint", ts_us=0, scope="s", thread="t", status="error")]) == {}


@given(EVENTS, EVENTS)
def test_merging_is_adding(one, other):
    cells = deltas(one)
    merge(cells, deltas(other))
    assert cells == deltas(one + other)


@given(EVENTS)
def test_usage_without_a_cost_is_counted_as_unpriced(events):
    unpriced = [event for event in events if event.usage is not None and event.cost_nanos is None]
    for total in summarise(deltas(events), SumQuery(grain="day")):
        assert total.unpriced_events == len(unpriced)
        assert total.unpriced_tokens == sum(event.usage.total for event in unpriced)


@given(EVENTS, st.sampled_from(["a", "", "nobody"]), st.integers(0, 3), st.integers(0, 3))
def test_filters_keep_matching_events(events, agent, since_day, until_day):
    query = SumQuery(grain="day", agent=agent, since_day=since_day, until_day=until_day)
    kept = [
        event
        for event in events
        if (event.agent or "") == agent and since_day <= day_of(event.ts_us) <= until_day
    ]
    assert summarise(deltas(events), query) == summarise(deltas(kept), SumQuery(grain="day"))


@given(EVENTS, st.integers(0, 4))
def test_the_top_groups_are_the_most_expensive_ones(events, top):
    by = ("kind", "agent", "model")
    everything = summarise(deltas(events), SumQuery(grain="day", by=by))
    best = summarise(deltas(events), SumQuery(grain="day", by=by, top=top))
    assert [each.cost_nanos for each in best] == sorted(
        (each.cost_nanos for each in everything), reverse=True
    )[:top]
    assert all(each in everything for each in best)


def test_counting_does_not_modify_the_events():
    event = Event(id="e", kind="k", ts_us=0, scope="s", run="r", thread="t", cost_nanos=5)
    cells = deltas([event, event])
    assert {cell.grain for cell in cells} == {"day", "run", "thread"}
    assert all(measures[:2] == [2, 0] for measures in cells.values())
    assert len({id(measures) for measures in cells.values()}) == 3, "cells must not share their numbers"
    assert RollupKey("day", "", 0, "", "", "k", "") in cells


@given(EVENTS)
def test_each_call_is_counted_once_in_the_bucket_of_its_duration(events):
    found = summarise(deltas(events), SumQuery(grain="call", by=("kind", "key", "bucket")))
    expected = {}
    for each in counted(events):
        is_reply = each.kind == "message" and each.usage is not None and each.model is not None
        if not each.kind.startswith("span.") and not (is_reply and b"in_call" not in (each.data or b"")):
            continue
        bucket = NO_TIME if each.duration_us is None else bucket_of(each.duration_us)
        name = each.name or "" if each.kind == "span.tool" else ""
        total = expected.setdefault((each.kind, name, bucket), [0, 0, 0, 0])
        said = 3 if each.kind != "message" and each.data == b'{"said_tokens":3}' else 0
        added = (
            1,
            each.status in FAILED,
            each.duration_us or 0,
            said + (each.usage.output if each.usage else 0),
        )
        total[:] = map(sum, zip(total, added, strict=True))
    assert {
        each.group: [each.events, each.errors, each.duration_us, each.usage.output] for each in found
    } == expected


@given(st.integers(0, 2**53))
def test_the_time_of_a_bucket_is_within_the_relative_error(time_us):
    assert abs(time_of_bucket(bucket_of(time_us)) - time_us) <= RELATIVE_ERROR * time_us + 0.5


def test_the_end_of_a_run_is_a_call_and_what_was_concluded_about_it_is_not():
    ended = Event(id="r", kind="run", ts_us=5, scope="s", run="r", agent="a", duration_us=9, status="ok")
    crashed = msgspec.structs.replace(ended, id="r:crashed", status="crashed")
    (total,) = summarise(deltas([ended, crashed]), SumQuery(grain="call", by=("kind", "agent")))
    assert (total.group, total.events, total.errors, total.duration_us) == (("run", "a"), 1, 0, 9)
