"""Sequential durable commits of a 1 KB content, an event and a ref move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.report import Measurement, Section, at_most, in_turns, seconds_of
from benchmarks.work import BARE_TABLES, bare_step, open_bare, open_store, step

if TYPE_CHECKING:
    from pathlib import Path

STEPS = {"fast": 3000, "full": 1000}
LIMITS = {"fast": 2.5, "full": 1.3}


def run(scratch: Path) -> Section:
    """Measure both durabilities."""
    return Section(
        title="Commits on SQLite, one after the other",
        about="The peer is bare `sqlite3` at the same `synchronous`, writing three rows by hand.",
        measurements=[_measure(scratch, durability) for durability in ("fast", "full")],
    )


def _measure(scratch: Path, durability: str) -> Measurement:
    steps = STEPS[durability]
    engine = open_store(scratch / durability, durability)  # type: ignore[arg-type]
    bare = open_bare(scratch / f"bare-{durability}.db", durability)
    bare.executescript(BARE_TABLES)

    def ours() -> float:
        return seconds_of(lambda: [engine.commit(step(number)) for number in range(steps)])

    def peer() -> float:
        return seconds_of(lambda: [bare_step(bare, number) for number in range(steps)])

    mine, theirs = in_turns(5, ours, peer)
    engine.close()
    bare.close()
    target, met = at_most(mine / theirs, LIMITS[durability])
    return Measurement(
        claim=f"commit, `{durability}`",
        ours=f"{mine / steps * 1e6:.0f} us",
        peer=f"{theirs / steps * 1e6:.0f} us",
        ratio=mine / theirs,
        target=target,
        met=met,
    )
