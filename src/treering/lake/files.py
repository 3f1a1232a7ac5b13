"""Archived events as Parquet: one row per event, typed and flat for whoever sums them, and lossless.

A file holds events of one space and one day, sorted by run, in row groups of `ROW_GROUP` rows with
statistics, so that one run is read with two or three small range reads, and a sum reads only its columns. The
columns that people use come first; the rest is what is needed to give back exactly the `Record` and the small
contents that were archived: the salt of the event's leaf, its address and links, and contents that are
neither text nor JSON. Contents of 4 KiB and more stay in the object store; their address is
in ``output_address`` or ``input_address``.

**Invariant:** `records_of` returns the records, and `contents_of` the contents, that `table_of` was given.
Pages have checksums, which every read compares: damage raises `Corrupt`.

This is the only module that imports pyarrow to store or read; it is imported on first use.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import Event, Usage, event_links
from treering.core.clock import day_of
from treering.core.content import Address, Content
from treering.core.records import Record
from treering.errors import Corrupt, MissingExtra, NotFound
from treering.runs.span import ERROR, RunRow

try:
    # As values of any type: pyarrow has no annotations.
    pa: Any = import_module("pyarrow")
    pc: Any = import_module("pyarrow.compute")
    pq: Any = import_module("pyarrow.parquet")
except ModuleNotFoundError as error:
    raise MissingExtra("archived data", "lake") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from treering.core.query import EventQuery
    from treering.core.storage import Blobs
    from treering.lake.engine import LakeFile

Table = Any
"""A table of pyarrow."""

ROW_GROUP: Final = 2000
_TAIL: Final = 64 * 1024
"""The end of a file that is read first; the footer of most is smaller."""

_time: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(
        "seq duration_us input_tokens cache_read_tokens cache_write_tokens cache_write_1h_tokens "
        "output_tokens reasoning_tokens other_tokens total_tokens cost_nanos".split(),
        pa.int64(),
    ),
    **dict.fromkeys(["started_at", "ended_at", "committed_at"], _time),
    **dict.fromkeys(["tags", "links"], pa.list_(pa.string())),
    **dict.fromkeys(["salt", "rest"], pa.binary()),
    "cost": pa.float64(),
}
SCHEMA: Final = pa.schema(
    [
        (name, _TYPES.get(name, pa.string()))
        for name in (
            "run seq id kind type started_at ended_at duration_us agent name model provider role status "
            "error input_tokens cache_read_tokens cache_write_tokens cache_write_1h_tokens output_tokens "
            "reasoning_tokens other_tokens total_tokens cost_nanos cost currency span parent thread user "
            "tags attributes metadata input output input_address output_address scope batch committed_at "
            "links salt input_kind output_kind rest"
        ).split()
    ]
)
"""The columns of a file, in order. The partition adds ``space`` and ``day``."""

_USAGE: Final = (
    "input_tokens", "cache_read_tokens", "cache_write_tokens", "cache_write_1h_tokens", "output_tokens",
    "reasoning_tokens", "other_tokens",
)  # fmt: skip
CONTENT_COLUMNS: Final = frozenset({"input", "output", "input_kind", "output_kind", "rest"})
"""Columns whose values are contents, which a reader of live events fetches only if they are wanted."""
FACT_COLUMNS: Final = frozenset({"error", "metadata", "tags", "user"})
"""Columns whose values are in the state of the run, if the row is that of a run's end."""
_PLAIN: Final = (
    "id", "kind", "scope", "run", "span", "parent", "thread", "agent", "name", "model", "role", "status",
    "cost_nanos", "currency", "duration_us",
)  # fmt: skip
_STATISTICS: Final = ["run", "seq", "started_at"]
_TEXT_KINDS: Final = frozenset({"text", "json"})


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the row of a run's end says beyond the journal: from the state of the run."""

    tags: tuple[str, ...] | None = None
    user: str | None = None
    metadata: str | None = None
    error: str | None = None


class ArchivedRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event on its way into a file: with its salt and the small contents that it refers to."""

    record: Record
    salt: bytes
    contents: Mapping[Address, Content]
    facts: RunFacts | None = None


def slots_of(event: Event) -> Iterable[Address]:
    """Return the addresses of the small contents that an event refers to."""
    return (each for each in event_links(event) if each.startswith("s:"))


def table_of(rows: Sequence[ArchivedRow], columns: Iterable[str] | None = None) -> Table:
    """Return rows as a table, in the order given: all columns, or some."""
    wanted = [field for field in SCHEMA if columns is None or field.name in columns]
    parts = (
        [_content_values(row) for row in rows] if CONTENT_COLUMNS.intersection(f.name for f in wanted) else []
    )
    arrays: list[Any] = []
    for field in wanted:
        if field.name in CONTENT_COLUMNS:
            values = [part.get(field.name) for part in parts]
        else:
            values = list(map(_GETTERS[field.name], rows))
        arrays.append(pa.array(values, type=field.type))
    return pa.table(arrays, schema=pa.schema(wanted))


def _of_event(name: str) -> Callable[[ArchivedRow], Any]:
    return attrgetter(f"record.event.{name}")


def _of_usage(name: str) -> Callable[[ArchivedRow], Any]:
    def value(row: ArchivedRow) -> Any:
        usage = row.record.event.usage
        return None if usage is None else getattr(usage, name)

    return value


def _of_facts(name: str) -> Callable[[ArchivedRow], Any]:
    def value(row: ArchivedRow) -> Any:
        found = None if row.facts is None else getattr(row.facts, name)
        return list(cast("tuple[str, ...]", found)) if isinstance(found, tuple) else found

    return value


def _ended_at(row: ArchivedRow) -> int | None:
    read = RunRow(row.record)
    return None if read.is_open else read.end_us


def _provider(row: ArchivedRow) -> str | None:
    data = row.record.event.data
    found = RunRow(row.record).data.get("provider") if data is not None and b"provider" in data else None
    return found if isinstance(found, str) else None


def _error(row: ArchivedRow) -> str | None:
    if row.record.event.status != ERROR:
        return None
    known = None if row.facts is None else row.facts.error
    return known or error_text(RunRow(row.record).data.get("error"))


def _cost(row: ArchivedRow) -> float | None:
    nanos = row.record.event.cost_nanos
    return None if nanos is None else nanos / 1e9


def _attributes(row: ArchivedRow) -> str | None:
    data = row.record.event.data
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


_GETTERS: Final[dict[str, Callable[[ArchivedRow], Any]]] = {
    **{name: _of_event(name) for name in _PLAIN},
    **{name: _of_usage(field) for name, field in zip(_USAGE, Usage.__struct_fields__, strict=True)},
    "total_tokens": _of_usage("total"),
    "seq": attrgetter("record.seq"),
    "batch": attrgetter("record.batch"),
    "committed_at": attrgetter("record.committed_at_us"),
    "started_at": _of_event("ts_us"),
    "ended_at": _ended_at,
    "type": lambda row: RunRow(row.record).span_kind,
    "provider": _provider,
    "error": _error,
    "cost": _cost,
    "user": _of_facts("user"),
    "tags": _of_facts("tags"),
    "metadata": _of_facts("metadata"),
    "attributes": _attributes,
    "input_address": lambda row: RunRow(row.record).input,
    "output_address": _of_event("body"),
    "links": lambda row: list(row.record.event.links),
    "salt": attrgetter("salt"),
}


def _content_values(row: ArchivedRow) -> dict[str, Any]:
    event, read = row.record.event, RunRow(row.record)
    values: dict[str, Any] = {}
    rest: dict[str, tuple[str, bytes]] = {}
    input_address = read.input
    output_address = None if read.is_open else event.body
    for address in slots_of(event):
        content = row.contents[address]
        text = _as_text(content)
        part = "output" if address == output_address else "input" if address == input_address else None
        if part is None or text is None:
            rest[address] = (content.kind, bytes(content.data))
        else:
            values |= {part: text, f"{part}_kind": content.kind}
    if event.data is not None and _attributes(row) is None:
        rest[""] = ("bytes", event.data)
    if rest:
        values["rest"] = msgspec.msgpack.encode(rest)
    return values


def _as_text(content: Content) -> str | None:
    if content.kind not in _TEXT_KINDS:
        return None
    try:
        return bytes(content.data).decode()
    except UnicodeDecodeError:
        return None


def error_text(failure: Any) -> str | None:
    """Return a recorded error as text."""
    if isinstance(failure, dict):
        fields = cast("dict[str, Any]", failure)
        return ": ".join(str(fields[name]) for name in ("type", "message") if fields.get(name)) or None
    return None if failure is None else str(failure)


def write(rows: Sequence[ArchivedRow]) -> bytes:
    """Return rows, sorted by run and time, as a Parquet file."""
    ordered = sorted(
        rows, key=lambda row: (row.record.event.run or "", row.record.event.ts_us, row.record.seq)
    )
    return write_table(table_of(ordered))


def write_table(table: Table) -> bytes:
    """Return a table whose rows are in order as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        compression="zstd",
        row_group_size=ROW_GROUP,
        write_statistics=_STATISTICS,
        write_page_checksum=True,
        store_schema=False,
    )
    return out.getvalue()


_DERIVED: Final = frozenset(
    "type ended_at provider error total_tokens cost user tags metadata input_address".split()
)
"""Columns for people, which follow from others or are stored elsewhere as well."""
_WHOLE: Final = [name for name in SCHEMA.names if name not in _DERIVED]
CATALOGUED: Final = ("run", "seq", "started_at", "batch", "output_address", "links")
"""The columns that `bounds_of` and `objects_of` read."""
_EVENTS: Final = [name for name in _WHOLE if name not in CONTENT_COLUMNS]


class FileGone(Corrupt):
    """An archived file is missing: it was replaced a moment ago, or is lost."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the archived file {name!r} is missing; run verify, then restore it from a backup")


class ParquetBlob:
    """A Parquet file in a blob store, read by range. The footer is read once."""

    def __init__(self, blobs: Blobs, name: str, size: int) -> None:
        self._blobs = blobs
        self._name = name
        self._size = size
        with self._reading():
            self._metadata = self._open().metadata

    def rows(self, *, run: str | None = None, columns: Sequence[str] | None = None) -> Table:
        """Return the rows, those of one run if it is named, with all columns or some."""
        with self._reading():
            file = self._open(self._metadata)
            wanted = list(columns or SCHEMA.names)
            if run is None:
                return file.read(columns=wanted)
            groups = [
                number
                for number in range(self._metadata.num_row_groups)
                if self._may_have(self._metadata.row_group(number), run)
            ]
            if "run" not in wanted:
                wanted.append("run")
            table = file.read_row_groups(groups, columns=wanted)
            return table.filter(pc.equal(table["run"], run))

    @staticmethod
    def _may_have(group: Any, run: str) -> bool:
        statistics = group.column(0).statistics  # "run" is the first column
        if statistics is None or not statistics.has_min_max:
            return True
        return statistics.min <= run <= statistics.max

    def _open(self, metadata: Any = None) -> Any:
        source = pa.PythonFile(BlobReader(self._blobs, self._name, self._size), mode="r")
        return pq.ParquetFile(source, metadata=metadata, pre_buffer=True, page_checksum_verification=True)

    @contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except NotFound as error:
            raise FileGone(self._name) from error
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise Corrupt(
                f"the archived file {self._name!r} cannot be read ({error}); run verify, then restore it "
                "from a backup"
            ) from error


class BlobReader(io.RawIOBase):
    """A blob as a file for reading. Its end is kept, because that is where the footer is."""

    def __init__(self, blobs: Blobs, name: str, size: int) -> None:
        super().__init__()
        self._blobs = blobs
        self._name = name
        self._size = size
        self._at = 0
        self._tail_at = max(size - _TAIL, 0)
        self._tail: bytes | None = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def size(self) -> int:
        """Return the number of bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        stop = self._size if size < 0 else min(self._at + size, self._size)
        start, self._at = self._at, max(stop, self._at)
        if start >= stop:
            return b""
        if start < self._tail_at:
            return self._blobs.get(self._name, start=start, stop=stop)
        if self._tail is None:
            self._tail = self._blobs.get(self._name, start=self._tail_at, stop=self._size)
        return self._tail[start - self._tail_at : stop - self._tail_at]


def whole(blob: ParquetBlob, *, run: str | None = None) -> Table:
    """Return the rows with all columns that `records_of` and `contents_of` need."""
    return blob.rows(run=run, columns=_WHOLE)


def events_only(blob: ParquetBlob) -> Table:
    """Return the rows with the columns that count in totals; for `records_of`."""
    return blob.rows(columns=[*_EVENTS, "rest"])


def records_of(table: Table, indices: Sequence[int] | None = None) -> list[Record]:
    """Return the records in some rows of a table, or in all, in the order of ``indices``."""
    if indices is not None:
        table = table.take(pa.array(indices, type=pa.int64()))
    columns = {name: table[name] for name in table.column_names if name in _RECORD}
    values = {name: _plain_values(column) for name, column in columns.items()}
    usage = zip(*(values[name] for name in _USAGE), strict=True)
    records: list[Record] = []
    for at, tokens in enumerate(usage):
        row = {name: column[at] for name, column in values.items()}
        data = row["attributes"]
        if data is not None:
            data = data.encode()
        elif row["rest"] is not None:
            raw = _decode_rest(row["rest"]).get("")
            data = None if raw is None else raw[1]
        event = Event(
            **{name: row[name] for name in _PLAIN},
            ts_us=row["started_at"],
            usage=None
            if tokens[0] is None
            else Usage(**dict(zip(Usage.__struct_fields__, tokens, strict=True))),
            data=data,
            body=row["output_address"],
            links=tuple(map(Address, row["links"] or ())),
        )
        records.append(
            Record(seq=row["seq"], batch=row["batch"], committed_at_us=row["committed_at"], event=event)
        )
    return records


def contents_of(table: Table) -> dict[Address, Content]:
    """Return the small contents in the rows of a table, by address."""
    found: dict[Address, Content] = {}
    names = (
        "output_address", "output", "output_kind", "links", "input", "input_kind", "rest", "kind",
        "attributes",
    )  # fmt: skip
    for body, output, output_kind, links, input_, input_kind, rest, kind, data in zip(
        *(_plain_values(table[name]) for name in names), strict=True
    ):
        if output is not None:
            found[Address(body)] = Content(output_kind, output.encode())
        if input_ is not None:
            event = Event(
                id="-", kind=kind, ts_us=0, scope="-", body=body, links=tuple(links or ()),
                data=None if data is None else data.encode(),
            )  # fmt: skip
            address = RunRow(Record(seq=0, batch="", committed_at_us=0, event=event)).input
            if address is not None:
                found[address] = Content(input_kind, input_.encode())
        if rest is not None:
            for address, (content_kind, content) in _decode_rest(rest).items():
                if address:
                    found[Address(address)] = Content(content_kind, content)  # pyright: ignore[reportArgumentType]
    return found


_RECORD: Final = frozenset(_WHOLE) - {"salt", "input", "output", "input_kind", "output_kind"}
_TIMES: Final = frozenset({"started_at", "committed_at"})


def _plain_values(column: Any) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.to_pylist()


def _decode_rest(rest: bytes) -> dict[str, tuple[str, bytes]]:
    return msgspec.msgpack.decode(rest, type=dict[str, tuple[str, bytes]])


def day_of_row(row: ArchivedRow) -> int:
    """Return the day whose partition a row belongs to: that of the event, as in the roll-ups."""
    return day_of(row.record.event.ts_us)


def first_records(
    load: Callable[[LakeFile, str | None], Table],
    files: Iterable[LakeFile],
    query: EventQuery,
    start: tuple[int, int] | None,
    limit: int,
) -> list[Record]:
    """Return the first ``limit`` archived events that match a query, behind the position ``start``.

    Files are read in the order in which their first events come, until no other can have an earlier one.
    """
    by_seq, newest = query.order == "seq", query.newest_first

    def best(file: LakeFile) -> int:
        if by_seq:
            return -file.last_seq if newest else file.first_seq
        return -file.until_us if newest else file.since_us

    condition = _condition(query, start)
    keys = ["seq"] if by_seq else ["started_at", "seq"]
    order = [(key, "descending" if newest else "ascending") for key in keys]
    found: list[tuple[tuple[int, ...], Table, int]] = []
    for file in sorted((each for each in files if each.may_hold(query)), key=best):
        if start is not None and _is_behind(file, query, start):
            continue
        if len(found) >= limit and (best(file),) > found[limit - 1][0][:1]:
            break
        table = load(file, query.run)
        if condition is not None:
            table = table.filter(condition)
        if table.num_rows > limit:
            table = table.take(pc.sort_indices(table, sort_keys=order)[:limit])
        sign = -1 if newest else 1
        sorted_by = zip(*(_plain_values(table[key]) for key in keys), strict=True)
        found += [(tuple(sign * value for value in values), table, at) for at, values in enumerate(sorted_by)]
        found.sort(key=lambda each: each[0])
        del found[limit:]
    chosen: dict[int, tuple[Table, list[int]]] = {}
    for _, table, at in found:
        chosen.setdefault(id(table), (table, []))[1].append(at)
    return [record for table, places in chosen.values() for record in records_of(table, places)]


def _is_behind(file: LakeFile, query: EventQuery, start: tuple[int, int]) -> bool:
    """Whether everything in a file comes before a position."""
    ts_us, seq = start
    if query.order == "seq":
        return file.first_seq >= seq if query.newest_first else file.last_seq <= seq
    return file.since_us > ts_us if query.newest_first else file.until_us < ts_us


def _condition(query: EventQuery, start: tuple[int, int] | None) -> Any:
    """Return the condition for the rows that match a query; None for all."""
    conditions: list[Any] = []
    for name in ("run", "thread", "agent", "status", "scope", "span"):
        value = getattr(query, name)
        if value is not None:
            conditions.append(pc.field(name) == value)
    for name, wanted in (("kind", query.kinds), ("id", query.ids)):
        if wanted:
            conditions.append(pc.field(name).isin(list(wanted)))
    if query.id_prefix:
        conditions.append(pc.starts_with(pc.field("id"), query.id_prefix))
    if query.since_us is not None:
        conditions.append(pc.field("started_at") >= _at(query.since_us))
    if query.until_us is not None:
        conditions.append(pc.field("started_at") < _at(query.until_us))
    if start is not None:
        ts_us, seq = start
        at, number = pc.field("started_at"), pc.field("seq")
        newest = query.newest_first
        further = number < seq if newest else number > seq
        if query.order == "time":
            same = (at == _at(ts_us)) & further
            further = ((at < _at(ts_us)) if newest else (at > _at(ts_us))) | same
        conditions.append(further)
    found: Any = None
    for each in conditions:
        found = each if found is None else found & each
    return found


def _at(us: int) -> Any:
    return pa.scalar(us, type=_time)


def salted(table: Table, first: int, last: int) -> Iterator[tuple[Record, bytes]]:
    """Iterate over the records with sequence numbers in a range, with the salts of their leaves."""
    some = table.filter((pc.field("seq") >= first) & (pc.field("seq") <= last))
    yield from zip(records_of(some), some["salt"].to_pylist(), strict=True)


def bounds_of(table: Table) -> dict[str, Any]:
    """Return the ranges of a table's rows, as `LakeFile` names them."""
    found: dict[str, Any] = {"rows": table.num_rows}
    for column, first, last in (
        ("seq", "first_seq", "last_seq"), ("started_at", "since_us", "until_us"),
        ("run", "first_run", "last_run"), ("batch", "first_batch", "last_batch"),
    ):  # fmt: skip
        values = table[column]
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        range_ = pc.min_max(values).as_py()
        found |= {first: range_["min"], last: range_["max"]}
    return found


def objects_of(table: Table) -> list[str]:
    """Return the names of the objects that the events of a table refer to, sorted."""
    addresses: set[str | None] = {*table["output_address"].to_pylist()}
    for links in table["links"].to_pylist():
        addresses.update(links or ())
    return sorted(each[2:] for each in addresses if each is not None and each.startswith("o:"))


def take_out(table: Table, *, scopes: frozenset[str], seqs: frozenset[int]) -> tuple[Table, Table]:
    """Return the rows to keep, and those that belong to the scopes or have the sequence numbers."""
    inside = pc.or_(
        pc.is_in(table["scope"], value_set=pa.array(sorted(scopes), type=pa.string())),
        pc.is_in(table["seq"], value_set=pa.array(sorted(seqs), type=pa.int64())),
    )
    return table.filter(pc.invert(inside)), table.filter(inside)
