"""What becomes of a task: pure decisions from one record to the next.

**Invariant:** every occurrence between the making of a task and now is accounted for exactly once: it is
open, or a worker finished it, or it was skipped for a reason that the journal keeps. The record carries the
next occurrence, and nothing is ever due before it, so no occurrence can come up twice.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
from msgspec import structs

from treering.core.clock import SECOND_US
from treering.errors import Conflict
from treering.schedules.tasks import OpenFire, Task

MAX_OPEN: Final = 200
"""More open fires than this are not kept: a task's record must stay small."""

PAUSED: Final = "the task was paused"
CANCELLED: Final = "the task was cancelled"
MISSED: Final = "missed: no worker was there in time"
CAUGHT_UP: Final = "missed: a later one is run in its place"
EXPIRED: Final = "missed: longer ago than the catch-up window"
TOO_MANY: Final = "missed: more than are caught up"
OVERLAP: Final = "an earlier fire was still open"
BUFFERED: Final = "one fire was waiting already"
FULL: Final = f"{MAX_OPEN} fires were open"


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """Occurrences in a row that were left out, and why."""

    first_us: int
    last_us: int
    count: int
    reason: str
    manual: bool = False
    """Not an occurrence of its own: someone asked for it."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A task after a decision, and what was left out by it."""

    task: Task
    skips: tuple[Skip, ...] = ()


def is_due(task: Task, now_us: int) -> bool:
    """Whether `advance` would do anything."""
    return task.status == "active" and task.next_run_us is not None and task.next_run_us <= now_us


def advance(task: Task, now_us: int) -> Step:
    """Open the fires that are due by now, as the task's policy has it."""
    if not is_due(task, now_us):
        return Step(task=task)
    skips: list[Skip] = []
    wanted, following = _due(task, now_us, skips)
    kept = _without_overlap(task, wanted, skips)
    fires = (*task.fires, *(OpenFire(at_us=at) for at in kept))
    return Step(task=_settled(structs.replace(task, fires=fires, next_run_us=following)), skips=tuple(skips))


def claimable(task: Task) -> tuple[OpenFire, ...]:
    """The fires that a worker may begin with now."""
    if task.status == "cancelled":
        return ()
    waiting = tuple(fire for fire in task.fires if fire.worker is None)
    if task.policy.overlap == "allow":
        return waiting
    return waiting[:1] if len(waiting) == len(task.fires) else ()


def claim(task: Task, at_us: int, *, worker: str, now_us: int) -> Task:
    """Give a fire to a worker, under a token that is higher than all before."""
    token = task.claims + 1
    fires = tuple(
        structs.replace(fire, worker=worker, claimed_at_us=now_us, attempt=fire.attempt + 1, token=token)
        if fire.at_us == at_us
        else fire
        for fire in task.fires
    )
    return structs.replace(task, fires=fires, claims=token, last_run_us=now_us)


def finish(task: Task, at_us: int, *, token: int) -> Task | None:
    """Close a fire; ``None`` when it is not held under this token any more."""
    if not any(fire.at_us == at_us and fire.token == token for fire in task.fires):
        return None
    fires = tuple(fire for fire in task.fires if fire.at_us != at_us)
    return _settled(structs.replace(task, fires=fires, runs=task.runs + 1))


def take_back(task: Task, worker: str, *, spared: frozenset[int] = frozenset()) -> Step:
    """Let the fires of a worker that is gone wait again; those that too many died on are given up.

    ``spared`` are the tokens of fires that it still has.
    """
    skips: list[Skip] = []
    fires: list[OpenFire] = []
    for fire in task.fires:
        if fire.worker != worker or fire.token in spared:
            fires.append(fire)
        elif fire.attempt >= task.policy.max_attempts or task.status == "cancelled":
            reason = f"given up: {fire.attempt} workers were lost on it"
            reason = CANCELLED if task.status == "cancelled" else reason
            skips.append(_single(fire.at_us, reason, manual=fire.manual))
        else:
            fires.append(structs.replace(fire, worker=None))
    return Step(task=_settled(structs.replace(task, fires=tuple(fires))), skips=tuple(skips))


def pause(task: Task, now_us: int) -> Step:
    """Do nothing more until `resume`; what waits is left out, what runs goes on."""
    step = advance(task, now_us)
    return _dropped(structs.replace(step.task, status="paused"), PAUSED, step.skips)


def resume(task: Task, now_us: int) -> Step:
    """Go on with the next occurrence; those in between are left out."""
    if task.next_run_us is None or task.next_run_us > now_us:
        return Step(task=_settled(structs.replace(task, status="active")))
    tally = _Tally(PAUSED)
    following = _walk(task, now_us, tally)
    resumed = structs.replace(task, status="active", next_run_us=following)
    return Step(task=_settled(resumed), skips=tally.skips())


def cancel(task: Task, now_us: int) -> Step:
    """Never run again; what waits is left out, what runs goes on."""
    step = advance(task, now_us)
    return _dropped(structs.replace(step.task, status="cancelled", next_run_us=None), CANCELLED, step.skips)


def run_now(task: Task, now_us: int) -> Task:
    """One more fire, at once, whatever the policy says."""
    if task.status == "cancelled":
        raise Conflict(f"task {task.id!r} was cancelled; schedule it again")
    if len(task.fires) >= MAX_OPEN:
        raise Conflict(f"task {task.id!r} has {MAX_OPEN} open fires; wait for some of them to end")
    taken = max((fire.at_us for fire in task.fires), default=0)
    at_us = max(now_us, task.last_manual_us + 1)
    at_us = taken + 1 if at_us <= taken else at_us
    fires = (*task.fires, OpenFire(at_us=at_us, manual=True))
    status = "active" if task.status == "done" else task.status
    return structs.replace(task, fires=fires, last_manual_us=at_us, status=status)


class _Tally:
    """Counts occurrences in a row without keeping them."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self._first_us = self._last_us = self._count = 0

    def add(self, first_us: int, last_us: int | None = None, count: int = 1) -> None:
        self._first_us = self._first_us if self._count else first_us
        self._last_us = first_us if last_us is None else last_us
        self._count += count

    def skips(self) -> tuple[Skip, ...]:
        if not self._count:
            return ()
        told = Skip(first_us=self._first_us, last_us=self._last_us, count=self._count, reason=self._reason)
        return (told,)


def _due(task: Task, now_us: int, skips: list[Skip]) -> tuple[list[int], int | None]:
    """The occurrences that should run, and the next one to come."""
    policy = task.policy
    first = task.next_run_us or 0
    window_us = now_us - round(policy.window_seconds * SECOND_US)
    expired, passed = _Tally(EXPIRED), _Tally(TOO_MANY if policy.catch_up == "all" else CAUGHT_UP)
    kept: deque[int] = deque()
    most = min(policy.catch_up_max, MAX_OPEN) if policy.catch_up == "all" else 1
    if task.type == "interval":
        # A grid is counted, not walked: there may be years of seconds.
        step = task.timing.interval_us
        if first < window_us:
            count = -(-(window_us - first) // step)
            expired.add(first, first + (count - 1) * step, count)
            first += count * step
        count = (now_us - first) // step + 1 - most
        if count > 0:
            passed.add(first, first + (count - 1) * step, count)
            first += count * step
    at: int | None = first
    rest = task.timing.after(first)
    while at is not None and at <= now_us:
        if at < window_us:
            expired.add(at)
        else:
            kept.append(at)
            if len(kept) > most:
                passed.add(kept.popleft())
        at = next(rest, None)
    skips += (*expired.skips(), *passed.skips())
    if policy.catch_up == "skip" and kept and kept[0] < now_us - round(policy.grace_seconds * SECOND_US):
        skips.append(_single(kept.popleft(), MISSED))
    return list(kept), at


def _without_overlap(task: Task, wanted: list[int], skips: list[Skip]) -> list[int]:
    overlap = task.policy.overlap
    room = MAX_OPEN - len(task.fires)
    reason = FULL
    if task.fires and overlap != "allow":
        waits = any(fire.worker is None for fire in task.fires)
        room = 1 if overlap == "buffer" and not waits else 0
        reason = BUFFERED if overlap == "buffer" else OVERLAP
    skips += [_single(at, reason) for at in wanted[room:]]
    return wanted[:room]


def _walk(task: Task, now_us: int, tally: _Tally) -> int | None:
    """Count what was due by now; gives the next one to come."""
    at = task.next_run_us
    if at is not None and task.type == "interval":
        step = task.timing.interval_us
        count = (now_us - at) // step + 1
        tally.add(at, at + (count - 1) * step, count)
        return at + count * step
    rest = task.timing.after(at or 0)
    while at is not None and at <= now_us:
        tally.add(at)
        at = next(rest, None)
    return at


def _dropped(task: Task, reason: str, skips: tuple[Skip, ...]) -> Step:
    dropped = tuple(
        _single(fire.at_us, reason, manual=fire.manual) for fire in task.fires if fire.worker is None
    )
    fires = tuple(fire for fire in task.fires if fire.worker is not None)
    return Step(task=structs.replace(task, fires=fires), skips=(*skips, *dropped))


def _settled(task: Task) -> Task:
    """A task that has nothing to come and nothing open is done."""
    if task.status == "active" and task.next_run_us is None and not task.fires:
        return structs.replace(task, status="done")
    return task


def _single(at_us: int, reason: str, *, manual: bool = False) -> Skip:
    return Skip(first_us=at_us, last_us=at_us, count=1, reason=reason, manual=manual)
