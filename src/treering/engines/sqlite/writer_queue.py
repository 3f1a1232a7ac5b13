"""Turns: which process writes next.

Before a process asks SQLite for its write lock, it takes a lock on a file beside the database, where the
kernel keeps the order of those who wait and wakes the first one when its turn comes. Nobody polls, so
eight processes on two cores spend their time on commits and not on finding the database locked, and
nobody starves. Who had to wait keeps the turn for a moment, so that a busy process makes several commits
in it: handing over costs more than a commit. **Invariant:** the lock is advice only, it ends with its
process, and SQLite's own lock still decides: whoever writes without it is waited for all the same.

A waiting ``flock`` cannot be given a time limit. It therefore waits in a thread, and who waited too long
goes away and leaves that thread to let go of the lock as soon as it gets it. The same thread ends a turn
that is kept and not used.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

from treering.engines.sqlite.errors import is_busy
from treering.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


TURN_SECONDS: Final = 0.02
"""How long a process that had to wait may go on writing; eight of them wait for less than 0.2 s."""
IDLE_SECONDS: Final = 0.001
"""A turn that was not used for so long is over."""


class WriterQueue:
    """The queue of writers at one database; used by one thread of a process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_held = False
        """Whether the lock on that file is ours; one that was waited for is that of `_turn`."""
        self._usher: SimpleQueue[_Request] | None = None
        self._turn: _Turn | None = None

    def enter(self, seconds: float) -> None:
        """Wait for our turn; raises `Busy` when it does not come in time."""
        if self._turn is not None:
            if self._turn.resume():
                return
            self._turn = None
        if self._file is None:
            try:
                self._file = self._open()
            except OSError:  # a folder that cannot be written: SQLite says it better
                return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            self._turn = self._ushered(seconds)
        else:
            self._is_held = True

    def leave(self) -> None:
        """Let the next one in, now or when our turn is over."""
        if self._is_held and self._file is not None:
            self._is_held = False
            flock(self._file, LOCK_UN)
        elif self._turn is not None and not self._turn.pause():
            self._turn = None

    def close(self) -> None:
        """Let go of everything; nobody writes any more."""
        if self._turn is not None:
            self._turn.end()
        self._close_file()

    def abandon(self) -> None:
        """In a forked child: let go of our share in the files. The parent keeps its turn."""
        if self._turn is not None:
            self._turn.abandon()
        self._close_file()

    def _close_file(self) -> None:
        self._turn = None
        self._is_held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _ushered(self, seconds: float) -> _Turn:
        if self._usher is None:
            self._usher = SimpleQueue()
            threading.Thread(target=_usher, args=(self._usher,), name="treering-turns", daemon=True).start()
        request = _Request(self._open())
        self._usher.put(request)
        if not request.gate.acquire(timeout=seconds) and request.give_up():
            self._usher = None  # it waits on for us; the next wait gets another
            raise Busy(f"{self._path}: other writers kept their turn for {seconds:.0f} s; try again")
        return request.turn


class _Turn:
    """A lock that was waited for: on a file of its own, and ours for some time."""

    def __init__(self, file: int, *, seconds: float) -> None:
        self._file = file
        self._until = time.monotonic() + seconds
        self._settling = threading.Lock()
        self._used_at: float | None = None
        """When it was last used; ``None`` while it is."""
        self.is_over = False

    def pause(self) -> bool:
        """Stop writing; ``False`` when the turn is over with that."""
        now = time.monotonic()
        if now >= self._until:
            self.end()
            return False
        self._used_at = now
        return True

    def resume(self) -> bool:
        """Write again; ``False`` when the turn ended in the meantime."""
        with self._settling:
            if not self.is_over:
                self._used_at = None
            return not self.is_over

    def end_if_idle(self) -> None:
        """Let the next one in when nobody here has used the turn for a while."""
        with self._settling:
            if self._used_at is not None and time.monotonic() - self._used_at >= IDLE_SECONDS:
                self._end()

    def end(self) -> None:
        """Let the next one in."""
        with self._settling:
            self._end()

    def abandon(self) -> None:
        """In a forked child: close the file and unlock nothing. (Whoever held our lock is not here.)"""
        if not self.is_over:
            os.close(self._file)
        self.is_over = True

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            flock(self._file, LOCK_UN)
            os.close(self._file)


class _Request:
    """Someone who waits for the lock on a file of their own."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.gate = threading.Lock()
        self.gate.acquire()
        self.turn: _Turn
        self._settling = threading.Lock()
        self._is_given_up = False
        self._is_granted = False

    def grant(self) -> _Turn | None:
        """The lock is there: hand it over, or let go of it when nobody waits any more."""
        with self._settling:
            self._is_granted = True
            if self._is_given_up:
                os.close(self.file)
                return None
            self.turn = _Turn(self.file, seconds=TURN_SECONDS)
        self.gate.release()
        return self.turn

    def give_up(self) -> bool:
        """Stop waiting; ``False`` when the lock came just now."""
        with self._settling:
            self._is_given_up = not self._is_granted
            return self._is_given_up


def _usher(requests: SimpleQueue[_Request]) -> None:
    request = requests.get()
    while True:
        flock(request.file, LOCK_EX)
        request = _next_after(request.grant(), requests)


def _next_after(turn: _Turn | None, requests: SimpleQueue[_Request]) -> _Request:
    """The next request; until then, see that a turn which nobody uses ends."""
    while turn is not None and not turn.is_over:
        try:
            return requests.get(timeout=IDLE_SECONDS)
        except Empty:
            turn.end_if_idle()
    return requests.get()


# -----------------------------------------------------------------------------------------------------------
# Patience: waiting for a lock of the database, in a way that starves nobody.


Answer = TypeVar("Answer")

BUSY_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.002


def retry_while_busy(action: Callable[[], Answer]) -> Answer:
    """Do something that needs a lock of the database, patiently but not for ever."""
    try:
        return action()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        time.sleep(random.uniform(0, RETRY_SECONDS))
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
