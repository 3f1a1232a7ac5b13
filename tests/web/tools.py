"""What browser tests need from npm and the system: a built dashboard, a Chromium, axe-core.

`TREERING_CHROMIUM` names a browser. Without it, the system's Chromium or Chrome is used, or else that of the
npm package `@sparticuz/chromium`, which needs no root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
BROWSER = Path(__file__).parent / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

sys.path.insert(0, str(ROOT))
import hatch_build  # noqa: E402 - it lies beside pyproject.toml
from hatch_build import Node  # noqa: E402


@cache
def built() -> Path:
    """The folder of the dashboard, up to date."""
    with _alone(ROOT / "web"):
        hatch_build.build()
    return hatch_build.STATIC


@cache
def chromium() -> str:
    """The path of a browser."""
    if given := os.environ.get("TREERING_CHROMIUM"):
        return given
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    folder = _installed()
    unpacked = folder / ".unpacked"
    with _alone(BROWSER):
        unpacked.mkdir(exist_ok=True)
        return Node(BROWSER, env={"TMPDIR": str(unpacked)}).run("find.mjs").strip()


@cache
def axe() -> str:
    """The source of axe-core, to be run in a page."""
    return (_installed() / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@cache
def modules() -> Path:
    """What the dashboard is made of, for looking at its types."""
    folder = ROOT / "web" / "node_modules"
    with _alone(ROOT / "web"):
        if not (folder / "preact").is_dir():
            options = ("--no-save", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
            Node(ROOT / "web").npm("install", *options)
    return folder


def _installed() -> Path:
    folder = BROWSER / "node_modules"
    with _alone(BROWSER):
        if not (folder / ".package-lock.json").is_file():
            Node(BROWSER).npm("install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error")
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, however many workers there are."""
    locks = ROOT / "build"
    locks.mkdir(exist_ok=True)
    with (locks / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def gzipped(path: Path) -> int:
    """How many bytes travel."""
    return len(subprocess.run(["gzip", "-9", "-c", path], capture_output=True, check=True).stdout)
