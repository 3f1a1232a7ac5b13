"""Finding out whether a run is alive: no run is running for ever, whatever way it came in."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import treering
from tests.runs.otlp.exports import TRACE, span
from tests.runs.otlp.test_traces import ROOT, send
from treering.compat import services
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.importers.recording import BatchRecorder
from treering.runs.listing import CrashSweep
from treering.runs.recorder import lease_name
from treering.runs.run import QUIET_SECONDS, Run
from treering.store import Store


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def clocked(clock):
    store = Store(MemoryEngine(clock=clock), clock=clock)
    yield store
    store.close()


def dies(store, run_id):
    """As if the processes that write a run were gone."""
    for recorder in store.runs.load(run_id).recorders:
        held = store.engine.claim(store.space, lease_name(recorder), holder=recorder, seconds=60)
        store.engine.release(held)


def test_two_who_ask_at_once_do_not_take_each_other_for_the_recorder(tmp_path):
    with treering.open(tmp_path / "store") as dying:
        run = dying.run(agent="a", id="r").start()
        dying.flush()
        (recorder,) = run.info.recorders
    with treering.open(tmp_path / "store") as store:
        held = store.engine.claim(store.space, lease_name(recorder), holder="probe", seconds=60)
        assert held is not None  # another one is just asking
        assert store.runs.load("r").status == "crashed"


def test_a_live_recorder_is_alive_to_concurrent_probes(tmp_path):
    with treering.open(tmp_path / "store") as writing, treering.open(tmp_path / "store") as store:
        writing.run(agent="a", id="r").start()
        writing.flush()
        assert [store.runs.load("r").status for _ in range(3)] == ["running"] * 3


def test_a_crashed_run_ended_with_its_last_sign_of_life(clocked, clock):
    run = clocked.run(agent="a").start()
    clock.advance(seconds=0.25)
    tool = run.tool("search").start()
    clock.advance(seconds=0.75)
    tool.end()
    clocked.flush()
    dies(clocked, run.id)
    clock.advance(seconds=99)
    assert clocked.runs.load(run.id).duration_us == 1_000_000  # said at once
    (listed,) = clocked.runs.page(status="crashed").runs
    assert listed == clocked.runs.load(run.id)
    assert clocked.runs.mark_crashed(dry_run=True) == [listed]
    assert clocked.runs.mark_crashed() == [listed]  # and written down
    assert clocked.runs.mark_crashed() == []
    assert clocked.runs.load(run.id) == listed
    assert clocked.performance.report("run").total.latency.mean_us == 1_000_000


SERVICES = """
import os, signal, sys, treering
from treering.compat import services
services.use(treering.open(sys.argv[1]))
run_id = services.create_run(id="r")
span_id = services.start_span(run_id, "planner")
print(span_id, flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_run_of_the_services_is_found_crashed_and_goes_on_in_another_process(tmp_path, how):
    child = subprocess.run(
        [sys.executable, "-c", SERVICES, str(tmp_path / "store"), how],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert child.returncode == (-signal.SIGKILL if how == "kill" else 0)
    with treering.open(tmp_path / "store") as store:
        services.use(store)
        if how == "kill":
            dies(store, "r")
        assert store.runs.load("r").status == "crashed"
        assert [info.id for info in store.runs.mark_crashed()] == ["r"]
        services.end_span(child.stdout.strip())
        assert store.runs.load("r").status == "running"
        assert store.runs.mark_crashed() == []
        services.end_run("r")
        assert store.runs.load("r").status == "ok"
        assert store.performance.report("run").total.calls == 1
        assert store.performance.report("run").total.errors == 0
        services.use(None)


def test_the_services_keep_a_run_alive_that_another_process_started(tmp_path):
    with treering.open(tmp_path / "store") as store:
        with treering.open(tmp_path / "store") as other:
            services.use(other)
            run_id = services.create_run()
            services.use(store)
            services.save_message(run_id, "user", "from the second process")
        assert store.runs.load(run_id).status == "running"
        assert len(store.runs.load(run_id).recorders) == 2
        services.use(None)
    with treering.open(tmp_path / "store") as store:
        assert store.runs.load(run_id).status == "crashed"


def test_a_run_that_no_process_keeps_alive_is_unfinished_when_it_goes_quiet(clocked, clock):
    imported = BatchRecorder()
    imported.at_us = clock.now_us() - 5_000_000
    run = Run(
        imported, imported, agent="a", thread=None, namespace="", id="imported",
        project_id=None, meta=None, tags=(),
    ).start()  # fmt: skip
    run.message("user", "hi", ts_us=imported.at_us + 2_000_000)
    imported.write(clocked)
    clock.advance(seconds=QUIET_SECONDS / 2)
    assert clocked.runs.load("imported").status == "running"
    run.message("user", "still there", ts_us=imported.at_us + 3_000_000)
    imported.write(clocked)
    clock.advance(seconds=QUIET_SECONDS / 2 + 1)
    assert clocked.runs.load("imported").status == "running"
    clock.advance(seconds=QUIET_SECONDS / 2)
    sweep = CrashSweep(clocked.engine, clocked.space, clock=clock)
    (marked,) = sweep.check_next(10)
    assert (marked.status, marked.duration_us) == ("unfinished", 3_000_000)
    assert clocked.runs.load("imported") == marked
    imported.at_us += 4_000_000
    run.end()
    imported.write(clocked)
    assert clocked.runs.load("imported").duration_us == 4_000_000
    assert clocked.runs.load("imported").status == "ok"


def test_a_trace_whose_server_was_restarted_is_unfinished_and_can_still_end(clocked, clock):
    send(clocked, span("search", id=2, parent=1, at_ms=5, ms=30))
    clock.advance(seconds=QUIET_SECONDS + 60)
    assert clocked.runs.load(TRACE).status == "unfinished"
    assert [info.id for info in clocked.runs.mark_crashed()] == [TRACE]
    send(Store(clocked.engine, clock=clock), ROOT)
    assert clocked.runs.load(TRACE).status == "ok"
