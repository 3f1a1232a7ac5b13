"""Each rule keeps its entries, looser rules keep more, the newest and pinned entries are always kept, and so
is what kept steps of a graph depend on.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import treering
from treering.core.clock import DAY_US, from_datetime
from treering.core.query import EventQuery, each_record
from treering.core.retention import (
    DeltaStep,
    Keep,
    RetentionDecision,
    RetentionEntry,
    delta_dependencies,
    select,
)
from treering.errors import InvalidInput
from treering.graphs.step import delta_step

NOW_US = from_datetime(datetime(2026, 11, 16, 12, tzinfo=UTC))
HOUR_US = DAY_US // 24

COUNTS = st.none() | st.integers(1, 6)
TAGS = st.sampled_from(["release", "demo", "wip"])
KEEPS = st.builds(
    Keep,
    last=COUNTS,
    hourly=COUNTS,
    daily=COUNTS,
    weekly=COUNTS,
    monthly=COUNTS,
    tagged=st.lists(TAGS, unique=True, max_size=2).map(tuple),
    within=st.none() | st.timedeltas(timedelta(hours=1), timedelta(days=60)),
)
SIZED_KEEPS = st.builds(
    lambda keep, size: msgspec.structs.replace(keep, max_bytes=size), KEEPS, st.none() | st.integers(1, 500)
)
# Coarse times, so that several entries share a bucket or even a time.
TIMES_US = st.integers(0, 24 * 80).map(lambda hours: NOW_US - hours * HOUR_US) | st.integers(
    NOW_US - DAY_US, NOW_US
)
ENTRIES = st.lists(
    st.builds(
        RetentionEntry,
        id=st.integers(0, 10_000).map(str),
        ts_us=TIMES_US,
        tags=st.frozensets(TAGS, max_size=2),
        size_bytes=st.integers(0, 100),
        pinned=st.booleans(),
    ),
    unique_by=lambda entry: entry.id,
    max_size=40,
)


def entry(id, day, hour=12, **more):
    return RetentionEntry(id=id, ts_us=from_datetime(datetime(2026, 11, day, hour, tzinfo=UTC)), **more)


def kept_ids(entries, keep):
    return [kept.entry.id for kept in select(entries, keep, now_us=NOW_US).kept]


@given(ENTRIES, SIZED_KEEPS)
def test_every_entry_is_either_kept_with_a_reason_or_dropped(entries, keep):
    decision = select(entries, keep, now_us=NOW_US)
    assert all(kept.reasons for kept in decision.kept)
    both = [kept.entry for kept in decision.kept] + list(decision.dropped)
    assert sorted(both, key=lambda each: each.id) == sorted(entries, key=lambda each: each.id)


@given(ENTRIES, SIZED_KEEPS)
def test_newest_pinned_and_tagged_entries_are_never_dropped(entries, keep):
    dropped = select(entries, keep, now_us=NOW_US).dropped
    assert not any(each.pinned or each.tags & set(keep.tagged) for each in dropped)
    if entries:
        assert max(entries, key=lambda each: (each.ts_us, each.id)) not in dropped


@given(ENTRIES, SIZED_KEEPS, st.randoms(use_true_random=False))
def test_the_decision_does_not_depend_on_the_order_of_the_entries(entries, keep, rng):
    mixed = rng.sample(entries, len(entries))
    assert select(mixed, keep, now_us=NOW_US) == select(entries, keep, now_us=NOW_US)


@given(ENTRIES, SIZED_KEEPS)
def test_applying_a_policy_twice_drops_nothing_more(entries, keep):
    kept = [kept.entry for kept in select(entries, keep, now_us=NOW_US).kept]
    assert select(kept, keep, now_us=NOW_US).dropped == ()


@given(ENTRIES, KEEPS.filter(lambda keep: keep != Keep()), KEEPS)
def test_a_looser_policy_keeps_everything_that_a_stricter_one_keeps(entries, strict, extra):
    def more(name):
        return (getattr(strict, name) or 0) + (getattr(extra, name) or 0) or None

    generous = Keep(
        **{name: more(name) for name in ("last", "hourly", "daily", "weekly", "monthly")},
        tagged=strict.tagged + extra.tagged,
        within=max((age for age in (strict.within, extra.within) if age), default=None),
    )
    assert set(kept_ids(entries, strict)) <= set(kept_ids(entries, generous))


@given(ENTRIES, st.integers(1, 3000))
def test_max_bytes_holds_or_nothing_more_can_be_dropped(entries, size):
    decision = select(entries, Keep(max_bytes=size, tagged=("release",), last=30), now_us=NOW_US)
    held = sum(kept.entry.size_bytes for kept in decision.kept)
    protected = {"newest", "pinned", "tagged"}
    assert held <= size or all(protected & set(kept.reasons) for kept in decision.kept)


@given(ENTRIES)
def test_an_empty_policy_keeps_everything(entries):
    assert select(entries, Keep(), now_us=NOW_US).dropped == ()


def test_no_entries_are_fine():
    assert select([], Keep(last=1, max_bytes=1), now_us=NOW_US) == RetentionDecision(kept=(), dropped=())


def test_last_keeps_that_many_of_the_newest():
    assert kept_ids([entry(str(day), day) for day in range(1, 10)], Keep(last=3)) == ["9", "8", "7"]


def test_of_equal_times_the_greater_id_is_newer():
    assert kept_ids([entry("a", 1), entry("c", 1), entry("b", 1)], Keep(last=2)) == ["c", "b"]


def test_daily_keeps_the_newest_of_each_day_that_has_one():
    entries = [entry(f"{day}-{hour}", day, hour) for day in (1, 2, 9) for hour in (1, 23)]
    assert kept_ids(entries, Keep(daily=2)) == ["9-23", "2-23"]


def test_hourly_keeps_the_newest_of_each_hour():
    entries = [
        RetentionEntry(id=str(minutes), ts_us=NOW_US - minutes * HOUR_US // 60)
        for minutes in (1, 30, 61, 100, 121)
    ]
    assert kept_ids(entries, Keep(hourly=2)) == ["1", "61"]


def test_a_week_begins_on_monday_in_utc():
    # 2026-11-15 is a Sunday, 2026-11-16 a Monday.
    entries = [
        entry("monday", 16, 0),
        entry("sunday", 15, 23),
        entry("monday before", 9, 0),
        entry("older", 8, 23),
    ]
    assert kept_ids(entries, Keep(weekly=2)) == ["monday", "sunday"]
    assert kept_ids(entries, Keep(weekly=3)) == ["monday", "sunday", "older"]


def test_monthly_keeps_the_newest_of_each_month():
    entries = [
        RetentionEntry(id=f"{month}-{day}", ts_us=from_datetime(datetime(2026, month, day, tzinfo=UTC)))
        for month in (1, 2, 11)
        for day in (1, 28)
    ]
    assert kept_ids(entries, Keep(monthly=2)) == ["11-28", "2-28"]


def test_within_is_an_age_relative_to_now():
    entries = [RetentionEntry(id=str(days), ts_us=NOW_US - days * DAY_US) for days in range(1, 6)]
    assert kept_ids(entries, Keep(within="3d")) == ["1", "2", "3"]
    assert kept_ids(entries, Keep(within=timedelta(days=3))) == ["1", "2", "3"]
    assert kept_ids(entries, Keep(within="1d1h")) == ["1"]


def test_rules_add_up_and_each_is_a_reason():
    entries = [entry("new", 16), entry("tagged", 2, tags=frozenset({"release"})), entry("old", 1)]
    decision = select(entries, Keep(last=1, daily=1, tagged=("release",)), now_us=NOW_US)
    assert {kept.entry.id: kept.reasons for kept in decision.kept} == {
        "new": ("newest", "last", "daily"),
        "tagged": ("tagged",),
    }
    assert [each.id for each in decision.dropped] == ["old"]


def test_max_bytes_drops_the_oldest_first_and_spares_the_protected():
    entries = [
        entry("newest", 9, size_bytes=60),
        entry("middle", 8, size_bytes=40),
        entry("older", 7, size_bytes=40),
        entry("pinned", 6, size_bytes=30, pinned=True),
        entry("oldest", 5, size_bytes=1),
    ]
    assert kept_ids(entries, Keep(max_bytes=130)) == ["newest", "middle", "pinned"]
    assert kept_ids(entries, Keep(max_bytes=1)) == ["newest", "pinned"]


@pytest.mark.parametrize("name", ["last", "hourly", "daily", "weekly", "monthly", "max_bytes"])
@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
def test_a_number_below_one_is_rejected(name, number):
    with pytest.raises(InvalidInput, match=f"keep {name}="):
        Keep(**{name: number})


@pytest.mark.parametrize(
    "age", ["", "30", "d", "30x", "0d", "-3d", "3 d", "1d ", "٣d", timedelta(0), timedelta(days=-1), 5, True]
)
def test_an_invalid_age_is_rejected(age):
    with pytest.raises(InvalidInput, match="keep within="):
        Keep(within=age)


@pytest.mark.parametrize("tags", ["release", ["release"], ("",), (1,)])
def test_tags_that_are_not_a_tuple_of_strings_are_rejected(tags):
    with pytest.raises(InvalidInput, match="keep tagged="):
        Keep(tagged=tags)


def test_a_policy_can_be_written_as_text():
    text = (
        "last=50, hourly=24,daily=30,weekly=8,monthly=12,within=30d,tagged=release,tagged=demo,max_bytes=10GB"
    )
    assert Keep.parse(text) == Keep(
        last=50,
        hourly=24,
        daily=30,
        weekly=8,
        monthly=12,
        within="30d",
        tagged=("release", "demo"),
        max_bytes=10_000_000_000,
    )
    assert Keep.parse("") == Keep()
    assert Keep.parse("max_bytes=1024") == Keep(max_bytes=1024)
    assert Keep.parse("max_bytes=2MiB") == Keep(max_bytes=2 * 1024 * 1024)


@pytest.mark.parametrize(
    "text",
    [
        "last",
        "last=",
        "last=x",
        "last=0",
        "last=1.5",
        "last=5GB",
        "last=1,last=2",
        "within=1d,within=2d",
        "keep=1",
        "tagged=",
        "within=",
        "within=1y",
        "max_bytes=1XB",
        "=1",
        "last=٣",
    ],
)
def test_text_that_is_no_policy_is_rejected(text):
    with pytest.raises(InvalidInput, match=r"^keep "):
        Keep.parse(text)


@given(st.text(max_size=30) | st.text(alphabet="last=dilywthn,0123456789 ", max_size=30))
@example("last=" + "9" * 5000)
@example("within=" + "9" * 5000 + "d")
def test_any_text_is_a_policy_or_rejected(text):
    with suppress(InvalidInput):
        Keep.parse(text)


CHANNELS = ("a", "b")
some = st.frozensets(st.sampled_from(CHANNELS))


@st.composite
def histories(draw):
    """Steps with earlier steps as parents; each stores some channels and refers to its parent for others."""
    steps = {}
    for number in range(draw(st.integers(1, 12))):
        parent = f"{draw(st.integers(0, number - 1))}" if number and draw(st.booleans()) else None
        held = draw(some)
        copied = parent if draw(st.integers(0, 4)) == 0 else None
        steps[f"{number}"] = DeltaStep(parent, copied, frozenset(CHANNELS) - held, held)
    return steps


def is_readable(name, steps, stored):
    step = steps[name]
    if step.copy_of is not None and step.copy_of not in stored:
        return False
    missing, parent = step.open, step.parent
    while missing and parent is not None:
        if parent not in stored:
            return False
        missing, parent = missing - steps[parent].held, steps[parent].parent
    return True


@given(steps=histories(), chosen=st.sets(st.integers(0, 11).map(str)))
def test_kept_steps_can_be_read(steps, chosen):
    kept = chosen & steps.keys()
    needed = delta_dependencies(kept, steps)
    assert needed.isdisjoint(kept)
    assert all(is_readable(each, steps, kept | needed) for each in kept | needed)


def test_a_step_that_stores_everything_depends_on_no_other():
    steps = {
        "0": DeltaStep(None, None, frozenset("a"), frozenset()),
        "1": DeltaStep("0", None, frozenset(), frozenset("a")),
        "2": DeltaStep("1", None, frozenset("a"), frozenset()),
        "3": DeltaStep("2", None, frozenset("a"), frozenset()),
    }
    assert delta_dependencies({"1"}, steps) == set()
    assert delta_dependencies({"3"}, steps) == {"1", "2"}


def test_a_row_names_its_open_channels():
    graph = {"id": "x", "v": 4, "ts": "now", "versions": {"a": 1, "b": 1, "c": 1, "d": 1}, "seen": {}}
    graph |= {"values": {"b": 1}, "shadows": ["c"]}
    counted = {"a": [1, 1], "b": [1, 1], "c": [1, 1], "not yet": [0, 0]}
    with treering.open("memory:") as store:
        plain = store.thread("t").checkpoint(lists={"c": [1]}, state={"d": 2})
        store.thread("t").checkpoint(
            metadata={"_graph": graph, "counters_since_delta_snapshot": counted, "step": 1}
        )
        store.thread("t").checkpoint(metadata={"_graph": "a user's own"})
        records = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
        found = [delta_step(store.engine, store.space, each) for each in records]
    assert found == [None, DeltaStep(plain.id, None, frozenset("ac"), frozenset("bd")), None]
