"""Memory search: how fast it is among 100,000 documents, and how much of the evidence it finds.

Recall is measured on the development half of LoCoMo where that file is present (its licence keeps it out of
this repository): the share of the turns that hold a question's answer among the first ten hits. The weight
of neighbouring turns and the number of candidates were chosen on these same conversations: this is not a
held-out figure.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from random import Random

from langgraph.store.memory import InMemoryStore

import treering
from benchmarks.report import Measurement, Section

LOCOMO = Path(
    os.environ.get("TREERING_LOCOMO", Path(__file__).resolve().parents[2] / "shared/data/locomo-dev.json")
)
DOCUMENTS = 100_000
NAMESPACES = 50
PEER_DOCUMENTS = 20_000
QUESTIONS = 200
WORDS = [f"{first}{second}{third}" for first in "bdfgklmnprst" for second in "aeiou" for third in "bdglmnrst"]


def run(scratch: Path) -> Section:
    """Fill, search, compare."""
    measurements = _speed(scratch / "speed")
    if LOCOMO.exists():
        measurements += _recall(scratch / "recall")
    return Section(title="Memory", about=__doc__ or "", measurements=measurements)


def _text(random: Random) -> str:
    return " ".join(random.choices(WORDS, k=30))


def _questions(seed: int) -> list[str]:
    random = Random(seed)
    return [" ".join(random.choices(WORDS, k=4)) for _ in range(QUESTIONS)]


def _speed(folder: Path) -> list[Measurement]:
    random = Random(1)
    per = DOCUMENTS // NAMESPACES
    with treering.open(folder, durability="fast") as store:
        for number in range(NAMESPACES):
            memory = store.memory.in_namespace(f"user/{number}")
            memory.save_many({"id": f"n{each}", "content": _text(random)} for each in range(per))
        here = store.memory.in_namespace("user/7")
        one = _times(here.search, _questions(2))
        every = _times(lambda text: here.search(text, everywhere=True), _questions(3))
    peer = InMemoryStore(index={"dims": 64, "embed": _embed})
    for number in range(0, PEER_DOCUMENTS, 1000):
        for each in range(number, number + 1000):
            peer.put(("notes",), str(each), {"text": _text(random)})
    theirs = _times(lambda text: peer.search(("notes",), query=text), _questions(4)[:10])
    return [
        _limit(f"search in one namespace of {per:,} within {DOCUMENTS:,}, p50", one[0], 10),
        _limit(f"search in one namespace of {per:,} within {DOCUMENTS:,}, p99", one[1], 25),
        _limit(f"search among all {DOCUMENTS:,}, p50", every[0], 50),
        Measurement(
            claim=f"one namespace of {DOCUMENTS:,} against LangGraph InMemoryStore with {PEER_DOCUMENTS:,}",
            ours=f"{one[0]:.1f} ms",
            peer=f"{theirs[0]:.1f} ms",
            ratio=theirs[0] / one[0],
            target=">= 10x",
            met=theirs[0] / one[0] >= 10,
            note="theirs ranks by an embedding of 64 numbers that costs nothing to make",
        ),
    ]


def _embed(texts: list[str]) -> list[list[float]]:
    return [[float(hash((text, number)) % 1000) for number in range(64)] for text in texts]


def _times(ask, questions: list[str]) -> tuple[float, float]:
    """p50 and p99 in milliseconds."""
    ask(questions[0])
    taken: list[float] = []
    for question in questions:
        begun = time.perf_counter()
        ask(question)
        taken.append((time.perf_counter() - begun) * 1000)
    taken.sort()
    return statistics.median(taken), taken[min(len(taken) - 1, int(len(taken) * 0.99))]


def _limit(claim: str, ours: float, limit: float) -> Measurement:
    return Measurement(
        claim=claim,
        ours=f"{ours:.1f} ms",
        peer=f"limit {limit:g} ms",
        ratio=ours / limit,
        target="<= 1x",
        met=ours <= limit,
    )


def _recall(folder: Path) -> list[Measurement]:
    talks = json.loads(LOCOMO.read_text())
    with treering.open(folder, durability="fast") as store:
        plain: list[float] = []
        helped: list[float] = []
        each_talk: list[float] = []
        # All of them are there before the first question: the weights of words come from the whole index.
        for number, talk in enumerate(talks):
            store.memory.in_namespace(f"talk/{number}").save_many(
                {"id": turn["id"], "content": f"{turn['speaker']}: {turn['text']} {turn['image'] or ''}"}
                for turn in talk["turns"]
            )
        for number, talk in enumerate(talks):
            memory = store.memory.in_namespace(f"talk/{number}")
            questions = [each for each in talk["questions"] if each["evidence"]]
            plain += [_found(memory, each, 0.0) for each in questions]
            shares = [_found(memory, each, 0.3) for each in questions]
            helped += shares
            each_talk.append(statistics.mean(shares))
    rows = (
        ("LoCoMo evidence recall@10, words alone", statistics.mean(plain), 0.60, ""),
        (
            "LoCoMo evidence recall@10, with neighbours=0.3",
            statistics.mean(helped),
            0.64,
            f"by conversation {min(each_talk):.3f} to {max(each_talk):.3f}",
        ),
    )
    return [
        Measurement(
            claim=claim,
            ours=f"{value:.3f}",
            peer=f"target {target:.2f}",
            ratio=value / target,
            target=">= 1x",
            met=value >= target,
            note=note,
        )
        for claim, value, target, note in rows
    ]


def _found(memory, question: dict, neighbours: float) -> float:
    hits = memory.search(question["question"], limit=10, neighbours=neighbours)
    found = {hit.document.id for hit in hits}
    evidence = set(question["evidence"])
    return len(evidence & found) / len(evidence)
