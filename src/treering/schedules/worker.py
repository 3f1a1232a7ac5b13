"""The worker: runs the tasks that are due, in any number of processes.

One thread polls: it refreshes the `TaskCache` from the journal, opens the occurrences that are due, claims
as many as there are free slots, and releases those of workers that died. Each claimed occurrence runs in a
thread of a pool (an ``async`` handler in the event loop that entered the worker) and is recorded by the
`ResultWriter`. Every commit is fenced with the `WorkerLease`.

**Invariant:** an occurrence is claimed by one commit, against the version of the task and under the lease of
the worker. It is executed at least once, and counts as done only in the commit that records its result. A
worker that lost its lease can record nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from heapq import heappop, heappush
from threading import Condition, Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Self
from zlib import crc32

import msgspec

from treering.core.batch import Draft
from treering.core.clock import SECOND_US
from treering.core.ids import new_id
from treering.core.query import EventQuery, each_record, each_ref
from treering.errors import (
    Conflict,
    Corrupt,
    Fenced,
    InvalidInput,
    RefMoved,
    TreeringError,
    Unsupported,
)
from treering.schedules.planning import advance, claim, claimable, finish, release
from treering.schedules.tasks import (
    CLAIMED,
    LOST,
    OPENED,
    TASK_KINDS,
    TASK_REFS,
    Occurrence,
    OpenOccurrence,
    Skip,
    Task,
    add_event,
    add_finish_event,
    add_skip_events,
    decode_task,
    occurrence_of,
    put_task,
    task_ref_of_scope,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Lease, Ref
    from treering.runs.run import Run

Handler = Callable[[Occurrence], Any]

_log: Final = logging.getLogger("treering.schedules")

_PAGE: Final = 1000
_MAX_ERROR: Final = 2000
_MIN_POLL_SECONDS: Final = 0.005
_LEASE_SHARE: Final = 2 / 3
"""Share of a lease that must pass before a worker that was seen alive is checked again."""
_BEATS: Final = 3
"""How often a lease is renewed within its length."""
_INVALID_TOKEN: Final = 1 << 52
"""A fencing token that no lease has."""


class VersionedTask(msgspec.Struct, frozen=True):
    """A task with the ref that holds it and the version it was read at."""

    ref: str
    version: int
    task: Task


class Worker:
    """Calls a handler for each occurrence that is due; see `Schedules.worker`."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        handler: Handler,
        *,
        deliver: Callable[..., Any] | None,
        clock: Clock,
        concurrency: int,
        lease_seconds: float,
        poll_seconds: float,
        new_run: Callable[..., Run] | None,
        name: str,
    ) -> None:
        if concurrency < 1 or not lease_seconds > 0 or not poll_seconds > 0:
            raise InvalidInput(
                f"invalid worker options: concurrency={concurrency}, lease_seconds={lease_seconds}, "
                f"poll_seconds={poll_seconds}; all of them must be above zero"
            )
        self._engine = engine
        self._space = space
        self._handler = handler
        self._deliver = deliver
        self._clock = clock
        self._concurrency = concurrency
        self._lease_us = round(lease_seconds * SECOND_US)
        self._poll_seconds = poll_seconds
        self._new_run = new_run
        self._lease = WorkerLease(engine, space, name=name, seconds=lease_seconds)
        self._cache = TaskCache(engine, space)
        self._results = ResultWriter(engine, space, self._lease, clock=clock)
        self._pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="treering-occurrence")
        self._lock = Condition()
        self._running: set[tuple[str, int]] = set()
        self._first_seen_us: dict[str, int] = {}
        self._rank = 0
        self._wake = Event()
        self._stopping = Event()
        self._poller: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Worker of {self._space!r}, {self.running} running>"

    @property
    def running(self) -> int:
        """How many occurrences are running."""
        with self._lock:
            return len(self._running)

    def start(self) -> Self:
        """Start in the background; ``with`` does this."""
        if self._poller is not None or self._stopping.is_set():
            raise InvalidInput("this worker was already started; create another one")
        self._lease.start()
        self._poller = Thread(target=self._poll_forever, name="treering-worker", daemon=True)
        self._poller.start()
        return self

    def stop(self) -> None:
        """Stop claiming occurrences; `drain` waits for the running ones. Safe to call in a signal handler."""
        self._stopping.set()
        self._wake.set()

    def drain(self, seconds: float | None = None) -> bool:
        """Stop, wait for running occurrences, and return whether all of them finished within ``seconds``.

        Another worker repeats the unfinished ones when the lease has expired.
        """
        self.stop()
        if self._poller is not None:
            self._poller.join()
        is_idle = self.idle(seconds)
        self._pool.shutdown(wait=is_idle)
        if is_idle:
            self._lease.end()
        else:
            self._lease.stop_renewing()
        return is_idle

    def idle(self, seconds: float | None = None) -> bool:
        """Wait until nothing is running; return whether that happened within ``seconds``."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._running, seconds)

    def run(self) -> None:
        """Work until `stop` is called, then wait for running occurrences."""
        self.start()
        try:
            self._stopping.wait()
        finally:
            self.drain()
        self._raise_failure()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()
        if error is None:
            self._raise_failure()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.drain)
        if error is None:
            self._raise_failure()

    def tick(self) -> int:
        """Poll once, start what is due, and return how many occurrences were started."""
        started = self._poll()
        # A worker that slept past its lease gets a new one; there is no reason to wait for the next poll.
        return started if self._lease.is_held else started + self._poll()

    def _poll_forever(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                started = self.tick()
            except TreeringError as error:
                if not error.retryable:
                    self._failure = error
                    self._stopping.set()
                    return
                _log.warning("the store is not available; retrying", exc_info=True)
                started = 0
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                self._failure = error
                self._stopping.set()
                return
            # A short pause lets one commit replace several occurrences that finish in the meantime.
            if not self._stopping.wait(_MIN_POLL_SECONDS) and not started:
                self._wake.wait(self._seconds_until_due())

    def _seconds_until_due(self) -> float:
        """Return how long to wait before the next poll; an occurrence that finishes ends the wait."""
        if self.running >= self._concurrency:
            return self._poll_seconds
        next_us = self._cache.next_us()
        seconds = self._poll_seconds if next_us is None else (next_us - self._clock.now_us()) / SECOND_US
        return max(_MIN_POLL_SECONDS, min(seconds, self._poll_seconds))

    def _poll(self) -> int:
        for written in self._results.drain_written():
            self._cache.put(written.ref, written.version, written.task)
        self._cache.refresh()
        now_us = self._clock.now_us()
        self._release_lost(now_us)
        due = list(self._due_in_order(now_us))
        if not due:
            return 0
        worker = self._lease.worker
        free = self._concurrency - self.running
        claims: list[PlannedClaim] = []
        for versioned in due:
            planned = plan_claim(versioned, now_us, free=free, worker=worker)
            if planned is not None:
                claims.append(planned)
                free -= len(planned.claimed)
        if not claims:
            return 0
        try:
            return self._commit_claims(claims, worker, now_us)
        except RefMoved:
            # Another worker changed one of the tasks first; the other claims still hold.
            return sum(self._commit_single_claim(each, worker, now_us) for each in claims)

    def _due_in_order(self, now_us: int) -> Iterator[VersionedTask]:
        """Iterate over due tasks: urgent ones, then this worker's share, then the shares of the others.

        Workers that poll at the same moment therefore rarely compete for the same task.
        """
        due = self._cache.due(now_us)
        yield from due.urgent
        if self.running >= self._concurrency:
            return
        others = due.others
        random.shuffle(others)
        others.sort(key=self._belongs_to_another)
        yield from others[: self._concurrency]

    def _belongs_to_another(self, versioned: VersionedTask) -> bool:
        worker_count = len(self._first_seen_us) + 1
        return crc32(versioned.ref.encode()) % worker_count != self._rank

    def _commit_claims(self, claims: Sequence[PlannedClaim], worker: str, now_us: int) -> int:
        draft = draft_claims(self._space, claims, worker=worker, lease=self._lease, now_us=now_us)
        try:
            versions = self._engine.commit(draft.batch()).versions
        except Fenced:
            self._lease.discard()
            return 0
        for each in claims:
            versioned = VersionedTask(each.before.ref, versions[each.before.ref], each.task)
            self._cache.put(versioned.ref, versioned.version, versioned.task)
            if each.claimed:
                self._results.remember(versioned)
            for claimed in each.claimed:
                with self._lock:
                    self._running.add((versioned.ref, claimed.token))
                self._pool.submit(self._execute, versioned, claimed)
        return sum(len(each.claimed) for each in claims)

    def _commit_single_claim(self, planned: PlannedClaim, worker: str, now_us: int) -> int:
        try:
            return self._commit_claims([planned], worker, now_us)
        except RefMoved:
            self._cache.invalidate(planned.before.ref)
            return 0

    def _release_lost(self, now_us: int) -> None:
        """Release the occurrences of workers whose lease expired, and our own that nothing runs any more."""
        own = self._lease.worker
        tasks_by_worker: dict[str, list[VersionedTask]] = {}
        for versioned in self._cache.open():
            for worker in dict.fromkeys(each.worker for each in versioned.task.open_occurrences):
                if worker is not None and worker != own:
                    tasks_by_worker.setdefault(worker, []).append(versioned)
                elif worker is not None:
                    self._release(versioned, own, now_us)
        self._first_seen_us = {worker: self._first_seen_us.get(worker, now_us) for worker in tasks_by_worker}
        self._rank = sum(worker < own for worker in tasks_by_worker)
        for worker, tasks in tasks_by_worker.items():
            if now_us - self._first_seen_us[worker] < self._lease_us * _LEASE_SHARE:
                continue
            if self._lease.take_expired(worker):
                for versioned in tasks:
                    self._release(versioned, worker, now_us)

    def _release(self, versioned: VersionedTask, worker: str, now_us: int) -> None:
        running = frozenset[int]()
        if worker == self._lease.worker:
            with self._lock:
                running = frozenset(token for ref, token in self._running if ref == versioned.ref)
        step = release(versioned.task, worker, running=running)
        if step.task == versioned.task:
            return
        draft = Draft(self._space)
        put_task(draft, step.task, expect=versioned.version)
        self._lease.fence(draft, self._lease.worker)
        add_skip_events(draft, step.task, step.skips, now_us)
        add_event(draft, step.task, LOST, now_us, {"worker": worker})
        try:
            receipt = self._engine.commit(draft.batch())
        except Conflict as error:
            if isinstance(error, Fenced):
                self._lease.discard()
            self._cache.invalidate(versioned.ref)
        else:
            self._cache.put(versioned.ref, receipt.versions[versioned.ref], step.task)

    def _execute(self, versioned: VersionedTask, claimed: OpenOccurrence) -> None:
        """Run one occurrence and record its result, in a thread of the pool."""
        task = versioned.task
        try:
            started_us = self._clock.now_us()
            occurrence, result, error = self._call_handler(task, claimed)
            self._results.write(
                FinishedOccurrence(
                    claim=versioned,
                    occurrence=occurrence,
                    claimed=claimed,
                    started_us=started_us,
                    ended_us=self._clock.now_us(),
                    result=result,
                    error=error,
                )
            )
        except Exception:  # noqa: BLE001 - the occurrence stays open, and the next poll releases it
            _log.exception("an occurrence of task %r could not be recorded; it will run again", task.id)
        finally:
            with self._lock:
                self._running.discard((versioned.ref, claimed.token))
                self._lock.notify_all()
            self._wake.set()

    def _call_handler(self, task: Task, claimed: OpenOccurrence) -> tuple[Occurrence, Any, str | None]:
        from treering.sync_async import call, lent

        run = None
        if self._new_run is not None:
            meta = {"task_id": task.id, "scheduled_at_us": claimed.at_us, "attempt": claimed.attempt}
            run = self._new_run("scheduler", thread=task.thread_id, namespace=task.namespace, meta=meta)
        occurrence = occurrence_of(task, claimed, None if run is None else run.id)
        recording: AbstractContextManager[Any] = nullcontext() if run is None else run
        try:
            with recording, nullcontext() if self._loop is None else lent(self._loop):
                result = call(self._handler, occurrence)
                if self._deliver is not None:
                    call(self._deliver, occurrence, result)
                return occurrence, result, None
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            _log.warning("task %r failed", task.id, exc_info=True)
            return occurrence, None, f"{type(error).__qualname__}: {error}"[:_MAX_ERROR]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class PlannedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A task as read and as it will be written, with the occurrences skipped and claimed on the way."""

    before: VersionedTask
    task: Task
    skips: tuple[Skip, ...]
    claimed: tuple[OpenOccurrence, ...]


def plan_claim(versioned: VersionedTask, now_us: int, *, free: int, worker: str) -> PlannedClaim | None:
    """Decide what to do with a due task, given so many free slots; ``None`` if nothing would change."""
    if free <= 0 and versioned.task.policy.catch_up != "skip":
        return None  # waiting for a free slot loses no occurrence
    step = advance(versioned.task, now_us)
    task = step.task
    times = [each.at_us for each in claimable(task)[: max(free, 0)]]
    for at_us in times:
        task = claim(task, at_us, worker=worker, now_us=now_us)
    if task is versioned.task:
        return None
    claimed = tuple(each for each in task.open_occurrences if each.at_us in times)
    return PlannedClaim(before=versioned, task=task, skips=step.skips, claimed=claimed)


def draft_claims(
    space: str, claims: Sequence[PlannedClaim], *, worker: str, lease: WorkerLease, now_us: int
) -> Draft:
    """Draft one batch with all claims, each against the version of the task that it was planned from."""
    draft = Draft(space)
    lease.fence(draft, worker)
    number = 0
    for each in claims:
        task = each.task
        put_task(draft, task, expect=each.before.version)
        add_skip_events(draft, task, each.skips, now_us, start=number)
        number += len(each.skips)
        for claimed in each.claimed:
            data = {
                "at_us": claimed.at_us,
                "worker": worker,
                "attempt": claimed.attempt,
                "token": claimed.token,
            }
            add_event(draft, task, CLAIMED, now_us, data, number=number)
            number += 1
        if not (each.skips or each.claimed):
            add_event(draft, task, OPENED, now_us, {"open": len(task.open_occurrences)}, number=number)
            number += 1
    return draft


class FinishedOccurrence(msgspec.Struct, frozen=True, kw_only=True):
    """An occurrence whose handler returned or raised, ready to be recorded."""

    claim: VersionedTask
    occurrence: Occurrence
    claimed: OpenOccurrence
    started_us: int
    ended_us: int
    result: Any
    error: str | None


class ResultWriter:
    """Records finished occurrences; those that finish together share one commit.

    Each thread queues its result and then takes the lock; the first one in writes everything that was queued
    in the meantime. **Invariant:** a result is recorded only while the lease of its worker is held, against
    the current version of the task, and under the newest token of the occurrence.
    """

    def __init__(self, engine: Engine, space: str, lease: WorkerLease, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._lease = lease
        self._clock = clock
        self._commit_lock = Lock()
        self._queue: deque[FinishedOccurrence] = deque()
        self._latest: dict[str, VersionedTask] = {}
        self._latest_lock = Lock()
        self._written: deque[VersionedTask] = deque()

    def remember(self, versioned: VersionedTask) -> None:
        """Note the version of a task in which this worker claimed occurrences."""
        with self._latest_lock:
            self._latest[versioned.ref] = versioned

    def drain_written(self) -> Iterable[VersionedTask]:
        """Iterate over the tasks written since the last call."""
        while self._written:
            yield self._written.popleft()

    def write(self, finished: FinishedOccurrence) -> None:
        """Record a result; return when it is recorded, or when another worker has taken over."""
        self._queue.append(finished)
        with self._commit_lock:
            group = list[FinishedOccurrence]()
            while self._queue:
                group.append(self._queue.popleft())
            if not group:
                return  # the previous holder of the lock wrote ours as well
            try:
                self._write_group(group)
            except Conflict:
                for each in group:
                    self._write_alone(each)

    def _write_group(self, group: list[FinishedOccurrence]) -> None:
        """Record all in one commit, against the versions that this worker wrote last."""
        if len({each.claimed.worker for each in group}) != 1:
            raise RefMoved("occurrences claimed under different leases cannot share a commit")
        draft = Draft(self._space)
        self._lease.fence(draft, group[0].claimed.worker or "")
        latest: dict[str, VersionedTask] = {}
        with self._latest_lock:
            for each in group:
                latest.setdefault(each.claim.ref, self._latest.get(each.claim.ref, each.claim))
        tasks = {ref: versioned.task for ref, versioned in latest.items()}
        for number, each in enumerate(group):
            ref = each.claim.ref
            task = finish(tasks[ref], each.claimed.at_us, token=each.claimed.token)
            if task is None:
                raise RefMoved(f"an occurrence of task {each.occurrence.task_id!r} is no longer ours")
            tasks[ref] = task
            self._add_event(draft, task, each, number)
        for ref, versioned in latest.items():
            put_task(draft, tasks[ref], expect=versioned.version)
        versions = self._engine.commit(draft.batch()).versions
        for ref, task in tasks.items():
            self._note_written(VersionedTask(ref, versions[ref], task))

    def _write_alone(self, finished: FinishedOccurrence) -> None:
        """Record one result against the stored version of its task, however often that changes."""
        ref, task_id = finished.claim.ref, finished.occurrence.task_id
        while True:
            stored = self._engine.refs(self._space, [ref]).get(ref)
            task = None
            if stored is not None:
                task = finish(decode_task(stored), finished.claimed.at_us, token=finished.claimed.token)
            if stored is None or task is None:
                _log.warning("another worker has taken over an occurrence of task %r", task_id)
                return
            draft = Draft(self._space)
            self._lease.fence(draft, finished.claimed.worker or "")
            put_task(draft, task, expect=stored.version)
            self._add_event(draft, task, finished, 0)
            try:
                receipt = self._engine.commit(draft.batch())
            except RefMoved:
                continue
            except Fenced:
                self._lease.discard()
                _log.warning("the lease was lost; an occurrence of task %r will run again", task_id)
                return
            self._note_written(VersionedTask(ref, receipt.versions[ref], task))
            return

    def _add_event(self, draft: Draft, task: Task, finished: FinishedOccurrence, number: int) -> None:
        add_finish_event(
            draft,
            task,
            finished.occurrence,
            started_us=finished.started_us,
            ended_us=finished.ended_us,
            result=finished.result,
            error=finished.error,
            number=number,
        )

    def _note_written(self, versioned: VersionedTask) -> None:
        with self._latest_lock:
            if any(each.worker is not None for each in versioned.task.open_occurrences):
                self._latest[versioned.ref] = versioned
            else:
                self._latest.pop(versioned.ref, None)
        self._written.append(versioned)


class DueTasks(msgspec.Struct, frozen=True):
    """Tasks to look at now. Urgent ones must not wait for a free slot, or an earlier worker died on them."""

    urgent: list[VersionedTask]
    others: list[VersionedTask]


class TaskCache:
    """Every unfinished task of a space, read once and then kept current from the journal.

    **Invariant:** the cache may be stale without harm, because whatever is decided from it is committed
    against the version that it holds.
    """

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._tasks: dict[str, VersionedTask] = {}
        self._open: set[str] = set()
        self._waiting: set[str] = set()
        self._urgent: set[str] = set()
        self._due: set[str] = set()
        self._upcoming: list[tuple[int, str]] = []
        self._last_seq: int | None = None
        self._invalid: set[str] = set()

    def due(self, now_us: int) -> DueTasks:
        """Return the tasks whose next occurrence is due, and those with claimable occurrences."""
        while self._upcoming and self._upcoming[0][0] <= now_us:
            at_us, ref = heappop(self._upcoming)
            versioned = self._tasks.get(ref)
            # The heap still holds the former times of tasks that have moved on.
            if versioned is not None and versioned.task.next_run_us == at_us and versioned.task.active:
                self._due.add(ref)
        due = self._due | self._waiting
        urgent = due & self._urgent
        return DueTasks(self._in_order(urgent), self._in_order(due - urgent))

    def open(self) -> list[VersionedTask]:
        """Return the tasks with open occurrences."""
        return self._in_order(self._open)

    def next_us(self) -> int | None:
        """Return when the next occurrence is due; 0 if one is due already."""
        if self._due:
            return 0
        return self._upcoming[0][0] if self._upcoming else None

    def refresh(self) -> None:
        """Read the tasks that changed since the last call."""
        if self._last_seq is None:
            self._last_seq = self._engine.wait(self._space, 0, seconds=0)
            for ref in each_ref(self._engine, self._space, TASK_REFS):
                self._load(ref)
            return
        changed = self._invalid
        query = EventQuery(kinds=TASK_KINDS)
        for record in each_record(self._engine, self._space, query, after=str(self._last_seq)):
            changed.add(task_ref_of_scope(record.event.scope))
            self._last_seq = record.seq
        self._invalid = set()
        self._reload(sorted(changed))

    def put(self, ref: str, version: int, task: Task) -> None:
        """Store a task, unless the cache already holds this version or a newer one."""
        before = self._tasks.get(ref)
        if before is not None and before.version >= version:
            return
        if task.status in ("done", "cancelled") and not task.open_occurrences:
            self._drop(ref)
            return
        self._tasks[ref] = VersionedTask(ref, version, task)
        waiting = claimable(task)
        _set_member(self._open, ref, member=bool(task.open_occurrences))
        _set_member(self._waiting, ref, member=bool(waiting))
        is_urgent = task.policy.catch_up == "skip" or any(each.attempt for each in waiting)
        _set_member(self._urgent, ref, member=is_urgent)
        at_us = task.next_run_us if task.active else None
        if before is not None and before.task.active and before.task.next_run_us == at_us:
            return  # already due, or already in the heap
        self._due.discard(ref)
        if at_us is not None:
            heappush(self._upcoming, (at_us, ref))

    def invalidate(self, ref: str) -> None:
        """Read this task again at the next refresh."""
        self._invalid.add(ref)

    def _reload(self, names: list[str]) -> None:
        for start in range(0, len(names), _PAGE):
            page = names[start : start + _PAGE]
            refs = self._engine.refs(self._space, page)
            for name in page:
                ref = refs.get(name)
                if ref is None:
                    self._drop(name)
                else:
                    self._load(ref)

    def _load(self, ref: Ref) -> None:
        cached = self._tasks.get(ref.name)
        if cached is not None and cached.version == ref.version:
            return
        try:
            self.put(ref.name, ref.version, decode_task(ref))
        except Corrupt:
            # One corrupt task must not keep the others from running.
            self._drop(ref.name)
            _log.exception("skipping a corrupt task")

    def _in_order(self, refs: Iterable[str]) -> list[VersionedTask]:
        """Return tasks in an order that every run repeats."""
        return [self._tasks[ref] for ref in sorted(refs)]

    def _drop(self, ref: str) -> None:
        self._tasks.pop(ref, None)
        for refs in (self._open, self._waiting, self._urgent, self._due):
            refs.discard(ref)


class WorkerLease:
    """The lease of one worker, renewed in the background while the worker lives.

    Everything that a worker commits is fenced with its lease. Another worker that finds the lease expired
    takes it, which changes its token: from then on the first worker can commit nothing, and its occurrences
    may be given to others.
    """

    def __init__(self, engine: Engine, space: str, *, name: str, seconds: float) -> None:
        self._engine = engine
        self._space = space
        self._name = name
        self._seconds = seconds
        self._lock = Lock()
        self._lease: Lease | None = None
        self._stopping = Event()
        self._renewer: Thread | None = None

    @property
    def worker(self) -> str:
        """The id under which occurrences are claimed; a new one after the lease was lost."""
        return self._acquire().holder

    @property
    def is_held(self) -> bool:
        """Whether the lease is held, as far as this process knows."""
        with self._lock:
            return self._lease is not None

    def start(self) -> None:
        """Acquire the lease and renew it in the background."""
        self._acquire()
        self._renewer = Thread(target=self._renew_forever, name="treering-worker-lease", daemon=True)
        self._renewer.start()

    def fence(self, draft: Draft, worker: str) -> None:
        """Make a batch fail with `Fenced` unless the lease is held under this id."""
        with self._lock:
            lease = self._lease
        if lease is not None and lease.holder == worker:
            draft.fence(lease.name, lease.token)
        else:
            draft.fence(_lease_name(worker), _INVALID_TOKEN)

    def renew(self) -> bool:
        """Extend the lease; return whether it is still held. A lost lease is discarded."""
        with self._lock:
            lease = self._lease
        if lease is None:
            return False
        renewed = self._engine.heartbeat(lease, seconds=self._seconds)
        with self._lock:
            self._lease = renewed
        return renewed is not None

    def discard(self) -> None:
        """Forget a lost lease; the next access acquires one under a new id."""
        with self._lock:
            self._lease = None

    def take_expired(self, worker: str) -> bool:
        """Whether the lease of another worker has expired. If so it is revoked: that worker is fenced out."""
        taken = self._engine.claim(
            self._space, _lease_name(worker), holder=f"heir:{self.worker}", seconds=self._seconds
        )
        if taken is None:
            return False
        self._engine.release(taken)
        return True

    def end(self) -> None:
        """Release the lease."""
        self.stop_renewing()
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            self._engine.release(lease)

    def stop_renewing(self) -> None:
        """Let the lease expire, after which other workers take over what is still open."""
        self._stopping.set()
        if self._renewer is not None:
            self._renewer.join()

    def _acquire(self) -> Lease:
        with self._lock:
            if self._lease is None:
                worker = f"{self._name}:{new_id()}"
                self._lease = self._engine.claim(
                    self._space, _lease_name(worker), holder=worker, seconds=self._seconds
                )
                if self._lease is None:
                    raise Unsupported(
                        f"the store granted no lease for {worker!r}; schedules need an engine with leases"
                    )
            return self._lease

    def _renew_forever(self) -> None:
        while not self._stopping.wait(self._seconds / _BEATS):
            try:
                if not self.renew():
                    _log.warning("the lease of a worker was lost; other workers may repeat its occurrences")
            except TreeringError:
                _log.warning("the lease of a worker could not be renewed; retrying", exc_info=True)


def _set_member(refs: set[str], ref: str, *, member: bool) -> None:
    (refs.add if member else refs.discard)(ref)


def _lease_name(worker: str) -> str:
    return f"worker/{worker}"
