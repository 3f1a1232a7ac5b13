"""Servers: workers of one port, a project that moves while it is written to, and a primary that dies.

There is no peer for these. Several workers are compared with one process on the same work; the pauses that
writers notice, with limits that we set ourselves.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
from tests.servers.fleet import opened
from tests.servers.postgres import PostgresServer, kill_machine, replicated_cluster

import treering
from benchmarks.postgres import make_durable
from benchmarks.report import Measurement, Section, at_least, at_most
from treering.testing.batches import call, events

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

WORKERS = 2
CLIENTS = 8
SECONDS = float(os.environ.get("TREERING_BENCH_SECONDS", "5"))
EVENTS = int(os.environ.get("TREERING_BENCH_EVENTS", "100000"))
MOVE_PAUSE, FAILOVER_PAUSE = 1.0, 5.0


def run(scratch: Path) -> Section:
    """Start servers and measure."""
    del scratch
    with opened() as fleet:
        server = PostgresServer(**fleet.address("postgres"))
        make_durable(server.url("postgres"))
        measurements = [_workers(server), _move(server)]
    return Section(
        title="Servers",
        about=(
            f"{CLIENTS} clients over HTTP, for {SECONDS:g} s each; a project of {EVENTS:,} events that moves "
            "to another database under load; a PostgreSQL primary that is killed, and its standby promoted."
        ),
        measurements=[*measurements, _failover()],
    )


def _workers(server: PostgresServer) -> Measurement:
    rates: dict[int, float] = {}
    for workers in (1, WORKERS):
        with _serving(server.create_store(), workers) as url:
            rates[workers] = _requests_per_second(url)
    ratio = rates[WORKERS] / rates[1]
    target, met = at_least(ratio, 1.2)
    return Measurement(
        claim=f"small writes/s with --workers {WORKERS}, against one process",
        ours=f"{rates[WORKERS]:,.0f}/s",
        peer=f"{rates[1]:,.0f}/s",
        ratio=ratio,
        target=target,
        met=met,
        note="clients and database share the two cores",
    )


@contextmanager
def _serving(url: str, workers: int) -> Generator[str]:
    command = [
        sys.executable,
        "-m",
        "treering",
        "serve",
        "--port",
        "0",
        "--store",
        url,
        "--workers",
        str(workers),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+(?=;)", process.stderr.readline())
        assert found is not None
        try:
            yield found[0]
        finally:
            process.terminate()


def _requests_per_second(url: str) -> float:
    over = threading.Event()

    def put(number: int) -> int:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        count = 0
        while not over.is_set():
            body = json.dumps({"value": count})
            connection.request("PUT", f"/state/key-{number}", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            count += answer.status == http.HTTPStatus.OK
        return count

    with ThreadPoolExecutor(CLIENTS) as pool:
        counting = [pool.submit(put, number) for number in range(CLIENTS)]
        time.sleep(SECONDS)
        over.set()
        return sum(each.result() for each in counting) / SECONDS


def _move(server: PostgresServer) -> Measurement:
    home, cell = server.create_store(), server.create_store()
    with treering.open(home, namespace="acme") as store:
        for _ in range(EVENTS // 500):
            store.commit(events("acme", *(call() for _ in range(500))))
        with _writing(home, "acme") as longest:
            report = store.move_project(cell)
    ratio = report.pause_seconds / MOVE_PAUSE
    target, met = at_most(ratio, 1)
    return Measurement(
        claim="pause of writers while their project moves",
        ours=f"{report.pause_seconds * 1000:.0f} ms",
        peer=f"{MOVE_PAUSE * 1000:.0f} ms",
        ratio=ratio,
        target=target,
        met=met,
        note=f"{report.rows:,} rows, {report.bytes / 1e6:.0f} MB in {report.seconds:.1f} s; "
        f"the slowest write took {max(longest) * 1000:.0f} ms",
    )


@contextmanager
def _writing(url: str, namespace: str) -> Generator[list[float]]:
    """Commit one after the other in a thread; the list gets the seconds of each."""
    over = threading.Event()
    took: list[float] = []

    def write() -> None:
        with treering.open(url, namespace=namespace) as store:
            while not over.is_set():
                begun = time.perf_counter()
                store.state.set("k", len(took))
                took.append(time.perf_counter() - begun)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield took
        finally:
            over.set()
            writing.result()


def _failover() -> Measurement:
    with replicated_cluster() as (primary, standby):
        url = ",".join(f"127.0.0.1:{each.address['port']}" for each in (primary, standby))
        with _writing(f"postgresql://treering@{url}/postgres", "default") as took:
            while len(took) < 200:
                time.sleep(0.05)
            kill_machine(primary)
            with psycopg.connect(
                PostgresServer(**standby.address).url("postgres"), autocommit=True
            ) as connection:
                connection.execute("SELECT pg_promote()")
            acknowledged = len(took)
            while len(took) < acknowledged + 50:
                time.sleep(0.05)
    ratio = max(took) / FAILOVER_PAUSE
    target, met = at_most(ratio, 1)
    return Measurement(
        claim="slowest write over the death of a primary, with no error",
        ours=f"{max(took):.2f} s",
        peer=f"{FAILOVER_PAUSE:g} s",
        ratio=ratio,
        target=target,
        met=met,
        note=f"{len(took):,} writes, all acknowledged; how soon a standby is promoted is up to its operator",
    )
