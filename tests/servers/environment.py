"""Environments for packages that need other versions than the tests do; made once for all runs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treering-tests"
_UV = shutil.which("uv", path=str(Path(sys.executable).parent))


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of an environment with these packages; the versions that we override are theirs."""
    digest = hashlib.sha256(json.dumps([requirements, sys.version]).encode()).hexdigest()[:16]
    folder = _CACHE / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / ".venv" / "bin" / "python"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            for words in (
                ("venv", "--quiet", "--allow-existing", "--python", sys.executable, folder / ".venv"),
                ("pip", "install", "--quiet", "--python", python, *requirements),
            ):
                done = subprocess.run(
                    [str(_UV), *map(str, words), "--no-config"],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=110,
                )
                assert done.returncode == 0, done.stderr
            (folder / "done").touch()
    return python
