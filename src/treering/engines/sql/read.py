"""Reading: content by address, lists, refs and pages of the journal.

Every function takes a session, runs a bounded query and returns plain records; nothing here holds anything
open. Content is verified before it is returned.

**Item blocks.** Messages arrive one by one, and each is a row. When SQLite's commit log is flushed, items
that follow each other in a list are packed into one row: under the position of the first, with all of them in
one frame like a body (`core.content`). Together they shrink to half of their size, and a conversation is read
in a few dozen rows. The column ``kind`` holds their number, negated. **Invariant:** a position is in one row
only. Items that link elsewhere (addresses, trees) are never in a block, so code that follows links has
nothing to look for in one.
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
    HEADER_SIZE,
    KIND_NUMBERS,
    Address,
    Content,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    pack_body,
    parse_address,
    seal,
    unpack_body,
    unseal,
    unseal_all,
)
from treering.core.digests import brief_checksum, first_of
from treering.core.ids import thread_scope_of
from treering.core.query import (
    check_limit,
    check_list_query,
    decode_cursor,
    decode_list_cursor,
    encode_cursor,
    encode_list_cursor,
    note_unreadable,
)
from treering.core.records import ListInfo, Page, Record, RefPage, locate
from treering.engines.sql.commit.decide import ListState, check_list
from treering.engines.sql.rows import (
    BODY_PART_BITS,
    ITEM_POSITION_BITS,
    ITEM_POSITION_MASK,
    RECORD_SELECT,
    REF_SELECT,
    SAME,
    body_checksum,
    body_key,
    frame_of,
    item_checksum,
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
    from treering.core.query import EventQuery, ListQuery
    from treering.core.records import ListRange, Ref
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.session import Row, Session


MIN_BLOCK: Final = 4
MAX_BLOCK: Final = 64
"""How many items make a block."""

_TREE: Final = KIND_NUMBERS["tree"]
_SELECT: Final = (
    "SELECT key, kind, frame, address, checksum FROM item "
    "WHERE space = ? AND key >= coalesce("
    "(SELECT max(key) FROM item WHERE space = ? AND key >= ? AND key <= ?), ?) AND key < ? "
    "ORDER BY key"
)
"""Starts at the row that holds the first position, which may have a lower key."""

_BLOCKS: Final = "SELECT key, kind FROM item WHERE space = ? AND key > ? AND key <= ? AND kind < 0"

ITEM_COUNT: Final = "CASE WHEN i.kind < 0 THEN -i.kind ELSE 1 END"
"""The number of items in a row ``i``."""


def pack_item_blocks(items: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return rows of new items with neighbouring items packed into blocks.

    A row is space, key, kind, frame, address and checksum.
    """
    bound: list[Sequence[Any]] = []
    run: list[Sequence[Any]] = []
    for row in sorted(items, key=itemgetter(0, 1)):
        if run and (row[1] != run[-1][1] + 1 or len(run) == MAX_BLOCK):
            bound += _pack_block(run)
            run = []
        if row[3] is None or row[2] == _TREE:
            bound += _pack_block(run)
            run = []
            bound.append(row)
        else:
            run.append(row)
    return bound + _pack_block(run)


def _pack_block(run: list[Sequence[Any]]) -> list[Sequence[Any]]:
    if len(run) < MIN_BLOCK:
        return run
    contents = [Content(kind_of(row[2], "a new item"), unseal(row[3], "a new item")) for row in run]
    space, key = run[0][:2]
    kind, frame = -len(run), seal(pack_body(contents))
    return [(space, key, kind, frame, None, item_checksum(space, key, kind, frame, None))]


def is_item_block(kind: Any) -> TypeGuard[int]:
    """Whether a row of this kind holds several items."""
    return isinstance(kind, int) and kind < 0


def unpack_item_block(kind: int, frame: Any, where: str) -> list[Content]:
    """Return the items in a block, verified."""
    contents = unpack_body(unseal(frame_of(frame, where), where), where)
    if len(contents) != -kind:
        raise Corrupt(f"{where}: holds {len(contents)} items where its row says {-kind}; restore a backup")
    return contents


def positions_in_item_blocks(session: Session, space: int, keys: Iterable[int]) -> set[int]:
    """Return the positions (as keys) that are in blocks already, of all lists that the keys belong to."""
    ranges: dict[int, tuple[int, int]] = {}
    for key in keys:
        first, last = ranges.get(key >> ITEM_POSITION_BITS, (key, key))
        ranges[key >> ITEM_POSITION_BITS] = min(first, key), max(last, key)
    asked = [session.query(_BLOCKS, (space, first - MAX_BLOCK, last)) for first, last in ranges.values()]
    return {position for rows in asked for key, kind in rows for position in range(key, key - kind)}


def read_items(session: Session, space: int, list_no: int, run: ListRange) -> list[Content | Address]:
    """Return the items of a run: verified content, or its address.

    Each frame is released before the next is read, so they share memory.
    """
    where = f"list {run.list!r}"
    start, stop = run.start, run.stop
    found: list[Content | Address | None] = []
    kinds: list[Kind] = []
    headers: list[bytes] = []
    payloads: list[bytes] = []
    first = item_key(list_no, start)
    bounds = (space, space, item_key(list_no, 0), first, first, item_key(list_no, stop))
    # The rows are not bound to a name: a traceback would keep them, and with them the log, open.
    for key, kind, frame, address, check in session.query(_SELECT, bounds):
        position = key & ITEM_POSITION_MASK
        if item_checksum(space, key, kind, frame, address) != check:
            raise Corrupt(
                f"item {position} of {where} is not as it was written: its checksum differs; "
                "run verify, then restore it from a backup or a copy"
            )
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


_LIST_COLUMNS: Final = (
    "SELECT l.id, s.name, p.id, l.start, l.length, l.depth, l.no, l.parent, l.scope, l.seq, l.salt, "
    "l.checksum FROM list l LEFT JOIN scope s ON s.space = l.space AND s.no = l.scope "
    "LEFT JOIN list p ON p.space = l.space AND p.no = l.parent"
)
_LIST_ITSELF: Final = "SELECT no, parent, length FROM list WHERE space = ? AND id = ?"
_BRIEF_SELECT: Final = "SELECT e.seq, e.id, e.kind, e.ts_us, e.data, e.checksum FROM event e"
_SOME_REFS: Final = f"{REF_SELECT} WHERE r.space = ? AND r.value IS NOT NULL AND r.name IN (@)"
_ONE_REF: Final = _SOME_REFS.replace("IN (@)", "= ?")
_IN_SCOPE: Final = "e.scope = (SELECT no FROM scope WHERE space = ? AND name = ?)"
_BY_SEQ: Final = attrgetter("seq")
_BY_TIME: Final = attrgetter("event.ts_us", "seq")
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000
"""Code points in between are surrogates, which no text contains."""


def get(session: Session, space: int, objects: Objects, addresses: Sequence[Address]) -> list[Content]:
    """Return verified content, in the order of the addresses."""
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
    sql = (
        "SELECT b.key, s.name, b.frame, b.salt, b.checksum FROM body b "
        "LEFT JOIN scope s ON s.space = b.space AND s.no = b.scope WHERE b.space = ? AND b.key IN (@)"
    )
    for key, scope, frame, salt, check in rows_in_chunks(session, sql, (space,), list(keys)):
        batch, part = keys[key]
        where = f"body {part} of commit {batch!r}"
        check_body(space, key, scope, frame, salt, check, where=where)
        slots[batch, part] = unpack_body(unseal(frame_of(frame, where), where), where)
    return slots


def check_body(space: int, key: int, scope: str, frame: Any, salt: bytes, check: int, *, where: str) -> None:
    """Raise `Corrupt` if the row of a body is not as it was written; its frame has a checksum of its own."""
    if body_checksum(space, key, scope, frame_of(frame, where), salt) != check:
        raise Corrupt(
            f"{where} is not as it was written: its checksum differs; "
            "run verify, then restore it from a backup or a copy"
        )


def lineage(session: Session, space: int, list_id: str) -> list[tuple[ListInfo, int]]:
    """Return a list and its ancestors with their row numbers, itself first."""
    found: list[tuple[ListInfo, int]] = []
    rows = session.rows(f"{_LIST_COLUMNS} WHERE l.space = ? AND l.id = ?", (space, list_id))
    while rows:
        row = rows[0]
        info = ListInfo(list=row[0], scope=row[1], parent=row[2], start=row[3], length=row[4], depth=row[5])
        found.append((info, row[6]))
        state = ListState(row[6], row[8], row[7], row[3], row[4], row[5], row[10])
        check_list(space, row[0], state, scope=row[1], seq=row[9], check=row[11])
        if len(found) > found[0][0].depth + 1:
            raise Corrupt(
                f"list {list_id!r} has more ancestors than its depth says; "
                "run verify, then restore it from a backup"
            )
        parent = row[7]
        if parent is not None and row[2] is None:
            raise Corrupt(
                f"list {row[0]!r} branches off list number {parent}, which is missing; "
                "run verify, then restore it from a backup"
            )
        sql = f"{_LIST_COLUMNS} WHERE l.space = ? AND l.no = ?"
        rows = session.rows(sql, (space, parent)) if parent is not None else []
    return found


def read_cached_list(
    session: Session, space: int, cache: ItemCache, list_id: str, start: int, stop: int
) -> list[Content] | None:
    """Return the items of a range with one query, if all are cached; not through parents."""
    for no, parent, length in session.rows(_LIST_ITSELF, (space, list_id)):
        if parent is None:
            start, stop = max(start, 0), min(stop, length)
            found = cache.found(no, start, stop)
            return found if len(found) == stop - start else None
    return None


def read_list(
    session: Session, space: int, objects: Objects, cache: ItemCache, list_id: str, start: int, stop: int
) -> list[Content]:
    """Return the items of a range, through all parents; only what is not cached is fetched."""
    line = lineage(session, space, list_id)
    if not line:
        raise NotFound(f"list {list_id!r} not found in this space")
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
    items = read_items(session, space, list_no, run)
    elsewhere = [item for item in items if isinstance(item, str)]
    if not elsewhere:
        return items  # pyright: ignore[reportReturnType] - none of them is an address
    fetched = iter(get(session, space, objects, elsewhere))
    return [next(fetched) if isinstance(item, str) else item for item in items]


def refs(session: Session, space: int, names: Sequence[str]) -> dict[str, Ref]:
    """Return the refs among these names that exist."""
    if len(names) == 1:  # mostly a head, which every load begins with
        rows: Iterable[Row] = session.rows(_ONE_REF, (space, names[0]))
    else:
        rows = rows_in_chunks(session, _SOME_REFS, (space,), names)
    return {row[0]: ref_of(row) for row in rows}


def scan_refs(session: Session, space: int, prefix: str, after: str | None, limit: int) -> list[Ref]:
    """Return existing refs under a prefix, by name; other refs take the place of damaged ones."""
    check_limit(limit)
    found: list[Ref] = []
    while (lacking := limit - len(found)) > 0:
        where, bounds = name_range("r.name", prefix, after)
        sql = f"{REF_SELECT} WHERE r.space = ? AND r.value IS NOT NULL{where} ORDER BY r.name LIMIT ?"
        rows = session.rows(sql, (space, *bounds, lacking))
        found += _readable(rows)
        if len(rows) < lacking:
            break
        after = rows[-1][0]
    return found


def _readable(rows: Sequence[Row]) -> Iterator[Ref]:
    """Yield the refs of a list without those that are damaged, which are told of (`core.query`)."""
    for row in rows:
        try:
            ref = ref_of(row)
        except Corrupt as error:
            note_unreadable(row[0], error)
        else:
            yield ref


def list_refs(session: Session, space: int, query: ListQuery, after: str | None, limit: int) -> RefPage:
    """Return one page of a list."""
    check_limit(limit)
    check_list_query(query)
    direction, compare = ("ASC", ">") if query.oldest_first else ("DESC", "<")
    filters = {
        name: value
        for name in ("namespace", "agent", "status", "thread")
        if (value := getattr(query, name)) is not None
    }
    conditions = "".join(f" AND r.{name} = ?" for name in filters)
    values: list[Any] = [space, query.list, *filters.values()]
    if query.since_us is not None:
        conditions += " AND r.listed_us >= ?"
        values.append(query.since_us)
    if query.until_us is not None:
        conditions += " AND r.listed_us < ?"
        values.append(query.until_us)
    if after is not None:
        conditions += f" AND (r.listed_us, r.name) {compare} (?, ?)"
        values += decode_list_cursor(after)
    rows = session.rows(
        f"{REF_SELECT} WHERE r.space = ? AND r.listed_in = ?{conditions} "
        f"ORDER BY r.listed_us {direction}, r.name {direction} LIMIT ?",
        (*values, limit),
    )
    cursor = None
    if len(rows) == limit:
        cursor = encode_list_cursor(rows[-1][_LISTED_AT], rows[-1][0])
    return RefPage(refs=tuple(_readable(rows)), cursor=cursor)


_LISTED_AT: Final = 8
"""The column of `REF_SELECT` that lists are sorted by."""


def scan_scopes(session: Session, space: int, prefix: str, after: str | None, limit: int) -> list[str]:
    """Return scopes under a prefix, by name."""
    where, bounds = name_range("name", prefix, after)
    sql = f"SELECT name FROM scope WHERE space = ?{where} ORDER BY name LIMIT ?"
    return [name for (name,) in session.rows(sql, (space, *bounds, check_limit(limit)))]


def name_range(column: str, prefix: str, after: str | None) -> tuple[str, list[Any]]:
    """Return the condition for names with a prefix that come after ``after``, as one index range."""
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
    """Return the smallest text after all that start with ``prefix``, in code point order."""
    for length in range(len(prefix), 0, -1):
        point = ord(prefix[length - 1]) + 1
        if point == _FIRST_SURROGATE:
            point = _AFTER_SURROGATES
        if point <= sys.maxunicode:
            return prefix[: length - 1] + chr(point)
    return None


def scan(session: Session, space: int, query: EventQuery, after: str | None, limit: int) -> Page:
    """Return one page of the journal."""
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
    """Return records of one scope from their rows alone; ``None`` if the data of one is not bytes."""
    rows = session.rows(_BRIEF_SELECT + rest, given)
    found = session.dictionary.expand_all([row[4] for row in rows])
    if found is None:
        return None
    for (seq, event_id, kind, ts_us, _, check), data in zip(rows, found, strict=True):
        if brief_checksum(seq, event_id, kind, ts_us, scope, data) != first_of(check):
            return None  # reading it whole says what is wrong
    return [
        Record(
            seq=seq,
            batch="",
            committed_at_us=0,
            event=Event(id=event_id, kind=kind, ts_us=ts_us, scope=scope, data=data),
        )
        for (seq, event_id, kind, ts_us, _, _), data in zip(rows, found, strict=True)
    ]


def _of_thread(space: int, thread: str | None) -> Iterator[tuple[list[str], list[Any]]]:
    """Yield the conditions for the events of a thread: those that name it, and those whose scope does.

    They are two queries, because each has an index of its own.
    """
    if thread is None:
        yield [], []
        return
    yield [f"e.thread = ? AND e.thread > '{SAME}'"], [thread]
    scope = thread_scope_of(thread)
    if scope is not None:
        yield [f"e.thread = '{SAME}'", _IN_SCOPE], [space, scope]


_LAST_CHARACTER: Final = "\U0010ffff"


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
    if query.id_prefix:
        conditions.append("e.id >= ? AND e.id < ?")
        values += [query.id_prefix, query.id_prefix + _LAST_CHARACTER]
    if (query.ids or query.id_prefix) and query.since_us is not None and query.until_us is not None:
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
    """Return the commit number and part in the key of a body."""
    return key >> BODY_PART_BITS, key & ((1 << BODY_PART_BITS) - 1)


CACHE_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of content that are cached."""

_ITEM_OVERHEAD: Final = 200
"""About what an item takes in addition to its content."""


class _CachedList:
    """The cached items of one list."""

    __slots__ = ("contents", "size")

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.size = 0


class _Lists:
    """Lists by number, the most recently used one at the end."""

    __slots__ = ("lists", "lock", "size")

    def __init__(self) -> None:
        self.lists: dict[int, _CachedList] = {}
        self.size = 0
        self.lock = Lock()


class ItemCache:
    """Verified list items, so that a conversation that is loaded again is not read again.

    The item at a position never changes, and list numbers are never reused, so what is cached stays true. An
    erasure clears the cache all the same, because erased bytes must be nowhere. When it is full, whole lists
    are dropped, the least recently used first.

    A caller that finds the cache locked goes without it. So it makes nobody wait, not even in a child that
    was forked while another thread of its parent held the lock.
    """

    def __init__(self) -> None:
        self._cache = _Lists()

    @property
    def has_some(self) -> bool:
        """Whether anything is cached."""
        return bool(self._cache.lists)

    def found(self, list_no: int, start: int, stop: int) -> list[Content]:
        """Return the items from ``start`` on, up to the first that is not cached."""
        cache = self._cache
        if not cache.lock.acquire(blocking=False):
            return []
        try:
            held = cache.lists.pop(list_no, None)
            if held is None:
                return []
            cache.lists[list_no] = held
            contents = held.contents
            try:
                return [*map(contents.__getitem__, range(start, stop))]
            except KeyError as error:
                return [contents[position] for position in range(start, error.args[0])]
        finally:
            cache.lock.release()

    def keep(self, list_no: int, start: int, contents: Sequence[Content]) -> None:
        """Add items, unless they alone would take half of the room."""
        cache = self._cache
        size = sum([len(content.data) for content in contents]) + _ITEM_OVERHEAD * len(contents)
        if size > CACHE_BYTES // 2 or not cache.lock.acquire(blocking=False):
            return
        try:
            held = cache.lists.pop(list_no, None) or _CachedList()
            held.contents.update(enumerate(contents, start))
            held.size += size
            cache.lists[list_no] = held
            cache.size += size
            while cache.size > CACHE_BYTES:
                cache.size -= cache.lists.pop(next(iter(cache.lists))).size
        finally:
            cache.lock.release()

    def clear(self) -> None:
        """Drop everything."""
        self._cache = _Lists()
