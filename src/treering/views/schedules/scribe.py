"""The scribe: writes down what came of fires, those that end together in one commit.

Whoever ends a fire hands it in and waits until it is recorded; the first one to come writes for all who came
meanwhile. **Invariant:** a fire is recorded only while its worker's lease is held, against the version of the
task that is there, and by whoever holds it under the newest token.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.draft import Draft
from treering.errors import Conflict, Fenced, RefMoved
from treering.views.schedules.board import Pinned
from treering.views.schedules.fires import Fire, tell_finish
from treering.views.schedules.planning import finish
from treering.views.schedules.tasks import OpenFire, decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.views.schedules.presence import Presence

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
