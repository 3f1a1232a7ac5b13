"""What becomes of a task, decided without a store."""

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
    return minutes(of=[fire.at_us for fire in step.task.fires])


def skipped(step):
    return [(*minutes(of=[skip.first_us, skip.last_us]), skip.count, skip.reason) for skip in step.skips]


def at(minute):
    return START + round(minute * MINUTE)


def test_nothing_is_due_before_its_time():
    new = task()
    assert planning.advance(new, at(0.99)).task is new
    assert opened(planning.advance(new, at(1))) == [1]


def test_after_a_time_without_workers_the_newest_runs():
    step = planning.advance(task(), at(10.5))
    assert opened(step) == [10]
    assert skipped(step) == [(1, 9, 9, planning.CAUGHT_UP)]
    assert step.task.next_run_us == at(11)


def test_skip_runs_only_what_is_still_fresh():
    policy = {"catch_up": "skip", "grace_seconds": 60}
    fresh = planning.advance(task(minutes=10, **policy), at(11))
    assert opened(fresh) == [10]
    stale = planning.advance(task(minutes=10, **policy), at(11.1))
    assert opened(stale) == []
    assert skipped(stale) == [(10, 10, 1, planning.MISSED)]


def test_all_runs_all_up_to_the_most_and_within_the_window():
    step = planning.advance(task(catch_up="all", catch_up_max=3), at(5))
    assert opened(step) == [3, 4, 5]
    assert skipped(step) == [(1, 2, 2, planning.TOO_MANY)]
    step = planning.advance(task(catch_up="all", window_seconds=120), at(5))
    assert opened(step) == [3, 4, 5]
    assert skipped(step) == [(1, 2, 2, planning.EXPIRED)]


def test_years_of_seconds_are_counted_at_once():
    step = planning.advance(task(type="interval", value="0.001"), START + 3 * 365 * 86_400_000_000)
    assert step.task.fires[-1].at_us == START + 3 * 365 * 86_400_000_000
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
    assert minutes(of=[fire.at_us for fire in planning.claimable(after)]) == [2]
    step = second("allow")
    assert opened(step) == [1, 2]
    assert minutes(of=[fire.at_us for fire in planning.claimable(step.task)]) == [2]


def test_a_fire_is_finished_only_under_its_token():
    first = planning.claim(planning.advance(task(), at(1)).task, at(1), worker="w", now_us=at(1))
    lost = planning.take_back(first, "w").task
    second = planning.claim(lost, at(1), worker="v", now_us=at(1.5))
    assert [(fire.attempt, fire.token) for fire in second.fires] == [(2, 2)]
    assert planning.finish(second, at(1), token=1) is None
    assert planning.finish(second, at(1), token=2).fires == ()
    assert planning.take_back(second, "w").task == second
    assert planning.take_back(second, "v", spared=frozenset({2})).task == second


def test_a_fire_that_kills_its_workers_is_given_up():
    step = planning.advance(task(max_attempts=2), at(1))
    for worker in ("a", "b"):
        step = planning.take_back(planning.claim(step.task, at(1), worker=worker, now_us=at(1)), worker)
    assert step.task.fires == ()
    assert skipped(step) == [(1, 1, 1, "given up: 2 workers were lost on it")]


def test_a_pause_leaves_out_what_falls_into_it():
    paused = planning.pause(task(), at(1.5))
    assert (opened(paused), skipped(paused)) == ([], [(1, 1, 1, planning.PAUSED)])
    assert planning.advance(paused.task, at(5)).task == paused.task
    resumed = planning.resume(paused.task, at(5.5))
    assert skipped(resumed) == [(2, 5, 4, planning.PAUSED)]
    assert resumed.task.next_run_us == at(6)


def test_a_cancelled_task_lets_go_of_what_waits_and_keeps_what_runs():
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


def test_once_is_done_after_its_fire():
    once = task(type="once", value="2026-02-24T10:05:00+00:00")
    due = planning.advance(once, at(5)).task
    assert (due.status, due.next_run_us, len(due.fires)) == ("active", None, 1)
    claimed = planning.claim(due, at(5), worker="w", now_us=at(5))
    assert planning.finish(claimed, at(5), token=1).status == "done"


def test_once_that_was_missed_beyond_its_window_is_done_and_told():
    step = planning.advance(task(type="once", value="2026-02-24T10:05:00+00:00", window_seconds=60), at(99))
    assert step.task.status == "done"
    assert skipped(step) == [(5, 5, 1, planning.EXPIRED)]


def test_fires_that_are_asked_for_have_times_of_their_own():
    asked = task()
    for _ in range(3):
        asked = planning.run_now(asked, at(0.5))
    assert [fire.at_us - at(0.5) for fire in asked.fires] == [0, 1, 2]
    assert all(fire.manual for fire in asked.fires)


policies = st.builds(
    Policy,
    catch_up=st.sampled_from(["skip", "once", "all"]),
    catch_up_max=st.integers(1, 5),
    window_seconds=st.sampled_from([0.0, 90.0, 600.0, 86_400.0]),
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
        step = planning.Step(task=it)
        if move == "claim" and planning.claimable(it):
            it = planning.claim(it, planning.claimable(it)[0].at_us, worker="w", now_us=now)
            tokens.append(it.claims)
            continue
        running = [fire for fire in it.fires if fire.worker]
        if move == "finish" and running:
            finished += [running[0].at_us] if not running[0].manual else []
            it = planning.finish(it, running[0].at_us, token=running[0].token)
            continue
        if move == "run_now" and len(it.fires) < 10:
            it = planning.run_now(it, now)
            continue
        if move == "advance":
            step = planning.advance(it, now)
        elif move == "lose":
            step = planning.take_back(it, "w")
        elif move == "pause" and it.status == "active":
            step = planning.pause(it, now)
        elif move == "resume" and it.status == "paused":
            step = planning.resume(it, now)
        it = step.task
        skips += [skip for skip in step.skips if not skip.manual]
        if policy.overlap != "allow":
            assert len([fire for fire in it.fires if fire.worker]) <= 1
    known = finished + [fire.at_us for fire in it.fires if not fire.manual]
    for skip in skips:
        row = list(takewhile(lambda at: at <= skip.last_us, it.timing.after(skip.first_us - 1)))  # noqa: B023
        assert len(row) == skip.count
        known += row
    occurred = list(takewhile(lambda at: at < it.next_run_us, it.timing.after(START)))
    assert sorted(known) == occurred
    assert tokens == sorted(set(tokens))
