"""Turns: which process writes next.

Before a process asks SQLite for its write lock, it takes a lock on a file beside the database, where the
kernel keeps the order of those who wait and wakes the first one when its turn comes. Nobody polls, so
eight processes on two cores spend their time on commits and not on finding the database locked, and
nobody starves. **Invariant:** the lock is advice only, it ends with its process, and SQLite's own lock
still decides: whoever writes without it is waited for all the same.

A waiting ``flock`` cannot be given a time limit. It therefore waits in a thread, and who waited too long
goes away and leaves that thread to let go of the lock as soon as it gets it.
"""

from __future__ import annotations

import os
import threading
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from queue import SimpleQueue
from typing import TYPE_CHECKING

from treering.errors import Busy

if TYPE_CHECKING:
    from pathlib import Path


class Turns:
    """The queue of writers at one database; used by one thread of a process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._held: int | None = None
        self._usher: SimpleQueue[_Request] | None = None

    def enter(self, seconds: float) -> None:
        """Wait for our turn; raises `Busy` when it does not come in time."""
        if self._file is None:
            try:
                self._file = self._open()
            except OSError:  # a folder that cannot be written: SQLite says it better
                return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
            self._held = self._file
        except BlockingIOError:
            self._held = self._ushered(seconds)

    def leave(self) -> None:
        """Let the next one in."""
        held, self._held = self._held, None
        if held is None:
            return
        flock(held, LOCK_UN)
        if held != self._file:
            os.close(held)

    def close(self) -> None:
        """Let go of the file; in a forked child, of our share in it: the parent keeps its lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _ushered(self, seconds: float) -> int:
        if self._usher is None:
            self._usher = SimpleQueue()
            threading.Thread(target=_usher, args=(self._usher,), name="treering-turns", daemon=True).start()
        request = _Request(self._open())
        self._usher.put(request)
        if not request.gate.acquire(timeout=seconds) and request.give_up():
            self._usher = None  # it waits on for us; the next wait gets another
            raise Busy(f"{self._path}: other writers kept their turn for {seconds:.0f} s; try again")
        return request.file


class _Request:
    """Someone who waits for the lock on a file of their own."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.gate = threading.Lock()
        self.gate.acquire()
        self._settling = threading.Lock()
        self._is_given_up = False
        self._is_granted = False

    def grant(self) -> None:
        """The lock is there: hand it over, or let go of it when nobody waits any more."""
        with self._settling:
            self._is_granted = True
            if self._is_given_up:
                os.close(self.file)
        self.gate.release()

    def give_up(self) -> bool:
        """Stop waiting; ``False`` when the lock came just now."""
        with self._settling:
            self._is_given_up = not self._is_granted
            return self._is_given_up


def _usher(requests: SimpleQueue[_Request]) -> None:
    while True:
        request = requests.get()
        flock(request.file, LOCK_EX)
        request.grant()
