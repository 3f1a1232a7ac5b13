"""An agent is killed in the middle of a tool, again and again; another process ends with the same answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treering
from tests.adapters.langgraph.worker import count

WORKER = Path(__file__).with_name("worker.py")
ROOT = WORKER.parents[3]
ROUNDS = 4


def run(*args):
    return subprocess.run(
        [sys.executable, str(WORKER), *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.faults
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_killed_agent_goes_on_and_repeats_no_tool(engine, tmp_path, request):
    store = request.getfixturevalue("postgres_url") if engine == "postgres" else tmp_path / "store"
    whole = count("memory:", tmp_path / "whole", ROUNDS, -1)
    for kill_at in (0, 2):
        killed = run(store, tmp_path / "notes", ROUNDS, kill_at)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = run(store, tmp_path / "notes", ROUNDS, -1)
    assert last.returncode == 0, last.stderr
    assert last.stdout.strip() == whole
    assert "results: 1, 2, 3, 4" in last.stdout
    assert (tmp_path / "notes").read_text() == (tmp_path / "whole").read_text() == "0\n1\n2\n3\n"
    with treering.open(store) as opened:
        assert opened.verify().ok
        assert [info.id for info in opened.threads()] == ["alice"]


@pytest.mark.faults
def test_a_question_is_durable_when_the_graph_has_asked_it(tmp_path):
    killed = run(tmp_path / "store")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    answered = run(tmp_path / "store")
    assert answered.stdout.splitlines() == ["send it?", "['done', 'yes']"], answered.stderr
