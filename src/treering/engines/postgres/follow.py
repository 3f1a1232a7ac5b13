"""Following: a commit anywhere wakes whoever waits for it.

Every process that commits says so on the channel ``treering``, after the commit, so that whoever hears of
it finds it. It speaks at most every 20 ms: the first commit is announced at once, those during the pause
together behind it. Every process that waits has one connection that listens, from its first wait until
some seconds after the last. **Invariant:** nothing is missed, because a message is only a hint to look:
waiters look once the listener listens, again after each hint, after each reconnection, and every second
in any case (a process may die between its commit and its message; a pooler may swallow messages).
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

import psycopg

from treering.engines.postgres.connection import PostgresDatabase
from treering.errors import TreeringError

CHANNEL: Final = "treering"
ANNOUNCE_SECONDS: Final = 0.02
LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.25
LINGER_SECONDS: Final = 5.0
"""How long the listener stays when nobody waits."""

_SAY: Final = (
    "SELECT pg_notify(?, name), set_config('synchronous_commit', 'off', true) FROM unnest(?::text[]) AS name"
)
"""A message is a transaction; as a hint, it need not be durable."""


class Announcer:
    """Tells other processes of this one's commits."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._start_over()
        _forkable.add(self)

    def _start_over(self) -> None:
        self._bell = threading.Condition()
        self._spaces: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def say(self, space: str) -> None:
        """A space has a new commit."""
        if space in self._spaces:
            return  # the message is on its way, and behind this commit
        with self._bell:
            self._spaces.add(space)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-announce", daemon=True)
                self._thread.start()
            self._bell.notify()

    def close(self) -> None:
        """Say what is left to say."""
        with self._bell:
            self._closed = True
            self._bell.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def forked(self) -> None:
        """In a forked child the thread is gone."""
        self._start_over()

    def _work(self) -> None:
        while True:
            with self._bell:
                while not self._spaces and not self._closed:
                    self._bell.wait()
                if not self._spaces:
                    return
                spaces, self._spaces = self._spaces, set()
            try:
                with self._database.aside() as session:
                    session.execute(_SAY, (CHANNEL, sorted(spaces)))
            except TreeringError:
                pass  # a hint was lost; waiters look every second anyway
            if not self._closed:
                time.sleep(ANNOUNCE_SECONDS)


class Follower:
    """Waits for commits of any process."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._start_over()
        _forkable.add(self)

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._counted = itertools.count(1)
        self._hints = 0
        self._waiters = 0
        self._last_wait = 0.0
        self._listener: threading.Thread | None = None
        self._closed = False
        self._wake, self._wake_sender = -1, -1

    def hint(self) -> None:
        """Something may have been committed."""
        self._hints = next(self._counted)  # first: who begins to wait now finds that it has changed
        if self._waiters:
            with self._changed:
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when ``ready`` holds, or when time is up."""
        deadline = time.monotonic() + seconds
        seen = self._hints
        if ready() or seconds <= 0:
            return
        with self._changed:
            self._waiters += 1
            if self._listener is None and not self._closed:
                self._wake, self._wake_sender = os.pipe()
                self._listener = threading.Thread(target=self._listen, name="treering-follow", daemon=True)
                self._listener.start()
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._closed:
                with self._changed:
                    if self._hints == seen:
                        self._changed.wait(min(left, LOOK_SECONDS))
                    seen = self._hints
                if ready():
                    return
        finally:
            with self._changed:
                self._waiters -= 1
                self._last_wait = time.monotonic()

    def close(self) -> None:
        """Stop listening, and let waiters go."""
        with self._changed:
            self._closed = True
            self._hints = next(self._counted)
            self._changed.notify_all()
            thread = self._listener
            if thread is not None:
                os.write(self._wake_sender, b".")
        if thread is not None:
            thread.join()

    def forked(self) -> None:
        """In a forked child the thread is gone, and its connection is the parent's."""
        self._start_over()

    def _listen(self) -> None:
        """Hear messages until nobody has waited for a while; connect again whenever that is necessary."""
        try:
            while self._is_wanted():
                try:
                    with self._database.connected() as connection:
                        self._hear(connection)
                except TreeringError:
                    self._nap(RETRY_SECONDS)
        finally:
            with self._changed:
                os.close(self._wake)
                os.close(self._wake_sender)
                self._listener = None

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"LISTEN {CHANNEL}")
        self.hint()  # what was committed before this moment was not announced to us
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._is_wanted():
            poll.poll(LOOK_SECONDS * 1000)
            connection.pgconn.consume_input()
            if connection.pgconn.notifies() is not None:
                while connection.pgconn.notifies() is not None:
                    pass
                self.hint()

    def _nap(self, seconds: float) -> None:
        """Sleep, unless `close` wakes us."""
        select.select([self._wake], [], [], seconds)

    def _is_wanted(self) -> bool:
        with self._changed:
            lingering = time.monotonic() - self._last_wait < LINGER_SECONDS
            return not self._closed and (self._waiters > 0 or lingering)


_forkable: Final[weakref.WeakSet[Announcer | Follower]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_forkable):
        each.forked()


os.register_at_fork(after_in_child=_after_fork)
