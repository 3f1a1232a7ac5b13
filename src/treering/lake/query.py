"""SQL over all runs, live and archived, by DuckDB.

Each query gets a DuckDB of its own, in memory, with five views (`VIEWS`) over two tables: ``events`` and
``runs``. DuckDB asks a table for the columns that it needs and for the rows that match a filter (the scanner
of an Arrow dataset), so ``WHERE day >= ...`` reads only those days: archived files by their ranges, live
events by their time. Contents are fetched only if a query uses them.

**Invariant:** a query sees the events of one space, each once, and nothing else: DuckDB runs without access
to files, networks, extensions and variables of this process, its configuration is locked, and only one
``SELECT`` is accepted. Rows, time and memory are bounded.
"""

from __future__ import annotations

import threading
import time
from datetime import date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Usage
from treering.core.clock import DAY_US, day_of
from treering.core.content import Content
from treering.core.encoding import encode_json
from treering.core.query import (
    EventQuery,
    ListQuery,
    SqlQuery,
    SqlResult,
    SumQuery,
    each_listed,
    record_pages,
)
from treering.core.rollups import MOVED, Move
from treering.errors import (
    Busy,
    Corrupt,
    InvalidInput,
    MissingExtra,
    NotFound,
    Overloaded,
    TimedOut,
    TooLarge,
    TreeringError,
)
from treering.lake.archive import facts_of
from treering.lake.files import (
    CONTENT_COLUMNS,
    FACT_COLUMNS,
    SCHEMA,
    ArchivedRow,
    BlobReader,
    error_text,
    pa,
    slots_of,
    table_of,
)
from treering.runs.cost import cost_of
from treering.runs.run import RUN, RUN_LIST, run_from_ref

try:
    duckdb: Any = import_module("duckdb")
    ds: Any = import_module("pyarrow.dataset")
except ModuleNotFoundError as error:
    raise MissingExtra("SQL", "lake") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.batch import Event
    from treering.core.content import Address
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref, Sum
    from treering.lake.engine import Catalogue, LakeEngine

_USAGE: Final = (
    "input_tokens, cache_read_tokens, cache_write_tokens, cache_write_1h_tokens, output_tokens, "
    "reasoning_tokens, other_tokens, total_tokens"
)
_SPAN: Final = f"""
day, run, thread, span, parent, {{}}name, agent, model, provider, status, error, started_at, ended_at,
duration_us, {_USAGE}, cost_nanos, cost, currency, input, output, attributes, input_address, output_address"""
VIEWS: Final = {
    "spans": f"SELECT {_SPAN.format('type, ')} FROM events WHERE kind LIKE 'span.%'",
    "tool_calls": f"SELECT {_SPAN.format('')} FROM events WHERE kind = 'span.tool'",
    "messages": (
        f"SELECT day, run, thread, id, span, role, agent, model, started_at AS sent_at, output AS content, "
        f"{_USAGE}, cost_nanos, cost, currency, attributes, output_address AS content_address "
        "FROM events WHERE kind = 'message'"
    ),
    "costs": (
        "SELECT day, run, thread, agent, model, provider, CASE WHEN kind = 'moved' THEN name ELSE kind END "
        f"AS kind, started_at, {_USAGE}, cost_nanos, cost, currency FROM events "
        "WHERE total_tokens IS NOT NULL OR cost_nanos IS NOT NULL"
    ),
}
"""The views of a query, beside ``events`` and ``runs``. The columns are those of `files.SCHEMA`."""

_DAY: Final = ("day", pa.date32())
_EVENTS: Final = pa.schema([_DAY, *SCHEMA])
_tokens: Final = [name.strip() for name in _USAGE.split(",")]
_RUNS: Final = pa.schema(
    [
        _DAY,
        *((name, pa.string()) for name in ("run", "agent", "thread", "namespace", "status")),
        *((name, SCHEMA.field(name).type) for name in ("started_at", "ended_at", "duration_us")),
        ("tags", pa.list_(pa.string())),
        *((name, pa.string()) for name in ("parent", "user", "error", "metadata")),
        ("events", pa.int64()),
        ("errors", pa.int64()),
        *((name, pa.int64()) for name in (*_tokens, "cost_nanos")),
        ("cost", pa.float64()),
        ("currency", pa.string()),
        ("archived", pa.bool_()),
    ]
)
_TOTALS: Final = frozenset({"events", "errors", *_tokens, "cost_nanos", "cost", "currency"})
_PAGE: Final = 1000
_SLOTS: Final = 4
"""Queries that a process runs at once; the others wait."""
_slots: Final = threading.BoundedSemaphore(_SLOTS)
_TRIES: Final = 3
_THREADS: Final = 2
_MEMORY: Final = "512MB"
_EPOCH: Final = date(1970, 1, 1)


def query(engine: Engine, space: str, asked: SqlQuery) -> SqlResult:
    """Run a query over the runs of one space.

    Raises:
        InvalidInput: The SQL is wrong, or is not a single SELECT.
        TimedOut: It took longer than ``asked.seconds``.
        TooLarge: It needs more memory than a query may have.
    """
    if asked.max_rows < 1 or asked.seconds <= 0:
        raise InvalidInput(f"max_rows={asked.max_rows} and seconds={asked.seconds} must be positive")
    begun = time.monotonic()
    if not _slots.acquire(timeout=asked.seconds):
        raise Overloaded(f"{_SLOTS} queries are running in this process already; try again in a moment")
    try:
        return _answer(engine, space, asked, begun)
    finally:
        _slots.release()


def _answer(engine: Engine, space: str, asked: SqlQuery, begun: float) -> SqlResult:
    for _ in range(_TRIES):
        source = _Source(engine, space, deadline=begun + asked.seconds)
        try:
            found = _attempt(source, asked)
        except Corrupt:
            if source.is_current():
                raise
        else:
            if source.is_current():  # otherwise something was archived or forgotten meanwhile
                return msgspec.structs.replace(found, seconds=time.monotonic() - begun)
    raise Busy("days were archived during each attempt of the query; try again")


def _attempt(source: _Source, asked: SqlQuery) -> SqlResult:
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "memory_limit": _MEMORY,
            "threads": str(_THREADS),
            "temp_directory": "",
        },
    )
    timer = threading.Timer(asked.seconds, connection.interrupt)
    timer.daemon = True
    try:
        _prepare(connection, source)
        _check_select(connection, asked.sql)
        timer.start()
        return _run(connection, asked)
    except (duckdb.Error, pa.ArrowException) as error:
        raise _translated(error, source, asked) from None
    finally:
        timer.cancel()
        connection.close()


def _prepare(connection: Any, source: _Source) -> None:
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("events", _Table(_EVENTS, source.event_batches))
    connection.register("runs", _Table(_RUNS, source.run_batches))
    for name, sql in VIEWS.items():
        connection.execute(f"CREATE VIEW {name} AS {sql}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _check_select(connection: Any, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise InvalidInput(f"pass one SELECT, not {len(statements)} statements")
    kind = statements[0].type
    if kind != duckdb.StatementType.SELECT:
        raise InvalidInput(
            f"only SELECT is allowed, not {str(kind).rpartition('.')[2]}; the views are read-only"
        )


def _run(connection: Any, asked: SqlQuery) -> SqlResult:
    relation = connection.sql(asked.sql, params=list(asked.params) or None)
    to_reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    rows: list[tuple[Any, ...]] = []
    for batch in to_reader(min(asked.max_rows + 1, _PAGE)):
        columns = [batch.column(at).to_pylist() for at in range(batch.num_columns)]
        rows += [tuple(map(_plain, row)) for row in zip(*columns, strict=True)]
        if len(rows) > asked.max_rows:
            break
    return SqlResult(
        columns=tuple(relation.columns),
        types=tuple(map(str, relation.types)),
        rows=tuple(rows[: asked.max_rows]),
        truncated=len(rows) > asked.max_rows,
    )


def _plain(value: Any) -> Any:
    """Return a value as Python and JSON have it: sums of whole numbers are not decimals."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(_UTC)
    return value


_UTC: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00").tzinfo


def _translated(error: Exception, source: _Source, asked: SqlQuery) -> TreeringError:
    if source.failure is not None:
        return source.failure
    name, message = type(error).__name__, str(error).strip()
    if name == "InterruptException" or "INTERRUPT" in message:
        return TimedOut(
            f"the query took longer than {asked.seconds:g} seconds; ask for fewer days (WHERE day >= ...), "
            "or allow more time"
        )
    if name == "OutOfMemoryException":
        return TooLarge(f"the query needs more than {_MEMORY} of memory; group or filter it further")
    return InvalidInput(f"{message}\nTables and views: events, runs, {', '.join(VIEWS)} (docs/lake.md)")


class _Table(ds.Dataset):
    """A table of DuckDB whose rows are read when a query needs them."""

    def __init__(self, schema: Any, read: Callable[[frozenset[str], Any], Iterator[Any]]) -> None:
        self._schema_ = schema
        self._read = read

    @property
    def schema(self) -> Any:
        """The columns."""
        return self._schema_

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Any:
        """Return a scanner for some columns of the rows that match a filter; DuckDB calls this."""
        names = self._schema_.names if columns is None else list(columns)
        condition = "" if filter is None else str(filter)
        used = frozenset(name for name in self._schema_.names if name in names or name in condition)
        schema = pa.schema([field for field in self._schema_ if field.name in used])
        reader = pa.RecordBatchReader.from_batches(schema, self._read(used, filter))
        return ds.Scanner.from_batches(reader, columns=names, filter=filter)


class _Source:
    """Reads the events and runs of a space as batches of Arrow."""

    def __init__(self, engine: Engine, space: str, *, deadline: float) -> None:
        self._lake: LakeEngine | None = getattr(engine, "archive", None)
        self._engine = engine
        self._live = engine if self._lake is None else self._lake.inner
        self._space = space
        self._deadline = deadline
        self._catalogue: Catalogue | None = None if self._lake is None else self._lake.catalogue(space)
        self.failure: TreeringError | None = None

    def is_current(self) -> bool:
        """Whether the catalogue is what it was at the beginning: no event has moved since."""
        if self._lake is None or self._catalogue is None:
            return True
        return self._lake.catalogue(self._space).version == self._catalogue.version

    # Events
    def event_batches(self, columns: frozenset[str], filter: Any) -> Iterator[Any]:
        """Read the events that may match a filter, archived ones first."""
        schema = pa.schema([field for field in _EVENTS if field.name in columns])
        return self._guarded(
            chain(self._archived(schema, filter), self._live_events(schema, columns, filter))
        )

    def _archived(self, schema: Any, filter: Any) -> Iterator[Any]:
        if self._lake is None or self._catalogue is None or not self._catalogue.files:
            return
        format_ = ds.ParquetFileFormat()
        fragments: list[Any] = []
        for file in self._catalogue.files:
            field = ds.field
            known = (
                (field("day") == pa.scalar(_date(file.day)))
                & (field("started_at") >= _at(file.since_us))
                & (field("started_at") <= _at(file.until_us))
                & (field("run") >= file.first_run)
                & (field("run") <= file.last_run)
            )
            source = pa.PythonFile(BlobReader(self._lake.blobs, file.name, file.size), mode="r")
            fragments.append(format_.make_fragment(source, partition_expression=known))
        table = ds.FileSystemDataset(fragments, _EVENTS, format_)
        yield from table.scanner(columns=schema.names, filter=filter, batch_readahead=2).to_batches()

    def _live_events(self, schema: Any, columns: frozenset[str], filter: Any) -> Iterator[Any]:
        days = self._live_days(filter)
        if not days:
            return
        archived = self._archived_seqs()
        asked = EventQuery(since_us=days[0] * DAY_US, until_us=(days[-1] + 1) * DAY_US)
        for records in record_pages(self._live, self._space, asked, limit=_PAGE):
            some = [each for each in records if each.seq not in archived and _describes_work(each.event)]
            if some:
                yield from self._batches(some, schema, columns)

    def _live_days(self, filter: Any) -> list[int]:
        """Return the days of which live events may match a filter."""
        sums = self._live.sums(self._space, SumQuery(grain="day", by=("day",)))
        return _matching_days(sorted(int(each.group[0]) for each in sums), filter, _EVENTS)

    def _archived_seqs(self) -> frozenset[int]:
        """Return the numbers of events that are archived, but may still have rows."""
        if self._lake is None or self._catalogue is None:
            return frozenset()
        dropping = self._catalogue.state.dropping
        found: set[int] = set()
        for file in self._catalogue.files:
            if file.name in dropping:
                found.update(self._lake.seqs_of(file))
        return frozenset(found)

    def _batches(self, records: Sequence[Record], schema: Any, columns: frozenset[str]) -> Iterator[Any]:
        moved = [row for record in records if record.event.kind == MOVED for row in _moved_rows(record)]
        plain = [record for record in records if record.event.kind != MOVED]
        contents = self._contents(plain) if not columns.isdisjoint(CONTENT_COLUMNS) else {}
        facts = facts_of(self._live, self._space, plain) if not columns.isdisjoint(FACT_COLUMNS) else {}
        rows = [
            ArchivedRow(
                record=each,
                salt=b"",
                contents=contents,
                facts=facts.get(each.event.run or "") if each.event.kind == RUN else None,
            )
            for each in plain
        ]
        rows += [ArchivedRow(record=each, salt=b"", contents={}) for each in moved]
        table = table_of(rows, columns - {"day"})
        if "day" in columns:
            days = [_date(day_of(row.record.event.ts_us)) for row in rows]
            table = table.add_column(0, pa.field(*_DAY), pa.array(days, type=pa.date32()))
        if "salt" in columns:
            nothing = pa.nulls(len(rows), pa.binary())
            table = table.set_column(table.schema.get_field_index("salt"), "salt", nothing)
        yield from table.select(schema.names).cast(schema).to_batches()

    def _contents(self, records: Sequence[Record]) -> dict[Address, Content]:
        wanted = list(dict.fromkeys(each for record in records for each in slots_of(record.event)))
        if not wanted:
            return {}
        try:
            return dict(zip(wanted, self._engine.get(self._space, wanted), strict=True))
        except NotFound:  # forgotten meanwhile
            return _Missing(self._engine, self._space, wanted)

    # Runs
    def run_batches(self, columns: frozenset[str], filter: Any) -> Iterator[Any]:
        """Read the runs that may match a filter, from their states and the totals."""
        return self._guarded(self._runs(columns, filter))

    def _runs(self, columns: frozenset[str], filter: Any) -> Iterator[Any]:
        schema = pa.schema([field for field in _RUNS if field.name in columns])
        days = _matching_days(self._run_days(), filter, _RUNS)
        if not days:
            return
        asked = ListQuery(list=RUN_LIST, since_us=days[0] * DAY_US, until_us=(days[-1] + 1) * DAY_US)
        totals = self._totals(asked) if not columns.isdisjoint(_TOTALS) else {}
        through = 0 if self._catalogue is None else self._catalogue.state.through
        page: list[dict[str, Any]] = []
        for ref in each_listed(self._live, self._space, asked, limit=_PAGE):
            page.append(_run_row(ref, totals, through))
            if len(page) == _PAGE:
                yield from pa.Table.from_pylist(page, schema=schema).to_batches()
                page.clear()
        if page:
            yield from pa.Table.from_pylist(page, schema=schema).to_batches()

    def _run_days(self) -> range:
        """Return the days from the first run to the last one."""
        ends = [
            ref.listing.at_us
            for oldest_first in (True, False)
            for ref in self._live.list_refs(
                self._space, ListQuery(list=RUN_LIST, oldest_first=oldest_first), limit=1
            ).refs
            if ref.listing is not None and ref.listing.at_us is not None
        ]
        return range(day_of(min(ends)), day_of(max(ends)) + 1) if ends else range(0)

    def _totals(self, asked: ListQuery) -> dict[str, list[Sum]]:
        """Return the totals of runs by id. A run that lasts over midnight has some on later days."""
        since = None if asked.since_us is None else day_of(asked.since_us)
        sums = self._live.sums(
            self._space, SumQuery(grain="run", by=("key", "currency", "kind"), since_day=since)
        )
        found: dict[str, list[Sum]] = {}
        for each in sums:
            found.setdefault(str(each.group[0]), []).append(each)
        return found

    def _guarded(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Stop at the deadline, and remember an error of the store, which DuckDB turns into a text."""
        try:
            for batch in batches:
                if time.monotonic() > self._deadline:
                    raise TimedOut(
                        "the query took too long to read its events; ask for fewer days (WHERE day >= ...), "
                        "or allow more time"
                    )
                yield batch
        except TreeringError as error:
            self.failure = error
            raise


class _Missing(dict[Any, Any]):
    """Contents of which some were forgotten while they were read."""

    def __init__(self, engine: Engine, space: str, wanted: Iterable[Address]) -> None:
        super().__init__()
        for address in wanted:
            try:
                (self[address],) = engine.get(space, [address])
            except NotFound:
                self[address] = Content("bytes", b"")


def _describes_work(event: Event) -> bool:
    """Whether totals count an event."""
    return (event.run, event.agent, event.usage, event.cost_nanos) != (None,) * 4


def _moved_rows(record: Record) -> Iterator[Record]:
    """Return a `MOVED` event as what it takes from one total, and what it adds to another."""
    event = record.event
    move = msgspec.json.decode(event.data or b"{}", type=Move)
    usage = event.usage
    taken = None
    if usage is not None:
        taken = Usage(**{name: -getattr(usage, name) for name in Usage.__struct_fields__})
    cost = None if event.cost_nanos is None else -event.cost_nanos
    duration = None if event.duration_us is None else -event.duration_us
    source = msgspec.structs.replace(
        event, usage=taken, cost_nanos=cost, duration_us=duration, agent=move.agent, thread=move.thread,
        currency=move.currency,
    )  # fmt: skip
    for each in (source,) if move.removes else (source, event):
        yield msgspec.structs.replace(record, event=each)


def _run_row(ref: Ref, totals: dict[str, list[Sum]], through: int) -> dict[str, Any]:
    info = run_from_ref(ref)
    cost = cost_of(info.id, totals.get(info.id, []), None)
    currency, nanos = next(iter(cost.nanos.items())) if len(cost.nanos) == 1 else (None, None)
    user = info.meta.get("user", info.meta.get("user_id"))
    usage = {f"{name}_tokens": getattr(cost.usage, name) for name in cost.usage.__struct_fields__}
    return {
        "day": _date(day_of(info.started_at_us)), "run": info.id, "agent": info.agent, "thread": info.thread,
        "namespace": info.namespace, "status": info.status, "started_at": info.started_at_us,
        "ended_at": info.ended_at_us, "duration_us": info.duration_us, "tags": list(info.tags),
        "parent": info.parent, "user": user if isinstance(user, str) else None,
        "error": error_text(info.meta.get("error")),
        "metadata": encode_json(info.meta).decode() if info.meta else None,
        "events": cost.events, "errors": cost.errors, **usage, "total_tokens": cost.tokens,
        "cost_nanos": nanos, "cost": None if nanos is None else nanos / 1e9, "currency": currency,
        "archived": ref.seq <= through,
    }  # fmt: skip


def _matching_days(days: Sequence[int], filter: Any, schema: Any) -> list[int]:
    """Return the days whose events may match a filter, by comparing it with what is known of each day."""
    if filter is None or not days:
        return list(days)
    format_ = ds.ParquetFileFormat()
    fragments = [
        format_.make_fragment(
            pa.BufferReader(b""),
            partition_expression=(ds.field("day") == pa.scalar(_date(day)))
            & (ds.field("started_at") >= _at(day * DAY_US))
            & (ds.field("started_at") < _at((day + 1) * DAY_US)),
        )
        for day in days
    ]
    table = ds.FileSystemDataset(fragments, schema, format_)
    numbers = {str(fragment.partition_expression): day for fragment, day in zip(fragments, days, strict=True)}
    return sorted(numbers[str(each.partition_expression)] for each in table.get_fragments(filter=filter))


def _date(day: int) -> date:
    return _EPOCH + timedelta(days=day)


def _at(us: int) -> Any:
    return pa.scalar(us, type=pa.timestamp("us", tz="UTC"))
