"""The worker: claims, results, failures, leases, draining, and its cache of tasks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from threading import Barrier, Event

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.query import EventQuery
from treering.errors import InvalidInput, Unreachable
from treering.runs.span import current_node
from treering.schedules.planning import claimable, is_due
from treering.schedules.tasks import CLAIMED, FINISHED, OpenOccurrence, Policy, Task, task_ref
from treering.schedules.worker import TaskCache

ALLOW = Policy(catch_up="all", overlap="allow")


def outcomes(store, task=None):
    reports = store.schedules.occurrences(task and task.id)
    return [(each.outcome, each.count) for each in reports][::-1]


@pytest.fixture
def work(store):
    """Create workers that poll only when the test calls `tick`."""
    made = []

    def make(handler, **options):
        made.append(store.schedules.worker(handler, **{"lease_seconds": 30, **options}))
        return made[-1]

    yield make
    for worker in made:
        worker.drain()


def tick_and_wait(worker):
    started = worker.tick()
    assert worker.idle(30)
    return started


def test_the_handler_receives_the_task_and_its_recipient(store, clock, work):
    task = store.schedules.cron(
        "0 8 * * *",
        prompt="Forecast?",
        tz="Europe/Berlin",
        channel="telegram",
        chat_id="123",
        metadata={"n": 1},
    )
    handled = []
    worker = work(handled.append)
    assert tick_and_wait(worker) == 0
    clock.advance(seconds=21 * 3600 + 5)
    assert tick_and_wait(worker) == 1
    assert tick_and_wait(worker) == 0
    (occurrence,) = handled
    assert (occurrence.prompt, occurrence.channel, occurrence.chat_id, occurrence.metadata) == (
        "Forecast?",
        "telegram",
        "123",
        {"n": 1},
    )
    assert occurrence.scheduled_at.isoformat() == "2026-02-25T08:00:00+01:00"
    assert (occurrence.attempt, occurrence.token, occurrence.thread_id) == (1, 1, f"scheduler_{task.id}")
    now = store.schedules.load(task.id)
    assert str(now.last_run) == "2026-02-25 07:00:05+00:00"
    assert str(now.next_run) == "2026-02-26 07:00:00+00:00"
    assert now.runs == 1


def test_a_reminder_that_nobody_could_run_fires_late_and_says_so(store, clock, work):
    once = store.schedules.once("2026-02-25T08:00:00", prompt="Call Bob")
    told = store.schedules.once("2026-02-25T08:00:00", prompt="Stale", policy=Policy(window_seconds=60))
    clock.advance(seconds=9 * 86_400)
    handled = []
    assert tick_and_wait(work(handled.append)) == 1
    (occurrence,) = handled
    assert (occurrence.task_id, occurrence.prompt) == (once.id, "Call Bob")
    assert occurrence.late_seconds > 7 * 86_400
    (report,) = store.schedules.occurrences(once.id)
    assert (report.outcome, report.late_us) == ("ok", round(occurrence.late_seconds * 1e6))
    assert store.schedules.load(once.id).status == "done"
    (skipped,) = store.schedules.occurrences(told.id)
    assert (skipped.outcome, skipped.reason) == ("skipped", "missed: older than the catch-up window")


def test_an_occurrence_is_linked_to_its_run_and_thread(store, clock, work):
    task = store.schedules.interval(60, prompt="p")
    seen = []

    def handler(occurrence):
        seen.append((current_node.get().id, occurrence.run_id))
        store.thread(occurrence.thread_id).append({"role": "user", "content": occurrence.prompt})
        return {"answer": 42}

    clock.advance(seconds=60)
    tick_and_wait(work(handler))
    (report,) = store.schedules.occurrences(task.id)
    assert (report.outcome, report.result) == ("ok", {"answer": 42})
    assert seen == [(report.run_id, report.run_id)]
    store.flush()
    run = store.runs.load(report.run_id)
    assert (run.thread, run.status, run.meta["task_id"]) == (f"scheduler_{task.id}", "ok", task.id)
    assert store.thread(f"scheduler_{task.id}").load().messages == [{"role": "user", "content": "p"}]


def test_a_failure_is_reported_and_the_next_occurrence_runs(store, clock, work, caplog):
    task = store.schedules.interval(60, prompt="p")

    def handler(occurrence):
        if occurrence.scheduled_at.minute == 1:
            raise RuntimeError("no network")

    worker = work(handler)
    for _ in range(2):
        clock.advance(seconds=60)
        tick_and_wait(worker)
    assert outcomes(store, task) == [("error", 1), ("ok", 1)]
    failed = list(store.schedules.occurrences(task.id))[-1]
    assert failed.reason == "RuntimeError: no network"
    store.flush()
    assert store.runs.load(failed.run_id).status == "error"
    assert "failed" in caplog.text


def test_the_result_is_delivered_before_the_occurrence_is_done(store, clock, work):
    task = store.schedules.interval(60, prompt="p", channel="telegram", chat_id="123")
    delivered = []

    def deliver(occurrence, result):
        assert outcomes(store) == []
        delivered.append((occurrence.channel, occurrence.chat_id, result))

    clock.advance(seconds=60)
    tick_and_wait(work(lambda occurrence: occurrence.prompt.upper(), deliver=deliver))
    assert delivered == [("telegram", "123", "P")]
    assert outcomes(store, task) == [("ok", 1)]


def test_a_result_that_cannot_be_encoded_is_stored_as_text(store, clock, work):
    store.schedules.interval(60, prompt="p")
    clock.advance(seconds=60)
    tick_and_wait(work(lambda _: {1, object}))
    (report,) = store.schedules.occurrences()
    assert "class 'object'" in report.result


def test_two_workers_never_claim_the_same_occurrence(store, clock, work):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(20)]
    handled = []
    one, other = work(handled.append), work(handled.append)
    for _ in range(3):
        clock.advance(seconds=60)
        while one.tick() + other.tick():
            assert one.idle(30)
            assert other.idle(30)
    assert sorted((occurrence.task_id, occurrence.scheduled_at_us) for occurrence in handled) == sorted(
        (task.id, task.created_at_us + minute * 60_000_000) for task in tasks for minute in (1, 2, 3)
    )


def test_concurrency_limits_how_many_occurrences_run(store, clock, work):
    for number in range(5):
        store.schedules.interval(60, prompt=str(number))
    go = Event()
    worker = work(lambda _: go.wait(30), concurrency=2)
    clock.advance(seconds=60)
    assert worker.tick() == 2
    assert worker.tick() == 0
    go.set()
    assert worker.idle(30)
    started = 0
    while more := tick_and_wait(worker):
        started += more
    assert started == 3
    assert outcomes(store) == [("ok", 1)] * 5


def test_the_next_occurrence_is_skipped_while_one_still_runs(store, clock, work):
    task = store.schedules.interval(60, prompt="p")
    go, begun = Event(), Event()
    worker = work(lambda _: begun.set() or go.wait(30), lease_seconds=600)
    clock.advance(seconds=60)
    worker.tick()
    assert begun.wait(30)
    clock.advance(seconds=60)
    assert worker.tick() == 0
    go.set()
    assert worker.idle(30)
    clock.advance(seconds=60)
    assert tick_and_wait(worker) == 1
    reasons = [(each.outcome, each.reason) for each in store.schedules.occurrences(task.id)]
    assert reasons == [("ok", ""), ("ok", ""), ("skipped", "an earlier occurrence was still open")]


def test_occurrences_run_side_by_side_if_overlap_is_allowed(store, clock, work):
    store.schedules.interval(60, prompt="p", policy=Policy(overlap="allow", catch_up="all"))
    meet = Barrier(3, timeout=30)
    clock.advance(seconds=180)
    assert tick_and_wait(work(lambda _: meet.wait())) == 3
    assert outcomes(store) == [("ok", 1)] * 3


def test_occurrences_of_a_dead_worker_run_again_under_a_higher_token(store, clock, work):
    task = store.schedules.interval(60, prompt="p")
    stuck, go = Event(), Event()
    seen = []

    def hang(occurrence):
        seen.append(("first", occurrence.attempt, occurrence.token))
        stuck.set()
        go.wait(30)
        return "too late"

    first = work(hang)
    second = work(lambda occurrence: seen.append(("second", occurrence.attempt, occurrence.token)))
    clock.advance(seconds=60)
    assert first.tick() == 1
    assert stuck.wait(30)
    assert second.tick() == 0, "the lease is still held"
    clock.advance(seconds=29)
    assert second.tick() == 0
    clock.advance(seconds=2)
    assert tick_and_wait(second) == 1
    go.set()
    assert first.idle(30)
    assert seen == [("first", 1, 1), ("second", 2, 2)]
    (report,) = store.schedules.occurrences(task.id)
    assert (report.outcome, report.attempt, report.token, report.result) == ("ok", 2, 2, None)
    clock.advance(seconds=60)
    assert tick_and_wait(first) == 1, "the first worker continues under a new id"
    assert outcomes(store, task) == [("ok", 1), ("ok", 1)]


def test_an_occurrence_whose_result_was_not_recorded_runs_again(store, clock, work, caplog, monkeypatch):
    store.schedules.interval(60, prompt="p")
    seen = []
    worker = work(lambda occurrence: seen.append(occurrence.attempt))
    clock.advance(seconds=60)
    real = store.engine.commit

    def shaky(batch):
        if any(event.kind == "occurrence.finished" for event in batch.events):
            raise Unreachable("the disk is unavailable")
        return real(batch)

    with monkeypatch.context() as patch:
        patch.setattr(store.engine, "commit", shaky)
        tick_and_wait(worker)
    assert outcomes(store) == []
    assert "could not be recorded" in caplog.text
    assert tick_and_wait(worker) == 1
    assert seen == [1, 2]
    assert outcomes(store) == [("ok", 1)]


def test_a_corrupt_task_does_not_stop_the_others(store, clock, work, caplog):
    bad = store.schedules.interval(60, prompt="bad")
    store.schedules.interval(60, prompt="good")
    draft = store.draft()
    draft.set_ref(f"schedule//{bad.id}", b'{"id": 5}', scope=bad.scope)
    store.commit(draft)
    clock.advance(seconds=60)
    seen = []
    tick_and_wait(work(lambda occurrence: seen.append(occurrence.prompt)))
    assert seen == ["good"]
    assert bad.id in caplog.text


def test_a_task_forgotten_while_it_runs_leaves_nothing(store, clock, work):
    alice = store.schedules.in_namespace("alice")
    alice.interval(60, prompt="CANARY")
    worker = work(lambda _: store.forget(namespace="alice"), record_runs=False)
    clock.advance(seconds=60)
    tick_and_wait(worker)
    assert list(alice.occurrences()) == []
    clock.advance(seconds=60)
    assert tick_and_wait(worker) == 0


def test_changes_made_elsewhere_are_picked_up(store, clock, work):
    seen = []
    worker = work(lambda occurrence: seen.append(occurrence.prompt))
    tick_and_wait(worker)
    task = store.schedules.interval(60, prompt="new")
    clock.advance(seconds=60)
    tick_and_wait(worker)
    store.schedules.pause(task.id)
    clock.advance(seconds=60)
    tick_and_wait(worker)
    store.schedules.run_now(task.id)
    tick_and_wait(worker)
    store.schedules.cancel_task(task.id)
    clock.advance(seconds=60)
    tick_and_wait(worker)
    assert seen == ["new", "new"]


def test_leaving_the_block_waits_for_running_occurrences(tmp_path):
    with treering.open(tmp_path / "store") as store:
        task = store.schedules.interval(3600, prompt="p")
        begun, go, ended = Event(), Event(), []

        def handler(_):
            begun.set()
            go.wait(30)
            ended.append(True)

        with store.schedules.worker(handler, poll_seconds=0.01) as worker:
            store.schedules.run_now(task.id)
            assert begun.wait(30)
            worker.stop()
            store.schedules.run_now(task.id)
            go.set()
        assert ended == [True]
        assert outcomes(store) == [("ok", 1)]
        assert len(store.schedules.load(task.id).open_occurrences) == 1, (
            "an occurrence requested after the stop stays open"
        )
        with pytest.raises(InvalidInput, match="already started"):
            worker.start()


def test_drain_gives_up_after_its_timeout(tmp_path):
    with treering.open(tmp_path / "store") as store:
        task = store.schedules.interval(3600, prompt="p")
        begun, go = Event(), Event()
        worker = store.schedules.worker(lambda _: begun.set() or go.wait(30), poll_seconds=0.01).start()
        store.schedules.run_now(task.id)
        assert begun.wait(30)
        assert worker.drain(seconds=0) is False
        go.set()
        assert worker.idle(30)


def test_an_async_handler_runs_in_the_loop_that_entered_the_worker(tmp_path):
    async def main(store):
        loop = asyncio.get_running_loop()
        seen = asyncio.Event()

        async def handler(occurrence):
            assert asyncio.get_running_loop() is loop
            assert current_node.get().id == occurrence.run_id
            seen.set()
            await asyncio.sleep(0)
            return "awaited"

        async with store.schedules.worker(handler, poll_seconds=0.01):
            store.schedules.run_now(task.id)
            await asyncio.wait_for(seen.wait(), 30)

    with treering.open(tmp_path / "store") as store:
        task = store.schedules.interval(3600, prompt="p")
        asyncio.run(main(store))
        (report,) = store.schedules.occurrences()
        assert (report.result, report.manual) == ("awaited", True)


def test_a_failure_of_the_worker_is_raised_to_its_caller(store, monkeypatch):
    worker = store.schedules.worker(print)

    def broken(*_args, **_options):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(store.engine, "wait", broken)
    with pytest.raises(ZeroDivisionError, match="broken"):
        worker.run()


def test_an_unavailable_store_is_retried(store, clock, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    task = store.schedules.interval(60, prompt="p")
    clock.advance(seconds=60)
    real, failed = store.engine.wait, []

    def shaky(*args, **options):
        if not failed:
            failed.append(True)
            raise Unreachable("gone for a moment")
        return real(*args, **options)

    monkeypatch.setattr(store.engine, "wait", shaky)
    seen = Event()
    with store.schedules.worker(lambda _: seen.set(), poll_seconds=0.01):
        assert seen.wait(30)
    assert outcomes(store, task) == [("ok", 1)]
    assert "retrying" in caplog.text


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"lease_seconds": 0}, {"poll_seconds": -1}])
def test_invalid_worker_options_are_rejected(store, wrong):
    with pytest.raises(InvalidInput, match="must be above zero"):
        store.schedules.worker(print, **wrong)


def events(store, kind):
    return store.engine.scan(store.space, EventQuery(kinds=(kind,)), limit=1000).records


def commits(store, kind):
    return len({record.batch for record in events(store, kind)})


class SignallingQueue(deque):
    """Sets an event when it has received so many items."""

    def __init__(self, count):
        super().__init__()
        self._count = count
        self.full = Event()

    def append(self, each):
        super().append(each)
        if len(self) == self._count:
            self.full.set()


def test_occurrences_due_together_share_one_commit(store, work, clock):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(8)]
    worker = work(lambda occurrence: occurrence.prompt, concurrency=8)
    worker._results._queue = queue = SignallingQueue(8)
    clock.advance(seconds=60)
    with worker._results._commit_lock:  # as if a commit took long
        assert worker.tick() == 8
        assert queue.full.wait(30)
    assert worker.idle(30)
    assert commits(store, CLAIMED) == commits(store, FINISHED) == 1
    assert {(report.task_id, report.result) for report in store.schedules.occurrences()} == {
        (task.id, task.prompt) for task in tasks
    }
    assert all(store.schedules.load(task.id).open_occurrences == () for task in tasks)


def test_a_task_changed_elsewhere_does_not_hold_back_the_others(store, work, clock):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(4)]
    seen = []
    worker = work(lambda occurrence: seen.append(occurrence.task_id), concurrency=8)
    assert worker.tick() == 0
    clock.advance(seconds=60)
    worker._cache.refresh = lambda: None  # it has not seen the change below
    store.schedules.cancel_task(tasks[2].id)
    assert worker.tick() == 3
    assert worker.idle(30)
    assert sorted(seen) == sorted(task.id for task in tasks if task is not tasks[2])
    del worker._cache.refresh
    assert worker.tick() == 0
    assert store.schedules.load(tasks[2].id).status == "cancelled"


def test_occurrences_of_one_task_that_finish_together_are_all_recorded(store, work, clock):
    task = store.schedules.interval(10, prompt="p", policy=ALLOW)
    together = Barrier(5)
    worker = work(lambda _: together.wait(30), concurrency=5)
    clock.advance(seconds=50)
    assert worker.tick() == 5
    assert worker.idle(30)
    after = store.schedules.load(task.id)
    assert (after.runs, after.open_occurrences) == (5, ())
    assert len([report for report in store.schedules.occurrences(task.id) if report.outcome == "ok"]) == 5


def test_a_change_while_handlers_run_does_not_lose_their_results(store, work, clock):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(3)]
    together = Barrier(4)

    def handle(occurrence):
        together.wait(30)
        together.wait(30)
        return occurrence.prompt

    worker = work(handle, concurrency=4)
    clock.advance(seconds=60)
    assert worker.tick() == 3
    together.wait(30)
    store.schedules.pause(tasks[1].id)
    together.wait(30)
    assert worker.idle(30)
    assert {report.result for report in store.schedules.occurrences() if report.outcome == "ok"} == {
        "0",
        "1",
        "2",
    }
    assert store.schedules.load(tasks[1].id).status == "paused"


def test_workers_that_know_each_other_divide_the_due_tasks(store, work, clock):
    for number in range(40):
        store.schedules.interval(60, prompt=str(number))
    go = Barrier(9)
    one = work(lambda _: go.wait(30), concurrency=4)
    two = work(lambda _: go.wait(30), concurrency=4)
    clock.advance(seconds=60)
    assert one.tick() == 4
    assert two.tick() == 4
    one._cache.refresh()
    one._release_lost(clock.now_us())
    two._release_lost(clock.now_us())

    def share(worker):
        due = worker._cache.due(clock.now_us()).others
        return {each.ref for each in due if not worker._belongs_to_another(each)}

    assert not share(one) & share(two)
    assert len(share(one) | share(two)) >= 32
    go.wait(30)
    assert one.idle(30)
    assert two.idle(30)


TASKS = st.builds(
    Task,
    id=st.sampled_from("abc"),
    prompt=st.just("p"),
    type=st.just("interval"),
    value=st.just("1"),
    created_at_us=st.just(0),
    next_run_us=st.none() | st.integers(0, 9),
    status=st.sampled_from(["active", "paused", "cancelled", "done"]),
    policy=st.sampled_from([Policy(), ALLOW, Policy(catch_up="skip")]),
    open_occurrences=st.lists(
        st.builds(
            OpenOccurrence,
            at_us=st.integers(0, 9),
            worker=st.sampled_from([None, "w"]),
            attempt=st.integers(0, 1),
        ),
        max_size=2,
        unique_by=lambda occurrence: occurrence.at_us,
    ).map(tuple),
)


@given(st.lists(st.tuples(TASKS, st.integers(0, 9)), max_size=12))
def test_the_task_cache_returns_exactly_what_is_due(changes):
    with treering.open("memory:") as store:
        cache = TaskCache(store.engine, store.space)
        tasks = {}
        now_us = 0
        for version, (task, later_us) in enumerate(changes, 1):
            ref = task_ref(task.id, "")
            cache.put(ref, version, task)
            tasks[ref] = task
            now_us = max(now_us, later_us)
            due = cache.due(now_us)
            found = {each.ref: each.task for each in due.urgent + due.others}
            assert found == {
                name: each for name, each in tasks.items() if is_due(each, now_us) or claimable(each)
            }
            assert len(found) == len(due.urgent) + len(due.others)
            cache.put(ref, version - 1, msgspec.structs.replace(task, prompt="older"))
