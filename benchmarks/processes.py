"""Eight processes on one SQLite store at full durability: throughput, fairness, worst wait."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

from benchmarks.report import Measurement, Section, at_least, at_most
from benchmarks.work import BARE_TABLES, bare_step, open_bare, open_store, step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROCESSES = 8
SECONDS = 4.0
TURNS = 3


def run(scratch: Path) -> Section:
    """Measure three turns of each and compare the best throughputs."""
    mine = [_race(_ours, scratch / f"store-{turn}") for turn in range(TURNS)]
    theirs = [_race(_peer, scratch / f"bare-{turn}.db") for turn in range(TURNS)]
    best, peer = max(mine, key=sum_of), max(theirs, key=sum_of)
    throughput = sum_of(best) / sum_of(peer)
    fairness = min(count for count, _ in best) / max(count for count, _ in best)
    peer_fairness = min(count for count, _ in peer) / max(count for count, _ in peer)
    worst = max(wait for _, wait in best)
    peer_worst = max(wait for _, wait in peer)
    return Section(
        title="Eight processes on one SQLite store",
        about=f"Each commits for {SECONDS:g} s at `full`, as fast as it can. The peer has SQLite's handler.",
        measurements=[
            _row(
                "throughput",
                f"{sum_of(best) / SECONDS:.0f}/s",
                f"{sum_of(peer) / SECONDS:.0f}/s",
                throughput,
                0.9,
            ),
            _row("slowest / fastest process", f"{fairness:.2f}", f"{peer_fairness:.2f}", fairness, 0.5),
            Measurement(
                claim="worst wait, against 0.5 s",
                ours=f"{worst:.2f} s",
                peer=f"{peer_worst:.2f} s",
                ratio=worst / 0.5,
                target=at_most(worst / 0.5, 1)[0],
                met=at_most(worst / 0.5, 1)[1],
            ),
        ],
    )


def sum_of(race: list[tuple[int, float]]) -> int:
    """Commits of all processes."""
    return sum(count for count, _ in race)


def _row(claim: str, ours: str, peer: str, ratio: float, limit: float) -> Measurement:
    target, met = at_least(ratio, limit)
    return Measurement(claim=claim, ours=ours, peer=peer, ratio=ratio, target=target, met=met)


def _race(runner: Callable[..., None], path: Path) -> list[tuple[int, float]]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    barrier = context.Barrier(PROCESSES)
    if runner is _ours:
        open_store(path, "full").close()
    else:
        setup = open_bare(path, "full")
        setup.executescript(BARE_TABLES)
        setup.close()
    workers = [
        context.Process(target=runner, args=(path, number, barrier, results)) for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return found


def _ours(path: Path, number: int, barrier: object, results: object) -> None:
    engine = open_store(path, "full")
    _commit_for_a_while(lambda count: engine.commit(step(count, thread=f"p{number}")), barrier, results)
    engine.close()


def _peer(path: Path, number: int, barrier: object, results: object) -> None:
    connection = open_bare(path, "full", busy_seconds=60)
    _commit_for_a_while(lambda count: bare_step(connection, count, thread=f"p{number}"), barrier, results)
    connection.close()


def _commit_for_a_while(commit: Callable[[int], object], barrier, results) -> None:
    barrier.wait()
    end = time.perf_counter() + SECONDS
    count, worst = 0, 0.0
    while (start := time.perf_counter()) < end:
        commit(count)
        worst = max(worst, time.perf_counter() - start)
        count += 1
    results.put((count, worst))
