"""Payments and files of an agent that is killed again and again, on each kind of store.

Each run has a thread of its own and is carried on by new processes until it is done: each is killed with
SIGKILL at a failpoint or at a random moment, and some go on with the same thread at the same time. The
payment service and the file say what really happened, and so answer for the person who is asked.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import treering
from tests.faults.payer import PaymentService, work
from tests.server.running import running
from treering.server.settings import Settings

FAILPOINTS = (
    "effect.started",
    "effect.called",
    "effect.ended",
    "commit.begin",
    "commit.before_commit",
    "commit.after_commit",
    "flush.before_commit",
)
SECONDS = 120.0
ROUNDS = 60
"""More lives than any run needs: the later ones are not killed."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "gateway"])
def url(request, tmp_path):
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    elif request.param == "sqlite":
        yield str(tmp_path / "store")
    else:
        opened = treering.open(tmp_path / "store", durability="fast")
        with running(opened, Settings(calls_per_second=1e6)) as served:
            yield served


def test_killed_agents_pay_once(url, tmp_path):
    counts = Killer(url, tmp_path).runs(4, seed=8)
    assert counts["kills"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_killed_agents_pay_once(url, tmp_path):
    counts = Killer(url, tmp_path).runs(334, seed=1000)
    print(dict(counts))
    assert counts["kills"] > 334
    assert counts["unknown"] > 0


class Killer:
    """Runs agents, kills their processes, and compares the store with what really happened."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.faults.payer"])
        self.counts: Counter[str] = Counter()

    def runs(self, count: int, *, seed: int) -> Counter[str]:
        chance = random.Random(seed)
        self.service = PaymentService()
        try:
            with treering.open(self.url, durability="fast") as store:
                for number in range(count):
                    self._run(store, f"{seed}-{number}", number, chance)
                assert store.verify().problems == ()
        finally:
            self.service.shutdown()
            self.service.server_close()
        self.counts["runs"] = count
        return self.counts

    def _run(self, store: treering.Store, thread: str, number: int, chance: random.Random) -> None:
        """Carry one thread to its end."""
        self.file = self.folder / f"{thread}.txt"
        store.thread(thread).append({"role": "user", "content": "Pay the bills"})
        for life in range(ROUNDS):
            is_last = life >= ROUNDS // 2
            together = 1 if is_last or chance.random() < 0.6 else 2
            how = None
            if not is_last and chance.random() < 0.5:
                name = FAILPOINTS[(number + life) % len(FAILPOINTS)]
                how = f"{name}=kill:{chance.randint(1, 6)}"
            after = (
                chance.uniform(0.0, 0.25) if how is None and not is_last and chance.random() < 0.7 else None
            )
            self._live(thread, together, how, after)
            self._check(store, thread)
            self._answer(store, thread)
            if self._is_done(store, thread):
                break
        else:
            pytest.fail(f"thread {thread} was not done after {ROUNDS} lives")
        self._check_end(store, thread)

    def _live(self, thread: str, together: int, failpoint: str | None, after: float | None) -> None:
        """Start one or two processes, kill them (or not), and wait until they are gone."""
        arguments = (self.url, thread, self.service.url, str(self.file), failpoint)
        lives: list[Any] = [self.context.Process(target=work, args=arguments) for _ in range(together)]
        for each in lives:
            each.start()
        if after is not None:
            time.sleep(after)
            for each in lives:
                each.kill()
        for each in lives:
            each.join(SECONDS)
            assert each.exitcode in (0, 3, -signal.SIGKILL), each.exitcode
            self.counts["kills"] += each.exitcode == -signal.SIGKILL
        self.counts["at_failpoints"] += sum(each.exitcode == -9 for each in lives) if failpoint else 0
        self.counts["two_at_once"] += together == 2
        self.counts["processes"] += together

    def _check(self, store: treering.Store, thread: str) -> None:
        """No process is alive: what happened is in the store, and what nobody knows is reported."""
        effects = list(store.effects.list(thread_id=thread))
        by_order = {next(iter(each.arguments.values())): each for each in effects}
        assert len(by_order) == len(effects), "a call has two effects"
        happened = self._happened(thread)
        assert set(happened) <= set(by_order), "something happened without an intent"
        assert max(happened.values(), default=0) <= 1, happened
        left = {each.id for each in effects if each.status in ("started", "unknown") and not each.takes_key}
        reported = {each.id for each in store.effects.unknown(thread_id=thread)}
        assert reported == left, "an effect that nobody knows is not reported"
        for order, effect in by_order.items():
            if effect.status == "done":
                assert happened[order] == 1, f"{order} is done and did not happen"
            elif effect.status == "planned":
                assert order not in happened, f"{order} happened and is only planned"

    def _answer(self, store: treering.Store, thread: str) -> None:
        """Answer for a person who looks into the ledger."""
        for effect in store.effects.unknown(thread_id=thread):
            self.counts["unknown"] += 1
            order = next(iter(effect.arguments.values()))
            if order in self._happened(thread):
                store.effects.resolve(effect.id, happened=True, result=f"found {order}", by="ledger")
            else:
                store.effects.retry(effect.id, by="ledger")

    def _happened(self, thread: str) -> Counter[str]:
        with self.service._lock:
            found = Counter(order for order, _ in self.service.payments if order.startswith(f"{thread}/"))
        if self.file.exists():
            found.update(self.file.read_text(encoding="utf-8").split())
        return found

    def _is_done(self, store: treering.Store, thread: str) -> bool:
        head = store.thread(thread).head
        return head is not None and head.metadata.get("status") == "done"

    def _check_end(self, store: treering.Store, thread: str) -> None:
        happened = self._happened(thread)
        assert set(happened.values()) == {1}
        assert len(happened) == 6
        effects = list(store.effects.list(thread_id=thread))
        assert [each.status for each in effects] == ["done"] * 6
        messages = store.thread(thread).load().messages
        assert [each["role"] for each in messages] == [
            "user", "assistant", "tool", "tool", "tool", "assistant", "tool", "tool", "tool", "assistant",
        ]  # fmt: skip
        self.counts["effects"] += len(effects)
        self.counts["attempts"] += sum(each.attempt for each in effects)
