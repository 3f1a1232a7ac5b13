"""The board: the tasks as a worker knows them, kept up to date from the journal.

All tasks are read once; from then on only those that an event names. **Invariant:** the board may be behind,
and that does no harm: whatever is decided from it is committed against the version that it holds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.query import EventQuery
from treering.errors import Corrupt
from treering.views.schedules.fires import TASK_KINDS
from treering.views.schedules.tasks import SCHEDULES, Task, decoded, ref_of_scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        self._seen: int | None = None
        self._doubted: set[str] = set()

    def __iter__(self) -> Iterator[Pinned]:
        return iter(list(self._pinned.values()))

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
        if task.status in ("done", "cancelled") and not task.fires:
            self._pinned.pop(ref, None)
        else:
            self._pinned[ref] = Pinned(ref, version, task)

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
                    self._pinned.pop(name, None)
                else:
                    self._take(ref)

    def _take(self, ref: Ref) -> None:
        try:
            self.pin(ref.name, ref.version, decoded(ref))
        except Corrupt:
            # The others are due all the same.
            self._pinned.pop(ref.name, None)
            _log.exception("a task cannot be read and is left out")
