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
from treering.engines.relational.writing import Rows
from treering.engines.sqlite.fresh import MOST_BYTES, SLOTS, insert_of, pack
from treering.engines.sqlite.ordinary import accept, remember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Receipt
    from treering.engines.relational.prepared import Prepared
    from treering.engines.relational.remembered import Memory, Remembered
    from treering.engines.sqlite.database import SqliteDatabase


class _Moved(Exception):
    """Someone else has committed, or something of the batch is there already."""


class Shortcut:
    """The short way into one store; used by one thread at a time, the one that commits."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._settled_no = 0
        """The number of the last commit that went the long way; 0 when it is not known."""
        self._count = 0
        """How many were fresh since."""
        self._names: set[tuple[Any, ...]] = set()
        """The batches and events of these, which no other table may know yet."""

    def commit(self, space: int, group: Sequence[Prepared], memory: Memory) -> list[Receipt] | None:
        """Commit a group of ordinary batches; ``None``, with nothing done, if it has to go the long way."""
        database = self._database
        settled_no, count = self._settled_no, self._count
        if not settled_no or count + len(group) > SLOTS:
            return None
        if database.patience:
            database.patience -= 1
            return None
        now_us = database.now_us()
        accepted = accept(group, memory, now_us)
        if accepted is None:
            return None
        names: set[tuple[Any, ...]] = set()
        inserts: list[tuple[str, tuple[Any, ...]]] = []
        bringing: list[Rows] = []
        for each in accepted:
            slot = count
            count += 1
            batch = each.prepared.batch
            rows = Rows()
            rows.add(each, space, settled_no + count, now_us, memory.scopes, {})
            own = {(space, batch.id), *((space, row[2], row[3]) for row in rows.events)}
            packed = pack(rows)
            if len(packed) > MOST_BYTES or len(own) <= len(rows.events) or own & names or own & self._names:
                return None
            names |= own
            events = [word for row in rows.events for word in row[2:4]]
            values = (slot, settled_no + count, space, packed, settled_no, memory.removals, batch.id, *events)
            inserts.append((insert_of(len(rows.events)), values))
            if rows.objects:
                bringing.append(rows)
        if not self._write(inserts, bringing):
            return None
        self._settled_no = 0  # until the rest is there: a fork or an interrupt may happen in between
        remember(memory, accepted)
        self._names |= names
        self._count = count
        self._settled_no = settled_no
        return [each.receipt for each in accepted]

    def _write(self, inserts: Sequence[tuple[str, tuple[Any, ...]]], bringing: Sequence[Rows]) -> bool:
        if len(inserts) == 1 and not bringing and not is_armed(BEFORE_COMMIT):
            return self._database.run(*inserts[0]) == 1
        try:
            with self._database.writing_fresh() as session:
                for sql, values in inserts:
                    if session.run(sql, values) != 1:
                        raise _Moved
                for rows in bringing:
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
        self._count = 0
        self._settled_no = memory.commit_no
