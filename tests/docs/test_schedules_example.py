"""The example of examples/schedules.py: two processes share the work, one is killed, the other goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import treering

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "schedules.py"


def test_another_process_goes_on_after_a_kill(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "data")]
    first = subprocess.Popen([*command, "600"], stdout=subprocess.PIPE, text=True)
    said = [first.stdout.readline() for _ in range(2)]
    first.kill()
    first.communicate()
    assert all(line.startswith(f"process {first.pid}: Anything new? (") for line in said)
    second = subprocess.run([*command, "3"], capture_output=True, text=True, check=True, timeout=60)
    *lines, last = second.stdout.splitlines()
    assert lines
    assert last.startswith("ran ")
    with treering.open(tmp_path / "data") as store:
        (task,) = store.schedules.list_tasks()
        ran = [report.scheduled_at_us for report in store.schedules.occurrences() if report.outcome == "ok"]
        assert len(ran) == len(set(ran)) >= 2
        assert task.runs == len(ran)
