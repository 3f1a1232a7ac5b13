"""Connections that are kept for the next transaction.

The one given back last is taken first, so that a process keeps no more of them alive than it uses at a
time; what has been idle for a minute is closed. When one turns out to be dead, its idle neighbours are
likely dead, too (the server restarted), and all of them are dropped instead of being tried one by one.
There is no thread behind it: connections are made by whoever needs one, and errors are theirs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from treering.engines.postgres.pipeline import Pipeline
from treering.errors import Busy, Closed, TreeringError

POOL_SIZE: Final = 16
"""How many connections a process has at most, apart from the one that listens."""

WAIT_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 60.0


class Pool:
    """The connections of one process to one database."""

    def __init__(self, connect: Callable[[], Pipeline], where: str) -> None:
        self._connect = connect
        self._where = where
        self._free = _permits()
        self._idle: deque[tuple[float, Pipeline]] = deque()
        self._closed = False

    def take(self) -> Pipeline:
        """A connection for one transaction."""
        try:
            self._free.get(timeout=WAIT_SECONDS)
        except Empty:
            raise Busy(
                f"{self._where}: all {POOL_SIZE} connections of this process are in use; try again"
            ) from None
        try:
            while True:
                self._check_open()
                try:
                    _, pipeline = self._idle.pop()
                except IndexError:
                    return self._connect()
                try:
                    pipeline.tidy()
                    return pipeline
                except TreeringError:
                    pipeline.close()
        except BaseException:
            self._free.put(None)
            raise

    def add(self, pipeline: Pipeline) -> None:
        """Take in a connection that was made for something else."""
        self._idle.append((time.monotonic(), pipeline))

    def give_back(self, pipeline: Pipeline) -> None:
        """Return a connection; a dead one is not kept."""
        now = time.monotonic()
        if pipeline.dead or self._closed:
            pipeline.close()
        else:
            self._idle.append((now, pipeline))
        self._free.put(None)
        while len(self._idle) > 1 and self._idle[0][0] < now - IDLE_SECONDS:
            try:
                self._idle.popleft()[1].close()
            except IndexError:
                return

    def exchange(self, dead: Pipeline) -> Pipeline:
        """A fresh connection for one that died in use."""
        dead.close()
        self.drop_idle()
        self._check_open()
        return self._connect()

    def drop_idle(self) -> None:
        """Close all connections that nobody uses."""
        while True:
            try:
                self._idle.popleft()[1].close()
            except IndexError:
                return

    def close(self) -> None:
        """Close all connections, those in use when they are given back."""
        self._closed = True
        self.drop_idle()

    def abandon(self) -> list[Pipeline]:
        """In a forked child: let go of the parent's connections without touching them."""
        inherited = [pipeline for _, pipeline in self._idle]
        self._free = _permits()
        self._idle = deque()
        return inherited

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._where} was closed; open the store again")


def _permits() -> SimpleQueue[None]:
    """One permit for each connection; quicker than a semaphore, which is written in Python."""
    permits: SimpleQueue[None] = SimpleQueue()
    for _ in range(POOL_SIZE):
        permits.put(None)
    return permits
