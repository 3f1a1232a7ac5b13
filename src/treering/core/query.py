"""Queries of the journal, the roll-ups and the search index, and plans of erasures, as frozen values; and the
iteration over all that match, one page at a time.

Cursors are opaque to callers. A cursor holds the sort key of the last record returned, so the next page is
one index range, and paging during inserts neither repeats nor skips earlier records. Each page is a separate
read: a slow consumer blocks nobody, and sees commits made meanwhile beyond its current position. Nothing is
read ahead.

An entry of a list is a ref, which may be damaged, or written by something else. Whoever asks for that entry
gets `Corrupt`. Whoever asks for the list gets all others (`readable`), and is told of this one: by a warning
in Python, or in what `collecting` returns to a command or a route. **Invariant:** no entry is left out
without a word.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import msgspec

from treering.core.clock import DAY_US, day_of
from treering.core.ids import ID_CHARS, time_of
from treering.core.notebook import table
from treering.errors import Conflict, Corrupt, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Record, Ref


Grain = Literal["run", "thread", "day", "call", "first_token", "generation"]
"""What roll-ups are kept for: every run, every thread and every day; and by day the durations of calls, the
times to their first tokens, and the times in which they generated output."""

Dimension = Literal["key", "day", "agent", "model", "kind", "currency", "bucket"]
"""What sums can be grouped by; ``key`` is the run, the thread, or of calls the tool."""

MAX_PAGE: Final = 10_000
_FEW: Final = 10
_LARGEST: Final = 2**63 - 1
"""The largest integer that a database can store."""


class EventQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to return, and in which order.

    ``order="seq"`` is commit order (for transcripts and followers), ``order="time"`` is (ts, seq), the order
    of a timeline. Unset filters do not filter; set filters must all match.

    ``ids`` and ``id_prefix`` are found by an index if ``since_us`` and ``until_us`` say on which days.

    ``brief`` is for callers that read many rows and need only ``seq`` and the event's ``id``, ``kind``,
    ``ts_us``, ``scope`` and ``data`` (or ``body``, if there is no ``data``): an engine may leave all other
    fields empty.
    """

    kinds: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    id_prefix: str | None = None
    scope: str | None = None
    run: str | None = None
    thread: str | None = None
    span: str | None = None
    agent: str | None = None
    status: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    order: Literal["seq", "time"] = "seq"
    newest_first: bool = False
    brief: bool = False


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which refs of a list to return (see `treering.core.batch.Listing`), newest first or oldest first.

    Unset filters do not filter; set filters must all match. ``agent`` and ``thread`` filter within one
    namespace. One filter, or agent and status together, are found by an index.
    """

    list: str
    namespace: str | None = None
    agent: str | None = None
    status: str | None = None
    thread: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    """The time at which they are listed, up to but not including ``until_us``."""
    oldest_first: bool = False


class SumQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Totals from the roll-ups of one grain, grouped by any of its dimensions (by none: one total)."""

    grain: Grain
    by: tuple[Dimension, ...] = ()
    key: str | None = None
    agent: str | None = None
    model: str | None = None
    kind: str | None = None
    since_day: int | None = None
    until_day: int | None = None
    top: int | None = None
    """Return only this many groups, the most expensive first."""


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of a collection that match, in one namespace or (``None``) in all."""

    collection: str
    text: str
    namespace: str | None = None
    limit: int = 10


class SqlQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query in SQL over the runs of a space, and what it may use (see `treering.lake.query`)."""

    sql: str
    params: tuple[Any, ...] = ()
    """Values for ``?`` or ``$1``."""
    max_rows: int = 10_000
    seconds: float = 30.0


class SqlResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a query. With ``truncated``, there are more than were asked for."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    """DuckDB's names of the types."""
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool = False
    seconds: float = 0.0

    def _repr_html_(self) -> str:
        return table("Query", self.rows, head=self.columns)

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dict."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def json_rows(result: SqlResult) -> list[tuple[Any, ...]]:
    """Return the rows of a query as JSON has them: dates and times as ISO 8601, bytes as hex digits."""
    return [tuple(map(_json_value, row)) for row in result.rows]


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return list(map(_json_value, cast("Iterable[Any]", value)))
    if isinstance(value, dict):
        return {str(key): _json_value(each) for key, each in cast("dict[Any, Any]", value).items()}
    isoformat = getattr(value, "isoformat", None)
    return str(value) if isoformat is None else isoformat()


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What to erase: whole scopes, or single events, refs and lists.

    Erasing a scope removes its events, refs, lists, bodies and texts. ``cascade`` also erases the scopes
    whose lists branch off an erased one; without it, such a fork makes the erasure a `Conflict`. ``secure``
    also wipes deleted bytes that the storage would otherwise keep. ``absent`` are refs that must not exist
    at that moment, otherwise the erasure is a `Conflict`: data of a deleted thing must not be erased once a
    new one of that name exists.
    """

    scopes: tuple[str, ...] = ()
    event_seqs: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    cascade: bool = False
    secure: bool = False


def ref_exists_again(name: str) -> Conflict:
    """Return the error for an erasure whose plan requires a ref to be absent that exists again."""
    return Conflict(f"cannot erase: {name!r} exists again, so its data is kept")


def forks_depend_on_it(scopes: Iterable[str]) -> Conflict:
    """Return the error for an erasure without ``cascade`` while forks in these scopes share the past."""
    named = ", ".join(map(repr, sorted(scopes)))
    return Conflict(
        f"cannot erase: forks in {named} share this past; erase them too with cascade=True (--cascade on "
        "the command line), or erase them first"
    )


def encode_cursor(query: EventQuery, ts_us: int, seq: int) -> str:
    """Return the cursor that continues after a record."""
    return f"{seq}" if query.order == "seq" else f"{ts_us}.{seq}"


def decode_cursor(query: EventQuery, cursor: str) -> tuple[int, int]:
    """Return ``(ts_us, seq)`` from a cursor made by `encode_cursor` for the same order."""
    times, _, number = ("0", "", cursor) if query.order == "seq" else cursor.partition(".")
    with suppress(ValueError):
        ts_us, seq = int(times), int(number)
        if max(abs(ts_us), abs(seq)) <= _LARGEST:
            return ts_us, seq
    raise InvalidInput(
        f"not a cursor for order={query.order!r}: {cursor[:80]!r}; pass the cursor of the previous page"
    )


def encode_list_cursor(at_us: int, name: str) -> str:
    """Return the cursor that continues after a ref of a list."""
    return f"{at_us}.{name}"


def decode_list_cursor(cursor: str) -> tuple[int, str]:
    """Return the time and name in a cursor made by `encode_list_cursor`."""
    at, _, name = cursor.partition(".")
    with suppress(ValueError):
        at_us = int(at)
        if 0 <= at_us <= _LARGEST and name:
            return at_us, name
    raise InvalidInput(f"not a cursor: {cursor[:80]!r}; pass the cursor of the previous page")


def check_list_query(query: ListQuery) -> ListQuery:
    """Return a query of a list if it is valid."""
    if query.namespace is None and (query.agent, query.thread) != (None, None):
        raise InvalidInput("agent and thread filter within one namespace; name it")
    return query


def check_limit(limit: int) -> int:
    """Return a page size if it is valid."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit is {limit}; use 1 to {MAX_PAGE} and continue with the cursor")
    return limit


def day_start_us(day: int) -> int:
    """Return the first microsecond of a UTC day."""
    return day * DAY_US


def last_seq(engine: Engine, space: str) -> int:
    """Return the last sequence number of a space, or 0 if nothing was committed to it."""
    return engine.wait(space, 0, seconds=0)


def record_pages(
    engine: Engine, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000
) -> Iterator[tuple[Record, ...]]:
    """Yield the matching events behind a cursor in non-empty pages."""
    while True:
        page = engine.scan(space, query, after=after, limit=limit)
        if page.records:
            yield page.records
        if page.cursor is None:
            return
        after = page.cursor


def each_record(
    engine: Engine, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000
) -> Iterator[Record]:
    """Yield the matching events behind a cursor."""
    for records in record_pages(engine, space, query, after=after, limit=limit):
        yield from records


def records_by_id(
    engine: Engine, space: str, beginning: str, *, kinds: tuple[str, ...] = ()
) -> Iterator[Record]:
    """Yield the events whose generated ids begin so. An id begins with its time, so this is a small read."""
    made = beginning[beginning.rfind("_") + 1 :]
    try:
        first_us, last_us = time_of(made.ljust(ID_CHARS, "0")), time_of(made.ljust(ID_CHARS, "z"))
    except InvalidInput:
        return
    query = EventQuery(
        kinds=kinds,
        id_prefix=beginning,
        # An id may be a little older than its event.
        since_us=max((day_of(first_us) - 1) * DAY_US, 0),
        until_us=(day_of(last_us) + 2) * DAY_US,
    )
    yield from each_record(engine, space, query, limit=_FEW)


def ref_pages(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[list[Ref]]:
    """Yield the refs with this prefix, by name, in pages."""
    after = None
    while page := engine.scan_refs(space, prefix, after=after, limit=limit):
        yield page
        if len(page) < limit:
            return
        after = page[-1].name


def each_ref(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[Ref]:
    """Yield the refs with this prefix, by name."""
    for refs in ref_pages(engine, space, prefix, limit=limit):
        yield from refs


def each_listed(
    engine: Engine, space: str, query: ListQuery, *, after: str | None = None, limit: int = 1000
) -> Iterator[Ref]:
    """Yield the refs of a list behind a cursor."""
    while True:
        page = engine.list_refs(space, query, after=after, limit=limit)
        yield from page.refs
        if page.cursor is None:
            return
        after = page.cursor


def each_scope(engine: Engine, space: str, prefix: str, *, limit: int = 1000) -> Iterator[str]:
    """Yield the scopes with this prefix, by name."""
    after = None
    while page := engine.scan_scopes(space, prefix, after=after, limit=limit):
        yield from page
        if len(page) < limit:
            return
        after = page[-1]


_NOTHING: Final = Erasure()


def check_may_erase(engine: Engine, space: str) -> None:
    """Raise `Forbidden` if this caller may not erase in this space; erases nothing.

    Over HTTP, a key may allow writing but not erasing. Callers check this before they unlist something that
    they are about to erase.
    """
    engine.erase(space, _NOTHING)


T = TypeVar("T")


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is missing from a list, and why."""

    name: str
    problem: str


class UnreadableWarning(UserWarning):
    """An entry of a list cannot be read, and is not in it."""


_collected: ContextVar[dict[str, Unreadable] | None] = ContextVar("treering_unreadable", default=None)


def readable(refs: Iterable[Ref], read: Callable[[Ref], T]) -> Iterator[T]:
    """Yield what ``read`` returns for each ref, without those that it raises `Corrupt` for."""
    for ref in refs:
        try:
            value = read(ref)
        except Corrupt as error:
            note_unreadable(ref.name, error)
        else:
            yield value


def note_unreadable(name: str, error: Corrupt) -> None:
    """Tell of an entry that is left out of a list."""
    found = _collected.get()
    if found is not None:
        found[name] = Unreadable(name=name, problem=str(error))
    else:
        warnings.warn(f"{name!r} is left out of the list: {error}", UnreadableWarning, stacklevel=3)


@contextmanager
def collecting() -> Generator[dict[str, Unreadable]]:
    """Collect what is left out of lists in this block, by name, instead of warning."""
    found: dict[str, Unreadable] = {}
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)
