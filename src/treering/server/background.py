"""What a server does by itself: fill the search index, judge runs, send alerts, mark runs that died.

One thread goes over the projects, again and again, and looks only at those that something was written to.
Several servers of one store may do this at once; each piece of work knows how far another one came. What
goes wrong in one project keeps neither the others nor the thread from going on, nor does a slow webhook.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from treering.errors import TreeringError
from treering.limits.alerts import GOODBYE_SECONDS
from treering.maintenance.stats import user_spaces
from treering.runs.directory import Rounds

if TYPE_CHECKING:
    from types import TracebackType

    from treering.limits.alerts import Watch
    from treering.store import Store


ROUND_SECONDS: Final = 2.0
CRASHED_SECONDS: Final = 60.0
LATEST_SECONDS: Final = 60.0
"""How long the search index waits for a moment in which nothing is written."""
REST_SECONDS: Final = 60.0
"""How long a project rests in which something failed that will not be better in a moment."""
RUNS_A_ROUND: Final = 1000
"""How many runs of a project are asked after at once: the newest, and as many of all, one after the other."""

log: Final = logging.getLogger("treering.server")


class Background:
    """Use it in a ``with`` statement around serving."""

    def __init__(self, store: Store, *, search: bool, seconds: float = ROUND_SECONDS) -> None:
        self._store = store
        self._search = search
        self._seconds = seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="treering-background", daemon=True)
        self._projects: dict[str, _Project] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        watches = [project.watch for project in self._projects.values()]
        for watch in watches:
            watch.stop()
        latest = time.monotonic() + GOODBYE_SECONDS
        for watch in watches:
            watch.close(seconds=max(latest - time.monotonic(), 0.0))

    def _work(self) -> None:
        while not self._end.wait(self._seconds):
            try:
                spaces = list(user_spaces(self._store.engine))
            except TreeringError as error:
                log.warning("work in the background has to wait: %s", error)
                continue
            for space in spaces:
                if self._end.is_set():
                    return
                if space not in self._projects:
                    self._projects[space] = _Project(self._store.in_namespace(space))
                self._projects[space].go_on(search=self._search)


class _Project:
    """One project, and how far it was looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.watch: Watch = store.alerts.watch()
        self._rounds = Rounds(store.engine, store.space, clock=store.clock)
        self._seen = -1
        self._indexed: int = -1
        self._index_by = time.monotonic() + LATEST_SECONDS
        self._crashed_at = 0.0
        self._rests_until = 0.0

    def go_on(self, *, search: bool) -> None:
        """Do what there is to do, unless the project rests; never raises."""
        if time.monotonic() < self._rests_until:
            return
        try:
            self._look(search=search)
        except TreeringError as error:
            log.warning("work in the background of %r has to wait: %s", self._store.space, error)
            if not error.retryable:
                self._rests_until = time.monotonic() + REST_SECONDS
        except Exception:  # a bug of ours must not end the work for everyone
            log.exception("work in the background of %r failed", self._store.space)
            self._rests_until = time.monotonic() + REST_SECONDS

    def _look(self, *, search: bool) -> None:
        seq = self._store.engine.wait(self._store.space, 0, seconds=0)
        now = time.monotonic()
        if now >= self._crashed_at:
            self._crashed_at = now + CRASHED_SECONDS
            self._store.runs.mark_crashed(newest=RUNS_A_ROUND)
            self._rounds.go_on(RUNS_A_ROUND)
        if seq != self._seen or self.watch.is_waiting:
            self.watch.look()
        if search and seq != self._indexed:
            # Whoever writes much just now needs the time more; a search that must be fresh sees to it itself.
            if seq == self._seen or now >= self._index_by:
                self._store.timeline.index()
                self._indexed = seq
        else:
            self._index_by = now + LATEST_SECONDS
        self._seen = seq


# -----------------------------------------------------------------------------------------------------------
# How the process of a server treats memory: what is large goes back at once, what stays is not looked at.
#
# Requests bring bodies of megabytes. glibc would keep the space of such a body for the next one, in the
# middle of smaller things; from a fixed size on it asks the system for pages of their own and gives them
# back. And the modules that were loaded stay for good, so the collector of cycles shall not walk over them;
# what spans are made of has no cycles, so it shall look less often as well.


_MMAP_THRESHOLD: Final = -3
"""The number of this setting in glibc's `mallopt`."""
_LARGE_BYTES: Final = 128 * 1024
_YOUNG: Final = 20_000
"""New objects after which the collector looks at them (Python's own: 700)."""


def settle_in() -> None:
    """Do this once, when everything is loaded."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
