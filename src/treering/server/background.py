"""Background work of a server: index for search, apply alert rules, mark crashed runs, archive old days.

One thread goes over the projects repeatedly, and works only on those that were written to. Several servers of
one store may do this at the same time, because progress is shared. An error in one project stops neither the
other projects nor the thread, and a slow webhook delays nothing.
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
from treering.limits.alerts import CLOSE_SECONDS
from treering.maintenance.stats import refresh, user_spaces
from treering.runs.listing import CrashSweep
from treering.runs.search import PAGE, EventIndex

if TYPE_CHECKING:
    from types import TracebackType

    from treering.limits.alerts import AlertWatch
    from treering.store import Store


ROUND_SECONDS: Final = 2.0
CRASHED_SECONDS: Final = 60.0
MEASURE_SECONDS: Final = 3600.0
"""How often it is looked whether a large project has to be measured again."""
INDEX_WITHIN_SECONDS: Final = 60.0
"""How long indexing waits for a time without writes."""
PAGES_A_ROUND: Final = 20
"""How many pages of events of a project are indexed at once, so that other projects have their turn."""
ARCHIVE_SECONDS: Final = 3600.0
"""How often finished days are looked for."""
PAUSE_SECONDS: Final = 60.0
"""How long a project is skipped after an error that is not retryable."""
RUNS_PER_CHECK: Final = 1000
"""How many runs of a project are checked for crashes at once: the newest, and as many of all in turn."""

log: Final = logging.getLogger("treering.server")


class Background:
    """The thread; use it in a ``with`` statement around serving."""

    def __init__(
        self,
        store: Store,
        *,
        search: bool,
        seconds: float = ROUND_SECONDS,
        link: str | None = None,
        archive_after: str | None = None,
    ) -> None:
        self._archive_after = archive_after
        self._store = store
        self._link = link
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
        deadline = time.monotonic() + CLOSE_SECONDS
        for watch in watches:
            watch.close(seconds=max(deadline - time.monotonic(), 0.0))

    def _work(self) -> None:
        while not self._end.wait(self._seconds):
            try:
                spaces = list(user_spaces(self._store.engine))
            except TreeringError as error:
                log.warning("background work is postponed: %s", error)
                continue
            for space in spaces:
                if self._end.is_set():
                    return
                if space not in self._projects:
                    self._projects[space] = _Project(
                        self._store.in_namespace(space), link=self._link, archive_after=self._archive_after
                    )
                self._projects[space].run_once(search=self._search)


class _Project:
    """One project, and the state of its background work."""

    def __init__(self, store: Store, *, link: str | None, archive_after: str | None = None) -> None:
        self._store = store
        self._archive_after = archive_after
        self._archive_at = 0.0
        self._link = link
        self._next_due_us: int | None = None
        self.watch: AlertWatch = store.alerts.watch()
        self._crash_sweep = CrashSweep(store.engine, store.space, clock=store.clock)
        self._last_seq = -1
        self._indexed_seq: int = -1
        self._index_deadline = time.monotonic() + INDEX_WITHIN_SECONDS
        self._check_crashed_at = 0.0
        self._measure_at = time.monotonic() + MEASURE_SECONDS
        self._paused_until = 0.0

    def run_once(self, *, search: bool) -> None:
        """Do one round of work, unless the project is paused. Never raises."""
        if time.monotonic() < self._paused_until:
            return
        try:
            self._work(search=search)
        except TreeringError as error:
            log.warning("background work of %r is postponed: %s", self._store.space, error)
            if not error.retryable:
                self._paused_until = time.monotonic() + PAUSE_SECONDS
        except Exception:  # a bug must not end the work for all projects
            log.exception("background work of %r failed", self._store.space)
            self._paused_until = time.monotonic() + PAUSE_SECONDS

    def _work(self, *, search: bool) -> None:
        seq = self._store.engine.wait(self._store.space, 0, seconds=0)
        now = time.monotonic()
        if now >= self._check_crashed_at:
            self._check_crashed_at = now + CRASHED_SECONDS
            self._store.runs.mark_crashed(newest=RUNS_PER_CHECK)
            self._crash_sweep.check_next(RUNS_PER_CHECK)
        is_due = self._next_due_us is not None and self._store.clock.now_us() >= self._next_due_us
        if seq != self._last_seq or is_due:
            self._next_due_us = self._store.approvals.examine(link=self._link).next_due_us
        if seq != self._last_seq or is_due or self.watch.is_waiting:
            self.watch.run_once()
        if search and seq != self._indexed_seq:
            # Wait for writers to pause; a search reads the newest events without the index.
            if seq == self._last_seq or now >= self._index_deadline:
                index = EventIndex(self._store.engine, self._store.space)
                if index.catch_up(pages=PAGES_A_ROUND) < PAGES_A_ROUND * PAGE:
                    self._indexed_seq = seq
        else:
            self._index_deadline = now + INDEX_WITHIN_SECONDS
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_SECONDS
            refresh(self._store.engine, self._store.space, clock=self._store.clock)
        self._last_seq = seq
        if self._archive_after is not None and now >= self._archive_at:
            self._archive_at = now + ARCHIVE_SECONDS
            done = self._store.archive(before=self._archive_after)
            if done.events:
                log.info("archived %d events of %r", done.events, self._store.space)


_MMAP_THRESHOLD: Final = -3
"""M_MMAP_THRESHOLD of glibc's `mallopt`."""
_LARGE_BYTES: Final = 128 * 1024
_GC_THRESHOLD: Final = 20_000
"""New objects between two runs of the garbage collector (Python's default: 700)."""


def tune_memory() -> None:
    """Tune the memory of a server process; call it once, after all imports.

    Request bodies are megabytes. glibc would keep their space in the middle of smaller allocations; from a
    fixed size on, it is told to map them separately and return them. Loaded modules stay for good, so the
    garbage collector need not visit them, and what spans are made of has no cycles, so it may run less often.
    """
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
