"""A million: what lists, search, reports, statistics and the dashboard cost in one space of growing size.

A store of N threads has N runs and 10 N events (a run is an agent span, three calls of models, three of
tools, its end and its entry in the list; a thread is a checkpoint with two messages), N/10 memory documents,
and N/200 snapshots and schedules. They are written through the ordinary write path, a few hundred threads in
a commit, and spread over 90 days. Building takes long, so stores are kept in a folder (`FOLDER`), and one
that was interrupted is continued.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import treering
from treering.core.batch import ABSENT, Draft, Usage
from treering.core.clock import ManualClock
from treering.core.content import Content
from treering.core.ids import IdSource
from treering.runs.run import RunInfo, run_writer, write_listing, write_state
from treering.threads.checkpoint import CheckpointRecord
from treering.threads.writer import CheckpointWriter, ListChange, NewCheckpoint, encode_items

if TYPE_CHECKING:
    from treering.store import Store

FOLDER = Path(os.environ.get("TREERING_BENCH_MILLION", "/tmp/million"))
SIZES = tuple(map(int, os.environ.get("TREERING_BENCH_SIZES", "10000,100000,1000000").split(",")))
PER_COMMIT = 250
DAYS = 90
DAY_US = 86_400_000_000
END_US = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1e6)
AGENTS = ("planner", "coder", "reviewer", "researcher", "support", "billing", "writer", "tester")
MODELS = ("gpt-5", "gpt-5-mini", "claude-sonnet-4-5", "gemini-2.5-pro")
TOOLS = ("search_docs", "read_file", "run_tests", "refund", "send_mail", "query")
TEAMS = ("", "", "", "acme", "globex")
"""Namespaces of threads and runs."""
WORDS = [
    "".join(Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=Random(number).randint(3, 9)))
    for number in range(20_000)
]


def build(store: Store, count: int) -> None:
    """Fill a store up to ``count`` threads and runs, from where it is."""
    done = store.state.get("million/done", 0)
    started, first = time.perf_counter(), done
    while done < count:
        draft = Draft(store.space)
        writer = CheckpointWriter(store.engine, store.space)
        for number in range(done, min(done + PER_COMMIT, count)):
            _add(draft, writer, number, count)
        store.engine.commit(draft.batch())
        done = min(done + PER_COMMIT, count)
        store.state.set("million/done", done)
        if done % 10_000 < PER_COMMIT:
            rate = (done - first) / (time.perf_counter() - started)
            print(f"{done:,} of {count:,}, {rate:.0f} threads/s", file=sys.stderr, flush=True)


def _add(draft: Draft, writer: CheckpointWriter, number: int, count: int) -> None:
    """Add a thread with a checkpoint and a run of ten events."""
    random = Random(number)
    at_us = END_US - DAYS * DAY_US + number * (DAYS * DAY_US // count)
    agent, team = AGENTS[min(int(random.expovariate(0.6)), 7)], TEAMS[number % len(TEAMS)]
    thread = f"{team or 'chat'}-{number:07}"
    ids = IdSource(ManualClock(at_us))
    status = random.choices(("ok", "error", "crashed"), (96, 3.8, 0.2))[0]
    record = CheckpointRecord(
        id="ckpt_" + ids.next(), thread=thread, namespace=team, parent=None, step=1, created_at_us=at_us,
        lists={}, state={},
    )  # fmt: skip
    said = [{"role": "user", "content": text(random, 12)}, {"role": "assistant", "content": text(random, 20)}]
    change = ListChange(contents=encode_items(said), list_id=f"{ids.next()}")
    record = writer.put(draft, NewCheckpoint(record=record, lists={"messages": change}))
    writer.put_head(draft, record, expect=ABSENT, first_us=at_us, updated_us=at_us)
    took_us = 0
    info = RunInfo(
        id=ids.next(), agent=agent, thread=thread, namespace=team, started_at_us=at_us, status=status,
        ended_at_us=at_us, tags=("nightly",) if number % 20 == 0 else (),
    )  # fmt: skip
    spans = run_writer(info)
    root = ids.next()
    for step in range(3):
        for kind in ("llm", "tool"):
            duration_us = round(random.lognormvariate(13.5 if kind == "llm" else 11, 0.7))
            is_last = step == 2 and kind == "tool"
            is_llm = kind == "llm"
            spans.write_span(
                draft,
                id=ids.next(), kind=kind, name=MODELS[number % 4] if is_llm else random.choice(TOOLS),
                ts_us=at_us + took_us, duration_us=duration_us,
                status="error" if is_last and status == "error" else "ok",
                parent=root, agent=agent, model=MODELS[number % 4] if is_llm else None,
                usage=Usage(input=random.randint(200, 4000), output=random.randint(20, 900)) if is_llm
                else None,
                cost_nanos=random.randint(100_000, 9_000_000) if is_llm else None,
                currency="USD" if is_llm else None,
                output=Content("text", text(random, 8).encode()),
                data={"first_token_us": duration_us // 5} if is_llm else None,
            )  # fmt: skip
            took_us += duration_us
    spans.write_span(
        draft, id=root, kind="agent", name=agent, ts_us=at_us, duration_us=took_us, status="ok",
        parent=None, agent=agent,
    )  # fmt: skip
    write_listing(draft, info)
    import msgspec

    write_state(draft, msgspec.structs.replace(info, ended_at_us=at_us + took_us))


def text(random: Random, count: int) -> str:
    """Words, as unevenly as people use them."""
    return " ".join(WORDS[min(int(random.paretovariate(0.6)), len(WORDS)) - 1] for _ in range(count))


if __name__ == "__main__":
    url, size = sys.argv[1], int(sys.argv[2])
    with treering.open(url) as opened:
        build(opened, size)
