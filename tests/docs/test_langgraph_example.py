"""The LangGraph agent of examples/ is killed, and another process goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "langgraph_agent.py"


def test_the_agent_goes_on_after_the_kill():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  looking up bark",
        "  looking up rings",
        "  looking up roots",
        "  killed",
        "Another process resumes:",
        "  looking up roots",
        "  Read: bark, rings, roots.",
        "8 messages in 9 checkpoints",
    ]
