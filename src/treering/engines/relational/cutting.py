"""Cutting rows out: the events, refs and texts of an erasure, with everything that repeats them.

An event is also in the totals, so what it added is taken off again; a total of no events goes. A ref's name
also stands in the receipt of every commit that moved it; the receipt stays, because it makes a repeated batch
harmless, but without the name. A text is also in the search index. **Invariant:** after each transaction the
totals equal a recount, and the index holds exactly the texts that have a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.core.rollup import MEASURES, deltas
from treering.engines.relational.current import pack_receipt, unpack_receipt
from treering.engines.relational.remembered import count_removal
from treering.engines.relational.rows import RECORD_SELECT, record_of
from treering.engines.relational.scratch import Seen
from treering.engines.relational.session import in_chunks
from treering.engines.relational.totals import kept
from treering.engines.relational.walking import PAGE

if TYPE_CHECKING:
    from treering.core.batch import Event
    from treering.core.query import Erasure
    from treering.engines.relational.planned import Planned
    from treering.engines.relational.scratch import Scratch
    from treering.engines.relational.session import Database, Row, Session
    from treering.engines.relational.texts import TextIndex

_CELL: Final = " AND ".join(
    f"{name} = ?" for name in ("space", "grain", "key", "day", "agent", "model", "kind", "currency")
)
_SUBTRACT: Final = f"UPDATE rollup SET {', '.join(f'{name} = {name} - ?' for name in MEASURES)} WHERE {_CELL}"
_DROP_EMPTY: Final = f"DELETE FROM rollup WHERE {_CELL} AND events = 0"


class Cutting:
    """The rows that a plan takes out of journal, refs and texts."""

    def __init__(
        self,
        database: Database,
        texts: TextIndex,
        space: int,
        *,
        plan: Erasure,
        planned: Planned,
        scratch: Scratch,
    ) -> None:
        self._database = database
        self._texts = texts
        self._space = space
        self._scopes = sorted(planned.scopes)
        self._seqs = sorted(set(plan.event_seqs))
        self._names = sorted(set(plan.refs))
        self._erased_names = Seen(scratch, "erased_ref", "text")
        self._receipts = Seen(scratch, "receipt", "number")
        self._cleaned = 0
        self.events = self.refs = self.texts = self.bytes = 0

    def some(self, session: Session, limit: int) -> int:
        """Cut up to about this many rows out; none left when it gives 0."""
        removed = self._some_texts(session, limit)
        removed += self._some_events(session, limit) if removed < limit else 0
        removed += self._some_refs(session, limit) if removed < limit else 0
        return removed

    def _some_texts(self, session: Session, limit: int) -> int:
        sql = f"SELECT no FROM text WHERE scope IN (@) LIMIT {limit}"
        numbers = [no for (no,) in in_chunks(session, sql, (), self._scopes)]
        if numbers:
            self.texts += self._texts.remove(session, self._space, numbers)
        return len(numbers)

    def _some_events(self, session: Session, limit: int) -> int:
        sql = f"{RECORD_SELECT} WHERE e.scope IN (@) LIMIT {limit}"
        rows = list(in_chunks(session, sql, (), self._scopes))
        if not rows and self._seqs:
            named, self._seqs = self._seqs[:limit], self._seqs[limit:]
            sql = f"{RECORD_SELECT} WHERE e.space = ? AND e.seq IN (@)"
            rows = list(in_chunks(session, sql, (self._space,), named))
            if not rows:
                return self._some_events(session, limit)
        records = [record_of(row) for row in rows]
        if records:
            session.many(
                "DELETE FROM event WHERE space = ? AND seq = ?",
                [(self._space, record.seq) for record in records],
            )
            self._subtract(session, [record.event for record in records])
            self.events += len(records)
            self.bytes += sum(len(record.event.data or b"") for record in records)
        return len(records)

    def _subtract(self, session: Session, events: list[Event]) -> None:
        cells = {kept(cell): measures for cell, measures in deltas(events).items()}
        session.many(_SUBTRACT, [(*measures, self._space, *cell) for cell, measures in cells.items()])
        session.many(_DROP_EMPTY, [(self._space, *cell) for cell in cells])

    def _some_refs(self, session: Session, limit: int) -> int:
        columns = "SELECT name, coalesce(length(value), 0), version FROM ref"
        sql = f"{columns} WHERE scope IN (@) LIMIT {limit}"
        rows = list(in_chunks(session, sql, (), self._scopes))
        if not rows and self._names:
            named, self._names = self._names[:limit], self._names[limit:]
            rows = list(
                in_chunks(session, f"{columns} WHERE space = ? AND name IN (@)", (self._space,), named)
            )
            if not rows:
                return self._some_refs(session, limit)
        count_removal(session, self._space)
        session.many(
            "DELETE FROM ref WHERE space = ? AND name = ?", [(self._space, name) for name, _, _ in rows]
        )
        self._erased_names.add(dict.fromkeys((name for name, _, _ in rows), 0))
        self.refs += sum(version > 0 for _, _, version in rows)  # at 0 it was deleted, but never there
        self.bytes += sum(size for _, size, _ in rows)
        return len(rows)

    # Receipts
    def find_receipts(self) -> None:
        """Look for the commits whose receipts name refs that will go."""
        with self._database.reading() as session:
            sql = "SELECT name, scope FROM ref WHERE space = ? AND name IN (@)"
            self._erased_names.add(dict(in_chunks(session, sql, (self._space,), self._names)))
        for scope in self._scopes:
            with self._database.reading() as session:
                rows = session.rows("SELECT name, scope FROM ref WHERE scope = ?", (scope,))
            self._erased_names.add(dict(rows))
        if not len(self._erased_names):
            return
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT batch, no, receipt FROM commits WHERE space = ? AND batch > ? "
                    "ORDER BY batch LIMIT ?",
                    (self._space, after, PAGE),
                )
            self._receipts.add(dict.fromkeys((no for no, _ in self._naming(rows)), 0))
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def clean_page(self, session: Session) -> bool:
        """Take the names out of some of the receipts that were found; False when none is left."""
        page = self._receipts.page(self._cleaned, PAGE)
        if page:
            self._cleaned = page[-1][0]
            sql = "SELECT batch, no, receipt FROM commits WHERE no IN (@)"
            self._clean(session, list(in_chunks(session, sql, (), [no for no, _ in page])))
        return bool(page)

    def clean_since(self, session: Session, commit_no: int) -> None:
        """Take the names out of the receipts of all commits behind one."""
        sql = "SELECT batch, no, receipt FROM commits WHERE no > ? AND space = ?"
        self._clean(session, session.rows(sql, (commit_no, self._space)))

    def _clean(self, session: Session, rows: list[Row]) -> None:
        cleaned = [(receipt, no) for no, receipt in self._naming(rows)]
        if cleaned:
            session.many("UPDATE commits SET receipt = ? WHERE no = ?", cleaned)

    def _naming(self, rows: list[Row]) -> list[tuple[int, bytes]]:
        """Those of these commits whose receipts name an erased ref, and the receipts without it."""
        receipts = {
            no: unpack_receipt(batch, 0, 0, 0, stored) for batch, no, stored in rows if stored is not None
        }
        erased = self._erased_names.among(name for receipt in receipts.values() for name in receipt.versions)
        return [
            (
                no,
                pack_receipt(
                    _without(receipt.versions, erased), _without(receipt.sums, erased), receipt.new_events
                ),
            )
            for no, receipt in receipts.items()
            if not erased.keys().isdisjoint(receipt.versions)
        ]


def _without(numbers: dict[str, int], names: dict[Any, int]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if name not in names}
