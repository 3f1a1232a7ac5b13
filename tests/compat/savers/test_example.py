"""The example works as documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_example_ends_well():
    command = [sys.executable, str(ROOT / "examples" / "savers.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "another process continued: 30 messages" in done.stdout
    assert "all the same: True" in done.stdout
