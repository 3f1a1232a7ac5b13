"""The native API: a thread of 1,000 steps, beside the sessions of OpenAI Agents and LangGraph's saver."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import treering
from benchmarks.bare_threads import BareThreads
from benchmarks.report import Measurement, Section, at_least, at_most, in_turns, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treering.store import Store
    from treering.threads.thread import Thread

STEPS = int(os.environ.get("TREERING_BENCH_STEPS", "1000"))
AGENTS = 8
TURNS = 3


def run(scratch: Path) -> Section:
    """Measure everything that a user of threads waits for or pays for."""
    work = steps(STEPS)
    rows = [
        *_against_session(scratch, work),
        _against_bare(scratch, work),
        _eight_agents(scratch),
        *_against_saver(scratch, work),
        *_forks(scratch, work),
        _growth(scratch),
    ]
    return Section(
        title="Threads",
        about=(
            f"{STEPS:,} steps, a message of 1-2 KB each and a tool result of 50 KB in every 20th, one commit "
            "a step. The peers are OpenAI Agents' `SQLiteSession` and LangGraph's `SqliteSaver` (both WAL, "
            "synchronous FULL, as they come), and bare `sqlite3` that writes messages, a checkpoint row and "
            "the head in one transaction. *Again* is a thread that the process has read before (what it read "
            "is kept in memory), and an open session; *the first time* is a store and a session just opened."
        ),
        measurements=rows,
    )


def steps(count: int) -> list[list[dict[str, Any]]]:
    """The messages of each step: the same on every run."""
    chance = random.Random(7)
    words = ["".join(chance.choices("abcdefghijklmnoprstuvw", k=chance.randint(2, 9))) for _ in range(3000)]

    def text(size: int) -> str:
        found = " ".join(chance.choices(words, k=size // 4))
        return found[:size]

    made: list[list[dict[str, Any]]] = []
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        step = [{"role": role, "content": text(chance.randint(1000, 2000))}]
        if number % 20 == 19:
            step.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text(50_000)})
        made.append(step)
    return made


def _against_session(scratch: Path, work: list[list[dict[str, Any]]]) -> list[Measurement]:
    from agents import SQLiteSession

    numbers = itertools.count()
    store = treering.open(scratch / "session", durability="full")
    session = SQLiteSession("t", scratch / "session.db")
    threads: list[Thread] = []

    def ours() -> float:
        thread = store.thread(f"t{next(numbers)}")
        threads.append(thread)
        return seconds_of(lambda: _append_all(thread, work))

    async def add_all() -> float:
        start = time.perf_counter()
        for step in work:
            await session.add_items(step)  # type: ignore[arg-type]
        return time.perf_counter() - start

    def theirs() -> float:
        asyncio.run(session.clear_session())
        return asyncio.run(add_all())

    mine, peer = in_turns(TURNS, ours, theirs)
    thread = threads[-1]
    own_load, peer_load = in_turns(
        7,
        lambda: _again(lambda: _whole(thread, len(work))),
        lambda: asyncio.run(_timed(session.get_items)),
    )

    def first_load() -> float:
        with treering.open(scratch / "session", durability="full") as fresh:
            again = fresh.thread(thread.id)
            return seconds_of(lambda: _whole(again, len(work)))

    def peer_first_load() -> float:
        fresh = SQLiteSession("t", scratch / "session.db")
        try:
            return asyncio.run(_timed(fresh.get_items, warm=False))
        finally:
            fresh.close()

    own_first, peer_first = in_turns(7, first_load, peer_first_load)
    own_tail, peer_tail = in_turns(
        20,
        lambda: _again(lambda: _tail(thread)),
        lambda: asyncio.run(_timed(lambda: session.get_items(20))),
    )
    session.close()
    store.close()
    return [
        _faster("append, `full`, against SQLiteSession", mine, peer, 1.6, per=len(work), unit="steps/s"),
        _slower("load all, the first time, against SQLiteSession", own_first, peer_first, 0.4),
        _slower("load all again, against SQLiteSession", own_load, peer_load, 0.4),
        _slower("load the last 20 again, against SQLiteSession", own_tail, peer_tail, 0.3),
    ]


def _again(call: Callable[[], Any]) -> float:
    """How long the second of two calls takes, as it is measured for the peer."""
    call()
    return seconds_of(call)


async def _timed(call: Callable[[], Any], *, warm: bool = True) -> float:
    if warm:
        await call()
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


def _whole(thread: Thread, at_least_: int) -> None:
    checkpoint = thread.load()
    assert len(checkpoint.messages) >= at_least_


def _tail(thread: Thread) -> None:
    checkpoint = thread.load(last=20)
    assert len(checkpoint.messages) == 20


def _append_all(thread: Thread, work: list[list[dict[str, Any]]]) -> None:
    for step in work:
        thread.append(*step)


def _against_bare(scratch: Path, work: list[list[dict[str, Any]]]) -> Measurement:
    numbers = itertools.count()
    store = treering.open(scratch / "fast", durability="fast")
    bare = BareThreads(scratch / "bare-fast.db", "fast")
    mine, peer = in_turns(
        TURNS,
        lambda: seconds_of(lambda: _append_all(store.thread(f"t{next(numbers)}"), work)),
        lambda: seconds_of(lambda: bare.append_all(f"t{next(numbers)}", work)),
    )
    store.close()
    bare.close()
    return _slower("append, `fast`, against bare sqlite3", mine, peer, 2.0, per=len(work))


def _eight_agents(scratch: Path) -> Measurement:
    work = steps(max(STEPS // 5, 50))
    store = treering.open(scratch / "agents", durability="full")
    bare = BareThreads(scratch / "bare-full.db", "full")
    numbers = itertools.count()

    def ours() -> float:
        return _together(lambda name: _append_all(store.thread(name), work), next(numbers))

    def theirs() -> float:
        return _together(lambda name: bare.append_all(name, work), next(numbers))

    mine, peer = in_turns(TURNS, ours, theirs)
    store.close()
    bare.close()
    return _faster(
        f"{AGENTS} agents on one store, `full`, against one transaction a step",
        mine,
        peer,
        3.5,
        per=AGENTS * len(work),
        unit="steps/s",
    )


def _together(work: Callable[[str], object], turn: int) -> float:
    barrier = threading.Barrier(AGENTS + 1)

    def agent(number: int) -> None:
        barrier.wait()
        work(f"{turn}.{number}")

    agents = [threading.Thread(target=agent, args=(number,)) for number in range(AGENTS)]
    for each in agents:
        each.start()
    barrier.wait()
    start = time.perf_counter()
    for each in agents:
        each.join()
    return time.perf_counter() - start


def _against_saver(scratch: Path, work: list[list[dict[str, Any]]]) -> list[Measurement]:
    """Its metadata by direct SQL, and deleting a thread with the space given back."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    folder, path = scratch / "deleted", scratch / "saver.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        _fill_saver(saver, work)
        read = "SELECT metadata FROM checkpoints WHERE thread_id = 't'"
        with treering.open(folder, durability="full") as store:
            _append_all(store.thread("t"), work)
            thread = store.thread("t")
            own_meta, peer_meta = in_turns(
                5,
                lambda: seconds_of(lambda: [checkpoint.metadata for checkpoint in thread.history()]),
                lambda: seconds_of(
                    lambda: [json.loads(each) for (each,) in saver.conn.execute(read).fetchall()]
                ),
            )
            full = _size(folder)
            own_delete = seconds_of(lambda: store.thread("t").delete())
        left = _size(folder)

        def delete() -> None:
            saver.delete_thread("t")
            saver.conn.commit()
            saver.conn.execute("VACUUM")
            saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        peer_delete = seconds_of(delete)
    path.unlink()
    target, met = at_most(left / full, 0.1)
    return [
        _slower(f"metadata of all {len(work):,} checkpoints, against SqliteSaver", own_meta, peer_meta, 0.01),
        _slower(
            f"delete a thread of {len(work):,} steps, against SqliteSaver", own_delete, peer_delete, 0.03
        ),
        Measurement(
            claim="space that is left after deleting it",
            ours=f"{left / 1e6:.2f} MB",
            peer=f"{full / 1e6:.2f} MB before",
            ratio=left / full,
            target=target,
            met=met,
        ),
    ]


def _fill_saver(saver: Any, work: list[list[dict[str, Any]]]) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.checkpoint.base import empty_checkpoint

    kinds = {"assistant": AIMessage, "user": HumanMessage}
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    messages: list[Any] = []
    for number, step in enumerate(work):
        for each in step:
            if each["role"] == "tool":
                messages.append(ToolMessage(each["content"], tool_call_id=each["tool_call_id"]))
            else:
                messages.append(kinds[each["role"]](each["content"]))
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": list(messages)}
        checkpoint["channel_versions"] = {"messages": number + 1}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"messages": number + 1})


def _forks(scratch: Path, work: list[list[dict[str, Any]]]) -> list[Measurement]:
    with treering.open(scratch / "forks", durability="full") as store:
        short, long = store.thread("short"), store.thread("long")
        _append_all(short, work[:10])
        _append_all(long, work)
        numbers = itertools.count()
        of_long, of_short = in_turns(
            10,
            lambda: seconds_of(lambda: long.fork(f"f{next(numbers)}")),
            lambda: seconds_of(lambda: short.fork(f"f{next(numbers)}")),
        )
        bytes_long, bytes_short = _fork_bytes(store, long), _fork_bytes(store, short)
    time_target, time_met = at_most(of_long / 0.002, 1)
    size_target, size_met = at_most(bytes_long / 4096, 1)
    return [
        Measurement(
            claim=f"fork of a thread of {len(work):,} steps, against 2 ms",
            ours=f"{of_long * 1e3:.2f} ms",
            peer="2 ms",
            ratio=of_long / 0.002,
            target=time_target,
            met=time_met,
            note=f"of 10 steps: {of_short * 1e3:.2f} ms",
        ),
        Measurement(
            claim="bytes that it takes, against 4 KB",
            ours=f"{bytes_long} B",
            peer="4096 B",
            ratio=bytes_long / 4096,
            target=size_target,
            met=size_met,
            note=f"of 10 steps: {bytes_short} B",
        ),
    ]


def _fork_bytes(store: Store, thread: Thread) -> int:
    before = sum(store.engine.stats(store.space).bytes.values())
    thread.fork(f"measured {thread.id}")
    return sum(store.engine.stats(store.space).bytes.values()) - before


def _growth(scratch: Path) -> Measurement:
    sizes: list[int] = []
    for count in (STEPS // 2, STEPS * 5):
        folder = scratch / f"growth-{count}"
        with treering.open(folder, durability="fast") as store:
            _append_all(store.thread("t"), steps(count))
        sizes.append(_size(folder))
        shutil.rmtree(folder)
    exponent = math.log(sizes[1] / sizes[0]) / math.log(10)
    target, met = at_most(exponent, 1.02)
    return Measurement(
        claim=f"growth on disk from {STEPS // 2:,} to {STEPS * 5:,} steps, as an exponent",
        ours=f"{sizes[1] / 1e6:.1f} MB",
        peer=f"{sizes[0] / 1e6:.2f} MB",
        ratio=exponent,
        target=target,
        met=met,
    )


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _faster(claim: str, mine: float, peer: float, limit: float, *, per: int, unit: str) -> Measurement:
    target, met = at_least(peer / mine, limit)
    return Measurement(
        claim=claim,
        ours=f"{per / mine:.0f} {unit}",
        peer=f"{per / peer:.0f} {unit}",
        ratio=peer / mine,
        target=target,
        met=met,
    )


def _slower(claim: str, mine: float, peer: float, limit: float, *, per: int = 0) -> Measurement:
    target, met = at_most(mine / peer, limit)
    scale, unit = (1e6 / per, "us") if per else (1e3, "ms")
    return Measurement(
        claim=claim,
        ours=f"{mine * scale:.2f} {unit}",
        peer=f"{peer * scale:.2f} {unit}",
        ratio=mine / peer,
        target=target,
        met=met,
    )
