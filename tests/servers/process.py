"""A server process that cannot outlive the one that started it.

Linux sends a signal of our choice to a child when its parent dies (PR_SET_PDEATHSIG), even when the
parent is killed and can clean up nothing. Elsewhere the orderly stop of the keeper has to do.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_READY_SECONDS = 30.0


class ServerMissing(Exception):
    """The package that brings a server's binary is not installed."""


class ServerFailed(Exception):
    """A server did not come up."""


@dataclass(frozen=True)
class Started:
    """A server that answers: how to reach it, how to end it, and what it leaves outside its folder."""

    process: subprocess.Popen[bytes]
    address: dict[str, Any]
    stop: signal.Signals = signal.SIGKILL
    litter: tuple[Path, ...] = ()


def spawn(
    command: Sequence[str | Path],
    *,
    folder: Path,
    env: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGKILL,
    **identity: Any,
) -> subprocess.Popen[bytes]:
    """Start the command in the folder, its output in `log` there; `stop` reaches it when we die."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def tie_to_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, stop)

    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=tie_to_parent,  # noqa: PLW1509  keepers have one thread
            **identity,
        )


def wait_until(ready: Callable[[], bool], *, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Return once the server is ready; raise with the end of its log when it exits or takes too long."""
    deadline = time.monotonic() + _READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if ready():
            return
        time.sleep(0.01)
    state = "took too long" if process.poll() is None else f"exited with {process.returncode}"
    process.kill()
    process.wait()
    log = (folder / "log").read_text(errors="replace")
    raise ServerFailed(f"{Path(str(process.args[0])).name} {state}; its log ends:\n{log[-2000:]}")
