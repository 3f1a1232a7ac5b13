"""Retention for one thread of a treering store: what `store.gc` does, after each save.

**Invariant:** the newest checkpoint always stays, and the journal says what is dropped before it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treering.care.ledger import record
from treering.core.clock import SystemClock
from treering.core.encoding import encode
from treering.core.engine import Engine
from treering.core.pages import each_record
from treering.core.query import Erasure, EventQuery
from treering.core.records import Record
from treering.core.retention import Entry, Keep, select
from treering.store import Store
from treering.views.checkpoints import KIND, read_checkpoint
from treering.views.directory import thread_info
from treering.views.journal import thread_scope


def drop_from_store(store: Store, thread_id: str, namespace: str, keep: Keep) -> None:
    """Drop the checkpoints of a thread that ``keep`` does not want. `store.gc` returns their space."""
    engine, space = store.engine, store.space
    clock = SystemClock()
    records = {each.event.id: each for each in _records(engine, space, thread_scope(thread_id, namespace))}
    decision = select(_entries(engine, space, records.values()), keep, now_us=clock.now_us())
    info = thread_info(engine, space, thread_id, namespace)
    ids = [each.id for each in decision.dropped if info is not None and each.id != info.head]
    if not ids:
        return
    record(
        engine,
        space,
        kind="retention",
        data={"dropped": {KIND: len(ids)}},
        body=encode({KIND: ids}),
        clock=clock,
    )
    engine.erase(space, Erasure(event_seqs=tuple(records[each].seq for each in ids)))


def _entries(engine: Engine, space: str, records: Iterable[Record]) -> Iterator[Entry]:
    for each in records:
        checkpoint = read_checkpoint(engine, space, each)
        yield Entry(
            id=checkpoint.id,
            ts_us=each.committed_at_us,
            tags=frozenset(checkpoint.tags),
            size_bytes=len(each.event.data or b""),
        )


def _records(engine: Engine, space: str, scope: str) -> Iterator[Record]:
    return each_record(engine, space, EventQuery(kinds=(KIND,), scope=scope))
