"""The example of the agent's loop goes on after its kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_goes_on_after_the_kill() -> None:
    command = [sys.executable, str(ROOT / "examples" / "agent_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  writing about Oslo",
        "  writing about Rome",
        "  killed",
        "Another process resumes:",
        "  writing about Lima",
        "  waits for a person: send",
        "Done: sent Oslo, Rome, Lima to alice.",
        "4 tool calls in this run, over two processes",
    ]
