"""The command line of the npm inspector."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.servers.npm import NODE

PACKAGE = "@modelcontextprotocol/inspector"
VERSION = "2.12.0"


def program(modules: Path) -> Path:
    """Return its script among the modules that npm fetched."""
    return modules / PACKAGE / "clients" / "launcher" / "build" / "index.js"


def inspect(program: Path, target: list[str], *arguments: str) -> dict:
    """Return what the inspector prints for one method."""
    done = subprocess.run(
        [str(NODE), str(program), "--cli", *target, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
