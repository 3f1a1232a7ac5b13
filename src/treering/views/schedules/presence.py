"""A worker's presence: one lease per worker, prolonged while it lives.

All that a worker commits is fenced on its lease. Whoever finds the lease over takes it, which changes its
token: from then on nothing that the first worker still does can be committed, and its fires may be given to
others.
"""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from treering.core.ids import new_id
from treering.errors import TreeringError, Unsupported

if TYPE_CHECKING:
    from treering.core.draft import Draft
    from treering.core.engine import Engine
    from treering.core.records import Lease

_log: Final = logging.getLogger("treering.schedules")
_BEATS: Final = 3
"""How often a lease is prolonged within its length."""


class Presence:
    """The lease of one worker."""

    def __init__(self, engine: Engine, space: str, *, name: str, seconds: float) -> None:
        self._engine = engine
        self._space = space
        self._name = name
        self._seconds = seconds
        self._lock = Lock()
        self._lease: Lease | None = None
        self._over = Event()
        self._beating: Thread | None = None

    @property
    def worker(self) -> str:
        """The id under which fires are claimed; another one after the lease was lost."""
        return self._held().holder

    @property
    def is_held(self) -> bool:
        """Whether there is a lease, as far as is known."""
        with self._lock:
            return self._lease is not None

    def begin(self) -> None:
        """Take the lease and prolong it in the background."""
        self._held()
        self._beating = Thread(target=self._beat, name="treering-worker-lease", daemon=True)
        self._beating.start()

    def fence(self, draft: Draft, worker: str) -> None:
        """Let a batch commit only while the worker is present under this id."""
        with self._lock:
            lease = self._lease
        if lease is not None and lease.holder == worker:
            draft.fence(lease.name, lease.token)
        else:
            draft.fence(_lease_name(worker), _NEVER)

    def renew(self) -> bool:
        """Prolong the lease; says whether it is still held. One that was lost is given up."""
        with self._lock:
            lease = self._lease
        if lease is None:
            return False
        prolonged = self._engine.heartbeat(lease, seconds=self._seconds)
        with self._lock:
            self._lease = prolonged
        return prolonged is not None

    def give_up(self) -> None:
        """Act under a new id from now on: the lease is not ours any more."""
        with self._lock:
            self._lease = None

    def is_gone(self, worker: str) -> bool:
        """Whether another worker's lease is over; if it is, it can never commit again."""
        taken = self._engine.claim(
            self._space, _lease_name(worker), holder=f"heir:{self.worker}", seconds=self._seconds
        )
        if taken is None:
            return False
        self._engine.release(taken)
        return True

    def end(self) -> None:
        """Give the lease back."""
        self.silence()
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            self._engine.release(lease)

    def silence(self) -> None:
        """Stop prolonging it: it ends by itself, and the fires that are still open go to others."""
        self._over.set()
        if self._beating is not None:
            self._beating.join()

    def _held(self) -> Lease:
        with self._lock:
            if self._lease is None:
                worker = f"{self._name}:{new_id()}"
                self._lease = self._engine.claim(
                    self._space, _lease_name(worker), holder=worker, seconds=self._seconds
                )
                if self._lease is None:
                    raise Unsupported(
                        f"the store gave no lease for {worker!r}; schedules need an engine that does"
                    )
            return self._lease

    def _beat(self) -> None:
        while not self._over.wait(self._seconds / _BEATS):
            try:
                if not self.renew():
                    _log.warning("a worker's lease was lost; its fires may be run by another one")
            except TreeringError:
                _log.warning("a worker's lease could not be prolonged just now", exc_info=True)


_NEVER: Final = 1 << 52
"""A token that no lease ever has."""


def _lease_name(worker: str) -> str:
    return f"worker/{worker}"
