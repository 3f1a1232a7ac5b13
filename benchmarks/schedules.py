"""Eight worker processes and a thousand tasks due every second; seven workers are killed half-way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING

import treering
from benchmarks.report import Measurement, Section, at_least, at_most
from treering.core.encoding import decode_json
from treering.core.query import EventQuery
from treering.schedules.tasks import Policy

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 8
TASKS = 1000
ROUNDS = 20
LEASE_SECONDS = 5.0
POLICY = Policy(catch_up="all", catch_up_max=200, overlap="allow")


def run(scratch: Path) -> Section:
    """Run the workers, kill most of them, and account for every occurrence."""
    folder = scratch / "store"
    with treering.open(folder) as store:
        killed_us = _run_and_kill(store, folder)
        claims, again = _claims(store, killed_us)
        ran, missing, late = _account(store)
    doubles = sum(count - 1 for count in claims.values())
    waited = max(again, default=0.0)
    return Section(
        title="Schedules when workers are killed",
        about=(
            f"{WORKERS} workers on one SQLite store at `full`, {TASKS} tasks of one second for {ROUNDS} s; "
            f"{WORKERS - 1} workers are killed with SIGKILL half-way. The right column is the guarantee."
        ),
        measurements=[
            _exact("occurrences claimed twice at once", doubles, 0),
            _exact("occurrences lost", missing, 0),
            Measurement(
                claim=f"occurrences of dead workers taken over ({len(again)} of them), worst wait",
                ours=f"{waited:.2f} s",
                peer=f"{LEASE_SECONDS + 1:.0f} s",
                ratio=waited / (LEASE_SECONDS + 1),
                target=at_most(waited / (LEASE_SECONDS + 1), 1)[0],
                met=at_most(waited / (LEASE_SECONDS + 1), 1)[1],
            ),
            Measurement(
                claim="occurrences run before the tasks were paused, of those due",
                ours=str(ran),
                peer=str(TASKS * ROUNDS),
                ratio=ran / (TASKS * ROUNDS),
                target=at_least(ran / (TASKS * ROUNDS), 0.9)[0],
                met=at_least(ran / (TASKS * ROUNDS), 0.9)[1],
                note=(
                    f"the median delay was {late[len(late) // 2]:.1f} s; in the second half a single "
                    "worker is left, and what it did not reach before the pause is recorded as skipped"
                ),
            ),
        ],
    )


def _run_and_kill(store: treering.Store, folder: Path) -> int:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(WORKERS + 1)
    workers = [context.Process(target=_work, args=(folder, ready)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    tasks = [store.schedules.interval(1, prompt=str(number), policy=POLICY) for number in range(TASKS)]
    ready.wait()
    time.sleep(ROUNDS / 2)
    killed_us = time.time_ns() // 1000
    for worker in workers[1:]:
        worker.kill()
    time.sleep(max(0.0, tasks[-1].created_at_us / 1e6 + ROUNDS + 0.5 - time.time()))
    deadline = time.monotonic() + 120
    paused = [store.schedules.pause(task.id) for task in tasks]
    while (
        any(store.schedules.load(task.id).open_occurrences for task in paused) and time.monotonic() < deadline
    ):
        time.sleep(0.5)
    os.kill(workers[0].pid or 0, signal.SIGTERM)
    for worker in workers:
        worker.join()
    return killed_us


def _work(folder: Path, ready: object) -> None:
    with treering.open(folder) as store:
        worker = store.schedules.worker(
            lambda _: None, lease_seconds=LEASE_SECONDS, concurrency=32, record_runs=False
        )
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        ready.wait()  # type: ignore[attr-defined]
        worker.run()


def _claims(store: treering.Store, killed_us: int) -> tuple[Counter[tuple[str, int, int]], list[float]]:
    """Count the claims of each attempt, and how long after the kill second attempts were claimed."""
    claims: Counter[tuple[str, int, int]] = Counter()
    again: list[float] = []
    after = None
    while True:
        page = store.engine.scan(
            store.space, EventQuery(kinds=("occurrence.claimed",)), after=after, limit=5000
        )
        for record in page.records:
            facts = decode_json(record.event.data or b"{}")
            claims[record.event.name or "", facts["at_us"], facts["attempt"]] += 1
            if facts["attempt"] > 1:
                again.append((record.event.ts_us - killed_us) / 1e6)
        if page.cursor is None:
            return claims, again
        after = page.cursor


def _account(store: treering.Store) -> tuple[int, int, list[float]]:
    """Return how many occurrences ran, how many are unaccounted for, and their sorted delays."""
    known: dict[str, list[int]] = {}
    ran, late = 0, []
    tasks = {task.id: task for task in store.schedules.list_tasks(all=True)}
    for report in store.schedules.occurrences():
        rest = tasks[report.task_id].timing.after(report.scheduled_at_us - 1)
        known.setdefault(report.task_id, []).extend(takewhile(report.last_scheduled_at_us.__ge__, rest))
        if report.outcome == "ok":
            ran += 1
            late.append((report.ended_at_us - report.scheduled_at_us) / 1e6)
    missing = 0
    for task in tasks.values():
        occurred = list(takewhile((task.next_run_us or 0).__gt__, task.timing.after(task.created_at_us)))
        missing += len(set(occurred) ^ set(known.get(task.id, []))) + len(task.open_occurrences)
    return ran, missing, sorted(late)


def _exact(claim: str, ours: int, wanted: int) -> Measurement:
    return Measurement(
        claim=claim, ours=str(ours), peer=str(wanted), ratio=float(ours), target="0", met=ours == wanted
    )
