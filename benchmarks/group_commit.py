"""64 concurrent writers at full durability: group commit against 64 threads that fsync alone."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from benchmarks.report import Measurement, Section, at_least, in_turns
from benchmarks.work import BARE_TABLES, bare_step, open_bare, open_store, step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRITERS = 64
EACH = 40


def run(scratch: Path) -> Section:
    """Measure commits a second."""
    engine = open_store(scratch / "store", "full")
    bare_path = scratch / "bare.db"
    setup = open_bare(bare_path, "full")
    setup.executescript(BARE_TABLES)
    setup.close()
    connections = [open_bare(bare_path, "full", busy_seconds=60) for _ in range(WRITERS)]

    def ours() -> float:
        return _together(
            lambda writer: [engine.commit(step(number, thread=f"t{writer}")) for number in range(EACH)]
        )

    def peer() -> float:
        return _together(
            lambda writer: [
                bare_step(connections[writer], number, thread=f"t{writer}") for number in range(EACH)
            ]
        )

    mine, theirs = in_turns(3, ours, peer)
    engine.close()
    for connection in connections:
        connection.close()
    rate, peer_rate = WRITERS * EACH / mine, WRITERS * EACH / theirs
    target, met = at_least(rate / peer_rate, 5)
    return Section(
        title="Group commit",
        about=(
            f"{WRITERS} threads, {EACH} durable commits each. The peer's threads have a connection each, "
            "with SQLite's busy handler, and commit alone."
        ),
        measurements=[
            Measurement(
                claim=f"{WRITERS} writers, `full`",
                ours=f"{rate:.0f} commits/s",
                peer=f"{peer_rate:.0f} commits/s",
                ratio=rate / peer_rate,
                target=target,
                met=met,
            )
        ],
    )


def _together(work: Callable[[int], object]) -> float:
    barrier = threading.Barrier(WRITERS + 1)

    def one(writer: int) -> None:
        barrier.wait()
        work(writer)

    threads = [threading.Thread(target=one, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start
