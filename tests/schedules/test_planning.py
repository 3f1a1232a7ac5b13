"""The state machine of a task, without a store."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treering.errors import Conflict
from treering.schedules import planning
from treering.schedules.tasks import Policy, Task

START = 1_771_927_200_000_000
MINUTE = 60_000_000


def task(*, minutes=1, type="interval", value=None, **policy):
    made = Task(
        id="a1b2c3d4",
        prompt="p",
        type=type,
        value=value or str(minutes * 60),
        created_at_us=START,
        policy=Policy(**policy),
    )
    return planning.structs.replace(made, next_run_us=made.timing.next_after(START))


def minutes(*, of):
    return [(at - START) / MINUTE for at in of]


def opened(step):
    return minutes(of=[occurrence.at_us for occurrence in step.task.open_occurrences])


def skipped(step):
    return [(*minutes(of=[skip.first_us, skip.last_us]), skip.count, skip.reason) for skip in step.skips]


def at(minute):
    return START + round(minute * MINUTE)


def test_nothing_is_due_before_its_time():
    new = task()
    assert planning.advance(new, at(0.99)).task is new
    assert opened(planning.advance(new, at(1))) == [1]


def test_catch_up_once_runs_the_newest_missed_occurrence():
    step = planning.advance(task(), at(10.5))
    assert opened(step) == [10]
    assert skipped(step) == [(1, 9, 9, planning.CAUGHT_UP)]
    assert step.task.next_run_us == at(11)


def test_catch_up_skip_runs_only_within_the_grace_period():
    policy = {"catch_up": "skip", "grace_seconds": 60}
    fresh = planning.advance(task(minutes=10, **policy), at(11))
    assert opened(fresh) == [10]
    stale = planning.advance(task(minutes=10, **policy), at(11.1))
    assert opened(stale) == []
    assert skipped(stale) == [(10, 10, 1, planning.MISSED)]


def test_catch_up_all_is_bounded_by_count_and_window():
    step = planning.advance(task(catch_up="all", catch_up_max=3), at(5))
    assert opened(step) == [3, 4, 5]
    assert skipped(step) == [(1, 2, 2, planning.OVER_LIMIT)]
    step = planning.advance(task(catch_up="all", window_seconds=120), at(5))
    assert opened(step) == [3, 4, 5]
    assert skipped(step) == [(1, 2, 2, planning.EXPIRED)]


def test_a_long_backlog_of_an_interval_is_counted_without_iterating():
    step = planning.advance(task(type="interval", value="0.001"), START + 3 * 365 * 86_400_000_000)
    assert step.task.open_occurrences[-1].at_us == START + 3 * 365 * 86_400_000_000
    (expired, passed) = step.skips
    assert expired.count + passed.count + 1 == 3 * 365 * 86_400_000


def test_overlap_skips_buffers_or_allows():
    def second(overlap):
        first = planning.advance(task(overlap=overlap), at(1)).task
        running = planning.claim(first, at(1), worker="w", now_us=at(1))
        return planning.advance(running, at(2))

    step = second("skip")
    assert (opened(step), skipped(step)) == ([1], [(2, 2, 1, planning.OVERLAP)])
    step = second("buffer")
    assert (opened(step), skipped(step)) == ([1, 2], [])
    assert planning.claimable(step.task) == ()
    third = planning.advance(step.task, at(3))
    assert (opened(third), skipped(third)) == ([1, 2], [(3, 3, 1, planning.BUFFERED)])
    after = planning.finish(third.task, at(1), token=1)
    assert minutes(of=[occurrence.at_us for occurrence in planning.claimable(after)]) == [2]
    step = second("allow")
    assert opened(step) == [1, 2]
    assert minutes(of=[occurrence.at_us for occurrence in planning.claimable(step.task)]) == [2]


def test_an_occurrence_is_finished_only_under_its_token():
    first = planning.claim(planning.advance(task(), at(1)).task, at(1), worker="w", now_us=at(1))
    lost = planning.release(first, "w").task
    second = planning.claim(lost, at(1), worker="v", now_us=at(1.5))
    assert [(occurrence.attempt, occurrence.token) for occurrence in second.open_occurrences] == [(2, 2)]
    assert planning.finish(second, at(1), token=1) is None
    assert planning.finish(second, at(1), token=2).open_occurrences == ()
    assert planning.release(second, "w").task == second
    assert planning.release(second, "v", running=frozenset({2})).task == second


def test_an_occurrence_that_kills_its_workers_is_given_up():
    step = planning.advance(task(max_attempts=2), at(1))
    for worker in ("a", "b"):
        step = planning.release(planning.claim(step.task, at(1), worker=worker, now_us=at(1)), worker)
    assert step.task.open_occurrences == ()
    assert skipped(step) == [(1, 1, 1, "given up: 2 workers died on it")]


def test_occurrences_due_during_a_pause_are_skipped():
    paused = planning.pause(task(), at(1.5))
    assert (opened(paused), skipped(paused)) == ([], [(1, 1, 1, planning.PAUSED)])
    assert planning.advance(paused.task, at(5)).task == paused.task
    resumed = planning.resume(paused.task, at(5.5))
    assert skipped(resumed) == [(2, 5, 4, planning.PAUSED)]
    assert resumed.task.next_run_us == at(6)


def test_cancelling_skips_what_waits_and_keeps_what_runs():
    busy = planning.claim(
        planning.advance(task(overlap="buffer"), at(1)).task, at(1), worker="w", now_us=at(1)
    )
    cancelled = planning.cancel(busy, at(2))
    assert opened(cancelled) == [1]
    assert skipped(cancelled) == [(2, 2, 1, planning.CANCELLED)]
    assert planning.claimable(cancelled.task) == ()
    assert planning.finish(cancelled.task, at(1), token=1).status == "cancelled"
    with pytest.raises(Conflict, match="was cancelled"):
        planning.run_now(cancelled.task, at(3))


def test_a_once_task_is_done_after_it_ran():
    once = task(type="once", value="2026-02-24T10:05:00+00:00")
    due = planning.advance(once, at(5)).task
    assert (due.status, due.next_run_us, len(due.open_occurrences)) == ("active", None, 1)
    claimed = planning.claim(due, at(5), worker="w", now_us=at(5))
    assert planning.finish(claimed, at(5), token=1).status == "done"


def test_a_once_task_missed_beyond_its_window_is_done_and_reported():
    step = planning.advance(task(type="once", value="2026-02-24T10:05:00+00:00", window_seconds=60), at(99))
    assert step.task.status == "done"
    assert skipped(step) == [(5, 5, 1, planning.EXPIRED)]


def test_a_once_task_runs_however_late_unless_its_policy_has_a_window():
    step = planning.advance(task(type="once", value="2026-02-24T10:05:00+00:00"), at(60 * 24 * 400))
    assert (opened(step), skipped(step)) == ([5], [])
    daily = planning.advance(task(minutes=1440), at(60 * 24 * 3 + 1))
    assert (opened(daily), len(skipped(daily))) == ([60 * 24 * 3], 1)


def test_manual_occurrences_get_distinct_times():
    asked = task()
    for _ in range(3):
        asked = planning.run_now(asked, at(0.5))
    assert [occurrence.at_us - at(0.5) for occurrence in asked.open_occurrences] == [0, 1, 2]
    assert all(occurrence.manual for occurrence in asked.open_occurrences)


policies = st.builds(
    Policy,
    catch_up=st.sampled_from(["skip", "once", "all"]),
    catch_up_max=st.integers(1, 5),
    window_seconds=st.sampled_from([0.0, 90.0, 600.0, 86_400.0, None]),
    grace_seconds=st.sampled_from([0.0, 30.0, 90.0]),
    overlap=st.sampled_from(["skip", "buffer", "allow"]),
    max_attempts=st.integers(1, 3),
)
moves = st.lists(
    st.tuples(
        st.sampled_from(["advance", "claim", "finish", "lose", "pause", "resume", "run_now"]),
        st.integers(0, 400_000_000),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(policies, st.sampled_from([("interval", "60"), ("cron", "*/2 * * * *"), ("interval", "7.5")]), moves)
def test_every_occurrence_is_accounted_for_exactly_once(policy, timing, moves):
    now = START
    it = Task(id="a1b2c3d4", prompt="p", type=timing[0], value=timing[1], created_at_us=START, policy=policy)
    it = planning.structs.replace(it, next_run_us=it.timing.next_after(START))
    finished, skips, tokens = [], [], []
    for move, passed in moves:
        now += passed
        step = planning.Transition(task=it)
        if move == "claim" and planning.claimable(it):
            it = planning.claim(it, planning.claimable(it)[0].at_us, worker="w", now_us=now)
            tokens.append(it.claims)
            continue
        running = [occurrence for occurrence in it.open_occurrences if occurrence.worker]
        if move == "finish" and running:
            finished += [running[0].at_us] if not running[0].manual else []
            it = planning.finish(it, running[0].at_us, token=running[0].token)
            continue
        if move == "run_now" and len(it.open_occurrences) < 10:
            it = planning.run_now(it, now)
            continue
        if move == "advance":
            step = planning.advance(it, now)
        elif move == "lose":
            step = planning.release(it, "w")
        elif move == "pause" and it.status == "active":
            step = planning.pause(it, now)
        elif move == "resume" and it.status == "paused":
            step = planning.resume(it, now)
        it = step.task
        skips += [skip for skip in step.skips if not skip.manual]
        if policy.overlap != "allow":
            assert len([occurrence for occurrence in it.open_occurrences if occurrence.worker]) <= 1
    known = finished + [occurrence.at_us for occurrence in it.open_occurrences if not occurrence.manual]
    for skip in skips:
        row = list(takewhile(lambda at: at <= skip.last_us, it.timing.after(skip.first_us - 1)))  # noqa: B023
        assert len(row) == skip.count
        known += row
    occurred = list(takewhile(lambda at: at < it.next_run_us, it.timing.after(START)))
    assert sorted(known) == occurred
    assert tokens == sorted(set(tokens))
