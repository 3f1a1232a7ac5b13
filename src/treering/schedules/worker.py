"""The worker: does what is due, in any number of processes.

One thread watches the tasks (`Board`), opens the fires that are due, claims as many as there are hands free,
and takes back those of workers that are gone; each fire runs in a thread of a pool (an ``async`` handler in
the event loop that entered the worker). **Invariant:** a fire is claimed by exactly one commit at a time,
against the version of the task and under the worker's lease; it is executed at least once, and it counts as
done only in the commit that records its result. A worker that slept through its lease can record nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Condition, Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Self
from zlib import crc32

import msgspec

from treering.core.batch import Draft
from treering.core.clock import SECOND_US
from treering.errors import Conflict, Fenced, InvalidInput, RefMoved, TreeringError
from treering.schedules.fires import CLAIMED, LOST, OPENED, Fire, fire_of, tell, tell_finish, tell_skips
from treering.schedules.planning import Skip, advance, claim, claimable, finish, take_back
from treering.schedules.tasks import OpenFire, Task, decoded, encoded
from treering.schedules.worker_state import Board, Pinned, Presence

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.runs.run import Run


# -----------------------------------------------------------------------------------------------------------
# Claims: what a worker takes of what is due, and how many of them become one commit.
#
# Pure but for the presence that fences them. **Invariant:** a claim is written against the version of the
# task that it was planned from; a batch of claims is there whole or not at all.


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it will be, what was left out on the way there, and the fires that are taken."""

    pinned: Pinned
    task: Task
    skips: tuple[Skip, ...]
    taken: tuple[OpenFire, ...]


def planned(pinned: Pinned, now_us: int, *, hands: int, worker: str) -> Claim | None:
    """What to do with a task that is due, with so many hands free; nothing when nothing changes."""
    if hands <= 0 and pinned.task.policy.catch_up != "skip":
        return None  # it loses nothing by waiting for a free hand
    step = advance(pinned.task, now_us)
    task = step.task
    times = [fire.at_us for fire in claimable(task)[: max(hands, 0)]]
    for at_us in times:
        task = claim(task, at_us, worker=worker, now_us=now_us)
    if task is pinned.task:
        return None
    taken = tuple(fire for fire in task.fires if fire.at_us in times)
    return Claim(pinned=pinned, task=task, skips=step.skips, taken=taken)


def written(space: str, claims: Sequence[Claim], *, worker: str, presence: Presence, now_us: int) -> Draft:
    """Claims as one batch."""
    draft = Draft(space)
    presence.fence(draft, worker)
    told = 0
    for each in claims:
        task = each.task
        draft.set_ref(each.pinned.ref, encoded(task), scope=task.scope, expect=each.pinned.version)
        tell_skips(draft, task, each.skips, now_us, number=told)
        told += len(each.skips)
        for fire in each.taken:
            facts = {"at_us": fire.at_us, "worker": worker, "attempt": fire.attempt, "token": fire.token}
            tell(draft, task, CLAIMED, now_us, facts, number=told)
            told += 1
        if not (each.skips or each.taken):
            tell(draft, task, OPENED, now_us, {"open": len(task.fires)}, number=told)
            told += 1
    return draft


# -----------------------------------------------------------------------------------------------------------
# The scribe: writes down what came of fires, those that end together in one commit.
#
# Whoever ends a fire hands it in and waits until it is recorded; the first one to come writes for all who
# came meanwhile. **Invariant:** a fire is recorded only while its worker's lease is held, against the
# version of the task that is there, and by whoever holds it under the newest token.


_log: Final = logging.getLogger("treering.schedules")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A fire whose handler is done, and what came of it."""

    claimed: Pinned
    fire: Fire
    taken: OpenFire
    began_us: int
    ended_us: int
    result: Any
    problem: str | None


class Scribe:
    """Records the ends of one worker's fires."""

    def __init__(self, engine: Engine, space: str, presence: Presence, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._presence = presence
        self._clock = clock
        self._writing = Lock()
        self._handed: deque[Ended] = deque()
        self._newest: dict[str, Pinned] = {}
        self._known = Lock()
        self._written: deque[Pinned] = deque()

    def note(self, pinned: Pinned) -> None:
        """A task of which this worker has fires, as it was just written."""
        with self._known:
            self._newest[pinned.ref] = pinned

    def written(self) -> Iterable[Pinned]:
        """The tasks that were written since the last time this was asked."""
        while self._written:
            yield self._written.popleft()

    def record(self, ended: Ended) -> None:
        """Return when the fire is recorded, or can never be."""
        self._handed.append(ended)
        with self._writing:
            together = list[Ended]()
            while self._handed:
                together.append(self._handed.popleft())
            if not together:
                return  # whoever was before us took ours along
            try:
                self._write(together)
            except Conflict:
                for each in together:
                    self._alone(each)

    def _write(self, together: list[Ended]) -> None:
        """All in one commit, against what this worker wrote last."""
        workers = {each.taken.worker for each in together}
        if len(workers) != 1:
            raise RefMoved("fires of several leases cannot be recorded together")
        draft = Draft(self._space)
        self._presence.fence(draft, together[0].taken.worker or "")
        held: dict[str, Pinned] = {}
        with self._known:
            for each in together:
                ref = each.claimed.ref
                held.setdefault(ref, self._newest.get(ref, each.claimed))
        tasks = {ref: pinned.task for ref, pinned in held.items()}
        for number, each in enumerate(together):
            ref = each.claimed.ref
            task = finish(tasks[ref], each.taken.at_us, token=each.taken.token)
            if task is None:
                raise RefMoved(f"a fire of task {each.fire.task_id!r} is not ours any more")
            tasks[ref] = task
            self._tell(draft, task, each, number)
        for ref, pinned in held.items():
            draft.set_ref(ref, encoded(tasks[ref]), scope=tasks[ref].scope, expect=pinned.version)
        versions = self._engine.commit(draft.batch()).versions
        for ref, task in tasks.items():
            self._keep(Pinned(ref, versions[ref], task))

    def _alone(self, ended: Ended) -> None:
        """One fire, against what the store holds, however often that moves."""
        ref = ended.claimed.ref
        while True:
            stored = self._engine.refs(self._space, [ref]).get(ref)
            held = None if stored is None else Pinned(ref, stored.version, decoded(stored))
            task = None if held is None else finish(held.task, ended.taken.at_us, token=ended.taken.token)
            if held is None or task is None:
                _log.warning("a fire of task %r was given to another worker meanwhile", ended.fire.task_id)
                return
            draft = Draft(self._space)
            self._presence.fence(draft, ended.taken.worker or "")
            draft.set_ref(ref, encoded(task), scope=task.scope, expect=held.version)
            self._tell(draft, task, ended, 0)
            try:
                receipt = self._engine.commit(draft.batch())
            except RefMoved:
                continue
            except Fenced:
                self._presence.give_up()
                _log.warning("the lease was lost; a fire of task %r will be run again", ended.fire.task_id)
                return
            self._keep(Pinned(ref, receipt.versions[ref], task))
            return

    def _tell(self, draft: Draft, task: Any, ended: Ended, number: int) -> None:
        tell_finish(
            draft,
            task,
            ended.fire,
            began_us=ended.began_us,
            now_us=ended.ended_us,
            result=ended.result,
            problem=ended.problem,
            number=number,
        )

    def _keep(self, pinned: Pinned) -> None:
        with self._known:
            if any(fire.worker is not None for fire in pinned.task.fires):
                self._newest[pinned.ref] = pinned
            else:
                self._newest.pop(pinned.ref, None)
        self._written.append(pinned)


# -----------------------------------------------------------------------------------------------------------

Handler = Callable[[Fire], Any]

_PROBLEM_CHARS: Final = 2000
_BREATH_SECONDS: Final = 0.005
_LEASE_SHARE: Final = 2 / 3
"""A worker that was seen alive is not asked after before so much of a lease has passed."""


class Worker:
    """Calls a handler for what is due; see `Schedules.worker`."""

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
                f"a worker of concurrency={concurrency}, lease_seconds={lease_seconds}, "
                f"poll_seconds={poll_seconds} cannot work; all of them must be above zero"
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
        self._presence = Presence(engine, space, name=name, seconds=lease_seconds)
        self._board = Board(engine, space)
        self._scribe = Scribe(engine, space, self._presence, clock=clock)
        self._pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="treering-fire")
        self._lock = Condition()
        self._running: set[tuple[str, int]] = set()
        self._met_us: dict[str, int] = {}
        self._place = 0
        self._wake = Event()
        self._stopping = Event()
        self._watching: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Worker of {self._space!r}, {self.running} fires>"

    @property
    def running(self) -> int:
        """How many fires it is at just now."""
        with self._lock:
            return len(self._running)

    # Life
    def start(self) -> Self:
        """Begin in the background; ``with`` does this."""
        if self._watching is not None or self._stopping.is_set():
            raise InvalidInput("this worker was started before; make another one")
        self._presence.begin()
        self._watching = Thread(target=self._watch, name="treering-worker", daemon=True)
        self._watching.start()
        return self

    def stop(self) -> None:
        """Take no more fires; `drain` waits for those that run. May be called from a signal handler."""
        self._stopping.set()
        self._wake.set()

    def drain(self, seconds: float | None = None) -> bool:
        """Stop, and wait for the running fires to end; says whether all did within ``seconds``.

        Those that did not are run again by another worker once the lease is over.
        """
        self.stop()
        if self._watching is not None:
            self._watching.join()
        is_empty = self.idle(seconds)
        self._pool.shutdown(wait=is_empty)
        if is_empty:
            self._presence.end()
        else:
            self._presence.silence()
        return is_empty

    def idle(self, seconds: float | None = None) -> bool:
        """Wait until no fire is running; says whether that came true within ``seconds``."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._running, seconds)

    def run(self) -> None:
        """Work until `stop` is called, then let the running fires end."""
        self.start()
        try:
            self._stopping.wait()
        finally:
            self.drain()
        self._raise()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()
        if error is None:
            self._raise()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.drain)
        if error is None:
            self._raise()

    # Work
    def tick(self) -> int:
        """Look once and begin with what is due; says how many fires were begun."""
        begun = self._look()
        # After a long sleep the lease is over; under a new id there is no reason to wait.
        return begun if self._presence.is_held else begun + self._look()

    def _look(self) -> int:
        for pinned in self._scribe.written():
            self._board.pin(pinned.ref, pinned.version, pinned.task)
        self._board.refresh()
        now_us = self._clock.now_us()
        self._take_back(now_us)
        due = list(self._in_order(now_us))
        if not due:
            return 0
        worker = self._presence.worker
        free = self._concurrency - self.running
        claims: list[Claim] = []
        for pinned in due:
            claimed = planned(pinned, now_us, hands=free, worker=worker)
            if claimed is not None:
                claims.append(claimed)
                free -= len(claimed.taken)
        if not claims:
            return 0
        try:
            return self._claimed(claims, worker, now_us)
        except RefMoved:
            # Someone else was first with one of them; the others are ours all the same.
            return sum(self._claimed_alone(each, worker, now_us) for each in claims)

    def _in_order(self, now_us: int) -> Iterator[Pinned]:
        """What is due: first what cannot wait, then our own share of it, then what is others' share.

        Workers that look at the same moment so seldom reach for the same task.
        """
        due = self._board.due(now_us)
        yield from due.urgent
        if self.running >= self._concurrency:
            return
        others = due.others
        random.shuffle(others)
        others.sort(key=self._is_for_others)
        yield from others[: self._concurrency]

    def _is_for_others(self, pinned: Pinned) -> bool:
        present = len(self._met_us) + 1
        return crc32(pinned.ref.encode()) % present != self._place

    def _claimed(self, claims: Sequence[Claim], worker: str, now_us: int) -> int:
        draft = written(self._space, claims, worker=worker, presence=self._presence, now_us=now_us)
        try:
            versions = self._engine.commit(draft.batch()).versions
        except Fenced:
            self._presence.give_up()
            return 0
        for each in claims:
            pinned = Pinned(each.pinned.ref, versions[each.pinned.ref], each.task)
            self._board.pin(pinned.ref, pinned.version, pinned.task)
            if each.taken:
                self._scribe.note(pinned)
            for fire in each.taken:
                with self._lock:
                    self._running.add((pinned.ref, fire.token))
                self._pool.submit(self._do, pinned, fire)
        return sum(len(each.taken) for each in claims)

    def _claimed_alone(self, claim: Claim, worker: str, now_us: int) -> int:
        try:
            return self._claimed([claim], worker, now_us)
        except RefMoved:
            self._board.doubt(claim.pinned.ref)
            return 0

    def _take_back(self, now_us: int) -> None:
        """Let fires wait again whose worker's lease is over, and our own that came to no end."""
        mine = self._presence.worker
        holders: dict[str, list[Pinned]] = {}
        for pinned in self._board.open():
            for worker in {fire.worker for fire in pinned.task.fires}:
                if worker is not None and worker != mine:
                    holders.setdefault(worker, []).append(pinned)
                elif worker is not None:
                    self._free(pinned, mine, now_us)
        self._met_us = {worker: self._met_us.get(worker, now_us) for worker in holders}
        self._place = sum(worker < mine for worker in holders)
        for worker, held in holders.items():
            if now_us - self._met_us[worker] < self._lease_us * _LEASE_SHARE:
                continue
            if self._presence.is_gone(worker):
                for pinned in held:
                    self._free(pinned, worker, now_us)

    def _free(self, pinned: Pinned, gone: str, now_us: int) -> None:
        with self._lock:
            spared = frozenset(token for ref, token in self._running if ref == pinned.ref)
        step = take_back(pinned.task, gone, spared=spared if gone == self._presence.worker else frozenset())
        if step.task == pinned.task:
            return
        draft = Draft(self._space)
        self._write(draft, pinned, step.task, self._presence.worker)
        tell_skips(draft, step.task, step.skips, now_us)
        tell(draft, step.task, LOST, now_us, {"worker": gone})
        try:
            receipt = self._engine.commit(draft.batch())
        except Conflict as error:
            if isinstance(error, Fenced):
                self._presence.give_up()
            self._board.doubt(pinned.ref)
        else:
            self._board.pin(pinned.ref, receipt.versions[pinned.ref], step.task)

    def _do(self, pinned: Pinned, taken: OpenFire) -> None:
        """One fire from beginning to end, in a thread of the pool."""
        ref, task = pinned.ref, pinned.task
        try:
            began_us = self._clock.now_us()
            fire, result, problem = self._handled(task, taken)
            self._scribe.record(
                Ended(
                    claimed=pinned,
                    fire=fire,
                    taken=taken,
                    began_us=began_us,
                    ended_us=self._clock.now_us(),
                    result=result,
                    problem=problem,
                )
            )
        except Exception:  # noqa: BLE001 - the fire stays open, and the next look takes it back
            _log.exception("fire of task %r could not be recorded; it will be run again", task.id)
        finally:
            with self._lock:
                self._running.discard((ref, taken.token))
                self._lock.notify_all()
            self._wake.set()

    def _handled(self, task: Task, taken: OpenFire) -> tuple[Fire, Any, str | None]:
        run = None
        if self._new_run is not None:
            meta = {"task_id": task.id, "scheduled_at_us": taken.at_us, "attempt": taken.attempt}
            run = self._new_run("scheduler", thread=task.thread_id, namespace=task.namespace, meta=meta)
        fire = fire_of(task, taken, None if run is None else run.id)
        recording: AbstractContextManager[Any] = nullcontext() if run is None else run
        try:
            with recording, self._lent():
                return fire, self._called(fire), None
        except Exception as error:  # noqa: BLE001 - a handler may raise what it likes
            _log.warning("task %r failed", task.id, exc_info=True)
            return fire, None, f"{type(error).__qualname__}: {error}"[:_PROBLEM_CHARS]

    def _called(self, fire: Fire) -> Any:
        from treering.sync_async import call

        result = call(self._handler, fire)
        if self._deliver is not None:
            call(self._deliver, fire, result)
        return result

    def _lent(self) -> AbstractContextManager[None]:
        from treering.sync_async import lent

        return nullcontext() if self._loop is None else lent(self._loop)

    def _write(self, draft: Draft, pinned: Pinned, task: Task, worker: str) -> None:
        draft.set_ref(pinned.ref, encoded(task), scope=task.scope, expect=pinned.version)
        self._presence.fence(draft, worker)

    # Watching
    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                begun = self.tick()
            except TreeringError as error:
                if not error.retryable:
                    self._failure = error
                    self._stopping.set()
                    return
                _log.warning("the store does not answer; trying again", exc_info=True)
                begun = 0
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                self._failure = error
                self._stopping.set()
                return
            # A breath between two looks: what ends meanwhile is replaced by one commit instead of many.
            if not self._stopping.wait(_BREATH_SECONDS) and not begun:
                self._wake.wait(self._pause())

    def _pause(self) -> float:
        """How long nothing can be begun, as far as is known; a fire that ends wakes us."""
        if self.running >= self._concurrency:
            return self._poll_seconds
        coming_us = self._board.next_us()
        until = self._poll_seconds if coming_us is None else (coming_us - self._clock.now_us()) / SECOND_US
        return max(_BREATH_SECONDS, min(until, self._poll_seconds))

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
