"""Export and load: a space as slices, the two halves of a copy.

`export` walks the tables one after another, each along an index that starts with the space, so the cost of a
slice depends on its own size, not on that of the store. For the same reason, joins repeat the position as a
lower bound of the inner table: a list with a million items is not read from its start for each slice. A
position consists of a table and the last key in it, so it keeps its meaning in another process and when rows
are added or removed. Each slice is read in a short transaction of its own; bytes in packs are read
afterwards. Rows committed before the position of a running export are not included, although rows that refer
to them may be: to copy a space that is being written to, repeat the export until nothing was committed in
between.

`load` keeps sequence numbers, versions and times; only internal numbers of commits, lists and scopes differ
between stores, so keys that contain them are rebuilt. Loading a slice twice changes nothing: existing rows
are kept, and refs and lists are updated to a later state. Roll-ups and the search index are updated too, so
the store can be used after the first slice. **Invariant:** a row is only written if the rows that its key
refers to exist (the commit of a body or event, the parent of a list, the list of an item); if the source was
being written to, the next export contains the missing ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Batch, Text
from treering.core.content import KIND_NUMBERS, KINDS, Address, Content, pack_body, seal, unpack_body, unseal
from treering.core.digests import event_form, ref_form
from treering.core.records import (
    MAX_LIST_DEPTH,
    BodyRow,
    EventRow,
    ItemRow,
    ListInfo,
    ListRow,
    RefRow,
    Slice,
    TextRow,
)
from treering.core.rollups import deltas
from treering.engines.sql import read
from treering.engines.sql.commit.decide import invalidate_caches
from treering.engines.sql.commit.write import (
    INSERT_COMMIT,
    Salts,
    commit_of,
    commit_row,
    encode_batch,
)
from treering.engines.sql.objects import PackGone
from treering.engines.sql.read import (
    body_part,
    check_body,
    is_item_block,
    positions_in_item_blocks,
    unpack_item_block,
)
from treering.engines.sql.rollups import add_to_rollups
from treering.engines.sql.rows import (
    COMMIT_COLUMNS,
    EVENT_COLUMNS,
    ITEM_POSITION_MASK,
    LISTING_COLUMNS,
    RECORD_SELECT,
    REF_SELECT,
    RUN,
    body_checksum,
    body_key,
    event_row,
    item_checksum,
    item_key,
    join_links,
    list_checksum,
    listing_of,
    listing_row,
    record_of,
    ref_checksum,
    ref_of,
    run_rows,
)
from treering.engines.sql.session import rows_in_chunks
from treering.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.records import CommitRow, Record
    from treering.engines.sql.objects import Located, Objects
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Database, Dialect, Row, Session


_BODY: Final = (
    "INSERT INTO body (space, key, scope, frame, salt, checksum) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_EVENT: Final = (
    f"INSERT INTO event ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join('?' * len(EVENT_COLUMNS))}) "
    "ON CONFLICT DO NOTHING"
)
_LIST: Final = (
    "INSERT INTO list (space, no, id, scope, parent, start, length, depth, seq, salt, checksum) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ITEM: Final = (
    "INSERT INTO item (space, key, kind, frame, address, checksum) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_REF_STATE: Final = (
    "version", "value", "links", "seq", "changed_at_us", *LISTING_COLUMNS, "salt", "checksum"
)  # fmt: skip
_REF: Final = (
    f"INSERT INTO ref (space, name, scope, {', '.join(_REF_STATE)}) "
    f"VALUES ({', '.join('?' * (3 + len(_REF_STATE)))}) "
    "ON CONFLICT (space, name) DO UPDATE SET scope = excluded.scope, "
    + ", ".join(f"{name} = excluded.{name}" for name in _REF_STATE)
    + " WHERE ref.version < excluded.version "
    "OR (ref.version = excluded.version AND ref.seq < excluded.seq)"
)
_TEXT: Final = (
    "SELECT t.name, t.namespace, s.name, t.source FROM collection c "
    "JOIN text t ON t.space = c.space AND t.collection = c.no "
    "JOIN scope s ON s.space = t.space AND s.no = t.scope WHERE c.space = ? AND c.name = ? AND t.name IN (@)"
)


def load(database: Database, objects: Objects, texts: TextIndex, space: int, part: Slice) -> None:
    """Load a slice; loading it twice changes nothing."""
    if part.objects:
        objects.stage(database, space, part.objects)
    # Compress before taking the lock.
    bodies = [(row, seal(pack_body(row.slots))) for row in part.bodies]
    items = [(row, None if isinstance(row.item, str) else seal(row.item.data)) for row in part.items]
    with database.writing(space) as session:
        loading = _Loader(session, objects, texts, space, database.dialect)
        loading.scopes(part)
        loading.commits(part.commits, part.last_seq)
        loading.bodies(bodies)
        loading.events(part.events)
        loading.lists(part.lists)
        loading.items(items)
        loading.texts(part.texts)
        loading.refs(part.refs)
        loading.counters(part)


class _Loader:
    """Loads one slice in one transaction."""

    def __init__(
        self, session: Session, objects: Objects, texts: TextIndex, space: int, dialect: Dialect
    ) -> None:
        self._session = session
        self._objects = objects
        self._texts = texts
        self._space = space
        self._dialect = dialect
        self._scopes: dict[str, int] = {}

    def scopes(self, part: Slice) -> None:
        names = {row.scope for row in part.bodies}
        names.update(row.record.event.scope for row in part.events)
        names.update(row.info.scope for row in part.lists)
        names.update(row.scope for row in part.texts)
        names.update(row.ref.scope for row in part.refs)
        self._scopes = self._existing_numbers("scope", "name", names)
        new = [name for name in names if name not in self._scopes]
        if new:
            numbers = dict(zip(new, self._session.numbers("scope", len(new)), strict=True))
            self._session.run_many(
                "INSERT INTO scope (space, no, name) VALUES (?, ?, ?)",
                [(self._space, no, name) for name, no in numbers.items()],
            )
            self._scopes |= numbers

    def commits(self, rows: Sequence[CommitRow], last_seq: int) -> None:
        known = self._existing_numbers("commits", "batch", [row.receipt.batch for row in rows])
        new = [row for row in rows if row.receipt.batch not in known]
        self._many(
            INSERT_COMMIT,
            [
                commit_row(self._space, no, row.receipt, None, row.leaves, row.digest)
                for no, row in zip(self._commit_numbers(new, last_seq), new, strict=True)
            ],
        )

    def bodies(self, rows: Sequence[tuple[BodyRow, bytes]]) -> None:
        commits = self._existing_numbers("commits", "batch", [row.batch for row, _ in rows])
        self._many(
            _BODY,
            [
                (
                    self._space,
                    key := body_key(commits[row.batch], row.part),
                    self._scopes[row.scope],
                    frame,
                    row.salt,
                    body_checksum(self._space, key, row.scope, frame, row.salt),
                )
                for row, frame in rows
                if row.batch in commits
            ],
        )

    def events(self, events: Sequence[EventRow]) -> None:
        commits = self._existing_numbers("commits", "batch", [row.record.batch for row in events])
        there = self._seqs(row.record for row in events)
        new = {
            row.record.seq: row
            for row in events
            if row.record.batch in commits and row.record.seq not in there
        }
        rows = [
            event_row(
                record.event,
                space=self._space,
                scope=self._scopes[record.event.scope],
                seq=record.seq,
                commit_no=commits[record.batch],
                batch=record.batch,
                committed_at_us=record.committed_at_us,
                salt=row.salt,
                form=event_form(record.event),
                dictionary=self._session.dictionary,
            )
            for row in new.values()
            for record in [row.record]
        ]
        if not rows:
            return
        written = [row.record for row in new.values()]
        self._many(RUN, run_rows(self._space, (record.event.run for record in written)))
        if self._session.run_many(_EVENT, rows) != len(rows):
            inserted = self._seqs(written)
            written = [record for record in written if record.seq in inserted]
        add_to_rollups(self._session, self._space, deltas(record.event for record in written))

    def lists(self, rows: Sequence[ListRow]) -> None:
        named = [row.info.list for row in rows]
        numbers = self._existing_numbers(
            "list", "id", {*named, *(row.info.parent for row in rows if row.info.parent)}
        )
        grown: list[Any] = []
        fresh: list[Any] = []
        new = [row for row in rows if row.info.list not in numbers]
        given = dict(zip((row.info.list for row in new), self._numbers("list", len(new)), strict=True))
        for row in rows:
            info, salt, seq = row.info, row.salt, row.seq
            if info.parent is not None and info.parent not in numbers:
                continue
            parent = None if info.parent is None else numbers[info.parent]
            is_new = info.list in given
            no = numbers[info.list] = given[info.list] if is_new else numbers[info.list]
            place = (parent, info.start, info.length, info.depth, seq)
            check = list_checksum(self._space, no, info.list, info.scope, *place, salt)
            if is_new:
                scope = self._scopes[info.scope]
                fresh.append((self._space, no, info.list, scope, *place, salt, check))
            else:
                grown.append((info.length, seq, check, self._space, no, seq))
        self._many(
            "UPDATE list SET length = ?, seq = ?, checksum = ? WHERE space = ? AND no = ? AND seq < ?", grown
        )
        self._many(_LIST, fresh)

    def items(self, rows: Sequence[tuple[ItemRow, bytes | None]]) -> None:
        lists = self._existing_numbers("list", "id", [row.list for row, _ in rows])
        found = [
            self._item(item_key(lists[row.list], row.position), row.item, frame)
            for row, frame in rows
            if row.list in lists
        ]
        bound = positions_in_item_blocks(self._session, self._space, [row[1] for row in found])
        self._many(_ITEM, [row for row in found if row[1] not in bound] if bound else found)

    def _item(self, key: int, item: Content | Address, frame: bytes | None) -> tuple[Any, ...]:
        kind, address = (None, item) if isinstance(item, str) else (KIND_NUMBERS[item.kind], None)
        check = item_checksum(self._space, key, kind, frame, address)
        return (self._space, key, kind, frame, address, check)

    def texts(self, rows: Sequence[TextRow]) -> None:
        by_collection: dict[str, list[TextRow]] = {}
        for row in rows:
            by_collection.setdefault(row.collection, []).append(row)
        for collection, each in by_collection.items():
            there = {
                tuple(found)
                for found in rows_in_chunks(
                    self._session, _TEXT, (self._space, collection), [row.name for row in each]
                )
            }
            new = [row for row in each if (row.name, row.namespace, row.scope, row.source) not in there]
            self._index([row for row in new if self._exists(row)])

    def refs(self, rows: Sequence[RefRow]) -> None:
        self._many(_REF, [self._ref(row) for row in rows])

    def _ref(self, row: RefRow) -> tuple[Any, ...]:
        ref = row.ref
        value = None if row.deleted else ref.value
        listed = listing_row(ref.listing, ref.changed_at_us)
        form = ref_form(ref.name, ref.scope, ref.version, value, ref.links, listing_of(listed))
        return (
            self._space,
            ref.name,
            self._scopes[ref.scope],
            ref.version,
            value,
            join_links(ref.links),
            ref.seq,
            ref.changed_at_us,
            *listed,
            row.salt,
            ref_checksum(ref.seq, ref.changed_at_us, row.salt, form),
        )

    def counters(self, part: Slice) -> None:
        invalidate_caches(self._session, self._space)
        for column, value in (("seq", part.last_seq), ("committed_at_us", part.committed_at_us)):
            self._session.run(
                f"UPDATE space SET {column} = ? WHERE no = ? AND {column} < ?", (value, self._space, value)
            )

    def _index(self, rows: Sequence[TextRow]) -> None:
        texts = tuple(
            Text(
                collection=row.collection,
                name=row.name,
                scope=row.scope,
                source=row.source,
                namespace=row.namespace,
                tokens=row.tokens,
            )
            for row in rows
        )
        if texts:
            salts = Salts([], [], [], [], [row.salt for row in rows])
            batch = encode_batch(Batch(id="load", space="load", texts=texts), salts)
            self._texts.put(self._session, self._space, self._scopes, batch)

    def _exists(self, row: TextRow) -> bool:
        try:
            read.get(self._session, self._space, self._objects, [row.source])
        except NotFound:
            return False
        return True

    def _seqs(self, records: Iterable[Record]) -> set[int]:
        found = rows_in_chunks(
            self._session,
            "SELECT seq FROM event WHERE space = ? AND seq IN (@)",
            (self._space,),
            [record.seq for record in records],
        )
        return {seq for (seq,) in found}

    def _existing_numbers(self, table: str, column: str, names: Iterable[str]) -> dict[str, int]:
        sql = f"SELECT {column}, no FROM {table} WHERE space = ? AND {column} IN (@)"
        return dict(rows_in_chunks(self._session, sql, (self._space,), list(dict.fromkeys(names))))  # pyright: ignore[reportArgumentType]

    def _commit_numbers(self, rows: Sequence[CommitRow], last_seq: int) -> list[int]:
        if self._dialect == "sqlite":
            return self._numbers("commits", len(rows))
        # A commit has the number of its first event, unless a commit that was here before has it.
        numbers = [row.receipt.first_seq for row in rows]
        sql = "SELECT no FROM commits WHERE space = ? AND no IN (@)"
        taken = {no for (no,) in rows_in_chunks(self._session, sql, (self._space,), numbers)}
        if not taken:
            return numbers
        ((seq,),) = self._session.rows(
            "UPDATE space SET seq = greatest(seq, ?) + ? WHERE no = ? RETURNING seq",
            (last_seq, len(taken), self._space),
        )
        others = iter(range(seq, seq - len(taken), -1))
        return [next(others) if no in taken else no for no in numbers]

    def _numbers(self, table: str, count: int) -> list[int]:
        return self._session.numbers(table, count) if count else []

    def _many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._session.run_many(sql, rows)


__all__ = ["export", "load"]

SLICE_ROWS: Final = 1000
SLICE_BYTES: Final = 8 * 1024 * 1024
"""A slice ends before a row that would exceed this size (frames count with their stored size)."""

Key = list[Any]
_ExportPage = tuple[dict[str, Any], Key | None]
"""Fields of a slice and the last key; without a key, the section has no more rows."""


def export(
    database: Database, objects: Objects, space: int, space_name: str, after: str | None = None
) -> Iterator[Slice]:
    """Yield everything in a space after a position, in a loadable order."""
    del space_name  # slices have no name: they can be loaded under any
    return _Export(database, objects, space).slices(*_parse(after))


class _Export:
    def __init__(self, database: Database, objects: Objects, space: int) -> None:
        self._database = database
        self._objects = objects
        self._space = space

    def slices(self, section: str, key: Key) -> Iterator[Slice]:
        names = [*_SECTIONS, _END]
        for name in names[names.index(section) : -1]:
            at: Key | None = key if name == section else []
            while at is not None:
                part, at = self._slice(name, at)
                if part is not None:
                    yield part

    def _slice(self, section: str, key: Key) -> tuple[Slice | None, Key | None]:
        try:
            return self._read_slice(section, key)
        except PackGone:  # objects were moved to another pack since they were located
            return self._read_slice(section, key)

    def _read_slice(self, section: str, key: Key) -> tuple[Slice | None, Key | None]:
        with self._database.reading() as session:
            ((seq, committed_at_us),) = session.rows(
                "SELECT seq, committed_at_us FROM space WHERE no = ?", (self._space,)
            )
            fields, behind = _SECTIONS[section](self, session, key)
        located: Located | None = fields.pop("located", None)
        if located is not None:
            found = self._objects.read(located)
            fields["objects"] = tuple(found[name] for name in sorted(found))
        if not any(fields.values()):
            return None, behind
        position = (section, behind) if behind is not None else (_following(section), _FIRST)
        part = Slice(
            position=msgspec.json.encode(position).decode(),
            last_seq=seq,
            committed_at_us=committed_at_us,
            **fields,
        )
        return part, behind

    def inline_objects(self, session: Session, key: Key) -> _ExportPage:
        rows = session.rows(
            "SELECT name, size FROM object WHERE space = ? AND name > ? AND frame IS NOT NULL "
            "ORDER BY name LIMIT ?",
            (self._space, bytes.fromhex(key[0]) if key else b"", SLICE_ROWS),
        )
        page = _cut(rows, size=1)
        names = [bytes(name).hex() for name, _ in page]
        fields = {"located": self._objects.locate(session, self._space, names)} if names else {}
        return fields, _behind(rows, page, lambda row: [bytes(row[0]).hex()])

    def packed_objects(self, session: Session, key: Key) -> _ExportPage:
        """Read pack by pack in file order, so that each frame is decompressed for one slice only."""
        pack, *place, name = key or (0, 0, 0, "")
        rows = session.rows(
            'SELECT name, size, "offset", inner_offset FROM object WHERE space = ? AND pack = ? '
            'AND ("offset", inner_offset, name) > (?, ?, ?) ORDER BY "offset", inner_offset, name LIMIT ?',
            (self._space, pack, *place, bytes.fromhex(name), SLICE_ROWS),
        )
        if not rows:
            following = session.rows(
                "SELECT no FROM pack WHERE space = ? AND no > ? ORDER BY no LIMIT 1", (self._space, pack)
            )
            return {}, [following[0][0], 0, 0, ""] if following else None
        page = _cut(rows, size=1)
        names = [bytes(row[0]).hex() for row in page]
        located = self._objects.locate(session, self._space, names)
        return {"located": located}, [pack, *page[-1][2:], names[-1]]

    def commits(self, session: Session, key: Key) -> _ExportPage:
        rows = session.rows(
            f"SELECT {', '.join(COMMIT_COLUMNS)} FROM commits "
            "WHERE space = ? AND batch > ? ORDER BY batch LIMIT ?",
            (self._space, key[0] if key else "", SLICE_ROWS),
        )
        commits = tuple(map(commit_of, rows))
        return {"commits": commits}, _behind(rows, rows, lambda row: [row[0]])

    def bodies(self, session: Session, key: Key) -> _ExportPage:
        batch, part = key or ("", -1)
        rows = session.rows(
            "SELECT c.batch, b.key, length(b.frame) FROM commits c "
            "JOIN body b ON b.space = c.space "
            "AND b.key > c.no * 65536 + CASE WHEN c.batch = ? THEN ? ELSE -1 END "
            "AND b.key < (c.no + 1) * 65536 WHERE c.space = ? AND c.batch >= ? "
            "ORDER BY c.batch, b.key LIMIT ?",
            (batch, part, self._space, batch, SLICE_ROWS),
        )
        page = _cut(rows, size=2)
        frames = {
            at: (scope, bytes(frame), salt, check)
            for at, scope, frame, salt, check in rows_in_chunks(
                session,
                "SELECT b.key, s.name, b.frame, b.salt, b.checksum FROM body b "
                "JOIN scope s ON s.space = b.space AND s.no = b.scope "
                "WHERE b.space = ? AND b.key IN (@)",
                (self._space,),
                [row[1] for row in page],
            )
        }
        bodies: list[BodyRow] = []
        for name, at, _ in page:
            scope, frame, salt, check = frames[at]
            number = body_part(at)[1]
            where = f"body {number} of commit {name!r}"
            check_body(self._space, at, scope, frame, salt, check, where=where)
            slots = tuple(unpack_body(unseal(frame, where), where))
            bodies.append(BodyRow(batch=name, part=number, scope=scope, slots=slots, salt=salt))
        return {"bodies": tuple(bodies)}, _behind(rows, page, lambda row: [row[0], body_part(row[1])[1]])

    def events(self, session: Session, key: Key) -> _ExportPage:
        after = key[0] if key else 0
        sizes = session.rows(
            "SELECT seq, length(data) FROM event WHERE space = ? AND seq > ? ORDER BY seq LIMIT ?",
            (self._space, after, SLICE_ROWS),
        )
        page = _cut(sizes, size=1)
        rows = (
            session.rows(
                f"{RECORD_SELECT} WHERE e.space = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq",
                (self._space, after, page[-1][0]),
            )
            if page
            else []
        )
        found = [EventRow(record=record_of(row, session.dictionary), salt=row[-2]) for row in rows]
        return {"events": tuple(found)}, _behind(sizes, page, lambda row: [row[0]])

    def lists(self, session: Session, key: Key) -> _ExportPage:
        """Sort by depth, so that parents come before their children."""
        depth, after = key or (0, "")
        rows = session.rows(
            "SELECT l.id, s.name, p.id, l.start, l.length, l.depth, l.seq, l.salt FROM list l "
            "JOIN scope s ON s.space = l.space AND s.no = l.scope "
            "LEFT JOIN list p ON p.space = l.space AND p.no = l.parent "
            "WHERE l.space = ? AND l.depth = ? AND l.id > ? ORDER BY l.id LIMIT ?",
            (self._space, depth, after, SLICE_ROWS),
        )
        found = tuple(
            ListRow(
                info=ListInfo(
                    list=row[0], scope=row[1], parent=row[2], start=row[3], length=row[4], depth=row[5]
                ),
                seq=row[6],
                salt=row[7],
            )
            for row in rows
        )
        behind = _behind(rows, rows, lambda row: [depth, row[0]])
        if behind is None and depth <= MAX_LIST_DEPTH:
            behind = [depth + 1, ""]
        return {"lists": found}, behind

    def items(self, session: Session, key: Key) -> _ExportPage:
        list_id, position = key or ("", -1)
        rows = session.rows(
            "SELECT l.id, i.key, i.kind, i.address, length(i.frame) "
            "FROM list l "
            "JOIN item i ON i.space = l.space "
            "AND i.key > l.no * 4294967296 + CASE WHEN l.id = ? THEN ? ELSE -1 END "
            "AND i.key < (l.no + 1) * 4294967296 WHERE l.space = ? AND l.id >= ? "
            "ORDER BY l.id, i.key LIMIT ?",
            (list_id, position, self._space, list_id, SLICE_ROWS),
        )
        page = _cut(rows, size=4)
        frames = {
            at: bytes(frame)
            for at, frame in rows_in_chunks(
                session,
                "SELECT key, frame FROM item WHERE space = ? AND key IN (@)",
                (self._space,),
                [row[1] for row in page if row[3] is None],
            )
        }
        items: list[ItemRow] = []
        for name, at, kind, address, _ in page:
            here = at & ITEM_POSITION_MASK
            where = f"item {here} of list {name!r}"
            found: Sequence[Content | Address]
            if address is not None:
                found = (Address(address),)
            elif is_item_block(kind):
                found = unpack_item_block(kind, frames[at], where)
            else:
                found = (Content(KINDS[int(kind)], unseal(frames[at], where)),)
            items += [ItemRow(list=name, position=at, item=item) for at, item in enumerate(found, here)]
        return {"items": tuple(items)}, _behind(rows, page, lambda row: [row[0], row[1] & ITEM_POSITION_MASK])

    def texts(self, session: Session, key: Key) -> _ExportPage:
        collection, after = key or ("", "")
        rows = session.rows(
            "SELECT c.name, c.tokens, t.name, t.namespace, s.name, t.source, t.salt FROM collection c "
            "JOIN text t ON t.space = c.space AND t.collection = c.no "
            "AND t.name > CASE WHEN c.name = ? THEN ? ELSE '' END "
            "JOIN scope s ON s.space = t.space AND s.no = t.scope WHERE c.space = ? AND c.name >= ? "
            "ORDER BY c.name, t.name LIMIT ?",
            (collection, after, self._space, collection, SLICE_ROWS),
        )
        found = tuple(
            TextRow(
                collection=row[0],
                tokens=row[1],
                name=row[2],
                namespace=row[3],
                scope=row[4],
                source=Address(row[5]),
                salt=row[6],
            )
            for row in rows
        )
        return {"texts": found}, _behind(rows, rows, lambda row: [row[0], row[2]])

    def refs(self, session: Session, key: Key) -> _ExportPage:
        after = key[0] if key else ""
        sizes = session.rows(
            "SELECT name, length(value) FROM ref WHERE space = ? AND name > ? ORDER BY name LIMIT ?",
            (self._space, after, SLICE_ROWS),
        )
        page = _cut(sizes, size=1)
        rows = (
            session.rows(
                f"{REF_SELECT} WHERE r.space = ? AND r.name > ? AND r.name <= ? ORDER BY r.name",
                (self._space, after, page[-1][0]),
            )
            if page
            else []
        )
        found = tuple(RefRow(ref=ref_of(row), deleted=row[3] is None, salt=row[-2]) for row in rows)
        return {"refs": found}, _behind(sizes, page, lambda row: [row[0]])


_SECTIONS: Final[dict[str, Callable[[_Export, Session, Key], _ExportPage]]] = {
    "objects": _Export.inline_objects,
    "packs": _Export.packed_objects,
    "commits": _Export.commits,
    "bodies": _Export.bodies,
    "events": _Export.events,
    "lists": _Export.lists,
    "items": _Export.items,
    "texts": _Export.texts,
    "refs": _Export.refs,
}
_END: Final = "end"
_FIRST: Final[Key] = []


def _following(section: str) -> str:
    names = [*_SECTIONS, _END]
    return names[names.index(section) + 1]


def _parse(position: str | None) -> tuple[str, Key]:
    if position is None:
        return next(iter(_SECTIONS)), []
    try:
        section, key = msgspec.json.decode(position, type=tuple[str, Key])
    except (msgspec.DecodeError, UnicodeDecodeError):
        section, key = "", []
    if section != _END and section not in _SECTIONS:
        raise InvalidInput(f"not a position of an export: {position[:80]!r}; pass the position of a slice")
    return section, key


def _cut(rows: Sequence[Row], *, size: int) -> list[Row]:
    """Return as many rows as fit into a slice; ``size`` is the column with their size."""
    total = 0
    for count, row in enumerate(rows):
        total += row[size] or 0
        if count and total > SLICE_BYTES:
            return list(rows[:count])
    return list(rows)


def _behind(rows: Sequence[Row], page: Sequence[Row], key: Callable[[Row], Key]) -> Key | None:
    """Return the last key of a page, or ``None`` if there are no more rows."""
    return key(page[-1]) if len(rows) == SLICE_ROWS or len(page) < len(rows) else None
