"""The LangGraph saver beside LangGraph's own, on SQLite: saving, loading, looking back, deleting, growing."""

from __future__ import annotations

import gc
import math
import sqlite3
import time
import tracemalloc
from statistics import median
from typing import TYPE_CHECKING, Any

import treering
from benchmarks.langgraph_work import (
    THREAD,
    loop_of,
    new_messages,
    open_sqlite_saver,
    save_steps,
    size_of,
)
from benchmarks.report import Measurement, Section, at_least, at_most, in_turns, seconds_of
from treering.adapters.langgraph import TreeringSaver

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 1000
FORKS = 9
LONG = 5000


def run(scratch: Path) -> Section:
    """Measure everything, each pair in one run."""
    added = new_messages(STEPS)
    return Section(
        title="LangGraph on SQLite",
        about=(
            "1,000 steps of `put_writes` and `put`: a message of 1-2 KB each, every 20th with a 50 KB tool "
            "result. The peers are `SqliteSaver`, and `SqliteSaver` with a `DeltaChannel`, at the same "
            "`synchronous`. Both calls are durable when they return; *one commit a step* is our "
            '`writes="with_checkpoint"`, which commits what a task wrote with the next checkpoint.'
        ),
        measurements=[
            *_saving(scratch, added),
            *_looping(scratch, added),
            *_growing(scratch),
            *_memory(scratch),
        ],
    )


def _saving(scratch: Path, added: Any) -> list[Measurement]:
    found: list[Measurement] = []
    for durability, limit in (("full", 15.0), ("fast", 30.0)):
        store = treering.open(scratch / durability, durability=durability)  # type: ignore[arg-type]
        theirs = open_sqlite_saver(scratch / f"{durability}.db", durability)
        deltas = open_sqlite_saver(scratch / f"{durability}-delta.db", durability)
        mine = save_steps(TreeringSaver(store), added)
        once = treering.open(scratch / f"{durability}-once", durability=durability)  # type: ignore[arg-type]
        with once, TreeringSaver(once, writes="with_checkpoint") as saver:
            riding = save_steps(saver, added)
        peer = save_steps(theirs, added)
        delta = save_steps(deltas, added, delta=True)
        found.append(_rate(f"steps/s, `{durability}`, against SqliteSaver", mine, peer, STEPS, limit))
        found.append(
            _rate(f"steps/s, `{durability}`, against SqliteSaver with DeltaChannel", mine, delta, STEPS, 1.3)
        )
        found.append(
            _rate(f"one commit a step, `{durability}`, against DeltaChannel", riding, delta, STEPS, 1.3)
        )
        if durability == "full":
            for each in (store, theirs.conn, deltas.conn):
                each.close()  # moves the log into the file
            sizes = [size_of(scratch / name) for name in ("full", "full.db", "full-delta.db")]
            store, theirs = treering.open(scratch / "full"), open_sqlite_saver(scratch / "full.db", "full")
            found += _after(scratch, store, theirs, sizes)
        for each in (store, theirs.conn, deltas.conn):
            each.close()
    return found


def _after(scratch: Path, store: treering.Store, theirs: Any, sizes: list[int]) -> list[Measurement]:
    ours_size, peer_size, delta_size = sizes
    found = [_row("bytes on disk, against 3.5 MB", ours_size / 1e6, 3.5, "MB", at_most, 1.0)]
    found[0] = _noted(
        found[0],
        f"SqliteSaver {peer_size / 1e6:.0f} MB, delta {delta_size / 1e6:.1f} MB",
    )
    mine, peer = in_turns(
        3,
        lambda: seconds_of(lambda: TreeringSaver(store).get_tuple(THREAD)),  # type: ignore[arg-type]
        lambda: seconds_of(lambda: theirs.get_tuple(THREAD)),
    )
    found.append(_row("load the newest state again", mine * 1e3, peer * 1e3, "ms", at_most, 0.8))

    def first_load() -> float:
        with treering.open(scratch / "full") as fresh:
            return seconds_of(lambda: TreeringSaver(fresh).get_tuple(THREAD))  # type: ignore[arg-type]

    mine, peer = in_turns(3, first_load, lambda: seconds_of(lambda: theirs.get_tuple(THREAD)))
    found.append(_row("load it the first time in a process", mine * 1e3, peer * 1e3, "ms", at_most, 0.8))
    path = scratch / "full.db"

    def by_sql() -> None:
        with sqlite3.connect(path) as connection:
            assert (
                len(connection.execute("SELECT checkpoint_id, metadata FROM checkpoints").fetchall()) == STEPS
            )

    def ours() -> None:
        assert len(TreeringSaver(store).metadata(THREAD)) == STEPS  # type: ignore[arg-type]

    mine, peer = in_turns(3, lambda: seconds_of(ours), lambda: seconds_of(by_sql))
    found.append(_row("metadata of all 1,000 checkpoints", mine * 1e3, peer * 1e3, "ms", at_most, 0.01))
    thread = store.thread("bench")
    thread.load()
    file = scratch / "full" / "treering.db"
    before = file.stat().st_size
    forks = [f"bench-fork-{number}" for number in range(FORKS)]
    took = [seconds_of(lambda name=name: thread.fork(name)) for name in forks]
    store.close()  # moves the log into the file
    grown = (file.stat().st_size - before) / FORKS
    store = treering.open(scratch / "full")
    found.append(
        _noted(
            _row("fork of a 1,000-step thread, against 2 ms", median(took) * 1e3, 2.0, "ms", at_most, 1.0),
            f"median of {FORKS}, the first {took[0] * 1e3:.2f} ms; {grown:.0f} B of the file each",
        )
    )
    for name in forks:
        store.thread(name).delete()
    mine = seconds_of(lambda: TreeringSaver(store).delete_thread("bench"))
    store.close()  # moves the log into the file, which shrinks then
    left = size_of(scratch / "full") / ours_size
    peer = seconds_of(lambda: theirs.delete_thread("bench"))
    found.append(
        _noted(
            _row("delete a 1,000-step thread", mine * 1e3, peer * 1e3, "ms", at_most, 0.03),
            f"{left:.0%} of the bytes left, SqliteSaver {size_of(path) / peer_size:.0%}",
        )
    )
    return found


def _looping(scratch: Path, added: Any) -> list[Measurement]:
    with treering.open(scratch / "loop") as store, treering.open(scratch / "loop-runs") as recorded:
        theirs = open_sqlite_saver(scratch / "loop.db", "full")
        deltas = open_sqlite_saver(scratch / "loop-delta.db", "full")
        mine = loop_of(TreeringSaver(store, runs=False), added)
        peer = loop_of(theirs, added)
        delta = loop_of(deltas, added, delta=True)
        bare = loop_of(None, added)
        with_runs = loop_of(TreeringSaver(recorded), added)
        for each in (theirs, deltas):
            each.conn.close()
    per_step = 1e3 / STEPS
    first = _row(
        "a real graph, per superstep, against SqliteSaver",
        mine * per_step,
        peer * per_step,
        "ms",
        at_most,
        0.12,
    )
    return [
        _noted(
            first,
            f"without a checkpointer {bare * per_step:.2f} ms; recorded as a run, which no peer does, "
            f"{with_runs * per_step:.2f} ms",
        ),
        _row("the same, against DeltaChannel", mine * per_step, delta * per_step, "ms", at_most, 1.1),
    ]


def _growing(scratch: Path) -> list[Measurement]:
    added = new_messages(LONG)
    sizes: dict[int, int] = {}
    seconds = 0.0
    for steps in (500, LONG):
        with treering.open(scratch / f"grow-{steps}") as store:
            seconds = save_steps(TreeringSaver(store), added[:steps])
        sizes[steps] = size_of(scratch / f"grow-{steps}")
    exponent = math.log(sizes[LONG] / sizes[500]) / math.log(LONG / 500)
    target, met = at_most(exponent, 1.02)
    deltas = open_sqlite_saver(scratch / "grow-delta.db", "full")
    delta = save_steps(deltas, added, delta=True)
    deltas.conn.close()
    return [
        Measurement(
            claim="growth of the bytes from 500 to 5,000 steps, as an exponent",
            ours=f"{sizes[LONG] / 1e6:.1f} MB",
            peer=f"{sizes[500] / 1e6:.1f} MB",
            ratio=exponent,
            target=target,
            met=met,
            note=f"SqliteSaver with DeltaChannel: {size_of(scratch / 'grow-delta.db') / 1e6:.0f} MB at 5,000",
        ),
        _rate("steps/s at 5,000 steps, `full`, against DeltaChannel", seconds, delta, LONG, 2.5),
    ]


def _memory(scratch: Path) -> list[Measurement]:
    """Peak while the newest of a long thread is loaded, against the state itself."""
    with treering.open(scratch / "memory", durability="fast") as store:
        save_steps(TreeringSaver(store), new_messages(10_000))
        saver = TreeringSaver(store)
        gc.collect()
        tracemalloc.start()
        loaded = saver.get_tuple(THREAD)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert loaded is not None
    tracemalloc.start()
    copies = [message.model_copy(deep=True) for message in loaded.checkpoint["channel_values"]["messages"]]
    texts = sum(len(message.content) for message in copies)
    own = tracemalloc.get_traced_memory()[0] + texts
    tracemalloc.stop()
    return [
        _row(
            "memory to load 10,000 steps, against the state's own", peak / 1e6, own / 1e6, "MB", at_most, 1.5
        )
    ]


def _rate(claim: str, mine: float, peer: float, steps: int, limit: float) -> Measurement:
    target, met = at_least(peer / mine, limit)
    return Measurement(
        claim=claim,
        ours=f"{steps / mine:.0f}/s",
        peer=f"{steps / peer:.0f}/s",
        ratio=peer / mine,
        target=target,
        met=met,
    )


def _row(claim: str, mine: float, peer: float, unit: str, judge: Any, limit: float) -> Measurement:
    target, met = judge(mine / peer, limit)
    return Measurement(
        claim=claim,
        ours=f"{mine:.2f} {unit}",
        peer=f"{peer:.2f} {unit}",
        ratio=mine / peer,
        target=target,
        met=met,
    )


def _noted(row: Measurement, note: str) -> Measurement:
    return Measurement(**{**row.__dict__, "note": note})


def main() -> None:
    """Print, without writing anything: ``python -m benchmarks.langgraph``."""
    import tempfile
    from pathlib import Path as Folder

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for each in run(Folder(folder)).measurements:
            print(f"{each.claim}: {each.ours} / {each.peer} = {each.ratio:.3f}x ({each.target}) {each.note}")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
