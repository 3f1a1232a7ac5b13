"""Worker processes killed while handlers run: no occurrence is lost, none is claimed twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import takewhile

import pytest

import treering
from treering.core.encoding import decode_json
from treering.core.query import EventQuery
from treering.schedules.tasks import Policy

PATIENT = Policy(catch_up="all", catch_up_max=200, overlap="allow")


class Fleet:
    """Worker processes on one store, and the log of their handlers."""

    def __init__(self, url, log):
        self.url = str(url)
        self.log = log
        self.workers = []

    def start(self, count):
        command = [sys.executable, "-m", "treering", "worker", "--store", self.url]
        command += ["--handler", "tests.schedules.logging_handler:handle", "--lease", "2"]
        environment = os.environ | {"TREERING_TEST_LOG": str(self.log)}
        started = [
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        self.workers += started
        return started

    def lines(self):
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def until(self, is_so):
        """Wait for a condition; fail at once if all workers have exited."""
        deadline = time.monotonic() + 120
        while not is_so():
            assert any(worker.poll() is None for worker in self.workers), "all workers have exited"
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.02)

    def end(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.communicate()


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = tmp_path / "store"
    made = Fleet(url, tmp_path / "log")
    yield made
    made.end()


def claims(store):
    """Count the claims by task, due time and attempt."""
    found, after = Counter(), None
    while True:
        page = store.engine.scan(store.space, EventQuery(kinds=("occurrence.claimed",)), after=after)
        for record in page.records:
            facts = decode_json(record.event.data)
            found[record.event.name, facts["at_us"], facts["attempt"]] += 1
        if page.cursor is None:
            return found
        after = page.cursor


def accounted(store, task):
    """Return the due times of all occurrences that the journal reports as finished or skipped."""
    times = []
    for report in store.schedules.occurrences(task.id):
        if not report.manual:
            first, last = report.scheduled_at_us, report.last_scheduled_at_us
            row = list(takewhile(last.__ge__, task.timing.after(first - 1)))
            assert len(row) == report.count
            times += row
    return sorted(times)


def test_killed_workers_lose_nothing_and_nothing_is_claimed_twice(fleet):
    with treering.open(fleet.url) as store:
        held = [store.schedules.interval(86_400, prompt="hold") for _ in range(6)]
        victims = fleet.start(3)
        for task in held:
            store.schedules.run_now(task.id)
        fleet.until(lambda: len({line[1] for line in fleet.lines() if line[-1] == "hold"}) == 6)
        ticking = [store.schedules.interval(0.2, prompt="tick", policy=PATIENT) for _ in range(10)]
        (survivor,) = fleet.start(1)
        fleet.until(
            lambda: len(fleet.lines()) > 60 and str(survivor.pid) in {line[0] for line in fleet.lines()}
        )
        for victim in victims:
            victim.kill()
        fleet.until(lambda: all(store.schedules.load(task.id).runs == 1 for task in held))
        for task in ticking:
            store.schedules.pause(task.id)
        fleet.until(lambda: not any(store.schedules.load(task.id).open_occurrences for task in ticking))
        survivor.send_signal(signal.SIGTERM)
        _, stderr = survivor.communicate(timeout=60)
        assert survivor.returncode == 0, stderr
        assert "worker stopped" in stderr

        assert set(claims(store).values()) == {1}
        for task in held:
            (report,) = store.schedules.occurrences(task.id)
            # On a starved machine a live worker can lose its lease, which costs one more attempt.
            assert (report.outcome, report.result) == ("ok", report.attempt)
            assert report.attempt >= 2
        executed = {(line[1], int(line[2])) for line in fleet.lines()}
        for task in ticking:
            following = store.schedules.load(task.id).next_run_us
            occurred = task.timing.after(task.created_at_us)
            assert accounted(store, task) == list(takewhile(following.__gt__, occurred))
            ran = [each for each in store.schedules.occurrences(task.id) if each.outcome != "skipped"]
            assert {each.outcome for each in ran} == {"ok"}
            assert {(task.id, each.scheduled_at_us) for each in ran} <= executed
        assert store.verify().ok


def test_a_worker_drains_on_sigterm(fleet):
    with treering.open(fleet.url) as store:
        task = store.schedules.interval(86_400, prompt="quick")
        (worker,) = fleet.start(1)
        store.schedules.run_now(task.id)
        fleet.until(lambda: bool(fleet.lines()))
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
        assert worker.returncode == 0
        (report,) = store.schedules.occurrences(task.id)
        assert report.outcome == "ok"
        store.flush()
        assert store.runs.load(report.run_id).status == "ok"
