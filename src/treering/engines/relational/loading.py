"""Slices taken in: the writing half of a copy (`dumping` is the other).

Rows keep their sequence numbers, versions and times; only the internal numbers of commits, lists and
scopes are this store's own, so keys that are composed from them are composed anew. Everything is written
in a way that a second time changes nothing: what is there stays, a ref or a list gives way to a later
state of itself. Roll-ups and the search index are brought along for what was new, so the store can be
read from the first slice on. **Invariant:** a row is written only when what its key is made of (the commit
of a body or event, the parent of a list, the list of an item) is there; of a source that was being
written to, the rest comes with the next export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import Batch, Text
from treering.core.body import pack_body
from treering.core.content import KIND_NUMBERS
from treering.core.frame import seal
from treering.core.rollup import deltas
from treering.engines.keys import body_key, item_key
from treering.engines.relational import reading
from treering.engines.relational.current import pack_receipt
from treering.engines.relational.prepared import prepare
from treering.engines.relational.remembered import count_removal
from treering.engines.relational.rows import EVENT_COLUMNS, RUN, event_row, join_links, run_rows
from treering.engines.relational.session import in_chunks
from treering.engines.relational.sheaves import positions_bound
from treering.engines.relational.totals import add_to_rollups
from treering.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.dump import BodyRow, CommitRow, ItemRow, ListRow, RefRow, Slice, TextRow
    from treering.core.records import Record
    from treering.engines.relational.objects import Objects
    from treering.engines.relational.session import Database, Session
    from treering.engines.relational.texts import TextIndex

_COMMIT: Final = (
    "INSERT INTO commits (no, space, batch, first_seq, last_seq, committed_at_us, receipt) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_BODY: Final = "INSERT INTO body (key, scope, frame) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
_EVENT: Final = (
    f"INSERT INTO event ({', '.join(EVENT_COLUMNS)}) VALUES ({', '.join('?' * len(EVENT_COLUMNS))}) "
    "ON CONFLICT DO NOTHING"
)
_LIST: Final = (
    "INSERT INTO list (no, space, id, scope, parent, start, length, depth, seq) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ITEM: Final = "INSERT INTO item (key, kind, frame, address) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
_REF: Final = (
    "INSERT INTO ref (space, name, scope, version, value, links, seq, changed_at_us) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (space, name) DO UPDATE SET scope = excluded.scope, "
    "version = excluded.version, value = excluded.value, links = excluded.links, seq = excluded.seq, "
    "changed_at_us = excluded.changed_at_us WHERE ref.version < excluded.version "
    "OR (ref.version = excluded.version AND ref.seq < excluded.seq)"
)
_TEXT: Final = (
    "SELECT t.name, t.namespace, s.name, t.source FROM collection c JOIN text t ON t.collection = c.no "
    "JOIN scope s ON s.no = t.scope WHERE c.space = ? AND c.name = ? AND t.name IN (@)"
)


def load(database: Database, objects: Objects, texts: TextIndex, space: int, part: Slice) -> None:
    """Take a slice in; taking it in twice changes nothing."""
    if part.objects:
        objects.stage(database, space, part.objects)
    # Compressing needs no lock, so it is done before there is one.
    bodies = [(row, seal(pack_body(row.slots))) for row in part.bodies]
    items = [(row, None if isinstance(row.item, str) else seal(row.item.data)) for row in part.items]
    with database.writing(space) as session:
        loading = _Loading(session, objects, texts, space)
        loading.scopes(part)
        loading.commits(part.commits)
        loading.bodies(bodies)
        loading.records(part.records)
        loading.lists(part.lists)
        loading.items(items)
        loading.texts(part.texts)
        loading.refs(part.refs)
        loading.counters(part)


class _Loading:
    """One slice, in one transaction."""

    def __init__(self, session: Session, objects: Objects, texts: TextIndex, space: int) -> None:
        self._session = session
        self._objects = objects
        self._texts = texts
        self._space = space
        self._scopes: dict[str, int] = {}

    def scopes(self, part: Slice) -> None:
        names = {row.scope for row in part.bodies}
        names.update(row.event.scope for row in part.records)
        names.update(row.info.scope for row in part.lists)
        names.update(row.scope for row in part.texts)
        names.update(row.ref.scope for row in part.refs)
        self._scopes = self._known("scope", "name", names)
        new = [name for name in names if name not in self._scopes]
        if new:
            numbers = dict(zip(new, self._session.numbers("scope", len(new)), strict=True))
            self._session.many(
                "INSERT INTO scope (no, space, name) VALUES (?, ?, ?)",
                [(no, self._space, name) for name, no in numbers.items()],
            )
            self._scopes |= numbers

    def commits(self, rows: Sequence[CommitRow]) -> None:
        known = self._known("commits", "batch", [row.receipt.batch for row in rows])
        new = [row.receipt for row in rows if row.receipt.batch not in known]
        self._many(
            _COMMIT,
            [
                (
                    no,
                    self._space,
                    receipt.batch,
                    receipt.first_seq,
                    receipt.last_seq,
                    receipt.committed_at_us,
                    pack_receipt(receipt.versions, receipt.sums, receipt.new_events),
                )
                for no, receipt in zip(self._numbers("commits", len(new)), new, strict=True)
            ],
        )

    def bodies(self, rows: Sequence[tuple[BodyRow, bytes]]) -> None:
        commits = self._known("commits", "batch", [row.batch for row, _ in rows])
        self._many(
            _BODY,
            [
                (body_key(commits[row.batch], row.part), self._scopes[row.scope], frame)
                for row, frame in rows
                if row.batch in commits
            ],
        )

    def records(self, records: Sequence[Record]) -> None:
        commits = self._known("commits", "batch", [record.batch for record in records])
        there = self._seqs(records)
        new = {
            record.seq: record for record in records if record.batch in commits and record.seq not in there
        }
        rows = [
            event_row(
                record.event,
                space=self._space,
                scope=self._scopes[record.event.scope],
                seq=record.seq,
                commit_no=commits[record.batch],
                own_slots=f"s:{record.batch}:",
            )
            for record in new.values()
        ]
        if not rows:
            return
        self._many(RUN, run_rows(self._space, (record.event.run for record in new.values())))
        written = list(new.values())
        if self._session.many(_EVENT, rows) != len(rows):
            inserted = self._seqs(written)
            written = [record for record in written if record.seq in inserted]
        add_to_rollups(self._session, self._space, deltas(record.event for record in written))

    def lists(self, rows: Sequence[ListRow]) -> None:
        named = [row.info.list for row in rows]
        numbers = self._known("list", "id", {*named, *(row.info.parent for row in rows if row.info.parent)})
        grown = [
            (row.info.length, row.seq, numbers[row.info.list], row.seq)
            for row in rows
            if row.info.list in numbers
        ]
        self._many("UPDATE list SET length = ?, seq = ? WHERE no = ? AND seq < ?", grown)
        new = [row for row in rows if row.info.list not in numbers]
        fresh: list[Any] = []
        for row, no in zip(new, self._numbers("list", len(new)), strict=True):
            info = row.info
            if info.parent is not None and info.parent not in numbers:
                continue
            numbers[info.list] = no
            parent = None if info.parent is None else numbers[info.parent]
            scope = self._scopes[info.scope]
            fresh.append(
                (no, self._space, info.list, scope, parent, info.start, info.length, info.depth, row.seq)
            )
        self._many(_LIST, fresh)

    def items(self, rows: Sequence[tuple[ItemRow, bytes | None]]) -> None:
        lists = self._known("list", "id", [row.list for row, _ in rows])
        found = [
            (item_key(lists[row.list], row.position), None, None, row.item)
            if isinstance(row.item, str)
            else (item_key(lists[row.list], row.position), KIND_NUMBERS[row.item.kind], frame, None)
            for row, frame in rows
            if row.list in lists
        ]
        bound = positions_bound(self._session, [key for key, *_ in found])
        self._many(_ITEM, [row for row in found if row[0] not in bound] if bound else found)

    def texts(self, rows: Sequence[TextRow]) -> None:
        by_collection: dict[str, list[TextRow]] = {}
        for row in rows:
            by_collection.setdefault(row.collection, []).append(row)
        for collection, each in by_collection.items():
            there = {
                tuple(found)
                for found in in_chunks(
                    self._session, _TEXT, (self._space, collection), [row.name for row in each]
                )
            }
            new = [row for row in each if (row.name, row.namespace, row.scope, row.source) not in there]
            self._index(row for row in new if self._is_there(row))

    def refs(self, rows: Sequence[RefRow]) -> None:
        self._many(
            _REF,
            [
                (
                    self._space,
                    row.ref.name,
                    self._scopes[row.ref.scope],
                    row.ref.version,
                    None if row.deleted else row.ref.value,
                    join_links(row.ref.links),
                    row.ref.seq,
                    row.ref.changed_at_us,
                )
                for row in rows
            ],
        )

    def counters(self, part: Slice) -> None:
        count_removal(self._session, self._space)
        for column, value in (("seq", part.last_seq), ("committed_at_us", part.committed_at_us)):
            self._session.run(
                f"UPDATE space SET {column} = ? WHERE no = ? AND {column} < ?", (value, self._space, value)
            )

    def _index(self, rows: Iterable[TextRow]) -> None:
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
            batch = prepare(Batch(id="load", space="load", texts=texts))
            self._texts.put(self._session, self._space, self._scopes, batch)

    def _is_there(self, row: TextRow) -> bool:
        try:
            reading.get(self._session, self._space, self._objects, [row.source])
        except NotFound:
            return False
        return True

    def _seqs(self, records: Iterable[Record]) -> set[int]:
        found = in_chunks(
            self._session,
            "SELECT seq FROM event WHERE space = ? AND seq IN (@)",
            (self._space,),
            [record.seq for record in records],
        )
        return {seq for (seq,) in found}

    def _known(self, table: str, column: str, names: Iterable[str]) -> dict[str, int]:
        sql = f"SELECT {column}, no FROM {table} WHERE space = ? AND {column} IN (@)"
        return dict(in_chunks(self._session, sql, (self._space,), list(dict.fromkeys(names))))  # pyright: ignore[reportArgumentType]

    def _numbers(self, table: str, count: int) -> list[int]:
        return self._session.numbers(table, count) if count else []

    def _many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._session.many(sql, rows)
