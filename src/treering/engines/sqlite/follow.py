"""Following: who waits for the next commit is woken by it, whichever process made it.

Commits of this process ring the bell directly. Those of others are noticed by one poller a process,
which asks SQLite whether the file has changed (about three microseconds) every few milliseconds, and
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
        self._rings = 0
        self._poller: threading.Thread | None = None

    def ring(self) -> None:
        """Something was committed here."""
        if self._waiters:
            with self._changed:
                self._rings += 1
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when ``ready`` holds after some change, or when time is up."""
        if seconds <= 0 or ready():
            return
        deadline = time.monotonic() + seconds
        with self._changed:
            self._waiters += 1
            if self._poller is None or not self._poller.is_alive():  # a forked child has no such thread
                self._poller = threading.Thread(target=self._poll, name="treering-follow", daemon=True)
                self._poller.start()
        try:
            while True:
                heard = self._rings
                left = deadline - time.monotonic()
                if ready() or left <= 0:
                    return
                with self._changed:
                    if self._rings == heard:  # else it rang while we looked
                        self._changed.wait(min(left, 1.0))
        finally:
            with self._changed:
                self._waiters -= 1

    def _poll(self) -> None:
        seen = None
        while True:
            with self._changed:
                if not self._waiters:
                    self._poller = None
                    return
            try:
                version = self._database.change_count()
            except (Closed, sqlite3.Error):
                version = None  # closed, or about to be: whoever waits finds out by asking
            if version != seen:
                seen = version
                self.ring()
            time.sleep(POLL_SECONDS)
