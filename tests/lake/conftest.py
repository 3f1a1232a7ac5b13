"""A store with a few days' worth of runs, and what a user reads from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import treering
from tests.cli.conftest import run as treering_command
from treering.core.clock import DAY_US, SystemClock
from treering.runs.timeline import timeline_report
from treering.store import Store

__all__ = ["treering_command"]  # a fixture

CANARY = "zanzibar-5521"
"""In everything that thread ``t1`` says."""
LARGE = 6000
RUNS = 12
A_DAY = timedelta(days=1)


class Later(SystemClock):
    """A clock five days ahead: whatever is stored now is of a finished day."""

    def now_us(self) -> int:
        return super().now_us() + 5 * DAY_US


def later(opened: Store) -> Store:
    return Store(opened.engine, space=opened.space, clock=Later(), opener=treering.open)


def write_runs(store: Store, count: int = RUNS) -> None:
    for number in range(count):
        thread = f"t{number % 4}"
        secret = CANARY if thread == "t1" else "nothing"
        with store.run(agent=f"agent-{number % 3}", thread=thread, tags=(f"team-{number % 2}",)) as run:
            run.message("user", f"Where is parcel {number}? {secret}")
            with run.tool("track", input={"parcel": number, "note": secret}) as call:
                times = LARGE // len(secret) if number < 4 else 1
                call.output = {"status": "found" if number % 5 else "lost", "log": f"{secret} " * times}
            asked = [{"role": "user", "content": secret}]
            with run.span("answer", kind="llm", model="gpt-5", input=asked) as llm:
                llm.output = f"Parcel {number} {secret}"
                llm.use({"input": 100 + number, "output": 10, "cache_read": 5}, cost="0.0025", currency="USD")
            if number % 6 == 5:
                try:
                    with run.tool("refund", input={"parcel": number}):
                        raise ValueError(f"no refund for {number}")
                except ValueError:
                    pass
            run.message("assistant", f"Parcel {number} is on its way. {secret}", model="gpt-5")
    store.flush()


def read_all(store: Store) -> dict[str, Any]:
    """Return everything that a user reads of runs."""
    seen: dict[str, Any] = {}
    infos = list(store.runs.each())
    for info in infos:
        events = list(store.timeline.each_of_run(info.id, everything=True))
        bodies = [event.body for event in events if event.body is not None]
        first = timeline_report(store.engine, store.space, info.id, limit=3)
        seen[info.id] = (
            events,
            store.timeline.content(*bodies),
            store.cost.of_run(info.id, by="model"),
            first,
            timeline_report(store.engine, store.space, info.id, limit=1000, cursor=first["next_cursor"]),
        )
    seen["runs"] = infos
    seen["threads"] = [store.timeline.of_thread(f"t{number}") for number in range(4)]
    seen["search"] = store.timeline.search("parcel lost", limit=100).hits
    seen["words"] = store.timeline.search(CANARY, limit=100).hits
    seen["days"] = [store.cost.of_days(by=by) for by in ("agent", "model", "kind", "day")]
    return seen


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with runs, for copies."""
    folder = tmp_path_factory.mktemp("lake") / "store"
    with treering.open(folder) as store:
        write_runs(store)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with treering.open(folder) as opened:
        yield later(opened)


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))
