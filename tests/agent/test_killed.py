"""An agent that is killed while it saves: acknowledged work is kept, other work is repeated.

A run makes six commits: the answer that wants four tools, the four results, and the last answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treering

ROOT = Path(__file__).resolve().parents[2]


def work(folder, *arguments, failpoint=""):
    command = [sys.executable, "-m", "tests.agent.worker", "store", str(folder / "kept"), str(folder / "log")]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "TREERING_FAILPOINTS": failpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def made(folder):
    log = folder / "log"
    return log.read_text().split() if log.exists() else []


@pytest.mark.faults
@pytest.mark.parametrize(
    "failpoint, before, after",
    [
        ("commit.before_commit=kill:1", [], ["1", "2", "3", "4"]),
        ("commit.before_commit=kill:3", ["1", "2"], ["1", "2", "2", "3", "4"]),
        ("commit.before_commit=kill:6", ["1", "2", "3", "4"], ["1", "2", "3", "4"]),
        ("commit.after_commit=kill:1", [], ["1", "2", "3", "4"]),
        ("commit.after_commit=kill:4", ["1", "2", "3"], ["1", "2", "3", "4"]),
    ],
)
def test_only_a_call_whose_result_was_not_saved_is_made_again(tmp_path, failpoint, before, after) -> None:
    killed = work(tmp_path, "--prompt", "Note all four", failpoint=failpoint)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert made(tmp_path) == before
    with treering.open(tmp_path / "kept") as store:
        begun = store.thread("long").head is not None
    assert begun is (failpoint != "commit.before_commit=kill:1")

    resumed = work(tmp_path, *(() if begun else ("--prompt", "Note all four")))
    assert resumed.returncode == 0, resumed.stderr
    assert made(tmp_path) == after
    assert json.loads(resumed.stdout)["text"] == "All 4 are done."
    with treering.open(tmp_path / "kept") as store:
        messages = store.thread("long").load().messages
        assert [each["role"] for each in messages] == ["user", "assistant", *["tool"] * 4, "assistant"]
        assert store.verify().ok


@pytest.mark.faults
def test_a_run_that_died_after_its_last_save_is_finished(tmp_path) -> None:
    killed = work(tmp_path, "--prompt", "Note all four", failpoint="commit.after_commit=kill:6")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = work(tmp_path)
    assert "no unfinished run to continue" in resumed.stderr
    with treering.open(tmp_path / "kept") as store:
        assert store.thread("long").load().messages[-1]["content"] == "All 4 are done."
        assert store.thread("long").load().metadata["status"] == "done"
