"""What digests and seals cost: the same work without salts, hashes of rows, digests of commits and seals."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING
from unittest import mock

import treering
from benchmarks.otlp_work import requests
from benchmarks.report import Measurement, Section, at_most, seconds_of
from treering.core import digests
from treering.engines.sql.commit import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from treering.store import Store

APPENDS = int(os.environ.get("TREERING_BENCH_APPENDS", "60"))
REQUESTS = 8
TURNS = 50


def run(scratch: Path) -> Section:
    """Measure appends and ingested requests in many short turns, and then a seal over all of them."""
    with ExitStack() as stack:
        plain = ExitStack()
        store = stack.enter_context(treering.open(scratch / "digests"))
        with plain:
            _without_digests(plain)
            other = stack.enter_context(treering.open(scratch / "none"))
        appended = _in_pairs(lambda: _append(store), lambda: _bare(lambda: _append(other)))
        bodies = itertools.cycle(requests(400))
        ingested = _in_pairs(lambda: _ingest(store, bodies), lambda: _bare(lambda: _ingest(other, bodies)))
        sealing = seconds_of(store.audit.seal)
        commits = store.audit.seals()[0].commits
    return Section(
        title="Seals",
        about=(
            f"{TURNS} short turns of {APPENDS} appends to a thread and of {REQUESTS} OTLP requests, in one "
            "store on SQLite each, synced to a disk; the peer is the same code with constants for salts, "
            "hashes and digests. (Checksums of rows are part of both.) Medians, because a shared disk is "
            "noisy; the notes are the processor's time. Then one seal over everything."
        ),
        measurements=[
            _row("append, `full`, with digests", appended, APPENDS, 1.05),
            _row("OTLP request of 500 spans, `full`, with digests", ingested, REQUESTS, 1.05),
            _row(
                f"a seal over {commits:,} commits, for each of them, beside an append",
                _Pair(wall=(sealing / commits, appended.wall[0] / APPENDS), cpu=None),
                1,
                0.05,
            ),
        ],
    )


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Seconds of a turn, ours and the peer's."""

    wall: tuple[float, float]
    cpu: tuple[float, float] | None


def _in_pairs(ours: Callable[[], float], peer: Callable[[], float]) -> _Pair:
    """Run both in turns, each of them first in every second turn; return their medians."""
    seconds: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
    for turn in range(TURNS):
        for which in (0, 1) if turn % 2 else (1, 0):
            before = time.process_time()
            wall = (ours, peer)[which]()
            seconds[which].append((wall, time.process_time() - before))
    wall = [median(each[0] for each in seconds[which]) for which in (0, 1)]
    cpu = [median(each[1] for each in seconds[which]) for which in (0, 1)]
    return _Pair(wall=(wall[0], wall[1]), cpu=(cpu[0], cpu[1]))


def _row(claim: str, pair: _Pair, count: int, limit: float) -> Measurement:
    ours, peer = (each / count * 1e6 for each in pair.wall)
    target, met = at_most(ours / peer, limit)
    note = ""
    if pair.cpu is not None:
        mine, theirs = (each / count * 1e6 for each in pair.cpu)
        note = f"CPU {mine:,.0f} us against {theirs:,.0f} us ({mine / theirs:.2f}x)"
    return Measurement(
        claim=claim,
        ours=f"{ours:,.0f} us",
        peer=f"{peer:,.0f} us",
        ratio=ours / peer,
        target=target,
        met=met,
        note=note,
    )


def _append(store: Store) -> float:
    thread = store.thread("t")
    thread.append({"role": "user", "content": "what the thread has to read first"})

    def work() -> None:
        for number in range(APPENDS):
            thread.append({"role": "user", "content": f"message {number} " + "and so on " * 60})

    return seconds_of(work)


def _ingest(store: Store, bodies: Iterator[bytes]) -> float:
    some = list(itertools.islice(bodies, REQUESTS))

    def work() -> None:
        for body in some:
            store.otlp.write(body)

    return seconds_of(work)


def _bare(work: Callable[[], float]) -> float:
    with ExitStack() as stack:
        _without_digests(stack)
        return work()


def _without_digests(stack: ExitStack) -> None:
    """Replace what digests and seals need by constants of the same size."""
    constant = bytes(32)
    for name, value in {
        "new_salts": lambda count: [bytes(digests.SALT_SIZE)] * count,
        "leaf": lambda kind, salt, form: constant,  # noqa: ARG005
        "merkle_root": lambda leaves: constant,  # noqa: ARG005
        "items_hash": lambda items: constant,  # noqa: ARG005
        "body_form": lambda part, scope, contents: b"",  # noqa: ARG005
        "append_form": lambda *parts: b"",  # noqa: ARG005
        "text_form": lambda text: b"",  # noqa: ARG005
        "list_tag": lambda list_id, salt: bytes(8),  # noqa: ARG005
    }.items():
        stack.enter_context(mock.patch.object(write, name, value))
    stack.enter_context(mock.patch.object(digests.CommitLeaves, "digest", return_value=constant))
