"""examples/sandbox.py does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sandbox.py"


def test_another_machine_continues_from_the_bucket(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "bucket")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "spoilt: 1 files, after reviewed",
        "reviewed: 1 files, after first draft",
        "first draft: 1 files, after nothing",
        "restored: Draft v1, reviewed",
        "one file: Draft v1, reviewed",
    ]
