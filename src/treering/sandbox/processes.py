"""A program that runs in a sandbox: in a process group of its own, its output passed on line by line.

**Invariant:** whoever listens gets every byte once and in order, and the program is not slowed down by more
than what the listener itself takes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Final

from treering.errors import InvalidInput, NotFound

Listener = Callable[[str, bytes], None]
"""Gets ``stdout`` or ``stderr`` and one line, with its end."""

_LONGEST: Final = 1 << 20
_GRACE_SECONDS: Final = 5.0
_LINGER_SECONDS: Final = 2.0
_ROUNDS: Final = 10


class Program:
    """A started program."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], listener: Listener
    ) -> None:
        if not command:
            raise InvalidInput("there is no command to run; give one behind --")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - running commands is what a sandbox is for
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no program {command[0]!r} on the PATH; install it, or give its path"
            ) from error
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{command[0]!r} cannot be run: {error}") from error
        self._listener = listener
        self._lock = Lock()
        self._lines = 0
        self._readers = [
            Thread(target=self._read, args=(name, pipe), name=f"treering-{name}", daemon=True)
            for name, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Its exit code, once it and all its output are through; a signal's number is negative.

        What it started and left behind may hold its output open; that is not waited for.
        """
        code = self._process.wait()
        for reader in self._readers:
            seen = -1
            while reader.is_alive() and seen != self._lines:
                seen = self._lines
                reader.join(_LINGER_SECONDS)
        return code

    def stop(self) -> None:
        """Hold it and its children where they are."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, and after a while make it."""
        if self.is_running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)  # also what it started and left behind
        self.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST):
                with self._lock:
                    self._lines += 1
                    self._listener(name, line)


def end_all_of(home: Path) -> None:
    """End what programs with this home started and left behind, wherever it went to.

    It is known by its environment, which Linux shows; elsewhere there is nothing to look at.
    """
    mark = os.fsencode(f"HOME={home}")
    for _ in range(_ROUNDS):  # they may have started more meanwhile
        if not sum(_end_if(int(entry.name), mark) for entry in Path("/proc").glob("[0-9]*")):
            return


def _end_if(number: int, mark: bytes) -> bool:
    if number == os.getpid():
        return False
    try:
        process = os.pidfd_open(number)  # from here on the number cannot come to mean another one
    except (AttributeError, OSError):
        return False
    try:
        if mark not in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], _GRACE_SECONDS)
    except OSError:
        return False
    finally:
        os.close(process)
    return True
