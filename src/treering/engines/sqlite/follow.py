"""Following: a commit by any process wakes those that wait for it.

Commits of this process notify waiters directly. Those of others are noticed by one poller per process, which
asks SQLite every few milliseconds whether the file has changed (that takes about three microseconds), and
only while someone waits.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final

from treering.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.engines.sqlite.connection import SqliteDatabase

POLL_SECONDS: Final = 0.004


class Follower:
    """Waits for changes of one database."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._waiters = 0
        self._changes = 0
        self._poller: threading.Thread | None = None

    def notify(self) -> None:
        """Wake waiters: this process has committed something."""
        if self._waiters:
            with self._changed:
                self._changes += 1
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when ``ready`` holds after a change, or when time is up."""
        if seconds <= 0 or ready():
            return
        deadline = time.monotonic() + seconds
        with self._changed:
            self._waiters += 1
            if (
                self._poller is None or not self._poller.is_alive()
            ):  # in a forked child the thread does not exist
                self._poller = threading.Thread(target=self._poll, name="treering-follow", daemon=True)
                self._poller.start()
        try:
            while True:
                seen = self._changes
                left = deadline - time.monotonic()
                if ready() or left <= 0:
                    return
                with self._changed:
                    if self._changes == seen:  # otherwise it changed meanwhile
                        self._changed.wait(min(left, 1.0))
        finally:
            with self._changed:
                self._waiters -= 1

    def _poll(self) -> None:
        last = None
        while True:
            with self._changed:
                if not self._waiters:
                    self._poller = None
                    return
            try:
                version = self._database.change_count()
            except (Closed, sqlite3.Error):
                version = None  # closed, or about to be: waiters find out when they look
            if version != last:
                last = version
                self.notify()
            time.sleep(POLL_SECONDS)
