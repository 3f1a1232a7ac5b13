"""A store behind a server on this machine, beside the same store opened directly.

Both are SQLite with `full` durability. What is measured is the price of the gateway itself (HTTP, two
processes, no network in between): a request costs what it costs whatever it carries, so one commit at a time
shows it most, and work that travels together hardly at all.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import treering
from benchmarks.otlp import Server
from benchmarks.report import Measurement, Section, at_least, at_most, in_turns, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treering.store import Store

STEPS = int(os.environ.get("TREERING_BENCH_STEPS", "300"))
AGENTS = 8
BATCHES = 2000
FILES = 400
TURNS = 3
TEXT = "What was said at this step, in about a kilobyte. " * 20

_numbers = itertools.count()


def run(scratch: Path) -> Section:
    """Measure what an agent waits for."""
    server = Server(scratch / "served")
    try:
        with treering.open(server.url) as remote, treering.open(scratch / "local") as local:
            rows = [
                _appends(remote, local),
                _loads(remote, local),
                _agents(remote, local),
                _submits(remote, local),
                _snapshots(remote, local, scratch),
            ]
    finally:
        server.kill()
    return Section(
        title="Remote",
        about=(
            "A server process over a folder, reached over the loopback; the peer is the same work on a "
            f"folder that is opened directly. 1 KB a message; {STEPS} steps, {AGENTS} agents, {BATCHES:,} "
            f"batches, {FILES} files of 50 KB. Targets are what a gateway may cost."
        ),
        measurements=rows,
    )


def _appends(remote: Store, local: Store) -> Measurement:
    def steps(store: Store) -> float:
        thread = store.thread(f"thread {next(_numbers)}")
        return seconds_of(lambda: [thread.append({"role": "user", "content": TEXT}) for _ in range(STEPS)])

    ours, peer = _best(steps, remote, local)
    target, met = at_most(ours / peer, 6)
    return Measurement(
        claim="append, one at a time",
        ours=f"{ours / STEPS * 1e3:.2f} ms",
        peer=f"{peer / STEPS * 1e3:.2f} ms",
        ratio=ours / peer,
        target=target,
        met=met,
    )


def _loads(remote: Store, local: Store) -> Measurement:
    for store in (remote, local):
        store.thread("long").append(*[{"role": "user", "content": TEXT} for _ in range(1000)])

    def load(store: Store) -> float:
        return min(seconds_of(lambda: store.thread("long").load().messages) for _ in range(10))

    ours, peer = _best(load, remote, local)
    target, met = at_most(ours / peer, 6)
    return Measurement(
        claim="load a thread of 1,000 messages",
        ours=f"{ours * 1e3:.1f} ms",
        peer=f"{peer * 1e3:.1f} ms",
        ratio=ours / peer,
        target=target,
        met=met,
    )


def _agents(remote: Store, local: Store) -> Measurement:
    def together(store: Store) -> float:
        threads = [store.thread(f"agent {next(_numbers)}") for _ in range(AGENTS)]

        def work(index: int) -> None:
            for _ in range(STEPS // 4):
                threads[index].append({"role": "user", "content": TEXT})

        with ThreadPoolExecutor(AGENTS) as pool:
            return seconds_of(lambda: list(pool.map(work, range(AGENTS))))

    ours, peer = _best(together, remote, local)
    count = AGENTS * (STEPS // 4)
    target, met = at_least(peer / ours, 0.25)
    return Measurement(
        claim=f"{AGENTS} agents at once",
        ours=f"{count / ours:.0f} steps/s",
        peer=f"{count / peer:.0f} steps/s",
        ratio=peer / ours,
        target=target,
        met=met,
    )


def _submits(remote: Store, local: Store) -> Measurement:
    def background(store: Store) -> float:
        drafts = []
        for _ in range(BATCHES):
            draft = store.draft()
            draft.set_ref(f"ref {next(_numbers)}", TEXT.encode(), scope="/bench/x")
            drafts.append(draft)
        return seconds_of(lambda: [future.result() for future in [store.submit(each) for each in drafts]])

    ours, peer = _best(background, remote, local)
    target, met = at_least(peer / ours, 0.5)
    return Measurement(
        claim="submitted in the background",
        ours=f"{BATCHES / ours:.0f} batches/s",
        peer=f"{BATCHES / peer:.0f} batches/s",
        ratio=peer / ours,
        target=target,
        met=met,
    )


def _snapshots(remote: Store, local: Store, scratch: Path) -> Measurement:
    def snapshot(store: Store) -> float:
        folder = scratch / f"files {next(_numbers)}"
        folder.mkdir()
        for number in range(FILES):
            (folder / f"{number}.bin").write_bytes(os.urandom(50_000))
        return seconds_of(lambda: store.workspace.snapshot(folder))

    ours, peer = _best(snapshot, remote, local)
    size = FILES * 50_000 / 1e6
    target, met = at_least(peer / ours, 0.4)
    return Measurement(
        claim="snapshot of new files",
        ours=f"{size / ours:.0f} MB/s",
        peer=f"{size / peer:.0f} MB/s",
        ratio=peer / ours,
        target=target,
        met=met,
    )


def _best(job: Callable[[Store], float], remote: Store, local: Store) -> list[float]:
    return in_turns(TURNS, lambda: job(remote), lambda: job(local))
