from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "memory.py"


def run(folder):
    done = subprocess.run(
        [sys.executable, EXAMPLE, folder], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_the_example_knows_more_the_second_time_and_takes_a_persons_edit(tmp_path):
    assert run(tmp_path) == ["I know nothing about you yet.", "['tone']", "exported: tone; unchanged: 0"]
    file = tmp_path / "memory" / "tone.md"
    file.write_text(file.read_text().replace("concise", "very concise"))
    again = run(tmp_path)
    assert "Alice prefers very concise replies." in again[0]
