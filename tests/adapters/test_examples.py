"""The examples of pydantic-ai and Google ADK end well: killed in a tool, resumed, nothing done twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    "name, kept",
    [
        ("pydantic_ai_agent.py", "8 checkpoints, 8 messages, verified: True"),
        ("adk_session.py", "9 events, verified: True"),
    ],
)
def test_an_example_ends_well(name: str, kept: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  model: measure 1998",
        "  measuring 1998",
        "  model: measure 1999",
        "  measuring 1999",
        "  ended with SIGKILL",
        "Another process resumes:",
        "  measuring 1999",
        "  model: measure 2000",
        "  measuring 2000",
        "  The tree grew 15 mm.",
        kept,
    ]
