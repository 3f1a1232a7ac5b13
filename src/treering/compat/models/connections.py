"""Connections for reading entities: one per session, with the views of one space, and read-only.

The database itself refuses writes on such a connection, and the session refuses them first, with a clear
error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from treering.compat.models.views import HOMES, RATES, view_statements
from treering.core.clock import day_of
from treering.core.content import Address, ObjectAddress, SlotAddress, parse_address
from treering.core.encoding import decode
from treering.errors import InvalidInput, MissingExtra, ReadOnly, Unsupported
from treering.runs.prices import EUR, exchange

if TYPE_CHECKING:
    from treering.compat.models.views import Dialect
    from treering.core.content import Content
    from treering.store import Store

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

_DRIVERS: Final[dict[str, str]] = {"sqlite": "sqlite://", "postgresql": "postgresql+psycopg://"}


class ReadingSession(Session):
    """A read-only SQLModel session over the entities of a store."""

    def exec(self, statement: Any, **options: Any) -> Any:
        """Run a ``select``; entities that are read again are refreshed."""
        execution = {"populate_existing": True, **options.pop("execution_options", {})}
        return super().exec(statement, execution_options=execution, **options)

    def _refuse(self) -> NoReturn:
        raise ReadOnly(
            "entities are read-only; write with treering.compat.services (create_run, save_message, ...) "
            "or store.run(...)"
        )

    def add(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ReadOnly`."""
        self._refuse()

    def add_all(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ReadOnly`."""
        self._refuse()

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ReadOnly`."""
        self._refuse()

    def merge(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ReadOnly`."""
        self._refuse()

    def flush(self, *_: Any, **__: Any) -> None:
        """Raise `ReadOnly` if an entity was changed."""
        if self.new or self.deleted or any(self.is_modified(each) for each in self.dirty):
            self.expunge_all()
            self._refuse()


def open_session(store: Store) -> ReadingSession:
    """Return a session that reads the entities of a store; close it, or use it in a ``with`` statement.

    Costs are converted at the rates known when it is opened.
    """
    store.flush()
    engine: Any = store.engine
    dialect: Dialect | None = getattr(engine, "sql_dialect", None)
    if dialect is None:
        raise Unsupported(
            f"{store.url} does not support SQL; entities are supported on SQLite and PostgreSQL"
        )
    sql = create_engine(
        _DRIVERS[dialect],
        creator=lambda: _connected(store, dialect),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",  # no transaction outlives its query
    )
    if dialect == "sqlite":
        event.listen(sql, "before_cursor_execute", lambda *_: engine.flush())
    reading: Any = sql.dialect
    reading.treering_payloads = _Payloads(store)
    reading.treering_dictionary = engine.dictionary
    return ReadingSession(sql, expire_on_commit=False)


class _Payloads:
    """Caches the payload of the current row: all its columns come from one content."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: tuple[str, Content] | None = None

    def part(self, name: str, address: str) -> Any:
        if self._last is None or self._last[0] != address:
            found = self._store.engine.get(self._store.space, [Address(address)])[0]
            self._last = (address, found)
        content = self._last[1]
        if name == "kind":
            return content.kind
        return content.name if name == "sha256" else decode(content)


def _connected(store: Store, dialect: Dialect) -> Any:
    engine: Any = store.engine
    connection: Any = engine.sql_connection()
    try:
        mark = "?" if dialect == "sqlite" else "%s"
        found = connection.execute(f"SELECT no FROM space WHERE name = {mark}", (store.space,)).fetchone()
        space = -1 if found is None else int(found[0])
        if dialect == "sqlite":
            connection.create_function("treering_key", 1, _key, deterministic=True)
            connection.create_function("treering_run_of", 1, partial(_run_of, connection), deterministic=True)
        real = "REAL" if dialect == "sqlite" else "double precision"
        connection.execute(
            f"CREATE TEMP TABLE {RATES} "
            f"(day integer, currency text, rate {real}, PRIMARY KEY (day, currency))"
        )
        for row in _rates(store, connection, space):
            connection.execute(f"INSERT INTO {RATES} VALUES ({mark}, {mark}, {mark})", row)
        for statement in view_statements(dialect, space):
            connection.execute(statement)
        if dialect == "sqlite":
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("SET default_transaction_read_only = on")
    except BaseException:
        connection.close()
        raise
    return connection


def _rates(store: Store, connection: Any, space: int) -> list[tuple[int, str, float]]:
    """Return the rates of all days with costs, and of the days around today."""
    spent = connection.execute(
        "SELECT DISTINCT day, currency FROM rollup "
        f"WHERE space = {space} AND grain = 'day' AND key = '' AND currency <> ''"
    ).fetchall()
    today = day_of(store.clock.now_us())
    days = {(int(day), str(currency)) for day, currency in spent}
    days |= {(day, currency) for _, currency in list(days) for day in range(today - 1, today + 2)}
    days |= {(day, EUR) for day in range(today - 1, today + 2)}
    rows: list[tuple[int, str, float]] = []
    for day, currency in sorted(days):
        try:
            rate = exchange.rate(currency, day)
        except MissingExtra:
            continue  # then only amounts in euros are shown
        if rate is not None:
            rows.append((day, currency, float(rate.rate)))
    return rows


def _run_of(connection: Any, event_id: str | None) -> str | None:
    """Return the run of an event. A function, because SQLite pushes no subquery into a UNION."""
    found = connection.execute(
        f"SELECT run FROM {HOMES} WHERE id IN (?, ?) LIMIT 1", (event_id, f"{event_id}:open")
    ).fetchone()
    return None if found is None else found[0]


def _key(address: str | None) -> bytes | str | None:
    """Return the indexed value of a payload's address."""
    try:
        place = None if address is None else parse_address(address)
    except InvalidInput:
        return None
    if isinstance(place, ObjectAddress):
        return bytes.fromhex(place.name)
    return place.batch if isinstance(place, SlotAddress) else None
