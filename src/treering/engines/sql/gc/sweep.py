"""Garbage collection: mark what is reachable, list the rest for deletion, catch up, delete.

There are no reference counts. A mark (`gc.mark`) runs alongside writers. What it did not reach, and no writer
may be about to link, is added to a `DeletionLog`, and then deleted in slices: each slice is a write
transaction in which the mark first catches up with commits made meanwhile. A grace period protects data that
writers have stored but not linked yet: the age of an object counts from when it was last staged, of a list
from its last append, of a body from its commit; recent data also keeps what it links to. **Invariant:** every
reachable address resolves at any moment; a commit that refers to a deleted object fails with `MissingObjects`
and stages it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.content import KIND_NUMBERS
from treering.core.failpoints import declare, hit
from treering.core.records import SweepProgress, Swept
from treering.core.tree import links_of
from treering.engines.sql.commit.decide import invalidate_caches
from treering.engines.sql.commit.write import STAGE_SECONDS
from treering.engines.sql.gc.mark import COMMITS, PAGE, Mark, Walk
from treering.engines.sql.objects import ORPHAN_SECONDS
from treering.engines.sql.rows import BODY_PART_BITS, item_key, key_of_number
from treering.engines.sql.session import Session, rows_in_chunks
from treering.engines.sql.spill import SpillDatabase
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Generator

    from treering.core.content import Content
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.session import Database


Opener = Callable[[], AbstractContextManager[Session]]
"""Opens the transaction of a slice, in which the walk has caught up."""

SLICE: Final = 2000
"""Maximum number of rows deleted in one slice (a single longer list excepted)."""

_TREES: Final = 64
_WIDTHS: Final = {"dead_list": 4, "dead_body": 2, "dead_object": 3, "dead_tree": 4}
_STAGE_US: Final = STAGE_SECONDS * 1_000_000

_UNUSED_SCOPE: Final = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} x WHERE x.space = scope.space AND x.scope = scope.no)"
    for table in ("body", "event", "list", "ref", "text")
)


_UNUSED_RUN: Final = "NOT EXISTS (SELECT 1 FROM event x WHERE x.space = run.space AND x.run = run.no)"


class DeletionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted, or would be."""

    lists: int = 0
    bodies: int = 0
    objects: int = 0
    bytes: int = 0


class DeletionLog:
    """The data to delete. What ``walk`` has reached by the time of a slice is kept.

    Deletion may stop anywhere: lists are deleted before their parents, then bodies, then trees before their
    entries, then all other objects. What remains at any moment is therefore complete, and a commit that
    refers to a listed address between two slices either finds all of it or gets an error. **Invariant:** no
    slice leaves a dangling address.

    Objects stored after ``before_us`` are kept; one that was staged again is kept with everything that it
    links to. ``note_packs`` receives the packs of deleted objects, in the same transaction.
    """

    def __init__(
        self,
        database: Database,
        objects: Objects,
        space: int,
        spill: SpillDatabase,
        walk: Walk,
        *,
        before_us: int,
        note_packs: Callable[[Session, set[int]], None] | None = None,
    ) -> None:
        self._database = database
        self._store = objects
        self._space = space
        self._spill = spill
        self._walk = walk
        self._before_us = before_us
        self._before_seq = 0
        self._lists = self._bodies = self._objects = self._bytes = 0
        self._note_packs = note_packs
        for statement in (
            "CREATE TABLE dead_list (key INTEGER PRIMARY KEY, depth INTEGER, items INTEGER, bytes INTEGER)",
            "CREATE INDEX dead_list_depth ON dead_list (depth DESC, key)",
            "CREATE TABLE dead_body (key INTEGER PRIMARY KEY, bytes INTEGER)",
            "CREATE TABLE dead_object (key BLOB PRIMARY KEY, bytes INTEGER, pack INTEGER) WITHOUT ROWID",
            "CREATE TABLE dead_tree (key BLOB PRIMARY KEY, bytes INTEGER, pack INTEGER, waits INTEGER)",
            "CREATE INDEX dead_tree_waits ON dead_tree (waits)",
            "CREATE TABLE edge (parent BLOB, child BLOB, PRIMARY KEY (parent, child)) WITHOUT ROWID",
            "CREATE INDEX edge_child ON edge (child)",
        ):
            spill.rows(statement)

    def lists(self, session: Session, numbers: Sequence[int]) -> None:
        """Add lists."""
        sql = "SELECT no, depth, start, length FROM list WHERE space = ? AND no IN (@)"
        for no, depth, start, length in rows_in_chunks(session, sql, (self._space,), numbers):
            ((size,),) = session.rows(
                "SELECT coalesce(sum(length(frame)), 0) FROM item WHERE space = ? AND key >= ? AND key < ?",
                (self._space, *_items(no)),
            )
            self._put("dead_list", [(no, depth, length - start, int(size))])

    def bodies(self, session: Session, keys: Sequence[int]) -> None:
        """Add bodies."""
        sql = "SELECT key, length(frame) FROM body WHERE space = ? AND key IN (@)"
        rows = rows_in_chunks(session, sql, (self._space,), keys)
        self._put("dead_body", rows)

    def objects(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add objects: name, whether it is a tree, stored bytes, pack."""
        trees: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        for name, is_tree, size, pack in rows:
            if is_tree:
                trees.append((name, size, pack, 0))
            else:
                others.append((name, size, pack))
        self._put("dead_tree", trees)
        self._put("dead_object", others)

    def listed_objects(self, names: Sequence[bytes]) -> set[bytes]:
        """Return those of the objects that are listed and not reached by the walk."""
        found: set[bytes] = set()
        for table in ("dead_object", "dead_tree"):
            for start in range(0, len(names), SLICE):
                marks = ",".join("?" * len(names[start : start + SLICE]))
                rows = self._spill.rows(
                    f"SELECT key FROM {table} d WHERE key IN ({marks}) AND {_is_marked('object')}",
                    names[start : start + SLICE],
                )
                found.update(key for (key,) in rows)
        return found

    @property
    def counts(self) -> DeletionCounts:
        """What was deleted so far."""
        return DeletionCounts(
            lists=self._lists, bodies=self._bodies, objects=self._objects, bytes=self._bytes
        )

    @property
    def planned_counts(self) -> DeletionCounts:
        """What would be deleted now."""
        lists, size = self._sum("dead_list", "list")
        bodies, more = self._sum("dead_body", "body")
        objects, packed = self._sum("dead_object", "object")
        trees, rest = self._sum("dead_tree", "object")
        return DeletionCounts(
            lists=lists, bodies=bodies, objects=objects + trees, bytes=size + more + packed + rest
        )

    def run(self, opened: Opener, *, before_seq: int, in_slices: bool = True) -> None:
        """Delete everything that is listed and was not reached by the walk.

        Lists that have grown beyond ``before_seq`` are kept, with everything that they link to. Without
        slices there is a single transaction, and the order of trees does not matter.
        """
        self._before_seq = before_seq
        self._keep_marked()
        while self._some_lists(opened):
            pass
        while self._some_bodies(opened):
            pass
        if in_slices:
            self._order_trees()
        while self._some_objects(opened, "dead_tree", "AND waits = 0"):
            pass
        while self._some_objects(opened, "dead_object", ""):
            pass

    def _some_lists(self, opened: Opener) -> bool:
        with opened() as session:
            rows = self._spill.rows(
                f"SELECT key, items, bytes FROM dead_list d WHERE {_is_marked('list')} "
                "ORDER BY depth DESC, key LIMIT ?",
                (SLICE,),
            )
            rows = _first(rows, SLICE)
            numbers = [row[0] for row in rows]
            grown = rows_in_chunks(
                session,
                "SELECT no, scope FROM list WHERE space = ? AND seq > ? AND no IN (@)",
                (self._space, self._before_seq),
                numbers,
            )
            if younger := dict(grown):
                self._walk.enter_lists(younger)
                self._walk.drain(session)
                return True
            invalidate_caches(session, self._space)
            session.run_many(
                "DELETE FROM item WHERE space = ? AND key >= ? AND key < ?",
                [(self._space, *_items(no)) for no in numbers],
            )
            sql = "DELETE FROM list WHERE space = ? AND no IN (@) RETURNING no"
            gone = {no for (no,) in rows_in_chunks(session, sql, (self._space,), numbers)}
        self._forget("dead_list", numbers)
        self._lists += len(gone)
        self._bytes += sum(size for no, _, size in rows if no in gone)
        return bool(rows)

    def _some_bodies(self, opened: Opener) -> bool:
        with opened() as session:
            sizes = dict(
                self._spill.rows(
                    f"SELECT key, bytes FROM dead_body d WHERE {_is_marked('body')} ORDER BY key LIMIT ?",
                    (SLICE,),
                )
            )
            invalidate_caches(session, self._space)
            sql = "DELETE FROM body WHERE space = ? AND key IN (@) RETURNING key"
            gone = {key for (key,) in rows_in_chunks(session, sql, (self._space,), list(sizes))}
        self._forget("dead_body", sizes)
        self._bodies += len(gone)
        self._bytes += sum(sizes[key] for key in gone)
        return bool(sizes)

    def _some_objects(self, opened: Opener, table: str, condition: str) -> bool:
        with opened() as session:
            rows = self._spill.rows(
                f"SELECT key, bytes, pack FROM {table} d WHERE {_is_marked('object')} {condition} LIMIT ?",
                (SLICE,),
            )
            invalidate_caches(session, self._space)
            sql = (
                "DELETE FROM object WHERE space = ? AND stored_at_us <= ? AND staged_until_us <= ? "
                "AND name IN (@) RETURNING name"
            )
            age = (self._space, self._before_us, self._before_us + _STAGE_US)
            gone = {bytes(name) for (name,) in rows_in_chunks(session, sql, age, [row[0] for row in rows])}
            packs = {pack for name, _, pack in rows if name in gone and pack is not None}
            if packs and self._note_packs is not None:
                self._note_packs(session, packs)
            wanted = {name: 0 for name, _, _ in rows if name not in gone}
            if wanted:
                self._walk.enter_objects(session, wanted)
                self._walk.drain(session)
        removed = [row for row in rows if row[0] in gone]
        self._forget(table, [row[0] for row in rows])
        if table == "dead_tree":
            self._spill.many(
                "UPDATE dead_tree SET waits = waits - 1 "
                "WHERE key IN (SELECT child FROM edge WHERE parent = ?)",
                [(name,) for name in gone],
            )
        self._objects += len(removed)
        self._bytes += sum(size for _, size, _ in removed)
        return bool(rows)

    def _order_trees(self) -> None:
        """Count for each listed tree how many listed trees name it: it is deleted after those."""
        after = b""
        while names := [
            key
            for (key,) in self._spill.rows(
                "SELECT key FROM dead_tree WHERE key > ? ORDER BY key LIMIT ?", (after, _TREES)
            )
        ]:
            after = names[-1]
            for name, content in self._readable([name.hex() for name in names]).items():
                parent = bytes.fromhex(name)
                self._spill.many(
                    "INSERT OR IGNORE INTO edge SELECT ?, key FROM dead_tree WHERE key = ?",
                    [(parent, bytes.fromhex(child)) for child in links_of(content)],
                )
        self._spill.rows("UPDATE dead_tree SET waits = (SELECT count(*) FROM edge WHERE child = key)")

    def _readable(self, names: list[str]) -> dict[str, Content]:
        """Return the readable trees. A damaged one that is to be deleted has no known links."""
        try:
            found = self._store.load(self._database, self._space, names)
            for content in found.values():
                links_of(content)
            return found
        except Corrupt:
            if len(names) == 1:
                return {}
            return {name: content for each in names for name, content in self._readable([each]).items()}

    def _put(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        marks = ",".join("?" * _WIDTHS[table])
        self._spill.many(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)

    def _keep_marked(self) -> None:
        """Remove entries that were reached since they were added, before deleting the rest."""
        for table, seen in (("list", "list"), ("body", "body"), ("object", "object"), ("tree", "object")):
            self._spill.rows(f"DELETE FROM dead_{table} WHERE key IN (SELECT key FROM {seen})")

    def _forget(self, table: str, keys: Iterable[Any]) -> None:
        self._spill.many(f"DELETE FROM {table} WHERE key = ?", [(key,) for key in keys])

    def _sum(self, table: str, seen: str) -> tuple[int, int]:
        sql = f"SELECT count(*), coalesce(sum(bytes), 0) FROM {table} d WHERE {_is_marked(seen)}"
        ((count, size),) = self._spill.rows(sql)
        return count, size


def drop_unused_runs(database: Database, space: int, opened: Opener) -> None:
    """Delete the names of runs that no row of the journal refers to, and no total."""
    after = -(1 << 63)
    while True:
        with database.reading() as session:
            rows = session.rows(
                f"SELECT no, {_UNUSED_RUN} FROM run WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                (space, after, SLICE),
            )
            numbers = {key_of_number(no): no for no, is_unused in rows if is_unused}
            # The events of archived runs are elsewhere, but their totals are here.
            sql = "SELECT DISTINCT key FROM rollup WHERE space = ? AND grain = 'run' AND key IN (@)"
            for (key,) in rows_in_chunks(session, sql, (space,), list(numbers)):
                numbers.pop(key, None)
        unused = [(space, no) for no in numbers.values()]
        if unused:
            with opened() as session:
                session.run_many(f"DELETE FROM run WHERE space = ? AND no = ? AND {_UNUSED_RUN}", unused)
        if len(rows) < SLICE:
            return
        after = rows[-1][0]


def drop_unused_scopes(database: Database, space: int, opened: Opener) -> None:
    """Delete scopes without rows."""
    after = ""
    while True:
        with database.reading() as session:
            rows = session.rows(
                "SELECT name FROM scope WHERE space = ? AND name > ? ORDER BY name LIMIT ?",
                (space, after, SLICE),
            )
            last = rows[-1][0] if rows else after
            sql = f"SELECT no FROM scope WHERE space = ? AND name > ? AND name <= ? AND {_UNUSED_SCOPE}"
            unused = [no for (no,) in session.rows(sql, (space, after, last))]
        if unused:
            with opened() as session:
                session.run_many(
                    f"DELETE FROM scope WHERE space = ? AND no = ? AND {_UNUSED_SCOPE}",
                    [(space, no) for no in unused],
                )
                invalidate_caches(session, space)
        if len(rows) < SLICE:
            return
        after = last


def _is_marked(seen: str) -> str:
    return f"NOT EXISTS (SELECT 1 FROM {seen} s WHERE s.key = d.key)"


def _items(no: int) -> tuple[int, int]:
    return item_key(no, 0), item_key(no + 1, 0)


def _first(rows: list[tuple[Any, ...]], items: int) -> list[tuple[Any, ...]]:
    """Return as many lists as have this many items in total, but at least one."""
    for count, row in enumerate(rows):
        items -= row[1] + 1
        if items < 0:
            return rows[: max(count, 1)]
    return rows


MARKED: Final = declare("gc.marked", "everything reachable is marked, nothing is deleted")
BEFORE_DELETE: Final = declare("gc.before_delete", "a slice of garbage is about to be deleted")
AFTER_DELETE: Final = declare(
    "gc.after_delete", "a slice of garbage is deleted and committed, others are not"
)

_TRIES: Final = 4
_NEAR: Final = 200
"""A mark that lags behind by at most this many sequence numbers catches up in the write transaction."""

_TREE: Final = KIND_NUMBERS["tree"]


def sweep(
    database: Database,
    objects: Objects,
    space: int,
    *,
    dry_run: bool = False,
    grace_seconds: float = 3600.0,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> Swept:
    """Delete everything unreachable, alongside running writers; a dry run only counts it."""
    with SpillDatabase() as spill:
        return _Sweep(database, objects, space, spill, grace_seconds, on_progress).run(dry_run=dry_run)


class _Sweep:
    def __init__(
        self,
        database: Database,
        objects: Objects,
        space: int,
        spill: SpillDatabase,
        grace_seconds: float,
        on_progress: Callable[[SweepProgress], None] | None,
    ) -> None:
        self._database = database
        self._objects = objects
        self._on_progress = on_progress
        self._planned: DeletionCounts | None = None
        self._space = space
        self._grace_seconds = grace_seconds
        self._walk = Walk(database, objects, space, spill)
        # Commits record the addresses of items, but not the sources of texts and the trees inside of items.
        self._mark = Mark(database, space, lambda _what, _scope, _key: self._walk, precise=False)
        self._mark.begin()
        newest_us = max(self._mark.now_us, self._mark.committed_at_us)
        self._horizon_us = newest_us - round(grace_seconds * 1_000_000)
        self._before_seq = 0
        self._object_count = 0
        self._removal = DeletionLog(database, objects, space, spill, self._walk, before_us=self._horizon_us)

    def run(self, *, dry_run: bool) -> Swept:
        for _ in self._mark.steps():
            if self._on_progress is not None:
                done, total = self._mark.read_seq, self._mark.seq
                self._on_progress(SweepProgress(phase="marking", done=min(done, total), total=total))
        self._find_unreachable_bodies()
        self._find_unreachable_lists()
        self._find_unreachable_objects()
        hit(MARKED)
        if not dry_run:
            if self._on_progress is not None:
                self._planned = self._removal.planned_counts
            self._removal.run(self._slice, before_seq=self._before_seq)
            drop_unused_scopes(self._database, self._space, self._slice)
        counts = self._removal.planned_counts if dry_run else self._removal.counts
        packs = self._clean_up_packs(dry_run=dry_run)
        if not dry_run and counts.objects + counts.bodies + counts.lists:
            self._database.reclaim_space(secure=False)
        return Swept(
            objects=counts.objects,
            bodies=counts.bodies,
            lists=counts.lists,
            packs=packs,
            bytes=counts.bytes,
            kept_objects=self._object_count - counts.objects,
            dry_run=dry_run,
        )

    @contextmanager
    def _slice(self) -> Generator[Session]:
        """Open a write transaction in which the mark has caught up; most catching up happens before it."""
        for tries_left in reversed(range(_TRIES)):
            self._mark.catch_up()
            with self._database.writing(self._space) as session:
                if tries_left and self._mark.behind(session) > _NEAR:
                    continue
                self._mark.catch_up(session)
                hit(BEFORE_DELETE)
                yield session
                break
        hit(AFTER_DELETE)
        self._report_deleted()

    def _report_deleted(self) -> None:
        if self._on_progress is None or self._planned is None:
            return
        done, planned = self._removal.counts, self._planned
        self._on_progress(
            SweepProgress(
                phase="deleting",
                done=done.objects + done.bodies + done.lists,
                total=planned.objects + planned.bodies + planned.lists,
                bytes=done.bytes,
                of_bytes=planned.bytes,
            )
        )

    def _find_unreachable_bodies(self) -> None:
        """List unreached bodies; those of recent commits are roots instead.

        Also determines up to which sequence number commits are old.
        """
        after = ""
        part_size = 1 << BODY_PART_BITS
        while True:
            with self._database.reading() as session:
                commits = session.rows(
                    "SELECT batch, no, last_seq, committed_at_us FROM commits "
                    "WHERE space = ? AND batch > ? ORDER BY batch LIMIT ?",
                    (self._space, after, COMMITS),
                )
                last = commits[-1][0] if commits else after
                bodies = session.rows(
                    "SELECT b.key, b.scope FROM commits c "
                    f"JOIN body b ON b.space = c.space AND b.key >= c.no * {part_size} "
                    f"AND b.key < (c.no + 1) * {part_size} "
                    "WHERE c.space = ? AND c.batch > ? AND c.batch <= ?",
                    (self._space, after, last),
                )
                old: set[int] = set()
                for _, no, last_seq, committed_at_us in commits:
                    if no <= self._mark.commit_no and committed_at_us <= self._horizon_us:
                        old.add(no)
                        self._before_seq = max(self._before_seq, last_seq)
                marked = self._walk.bodies.among(key for key, _ in bodies)
                unmarked = {key: scope for key, scope in bodies if key not in marked}
                self._removal.bodies(session, [key for key in unmarked if key >> BODY_PART_BITS in old])
                young = {key: scope for key, scope in unmarked.items() if key >> BODY_PART_BITS not in old}
                self._walk.enter_bodies(session, young)
            self._walk.drain()
            if len(commits) < COMMITS:
                return
            after = last

    def _find_unreachable_lists(self) -> None:
        """List unreached lists; recent ones are roots instead."""
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT id, no FROM list WHERE space = ? AND id > ? ORDER BY id LIMIT ?",
                    (self._space, after, PAGE),
                )
                marked = self._walk.lists.among(no for _, no in rows)
                unmarked = [no for _, no in rows if no not in marked]
                sql = "SELECT no, scope, seq FROM list WHERE space = ? AND no IN (@)"
                young: dict[int, int] = {}
                old: list[int] = []
                for no, scope, seq in rows_in_chunks(session, sql, (self._space,), unmarked):
                    if seq > self._before_seq:
                        young[no] = scope
                    else:
                        old.append(no)
                self._removal.lists(session, old)
            self._walk.enter_lists(young)
            self._walk.drain()
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _find_unreachable_objects(self) -> None:
        """List unreached objects; recent trees are roots instead. Most names are read from the index."""
        after = b""
        while True:
            with self._database.reading() as session:
                names = [
                    bytes(name)
                    for (name,) in session.rows(
                        "SELECT name FROM object WHERE space = ? AND name > ? ORDER BY name LIMIT ?",
                        (self._space, after, PAGE),
                    )
                ]
                marked = self._walk.objects.among(names)
                rows = list(
                    rows_in_chunks(
                        session,
                        "SELECT name, kind, size, stored_at_us, staged_until_us, length(frame), pack, length "
                        "FROM object WHERE space = ? AND name IN (@)",
                        (self._space,),
                        [name for name in names if name not in marked],
                    )
                )
                young = {bytes(row[0]): 0 for row in rows if self._is_recent(row) and row[1] == _TREE}
                self._walk.enter_objects(session, young)
                self._removal.objects(
                    (bytes(name), kind == _TREE, inline or min(size, packed or 0), pack)
                    for name, kind, size, _, _, inline, pack, packed in (
                        row for row in rows if not self._is_recent(row)
                    )
                )
            self._walk.drain()
            self._object_count += len(names)
            if len(names) < PAGE:
                return
            after = names[-1]

    def _is_recent(self, row: tuple[Any, ...]) -> bool:
        stored_at_us, staged_until_us = row[3], row[4]
        return max(stored_at_us, staged_until_us - STAGE_SECONDS * 1_000_000) > self._horizon_us

    def _clean_up_packs(self, *, dry_run: bool) -> int:
        """Delete empty packs, and rewrite those that are more than half garbage."""
        after, count = 0, 0
        while True:
            with self._database.reading() as session:
                packs = session.rows(
                    "SELECT no, size FROM pack WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, after, PAGE),
                )
            for no, size in packs:
                live_bytes = self._live_bytes(no, dry_run=dry_run)
                if live_bytes * 2 < size:
                    count += 1
                    if live_bytes and not dry_run:
                        self._objects.rewrite(self._database, self._space, no)
            if len(packs) < PAGE:
                break
            after = packs[-1][0]
        orphans = self._objects.orphans(
            self._database, self._space, older_than_seconds=max(self._grace_seconds, ORPHAN_SECONDS)
        )
        if not dry_run:
            self._objects.delete_packs(self._database, self._space)
            self._objects.delete_orphans(orphans)
        return count + len(orphans)

    def _live_bytes(self, pack: int, *, dry_run: bool) -> int:
        """Estimate the size of a pack without its garbage; a frame may hold several objects."""
        with self._database.reading() as session:
            sql = 'SELECT name, size, "offset", length FROM object WHERE space = ? AND pack = ?'
            rows = session.rows(sql, (self._space, pack))
        names = [bytes(row[0]) for row in rows]
        dead = self._removal.listed_objects(names) if dry_run else set[bytes]()
        frames: dict[int, list[int]] = {}
        for name, (_, size, offset, length) in zip(names, rows, strict=True):
            if name not in dead:
                frame = frames.setdefault(offset, [length, 0])
                frame[1] += size
        return sum(min(length, raw) or 1 for length, raw in frames.values())
