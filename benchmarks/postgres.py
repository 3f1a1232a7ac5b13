"""PostgreSQL: one batch of 500 events against 500 commits, and eight processes on one store."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

import psycopg
from tests.servers.fleet import opened
from tests.servers.postgres import PostgresServer

from benchmarks.report import Measurement, Section, at_least, in_turns, seconds_of
from treering.core.batch import Draft, Event
from treering.core.query import EventQuery
from treering.engines.postgres import open_postgres

if TYPE_CHECKING:
    from pathlib import Path

    from treering.core.batch import Batch

EVENTS = 500
PROCESSES = 8
COMMITS = 100
SPACE = "default"


def run(scratch: Path) -> Section:
    """Start a server and measure."""
    del scratch
    with opened() as fleet:
        server = PostgresServer(**fleet.address("postgres"))
        make_durable(server.url("postgres"))
        url = server.create_database()
        return Section(
            title="PostgreSQL",
            about="A real server on loopback, with the settings of `tests/servers/postgres.py`.",
            measurements=[_batch(url), _processes(url)],
        )


def make_durable(url: str) -> None:
    """The tests' server does without fsync; a benchmark must not."""
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = on")
        connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)
        shown = connection.execute("SHOW fsync").fetchone()
        if shown != ("on",):
            raise SystemExit("the server did not turn fsync on")


def _batch(url: str) -> Measurement:
    engine = open_postgres(url)

    def together() -> float:
        return seconds_of(lambda: engine.commit(_events(EVENTS)))

    def alone() -> float:
        return seconds_of(lambda: [engine.commit(_events(1)) for _ in range(EVENTS)])

    engine.commit(_events(1))
    batch, single = in_turns(3, together, alone)
    engine.close()
    target, met = at_least(single / batch, 10)
    return Measurement(
        claim=f"{EVENTS} events in one batch, against {EVENTS} commits",
        ours=f"{batch * 1e3:.1f} ms",
        peer=f"{single * 1e3:.1f} ms",
        ratio=single / batch,
        target=target,
        met=met,
    )


def _processes(url: str) -> Measurement:
    context = multiprocessing.get_context("spawn")
    engine = open_postgres(url)
    space = f"race-{time.time_ns()}"
    start = time.perf_counter()
    workers = [context.Process(target=_write, args=(url, space, number)) for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    elapsed = time.perf_counter() - start
    found, after = 0, None
    while True:
        page = engine.scan(space, EventQuery(), after=after, limit=5000)
        found += len(page.records)
        if page.cursor is None:
            break
        after = page.cursor
    engine.close()
    kept = found / (PROCESSES * COMMITS)
    failed = sum(worker.exitcode != 0 for worker in workers)
    return Measurement(
        claim=f"{PROCESSES} processes x {COMMITS} commits: kept of what was acknowledged",
        ours=f"{found} events, {failed} failures",
        peer=f"{PROCESSES * COMMITS} committed",
        ratio=kept,
        target="= 1x, no deadlock",
        met=found == PROCESSES * COMMITS and not failed,
        note=f"{PROCESSES * COMMITS / elapsed:.0f} commits/s with the processes' start included",
    )


def _write(url: str, space: str, number: int) -> None:
    engine = open_postgres(url)
    for _ in range(COMMITS):
        engine.commit(_events(1, space=space, thread=f"p{number}"))
    engine.close()


def _events(count: int, *, space: str = SPACE, thread: str = "bench") -> Batch:
    draft = Draft(space)
    for number in range(count):
        draft.event(
            Event(
                id=f"{draft.id}-{number}",
                kind="step",
                ts_us=time.time_ns() // 1000,
                scope=f"/thread/{thread}",
                thread=thread,
                data=b'{"step":1}',
            )
        )
    return draft.batch()
