"""Reading: content by address, lists, refs and pages of the journal.

Every function takes a session, asks a bounded question and returns plain records; nothing here holds
anything open. Content is verified before it is given back.
"""

from __future__ import annotations

import sys
from itertools import islice
from operator import attrgetter, itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import msgspec

from treering.core.batch import Event
from treering.core.clock import day_of
from treering.core.content import (
    KIND_NUMBERS,
    Address,
    Content,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    parse_address,
)
from treering.core.frame import HEADER_SIZE, pack_body, seal, unpack_body, unseal, unseal_all
from treering.core.ids import thread_scope_of
from treering.core.lists import locate
from treering.core.query import check_limit, decode_cursor, encode_cursor
from treering.core.records import ListInfo, Page, Record
from treering.engines.sql.rows import (
    BODY_PART_BITS,
    ITEM_POSITION_BITS,
    ITEM_POSITION_MASK,
    RECORD_SELECT,
    REF_SELECT,
    SAME,
    body_key,
    frame_of,
    item_key,
    kind_of,
    record_of,
    ref_of,
    run_number,
)
from treering.engines.sql.session import rows_in_chunks
from treering.errors import Corrupt, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from treering.core.content import Kind
    from treering.core.lists import ListRange
    from treering.core.query import EventQuery
    from treering.core.records import Ref
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.session import Row, Session


# -----------------------------------------------------------------------------------------------------------
# Sheaves: several items of a list in one row.
#
# Messages come one by one, and a row each is what a step writes. When commits settle together (on SQLite,
# see `sqlite.fresh`), items that follow each other in a list are bound: one row, under the position of the
# first, holds all of them as a body does (`core.body`), in one frame. Together they shrink to half of what
# they take alone, and a conversation is read in a few dozen rows. The column ``kind`` says how many there
# are, as a number below zero. **Invariant:** a position is in one row only. Items that point elsewhere
# (addresses, trees) are never bound, so whoever follows links has nothing to look for in a sheaf.


FEWEST: Final = 4
MOST: Final = 64
"""How many items make a sheaf."""

_TREE: Final = KIND_NUMBERS["tree"]
_SELECT: Final = (
    "SELECT key, kind, frame, address FROM item "
    "WHERE key >= coalesce((SELECT max(key) FROM item WHERE key >= ? AND key <= ?), ?) AND key < ? "
    "ORDER BY key"
)
"""From the row on that holds the first position, which may be one with a lower key."""

_SHEAVES: Final = "SELECT key, kind FROM item WHERE key > ? AND key <= ? AND kind < 0"

ITEM_COUNT: Final = "CASE WHEN i.kind < 0 THEN -i.kind ELSE 1 END"
"""How many items are in a row ``i``."""


def pack_item_blocks(items: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Rows of new items (key, kind, frame, address) in which those that follow each other are bound."""
    bound: list[Sequence[Any]] = []
    run: list[Sequence[Any]] = []
    for row in sorted(items, key=itemgetter(0)):
        if run and (row[0] != run[-1][0] + 1 or len(run) == MOST):
            bound += _bound(run)
            run = []
        if row[2] is None or row[1] == _TREE:
            bound += _bound(run)
            run = []
            bound.append(row)
        else:
            run.append(row)
    return bound + _bound(run)


def _bound(run: list[Sequence[Any]]) -> list[Sequence[Any]]:
    if len(run) < FEWEST:
        return run
    contents = [Content(kind_of(row[1], "a new item"), unseal(row[2], "a new item")) for row in run]
    return [(run[0][0], -len(run), seal(pack_body(contents)), None)]


def is_item_block(kind: Any) -> TypeGuard[int]:
    """Whether a row of that kind holds several items."""
    return isinstance(kind, int) and kind < 0


def unpack_item_block(kind: int, frame: Any, where: str) -> list[Content]:
    """The items in a sheaf, verified."""
    contents = unpack_body(unseal(frame_of(frame, where), where), where)
    if len(contents) != -kind:
        raise Corrupt(f"{where}: holds {len(contents)} items where its row says {-kind}; restore a backup")
    return contents


def positions_in_item_blocks(session: Session, keys: Iterable[int]) -> set[int]:
    """The positions (as keys) that are in a sheaf already, of all lists that the given ones are in."""
    ranges: dict[int, tuple[int, int]] = {}
    for key in keys:
        first, last = ranges.get(key >> ITEM_POSITION_BITS, (key, key))
        ranges[key >> ITEM_POSITION_BITS] = min(first, key), max(last, key)
    asked = [session.query(_SHEAVES, (first - MOST, last)) for first, last in ranges.values()]
    return {position for rows in asked for key, kind in rows for position in range(key, key - kind)}


def read(session: Session, list_no: int, run: ListRange) -> list[Content | Address]:
    """The items of a run: verified content, or where it is.

    Each frame is let go before the next is read, so its memory serves for that one.
    """
    where = f"list {run.list!r}"
    start, stop = run.start, run.stop
    found: list[Content | Address | None] = []
    kinds: list[Kind] = []
    headers: list[bytes] = []
    payloads: list[bytes] = []
    first = item_key(list_no, start)
    bounds = (item_key(list_no, 0), first, first, item_key(list_no, stop))
    # The rows have no name here: the traceback of an error would keep them, and with them the log, open.
    for key, kind, frame, address in session.query(_SELECT, bounds):
        position = key & ITEM_POSITION_MASK
        if is_item_block(kind):
            if position > start + len(found):
                break
            contents = unpack_item_block(kind, frame, where)
            found += islice(contents, start + len(found) - position, stop - position)
            continue
        if position != start + len(found):
            break
        if frame is None:
            found.append(Address(address))
        else:
            sealed = frame if type(frame) is bytes else frame_of(frame, where)
            found.append(None)
            kinds.append(kind_of(kind, where))
            headers.append(sealed[:HEADER_SIZE])
            payloads.append(sealed[HEADER_SIZE:])
    if len(found) != stop - start:
        raise Corrupt(
            f"{where} lacks {stop - start - len(found)} of its items {start} to {stop}; "
            "run verify, then restore it from a backup"
        )
    plain = map(Content, kinds, unseal_all(headers, payloads, where))
    return [next(plain) if item is None else item for item in found]


# -----------------------------------------------------------------------------------------------------------

_LIST_COLUMNS: Final = (
    "SELECT l.id, s.name, p.id, l.start, l.length, l.depth, l.no, l.parent FROM list l "
    "JOIN scope s ON s.no = l.scope LEFT JOIN list p ON p.no = l.parent"
)
_LIST_ITSELF: Final = "SELECT no, parent, length FROM list WHERE space = ? AND id = ?"
_BRIEF_SELECT: Final = "SELECT e.seq, e.id, e.kind, e.ts_us, e.data FROM event e"
_SOME_REFS: Final = f"{REF_SELECT} WHERE r.space = ? AND r.value IS NOT NULL AND r.name IN (@)"
_ONE_REF: Final = _SOME_REFS.replace("IN (@)", "= ?")
_IN_SCOPE: Final = "e.scope = (SELECT no FROM scope WHERE space = ? AND name = ?)"
_BY_SEQ: Final = attrgetter("seq")
_BY_TIME: Final = attrgetter("event.ts_us", "seq")
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000
"""Code points in between stand for no character, so no text is compared with one."""


def get(session: Session, space: int, objects: Objects, addresses: Sequence[Address]) -> list[Content]:
    """Verified content, in the order asked for."""
    names: list[str] = []
    batches: dict[str, set[int]] = {}
    places = [parse_address(address) for address in addresses]
    for place in places:
        match place:
            case ObjectAddress(name):
                names.append(name)
            case SlotAddress(batch, part, _):
                batches.setdefault(batch, set()).add(part)
            case ListAddress(list_id):
                raise InvalidInput(f"{list_id!r} is a list; read it with read_list")
    found = objects.fetch(session, space, names) if names else {}
    slots = _slots(session, space, batches) if batches else {}
    contents: list[Content] = []
    for address, place in zip(addresses, places, strict=True):
        match place:
            case ObjectAddress(name):
                content = found.get(name)
            case SlotAddress(batch, part, index):
                body = slots.get((batch, part), ())
                content = body[index] if index < len(body) else None
            case _:
                content = None
        if content is None:
            raise NotFound(f"nothing is stored at {address!r} in this space")
        contents.append(content)
    return contents


def _slots(
    session: Session, space: int, batches: dict[str, set[int]]
) -> dict[tuple[str, int], Sequence[Content]]:
    numbers = dict(
        rows_in_chunks(
            session, "SELECT batch, no FROM commits WHERE space = ? AND batch IN (@)", (space,), list(batches)
        )
    )
    keys = {
        body_key(numbers[batch], part): (batch, part)
        for batch, parts in batches.items()
        if batch in numbers
        for part in parts
    }
    slots: dict[tuple[str, int], Sequence[Content]] = {}
    for key, frame in rows_in_chunks(session, "SELECT key, frame FROM body WHERE key IN (@)", (), list(keys)):
        batch, part = keys[key]
        where = f"body {part} of commit {batch!r}"
        slots[batch, part] = unpack_body(unseal(frame_of(frame, where), where), where)
    return slots


def lineage(session: Session, space: int, list_id: str) -> list[tuple[ListInfo, int]]:
    """A list and its ancestors with their row numbers, itself first."""
    found: list[tuple[ListInfo, int]] = []
    rows = session.rows(f"{_LIST_COLUMNS} WHERE l.space = ? AND l.id = ?", (space, list_id))
    while rows:
        row = rows[0]
        info = ListInfo(list=row[0], scope=row[1], parent=row[2], start=row[3], length=row[4], depth=row[5])
        found.append((info, row[6]))
        if len(found) > found[0][0].depth + 1:
            raise Corrupt(
                f"list {list_id!r} has more ancestors than its depth says; "
                "run verify, then restore it from a backup"
            )
        rows = session.rows(f"{_LIST_COLUMNS} WHERE l.no = ?", (row[7],)) if row[7] is not None else []
    return found


def read_cached_list(
    session: Session, space: int, cache: ItemCache, list_id: str, start: int, stop: int
) -> list[Content] | None:
    """The items of a range by one question, if all of them are in the cache; not through parents."""
    for no, parent, length in session.rows(_LIST_ITSELF, (space, list_id)):
        if parent is None:
            start, stop = max(start, 0), min(stop, length)
            found = cache.found(no, start, stop)
            return found if len(found) == stop - start else None
    return None


def read_list(
    session: Session, space: int, objects: Objects, cache: ItemCache, list_id: str, start: int, stop: int
) -> list[Content]:
    """The items of a range, through all parents; only what is not in the cache is fetched."""
    line = lineage(session, space, list_id)
    if not line:
        raise NotFound(f"there is no list {list_id!r} in this space")
    numbers = {info.list: no for info, no in line}
    contents: list[Content] = []
    for run in locate([info for info, _ in line], max(start, 0), stop):
        no = numbers[run.list]
        found = cache.found(no, run.start, run.stop)
        first = run.start + len(found)
        contents += found
        if first < run.stop:
            fetched = _fetch_items(session, space, objects, no, msgspec.structs.replace(run, start=first))
            cache.keep(no, first, fetched)
            contents += fetched
    return contents


def _fetch_items(
    session: Session, space: int, objects: Objects, list_no: int, run: ListRange
) -> list[Content]:
    items = read(session, list_no, run)
    elsewhere = [item for item in items if isinstance(item, str)]
    if not elsewhere:
        return items  # pyright: ignore[reportReturnType] - none of them is an address
    fetched = iter(get(session, space, objects, elsewhere))
    return [next(fetched) if isinstance(item, str) else item for item in items]


def refs(session: Session, space: int, names: Sequence[str]) -> dict[str, Ref]:
    """The refs among these names that exist."""
    if len(names) == 1:  # a head, as a rule: every load begins with it
        rows: Iterable[Row] = session.rows(_ONE_REF, (space, names[0]))
    else:
        rows = rows_in_chunks(session, _SOME_REFS, (space,), names)
    return {row[0]: ref_of(row) for row in rows}


def scan_refs(session: Session, space: int, prefix: str, after: str | None, limit: int) -> list[Ref]:
    """Existing refs under a prefix, by name."""
    where, bounds = name_range("r.name", prefix, after)
    sql = f"{REF_SELECT} WHERE r.space = ? AND r.value IS NOT NULL{where} ORDER BY r.name LIMIT ?"
    return [ref_of(row) for row in session.rows(sql, (space, *bounds, check_limit(limit)))]


def scan_scopes(session: Session, space: int, prefix: str, after: str | None, limit: int) -> list[str]:
    """Scopes under a prefix, by name."""
    where, bounds = name_range("name", prefix, after)
    sql = f"SELECT name FROM scope WHERE space = ?{where} ORDER BY name LIMIT ?"
    return [name for (name,) in session.rows(sql, (space, *bounds, check_limit(limit)))]


def name_range(column: str, prefix: str, after: str | None) -> tuple[str, list[Any]]:
    """The condition for names that start with ``prefix`` and come behind ``after``, as one index range."""
    where = ""
    bounds: list[Any] = []
    if prefix:
        where += f" AND {column} >= ?"
        bounds.append(prefix)
        end = _after_prefix(prefix)
        if end is not None:
            where += f" AND {column} < ?"
            bounds.append(end)
    if after is not None:
        where += f" AND {column} > ?"
        bounds.append(after)
    return where, bounds


def _after_prefix(prefix: str) -> str | None:
    """The smallest text behind all that start with ``prefix``, in code point order."""
    for length in range(len(prefix), 0, -1):
        point = ord(prefix[length - 1]) + 1
        if point == _FIRST_SURROGATE:
            point = _AFTER_SURROGATES
        if point <= sys.maxunicode:
            return prefix[: length - 1] + chr(point)
    return None


def scan(session: Session, space: int, query: EventQuery, after: str | None, limit: int) -> Page:
    """One page of the journal."""
    check_limit(limit)
    direction, compare = ("DESC", "<") if query.newest_first else ("ASC", ">")
    by_seq = query.order == "seq"
    conditions, values = _conditions(space, query)
    if after is not None:
        ts_us, seq = decode_cursor(query, after)
        conditions.append(f"e.seq {compare} ?" if by_seq else f"(e.ts_us, e.seq) {compare} (?, ?)")
        values += [seq] if by_seq else [ts_us, seq]
    keys = f"e.seq {direction}" if by_seq else f"e.ts_us {direction}, e.seq {direction}"
    records: list[Record] = []
    for condition, more in _of_thread(space, query.thread):
        rest = f" WHERE {' AND '.join(['e.space = ?', *conditions, *condition])} ORDER BY {keys} LIMIT ?"
        given = (space, *values, *more, limit)
        found = _brief_records(session, query.scope, rest, given) if query.brief and query.scope else None
        if found is None:
            dictionary = session.dictionary
            found = [record_of(row, dictionary) for row in session.rows(RECORD_SELECT + rest, given)]
        records += found
    if query.thread is not None:
        order = _BY_SEQ if by_seq else _BY_TIME
        records = sorted(records, key=order, reverse=query.newest_first)[:limit]
    cursor = None
    if len(records) == limit:
        cursor = encode_cursor(query, records[-1].event.ts_us, records[-1].seq)
    return Page(records=tuple(records), cursor=cursor)


def _brief_records(session: Session, scope: str, rest: str, given: Sequence[Any]) -> list[Record] | None:
    """Records of one scope by what their rows say alone; ``None`` if one of them has its data elsewhere."""
    rows = session.rows(_BRIEF_SELECT + rest, given)
    found = session.dictionary.expand_all([data for _, _, _, _, data in rows])
    if found is None:
        return None
    return [
        Record(
            seq=seq,
            batch="",
            committed_at_us=0,
            event=Event(id=event_id, kind=kind, ts_us=ts_us, scope=scope, data=data),
        )
        for (seq, event_id, kind, ts_us, _), data in zip(rows, found, strict=True)
    ]


def _of_thread(space: int, thread: str | None) -> Iterator[tuple[list[str], list[Any]]]:
    """What finds the events of a thread: those that name it, and those whose scope does.

    Two questions, because each has an index of its own.
    """
    if thread is None:
        yield [], []
        return
    yield [f"e.thread = ? AND e.thread > '{SAME}'"], [thread]
    scope = thread_scope_of(thread)
    if scope is not None:
        yield [f"e.thread = '{SAME}'", _IN_SCOPE], [space, scope]


def _conditions(space: int, query: EventQuery) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    for name in ("run", "agent", "status"):
        value = getattr(query, name)
        if name == "run" and value is not None:
            value = run_number(value)
        if value is not None:
            conditions.append(f"e.{name} = ?")
            values.append(value)
    if query.span is not None:
        conditions.append(f"(e.span = ? OR (e.span = '{SAME}' AND e.id = ?))")
        values += [query.span, query.span]
    if query.scope is not None:
        conditions.append(_IN_SCOPE)
        values += [space, query.scope]
    for name, wanted in (("kind", query.kinds), ("id", query.ids)):
        if wanted:
            conditions.append(f"e.{name} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    if query.ids and query.since_us is not None and query.until_us is not None:
        first, last = day_of(query.since_us), day_of(query.until_us - 1)
        conditions.append("e.day = ?" if first == last else "e.day BETWEEN ? AND ?")
        values += [first] if first == last else [first, last]
    if query.since_us is not None:
        conditions.append("e.ts_us >= ?")
        values.append(query.since_us)
    if query.until_us is not None:
        conditions.append("e.ts_us < ?")
        values.append(query.until_us)
    return conditions, values


def body_part(key: int) -> tuple[int, int]:
    """The commit number and part of a body's key."""
    return key >> BODY_PART_BITS, key & ((1 << BODY_PART_BITS) - 1)


# -----------------------------------------------------------------------------------------------------------
# List items that were read before: a conversation that is loaded again and again is fetched once.
#
# What lies at a position of a list never changes, and the number of a list is never given to another one, so
# what is kept here cannot become untrue; an erasure empties it all the same, because erased bytes shall be
# nowhere. Only whole lists go when room is needed, the one that was not asked for the longest first.


BUDGET: Final = 16 * 1024 * 1024
"""How many bytes of content are kept at most."""

_OVERHEAD: Final = 200
"""About what an item takes beside its content."""


class _Held:
    """What is kept of one list."""

    __slots__ = ("contents", "size")

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.size = 0


class _Shelf:
    """Lists by number, the one that was asked for last at the end."""

    __slots__ = ("lists", "lock", "size")

    def __init__(self) -> None:
        self.lists: dict[int, _Held] = {}
        self.size = 0
        self.lock = Lock()


class ItemCache:
    """Verified items by list and position.

    Whoever finds it busy goes without: it never makes anyone wait, not even in a child that was forked
    while a thread of its parent was in here.
    """

    def __init__(self) -> None:
        self._shelf = _Shelf()

    @property
    def has_some(self) -> bool:
        """Whether it is worth asking for anything."""
        return bool(self._shelf.lists)

    def found(self, list_no: int, start: int, stop: int) -> list[Content]:
        """The items from ``start`` on, as far as they are here without a gap."""
        shelf = self._shelf
        if not shelf.lock.acquire(blocking=False):
            return []
        try:
            held = shelf.lists.pop(list_no, None)
            if held is None:
                return []
            shelf.lists[list_no] = held
            contents = held.contents
            try:
                return [*map(contents.__getitem__, range(start, stop))]
            except KeyError as error:
                return [contents[position] for position in range(start, error.args[0])]
        finally:
            shelf.lock.release()

    def keep(self, list_no: int, start: int, contents: Sequence[Content]) -> None:
        """Keep items that were fetched, unless they alone would take half of the room."""
        shelf = self._shelf
        size = sum([len(content.data) for content in contents]) + _OVERHEAD * len(contents)
        if size > BUDGET // 2 or not shelf.lock.acquire(blocking=False):
            return
        try:
            held = shelf.lists.pop(list_no, None) or _Held()
            held.contents.update(enumerate(contents, start))
            held.size += size
            shelf.lists[list_no] = held
            shelf.size += size
            while shelf.size > BUDGET:
                shelf.size -= shelf.lists.pop(next(iter(shelf.lists))).size
        finally:
            shelf.lock.release()

    def clear(self) -> None:
        """Forget everything."""
        self._shelf = _Shelf()
