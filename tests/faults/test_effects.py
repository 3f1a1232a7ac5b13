"""Payments and files of an agent that is killed again and again, on each kind of store.

Each run has a thread of its own and is carried on by new processes until it is done. The first of them is
killed, and later ones may be: with SIGKILL, at a failpoint or at a random moment; some go on with the same
thread at the same time. The payment service and the file say what really happened, and so answer for the
person who is asked; what the store has acknowledged is noted by the processes themselves.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import treering
from tests.faults.payer import BUSY, Generation, Life, PaymentService
from tests.server.running import running
from treering.effects.effects import LEASE_SECONDS, Effect
from treering.server.settings import Settings

OF_EFFECTS = {"effect.started": 6, "effect.called": 6, "effect.ended": 6}
OF_COMMITS = {"commit.begin": 17, "commit.before_commit": 17, "commit.after_commit": 17}
FAILPOINTS = {
    "sqlite": {**OF_EFFECTS, **OF_COMMITS, "flush.before_commit": 1},
    "postgres": {**OF_EFFECTS, **OF_COMMITS},
    "gateway": {**OF_EFFECTS, "remote.sending": 17, "remote.answered": 17},
}
"""Where processes die, and how often one that is not killed passes there (or more often)."""
CALLS = 6
ROUNDS = 40
"""More generations than any run needs: the later ones are not killed."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "gateway"])
def killer(request, tmp_path):
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else str(tmp_path / "store")
    with treering.open(url, durability="fast") as store:
        if request.param == "gateway":
            with running(store, Settings(calls_per_second=1e6)) as served:
                yield Killer("gateway", served, store, tmp_path)
        else:
            yield Killer(request.param, url, store, tmp_path)


def test_killed_agents_pay_once(killer):
    counts = killer.runs(4, seed=8, lanes=1)
    assert counts["killed runs"] >= 4


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_killed_agents_pay_once(killer):
    counts = killer.runs(1000, seed=1000, lanes=6)
    print("\n" + json.dumps({killer.kind: dict(sorted(counts.items()))}, indent=1))
    assert counts["killed runs"] >= 1000
    assert counts["unknown"] > 100
    assert counts["kills at random"] > 100
    assert all(counts[f"kills at {name}"] for name in FAILPOINTS[killer.kind])


class Killer:
    """Runs agents, kills their processes, and compares the store with what really happened."""

    def __init__(self, kind: str, url: str, store: treering.Store, folder: Path) -> None:
        self.kind = kind
        self.url = url
        self.store = store
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.seconds = 0.3
        """About how long a process lives that nobody kills."""
        self._lock = threading.Lock()

    def runs(self, count: int, *, seed: int, lanes: int) -> Counter[str]:
        """Carry threads to their ends, some at once, until so many were killed on their way."""
        numbers = itertools.count()
        self.service = PaymentService()
        try:
            with ThreadPoolExecutor(lanes) as pool:
                for ended in [pool.submit(self._lane, seed, numbers, count) for _ in range(lanes)]:
                    ended.result()
            assert self.store.verify().problems == ()
        finally:
            self.service.shutdown()
            self.service.server_close()
        return self.counts

    def _lane(self, seed: int, numbers: Iterator[int], count: int) -> None:
        nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.payer"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with nursery:  # which closes its input at the end
            while self.counts["killed runs"] < count:
                number = next(numbers)
                Run(self, nursery, f"{seed}-{number}", number).carry_on()
            assert nursery.stdin is not None
            nursery.stdin.close()
            assert nursery.wait(60) == 0

    def count(self, **found: int) -> None:
        """Add to the counts, whose names have spaces for underscores."""
        with self._lock:
            self.counts.update({name.replace("_", " "): number for name, number in found.items()})

    def count_kill(self, place: str) -> None:
        with self._lock:
            self.counts[f"kills at {place}"] += 1
            self.counts["kills"] += 1


class Run:
    """One thread, from its first process to its last."""

    def __init__(self, killer: Killer, nursery: subprocess.Popen[str], thread: str, number: int) -> None:
        self.killer = killer
        self.store = killer.store
        self.nursery = nursery
        self.thread = thread
        self.number = number
        self.chance = random.Random(f"{thread} {killer.kind}")
        self.file = killer.folder / f"{thread}.txt"
        self.acknowledged = killer.folder / f"{thread}.acknowledged"
        self.kills = 0
        self.known: set[str] = set()

    def carry_on(self) -> None:
        self.store.thread(self.thread).append({"role": "user", "content": "Pay the bills"})
        for generation in range(ROUNDS):
            self._live(generation)
            self._check()
            self._answer()
            if self._is_done():
                break
        else:
            pytest.fail(f"thread {self.thread} was not done after {ROUNDS} generations of processes")
        self._check_end()
        self.killer.count(runs=1, killed_runs=self.kills > 0)

    def _live(self, generation: int) -> None:
        """Start one or two processes, kill them (or not), and wait until they are gone."""
        places = FAILPOINTS[self.killer.kind]
        is_last = generation >= ROUNDS // 2
        together = 1 if is_last or not generation or self.chance.random() < 0.6 else 2
        lives: list[Life] = []
        for _ in range(together):
            failpoint = None
            if not is_last and (not self.kills or self.chance.random() < 0.5):
                name = list(places)[(self.number + generation) % len(places)]
                failpoint = f"{name}=kill:{self.chance.randint(1, places[name])}"
            lives.append(self._life(failpoint))
        after = None
        if not is_last and all(each.failpoint is None for each in lives) and self.chance.random() < 0.7:
            after = self.chance.uniform(0.0, 1.2 * self.killer.seconds)
        began = time.monotonic()
        statuses = self._tell(Generation(lives, after))
        self.killer.count(processes=together, two_at_once=together == 2)
        for life, status in zip(lives, statuses, strict=True):
            assert status in (0, BUSY, -signal.SIGKILL), f"{life} ended with {status}"
            if status == -signal.SIGKILL:
                self.kills += 1
                self.killer.count_kill(life.failpoint.partition("=")[0] if life.failpoint else "random")
        if together == 1 and statuses == [0]:
            seconds = min(1.0, time.monotonic() - began)
            self.killer.seconds += (seconds - self.killer.seconds) / 20

    def _life(self, failpoint: str | None) -> Life:
        return Life(
            url=self.killer.url,
            thread=self.thread,
            service=self.killer.service.url,
            file=str(self.file),
            acknowledged=str(self.acknowledged),
            failpoint=failpoint,
            record=self.number % 2 == 0 and "flush" not in (failpoint or ""),
        )

    def _tell(self, generation: Generation) -> list[int]:
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(msgspec.json.encode(generation).decode() + "\n")
        self.nursery.stdin.flush()
        return json.loads(self.nursery.stdout.readline())

    def _check(self) -> None:
        """No process is alive: what happened is in the store, and what nobody knows is reported."""
        effects, reported = self._settled()
        by_order = {_order(each): each for each in effects}
        assert len(by_order) == len(effects), "a call has two effects"
        assert self.known <= {each.id for each in effects}, "an effect was lost"
        self.known |= {each.id for each in effects}
        happened = self._happened()
        assert set(happened) <= set(by_order), "something happened without an intent"
        assert max(happened.values(), default=0) <= 1, happened
        assert reported == _left(effects), "an effect that nobody knows is not reported"
        for order, effect in by_order.items():
            if effect.status == "done":
                assert happened[order] == 1, f"{order} is done and did not happen"
            elif effect.status == "planned":
                assert order not in happened, f"{order} happened and is only planned"
        acknowledged = self._acknowledged()
        for kind, order in acknowledged:
            assert order in by_order, f"the intent of {order} was acknowledged and is lost"
            if kind == "tool_result":
                assert by_order[order].status == "done", (
                    f"the outcome of {order} was acknowledged and is lost"
                )
        self.killer.count(
            checks=1,
            acknowledged_intents_checked=sum(kind == "tool_call" for kind, _ in acknowledged),
            acknowledged_outcomes_checked=sum(kind == "tool_result" for kind, _ in acknowledged),
        )

    def _settled(self) -> tuple[list[Effect], set[str]]:
        """Return all effects, and those reported as unknown, once nothing of a dead process is on its way.

        A process that died between taking an effect's lease and storing its start leaves the lease behind,
        for two seconds; until then nobody can tell that it is dead. And what it sent last to a database or
        a server may be stored after its death, between two of our reads.
        """
        deadline = time.monotonic() + LEASE_SECONDS
        while True:
            effects = list(self.store.effects.list(thread_id=self.thread))
            reported = {each.id for each in self.store.effects.unknown(thread_id=self.thread)}
            if reported == _left(effects) or time.monotonic() > deadline:
                return effects, reported
            self.killer.count(waits_for_a_lease=1)
            time.sleep(0.1)

    def _answer(self) -> None:
        """Answer for a person who looks into the ledger."""
        for effect in self.store.effects.unknown(thread_id=self.thread):
            order = _order(effect)
            happened = order in self._happened()
            self.killer.count(unknown=1, unknown_that_had_happened=happened)
            if happened:
                self.store.effects.resolve(effect.id, happened=True, result=f"found {order}", by="ledger")
            else:
                self.store.effects.retry(effect.id, by="ledger")

    def _acknowledged(self) -> set[tuple[str, str]]:
        """Return what processes were told is durable: intents (before the call) and outcomes."""
        if not self.acknowledged.exists():
            return set()
        lines = self.acknowledged.read_text(encoding="utf-8").splitlines()
        return {(kind, order) for kind, _, order in (line.partition(" ") for line in lines)}

    def _happened(self) -> Counter[str]:
        """Return what really happened; a request of a dead process may still be on its way."""
        self.killer.service.settle()
        found = self.killer.service.paid_of(f"{self.thread}/")
        if self.file.exists():
            found.update(self.file.read_text(encoding="utf-8").split())
        return found

    def _is_done(self) -> bool:
        head = self.store.thread(self.thread).head
        return head is not None and head.metadata.get("status") == "done"

    def _check_end(self) -> None:
        happened = self._happened()
        assert set(happened.values()) == {1}
        assert len(happened) == CALLS
        effects = list(self.store.effects.list(thread_id=self.thread))
        assert [each.status for each in effects] == ["done"] * CALLS
        messages = self.store.thread(self.thread).load().messages
        assert [each["role"] for each in messages] == [
            "user", "assistant", "tool", "tool", "tool", "assistant", "tool", "tool", "tool", "assistant",
        ]  # fmt: skip
        self.killer.count(effects=len(effects), attempts=sum(each.attempt for each in effects))
        self.killer.count(requests_repeated_with_key=self.killer.service.repeated_of(f"{self.thread}/"))


def _left(effects: Iterable[Effect]) -> set[str]:
    """Return the effects whose outcome nobody knows."""
    return {each.id for each in effects if each.status in ("started", "unknown") and not each.takes_key}


def _order(effect: Effect) -> str:
    (order,) = effect.arguments.values()
    return order
