"""Simulated worlds: nothing that is acknowledged is lost, doubled, reordered or undone, whatever goes wrong.

A few dozen worlds here, thousands in `make soak` (`TREERING_SIMULATIONS` says how many). A failure names its
seed, and ``python -m tests.faults.simulation SEED ENGINE STEPS`` repeats it exactly.
"""

from __future__ import annotations

import logging
import os
from collections import Counter

import msgspec
import pytest

from tests.faults.simulation import ENGINES, Failed, simulate
from treering.core.batch import ANY
from treering.engines.sql.commit import decide
from treering.engines.sqlite.connection import SqliteDatabase

STEPS = 120
SEEDS = {"sqlite": range(6), "memory": range(100, 130)}
SOAK = int(os.environ.get("TREERING_SIMULATIONS", "4000"))
GROUPS = 20


@pytest.fixture(autouse=True)
def silent_workers():
    """Workers say for each lease that they lost that they lost it."""
    log = logging.getLogger("treering.schedules")
    level, log.level = log.level, logging.CRITICAL
    yield
    log.setLevel(level)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_promise_holds_in_simulated_worlds(engine, tmp_path):
    happened: Counter[str] = Counter()
    for seed in SEEDS[engine]:
        happened += simulate(seed, engine, steps=STEPS, folder=tmp_path).counts
    for what in ("late", "twice", "lost answer", "process dies", "kill", "clock", "interleaved"):
        assert happened[what], f"{what} never happened"
    if engine == "sqlite":
        assert min(happened["machines"], happened["disk full"]) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_promise_holds_in_many_worlds(engine, group, tmp_path):
    share = SOAK // (2 * GROUPS)
    for seed in range(1000 + group * share, 1000 + (group + 1) * share):
        simulate(seed, engine, steps=2 * STEPS, folder=tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_world_is_repeated_by_its_seed(engine, tmp_path):
    one, two = (simulate(13, engine, steps=STEPS, folder=tmp_path).history for _ in range(2))
    assert one == two
    assert one != simulate(14, engine, steps=STEPS, folder=tmp_path).history


def overwrite(state, change, move=decide._move):
    return move(state, msgspec.structs.replace(change, expect=ANY))


def do_nothing(*_):
    pass


BROKEN = {
    "refs are overwritten unseen": (decide, "_move", overwrite),
    "fences are not checked": (decide, "_check_fences", do_nothing),
    "erased bytes stay in the log": (SqliteDatabase, "_truncate_log", do_nothing),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_a_defect_is_found_and_named_with_its_seed(defect, monkeypatch, tmp_path):
    def search() -> None:
        for seed in range(100):
            simulate(seed, "sqlite", steps=STEPS, folder=tmp_path)

    monkeypatch.setattr(*BROKEN[defect])
    with pytest.raises(Failed, match=r"python -m tests\.faults\.simulation \d+ sqlite"):
        search()
