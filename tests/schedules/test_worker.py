"""Workers: one claim for each fire, results, failures, leases, and a quiet end."""

from __future__ import annotations

import asyncio
import logging
from threading import Barrier, Event

import pytest

import treering
from treering.errors import InvalidInput, Unreachable
from treering.runs.span import current_node
from treering.schedules.tasks import Policy


def outcomes(store, task=None):
    told = [(each.outcome, each.count) for each in store.schedules.fires(task and task.id)]
    return told[::-1]


@pytest.fixture
def work(store):
    """Makes workers that look when the test says so."""
    made = []

    def make(handler, **options):
        made.append(store.schedules.worker(handler, **{"lease_seconds": 30, **options}))
        return made[-1]

    yield make
    for worker in made:
        worker.drain()


def done(worker):
    begun = worker.tick()
    assert worker.idle(30)
    return begun


def test_a_fire_says_what_to_do_and_for_whom(store, clock, work):
    task = store.schedules.cron(
        "0 8 * * *",
        prompt="Forecast?",
        tz="Europe/Berlin",
        channel="telegram",
        chat_id="123",
        metadata={"n": 1},
    )
    fires = []
    worker = work(fires.append)
    assert done(worker) == 0
    clock.advance(seconds=21 * 3600 + 5)
    assert done(worker) == 1
    assert done(worker) == 0
    (fire,) = fires
    assert (fire.prompt, fire.channel, fire.chat_id, fire.metadata) == (
        "Forecast?",
        "telegram",
        "123",
        {"n": 1},
    )
    assert fire.scheduled_at.isoformat() == "2026-02-25T08:00:00+01:00"
    assert (fire.attempt, fire.token, fire.thread_id) == (1, 1, f"scheduler_{task.id}")
    now = store.schedules.get(task.id)
    assert now.last_run == "2026-02-25T07:00:05+00:00"
    assert now.next_run == "2026-02-26T07:00:00+00:00"
    assert now.runs == 1


def test_a_fire_is_linked_to_its_run_and_thread(store, clock, work):
    task = store.schedules.interval(60, prompt="p")
    seen = []

    def handler(fire):
        seen.append((current_node.get().id, fire.run_id))
        store.thread(fire.thread_id).append({"role": "user", "content": fire.prompt})
        return {"answer": 42}

    clock.advance(seconds=60)
    done(work(handler))
    (report,) = store.schedules.fires(task.id)
    assert (report.outcome, report.result) == ("ok", {"answer": 42})
    assert seen == [(report.run_id, report.run_id)]
    store.flush()
    run = store.runs.get(report.run_id)
    assert (run.thread, run.status, run.meta["task_id"]) == (f"scheduler_{task.id}", "ok", task.id)
    assert store.thread(f"scheduler_{task.id}").load().messages == [{"role": "user", "content": "p"}]


def test_a_failure_is_told_and_the_next_fire_comes(store, clock, work, caplog):
    task = store.schedules.interval(60, prompt="p")

    def handler(fire):
        if fire.scheduled_at.minute == 1:
            raise RuntimeError("no network")

    worker = work(handler)
    for _ in range(2):
        clock.advance(seconds=60)
        done(worker)
    assert outcomes(store, task) == [("error", 1), ("ok", 1)]
    failed = list(store.schedules.fires(task.id))[-1]
    assert failed.reason == "RuntimeError: no network"
    store.flush()
    assert store.runs.get(failed.run_id).status == "error"
    assert "failed" in caplog.text


def test_the_result_is_delivered_before_the_fire_counts_as_done(store, clock, work):
    task = store.schedules.interval(60, prompt="p", channel="telegram", chat_id="123")
    delivered = []

    def deliver(fire, result):
        assert outcomes(store) == []
        delivered.append((fire.channel, fire.chat_id, result))

    clock.advance(seconds=60)
    done(work(lambda fire: fire.prompt.upper(), deliver=deliver))
    assert delivered == [("telegram", "123", "P")]
    assert outcomes(store, task) == [("ok", 1)]


def test_a_result_that_cannot_be_stored_is_kept_as_text(store, clock, work):
    store.schedules.interval(60, prompt="p")
    clock.advance(seconds=60)
    done(work(lambda _: {1, object}))
    (report,) = store.schedules.fires()
    assert "class 'object'" in report.result


def test_two_workers_never_have_the_same_fire(store, clock, work):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(20)]
    fires = []
    one, other = work(fires.append), work(fires.append)
    for _ in range(3):
        clock.advance(seconds=60)
        while one.tick() + other.tick():
            assert one.idle(30)
            assert other.idle(30)
    assert sorted((fire.task_id, fire.scheduled_at_us) for fire in fires) == sorted(
        (task.id, task.created_at_us + minute * 60_000_000) for task in tasks for minute in (1, 2, 3)
    )


def test_no_more_fires_are_begun_than_there_are_hands(store, clock, work):
    for number in range(5):
        store.schedules.interval(60, prompt=str(number))
    go = Event()
    worker = work(lambda _: go.wait(30), concurrency=2)
    clock.advance(seconds=60)
    assert worker.tick() == 2
    assert worker.tick() == 0
    go.set()
    assert worker.idle(30)
    begun = 0
    while more := done(worker):
        begun += more
    assert begun == 3
    assert outcomes(store) == [("ok", 1)] * 5


def test_a_fire_that_runs_long_lets_the_next_one_be_skipped(store, clock, work):
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
    assert done(worker) == 1
    reasons = [(each.outcome, each.reason) for each in store.schedules.fires(task.id)]
    assert reasons == [("ok", ""), ("ok", ""), ("skipped", "an earlier fire was still open")]


def test_fires_run_side_by_side_where_that_is_allowed(store, clock, work):
    store.schedules.interval(60, prompt="p", policy=Policy(overlap="allow", catch_up="all"))
    meet = Barrier(3, timeout=30)
    clock.advance(seconds=180)
    assert done(work(lambda _: meet.wait())) == 3
    assert outcomes(store) == [("ok", 1)] * 3


def test_the_fires_of_a_worker_that_is_gone_are_run_again_under_a_higher_token(store, clock, work):
    task = store.schedules.interval(60, prompt="p")
    stuck, go = Event(), Event()
    seen = []

    def hang(fire):
        seen.append(("first", fire.attempt, fire.token))
        stuck.set()
        go.wait(30)
        return "too late"

    first = work(hang)
    second = work(lambda fire: seen.append(("second", fire.attempt, fire.token)))
    clock.advance(seconds=60)
    assert first.tick() == 1
    assert stuck.wait(30)
    assert second.tick() == 0, "the lease holds"
    clock.advance(seconds=29)
    assert second.tick() == 0
    clock.advance(seconds=2)
    assert done(second) == 1
    go.set()
    assert first.idle(30)
    assert seen == [("first", 1, 1), ("second", 2, 2)]
    (report,) = store.schedules.fires(task.id)
    assert (report.outcome, report.attempt, report.token, report.result) == ("ok", 2, 2, None)
    clock.advance(seconds=60)
    assert done(first) == 1, "the first one goes on under a new id"
    assert outcomes(store, task) == [("ok", 1), ("ok", 1)]


def test_a_fire_of_our_own_that_came_to_no_end_is_run_again(store, clock, work, caplog, monkeypatch):
    store.schedules.interval(60, prompt="p")
    seen = []
    worker = work(lambda fire: seen.append(fire.attempt))
    clock.advance(seconds=60)
    real = store.engine.commit

    def shaky(batch):
        if any(event.kind == "fire.finished" for event in batch.events):
            raise Unreachable("the disk is away")
        return real(batch)

    with monkeypatch.context() as patch:
        patch.setattr(store.engine, "commit", shaky)
        done(worker)
    assert outcomes(store) == []
    assert "could not be recorded" in caplog.text
    assert done(worker) == 1
    assert seen == [1, 2]
    assert outcomes(store) == [("ok", 1)]


def test_a_task_that_cannot_be_read_does_not_stop_the_others(store, clock, work, caplog):
    bad = store.schedules.interval(60, prompt="bad")
    store.schedules.interval(60, prompt="good")
    draft = store.draft()
    draft.set_ref(f"schedule//{bad.id}", b'{"id": 5}', scope=bad.scope)
    store.commit(draft)
    clock.advance(seconds=60)
    seen = []
    done(work(lambda fire: seen.append(fire.prompt)))
    assert seen == ["good"]
    assert bad.id in caplog.text


def test_a_task_that_is_forgotten_while_it_runs_leaves_nothing(store, clock, work):
    alice = store.schedules.in_namespace("alice")
    alice.interval(60, prompt="CANARY")
    worker = work(lambda _: store.forget(namespace="alice"), record_runs=False)
    clock.advance(seconds=60)
    done(worker)
    assert list(alice.fires()) == []
    clock.advance(seconds=60)
    assert done(worker) == 0


def test_changes_by_others_are_seen(store, clock, work):
    seen = []
    worker = work(lambda fire: seen.append(fire.prompt))
    done(worker)
    task = store.schedules.interval(60, prompt="new")
    clock.advance(seconds=60)
    done(worker)
    store.schedules.pause(task.id)
    clock.advance(seconds=60)
    done(worker)
    store.schedules.run_now(task.id)
    done(worker)
    store.schedules.cancel_task(task.id)
    clock.advance(seconds=60)
    done(worker)
    assert seen == ["new", "new"]


def test_leaving_lets_running_fires_end(tmp_path):
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
        assert len(store.schedules.get(task.id).fires) == 1, "what was asked for after the stop waits"
        with pytest.raises(InvalidInput, match="started before"):
            worker.start()


def test_a_drain_has_an_end(tmp_path):
    with treering.open(tmp_path / "store") as store:
        task = store.schedules.interval(3600, prompt="p")
        begun, go = Event(), Event()
        worker = store.schedules.worker(lambda _: begun.set() or go.wait(30), poll_seconds=0.01).start()
        store.schedules.run_now(task.id)
        assert begun.wait(30)
        assert worker.drain(seconds=0) is False
        go.set()
        assert worker.idle(30)


def test_an_async_handler_runs_in_the_loop_that_entered(tmp_path):
    async def main(store):
        loop = asyncio.get_running_loop()
        seen = asyncio.Event()

        async def handler(fire):
            assert asyncio.get_running_loop() is loop
            assert current_node.get().id == fire.run_id
            seen.set()
            await asyncio.sleep(0)
            return "awaited"

        async with store.schedules.worker(handler, poll_seconds=0.01):
            store.schedules.run_now(task.id)
            await asyncio.wait_for(seen.wait(), 30)

    with treering.open(tmp_path / "store") as store:
        task = store.schedules.interval(3600, prompt="p")
        asyncio.run(main(store))
        (report,) = store.schedules.fires()
        assert (report.result, report.manual) == ("awaited", True)


def test_what_breaks_the_worker_reaches_whoever_waits(store, monkeypatch):
    worker = store.schedules.worker(print)

    def broken(*_args, **_options):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(store.engine, "wait", broken)
    with pytest.raises(ZeroDivisionError, match="broken"):
        worker.run()


def test_a_store_that_does_not_answer_is_tried_again(store, clock, monkeypatch, caplog):
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
    assert "trying again" in caplog.text


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"lease_seconds": 0}, {"poll_seconds": -1}])
def test_a_worker_that_cannot_work_is_refused(store, wrong):
    with pytest.raises(InvalidInput, match="must be above zero"):
        store.schedules.worker(print, **wrong)
