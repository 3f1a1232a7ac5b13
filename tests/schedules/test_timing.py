"""Due times: daylight saving, intervals, single times, and invalid schedules."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core.clock import from_datetime, to_datetime
from treering.errors import InvalidInput
from treering.schedules.timing import Timing, parse_timing

NOW = from_datetime(datetime(2026, 2, 24, 10, tzinfo=UTC))
DAILY = ("0 0 * * *", "30 1 * * *", "30 2 * * *", "15 3 * * *")
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)


def zones():
    return sorted(name for name in available_timezones() if name not in {"localtime", "posixrules"})


def changes(zone):
    """Return the days (in UTC) on which the offset of a zone changes."""
    found, week, offset = [], FIRST, FIRST.astimezone(zone).utcoffset()
    while week < LAST:
        week += timedelta(days=7)
        new = week.astimezone(zone).utcoffset()
        if new != offset:
            days = (week - timedelta(days=back) for back in range(6, -1, -1))
            found.append(next(day for day in days if day.astimezone(zone).utcoffset() == new))
            offset = new
    return found


def rules():
    """Return one zone for each distinct history of offsets, 2020 to 2035, and the days of its changes."""
    known = {}
    for name in zones():
        zone = ZoneInfo(name)
        days = changes(zone)
        key = (FIRST.astimezone(zone).utcoffset(), *((day, day.astimezone(zone).utcoffset()) for day in days))
        known.setdefault(key, (name, days))
    return list(known.values())


def expected(name, expression, first, last):
    """Compute the due times independently: once a local day, at the first such time or after a jump."""
    zone = ZoneInfo(name)
    minute, hour = map(int, expression.split()[:2])
    times = []
    day = first
    while day <= last:
        wall = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a wall clock
        while True:
            moment = wall.replace(tzinfo=zone)
            if moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == wall:
                break
            wall += timedelta(minutes=1)
        times.append(from_datetime(moment))
        day += timedelta(days=1)
    return times


def check(name, expression, first, last):
    timing = Timing(type="cron", value=expression, tz=name, anchor_us=0)
    wanted = expected(name, expression, first, last)
    # First in one pass, then restarted from each occurrence, as a worker does.
    assert list(islice(timing.after(wanted[0] - 1), len(wanted))) == wanted, (name, expression)
    at = wanted[0] - 1
    for each in wanted:
        at = timing.next_after(at)
        assert at == each, (name, expression, to_datetime(at), to_datetime(each))


def test_a_daily_task_runs_exactly_once_a_day_when_clocks_change():
    known = rules()
    assert len(known) > 50
    looked_at = 0
    for name, days in known:
        for change in days[:6]:
            first, last = change.date() - timedelta(days=2), change.date() + timedelta(days=2)
            for expression in DAILY:
                check(name, expression, first, last)
                looked_at += 1
    assert looked_at > 500


@pytest.mark.soak
@pytest.mark.parametrize("name", zones())
def test_a_daily_task_runs_exactly_once_a_day_in_every_zone(name):
    for expression in DAILY:
        check(name, expression, date(2020, 1, 1), date(2035, 12, 31))


def times(type, value, tz="UTC", after=NOW, count=3):
    timing = parse_timing(type, value, tz, now_us=NOW)
    return [to_datetime(at).astimezone(ZoneInfo(tz)).isoformat() for at in islice(timing.after(after), count)]


def test_cron_uses_the_wall_clock_of_its_zone():
    assert times("cron", "0 8 * * *", "Europe/Berlin") == [
        "2026-02-25T08:00:00+01:00",
        "2026-02-26T08:00:00+01:00",
        "2026-02-27T08:00:00+01:00",
    ]


def test_a_time_skipped_in_spring_runs_right_after_the_jump():
    march = from_datetime(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert times("cron", "30 2 * * *", "Europe/Berlin", after=march, count=2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_time_repeated_in_autumn_runs_once():
    october = from_datetime(datetime(2026, 10, 24, 12, tzinfo=UTC))
    wanted = ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert times("cron", "30 2 * * *", "Europe/Berlin", after=october, count=2) == wanted
    between = from_datetime(datetime(2026, 10, 25, 1, 10, tzinfo=UTC))  # 02:10 for the second time
    assert times("cron", "30 2 * * *", "Europe/Berlin", after=between, count=1) == wanted[1:]


def test_an_hourly_task_runs_every_elapsed_hour_of_a_25_hour_day():
    october = from_datetime(datetime(2026, 10, 24, 22, tzinfo=UTC))
    found = list(islice(parse_timing("cron", "0 * * * *", "Europe/Berlin", now_us=NOW).after(october), 25))
    assert {later - earlier for earlier, later in pairwise(found)} == {3_600_000_000}


def test_an_interval_is_a_fixed_grid():
    assert times("interval", 3600) == [
        "2026-02-24T11:00:00+00:00",
        "2026-02-24T12:00:00+00:00",
        "2026-02-24T13:00:00+00:00",
    ]
    assert times("interval", "90.5", count=2) == [
        "2026-02-24T10:01:30.500000+00:00",
        "2026-02-24T10:03:01+00:00",
    ]
    assert parse_timing("interval", "3600", "UTC", now_us=NOW).value == "3600"


def test_once_is_due_once():
    assert times("once", "2026-02-25T09:00:00+01:00") == ["2026-02-25T08:00:00+00:00"]
    assert times("once", "2026-02-25T09:00:00", "Europe/Berlin") == ["2026-02-25T09:00:00+01:00"]
    assert times("once", datetime(2026, 2, 25, 9, tzinfo=UTC)) == ["2026-02-25T09:00:00+00:00"]


@given(
    st.sampled_from(["*/7 * * * *", "0 8 * * 1-5", "30 2 * * *", "0 0 29 2 *", "15,45 */6 1,15 * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(NOW - 10**14, NOW + 10**14),
)
def test_restarting_from_any_due_time_yields_the_same_remainder(expression, tz, start):
    timing = Timing(type="cron", value=expression, tz=tz, anchor_us=0)
    found = list(islice(timing.after(start), 6))
    assert found == sorted(set(found))
    assert found[0] > start
    for index, at in enumerate(found[:-1]):
        assert timing.next_after(at) == found[index + 1]


@pytest.mark.parametrize(
    "type, value, tz, words",
    [
        ("cron", "0 8 * *", "UTC", "does not have five fields: minute hour"),
        ("cron", "* * 0 8 * * *", "UTC", "does not have five fields"),
        ("cron", "61 8 * * *", "UTC", "'61 8 \\* \\* \\*' is not valid \\(Bad minute\\)"),
        ("cron", "0 8 * * MOO", "UTC", "Bad day-of-week"),
        ("cron", "0 0 30 2 *", "UTC", "not valid"),
        ("cron", "", "UTC", "does not have five fields"),
        ("cron", None, "UTC", "does not have five fields"),
        ("cron", "0 8 * * *", "Mars/Olympus", "unknown time zone 'Mars/Olympus'.*IANA"),
        ("cron", "0 8 * * *", "../etc/passwd", "unknown time zone"),
        ("cron", "0 8 * * *", "", "unknown time zone"),
        ("interval", 0, "UTC", "interval 0 is out of range"),
        ("interval", -5, "UTC", "interval -5 is out of range"),
        ("interval", "soon", "UTC", "'soon' is not a number of seconds"),
        ("interval", "nan", "UTC", "out of range"),
        ("interval", "inf", "UTC", "out of range"),
        ("interval", True, "UTC", "out of range"),
        ("interval", None, "UTC", "not a number"),
        ("once", "2026-02-24T09:59:59+00:00", "UTC", "is in the past \\(now is 2026-02-24T10:00:00"),
        ("once", "tomorrow", "UTC", "'tomorrow' is not an ISO 8601 time"),
        ("once", 5, "UTC", "5 is not an ISO 8601 time"),
        ("weekly", "1", "UTC", "unknown task type 'weekly'; use one of cron, interval, once"),
    ],
)
def test_a_schedule_that_can_never_run_is_rejected(type, value, tz, words):
    with pytest.raises(InvalidInput, match=words):
        parse_timing(type, value, tz, now_us=NOW)


def test_a_cron_expression_that_never_matches_is_rejected():
    with pytest.raises(InvalidInput, match="never matches"):
        parse_timing("cron", "0 0 */31 2 MON#5", "UTC", now_us=NOW)


def test_a_schedule_is_described_in_english():
    assert parse_timing("cron", "0 8 * * *", "UTC", now_us=NOW).describe() == "At 08:00 every day (UTC)"
    assert parse_timing("interval", 60, "UTC", now_us=NOW).describe() == "every 60 seconds"
