"""Events that left the database for an archive: their rows go, what was derived from them stays.

An archived event is stored in a file (`treering.lake`), but is still part of its commit and of all totals. So
its row is deleted as an erasure deletes it, with its leaf kept by the commit, while the roll-ups stay as they
are. A recount needs the archived events again: `SqlEngine.archived` reads them.

If archived events are forgotten later, their share of the totals is subtracted. That happens in a transaction
of its own, after their file was replaced, and must happen once. **Invariant:** the events of one file are
subtracted at most once, however often the operation is interrupted and repeated; ``meta`` holds the name of
the file that was subtracted last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.failpoints import declare, hit
from treering.core.rollups import deltas
from treering.engines.sql.gc.erase import keep_leaves, subtract
from treering.engines.sql.rows import RECORD_SELECT, read_record
from treering.engines.sql.session import rows_in_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.batch import Event
    from treering.engines.sql.session import Database

_SLICE: Final = 2000
_DROPPED: Final = declare("archive.dropped", "some rows of archived events are deleted and committed")


def drop_archived(database: Database, space: int, seqs: Sequence[int]) -> int:
    """Delete the rows of archived events, a slice at a time; return how many there were."""
    dropped = 0
    for start in range(0, len(seqs), _SLICE):
        some = list(seqs[start : start + _SLICE])
        with database.writing(space) as session:
            sql = f"{RECORD_SELECT} WHERE e.space = ? AND e.seq IN (@)"
            rows = list(rows_in_chunks(session, sql, (space,), some))
            if rows:
                records = [read_record(row, session.dictionary) for row in rows]
                keep_leaves(session, space, rows, records)
                session.run_many(
                    "DELETE FROM event WHERE space = ? AND seq = ?",
                    [(space, record.seq) for record in records],
                )
                dropped += len(rows)
        hit(_DROPPED)
    return dropped


def forget_archived(database: Database, space: int, events: Iterable[Event], *, file: str) -> None:
    """Subtract events that were removed from an archived ``file`` from the roll-ups, once."""
    key = f"archive.{space}"
    cells = deltas(events)
    with database.writing(space) as session:
        if session.rows("SELECT 1 FROM meta WHERE key = ? AND value = ?", (key, file)):
            return
        subtract(session, space, cells)
        session.run(
            "INSERT INTO meta (key, value) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, file),
        )
