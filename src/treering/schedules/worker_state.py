"""The board: the tasks as a worker knows them, kept up to date from the journal.

All tasks are read once; from then on only those that an event names. **Invariant:** the board may be behind,
and that does no harm: whatever is decided from it is committed against the version that it holds.
"""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.ids import new_id
from treering.core.paging import each_record, each_ref
from treering.core.query import EventQuery
from treering.errors import Corrupt, TreeringError, Unsupported
from treering.schedules.fires import TASK_KINDS
from treering.schedules.planning import claimable
from treering.schedules.tasks import SCHEDULES, Task, decoded, ref_of_scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.core.records import Lease, Ref


_log: Final = logging.getLogger("treering.schedules")
_PAGE: Final = 1000


class Pinned(msgspec.Struct, frozen=True):
    """A task, the ref that holds it and the version that it was read at."""

    ref: str
    version: int
    task: Task


class Due(msgspec.Struct, frozen=True):
    """Tasks to look at now: those that cannot wait for a free hand or others died on, and the rest."""

    urgent: list[Pinned]
    others: list[Pinned]


class Board:
    """Every task of a space that is not over."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._pinned: dict[str, Pinned] = {}
        self._open: set[str] = set()
        self._waiting: set[str] = set()
        self._urgent: set[str] = set()
        self._due: set[str] = set()
        self._coming: list[tuple[int, str]] = []
        self._seen: int | None = None
        self._doubted: set[str] = set()

    def due(self, now_us: int) -> Due:
        """The tasks whose next occurrence has come, and those with fires that wait."""
        while self._coming and self._coming[0][0] <= now_us:
            at_us, ref = heappop(self._coming)
            pinned = self._pinned.get(ref)
            # A task that moved on has left its earlier times behind in the heap.
            if pinned is not None and pinned.task.next_run_us == at_us and pinned.task.active:
                self._due.add(ref)
        found = self._due | self._waiting
        urgent = found & self._urgent
        return Due([self._pinned[ref] for ref in urgent], [self._pinned[ref] for ref in found - urgent])

    def open(self) -> list[Pinned]:
        """The tasks with fires that are waiting or running."""
        return [self._pinned[ref] for ref in self._open]

    def next_us(self) -> int | None:
        """When the next occurrence comes, or 0 when one has come."""
        if self._due:
            return 0
        return self._coming[0][0] if self._coming else None

    def refresh(self) -> None:
        """Read what changed since the last time."""
        if self._seen is None:
            self._seen = self._engine.wait(self._space, 0, seconds=0)
            self._read_all()
            return
        changed = self._doubted
        query = EventQuery(kinds=TASK_KINDS)
        for record in each_record(self._engine, self._space, query, after=str(self._seen)):
            changed.add(ref_of_scope(record.event.scope))
            self._seen = record.seq
        self._doubted = set()
        self._read(changed)

    def pin(self, ref: str, version: int, task: Task) -> None:
        """Take note of a task that was just written; one that is older than what is known is left out."""
        before = self._pinned.get(ref)
        if before is not None and before.version >= version:
            return
        if task.status in ("done", "cancelled") and not task.fires:
            self._drop(ref)
            return
        self._pinned[ref] = Pinned(ref, version, task)
        waiting = claimable(task)
        _keep(self._open, ref, there=bool(task.fires))
        _keep(self._waiting, ref, there=bool(waiting))
        is_urgent = task.policy.catch_up == "skip" or any(fire.attempt for fire in waiting)
        _keep(self._urgent, ref, there=is_urgent)
        at_us = task.next_run_us if task.active else None
        if before is not None and before.task.active and before.task.next_run_us == at_us:
            return  # it is due already, or in the heap
        self._due.discard(ref)
        if at_us is not None:
            heappush(self._coming, (at_us, ref))

    def doubt(self, ref: str) -> None:
        """Read this task again at the next refresh."""
        self._doubted.add(ref)

    def _read_all(self) -> None:
        for ref in each_ref(self._engine, self._space, SCHEDULES):
            self._take(ref)

    def _read(self, refs: Iterable[str]) -> None:
        names = list(refs)
        for start in range(0, len(names), _PAGE):
            part = names[start : start + _PAGE]
            found = self._engine.refs(self._space, part)
            for name in part:
                ref = found.get(name)
                if ref is None:
                    self._drop(name)
                else:
                    self._take(ref)

    def _take(self, ref: Ref) -> None:
        known = self._pinned.get(ref.name)
        if known is not None and known.version == ref.version:
            return
        try:
            self.pin(ref.name, ref.version, decoded(ref))
        except Corrupt:
            # The others are due all the same.
            self._drop(ref.name)
            _log.exception("a task cannot be read and is left out")

    def _drop(self, ref: str) -> None:
        self._pinned.pop(ref, None)
        for refs in (self._open, self._waiting, self._urgent, self._due):
            refs.discard(ref)


def _keep(refs: set[str], ref: str, *, there: bool) -> None:
    (refs.add if there else refs.discard)(ref)


# -----------------------------------------------------------------------------------------------------------
# A worker's presence: one lease per worker, prolonged while it lives.
#
# All that a worker commits is fenced on its lease. Whoever finds the lease over takes it, which changes its
# token: from then on nothing that the first worker still does can be committed, and its fires may be given to
# others.


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
