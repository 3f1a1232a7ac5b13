"""What full-text search over the timeline costs: bytes a span, and how long a question takes.

The limits of bytes are those of the project: 700 a span without the index and 900 with it, where Phoenix was
measured at 2,229 and MLflow at 4,440. A span here has an input of 12 and an output of 30 words, drawn from a
vocabulary of 20,000 as unevenly as people speak. The peer of a question is reading every event and comparing
the same words, in the same run; the best turn of each counts.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import treering
from benchmarks.report import Measurement, Section, at_most
from treering.core.text import stem, words
from treering.maintenance.stats import folder_bytes
from treering.runs.search import EventIndex, searchable
from treering.runs.span import RunRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treering.store import Store

SPANS = 50_000
IN_A_RUN = 100
LIMIT_PLAIN = 700
LIMIT_INDEXED = 900
TURNS = 9
ONCE = "zyzzyva"


def run(scratch: Path) -> Section:
    """Record, measure, index, measure again, ask."""
    random = Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(random.choices(letters, k=random.randint(3, 10))) for _ in range(20_000)]

    def text(count: int) -> str:
        numbers = (min(int(random.paretovariate(0.6)), len(vocabulary) - 1) for _ in range(count))
        return " ".join(vocabulary[number] for number in numbers)

    folder = scratch / "store"
    with treering.open(folder) as store:
        for number in range(SPANS // IN_A_RUN):
            with store.run(agent=f"agent-{number % 7}") as recorded:
                for each in range(IN_A_RUN):
                    with recorded.tool("search", {"query": text(12)}) as call:
                        call.output = text(30) + (f" {ONCE}" if (number, each) == (123, 45) else "")
    plain = folder_bytes(folder) / SPANS
    questions = {
        "a common word": vocabulary[2],
        "three words": f"{vocabulary[3]} {vocabulary[700]} {vocabulary[9000]}",
        "a word that was said once": ONCE,
    }
    with treering.open(folder) as store:
        reading = {
            name: _best(lambda text=text: _read_all(store, text), 2) for name, text in questions.items()
        }
        start = time.perf_counter()
        store.timeline.index()
        index_us = (time.perf_counter() - start) / SPANS * 1e6
    indexed = folder_bytes(folder) / SPANS
    with treering.open(folder) as store:
        asking = {
            name: _best(lambda text=text: store.timeline.search(text), TURNS)
            for name, text in questions.items()
        }
        if len(store.timeline.search(ONCE).hits) != 1:
            raise RuntimeError("a word that was said once was not found once")
    return Section(
        title="Searching the timeline",
        about=__doc__ or "",
        measurements=[
            _row(f"bytes a span, without the index, of {SPANS:,}", plain, LIMIT_PLAIN, "B"),
            _row(
                "bytes a span, with the index",
                indexed,
                LIMIT_INDEXED,
                "B",
                note=f"the index itself {indexed - plain:.0f} B, and {index_us:.0f} us behind the writers",
            ),
            *(_question(name, asking[name], reading[name]) for name in questions),
        ],
    )


def _row(claim: str, ours: float, limit: float, unit: str, note: str = "") -> Measurement:
    target, met = at_most(ours / limit, 1)
    return Measurement(
        claim=claim,
        ours=f"{ours:.1f} {unit}",
        peer=f"{limit:g} {unit} (limit)",
        ratio=ours / limit,
        target=target,
        met=met,
        note=note,
    )


def _question(name: str, ours: float, reading: float) -> Measurement:
    target, met = at_most(ours / reading, 0.2)
    return Measurement(
        claim=f"asking for {name} (at most 20 hits), against reading everything",
        ours=f"{ours:.1f} ms",
        peer=f"{reading:.0f} ms",
        ratio=ours / reading,
        target=target,
        met=met,
    )


def _read_all(store: Store, text: str) -> int:
    """The same question without an index: how many texts hold any of the words."""
    index = EventIndex(store.engine, store.space)
    wanted = {stem(word) for word in words(text)}
    hits = 0
    for records in index.tail():
        for _, found in index.texts(searchable(map(RunRow, records))):
            hits += not wanted.isdisjoint(map(stem, words(found)))
    return hits


def _best(ask: Callable[[], object], turns: int) -> float:
    taken: list[float] = []
    for _ in range(turns):
        start = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - start) * 1000)
    return min(taken)
