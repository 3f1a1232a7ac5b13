"""Eight processes on one SQLite store at full durability: throughput, fairness, worst wait."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING

from benchmarks.report import Measurement, Section, at_least, at_most
from benchmarks.work import BARE_TABLES, bare_step, open_bare, open_store, step
from treering.engines.sqlite.connection import WriterQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Race = list[tuple[int, float]]
"""Commits and longest wait of each process."""

PROCESSES = 8
SECONDS = 4.0
TURNS = 3


def run(scratch: Path) -> Section:
    """Measure three turns of each, one after the other, and compare the best throughputs."""
    races: dict[str, list[Race]] = {"ours": [], "handler": [], "bare": []}
    for turn in range(TURNS):
        for name, runner in (("ours", _ours), ("handler", _with_sqlites_handler), ("bare", _bare)):
            races[name].append(_race(runner, scratch / f"{name}-{turn}"))
    ours, handler, bare = (max(each, key=sum_of) for each in races.values())
    return Section(
        title="Eight processes on one SQLite store",
        about=(
            f"Each commits for {SECONDS:g} s at `full`, as fast as it can. Two peers wait in SQLite's busy "
            "handler: treering itself without its turns, and three bare inserts by hand, which write less."
        ),
        measurements=[
            _throughput("SQLite's handler under the same engine", ours, handler),
            _throughput("SQLite's handler under three bare inserts", ours, bare),
            _row(
                "slowest / fastest process", fairness(ours), fairness(handler), fairness(ours), 0.5, "{:.2f}"
            ),
            Measurement(
                claim="worst wait, against 0.5 s",
                ours=f"{worst_wait(ours):.2f} s",
                peer=f"{worst_wait(handler):.2f} s",
                ratio=worst_wait(ours) / 0.5,
                target=at_most(worst_wait(ours) / 0.5, 1)[0],
                met=at_most(worst_wait(ours) / 0.5, 1)[1],
            ),
        ],
    )


def fairness(race: Race) -> float:
    """The slowest process against the fastest."""
    return min(count for count, _ in race) / max(count for count, _ in race)


def worst_wait(race: Race) -> float:
    """The longest that any commit took."""
    return max(wait for _, wait in race)


def sum_of(race: Race) -> int:
    """Commits of all processes."""
    return sum(count for count, _ in race)


def _throughput(peer: str, ours: Race, theirs: Race) -> Measurement:
    ratio = sum_of(ours) / sum_of(theirs)
    return _row(
        f"throughput, against {peer}",
        sum_of(ours) / SECONDS,
        sum_of(theirs) / SECONDS,
        ratio,
        0.9,
        "{:.0f}/s",
    )


def _row(claim: str, ours: float, peer: float, ratio: float, limit: float, form: str) -> Measurement:
    target, met = at_least(ratio, limit)
    return Measurement(
        claim=claim, ours=form.format(ours), peer=form.format(peer), ratio=ratio, target=target, met=met
    )


def _race(runner: Callable[..., None], path: Path) -> Race:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    barrier = context.Barrier(PROCESSES)
    if runner is _bare:
        setup = open_bare(path, "full")
        setup.executescript(BARE_TABLES)
        setup.close()
    else:
        open_store(path, "full").close()
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


def _with_sqlites_handler(path: Path, number: int, barrier: object, results: object) -> None:
    engine = open_store(path, "full")
    engine._database.queue = NoQueue(path)
    engine._database.writer().execute("PRAGMA busy_timeout = 60000")
    _commit_for_a_while(lambda count: engine.commit(step(count, thread=f"p{number}")), barrier, results)
    engine.close()


class NoQueue(WriterQueue):
    """Everyone goes to the database at once, where SQLite's handler makes them wait."""

    def enter(self, seconds: float) -> None:
        """Go on."""

    def leave(self) -> None:
        """Go on."""


def _bare(path: Path, number: int, barrier: object, results: object) -> None:
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
