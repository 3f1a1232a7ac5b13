"""Many writers: processes that append to threads of one space on PostgreSQL, beside bare psycopg.

Each process appends messages to a thread of its own, as fast as it can. The peer is psycopg by hand: one
transaction with two rows, a message and the head of its thread. Both run on the same server in alternating
turns, at the machine's own commit latency and at 3 ms (``commit_delay``), which is what a network disk or a
synchronous replica costs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING, Any

import psycopg
from tests.servers.fleet import opened
from tests.servers.postgres import PostgresServer

import treering
from benchmarks.postgres import make_durable
from benchmarks.report import Measurement, Section, at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WRITERS = int(os.environ.get("TREERING_BENCH_WRITERS", "8"))
SECONDS = float(os.environ.get("TREERING_BENCH_SECONDS", "3"))
TURNS = int(os.environ.get("TREERING_BENCH_TURNS", "3"))
MESSAGE = {"role": "user", "content": "What is the weather in Paris today, and should I take an umbrella?"}
BARE_TABLES = """
CREATE TABLE IF NOT EXISTS bare_message (thread text, no bigint, body jsonb, PRIMARY KEY (thread, no));
CREATE TABLE IF NOT EXISTS bare_head (thread text PRIMARY KEY, no bigint NOT NULL);
"""
Race = list[int]
"""Commits of each process."""


def run(scratch: Path) -> Section:
    """Start a server and measure at two latencies."""
    del scratch
    with opened() as fleet:
        server = PostgresServer(**fleet.address("postgres"))
        make_durable(server.url("postgres"))
        measurements = [*_at_latency(server, 0), *_at_latency(server, 3000)]
        _set_latency(server, 0)
    return Section(
        title="Many writers",
        about=(
            f"{WRITERS} processes append to threads of one space on PostgreSQL, each for {SECONDS:g} s; best "
            f"of {TURNS} turns. The peer is psycopg by hand: two rows in a transaction. With fsync, over TCP."
        ),
        measurements=measurements,
    )


def _at_latency(server: PostgresServer, delay_us: int) -> Iterator[Measurement]:
    _set_latency(server, delay_us)
    url = server.create_database()
    bare_url = server.create_database()
    with psycopg.connect(bare_url) as connection:
        connection.execute(BARE_TABLES)
    treering.open(url).close()
    latency = f"commit_delay = {delay_us}" if delay_us else "no delay"
    for writers in (1, WRITERS):
        ours, bare = _turns(url, bare_url, _own_thread, _bare, writers=writers)
        yield _row(f"{writers} writer{'s' * (writers > 1)}, one space, {latency}", ours, bare, 0.8)
    ours, bare = _turns(url, bare_url, _one_thread, _bare_one_head, writers=WRITERS)
    yield _row(f"{WRITERS} writers on one head, {latency}", ours, bare, 0.0, shares=True)


def _row(claim: str, ours: Race, bare: Race, limit: float, *, shares: bool = False) -> Measurement:
    ratio = sum(ours) / sum(bare)
    target, met = at_least(ratio, limit)
    if shares:
        target, met = "each makes progress", min(ours) > 0
    return Measurement(
        claim=claim,
        ours=f"{sum(ours) / SECONDS:,.0f}/s",
        peer=f"{sum(bare) / SECONDS:,.0f}/s",
        ratio=ratio,
        target=target,
        met=met,
        note=f"slowest process {min(ours)} commits, fastest {max(ours)}",
    )


def _turns(
    url: str, bare_url: str, our_work: Callable[..., None], bare_work: Callable[..., None], *, writers: int
) -> tuple[Race, Race]:
    races: tuple[list[Race], list[Race]] = [], []
    for _ in range(TURNS):
        races[0].append(_race(our_work, url, writers))
        races[1].append(_race(bare_work, bare_url, writers))
    return max(races[0], key=sum), max(races[1], key=sum)


def _set_latency(server: PostgresServer, delay_us: int) -> None:
    """Make every commit wait, whether or not others are about to commit too."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET commit_delay = {delay_us}")
        connection.execute("ALTER SYSTEM SET commit_siblings = 0")
        connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.5)


def _race(work: Callable[..., None], url: str, writers: int) -> Race:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    barrier = context.Barrier(writers)
    workers = [
        context.Process(target=work, args=(url, number, barrier, results)) for number in range(writers)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return found


def _own_thread(url: str, number: int, barrier: Any, results: Any) -> None:
    _append(url, f"bench-{number}-{time.time_ns()}", barrier, results)


def _one_thread(url: str, number: int, barrier: Any, results: Any) -> None:
    del number
    _append(url, "hot", barrier, results)


def _append(url: str, name: str, barrier: Any, results: Any) -> None:
    with treering.open(url) as store:
        thread = store.thread(name)
        thread.append(MESSAGE, on_conflict="retry")
        _commit_for_a_while(lambda: thread.append(MESSAGE, on_conflict="retry"), barrier, results)


def _bare(url: str, number: int, barrier: Any, results: Any) -> None:
    _insert(url, f"bench-{number}-{time.time_ns()}", barrier, results)


def _bare_one_head(url: str, number: int, barrier: Any, results: Any) -> None:
    del number
    _insert(url, "hot", barrier, results)


def _insert(url: str, name: str, barrier: Any, results: Any) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO bare_head VALUES (%s, 0) ON CONFLICT DO NOTHING", (name,))

        def commit() -> None:
            with connection.transaction():
                (no,) = connection.execute(
                    "UPDATE bare_head SET no = no + 1 WHERE thread = %s RETURNING no", (name,)
                ).fetchone() or (0,)
                connection.execute(
                    "INSERT INTO bare_message VALUES (%s, %s, %s)", (name, no, json.dumps(MESSAGE))
                )

        _commit_for_a_while(commit, barrier, results)


def _commit_for_a_while(commit: Callable[[], object], barrier: Any, results: Any) -> None:
    for _ in range(20):
        commit()
    barrier.wait()
    end = time.perf_counter() + SECONDS
    count = 0
    while time.perf_counter() < end:
        commit()
        count += 1
    results.put(count)
