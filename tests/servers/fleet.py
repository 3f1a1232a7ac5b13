"""The servers of one test run.

A run is a folder and a lock on a file inside it. Whoever opens the run (pytest's own process, or xdist's
controller) holds the lock; every other process of the run joins by the folder's path. The first to ask
for a server starts its keeper under a second lock, and the address is left in a file for the rest.
Keepers end when the run's lock is free, so there is nothing to count and nothing to hand over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tests.servers.process import ServerFailed, ServerMissing

_PREFIX = "treering-servers-"
_ROOT = Path(__file__).parents[2]
_START_SECONDS = 100
_CLOSE_SECONDS = 10
_ABANDONED_SECONDS = 60


class Fleet:
    """The servers that the processes of one run share."""

    def __init__(self, folder: Path, *, held: BinaryIO | None = None) -> None:
        self.folder = folder
        self._held = held
        self._known: dict[str, dict[str, Any]] = {}

    @classmethod
    def open(cls) -> Fleet:
        """A new run, which this process keeps alive until it closes it or dies."""
        _sweep()
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        folder.chmod(0o711)  # PostgreSQL may run as someone else, who has to get through
        held = (folder / "run").open("w+b")
        # A record lock, unlike flock, is not inherited by children that a test forks.
        fcntl.lockf(held, fcntl.LOCK_EX)
        return cls(folder, held=held)

    @classmethod
    def join(cls, folder: str) -> Fleet:
        """The run that another process opened."""
        return cls(Path(folder))

    def address(self, kind: str) -> dict[str, Any]:
        """How to reach the server (`postgres`, `valkey`, `seaweed`, `rclone`), started if need be.

        Raises ServerMissing or ServerFailed, and then does so for the whole run without trying again.
        """
        if kind not in self._known:
            self._known[kind] = self._find_or_start(kind)
        found = self._known[kind]
        if "missing" in found:
            raise ServerMissing(found["missing"])
        if "failed" in found:
            raise ServerFailed(found["failed"])
        return found["address"]

    def close(self) -> None:
        """Let the servers go; returns when they are gone. Only the process that opened the run does this."""
        if self._held is None:
            return
        with contextlib.ExitStack() as keepers:
            waited_for = [keepers.enter_context(path.open("r+b")) for path in self.folder.glob("*.keeper")]
            self._held.close()
            deadline = time.monotonic() + _CLOSE_SECONDS
            while not all(map(_is_free, waited_for)) and time.monotonic() < deadline:
                time.sleep(0.01)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _find_or_start(self, kind: str) -> dict[str, Any]:
        report = self.folder / f"{kind}.json"
        with _locked(self.folder / f"{kind}.lock"):
            if not report.exists():
                started = subprocess.run(
                    [sys.executable, "-m", "tests.servers.keeper", kind, self.folder],
                    cwd=_ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    timeout=_START_SECONDS,
                    check=True,
                )
                report.write_bytes(started.stdout)
            return json.loads(report.read_bytes())


@contextlib.contextmanager
def opened() -> Iterator[Fleet]:
    """A run for a script, such as a benchmark, that is not a test."""
    fleet = Fleet.open()
    try:
        yield fleet
    finally:
        fleet.close()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        yield


def _sweep() -> None:
    """Remove what runs left behind whose keepers were killed as well, or whose machine went down."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.stat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _ABANDONED_SECONDS:
                continue
            # A record lock never keeps out the process that holds it, and is lost at the first close.
            if folder.name.startswith(f"{_PREFIX}{os.getpid()}-"):
                continue
            with (folder / "run").open("r+b") as run:
                if _is_free(run):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_free(file: BinaryIO) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
