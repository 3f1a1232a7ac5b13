"""The short way of a commit: accepted from memory (`ordinary`), written as one row (`fresh`).

What a process remembers of the store holds as long as nobody else has committed, and commits are numbered
through: if the last one that has settled is the one that this process knows of, and the next slot is free, it
does. **Invariant:** `Shortcut` knows that number only while everything that is remembered of any space was
true behind it and behind the commits that are fresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.core.failpoints import hit, is_armed
from treering.engines.relational.engine import BEFORE_COMMIT
from treering.engines.relational.ordinary import accept, remember
from treering.engines.relational.writing import Rows
from treering.engines.sqlite.fresh import MOST_BYTES, MOST_COMMITS, SLOTS, insert_of, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Receipt
    from treering.engines.relational.prepared import Prepared
    from treering.engines.relational.remembered import Memory, Remembered
    from treering.engines.sqlite.database import SqliteDatabase


class _Moved(Exception):
    """Someone else has committed, or something of the batches is there already."""


class Shortcut:
    """The short way into one store; used by one thread at a time, the one that commits."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._settled_no = 0
        """The number of the last commit that went the long way; 0 when it is not known."""
        self._slot = 0
        self._count = 0
        """The next slot, and how many commits are in those before it."""
        self._was_used = False
        self._names: set[tuple[Any, ...]] = set()
        """The batches and events of these, which no other table may know yet."""

    def commit(self, space: int, group: Sequence[Prepared], memory: Memory) -> list[Receipt] | None:
        """Commit a group of ordinary batches; ``None``, with nothing done, if it has to go the long way."""
        database = self._database
        settled_no, count = self._settled_no, self._count
        if not settled_no or self._slot == SLOTS or count + len(group) > MOST_COMMITS:
            return None
        if database.patience:
            database.patience -= 1
            return None
        now_us = database.now_us()
        accepted = accept(group, memory, now_us)
        if accepted is None:
            return None
        rows = Rows()
        for each in accepted:
            count += 1
            rows.add(each, space, settled_no + count, now_us, memory.scopes, {})
        batches = [row[2] for row in rows.commits]
        days = [row[2] for row in rows.events]
        events = [row[3] for row in rows.events]
        names = {(space, batch) for batch in batches} | {(space, *row[2:4]) for row in rows.events}
        packed = pack(rows)
        if (
            packed is None
            or len(packed) > MOST_BYTES
            or days.count(days[0] if days else 0) < len(days)
            or len(names) < len(batches) + len(events)
            or not names.isdisjoint(self._names)
        ):
            return None
        values = (self._slot, settled_no + count, space, packed, settled_no, memory.removals, *batches)
        if not self._write(insert_of(len(batches), len(events)), (*values, *days[:1], *events), rows):
            return None
        self._was_used = True
        self._settled_no = 0  # until the rest is there: a fork or an interrupt may happen in between
        remember(memory, accepted)
        self._names |= names
        database.fresh[settled_no + count] = rows
        self._slot += 1
        self._count = count
        self._settled_no = settled_no
        return [each.receipt for each in accepted]

    @property
    def was_used(self) -> bool:
        """Whether anything went this way."""
        return self._was_used

    def _write(self, sql: str, values: tuple[Any, ...], rows: Rows) -> bool:
        if not rows.objects and not is_armed(BEFORE_COMMIT):
            return self._database.run(sql, values) == 1
        try:
            with self._database.writing_fresh() as session:
                if session.run(sql, values) != 1:
                    raise _Moved
                rows.tell_objects(session)
                hit(BEFORE_COMMIT)
        except _Moved:
            return False
        return True

    def learn(self, space: int, memory: Memory, remembered: Remembered) -> None:
        """Go on from a commit that went the long way, which let everything settle."""
        if memory.behind_no != self._settled_no + self._count or not memory.commit_no:
            remembered.doubt_others(space)
        self._names.clear()
        self._database.fresh.clear()
        self._slot = self._count = 0
        self._settled_no = memory.commit_no
