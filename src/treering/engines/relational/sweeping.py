"""Garbage collection: mark what is alive, condemn the rest that is old enough, mark again, delete.

There are no reference counts. A mark (`marking`) runs beside writers; what it has not reached and nobody may
be about to link any more is condemned; then it is deleted in slices (`removal`), each in a write transaction
that first lets the mark catch up with the commits made meanwhile. Grace protects writers that have stored
something and not linked it yet: an object is young from when it was last staged, a list from its last append,
a body from its commit; what is young also keeps what it leads to. **Invariant:** at every moment,
every address that can be reached resolves; a commit that comes too late for a condemned object is told so and
stages it again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from treering.core.content import KIND_NUMBERS
from treering.core.failpoints import declare, hit
from treering.core.records import Swept
from treering.engines.keys import BODY_PART_BITS
from treering.engines.relational.marking import Mark
from treering.engines.relational.removal import Removal, drop_unused_scopes
from treering.engines.relational.scratch import Scratch
from treering.engines.relational.session import in_chunks
from treering.engines.relational.staging import ORPHAN_SECONDS
from treering.engines.relational.walking import COMMITS, PAGE, Walk
from treering.engines.relational.writing import STAGE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Generator

    from treering.engines.relational.objects import Objects
    from treering.engines.relational.session import Database, Session

MARKED: Final = declare("gc.marked", "everything alive is marked, nothing is deleted")
BEFORE_DELETE: Final = declare(
    "gc.before_delete", "a slice of garbage is about to be deleted, nothing of it is"
)
AFTER_DELETE: Final = declare(
    "gc.after_delete", "a slice of garbage is deleted and committed, others are not"
)

_TRIES: Final = 4
_NEAR: Final = 200
"""A mark that is this few sequence numbers behind catches up inside the write transaction."""

_TREE: Final = KIND_NUMBERS["tree"]


def sweep(
    database: Database, objects: Objects, space: int, *, dry_run: bool = False, grace_seconds: float = 3600.0
) -> Swept:
    """Remove what nothing alive leads to, beside running writers; a dry run only says what would go."""
    with Scratch() as scratch:
        return _Sweep(database, objects, space, scratch, grace_seconds).run(dry_run=dry_run)


class _Sweep:
    def __init__(
        self, database: Database, objects: Objects, space: int, scratch: Scratch, grace_seconds: float
    ) -> None:
        self._database = database
        self._objects = objects
        self._space = space
        self._grace_seconds = grace_seconds
        self._walk = Walk(database, objects, space, scratch)
        # Commits note the addresses of items, not the sources of texts and the trees inside of items (yet).
        self._mark = Mark(database, space, lambda _what, _scope, _key: self._walk, precise=False)
        self._mark.begin()
        newest_us = max(self._mark.now_us, self._mark.committed_at_us)
        self._horizon_us = newest_us - round(grace_seconds * 1_000_000)
        self._before_seq = 0
        self._object_count = 0
        self._removal = Removal(database, objects, space, scratch, self._walk, before_us=self._horizon_us)

    def run(self, *, dry_run: bool) -> Swept:
        self._mark.everything()
        self._condemn_bodies()
        self._condemn_lists()
        self._condemn_objects()
        hit(MARKED)
        if not dry_run:
            self._removal.run(self._slice, before_seq=self._before_seq)
            drop_unused_scopes(self._database, self._space, self._slice)
        tally = self._removal.outlook if dry_run else self._removal.tally
        packs = self._tend_packs(dry_run=dry_run)
        if not dry_run and tally.objects + tally.bodies + tally.lists:
            self._database.tidy(secure=False)
        return Swept(
            objects=tally.objects,
            bodies=tally.bodies,
            lists=tally.lists,
            packs=packs,
            bytes=tally.bytes,
            kept_objects=self._object_count - tally.objects,
            dry_run=dry_run,
        )

    @contextmanager
    def _slice(self) -> Generator[Session]:
        """A write transaction in which the mark has caught up. Most of that happens before it."""
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

    # Condemning
    def _condemn_bodies(self) -> None:
        """Bodies that were not reached; those of young commits are roots instead.

        On the way it shows how far the old commits go.
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
                    f"SELECT b.key, b.scope FROM commits c JOIN body b ON b.key >= c.no * {part_size} "
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

    def _condemn_lists(self) -> None:
        """Lists that were not reached; young ones are roots instead."""
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT id, no FROM list WHERE space = ? AND id > ? ORDER BY id LIMIT ?",
                    (self._space, after, PAGE),
                )
                marked = self._walk.lists.among(no for _, no in rows)
                unmarked = [no for _, no in rows if no not in marked]
                sql = "SELECT no, scope, seq FROM list WHERE no IN (@)"
                young: dict[int, int] = {}
                old: list[int] = []
                for no, scope, seq in in_chunks(session, sql, (), unmarked):
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

    def _condemn_objects(self) -> None:
        """Objects that were not reached; young trees are roots instead. Most names are read off the index."""
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
                    in_chunks(
                        session,
                        "SELECT name, kind, size, stored_at_us, staged_until_us, length(frame), pack, length "
                        "FROM object WHERE space = ? AND name IN (@)",
                        (self._space,),
                        [name for name in names if name not in marked],
                    )
                )
                young = {bytes(row[0]): 0 for row in rows if self._is_young(row) and row[1] == _TREE}
                self._walk.enter_objects(session, young)
                self._removal.objects(
                    (bytes(name), kind == _TREE, inline or min(size, packed or 0), pack)
                    for name, kind, size, _, _, inline, pack, packed in (
                        row for row in rows if not self._is_young(row)
                    )
                )
            self._walk.drain()
            self._object_count += len(names)
            if len(names) < PAGE:
                return
            after = names[-1]

    def _is_young(self, row: tuple[Any, ...]) -> bool:
        stored_at_us, staged_until_us = row[3], row[4]
        return max(stored_at_us, staged_until_us - STAGE_SECONDS * 1_000_000) > self._horizon_us

    # Packs
    def _tend_packs(self, *, dry_run: bool) -> int:
        """Delete packs that hold nothing any more, write those anew that are more than half dead."""
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
            self._database, older_than_seconds=max(self._grace_seconds, ORPHAN_SECONDS)
        )
        if not dry_run:
            self._objects.delete_packs(self._database, self._space)
            self._objects.delete_orphans(orphans)
        return count + len(orphans)

    def _live_bytes(self, pack: int, *, dry_run: bool) -> int:
        """What a pack would about take without its dead objects; a frame may hold several."""
        with self._database.reading() as session:
            rows = session.rows('SELECT name, size, "offset", length FROM object WHERE pack = ?', (pack,))
        names = [bytes(row[0]) for row in rows]
        dead = self._removal.is_condemned(names) if dry_run else set[bytes]()
        frames: dict[int, list[int]] = {}
        for name, (_, size, offset, length) in zip(names, rows, strict=True):
            if name not in dead:
                frame = frames.setdefault(offset, [length, 0])
                frame[1] += size
        return sum(min(length, raw) or 1 for length, raw in frames.values())
