"""CianaParrot, scheduled tasks: creation, runs, catch-up, concurrency, kills and import."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

import treering
from treering.blobs.folder import FolderBlobs
from treering.core.clock import ManualClock, from_datetime
from treering.engines.memory.engine import MemoryEngine
from treering.engines.sqlite.engine import open_sqlite
from treering.errors import InvalidInput
from treering.importers.ciana import import_ciana
from treering.store import Store

TASK = {
    "id": "a1b2c3d4",
    "prompt": "Check the weather forecast and send me a summary",
    "type": "cron",
    "value": "0 8 * * *",
    "channel": "telegram",
    "chat_id": "123456",
    "created_at": "2026-02-24T10:00:00+00:00",
    "last_run": "2026-02-25T08:00:12+00:00",
    "active": True,
}


@pytest.fixture
def clock():
    return ManualClock(from_datetime(datetime(2026, 2, 24, 10, tzinfo=UTC)))


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path, clock):
    if request.param == "memory":
        engine = MemoryEngine(clock=clock)
    else:
        engine = open_sqlite(tmp_path, blobs=FolderBlobs(tmp_path / "blobs", clock=clock), clock=clock)
    with Store(engine, clock=clock) as opened:
        yield opened


@pytest.fixture
def agent(store):
    """A scheduler with an agent that answers, and a channel that receives the answers."""
    sent = []

    async def answer(occurrence):
        return f"{occurrence.prompt}: done"

    async def send(occurrence, result):
        sent.append((occurrence.channel, occurrence.chat_id, result))

    worker = store.schedules.worker(answer, deliver=send)

    def check_and_run():
        worker.tick()
        assert worker.idle(30)
        return sent

    yield check_and_run
    worker.drain()


def test_the_documented_task_from_creation_to_its_run(store, clock, agent):
    task = store.schedules.schedule_task(
        TASK["prompt"], "cron", "0 8 * * *", channel="telegram", chat_id="123456"
    )
    assert re.fullmatch("[0-9a-f]{8}", task.id)
    assert task.to_dict() == {**TASK, "id": task.id, "last_run": None}
    assert agent() == []
    clock.advance(seconds=22 * 3600 + 12)
    assert agent() == [("telegram", "123456", f"{TASK['prompt']}: done")]
    (now,) = store.schedules.list_tasks()
    assert now.to_dict() == {**TASK, "id": task.id}
    assert now.thread_id == f"scheduler_{task.id}"


def test_an_interval_task_runs_at_every_interval(store, clock, agent):
    task = store.schedules.schedule_task("p", "interval", "3600", channel="telegram", chat_id="1")
    for hour in range(1, 4):
        clock.advance(seconds=3599)
        assert len(agent()) == hour - 1
        clock.advance(seconds=1)
        assert len(agent()) == hour
    assert store.schedules.load(task.id).active


def test_a_once_task_is_deactivated_after_its_run(store, clock, agent):
    task = store.schedules.schedule_task("p", "once", "2026-02-24T12:00:00+00:00")
    clock.advance(seconds=7199)
    assert agent() == []
    clock.advance(seconds=1)
    assert len(agent()) == 1
    done = store.schedules.load(task.id)
    assert (done.active, str(done.last_run)) == (False, "2026-02-24 12:00:00+00:00")
    clock.advance(seconds=86_400)
    assert len(agent()) == 1
    assert store.schedules.list_tasks() == []


def test_a_cancelled_task_stays_listed_and_never_runs(store, clock, agent):
    task = store.schedules.schedule_task("p", "interval", 60)
    store.schedules.cancel_task(task.id)
    clock.advance(seconds=3600)
    assert agent() == []
    assert [each.to_dict()["active"] for each in store.schedules.list_tasks(all=True)] == [False]


@pytest.mark.parametrize(
    "type, value", [("cron", "every day"), ("interval", "0"), ("once", "2020-01-01T00:00:00+00:00"), ("", "")]
)
def test_an_invalid_schedule_is_rejected(store, type, value):
    with pytest.raises(InvalidInput):
        store.schedules.schedule_task("p", type, value)
    assert store.schedules.list_tasks(all=True) == []


def test_a_restarted_scheduler_runs_the_newest_missed_occurrence_and_reports_the_others(store, clock, agent):
    task = store.schedules.cron("0 8 * * *", prompt="p", tz="Europe/Berlin")
    clock.advance(seconds=5 * 86_400)
    assert len(agent()) == 1
    ran, skipped = store.schedules.occurrences(task.id)
    assert (ran.outcome, str(ran.scheduled_at)) == ("ok", "2026-03-01 07:00:00+00:00")
    assert (skipped.count, str(skipped.scheduled_at)) == (4, "2026-02-25 07:00:00+00:00")
    assert skipped.reason.startswith("missed")


def test_tools_and_schedulers_change_tasks_concurrently(tmp_path):
    """The scheduler reads and writes tasks while the agent creates and pauses them."""

    async def race(store):
        ran = []

        async def handler(occurrence):
            ran.append(occurrence.prompt)

        async def tools(number):
            task = await store.schedules.schedule_task(str(number), "interval", 86_400)
            await store.schedules.run_now(task.id)
            if number % 2:
                await store.schedules.pause(task.id)
            return task.id

        async with (
            store.schedules.worker(handler, poll_seconds=0.005),
            store.schedules.worker(handler, poll_seconds=0.005),
        ):
            made = await asyncio.gather(*map(tools, range(30)))
            while any([(await store.schedules.load(each)).open_occurrences for each in made]):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        return made, ran

    async def main():
        async with treering.open_async(tmp_path / "store") as store:
            made, ran = await race(store)
            assert len({task.id for task in await store.schedules.list_tasks()}) == 30
            assert len(ran) == len(set(ran)), "no task ran twice"
            reports = [report async for report in store.schedules.occurrences()]
            assert sorted(report.task_id for report in reports) == sorted(made), "each ran or was skipped"

    asyncio.run(main())


_SCHEDULER = """
import sys, treering
with treering.open(sys.argv[1]) as store:
    task = store.schedules.interval(0.05, prompt="tick")
    def handler(occurrence):
        print(occurrence.task_id, occurrence.scheduled_at_us, flush=True)
    store.schedules.worker(handler).run()
"""


def test_tasks_survive_a_kill(tmp_path):
    scheduler = subprocess.Popen(
        [sys.executable, "-c", _SCHEDULER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    )
    lines = [scheduler.stdout.readline().split() for _ in range(4)]
    os.kill(scheduler.pid, signal.SIGKILL)
    scheduler.communicate()
    with treering.open(tmp_path / "store") as store:
        (task,) = store.schedules.list_tasks()
        assert {task_id for task_id, _ in lines} == {task.id}
        finished = {
            str(report.scheduled_at_us) for report in store.schedules.occurrences() if report.outcome == "ok"
        }
        assert {at for _, at in lines[:3]} <= finished
        assert task.last_run_us >= int(lines[-1][1])


def test_the_documented_file_is_imported_once(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    hour = timedelta(hours=1)
    soon = (datetime.now(UTC) + hour).isoformat()
    tasks = [
        TASK,
        {**TASK, "id": "00000001", "type": "interval", "value": "3600", "last_run": None},
        {**TASK, "id": "00000002", "type": "once", "value": soon, "last_run": None},
        {**TASK, "id": "00000003", "type": "once", "value": "2026-02-25T00:00:00+00:00", "active": False},
        {**TASK, "id": "00000004", "active": False},
        {**TASK, "id": "00000005", "value": "not a line"},
        {"id": "00000006"},
    ]
    (data / "scheduled_tasks.json").write_text(json.dumps(tasks))
    with treering.open(tmp_path / "store") as store:
        for dry_run in (True, False):
            (report,) = import_ciana(data, store, dry_run=dry_run).files
            assert (report.holds, report.found, report.new, report.left_out) == ("scheduled tasks", 7, 5, 2)
            assert [each.split(":")[0] for each in report.bad] == ["task 6", "task 7"]
            assert len(store.schedules.list_tasks(all=True)) == (0 if dry_run else 5)
        (again,) = import_ciana(data, store).files
        assert (again.new, again.known) == (0, 5)
        kept = {task.id: task for task in store.schedules.list_tasks(all=True)}
        assert kept["a1b2c3d4"].to_dict() == TASK
        assert [task.id for task in store.schedules.list_tasks()] == ["00000001", "00000002", "a1b2c3d4"]
        assert (kept["00000003"].status, kept["00000004"].status) == ("done", "cancelled")
        now = datetime.now(UTC)
        assert now < kept["a1b2c3d4"].next_run < now + 25 * hour
        assert now < kept["00000001"].next_run <= now + hour
        assert kept["00000002"].next_run.isoformat() == soon
