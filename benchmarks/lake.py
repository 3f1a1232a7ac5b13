"""Lake: what a run costs in the database and in Parquet, and reading it from there.

The peer of each row is the same store before it archived: the bytes of its database, the opening of a run,
sums over live rows.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from typing import TYPE_CHECKING

import treering
from benchmarks.report import Measurement, Section, at_least, at_most, in_turns, seconds_of
from treering.core.clock import DAY_US, SystemClock
from treering.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from treering.core.records import Archived

RUNS = int(os.environ.get("TREERING_BENCH_RUNS", "5000"))
OPENED = 40
SUM = "SELECT agent, sum(cost_nanos), sum(total_tokens) FROM costs GROUP BY 1 ORDER BY 1"
WORDS = "parcel refund customer order invoice address delivery status lost found agent answer please".split()


class _Later(SystemClock):
    def now_us(self) -> int:
        return super().now_us() + 5 * DAY_US


def run(scratch: Path) -> Section:
    """Measure bytes, rates and times before and after archiving."""
    with treering.open(scratch / "store") as opened:
        store = Store(opened.engine, clock=_Later())
        start = time.perf_counter()
        ids = _write(opened)
        recording = time.perf_counter() - start
        events = opened.stats().rows["events"]
        store.gc(grace_seconds=0)
        before = _database_bytes(scratch)
        some = random.Random(7).sample(ids, OPENED)
        open_live = in_turns(3, lambda: _open(store, some))[0] / OPENED
        sum_live = in_turns(2, lambda: seconds_of(lambda: store.query(SUM, seconds=600)))[0]
        live_rows = store.query(SUM, seconds=600).rows

        start = time.perf_counter()
        done = store.archive(before="1d")
        archiving = time.perf_counter() - start
        collecting = seconds_of(lambda: store.gc(grace_seconds=0))
        after = _database_bytes(scratch)
        parts = _table_bytes(scratch)

    with treering.open(scratch / "store") as opened:
        store = Store(opened.engine, clock=_Later())
        open_cold = _open(store, some) / OPENED
        open_warm = in_turns(3, lambda: _open(store, some))[0] / OPENED
        sum_archived = in_turns(3, lambda: seconds_of(lambda: store.query(SUM, seconds=600)))[0]
        assert store.query(SUM).rows == live_rows
        search = seconds_of(lambda: store.timeline.search("parcel refund", limit=20))

    parquet = done.bytes
    left = ", ".join(f"{name} {size / RUNS:,.0f}" for name, size in parts.items() if size / RUNS >= 1)
    return Section(
        title="Lake",
        about=(
            f"{RUNS:,} runs of {events / RUNS:.1f} events (messages, a call of a tool and of a model), "
            "SQLite, then archived into Parquet and collected. The peer is the same store before."
        ),
        measurements=[
            _row(
                "Bytes of a run in the database, archived beside live", after / RUNS, before / RUNS, "B", 0.6,
                note=f"left in the database, bytes a run by table or index: {left}",
            ),
            _row(
                "Bytes of a run in Parquet beside those that left the database",
                parquet / RUNS, (before - after) / RUNS, "B", 0.5,
            ),
            _row(
                "Opening a run (its whole timeline and contents), archived beside live, first time",
                open_cold * 1e3, open_live * 1e3, "ms", 20,
            ),
            _row(
                "Opening a run, archived beside live, again", open_warm * 1e3, open_live * 1e3, "ms", 5,
                note=f"a search over archived runs took {search * 1e3:.0f} ms",
            ),
            _row(
                "A sum by agent in SQL, archived beside live", sum_archived * 1e3, sum_live * 1e3, "ms", 0.2,
            ),
            _archiving(done, archiving, events / recording, collecting),
        ],
    )  # fmt: skip


def _archiving(done: Archived, seconds: float, recorded: float, collecting: float) -> Measurement:
    rate = done.events / seconds
    target, met = at_least(rate / recorded, 1)
    return Measurement(
        claim="Archiving beside recording and indexing the same events",
        ours=f"{rate:,.0f}/s",
        peer=f"{recorded:,.0f}/s",
        ratio=rate / recorded,
        target=target,
        met=met,
        note=f"{done.events:,} events; the garbage collection after it took {collecting:.1f} s",
    )


def _row(claim: str, ours: float, peer: float, unit: str, limit: float, note: str = "") -> Measurement:
    target, met = at_most(ours / peer, limit)
    return Measurement(
        claim=claim, ours=f"{ours:,.1f} {unit}", peer=f"{peer:,.1f} {unit}", ratio=ours / peer,
        target=target, met=met, note=note,
    )  # fmt: skip


def _write(store: Store) -> list[str]:
    draw = random.Random(1)
    ids: list[str] = []
    for number in range(RUNS):
        with store.run(agent=f"agent-{number % 20}", thread=f"t{number // 2}", tags=("prod",)) as run:
            said = " ".join(draw.choices(WORDS, k=30))
            run.message("user", f"{said} {number}")
            with run.tool(
                "track", input={"parcel": number, "note": " ".join(draw.choices(WORDS, k=8))}
            ) as call:
                call.output = {"status": "lost", "log": " ".join(draw.choices(WORDS, k=40))}
            with run.span(
                "answer", kind="llm", model="gpt-5", input=[{"role": "user", "content": said}]
            ) as llm:
                llm.output = " ".join(draw.choices(WORDS, k=60))
                llm.use({"input": 400 + number % 100, "output": 80, "cache_read": 50}, cost="0.0025")
            run.message("assistant", " ".join(draw.choices(WORDS, k=60)), model="gpt-5")
        ids.append(run.id)
        if number % 500 == 0:
            store.flush()
    store.flush()
    store.timeline.index()
    return ids


def _open(store: Store, runs: list[str]) -> float:
    start = time.perf_counter()
    for run_id in runs:
        events = list(store.timeline.each_of_run(run_id, everything=True))
        store.timeline.content(*[event.body for event in events if event.body is not None])
    return time.perf_counter() - start


def _database_bytes(scratch: Path) -> int:
    with sqlite3.connect(scratch / "store" / "treering.db") as connection:
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
        ((free,),) = connection.execute("PRAGMA freelist_count").fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    return (pages - free) * size


def _table_bytes(scratch: Path) -> dict[str, int]:
    """Return the bytes of each table with its indexes, as far as SQLite counts them."""
    with sqlite3.connect(scratch / "store" / "treering.db") as connection:
        try:
            rows = connection.execute(
                "SELECT m.tbl_name, sum(s.pgsize) FROM dbstat s JOIN sqlite_master m ON m.name = s.name "
                "GROUP BY 1 ORDER BY 2 DESC"
            ).fetchall()
        except sqlite3.OperationalError:
            return {}
    return dict(rows)
