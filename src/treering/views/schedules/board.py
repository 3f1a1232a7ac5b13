"""The board: the tasks as a worker knows them, kept up to date from the journal.

All tasks are read once; from then on only those that an event names. **Invariant:** the board may be behind,
and that does no harm: whatever is decided from it is committed against the version that it holds.
"""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.query import EventQuery
from treering.errors import Corrupt
from treering.views.schedules.fires import TASK_KINDS
from treering.views.schedules.tasks import SCHEDULES, Task, decoded, ref_of_scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.engine import Engine
    from treering.core.records import Ref

_log: Final = logging.getLogger("treering.schedules")
_PAGE: Final = 1000


class Pinned(msgspec.Struct, frozen=True):
    """A task, the ref that holds it and the version that it was read at."""

    ref: str
    version: int
    task: Task


class Board:
    """Every task of a space that is not over."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._pinned: dict[str, Pinned] = {}
        self._open: set[str] = set()
        self._coming: list[tuple[int, str]] = []
        self._seen: int | None = None
        self._doubted: set[str] = set()

    def due(self, now_us: int) -> list[Pinned]:
        """The tasks whose next occurrence has come, and those with fires that are open."""
        found = {ref: self._pinned[ref] for ref in self._open}
        waiting: list[tuple[int, str]] = []
        while self._coming and self._coming[0][0] <= now_us:
            at_us, ref = heappop(self._coming)
            pinned = self._pinned.get(ref)
            # A task that moved on has left its earlier times behind in the heap.
            if pinned is not None and pinned.task.next_run_us == at_us and pinned.task.active:
                found[ref] = pinned
                waiting.append((at_us, ref))
        for each in waiting:
            heappush(self._coming, each)
        return list(found.values())

    def open(self) -> list[Pinned]:
        """The tasks with fires that are waiting or running."""
        return [self._pinned[ref] for ref in self._open]

    def next_us(self) -> int | None:
        """When the next occurrence comes, or came; it may be one that was handled already."""
        return self._coming[0][0] if self._coming else None

    def refresh(self) -> None:
        """Read what changed since the last time."""
        if self._seen is None:
            self._seen = self._engine.wait(self._space, 0, seconds=0)
            self._read_all()
            return
        changed = self._doubted
        after: str | None = str(self._seen)
        while after is not None:
            page = self._engine.scan(self._space, EventQuery(kinds=TASK_KINDS), after=after, limit=_PAGE)
            for record in page.records:
                changed.add(ref_of_scope(record.event.scope))
                self._seen = record.seq
            after = page.cursor
        self._doubted = set()
        self._read(changed)

    def pin(self, ref: str, version: int, task: Task) -> None:
        """Take note of a task that was just written."""
        before = self._pinned.get(ref)
        if task.status in ("done", "cancelled") and not task.fires:
            self._drop(ref)
            return
        self._pinned[ref] = Pinned(ref, version, task)
        (self._open.add if task.fires else self._open.discard)(ref)
        at_us = task.next_run_us
        if task.active and at_us is not None and not _is_in_heap(before, at_us):
            heappush(self._coming, (at_us, ref))

    def doubt(self, ref: str) -> None:
        """Read this task again at the next refresh."""
        self._doubted.add(ref)

    def _read_all(self) -> None:
        after = None
        while page := self._engine.scan_refs(self._space, SCHEDULES, after=after, limit=_PAGE):
            for ref in page:
                self._take(ref)
            after = page[-1].name

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
        try:
            self.pin(ref.name, ref.version, decoded(ref))
        except Corrupt:
            # The others are due all the same.
            self._drop(ref.name)
            _log.exception("a task cannot be read and is left out")

    def _drop(self, ref: str) -> None:
        self._pinned.pop(ref, None)
        self._open.discard(ref)


def _is_in_heap(before: Pinned | None, at_us: int) -> bool:
    return before is not None and before.task.active and before.task.next_run_us == at_us
