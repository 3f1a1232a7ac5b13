"""Create a sample store: two weeks of work of several agents, in a few seconds and without any model.

Everything is written through the public API with a clock that is passed in, so that the same call creates the
same data. ``python examples/sample_store.py ./sample`` creates one; ``treering ui --store ./sample`` shows
it.
"""

from __future__ import annotations

import random
import shutil
import struct
import sys
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from time import time_ns

import treering
from treering.core.clock import ManualClock
from treering.errors import TreeringError
from treering.memory.documents import Provenance
from treering.store import Store

DAY = 86_400
AGENTS = ("planner", "coder", "reviewer", "support")
MODELS = {
    "planner": "claude-opus-4-5",
    "coder": "claude-sonnet-4-5",
    "reviewer": "gpt-5",
    "support": "gpt-5-mini",
}
QUESTIONS = (
    "Where is my refund?",
    "Add a --json flag to the exporter.",
    "Why does the nightly build fail on Tuesdays?",
    "Summarise what customers said about the new invoice.",
    "Rename Order to Purchase, everywhere.",
    "Is the price list of September still valid?",
)
ANSWERS = (
    "It was sent on Monday and should arrive within three working days.",
    "Done. The flag prints one object per line; two tests cover it.",
    "The cache is cleared on Tuesdays, and the first build downloads everything, past its time limit.",
    "Most like it. Three asked for the due date to be larger, one for a QR code.",
    "Renamed in 14 files. The database column keeps its name; a migration would be a separate step.",
    "No. It was replaced on the first of October; here are the three prices that differ.",
)


def create(url: str | Path, *, now_us: int | None = None, runs: int = 36) -> None:
    """Fill a new store with two weeks of work that end just before ``now_us``."""
    now_us = time_ns() // 1000 if now_us is None else now_us
    clock = ManualClock(now_us - 14 * DAY * 1_000_000)
    chance = random.Random(7)
    with _opened(url, clock) as store:
        for number in range(runs):
            _run(store, clock, chance, number)
            clock.advance(seconds=12.5 * DAY / runs)
        _threads(store, clock)
        _files(store, clock)
        _memories(store, clock)
        _limits(store)
        _failed_run(store, clock)
    with treering.open(url) as store:
        _schedules(store)


def _opened(url: str | Path, clock: ManualClock) -> Store:
    """Open the store at a URL with our own clock."""
    opened = treering.open(url)
    return Store(opened.engine, folder=opened._folder, clock=clock)


def _run(store: Store, clock: ManualClock, chance: random.Random, number: int) -> None:
    agent = AGENTS[number % len(AGENTS)]
    model = MODELS[agent]
    pick = number % len(QUESTIONS)
    tags = ("nightly",) if number % 5 == 0 else ()
    with store.run(agent=agent, thread=f"work/{agent}", id=f"run-{number:03}", tags=tags) as run:
        run.message("user", QUESTIONS[pick], id=f"m{number}")
        clock.advance(seconds=0.05)
        with run.span(agent, input={"goal": QUESTIONS[pick]}, id=f"r{number}") as span:
            for turn in range(1 + chance.randrange(3)):
                _turn(span, clock, chance, model=model, key=f"r{number}t{turn}")
            clock.advance(seconds=0.4)
            usage = {
                "input": chance.randrange(400, 2000),
                "output": chance.randrange(40, 400),
                "cache_read": 1800,
            }
            span.message("assistant", ANSWERS[pick], model=model, usage=usage, id=f"a{number}")
            clock.advance(seconds=0.02)
    clock.advance(seconds=20)
    store.flush()


def _turn(span, clock: ManualClock, chance: random.Random, *, model: str, key: str) -> None:
    with span.span("think", kind="reasoning", id=f"{key}-think") as thought:
        clock.advance(seconds=0.2 + chance.random() / 2)
        thought.output = "The question names no date. Look it up before promising one."
    with span.span("generate", kind="llm", model=model, id=f"{key}-llm") as call:
        clock.advance(seconds=0.8 + chance.random() * 2)
        call.use(
            {"input": chance.randrange(900, 4000), "output": chance.randrange(30, 300), "cache_read": 900}
        )
    with span.tool("search_docs", {"q": "refund policy", "top": 3}, id=f"{key}-search") as found:
        clock.advance(seconds=0.1 + chance.random() / 3)
        found.output = [
            {"page": 3, "title": "Refunds", "text": "A refund takes three to five working days."},
            {"page": 9, "title": "Exceptions", "text": "Gift cards are refunded as gift cards."},
        ]
    with span.span("orders.db", kind="retrieval", input={"order": 4711}, id=f"{key}-db") as looked:
        clock.advance(seconds=0.03)
        looked.output = {"order": 4711, "state": "refunded", "amount": "20.00"}


def _failed_run(store: Store, clock: ManualClock) -> None:
    run = store.run(agent="coder", thread="work/coder", id="run-failed", tags=("release",)).start()
    run.message("user", "Publish version 1.4.", id="mf")
    span = run.span("coder", input={"goal": "publish"}, id="rf").start()
    clock.advance(seconds=1.2)
    with span.tool("run_tests", {"suite": "all"}, id="rf-tests") as tests:
        clock.advance(seconds=6.5)
        tests.output = "312 passed"
    upload = span.tool("upload", {"file": "dist/shop-1.4.tar.gz"}, id="rf-upload").start()
    clock.advance(seconds=2.1)
    try:
        raise ConnectionRefusedError("the package index refused the connection (try 3 of 3)")
    except ConnectionRefusedError as error:
        upload.fail(error)
        upload.end()
        span.fail(error)
        span.end()
        run.fail(error)
    store.flush()


def _threads(store: Store, clock: ManualClock) -> None:
    alice = store.thread("support/alice")
    said = [
        ("user", "Where is my refund?", None),
        ("assistant", "It was sent on Monday.", "first draft"),
        ("user", "Nothing came.", None),
        ("assistant", "Let me look at the bank's file.", "looked it up"),
        ("user", "Please do.", None),
    ]
    checkpoints = []
    for step, (role, text, note) in enumerate(said):
        clock.advance(seconds=40)
        checkpoints.append(
            alice.append(
                {"role": role, "content": text},
                state={
                    "todos": ["check the bank", "call back"][: 1 + step % 2],
                    "step": step,
                    "customer": "alice",
                },
                note=note,
                tags=["draft"] if note == "first draft" else (),
                metadata={"model": "gpt-5-mini"},
            )
        )
    bolder = alice.fork("support/alice-bolder", at=checkpoints[1])
    for text in ("I am sending it again, by wire.", "It has left our bank.", "Anything else?"):
        clock.advance(seconds=30)
        bolder.append(
            {"role": "assistant", "content": text}, state={"todos": [], "step": 9, "customer": "alice"}
        )
    alice.rewind(checkpoints[2])
    for text in ("The bank returned it: the account was closed.", "Which account shall I use?"):
        clock.advance(seconds=35)
        alice.append(
            {"role": "assistant", "content": text}, state={"todos": ["ask for an account"], "step": 5}
        )
    formal = alice.fork("support/alice-formal", at=checkpoints[2])
    clock.advance(seconds=15)
    formal.append({"role": "assistant", "content": "Dear Alice, we regret the delay."}, note="formal tone")
    letter = formal.fork("support/alice-letter")
    for text in ("Enclosed please find a voucher.", "Yours sincerely"):
        clock.advance(seconds=25)
        letter.append({"role": "assistant", "content": text})
    clock.advance(seconds=20)
    alice.interrupt(
        {"tool": "send_refund", "amount": 20, "currency": "EUR", "to": "DE02 1203 0000 0000 2020 51"}
    )
    research = store.thread("research/long-horizon")
    for step in range(90):
        clock.advance(seconds=11)
        research.append(
            {"role": "assistant", "content": f"Finding {step}: " + ANSWERS[step % 6]}, state={"page": step}
        )


def _files(store: Store, clock: ManualClock) -> None:
    folder = Path(mkdtemp(prefix="sample-"))
    try:
        (folder / "shop").mkdir()
        (folder / "README.md").write_text("# Shop\n\nSells things. Refunds them, too.\n")
        (folder / "shop" / "refund.py").write_text(REFUND)
        (folder / "logo.png").write_bytes(_png(96))
        (folder / "data.bin").write_bytes(bytes(range(256)) * 8)
        coder = store.thread("work/refunds")
        coder.checkpoint(
            [{"role": "user", "content": "Refunds need a limit."}], workspace=folder, note="before"
        )
        store.workspace.snapshot(folder, name="shop", note="before the limit")
        clock.advance(seconds=60)
        (folder / "shop" / "refund.py").write_text(
            REFUND.replace("return amount", "return min(amount, LIMIT)", 1)
        )
        (folder / "shop" / "limits.py").write_text("LIMIT = 500\n")
        clock.advance(seconds=60)
        talk = [*coder.load().messages, {"role": "assistant", "content": "There is a limit of 500 now."}]
        coder.checkpoint(talk, workspace=folder, note="after")
        store.workspace.snapshot(folder, name="shop", note="with a limit", tags=["tested"])
    finally:
        shutil.rmtree(folder)


def _memories(store: Store, clock: ManualClock) -> None:
    memory = store.memory
    memory.save("alice/tone", "Prefers concise replies.", tags=["style", "alice"], auto_load=True)
    memory.save(
        "policy/refunds",
        "Refunds take three to five working days.\nGift cards stay gift cards.",
        tags=["policy"],
    )
    clock.advance(seconds=3600)
    memory.save(
        "alice/tone", "Prefers very concise replies,\nand no emojis.", tags=["style", "alice"], auto_load=True
    )
    with store.run(agent="librarian", id="run-librarian"):
        memory.save(
            "policy/summary",
            "Refunds: 3-5 days. Gift cards are refunded as such.",
            tags=["policy", "summary"],
            provenance=Provenance(source="the handbook", trust="high", derived_from=("policy/refunds",)),
        )
    until = datetime.fromtimestamp(clock.now_us() / 1e6, UTC) + timedelta(days=90)
    memory.save("offer/autumn", "Ten percent on everything until the leaves are down.", expires_at=until)
    memory.in_namespace("user/bob").save("food", "Allergic to peanuts.", tags=["health"], auto_load=True)
    store.flush()


def _limits(store: Store) -> None:
    store.budgets.set("everything", per="store", every="month", money=5, action="warn")
    store.budgets.set("careful", per="run", agent="support", tokens=200_000, tool_calls=50)
    store.alerts.set_rule("failures", "failed")


def _schedules(store: Store) -> None:
    tasks = store.schedules
    tasks.cron(
        "0 7 * * 1-5", prompt="Summarise the night", tz="Europe/Berlin", channel="telegram", chat_id="4711"
    )
    hourly = tasks.interval(3600, prompt="Look at the inbox")
    paused = tasks.cron("30 2 * * *", prompt="Compact the archive")
    tasks.once("2099-12-31T23:59:00+01:00", prompt="Wish a happy new year")
    tasks.pause(paused.id)
    _run_task(store, hourly.id)


def _run_task(store: Store, task_id: str) -> None:
    """Let a worker run a task once."""
    from threading import Event

    done = Event()
    with store.schedules.worker(lambda due: f"{due.prompt}: 3 new", deliver=lambda *_: done.set()):
        store.schedules.run_now(task_id)
        if not done.wait(30):
            raise TreeringError("the worker did not come to it within 30 seconds")


def add_large_run(url: str | Path, *, events: int = 50_000, id: str = "run-large") -> None:
    """Add one run with very many events."""
    clock = ManualClock(time_ns() // 1000 - 3 * DAY * 1_000_000)
    with _opened(url, clock) as store:
        run = store.run(agent="indexer", id=id).start()
        written = 0
        while written < events:
            with run.span(f"day {written // 100}", input={"day": written // 100}, id=f"d{written}") as day:
                for _ in range(min(33, (events - written - 1) // 3 + 1)):
                    with day.tool("measure", {"tree": written}, id=f"x{written}") as call:
                        clock.advance(seconds=0.02)
                        call.output = {"rings": written % 300}
                    with day.span("think", kind="llm", model="gpt-5-mini", id=f"l{written}") as thought:
                        clock.advance(seconds=0.05)
                        thought.use({"input": 120, "output": 12})
                    day.message("assistant", f"Tree {written} has {written % 300} rings.", id=f"w{written}")
                    written += 3
            written += 1
        run.end()


def add_many_runs(url: str | Path, *, runs: int = 10_000) -> None:
    """Add many small runs."""
    clock = ManualClock(time_ns() // 1000 - runs * 60 * 1_000_000)
    with _opened(url, clock) as store:
        for number in range(runs):
            run = store.run(agent=f"worker-{number % 7}", id=f"crowd-{number:05}").start()
            usage = {"input": 100 + number % 50, "output": 20}
            run.message("assistant", f"Done with {number}.", model="gpt-5-mini", usage=usage, id=f"c{number}")
            clock.advance(seconds=1 + number % 13)
            run.end(status="error" if number % 31 == 0 else "ok")
            clock.advance(seconds=46)


REFUND = '''"""Refunds."""

from shop.limits import LIMIT


def refund(order, amount):
    """How much goes back to the customer."""
    if order.is_refunded:
        return 0
    return amount
'''


def _png(size: int) -> bytes:
    """Return a small generated PNG."""
    rows = bytearray()
    for y in range(size):
        rows.append(0)
        for x in range(size):
            distance = ((x - size / 2) ** 2 + (y - size / 2) ** 2) ** 0.5
            shade = 230 - int(70 * (distance % 9 < 3)) if distance < size / 2 else 255
            rows += bytes(
                (shade, max(shade - 40, 0), max(shade - 80, 0)) if distance < size / 2 else (255, 255, 255)
            )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(rows)))
        + chunk(b"IEND", b"")
    )


if __name__ == "__main__":
    create(sys.argv[1] if len(sys.argv) > 1 else "./sample")
