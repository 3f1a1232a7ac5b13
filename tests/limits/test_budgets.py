"""Budgets of money, tokens and tool calls: shared by all who record, and heeded before the next call."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

import treering
from treering.core.clock import DAY_US, ManualClock
from treering.core.query import EventQuery
from treering.errors import BudgetExceeded, InvalidInput, StoreFull
from treering.store import Store

pytestmark = pytest.mark.filterwarnings("error")


def call(run, *, cost="1", tokens=10, agent=None, kind="llm"):
    with run.span("gpt", kind=kind, agent=agent, model="m") as span:
        span.use({"output": tokens}, cost=cost)


def test_money_of_a_run_stops_the_next_call(store):
    store.budgets.set("run", per="run", money="2.5", currency="USD")
    with store.run(agent="a") as run:
        for _ in range(3):
            call(run)
        with pytest.raises(BudgetExceeded, match=r"budget run of run .*: 3 of 2.5 USD is used up") as caught:
            call(run)
    store.flush()
    assert (caught.value.budget, caught.value.limit, caught.value.count) == (
        "run",
        2_500_000_000,
        3_000_000_000,
    )
    assert store.cost.of_run(run.id, by="kind").total.tokens == 30
    with store.run(agent="a") as other:
        call(other)


@pytest.mark.parametrize("kind", ["llm", "tool"])
def test_a_denied_call_leaves_no_trace(store, kind):
    store.budgets.set("none", per="store", tokens=0)
    with store.run() as run, pytest.raises(BudgetExceeded):
        call(run, kind=kind)
    store.flush()
    assert store.timeline.of_run(run.id, everything=True).events[:1][0].type in ("alert", "run")
    kinds = {each.event.kind for each in store.engine.scan(store.space, EventQuery(run=run.id)).records}
    assert "span." + kind not in kinds
    assert "open." + kind not in kinds


def test_tokens_of_a_thread_and_tool_calls_of_an_agent(store):
    store.budgets.set("thread", per="thread", tokens=25)
    store.budgets.set("tools", per="agent", tool_calls=2)
    for _ in range(3):
        with store.run(agent="a", thread="t") as run:
            call(run)
    with store.run(agent="a", thread="t") as run, pytest.raises(BudgetExceeded, match="30 of 25 tokens"):
        call(run)
    with store.run(agent="b", thread="u") as run:
        for _ in range(2):
            with run.tool("search"):
                pass
        with pytest.raises(BudgetExceeded, match="of agent 'b': 2 of 2 tool calls"):
            run.tool("search").start()
    with store.run(agent="c", thread="u") as run, run.tool("search"):
        pass


def test_a_budget_of_one_agent_does_not_concern_the_others(store):
    store.budgets.set("writer", per="store", agent="writer", tokens=5)
    with store.run(agent="planner") as run:
        call(run)
        call(run)
        call(run, agent="writer")
        call(run, agent="planner")
        with pytest.raises(BudgetExceeded):
            call(run, agent="writer")


def test_a_day_and_a_month_begin_again():
    clock = ManualClock(1_700_000_000_000_000)  # 2023-11-14
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        store.budgets.set("daily", per="store", every="day", tokens=15)
        store.budgets.set("monthly", per="store", every="month", tokens=35)
        with store.run() as run:
            call(run)
            call(run)
            with pytest.raises(BudgetExceeded, match="wait for the next day"):
                call(run)
            clock.advance(seconds=DAY_US / 1e6)
            call(run)
            call(run)
            clock.advance(seconds=DAY_US / 1e6)
            with pytest.raises(BudgetExceeded, match="wait for the next month"):
                call(run)
            clock.advance(seconds=20 * DAY_US / 1e6)
            call(run)
        store.close()


def test_a_budget_that_only_warns_lets_calls_pass(store, caplog):
    store.budgets.set("soft", per="agent", tokens=20, action="warn", warn_at=0.5)
    with caplog.at_level(logging.WARNING, logger="treering.alerts"), store.run(agent="a") as run:
        for _ in range(4):
            call(run)
    alerts = store.alerts.page().alerts
    assert [(alert.level, alert.rule, alert.agent) for alert in alerts] == [
        ("critical", "budget/soft", "a"),
        ("warning", "budget/soft", "a"),
    ]
    assert alerts[1].message == "budget soft of agent 'a': 10 of 20 tokens, used by 50%"
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_an_alert_about_a_run_is_forgotten_with_its_thread(store):
    store.budgets.set("run", per="run", tokens=5)
    with store.run(agent="a", thread="alice") as run:
        call(run)
        with pytest.raises(BudgetExceeded):
            call(run)
    store.flush()
    (alert,) = store.alerts.page().alerts
    assert alert.run == run.id
    assert (alert.thread, alert.namespace) == ("alice", "")
    store.forget(thread="alice")
    assert store.alerts.page().alerts == ()
    assert store.verify().ok


def test_budgets_are_listed_changed_and_removed(store):
    store.budgets.set("b", per="run", tokens=5)
    store.budgets.set("a", per="agent", every="day", money="1.5", currency="EUR", action="warn")
    first, second = store.budgets.list()
    assert (first.name, first.money, first.currency, first.every) == ("a", pytest.approx(1.5), "EUR", "day")
    store.budgets.set("b", per="run", tokens=50)
    assert store.budgets.list()[1].tokens == 50
    assert store.budgets.remove("b")
    assert not store.budgets.remove("b")
    assert [each.name for each in store.budgets.list()] == ["a"]
    assert second.tokens == 5


def test_the_usage_of_a_budget(store):
    store.budgets.set("b", per="run", tokens=40, money=10)
    with store.run(agent="a") as run:
        call(run, tokens=30)
        run.message("assistant", "x", usage={"output": 3}, model="nobody-knows-this")
    store.flush()
    (standing,) = store.budgets.usage(run=run.id, agent="a")
    assert standing.used == {"money": 1_000_000_000, "tokens": 33}
    assert (standing.worst, standing.share, standing.is_used_up) == ("tokens", 33 / 40, False)
    assert standing.unpriced_tokens == 3
    store.budgets.check(run=run.id)
    assert store.budgets.usage() == ()


def test_usage_of_a_thread_by_its_id(store):
    store.budgets.set("talk", per="thread", tokens=20)
    for namespace in ("", "ns"):
        with store.run(agent="a", thread="support/alice", namespace=namespace) as run:
            call(run, tokens=15 if namespace else 25)
    store.flush()
    (standing,) = store.budgets.usage(thread="support/alice")
    assert standing.used == {"tokens": 25}
    assert standing.describe() == "talk of thread 'support/alice': 25 of 20 tokens"
    (elsewhere,) = store.budgets.usage(thread="support/alice", namespace="ns")
    assert elsewhere.used == {"tokens": 15}
    with pytest.raises(BudgetExceeded):
        store.budgets.check(thread="support/alice")
    store.budgets.check(thread="support/alice", namespace="ns")


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({"per": "week", "tokens": 1}, "per='week'"),
        ({"per": "run"}, "has no limit"),
        ({"per": "run", "tokens": -1}, "tokens=-1 is not a valid limit"),
        ({"per": "run", "tokens": 1, "every": "hour"}, "every='hour'"),
        ({"per": "run", "tokens": 1, "action": "shout"}, "action='shout'"),
        ({"per": "run", "tokens": 1, "warn_at": 2}, "warn_at=2"),
        ({"per": "run", "money": 1, "currency": "euro"}, "not a currency"),
    ],
)
def test_invalid_budgets_are_refused(store, wrong, why):
    with pytest.raises(InvalidInput, match=why):
        store.budgets.set("b", **wrong)


def test_amounts_of_other_currencies_are_converted(store):
    store.budgets.set("euros", per="run", money=1, currency="EUR")
    with store.run() as run:
        with run.span("gpt", kind="llm") as span:
            span.use({"output": 1}, cost="1.5", currency="USD")
        with pytest.raises(BudgetExceeded, match="of 1 EUR"):
            run.span("gpt", kind="llm").start()


WORKER = """
import sys, treering
from treering.errors import BudgetExceeded
with treering.open(sys.argv[1]) as store:
    with store.run(agent="a") as run:
        made = 0
        try:
            for _ in range(5):
                with run.span("gpt", kind="llm", model="m") as span:
                    span.use({"output": 10}, cost=1)
                made += 1
        except BudgetExceeded:
            pass
    print(made)
"""


def test_processes_share_a_budget(tmp_path):
    with treering.open(tmp_path / "store") as store:
        store.budgets.set("daily", per="store", every="day", money=7)
    made = []
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", WORKER, str(tmp_path / "store")],
            capture_output=True,
            text=True,
            check=True,
        )
        made.append(int(result.stdout))
    assert made == [5, 2, 0]


def test_the_async_store_has_budgets(tmp_path):
    async def spend():
        async with treering.open_async(tmp_path / "store") as store:
            await store.budgets.set("b", per="run", tokens=5)
            with store.run() as run:
                call(run)
                with pytest.raises(BudgetExceeded):
                    call(run)
            return [each.name for each in await store.budgets.list()]

    assert asyncio.run(spend()) == ["b"]


CALLER = """
import sys, treering
from treering.errors import BudgetExceeded
made = 0
with treering.open(sys.argv[1]) as store, store.run(agent="a") as run:
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        try:
            with run.tool("search"):
                made += 1
        except BudgetExceeded:
            break
print(made, flush=True)
"""


def test_eight_processes_make_exactly_as_many_calls_as_a_strict_budget_allows(tmp_path):
    with treering.open(tmp_path / "store") as store:
        store.budgets.set("calls", per="store", tool_calls=100, strict=True)
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", CALLER, str(tmp_path / "store")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(8)
        ]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        made = [int(worker.communicate(timeout=120)[0]) for worker in workers]
        (usage,) = store.budgets.usage()
        assert (sum(made), usage.used, usage.reserved) == (100, {"tool_calls": 100}, {"tool_calls": 0})


def test_a_reservation_of_a_process_that_died_still_counts_and_nothing_else_is_lost(tmp_path):
    dies = CALLER.replace("made += 1", "made += 1; import os; made < 3 or os._exit(9)")
    with treering.open(tmp_path / "store") as store:
        store.budgets.set("calls", per="store", tool_calls=10, strict=True)
        for _ in range(2):
            run = [sys.executable, "-c", dies, str(tmp_path / "store")]
            assert subprocess.run(run, input="\n", text=True, timeout=120, check=False).returncode == 9
        (usage,) = store.budgets.usage()
        assert usage.used["tool_calls"] + usage.reserved["tool_calls"] == 6
        assert usage.reserved["tool_calls"] >= 2
        alone = [sys.executable, "-c", CALLER, str(tmp_path / "store")]
        last = subprocess.run(alone, input="\n", text=True, capture_output=True, timeout=120, check=True)
        assert last.stdout.splitlines()[-1] == "4"


def test_setting_a_strict_budget_again_gives_back_what_was_reserved_long_ago():
    clock = ManualClock(1_760_000_000_000_000)
    with Store(treering.open("memory:").engine, clock=clock) as store, store.run() as run:
        store.budgets.set("calls", per="store", tool_calls=2, strict=True)
        run.tool("never ends").start()
        clock.advance(seconds=3601)
        run.tool("still runs").start()
        with pytest.raises(BudgetExceeded):
            run.tool("third").start()
        store.budgets.set("calls", per="store", tool_calls=2, strict=True)
        assert store.budgets.usage()[0].reserved == {"tool_calls": 1}
        run.tool("third").start()
        store.budgets.remove("calls")
        store.budgets.set("calls", per="store", tool_calls=2, strict=True)
        assert store.budgets.usage()[0].reserved == {"tool_calls": 0}


def test_a_model_call_reserves_the_most_that_it_may_use_and_gives_the_rest_back(store):
    store.budgets.set("llm", per="run", tokens=100, call_tokens=60, money="1", call_money="0.6", strict=True)
    with store.run() as run:
        with run.span("gpt", kind="llm", model="m") as span:
            with pytest.raises(BudgetExceeded, match="what running calls have reserved"):
                run.span("gpt", kind="llm", model="m").start()
            with run.tool("free"):
                pass
            span.use({"output": 30}, cost="0.1")
        call(run, tokens=10, cost="0.3")
        call(run, tokens=1, cost="0.01")
        with pytest.raises(BudgetExceeded) as caught:
            call(run)
        assert (caught.value.count, caught.value.limit) == (410_000_000, 1_000_000_000)
    with store.run() as other:
        call(other)


def test_what_one_strict_budget_refuses_is_reserved_of_no_other(store):
    store.budgets.set("a wide one", per="store", tool_calls=10, strict=True)
    store.budgets.set("narrow", per="run", tool_calls=1, strict=True)
    with store.run() as run, run.tool("one"):
        with pytest.raises(BudgetExceeded, match="narrow"):
            run.tool("two").start()
        assert store.budgets.usage()[0].reserved == {"tool_calls": 1}
        with store.run() as other, other.tool("one"):
            assert store.budgets.usage()[0].reserved == {"tool_calls": 2}


def test_a_strict_budget_lets_no_call_through_when_the_store_fails(store, monkeypatch):
    store.budgets.set("calls", per="store", tool_calls=10, strict=True)
    with store.run() as run:
        monkeypatch.setattr(store.engine, "commit", _fails)
        with pytest.raises(StoreFull):
            run.tool("search").start()
        monkeypatch.undo()


def _fails(_):
    raise StoreFull("no space left")


@pytest.mark.parametrize(
    "given",
    [
        {"tokens": 10, "strict": True},
        {"tool_calls": 10, "call_tokens": 5, "strict": True},
        {"tokens": 10, "call_tokens": 0, "strict": True},
        {"money": 1, "call_money": -1, "strict": True},
        {"tool_calls": 10, "strict": True, "action": "warn"},
        {"tokens": 10, "call_tokens": 5},
    ],
)
def test_a_strict_budget_needs_what_a_call_may_use(store, given):
    with pytest.raises(InvalidInput):
        store.budgets.set("b", per="store", **given)
