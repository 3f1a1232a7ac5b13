"""The chat agent of examples/ is killed, and goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "chat_agent.py"


def test_the_chat_goes_on_after_a_kill(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "data")]
    first = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    said = []
    try:
        said.append(first.stdout.readline())
        for line in ("hello", "more", "/back", "again", "/new", "fresh"):
            first.stdin.write(line + "\n")
            first.stdin.flush()
            said.append(first.stdout.readline())
    finally:
        first.kill()
        first.communicate()
    assert said == [
        "thread terminal_me\n",
        "You have said 1 thing(s); the first was 'hello'.\n",
        "You have said 2 thing(s); the first was 'hello'.\n",
        "2 messages left\n",
        "You have said 2 thing(s); the first was 'hello'.\n",
        "thread terminal_me_s1\n",
        "You have said 1 thing(s); the first was 'fresh'.\n",
    ]
    second = subprocess.run(command, input="still\n", capture_output=True, text=True, check=True, timeout=60)
    assert second.stdout.splitlines() == [
        "thread terminal_me_s1",
        "You have said 2 thing(s); the first was 'fresh'.",
    ]
