"""What digests and seals cost: the same work without salts, hashes of rows, digests of commits and seals."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import treering
from benchmarks.otlp_work import requests
from benchmarks.report import Measurement, Section, at_most, seconds_of
from treering.core import digests
from treering.core.ids import new_id
from treering.engines.sql import rows
from treering.engines.sql.commit import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from treering.store import Store

APPENDS = int(os.environ.get("TREERING_BENCH_APPENDS", "128"))
REQUESTS = 3
BLOCKS = 40
INGEST_BLOCKS = 20


def run(scratch: Path) -> Section:
    """Measure appends and ingested requests, one of ours and one of the peer's in turns; and one seal."""
    with ExitStack() as stack:
        store = stack.enter_context(treering.open(scratch / "digests"))
        stack.callback(_switch, REAL)
        other = _with(NONE, lambda: stack.enter_context(treering.open(scratch / "none")))
        stack.callback(_switch, NONE)  # to close it
        appended = _in_turns(_appends(store), _appends(other), BLOCKS, APPENDS)
        sealing = seconds_of(store.audit.seal)
        commits = store.audit.seals()[0].commits
        bodies = requests(20 * INGEST_BLOCKS * (REQUESTS + 1))  # each is new to both stores
        ingested = _in_turns(_ingests(store, bodies), _ingests(other, bodies), INGEST_BLOCKS, REQUESTS)
    return Section(
        title="Seals",
        about=(
            f"{BLOCKS} blocks of {APPENDS} appends to a thread, and {INGEST_BLOCKS} of {REQUESTS} OTLP "
            "requests, on SQLite, synced to a disk. Ours and the peer's alternate one by one, and each is "
            "first in every second turn. The peer is the same code without salts, hashes of rows, digests of "
            "commits and checksums of rows: it neither computes nor stores them. The ratio is the median "
            "over the blocks, because a shared disk is noisy; the notes have the processor's time. And one "
            "seal over the appends."
        ),
        measurements=[
            _row("append, `full`, with digests", appended, 1.05),
            _row("OTLP request of 500 spans, `full`, with digests", ingested, 1.05),
            _sealed(sealing / commits, appended, commits),
        ],
    )


@dataclass(frozen=True, kw_only=True)
class _Turns:
    """Seconds of one operation, ours and the peer's, and the median over the blocks of their ratio."""

    wall: tuple[float, float]
    cpu: tuple[float, float]
    ratio: float


def _in_turns(
    ours: Callable[[], Iterator[None]], peer: Callable[[], Iterator[None]], blocks: int, count: int
) -> _Turns:
    """Run blocks of ``count`` operations of both in turns."""
    walls: list[tuple[float, float]] = []
    cpus: list[tuple[float, float]] = []
    for block in range(blocks):
        sides = (ours(), REAL), (peer(), NONE)
        wall, cpu = [0.0, 0.0], [0.0, 0.0]
        for number in range(count + 1):  # the first one of each prepares the block
            for which in (0, 1) if (number + block) % 2 else (1, 0):
                work, functions = sides[which]
                _switch(functions)
                cpu_before, before = time.process_time(), time.perf_counter()
                next(work)
                if number:
                    wall[which] += time.perf_counter() - before
                    cpu[which] += time.process_time() - cpu_before
        walls.append((wall[0] / count, wall[1] / count))
        cpus.append((cpu[0] / count, cpu[1] / count))
    _switch(REAL)
    return _Turns(
        wall=(median(each[0] for each in walls), median(each[1] for each in walls)),
        cpu=(median(each[0] for each in cpus), median(each[1] for each in cpus)),
        ratio=median(mine / theirs for mine, theirs in walls),
    )


def _row(claim: str, turns: _Turns, limit: float) -> Measurement:
    target, met = at_most(turns.ratio, limit)
    (ours, peer), (mine, theirs) = ((us * 1e6 for us in pair) for pair in (turns.wall, turns.cpu))
    load = f"load average {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    return Measurement(
        claim=claim,
        ours=f"{ours:,.0f} us",
        peer=f"{peer:,.0f} us",
        ratio=turns.ratio,
        target=target,
        met=met,
        note=f"CPU {mine:,.0f} us against {theirs:,.0f} us, {load}",
    )


def _sealed(seconds: float, appended: _Turns, commits: int) -> Measurement:
    ratio = seconds / appended.wall[0]
    target, met = at_most(ratio, 0.05)
    return Measurement(
        claim=f"a seal over {commits:,} commits, for each of them, beside an append",
        ours=f"{seconds * 1e6:,.0f} us",
        peer=f"{appended.wall[0] * 1e6:,.0f} us",
        ratio=ratio,
        target=target,
        met=met,
    )


def _appends(store: Store) -> Callable[[], Iterator[None]]:
    def work() -> Iterator[None]:
        thread = store.thread(new_id())
        for number in itertools.count():
            thread.append({"role": "user", "content": f"message {number} " + "and so on " * 60})
            yield

    return work


def _ingests(store: Store, bodies: Sequence[bytes]) -> Callable[[], Iterator[None]]:
    left = iter(bodies)

    def work() -> Iterator[None]:
        for body in left:
            store.otlp.write(body)
            yield

    return work


def _nothing(*_: Any, **__: Any) -> bytes:
    return b""


def _zero(*_: Any, **__: Any) -> int:
    return 0


NONE: dict[Any, dict[str, Any]] = {
    write: dict.fromkeys(
        (
            "leaf",
            "merkle_root",
            "items_hash",
            "body_form",
            "append_form",
            "text_form",
            "ref_form",
            "event_form",
        ),
        _nothing,
    )
    | {"new_salts": lambda count: [b""] * count, "list_tag": _nothing},
    rows: dict.fromkeys(("event_checksum", "checksum", "numbered", "joined"), _zero)
    | dict.fromkeys(("ref_form", "event_form"), _nothing),
    digests.CommitLeaves: {"digest": _nothing},
}
"""What digests, checksums and seals need, replaced by what takes neither time nor room."""
REAL = {owner: {name: getattr(owner, name) for name in given} for owner, given in NONE.items()}


def _switch(functions: dict[Any, dict[str, Any]]) -> None:
    for owner, given in functions.items():
        for name, function in given.items():
            setattr(owner, name, function)


def _with(functions: dict[Any, dict[str, Any]], work: Callable[[], Store]) -> Store:
    _switch(functions)
    try:
        return work()
    finally:
        _switch(REAL)
