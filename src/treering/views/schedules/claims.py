"""Claims: what a worker takes of what is due, and how many of them become one commit.

Pure but for the presence that fences them. **Invariant:** a claim is written against the version of the task
that it was planned from; a batch of claims is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from treering.core.draft import Draft
from treering.views.schedules.board import Pinned
from treering.views.schedules.fires import CLAIMED, OPENED, tell, tell_skips
from treering.views.schedules.planning import Skip, advance, claim, claimable
from treering.views.schedules.tasks import OpenFire, Task, encoded

if TYPE_CHECKING:
    from treering.views.schedules.presence import Presence


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
