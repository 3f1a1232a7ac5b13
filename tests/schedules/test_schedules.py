"""Creating, listing and changing tasks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

import treering
from treering.errors import Conflict, InvalidInput, NotFound
from treering.schedules.schedules import Schedules
from treering.schedules.tasks import Policy


def test_a_task_is_stored_as_created(store):
    made = store.schedules.cron(
        "0  8 * * *", prompt="Forecast?", tz="Europe/Berlin", channel="telegram", chat_id=123
    )
    assert store.schedules.load(made.id) == made
    assert (made.value, made.chat_id, str(made.next_run)) == ("0 8 * * *", "123", "2026-02-25 07:00:00+00:00")
    assert store.schedules.list_tasks() == [made]
    assert [each.isoformat() for each in store.schedules.preview(made.id, 2)] == [
        "2026-02-25T08:00:00+01:00",
        "2026-02-26T08:00:00+01:00",
    ]
    assert store.schedules.preview_cron("0 8 * * *", 1)[0] == datetime(2026, 2, 25, 8, tzinfo=UTC)


def test_ids_are_eight_hex_digits_and_a_collision_draws_another(store, clock):
    drawn = iter(["a1b2c3d4", "a1b2c3d4", "a1b2c3d4", "00ff00ff"])
    schedules = Schedules(store.engine, store.space, clock=clock, new_task_id=lambda: next(drawn))
    first = schedules.interval(60, prompt="one")
    second = schedules.interval(60, prompt="two")
    assert (first.id, second.id) == ("a1b2c3d4", "00ff00ff")
    assert schedules.load("a1b2c3d4").prompt == "one"
    assert int(store.schedules.interval(60, prompt="three").id, 16) < 1 << 32


@pytest.mark.parametrize(
    "given, words",
    [
        ({"prompt": " "}, "prompt ' ' is empty"),
        ({"prompt": "p", "channel": "a\nb"}, "channel"),
        ({"prompt": "p" * 40_000}, "the limit is"),
        ({"prompt": "p", "policy": Policy(catch_up="sometimes")}, "invalid policy: .*'sometimes'"),
        ({"prompt": "p", "policy": Policy(catch_up_max=0)}, "catch_up_max=0; use 1 or more"),
        ({"prompt": "p", "policy": Policy(window_seconds=-1)}, "window_seconds=-1"),
        ({"prompt": "p", "policy": Policy(grace_seconds=float("nan"))}, "grace_seconds=nan"),
        ({"prompt": "p", "metadata": {"x": object()}}, "cannot store"),
    ],
)
def test_an_invalid_task_is_rejected_and_nothing_is_stored(store, given, words):
    with pytest.raises(InvalidInput, match=words):
        store.schedules.interval(60, **given)
    assert store.schedules.list_tasks(all=True) == []


def test_an_unknown_task_is_not_found(store):
    for use in (
        store.schedules.load,
        store.schedules.cancel_task,
        store.schedules.pause,
        store.schedules.resume,
        store.schedules.run_now,
        store.schedules.preview,
    ):
        with pytest.raises(NotFound, match="task 'deadbeef' not found"):
            use("deadbeef")
    assert store.schedules.get("deadbeef") is None


def test_cancelling_keeps_the_record_and_is_final(store):
    task = store.schedules.interval(60, prompt="p")
    assert store.schedules.cancel_task(task.id).active is False
    assert store.schedules.cancel_task(task.id).status == "cancelled"
    assert store.schedules.list_tasks() == []
    assert [each.id for each in store.schedules.list_tasks(all=True)] == [task.id]
    assert store.schedules.preview(task.id) == []
    for use in (store.schedules.pause, store.schedules.resume):
        with pytest.raises(InvalidInput, match="is cancelled and cannot be"):
            use(task.id)
    with pytest.raises(Conflict, match="was cancelled"):
        store.schedules.run_now(task.id)


def test_occurrences_due_during_a_pause_are_reported_as_skipped(store, clock):
    task = store.schedules.interval(60, prompt="p")
    assert store.schedules.pause(task.id).next_run is None
    assert store.schedules.pause(task.id).status == "paused"
    assert store.schedules.list_tasks()[0].status == "paused"
    clock.advance(seconds=150)
    assert str(store.schedules.resume(task.id).next_run) == "2026-02-24 10:03:00+00:00"
    (report,) = store.schedules.occurrences(task.id)
    assert (report.outcome, report.count, report.reason) == ("skipped", 2, "the task was paused")
    assert str(report.scheduled_at) == "2026-02-24 10:01:00+00:00"


def test_namespaces_are_separate_and_forgotten_separately(store):
    of_alice = store.schedules.in_namespace("alice")
    hers = of_alice.interval(60, prompt="hers")
    ours = store.schedules.interval(60, prompt="ours")
    store.schedules.in_namespace("alice/2").interval(60, prompt="another")
    assert of_alice.list_tasks() == [hers]
    assert store.schedules.list_tasks() == [ours]
    of_alice.pause(hers.id)
    with pytest.raises(NotFound):
        store.schedules.load(hers.id)
    store.forget(namespace="alice")
    assert of_alice.list_tasks(all=True) == []
    assert len(store.schedules.in_namespace("alice/2").list_tasks()) == 1
    assert store.verify().ok


def test_putting_an_existing_task_changes_nothing(store):
    task = store.schedules.interval(60, prompt="p")
    assert not store.schedules.put(task)
    assert store.schedules.load(task.id) == task


def test_the_async_api(tmp_path):
    async def use():
        async with treering.open_async(tmp_path / "store") as store:
            task = await store.schedules.schedule_task("p", "cron", "0 8 * * *", channel="c", chat_id="1")
            assert [each.id for each in await store.schedules.list_tasks()] == [task.id]
            assert len(await store.schedules.preview(task.id, 3)) == 3
            seen = asyncio.Event()

            async def handler(_):
                seen.set()

            async with store.schedules.worker(handler, poll_seconds=0.01) as worker:
                await store.schedules.run_now(task.id)
                await seen.wait()
            assert worker.running == 0
            assert [each.outcome async for each in store.schedules.occurrences(task.id)] == ["ok"]
            await store.schedules.cancel_task(task.id)

    asyncio.run(use())
