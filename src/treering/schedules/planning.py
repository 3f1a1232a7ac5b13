"""The state machine of a task: pure functions from one record to the next.

**Invariant:** every occurrence between the creation of a task and now is accounted for exactly once: it is
open, or a worker finished it, or it was skipped for a reason that the journal records. The record holds the
time of the next occurrence, and nothing becomes due before it, so no occurrence can come up twice.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
from msgspec import structs

from treering.core.clock import SECOND_US
from treering.errors import Conflict
from treering.schedules.tasks import OpenOccurrence, Skip, Task

MAX_OPEN: Final = 200
"""Limit of open occurrences, which keeps the record of a task small."""

PAUSED: Final = "the task was paused"
CANCELLED: Final = "the task was cancelled"
MISSED: Final = "missed: no worker was running in time"
CAUGHT_UP: Final = "missed: a later occurrence runs instead"
EXPIRED: Final = "missed: older than the catch-up window"
OVER_LIMIT: Final = "missed: over the catch-up limit"
OVERLAP: Final = "an earlier occurrence was still open"
BUFFERED: Final = "another occurrence was already waiting"
FULL: Final = f"{MAX_OPEN} occurrences were already open"


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A task after a change, and the occurrences that the change skipped."""

    task: Task
    skips: tuple[Skip, ...] = ()


def is_due(task: Task, now_us: int) -> bool:
    """Whether `advance` would change anything."""
    return task.status == "active" and task.next_run_us is not None and task.next_run_us <= now_us


def advance(task: Task, now_us: int) -> Transition:
    """Open the occurrences that are due, subject to the policy of the task."""
    if not is_due(task, now_us):
        return Transition(task=task)
    skips: list[Skip] = []
    due, next_us = _due(task, now_us, skips)
    opened = _limit_overlap(task, due, skips)
    occurrences = (*task.open_occurrences, *(OpenOccurrence(at_us=at_us) for at_us in opened))
    advanced = structs.replace(task, open_occurrences=occurrences, next_run_us=next_us)
    return Transition(task=_close_if_done(advanced), skips=tuple(skips))


def claimable(task: Task) -> tuple[OpenOccurrence, ...]:
    """Return the occurrences that a worker may start now."""
    if task.status == "cancelled":
        return ()
    waiting = tuple(each for each in task.open_occurrences if each.worker is None)
    if task.policy.overlap == "allow":
        return waiting
    return waiting[:1] if len(waiting) == len(task.open_occurrences) else ()


def claim(task: Task, at_us: int, *, worker: str, now_us: int) -> Task:
    """Assign an occurrence to a worker, with a higher token than all claims before."""
    token = task.claims + 1
    occurrences = tuple(
        structs.replace(each, worker=worker, claimed_at_us=now_us, attempt=each.attempt + 1, token=token)
        if each.at_us == at_us
        else each
        for each in task.open_occurrences
    )
    return structs.replace(task, open_occurrences=occurrences, claims=token, last_run_us=now_us)


def finish(task: Task, at_us: int, *, token: int) -> Task | None:
    """Close an occurrence; return ``None`` if it is no longer held under this token."""
    if not any(each.at_us == at_us and each.token == token for each in task.open_occurrences):
        return None
    occurrences = tuple(each for each in task.open_occurrences if each.at_us != at_us)
    return _close_if_done(structs.replace(task, open_occurrences=occurrences, runs=task.runs + 1))


def release(task: Task, worker: str, *, running: frozenset[int] = frozenset()) -> Transition:
    """Make the occurrences of a dead worker claimable again, or give them up after too many attempts.

    ``running`` are the tokens of occurrences to leave alone: they do run.
    """
    skips: list[Skip] = []
    occurrences: list[OpenOccurrence] = []
    for each in task.open_occurrences:
        if each.worker != worker or each.token in running:
            occurrences.append(each)
        elif each.attempt >= task.policy.max_attempts or task.status == "cancelled":
            reason = f"given up: {each.attempt} workers died on it"
            reason = CANCELLED if task.status == "cancelled" else reason
            skips.append(_single_skip(each.at_us, reason, manual=each.manual))
        else:
            occurrences.append(structs.replace(each, worker=None))
    released = structs.replace(task, open_occurrences=tuple(occurrences))
    return Transition(task=_close_if_done(released), skips=tuple(skips))


def pause(task: Task, now_us: int) -> Transition:
    """Pause a task: waiting occurrences are skipped, running ones continue."""
    step = advance(task, now_us)
    return _skip_waiting(structs.replace(step.task, status="paused"), PAUSED, step.skips)


def resume(task: Task, now_us: int) -> Transition:
    """Resume a task at its next occurrence; those due during the pause are skipped."""
    if task.next_run_us is None or task.next_run_us > now_us:
        return Transition(task=_close_if_done(structs.replace(task, status="active")))
    counter = _SkipCounter(PAUSED)
    next_us = _count_due(task, now_us, counter)
    resumed = structs.replace(task, status="active", next_run_us=next_us)
    return Transition(task=_close_if_done(resumed), skips=counter.skips())


def cancel(task: Task, now_us: int) -> Transition:
    """Cancel a task for good: waiting occurrences are skipped, running ones continue."""
    step = advance(task, now_us)
    cancelled = structs.replace(step.task, status="cancelled", next_run_us=None)
    return _skip_waiting(cancelled, CANCELLED, step.skips)


def run_now(task: Task, now_us: int) -> Task:
    """Open one more occurrence at once, whatever the policy."""
    if task.status == "cancelled":
        raise Conflict(f"task {task.id!r} was cancelled; schedule a new one")
    if len(task.open_occurrences) >= MAX_OPEN:
        raise Conflict(f"task {task.id!r} has {MAX_OPEN} open occurrences; wait for some to finish")
    latest_us = max((each.at_us for each in task.open_occurrences), default=0)
    at_us = max(now_us, task.last_manual_us + 1, latest_us + 1)
    occurrences = (*task.open_occurrences, OpenOccurrence(at_us=at_us, manual=True))
    status = "active" if task.status == "done" else task.status
    return structs.replace(task, open_occurrences=occurrences, last_manual_us=at_us, status=status)


class _SkipCounter:
    """Counts consecutive skipped occurrences without storing them."""

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
        return (Skip(first_us=self._first_us, last_us=self._last_us, count=self._count, reason=self._reason),)


def _due(task: Task, now_us: int, skips: list[Skip]) -> tuple[list[int], int | None]:
    """Return the due times that should run, and the next one in the future."""
    policy = task.policy
    first_us = task.next_run_us or 0
    window_us = 0 if task.window_us is None else now_us - task.window_us
    expired = _SkipCounter(EXPIRED)
    superseded = _SkipCounter(OVER_LIMIT if policy.catch_up == "all" else CAUGHT_UP)
    limit = min(policy.catch_up_max, MAX_OPEN) if policy.catch_up == "all" else 1
    if task.type == "interval":
        # The grid is counted, not iterated: years of one-second intervals may have passed.
        step_us = task.timing.interval_us
        if first_us < window_us:
            count = -(-(window_us - first_us) // step_us)
            expired.add(first_us, first_us + (count - 1) * step_us, count)
            first_us += count * step_us
        count = (now_us - first_us) // step_us + 1 - limit
        if count > 0:
            superseded.add(first_us, first_us + (count - 1) * step_us, count)
            first_us += count * step_us
    due: deque[int] = deque()
    at_us: int | None = first_us
    times = task.timing.after(first_us)
    while at_us is not None and at_us <= now_us:
        if at_us < window_us:
            expired.add(at_us)
        else:
            due.append(at_us)
            if len(due) > limit:
                superseded.add(due.popleft())
        at_us = next(times, None)
    skips += (*expired.skips(), *superseded.skips())
    if policy.catch_up == "skip" and due and due[0] < now_us - round(policy.grace_seconds * SECOND_US):
        skips.append(_single_skip(due.popleft(), MISSED))
    return list(due), at_us


def _limit_overlap(task: Task, due: list[int], skips: list[Skip]) -> list[int]:
    """Return the due times that may be opened beside the open occurrences; skip the others."""
    overlap = task.policy.overlap
    room = MAX_OPEN - len(task.open_occurrences)
    reason = FULL
    if task.open_occurrences and overlap != "allow":
        is_waiting = any(each.worker is None for each in task.open_occurrences)
        room = 1 if overlap == "buffer" and not is_waiting else 0
        reason = BUFFERED if overlap == "buffer" else OVERLAP
    skips += [_single_skip(at_us, reason) for at_us in due[room:]]
    return due[:room]


def _count_due(task: Task, now_us: int, counter: _SkipCounter) -> int | None:
    """Count the occurrences that are due; return the time of the next one."""
    at_us = task.next_run_us
    if at_us is not None and task.type == "interval":
        step_us = task.timing.interval_us
        count = (now_us - at_us) // step_us + 1
        counter.add(at_us, at_us + (count - 1) * step_us, count)
        return at_us + count * step_us
    times = task.timing.after(at_us or 0)
    while at_us is not None and at_us <= now_us:
        counter.add(at_us)
        at_us = next(times, None)
    return at_us


def _skip_waiting(task: Task, reason: str, skips: tuple[Skip, ...]) -> Transition:
    waiting = tuple(
        _single_skip(each.at_us, reason, manual=each.manual)
        for each in task.open_occurrences
        if each.worker is None
    )
    running = tuple(each for each in task.open_occurrences if each.worker is not None)
    return Transition(task=structs.replace(task, open_occurrences=running), skips=(*skips, *waiting))


def _close_if_done(task: Task) -> Task:
    """Mark a task as done when nothing is open and nothing will become due."""
    if task.status == "active" and task.next_run_us is None and not task.open_occurrences:
        return structs.replace(task, status="done")
    return task


def _single_skip(at_us: int, reason: str, *, manual: bool = False) -> Skip:
    return Skip(first_us=at_us, last_us=at_us, count=1, reason=reason, manual=manual)
