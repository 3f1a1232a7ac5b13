"""Recorded data survives a store outage, process exit and a fork; a loss is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import treering
from tests.runs.test_recorder import planned
from treering.errors import InvalidInput, Unreachable


def test_the_store_may_be_away_for_a_while(store, monkeypatch):
    commit, failures = store.engine.commit, [3]

    def failing(batch):
        if failures[0]:
            failures[0] -= 1
            raise Unreachable("not now")
        return commit(batch)

    monkeypatch.setattr(store.engine, "commit", failing)
    run = planned(store)
    assert failures == [0]
    assert len(store.timeline.of_run(run.id).events) == 6


def test_a_write_that_fails_is_reported_and_does_not_affect_others(store, monkeypatch):
    commit = store.engine.commit

    def failing(batch):
        if any(event.role == "bad" for event in batch.events):
            raise InvalidInput("this one cannot be stored")
        return commit(batch)

    monkeypatch.setattr(store.engine, "commit", failing)
    with store.run(agent="a") as run:
        run.message("user", "before")
        run.message("bad", "lost")
        run.message("user", "after")
    with pytest.warns(RuntimeWarning, match="cannot be stored"), pytest.raises(InvalidInput):
        store.flush()
    assert len(store.timeline.of_run(run.id).events) == 2


CHILD = """
import os, signal, sys, treering
store = treering.open(sys.argv[1])
run = store.run(agent="a", id="r").__enter__()
span = run.span("long").__enter__()
run.message("user", "kept")
if sys.argv[2] == "kill":
    store.flush()
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[2] == "term":
    print("up", flush=True)
    while True:
        signal.pause()
elif sys.argv[2] == "term in put":
    with store._recorder._wake_up._cond:  # held while an event is set, which `put` and `flush` do
        os.kill(os.getpid(), signal.SIGTERM)
    while True:
        signal.pause()
"""


@pytest.mark.parametrize("how", ["exit", "kill", "term", "term in put"])
def test_nothing_that_was_recorded_is_lost_with_the_process(tmp_path, how):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "store"), how], stdout=subprocess.PIPE
    )
    with child:
        if how == "term":
            assert child.stdout.readline() == b"up\n"
            child.terminate()
        try:
            child.wait(60)
        finally:
            child.kill()
    assert child.returncode == {"exit": 0, "kill": -signal.SIGKILL}.get(how, -signal.SIGTERM)
    with treering.open(tmp_path / "store") as store:
        assert [event.type for event in store.timeline.of_run("r").events] == ["agent.span.start", "message"]


def test_a_run_whose_process_died_is_crashed(tmp_path):
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "store"), "exit"], check=True)
    with treering.open(tmp_path / "store") as store:
        # It exited in order, so its lease was given back; the run never ended.
        assert store.runs.load("r").status == "crashed"
        assert [info.id for info in store.runs.mark_crashed()] == ["r"]
        assert store.runs.mark_crashed() == []
        assert store.runs.load("r").ended_at_us is not None
        with store.run(agent="alive") as run:
            store.flush()
            assert store.runs.mark_crashed() == []
            assert store.runs.load(run.id).status == "running"


LATE = """
import sys, treering
store = treering.open(sys.argv[1])
run = store.run(agent="a", id="r").__enter__()
store.flush()

class Late:
    def __del__(self, span=run.span("late").__enter__()):
        span.end()

sys.modules["late"] = Late()  # the interpreter drops its modules last
"""


def test_a_span_that_ends_while_the_interpreter_finalizes_does_not_keep_it_alive(tmp_path):
    found = subprocess.run([sys.executable, "-c", LATE, tmp_path / "s"], timeout=60, check=False)
    assert found.returncode == 0


def test_a_forked_child_records_for_itself(tmp_path):
    with treering.open(tmp_path / "store") as store:
        run = store.run(agent="parent", id="parent").start()
        store.flush()
        run.message("user", "of the parent")
        child = os.fork()
        if child == 0:
            try:
                with store.run(agent="child", id="child") as own:
                    own.message("user", "of the child")
                store.flush()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        run.end()
        store.flush()
        for who in ("parent", "child"):
            assert [event.type for event in store.timeline.of_run(who).events] == ["message"]


def test_many_threads_wait_when_the_store_cannot_keep_up(tmp_path, monkeypatch):
    monkeypatch.setattr("treering.runs.recorder.QUEUE_LIMIT", 50)
    with treering.open(tmp_path / "store", durability="fast") as store:
        with store.run(agent="a") as run:

            def work():
                for number in range(200):
                    run.message("user", f"{number}")

            workers = [threading.Thread(target=work) for _ in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        store.flush()
        assert len(store.timeline.of_run(run.id, first=2000).events) == 800


ABANDONED = """
import sys
import treering

store = treering.open(sys.argv[1])

def steps(run):
    with run.tool("search") as call:
        yield
        call.output = "found"

run = store.run(agent="a")
unfinished = steps(run)
next(unfinished)
store.close()  # the interpreter closes the generator when it clears this module
"""


def test_a_generator_that_is_closed_at_exit_does_not_hang_the_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
