"""B12: monitoring, as the document lists it: growth, cleaning up, slow queries, anomalies, crashed runs."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from contextlib import suppress

import treering
from treering.core.clock import DAY_US, ManualClock
from treering.core.retention import Keep
from treering.engines.memory.engine import MemoryEngine
from treering.store import Store

DIES = """
import os, signal, sys, treering
store = treering.open(sys.argv[1])
with store.run(agent="planner", id="dead") as run:
    run.message("user", "hi")
    store.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_storage_growth_is_tracked_and_old_runs_are_cleaned_up():
    clock = ManualClock()
    store = Store(MemoryEngine(clock=clock), clock=clock)
    for number in range(4):
        with store.run(agent="planner", id=f"run-{number}") as run:
            run.message("user", "x" * 6000)
        store.flush()
        clock.advance(seconds=30 * DAY_US / 1e6)
    assert [day.runs for day in store.growth().days] == [1, 1, 1, 1]
    before = store.growth().total_bytes
    planned = store.gc(keep_runs=Keep(within="70d"), dry_run=True)
    assert planned.dropped == {"run": 2}
    assert len(list(store.runs.each())) == 4
    assert store.gc(keep_runs=Keep(within="70d"), grace_seconds=0).dropped == {"run": 2}
    assert [info.id for info in store.runs.each()] == ["run-3", "run-2"]
    assert store.growth().total_bytes < before
    store.close()


def test_slow_queries_are_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TREERING_SLOW_MS", "0")
    with caplog.at_level(logging.WARNING, logger="treering.slow"), treering.open(tmp_path / "store") as store:
        with store.run(agent="planner", id="secret-run"):
            pass
        store.flush()
        store.timeline.of_run("secret-run")
    assert any("scan run=? order=time" in message for message in caplog.messages)
    assert "secret-run" not in caplog.text


def test_cost_anomalies_and_failed_agents_raise_alerts(store):
    store.alerts.set_rule("cost", "cost", times=5, at_least=5)
    store.alerts.set_rule("failed", "failed")
    for cost in (1, 1, 1, 1, 1, 9):
        with store.run(agent="planner") as run:
            run.message("assistant", "x", usage={"output": 5}, cost=cost)
        store.flush()
    with suppress(RuntimeError), store.run(agent="planner") as bad:
        raise RuntimeError("the tool is gone")
    store.flush()
    raised = {alert.rule: alert for alert in store.alerts.examine()}
    assert raised["cost"].run == run.id
    assert raised["failed"].run == bad.id
    assert "the tool is gone" in raised["failed"].message


def test_crashed_runs_are_found_and_marked(tmp_path):
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "store")], check=False)
    assert died.returncode == -signal.SIGKILL
    with treering.open(tmp_path / "store") as store:
        store.alerts.set_rule("failed", "failed")
        recorder = store.runs.load("dead").recorders[0]
        take_over(store, recorder)
        assert [info.id for info in store.runs.mark_crashed(newest=100)] == ["dead"]
        assert store.runs.load("dead").status == "crashed"
        assert [alert.run for alert in store.alerts.examine()] == ["dead"]


def take_over(store, recorder):
    """End the dead process's lease, which would end by itself after half a minute."""
    lease = store.engine.claim(store.space, f"recorder/{recorder}", holder=recorder, seconds=1)
    store.engine.release(lease)
