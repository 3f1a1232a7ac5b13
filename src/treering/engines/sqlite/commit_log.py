"""Fresh commits: the short way in, and how they settle.

The rows of a commit go into six tables and as many indexes, which is a dozen pages of SQLite's log where
the content would fill one. So an ordinary commit (see `ordinary`), or several that come together, is written
as one row of the table ``fresh``, which holds all its other rows; a few dozen of them *settle* together, into
tables whose pages are then written once for all. What is fresh is as durable as anything else. Whoever reads,
or writes in any other way, lets it settle first, so nobody else has to know of it.

The table has a few slots, which are filled from the first on. A slot is fresh while the number of its commit
is greater than all in ``commits``; afterwards it is written over, and what was in it is wiped when something
is erased or the store is closed. Each slot has a page for itself, so writing to it changes no other page.

**Invariant:** a fresh commit is one that would have come through in the tables: its slot is filled only if
nothing was committed but what this process knows of, and neither its batch nor one of its events is there
already. So everything that is fresh at a time was written by one process.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.failpoints import declare, hit
from treering.core.frame import seal_pieces, unseal
from treering.engines.sql.commit.write import Rows, write_rows
from treering.engines.sql.read import pack_item_blocks
from treering.engines.sql.session import for_rows
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from treering.engines.sql.session import Session

SETTLED: Final = declare("settle.before_commit", "fresh commits are in their tables, nothing is committed")

SLOTS: Final = 64
MOST_COMMITS: Final = 128
"""How many settle together: so many slots, or as many commits."""
MOST_BYTES: Final = 32 * 1024
"""Commits whose rows take more go straight into the tables."""

ROWS_AT_ONCE: Final = 16

IS_FRESH: Final = "no > (SELECT coalesce(max(no), 0) FROM commits)"
WIPE: Final = "DELETE FROM fresh WHERE NOT " + IS_FRESH

_VERSION: Final = 1
_ALL: Final = f"SELECT slot, no, space FROM fresh WHERE {IS_FRESH} ORDER BY no"
_HALF_A_PAGE: Final = 2048
_PADDING: Final = bytes(_HALF_A_PAGE)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@lru_cache(maxsize=256)
def insert_of(batches: int, events: int) -> str:
    """The statement that takes in so many batches with so many events, or does nothing if it must not.

    Its values: slot, number of the last of these commits, space, rows, number of the last commit that has
    settled, removals of the space; the batches; and if there are events their day and their ids.
    """
    there = f"AND NOT EXISTS (SELECT 1 FROM commits WHERE space = ?3 AND batch IN ({_marks(batches)})) "
    if events:
        ids = _marks(events)
        there += f"AND NOT EXISTS (SELECT 1 FROM event WHERE space = ?3 AND day = ? AND id IN ({ids})) "
    return (
        "INSERT INTO fresh (slot, no, space, rows) SELECT ?1, ?2, ?3, ?4 "
        "WHERE (SELECT max(no) FROM commits) = ?5 "
        "AND NOT EXISTS (SELECT 1 FROM fresh WHERE slot = ?1 AND no > ?5) "
        f"AND EXISTS (SELECT 1 FROM space WHERE no = ?3 AND scopes_dropped = ?6) {there}"
        "ON CONFLICT (slot) DO UPDATE SET no = excluded.no, space = excluded.space, rows = excluded.rows"
    )


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def pack(rows: Rows) -> bytes | None:
    """The rows of ordinary commits as they lie in a slot, long enough to have a page for themselves.

    ``None`` where a value is of a subclass (of ``str``, say), which SQLite takes and MessagePack does not.
    """
    content: list[Any] = [
        _VERSION,
        rows.commits,
        rows.runs,
        rows.bodies,
        rows.grown,
        rows.items,
        rows.refs,
        rows.events,
    ]
    try:
        packed = _encode(content)
    except TypeError:
        return None
    if len(packed) < _HALF_A_PAGE:
        content.append(_PADDING[len(packed) :])
        packed = _encode(content)
    return b"".join(seal_pieces(packed, compress_from=len(packed) + 1))


def flush(session: Session, known: Mapping[int, Rows]) -> None:
    """Bring all fresh commits into their tables, within a write transaction.

    ``known`` are those of this process by their numbers, which need not be read.
    """
    spaces: dict[int, Rows] = {}
    for slot, no, space in session.rows(_ALL):
        own = known.get(no)
        spaces.setdefault(space, Rows()).take(_read(session, slot) if own is None else own)
    for space, rows in spaces.items():
        rows.items = pack_item_blocks(rows.items)
        write_rows(_Together(session), space, rows)
    hit(SETTLED)


class _Together:
    """Statements of a session, with rows that are inserted several at a time.

    Every call lets go of Python's lock, and where other threads wait for it, getting it back costs more than
    a row. (Where nobody does, as for spans that come in by the thousand, one row a call takes less memory.)
    """

    def __init__(self, session: Session) -> None:
        self.execute = session.execute
        self._session = session

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        start = 0
        while start < len(rows):
            size = min(1 << (len(rows) - start).bit_length() - 1, ROWS_AT_ONCE)
            together = for_rows(sql, size, distinct=True)  # SQLite takes them one after the other
            if together is None:
                return self._session.execute_many(sql, rows)
            self.execute(together, [*chain.from_iterable(rows[start : start + size])])
            start += size
        return None


def _read(session: Session, slot: int) -> Rows:
    where = f"slot {slot} of fresh commits"
    ((packed,),) = session.rows("SELECT rows FROM fresh WHERE slot = ?", (slot,))
    rows = Rows()
    try:
        version, *content = _decode(unseal(packed, where))
        rows.commits, rows.runs, rows.bodies, rows.grown, rows.items, rows.refs, rows.events, *_ = content
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Corrupt(f"{where} cannot be read ({error}); restore the store from a backup") from error
    if version != _VERSION:
        raise Corrupt(f"{where} has form {version}, which this treering cannot read; upgrade it")
    return rows
