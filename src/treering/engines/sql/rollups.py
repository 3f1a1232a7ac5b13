"""Totals from the roll-ups, and the recount that they must equal.

The roll-up of a run has the number of the run in its key (`stored_key`); everything else here uses its name.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from treering.core.records import Problem
from treering.core.rollups import MEASURES, MOVED, NO_TIME, RollupKey, as_sum, deltas, merge, order
from treering.engines.sql.rows import RECORD_SELECT, number_of_key, read_record, run_key
from treering.engines.sql.session import rows_in_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.batch import Event
    from treering.core.engine import OnWork
    from treering.core.query import SumQuery
    from treering.core.records import Sum
    from treering.core.rollups import Measures
    from treering.engines.sql.session import Database, Row, Session
    from treering.engines.sql.spill import SpillDatabase


_SUMS: Final = ", ".join(f"SUM({name})" for name in MEASURES)
_PAGE: Final = 5000
RUN: Final = "run"


def sums(session: Session, space: int, query: SumQuery) -> list[Sum]:
    """Answer a query from the roll-ups."""
    conditions = ["space = ?", "grain = ?"]
    values: list[Any] = [space, query.grain]
    is_of_runs = query.grain == RUN
    for name in ("key", "agent", "model", "kind"):
        value = getattr(query, name)
        if value is not None:
            value = run_key(value) if is_of_runs and name == "key" else value
            conditions.append(f"{name} = ?")
            values.append(value)
    if query.since_day is not None:
        conditions.append("day >= ?")
        values.append(query.since_day)
    if query.until_day is not None:
        conditions.append("day <= ?")
        values.append(query.until_day)
    by = ", ".join(query.by)
    head = f"{by}, " if by else ""
    tail = f" GROUP BY {by}" if by else ""
    rows = session.rows(
        f"SELECT {head}{_SUMS} FROM rollup WHERE {' AND '.join(conditions)}{tail}",
        values,
    )
    width = len(query.by)
    rows = [row for row in rows if row[width] is not None]
    if is_of_runs and "key" in query.by:
        rows = _named(session, space, rows, query.by.index("key"))
    groups = [as_sum(tuple(row[:width]), [int(value) for value in row[width:]]) for row in rows]
    return order(groups, query)


def stored_key(cell: RollupKey) -> RollupKey:
    """Return a key as its row has it."""
    return RollupKey(RUN, run_key(cell.key), *cell[2:]) if cell.grain == RUN else cell


def _named(session: Session, space: int, rows: Sequence[Row], at: int) -> list[Row]:
    """Return rows with the names of runs instead of their numbers in one column."""
    numbers = {row[at]: number_of_key(row[at]) for row in rows}
    sql = "SELECT no, name FROM run WHERE space = ? AND no IN (@)"
    names = dict(rows_in_chunks(session, sql, (space,), list(numbers.values())))  # pyright: ignore[reportArgumentType]
    return [(*row[:at], names.get(numbers[row[at]], row[at]), *row[at + 1 :]) for row in rows]


def rebuild(
    database: Database, space: int, archived: Callable[[], Iterable[Event]], on_progress: OnWork | None = None
) -> None:
    """Count all events of a space again, with those ``archived`` outside of it, and replace its roll-ups.

    Runs in one write transaction, because a total that is half old and half new would be wrong.
    """
    with database.writing(space) as session:
        cells = recount(session, space, on_progress)
        for events in _some(archived()):
            merge(cells, deltas(events))
        session.run("DELETE FROM rollup WHERE space = ?", (space,))
        if cells:
            add_to_rollups(session, space, cells)


def recount(session: Session, space: int, on_progress: OnWork | None = None) -> dict[RollupKey, Measures]:
    """Return the totals of all events, counted again."""
    cells: dict[RollupKey, Measures] = {}
    after_seq = done = total = 0
    if on_progress is not None:
        ((total,),) = session.rows("SELECT count(*) FROM event WHERE space = ?", (space,))
    while rows := session.rows(
        f"{RECORD_SELECT} WHERE e.space = ? AND e.seq > ? ORDER BY e.seq LIMIT ?", (space, after_seq, _PAGE)
    ):
        merge(cells, deltas(read_record(row, session.dictionary).event for row in rows))
        after_seq = rows[-1][0]
        done += len(rows)
        if on_progress is not None:
            on_progress("roll-ups", done, max(done, total))
    return cells


_ROLLUP_KEY: Final = ("space", *RollupKey._fields)
_ADD: Final = (
    f"INSERT INTO rollup ({', '.join((*_ROLLUP_KEY, *MEASURES))}) "
    f"VALUES ({', '.join('?' * (len(_ROLLUP_KEY) + len(MEASURES)))}) "
    f"ON CONFLICT ({', '.join(_ROLLUP_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = rollup.{name} + excluded.{name}" for name in MEASURES)
)


def add_to_rollups(session: Session, space: int, cells: dict[RollupKey, Measures]) -> None:
    """Add to the roll-ups."""
    rows = [
        (space, cell[0], run_key(cell[1]) if cell[0] == RUN else cell[1], *cell[2:], *measures)
        for cell, measures in cells.items()
    ]
    session.execute_many(_ADD, rows)


def _some(events: Iterable[Event]) -> Iterator[list[Event]]:
    each = iter(events)
    while some := list(islice(each, _PAGE)):
        yield some


_KEY: Final = RollupKey._fields
_COLUMNS: Final = (*_KEY, *MEASURES)
_SAME: Final = " AND ".join(f"{name} = ?" for name in _KEY)
_NONE: Final = [0] * len(MEASURES)
_COUNT_IN: Final = (
    f"INSERT INTO @ ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in MEASURES)
)


class Recount:
    """The totals of a space, counted again and compared with the roll-ups.

    Events are counted page by page into a spill file, because a space may have as many keys as events.
    Writers continue meanwhile: each page of roll-ups is compared in a transaction that first counts what was
    committed since, so both sides are of one moment. A difference may still come from a concurrent erasure.
    So it is reported only if that one key, counted again in a transaction of its own, differs too.
    """

    def __init__(
        self, database: Database, space: int, spill: SpillDatabase, archived: Callable[[], Iterable[Event]]
    ) -> None:
        self._database = database
        self._space = space
        self._spill = spill
        self._archived = archived
        self._seq = 0
        self.events = 0
        for table in ("cell", "archived_cell"):
            spill.rows(
                f"CREATE TABLE {table} ({', '.join(_COLUMNS)}, compared DEFAULT 0, "
                f"PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
            )

    def count(self) -> Iterator[None]:
        """Count all events, a page at a time."""
        for events in _some(self._archived()):
            for table in ("cell", "archived_cell"):
                self._count_in(table, deltas(events))
            self.events += len(events)
            yield
        page = _PAGE
        while page == _PAGE:
            with self._database.reading() as session:
                page = self._count_page(session)
            yield

    def problems(self) -> Iterator[list[Problem]]:
        """Compare with the roll-ups, a page at a time."""
        after: Row = ("", "", -1, "", "", "", "", NO_TIME)
        while True:
            with self._database.reading() as session:
                while self._count_page(session) == _PAGE:
                    pass
                rows = session.rows(
                    f"SELECT {', '.join(_COLUMNS)} FROM rollup WHERE space = ? AND ({', '.join(_KEY)}) > "
                    f"({', '.join('?' * len(_KEY))}) ORDER BY {', '.join(_KEY)} LIMIT ?",
                    (self._space, *after, _PAGE),
                )
            width = len(_KEY)
            differing = [
                RollupKey(*row[:width])
                for row in rows
                if self._counted(row[:width]) != _as_measures(row[width:])
            ]
            self._spill.many(f"UPDATE cell SET compared = 1 WHERE {_SAME}", [row[:width] for row in rows])
            yield self._confirmed(differing)
            if len(rows) < _PAGE:
                break
            after = rows[-1][:width]
        while lacking := self._spill.rows(
            f"SELECT {', '.join(_KEY)} FROM cell WHERE compared = 0 LIMIT ?", (_PAGE,)
        ):
            self._spill.many(f"UPDATE cell SET compared = 1 WHERE {_SAME}", lacking)
            yield self._confirmed([RollupKey(*row) for row in lacking])

    def _count_page(self, session: Session) -> int:
        rows = session.rows(
            f"{RECORD_SELECT} WHERE e.space = ? AND e.seq > ? ORDER BY e.seq LIMIT ?",
            (self._space, self._seq, _PAGE),
        )
        if rows:
            self._count_in("cell", deltas(read_record(row, session.dictionary).event for row in rows))
            self._seq = rows[-1][0]
            self.events += len(rows)
        return len(rows)

    def _count_in(self, table: str, cells: dict[RollupKey, Measures]) -> None:
        rows = [(*stored_key(cell), *measures) for cell, measures in cells.items()]
        self._spill.many(_COUNT_IN.replace("@", table), rows)

    def _counted(self, cell: Row, table: str = "cell") -> Measures:
        rows = self._spill.rows(f"SELECT {', '.join(MEASURES)} FROM {table} WHERE {_SAME}", cell)
        return list(rows[0]) if rows else _NONE

    def _confirmed(self, cells: list[RollupKey]) -> list[Problem]:
        found: list[Problem] = []
        for cell in cells:
            with self._database.reading() as session:
                counted = self._count_cell(session, cell)
                rows = session.rows(
                    f"SELECT {', '.join(MEASURES)} FROM rollup WHERE space = ? AND {_SAME}",
                    (self._space, *cell),
                )
            there = _as_measures(rows[0]) if rows else _NONE
            if there != counted:
                detail = f"the roll-up has {_shown(there)}, a recount gives {_shown(counted)}; run reindex"
                found.append(
                    Problem(kind="derived", where=f"roll-up {'/'.join(map(str, cell))}", detail=detail)
                )
        return found

    def _count_cell(self, session: Session, cell: RollupKey) -> Measures:
        """Return one total, counted from its events."""
        condition, values = (" AND e.run = ?", [number_of_key(cell.key)]) if cell.grain == RUN else ("", [])
        total: dict[RollupKey, Measures] = {cell: [*self._counted(cell, "archived_cell")]}
        after = 0
        while rows := session.rows(
            f"{RECORD_SELECT} WHERE e.space = ? AND e.day = ? AND e.kind IN (?, ?) AND e.seq > ?{condition} "
            "ORDER BY e.seq LIMIT ?",
            (self._space, cell.day, cell.kind, MOVED, after, *values, _PAGE),
        ):
            after = rows[-1][0]
            counted = {
                stored_key(each): sums
                for each, sums in deltas(read_record(row, session.dictionary).event for row in rows).items()
            }
            merge(total, {cell: counted[cell]} if cell in counted else {})
        return total[cell]


def _as_measures(values: tuple[Any, ...]) -> Measures:
    return [int(value) for value in values]


def _shown(measures: Measures) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in zip(MEASURES, measures, strict=True) if value)
        or "nothing"
    )
