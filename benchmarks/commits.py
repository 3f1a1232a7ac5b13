"""Sequential durable commits of a 1 KB content, an event and a ref move."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from benchmarks.report import Measurement, Section, at_most, in_turns, seconds_of
from benchmarks.work import BARE_TABLES, bare_step, open_bare, open_same, open_store, same_step, step

if TYPE_CHECKING:
    from pathlib import Path

STEPS = {"fast": 3000, "full": 1000}
LIMITS = {"fast": 2.5, "full": 1.3}


def run(scratch: Path) -> Section:
    """Measure both durabilities."""
    return Section(
        title="Commits on SQLite, one after the other",
        about=(
            "Two peers, both bare `sqlite3` at the same `synchronous`: *same inserts* writes the rows that "
            "treering writes, into the same tables, without its reads and checks; *three rows* is the least "
            "that a person would write by hand for the same step (content, event, ref)."
        ),
        measurements=[each for durability in ("fast", "full") for each in _measure(scratch, durability)],
    )


def _measure(scratch: Path, durability: str) -> list[Measurement]:
    steps = STEPS[durability]
    engine = open_store(scratch / durability, durability)  # type: ignore[arg-type]
    bare = open_bare(scratch / f"bare-{durability}.db", durability)
    bare.executescript(BARE_TABLES)
    same = open_same(scratch / f"same-{durability}.db", durability)
    numbers = itertools.count(1)

    def ours() -> float:
        return seconds_of(lambda: [engine.commit(step(number)) for number in range(steps)])

    def three_rows() -> float:
        return seconds_of(lambda: [bare_step(bare, number) for number in range(steps)])

    def same_inserts() -> float:
        return seconds_of(lambda: [same_step(same, next(numbers)) for _ in range(steps)])

    mine, least, equal = in_turns(5, ours, three_rows, same_inserts)
    for each in (engine, bare, same):
        each.close()
    return [
        _row(f"commit, `{durability}`, against the same inserts", mine, equal, steps, LIMITS[durability]),
        _row(f"commit, `{durability}`, against three rows", mine, least, steps, LIMITS[durability]),
    ]


def _row(claim: str, mine: float, theirs: float, steps: int, limit: float) -> Measurement:
    target, met = at_most(mine / theirs, limit)
    return Measurement(
        claim=claim,
        ours=f"{mine / steps * 1e6:.0f} us",
        peer=f"{theirs / steps * 1e6:.0f} us",
        ratio=mine / theirs,
        target=target,
        met=met,
    )
