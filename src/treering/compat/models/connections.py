"""Connections for reading entities: one per session, with the views of one space, and read-only.

The database itself refuses writes on such a connection, and the session refuses them first, with a clear
error.

The SQL views behind the entities, for SQLite and PostgreSQL, are temporary: each connection creates its own
when it is opened, for the one space that it may see, so a store needs no further tables and no tenant sees
another. Columns that only serve index look-ups (``ref_name``, ``day``, ``key`` and the like) are not columns
of the entity; the column types in `entities` use them.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from treering.core.clock import day_of
from treering.core.content import Address, ObjectAddress, SlotAddress, parse_address
from treering.core.encoding import decode
from treering.errors import InvalidInput, MissingExtra, ReadOnly, Unsupported
from treering.runs.prices import EUR, exchange
from treering.runs.run import RUNS
from treering.runs.span import MESSAGE, OPEN, SPAN

if TYPE_CHECKING:
    from treering.core.content import Content
    from treering.store import Store


# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

_DRIVERS: Final[dict[str, str]] = {"sqlite": "sqlite://", "postgresql": "postgresql+psycopg://"}

Dialect = Literal["sqlite", "postgresql"]

RATES: Final = "treering_rate"
DAYS: Final = "treering_day"
HOMES: Final = "treering_home"
"""The run of an event: one look-up in the journal's key for each day of the store."""


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
        return sha256(content.data).hexdigest() if name == "sha256" else decode(content)


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


_AGENT, _TOOL = "agent", "tool"
_LLM: Final = "llm"
"""A model call with a role is a message, too (see `runs.span`)."""
_TEXT_KINDS: Final = "1, 2"
"""JSON and text, as `core.content` numbers them."""


def view_statements(dialect: Dialect, space: int) -> list[str]:
    """Return the statements that create the views of a space."""
    views = {
        DAYS: f"SELECT DISTINCT day FROM rollup WHERE space = {space} AND grain = 'day' AND key = ''",
        HOMES: (
            f"SELECT e.id AS id, u.name AS run FROM {DAYS} d CROSS JOIN event e {_RUN} "
            f"WHERE e.space = {space} AND e.day = d.day"
        ),
        "treering_run": _runs(dialect, space),
        "treering_agent_span": _agent_spans(dialect, space),
        "treering_message": _messages(dialect, space),
        "treering_tool_call": _tool_calls(dialect, space),
        "treering_tool_result": _tool_results(dialect, space),
        "treering_blob_ref": _blob_refs(dialect, space),
    }
    return [f"CREATE TEMP VIEW {name} AS {select}" for name, select in views.items()]


def _runs(dialect: Dialect, space: int) -> str:
    if dialect == "sqlite":
        project, status, started = (
            f"json_extract(CAST(value AS TEXT), '$.{name}')"
            for name in ("project_id", "status", "started_at_us")
        )
    else:
        plain = "convert_from(value, 'UTF8')::json"
        project = f"({plain} ->> 'project_id')::bigint"
        status = f"{plain} ->> 'status'"
        started = f"({plain} ->> 'started_at_us')::bigint"
    past = RUNS[:-1] + chr(ord(RUNS[-1]) + 1)
    return (
        f"SELECT substr(name, {len(RUNS) + 1}) AS id, {project} AS project_id, {started} AS created_at, "
        f"{status} AS status, value AS meta, name AS ref_name FROM ref "
        f"WHERE space = {space} AND name >= '{RUNS}' AND name < '{past}' AND value IS NOT NULL"
    )


def _agent_spans(dialect: Dialect, space: int) -> str:
    done = (
        f"SELECT {_SPAN} AS id, u.name AS run_id, coalesce(e.agent, e.name) AS agent_name, "
        "e.ts_us AS start_ts, e.ts_us + coalesce(e.duration_us, 0) AS end_ts, e.status AS status, "
        f"{_INPUT} AS input_ref, {_address('e.body', 'e')} AS output_ref, e.data AS meta "
        f"FROM {_events(dialect)} {_BEGINNING} WHERE {_of(space, SPAN + _AGENT)}"
    )
    still_open = (
        "SELECT e.span, u.name, coalesce(e.agent, e.name), e.ts_us, NULL, 'running', "
        f"{_address('e.body', 'e')}, NULL, e.data "
        f"FROM {_events(dialect)} WHERE {_of(space, OPEN + _AGENT)} AND {_NOT_ENDED}"
    )
    return f"{done} UNION ALL {still_open}"


def _messages(dialect: Dialect, space: int) -> str:
    cached = "e.cache_read_tokens + e.cache_write_tokens + e.cache_write_1h_tokens"
    prompt = f"e.input_tokens + {cached}"
    only_total = f"e.other_tokens > 0 AND {prompt} + e.output_tokens = 0"
    prompt_tokens = f"CASE WHEN {only_total} THEN NULL ELSE {prompt} END"
    completion_tokens = f"CASE WHEN {only_total} THEN NULL ELSE e.output_tokens END"
    return (
        "SELECT e.id AS id, u.name AS run_id, e.agent AS agent_name, e.role AS role, "
        f"{_address('e.body', 'e')} AS content_ref, e.model AS model, {prompt_tokens} AS prompt_tokens, "
        f"{completion_tokens} AS completion_tokens, "
        f"{prompt} + e.output_tokens + e.other_tokens AS total_tokens, "
        "e.cost_nanos / 1e9 * r.rate AS cost_eur, "
        f"CASE WHEN e.kind = '{MESSAGE}' THEN e.ts_us ELSE e.ts_us + coalesce(e.duration_us, 0) END AS ts "
        f"FROM {_events(dialect)} LEFT JOIN {RATES} r ON r.day = e.day AND r.currency = e.currency "
        f"WHERE e.space = {space} AND e.run IS NOT NULL AND e.role IS NOT NULL "
        f"AND e.kind IN ('{MESSAGE}', '{SPAN}{_LLM}')"
    )


def _tool_calls(dialect: Dialect, space: int) -> str:
    done = (
        f"SELECT {_SPAN} AS id, u.name AS run_id, e.agent AS agent_name, e.name AS tool_name, "
        f"{_INPUT} AS input_ref, e.ts_us AS ts, {_parent(dialect)} AS span_id "
        f"FROM {_events(dialect)} {_BEGINNING} WHERE {_of(space, SPAN + _TOOL)}"
    )
    still_open = (
        f"SELECT e.span, u.name, e.agent, e.name, {_address('e.body', 'e')}, e.ts_us, {_parent(dialect)} "
        f"FROM {_events(dialect)} WHERE {_of(space, OPEN + _TOOL)} AND {_NOT_ENDED}"
    )
    return f"{done} UNION ALL {still_open}"


def _tool_results(dialect: Dialect, space: int) -> str:
    return (
        f"SELECT {_SPAN} || ':result' AS id, u.name AS run_id, "
        f"{_SPAN} AS tool_call_id, {_address('e.body', 'e')} AS output_ref, e.status AS status, "
        "e.ts_us + coalesce(e.duration_us, 0) AS ts "
        f"FROM {_events(dialect)} WHERE {_of(space, SPAN + _TOOL)}"
    )


def _blob_refs(dialect: Dialect, space: int) -> str:
    """Objects, and the small contents that rows of the same commit refer to."""
    if dialect == "sqlite":
        name = "'o:' || lower(hex(o.name))"
        keys = ("o.name AS key", "c.batch AS key", "c.batch AS key")
    else:
        name = "'o:' || encode(o.name, 'hex')"
        keys = (
            "o.name AS object_name, NULL::text AS batch",
            "NULL::bytea AS object_name, c.batch AS batch",
            "NULL::bytea AS object_name, c.batch AS batch",
        )
    own = "FROM commits c CROSS JOIN event e"
    objects = (
        f"SELECT {name} AS id, {name} AS kind, {name} AS data, {name} AS sha256, "
        f"o.stored_at_us AS created_at, {keys[0]} "
        f"FROM object o WHERE o.space = {space} AND o.kind IN ({_TEXT_KINDS})"
    )
    own_body, own_link = (f"'s:' || c.batch || ':' || e.{column}" for column in ("body", "links"))
    own_input = f"CASE WHEN substr(e.links, 2, 1) = ':' THEN e.links ELSE {own_link} END"
    is_own_input = (
        f"substr({own_input}, 1, length(c.batch) + 3) = 's:' || c.batch || ':' "
        f"AND e.kind >= '{SPAN}' AND e.kind < '{SPAN[:-1]}/'"
    )
    bodies, inputs = (
        f"SELECT {address} AS id, {address} AS kind, {address} AS data, {address} AS sha256, "
        f"c.committed_at_us AS created_at, {key} {own} "
        f"WHERE c.space = {space} AND e.space = {space} AND e.seq BETWEEN c.first_seq AND c.last_seq "
        f"AND e.run IS NOT NULL AND {rule}"
        for address, key, rule in (
            (own_body, keys[1], "substr(e.body, 2, 1) <> ':'"),
            (own_input, keys[2], is_own_input),
        )
    )
    return f"{objects} UNION ALL {bodies} UNION ALL {inputs}"


def _address(column: str, alias: str) -> str:
    """The address in a column of a row; one in the same commit is stored in short form."""
    return (
        f"CASE WHEN substr({column}, 2, 1) = ':' THEN {column} ELSE "
        f"(SELECT 's:' || c.batch || ':' FROM commits c "
        f"WHERE c.space = {alias}.space AND c.no = {alias}.commit_no) || {column} END"
    )


_INPUT: Final = f"coalesce({_address('o.body', 'o')}, {_address('e.links', 'e')})"
"""The input of a span: the body of its open row, or a link of its end."""
_SPAN: Final = "coalesce(nullif(e.span, ''), e.id)"
"""A span with the id of its row is stored as an empty text."""
_RUN: Final = "JOIN run u ON u.space = e.space AND u.no = e.run"
"""Joins the name of a row's run."""
_BEGINNING: Final = "LEFT JOIN event o ON o.space = e.space AND o.day = e.day AND o.id = e.id || ':open'"
_NOT_ENDED: Final = (
    "NOT EXISTS (SELECT 1 FROM event d WHERE d.space = e.space AND d.day = e.day AND d.id = e.span)"
)


def _events(dialect: Dialect) -> str:
    """The journal by runs. SQLite does not know the sizes of tables, and would scan all of it."""
    hint = "INDEXED BY event_run" if dialect == "sqlite" else ""
    return f"event e {hint} {_RUN}"


def _parent(dialect: Dialect) -> str:
    """The parent of a row; one that is called like the row up to the first dot leaves that out."""
    mark, dot = ("char(31)", "instr(e.id, '.')") if dialect == "sqlite" else ("chr(31)", "strpos(e.id, '.')")
    whole = f"substr(e.id, 1, {dot}) || substr(e.parent, 2)"
    return f"CASE WHEN substr(e.parent, 1, 1) = {mark} THEN {whole} ELSE e.parent END"


def _of(space: int, kind: str) -> str:
    return f"e.space = {space} AND e.kind = '{kind}' AND e.run IS NOT NULL"
