"""Totals read from the roll-ups, and the recount that they must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.core.rollup import MEASURES, Cell, as_sum, deltas, merge, order
from treering.engines.relational.rows import RECORD_SELECT, record_of

if TYPE_CHECKING:
    from treering.core.query import SumQuery
    from treering.core.records import Sum
    from treering.core.rollup import Measures
    from treering.engines.relational.session import Database, Session

_SUMS: Final = ", ".join(f"SUM({name})" for name in MEASURES)
_PAGE: Final = 5000


def sums(session: Session, space: int, query: SumQuery) -> list[Sum]:
    """Answer a query from the roll-ups."""
    conditions = ["space = ?", "grain = ?"]
    values: list[Any] = [space, query.grain]
    for name in ("key", "agent", "model", "kind"):
        value = getattr(query, name)
        if value is not None:
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
    groups = [
        as_sum(tuple(row[:width]), [int(value) for value in row[width:]])
        for row in rows
        if row[width] is not None
    ]
    return order(groups, query)


def rebuild(database: Database, space: int) -> None:
    """Count all events of a space anew and replace its roll-ups.

    Runs in one write transaction: a total that is half old and half new would be wrong for everyone.
    """
    with database.writing(space) as session:
        cells = recount(session, space)
        session.run("DELETE FROM rollup WHERE space = ?", (space,))
        if cells:
            add_to_rollups(session, space, cells)


def stored_cells(session: Session, space: int) -> dict[Cell, Measures]:
    """All kept totals that are not zero."""
    rows = session.rows(
        f"SELECT {', '.join((*Cell._fields, *MEASURES))} FROM rollup WHERE space = ?",
        (space,),
    )
    return {Cell(*row[:7]): list(row[7:]) for row in rows if any(row[7:])}


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
    session.tell_many(_ADD, [(space, *cell, *measures) for cell, measures in cells.items()])
