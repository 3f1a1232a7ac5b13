"""Totals read from the roll-ups, and the recount that they must equal.

A roll-up of a run has what stands for the run as its key (`kept`); everything else here names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.core.rollup import MEASURES, Cell, as_sum, deltas, merge, order
from treering.engines.relational.rows import RECORD_SELECT, number_of_key, record_of, run_key
from treering.engines.relational.session import in_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.query import SumQuery
    from treering.core.records import Sum
    from treering.core.rollup import Measures
    from treering.engines.relational.session import Database, Row, Session

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


def kept(cell: Cell) -> Cell:
    """A cell as its row has it."""
    return Cell(RUN, run_key(cell.key), *cell[2:]) if cell.grain == RUN else cell


def _named(session: Session, space: int, rows: Sequence[Row], at: int) -> list[Row]:
    """Rows with the names of runs where what stands for them was, at a column."""
    numbers = {row[at]: number_of_key(row[at]) for row in rows}
    sql = "SELECT no, name FROM run WHERE space = ? AND no IN (@)"
    names = dict(in_chunks(session, sql, (space,), list(numbers.values())))  # pyright: ignore[reportArgumentType]
    return [(*row[:at], names.get(numbers[row[at]], row[at]), *row[at + 1 :]) for row in rows]


def rebuild(database: Database, space: int) -> None:
    """Count all events of a space anew and replace its roll-ups.

    Runs in one write transaction: a total that is half old and half new would be wrong for everyone.
    """
    with database.writing(space) as session:
        cells = recount(session, space)
        session.run("DELETE FROM rollup WHERE space = ?", (space,))
        if cells:
            add_to_rollups(session, space, cells)


def recount(session: Session, space: int) -> dict[Cell, Measures]:
    """The totals of all events, counted anew."""
    cells: dict[Cell, Measures] = {}
    after_seq = 0
    while rows := session.rows(
        f"{RECORD_SELECT} WHERE e.space = ? AND e.seq > ? ORDER BY e.seq LIMIT ?", (space, after_seq, _PAGE)
    ):
        merge(cells, deltas(record_of(row).event for row in rows))
        after_seq = rows[-1][0]
    return cells


_ROLLUP_KEY: Final = ("space", "grain", "key", "day", "agent", "model", "kind", "currency")
_ADD: Final = (
    f"INSERT INTO rollup ({', '.join((*_ROLLUP_KEY, *MEASURES))}) "
    f"VALUES ({', '.join('?' * (len(_ROLLUP_KEY) + len(MEASURES)))}) "
    f"ON CONFLICT ({', '.join(_ROLLUP_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = rollup.{name} + excluded.{name}" for name in MEASURES)
)


def add_to_rollups(session: Session, space: int, cells: dict[Cell, Measures]) -> None:
    """Add to the kept totals."""
    rows = [
        (space, cell[0], run_key(cell[1]) if cell[0] == RUN else cell[1], *cell[2:], *measures)
        for cell, measures in cells.items()
    ]
    session.tell_many(_ADD, rows)
