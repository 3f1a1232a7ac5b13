"""Following: a commit by any process wakes those that wait for it.

Every process that commits sends a notification on the channel ``treering`` after the commit, so that whoever
receives it can see the commit. It sends at most one every 20 ms: the first commit is announced at once, those
during the pause together after it. Every process that waits has one connection that listens, from its first
wait until a few seconds after the last.

**Invariant:** nothing is missed, because a notification is only a hint to look. Waiters look once the
listener listens, after each hint, after each reconnection, and every second in any case: a process may die
between its commit and the notification, and a pooler may swallow notifications.
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

_NOTIFY: Final = (
    "SELECT pg_notify(?, name), set_config('synchronous_commit', 'off', true) FROM unnest(?::text[]) AS name"
)
"""A notification is a transaction; as a hint, it need not be durable."""


class Announcer:
    """Notifies other processes of this one's commits."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._reset()
        _open_objects.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._spaces: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def announce(self, space: str) -> None:
        """Announce a commit to a space, soon."""
        if space in self._spaces:
            return  # the notification has yet to be sent, and will come after this commit
        with self._changed:
            self._spaces.add(space)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-announce", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send what is left, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def after_fork(self) -> None:
        """Start over in a forked child, where the thread does not exist."""
        self._reset()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._spaces and not self._closed:
                    self._changed.wait()
                if not self._spaces:
                    return
                spaces, self._spaces = self._spaces, set()
            try:
                with self._database.sending_hints() as session:
                    session.execute(_NOTIFY, (CHANNEL, sorted(spaces)))
            except TreeringError:
                pass  # a hint was lost; waiters look every second anyway
            if not self._closed:
                time.sleep(ANNOUNCE_SECONDS)


class Follower:
    """Waits for commits of any process."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._reset()
        _open_objects.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._counter = itertools.count(1)
        self._hints = 0
        self._waiters = 0
        self._last_wait = 0.0
        self._listener: threading.Thread | None = None
        self._closed = False
        self._wake, self._wake_sender = -1, -1

    def hint(self) -> None:
        """Something may have been committed."""
        self._hints = next(self._counter)  # first, so that a wait that begins now sees the change
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
        """Stop listening, and wake all waiters."""
        with self._changed:
            self._closed = True
            self._hints = next(self._counter)
            self._changed.notify_all()
            thread = self._listener
            if thread is not None:
                os.write(self._wake_sender, b".")
        if thread is not None:
            thread.join()

    def after_fork(self) -> None:
        """Start over in a forked child, where the thread does not exist."""
        self._reset()

    def _listen(self) -> None:
        """Receive notifications until nobody has waited for a while; reconnect when necessary."""
        try:
            while self._is_needed():
                try:
                    with self._database.connected() as connection:
                        self._receive(connection)
                except TreeringError:
                    self._sleep(RETRY_SECONDS)
        finally:
            with self._changed:
                os.close(self._wake)
                os.close(self._wake_sender)
                self._listener = None

    def _receive(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"LISTEN {CHANNEL}")
        self.hint()  # earlier commits were not announced to this connection
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._is_needed():
            poll.poll(LOOK_SECONDS * 1000)
            connection.pgconn.consume_input()
            if connection.pgconn.notifies() is not None:
                while connection.pgconn.notifies() is not None:
                    pass
                self.hint()

    def _sleep(self, seconds: float) -> None:
        """Sleep, until `close` wakes us."""
        select.select([self._wake], [], [], seconds)

    def _is_needed(self) -> bool:
        with self._changed:
            lingering = time.monotonic() - self._last_wait < LINGER_SECONDS
            return not self._closed and (self._waiters > 0 or lingering)


_open_objects: Final[weakref.WeakSet[Announcer | Follower]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_open_objects):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
