"""The writer queue: which process writes next.

Before a process asks SQLite for its write lock, it locks a file beside the database (``flock``). The kernel
queues the waiters and wakes the first one when the lock is released. Nobody polls, so eight processes on two
cores spend their time on commits and not on finding the database locked, and nobody starves. A process that
had to wait keeps the lock for a moment after its commit, so that a busy process makes several commits per
turn: a handover costs more than a commit.

A blocking ``flock`` has no timeout. So it waits in a thread of its own; a writer that has waited too long
gives up and leaves it to that thread to release the lock as soon as it gets it. The same thread ends a turn
that is kept and not used.

**Invariant:** the lock is advisory and ends with its process. SQLite's own lock still decides, and a process
that writes without the queue is waited for all the same (`retry_while_busy`).
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

Result = TypeVar("Result")

BUSY_SECONDS: Final = 30.0
"""How long a writer waits for a lock."""
RETRY_SECONDS: Final = 0.002
"""The longest delay between two attempts to get SQLite's lock."""
TURN_SECONDS: Final = 0.02
"""How long a process that had to wait may keep the lock; with eight of them, each waits less than 0.2 s."""
IDLE_SECONDS: Final = 0.001
"""A turn that was not used for this long ends."""


class WriterQueue:
    """The queue of writers to one database; used by one thread of a process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_held = False
        """Whether the lock on `_file` is held; one that was waited for belongs to `_turn`."""
        self._requests: SimpleQueue[_Request] | None = None
        """To the thread that waits for locks."""
        self._turn: _Turn | None = None

    def enter(self, seconds: float) -> None:
        """Wait until this process may write; raises `Busy` after so many seconds."""
        if self._turn is not None:
            if self._turn.resume():
                return
            self._turn = None
        if self._file is None:
            try:
                self._file = self._open()
            except OSError:  # the folder is read-only: SQLite's error is better
                return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            self._turn = self._wait_for_turn(seconds)
        else:
            self._is_held = True

    def leave(self) -> None:
        """Let the next process write, now or when our turn is over."""
        if self._is_held and self._file is not None:
            self._is_held = False
            flock(self._file, LOCK_UN)
        elif self._turn is not None and not self._turn.pause():
            self._turn = None

    def close(self) -> None:
        """Release everything; this process writes no more."""
        if self._turn is not None:
            self._turn.end()
        self._close_file()

    def abandon(self) -> None:
        """In a forked child: close inherited files. The parent keeps its turn."""
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

    def _wait_for_turn(self, seconds: float) -> _Turn:
        if self._requests is None:
            self._requests = SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._requests,), name="treering-writer-queue", daemon=True
            ).start()
        request = _Request(self._open())
        self._requests.put(request)
        if not request.gate.acquire(timeout=seconds) and request.give_up():
            self._requests = None  # that thread is still waiting; the next wait starts another
            raise Busy(f"{self._path}: other writers held the lock for {seconds:.0f} s; retry")
        return request.turn


class _Turn:
    """A lock that was waited for, on a file descriptor of its own, kept for some time."""

    def __init__(self, file: int, *, seconds: float) -> None:
        self._file = file
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._used_at: float | None = None
        """When it was last used; ``None`` while it is in use."""
        self.is_over = False

    def pause(self) -> bool:
        """Stop writing; ``False`` if that ends the turn."""
        now = time.monotonic()
        if now >= self._until:
            self.end()
            return False
        self._used_at = now
        return True

    def resume(self) -> bool:
        """Write again; ``False`` if the turn has ended meanwhile."""
        with self._lock:
            if not self.is_over:
                self._used_at = None
            return not self.is_over

    def end_if_idle(self) -> None:
        """End the turn if it has not been used for a while."""
        with self._lock:
            if self._used_at is not None and time.monotonic() - self._used_at >= IDLE_SECONDS:
                self._end()

    def end(self) -> None:
        """Let the next process write."""
        with self._lock:
            self._end()

    def abandon(self) -> None:
        """In a forked child: close the file without unlocking. (Nobody holds `_lock` here.)"""
        if not self.is_over:
            os.close(self._file)
        self.is_over = True

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            flock(self._file, LOCK_UN)
            os.close(self._file)


class _Request:
    """A writer that waits for the lock on a file descriptor of its own."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.gate = threading.Lock()
        self.gate.acquire()
        self.turn: _Turn
        self._lock = threading.Lock()
        self._is_given_up = False
        self._is_granted = False

    def grant(self) -> _Turn | None:
        """Hand the lock over, or release it if the writer has given up."""
        with self._lock:
            self._is_granted = True
            if self._is_given_up:
                os.close(self.file)
                return None
            self.turn = _Turn(self.file, seconds=TURN_SECONDS)
        self.gate.release()
        return self.turn

    def give_up(self) -> bool:
        """Stop waiting; ``False`` if the lock was granted just now."""
        with self._lock:
            self._is_given_up = not self._is_granted
            return self._is_given_up


def _serve(requests: SimpleQueue[_Request]) -> None:
    """Wait for one lock after another, in a thread."""
    request = requests.get()
    while True:
        flock(request.file, LOCK_EX)
        request = _next_after(request.grant(), requests)


def _next_after(turn: _Turn | None, requests: SimpleQueue[_Request]) -> _Request:
    """Return the next request; until then, end the turn if it is not used."""
    while turn is not None and not turn.is_over:
        try:
            return requests.get(timeout=IDLE_SECONDS)
        except Empty:
            turn.end_if_idle()
    return requests.get()


def retry_while_busy(action: Callable[[], Result]) -> Result:
    """Do something that needs SQLite's lock, retrying after random delays until a deadline."""
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
