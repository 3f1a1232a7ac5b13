"""Erasure: remove what a plan names, and the content reachable only from there.

One pass over all roots of a space feeds two walks: *erased* starts from the rows to erase, *alive* from
everything else (every list outside of the plan is alive: a writer may be about to link it). What only the
first walk reaches is deleted immediately, whatever its age; what both reach is kept and listed in the result,
with a scope that keeps it. A small plan is erased in one transaction, a large one in slices, links before
their targets. Then packs that lost an object are rewritten, and the storage is wiped. **Invariant:** no
address dangles at any moment, and an interrupted erasure is completed by running it again.

The phases, in call order: `ErasurePlan` resolves the plan to rows and finds who depends on them (lists that
branch off an erased one, and records of other scopes that link to one: such a scope is erased too with
``cascade``, or stops the erasure). `RowDeletion` deletes events, refs and texts, and everything derived from
them. A note in ``meta`` remembers an unfinished erasure. `erase` runs it all.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.content import KIND_NUMBERS, slot_address
from treering.core.digests import event_form, leaf
from treering.core.failpoints import declare, hit
from treering.core.query import forks_depend_on_it, ref_exists_again
from treering.core.records import Erased
from treering.core.rollups import MEASURES, RollupKey, deltas
from treering.engines.sql.commit.decide import invalidate_caches, unpack_receipt
from treering.engines.sql.commit.write import commit_of, commit_row, replace_commit
from treering.engines.sql.gc.mark import PAGE, Mark, Walk, slot_key
from treering.engines.sql.gc.sweep import SLICE, DeletionLog, drop_unused_runs, drop_unused_scopes
from treering.engines.sql.objects import ORPHAN_SECONDS
from treering.engines.sql.read import body_part
from treering.engines.sql.rollups import add_to_rollups, stored_key
from treering.engines.sql.rows import COMMIT_COLUMNS, RECORD_SELECT, read_record
from treering.engines.sql.session import rows_in_chunks
from treering.engines.sql.spill import SpillDatabase, SpillSet

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from treering.core.query import Erasure
    from treering.core.records import Record
    from treering.core.rollups import Measures, RollupKey
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Database, Row, Session


class ErasurePlan:
    """The rows that a plan erases. Large sets of them are spilled to disk."""

    def __init__(
        self,
        database: Database,
        space: int,
        plan: Erasure,
        extra_scopes: frozenset[int],
        spill: SpillDatabase,
    ) -> None:
        self._database = database
        self._space = space
        self._seqs = frozenset(plan.event_seqs)
        self._refs = frozenset(plan.refs)
        self.lists = SpillSet(spill, "planned_list", "number")
        self.bodies = SpillSet(spill, "planned_body", "number")
        with database.reading() as session:
            sql = "SELECT no FROM scope WHERE space = ? AND name IN (@)"
            named = {no for (no,) in rows_in_chunks(session, sql, (space,), list(plan.scopes))}
            sql = "SELECT no, scope FROM list WHERE space = ? AND id IN (@)"
            self._single_lists = dict(rows_in_chunks(session, sql, (space,), list(plan.lists)))
        self.scopes = named | extra_scopes
        self._last_lists: dict[int, int] = {}
        self._last_bodies: dict[int, int] = {}
        self.lists.add(self._single_lists)

    def takes(self, what: str, scope: int, key: Any) -> bool:
        """Whether a row is erased."""
        if scope in self.scopes:
            return True
        if what == "event":
            return key in self._seqs
        if what == "ref":
            return key in self._refs
        return what == "list" and key in self._single_lists

    def branched_off(self, session: Session) -> set[int]:
        """Return the scopes of remaining lists whose parents are erased."""
        found: set[int] = set()
        of_scopes = (
            "SELECT DISTINCT c.no, c.scope FROM list p JOIN list c ON c.space = p.space AND c.parent = p.no "
            "WHERE c.scope <> p.scope AND p.space = ? AND p.scope IN (@)"
        )
        of_lists = "SELECT no, scope FROM list WHERE space = ? AND parent IN (@)"
        for sql, values in ((of_scopes, self.scopes), (of_lists, self._single_lists)):
            children = rows_in_chunks(session, sql, (self._space,), list(values))
            found.update(scope for no, scope in children if not self.takes("list", scope, no))
        return found

    def gather(self, erased: Walk, session: Session | None = None) -> None:
        """Find the lists and bodies of the scopes, and start a walk from them.

        Called again, it finds those added since.
        """
        erased.enter_lists(self._single_lists)
        for scope in sorted(self.scopes):
            self._gather_lists(erased, scope, session)
            self._gather_bodies(erased, scope, session)
        erased.drain(session)

    def _gather_lists(self, erased: Walk, scope: int, session: Session | None) -> None:
        after = self._last_lists.get(scope, 0)
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT no FROM list WHERE space = ? AND scope = ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, scope, after, PAGE),
                )
            numbers = dict.fromkeys((no for (no,) in rows), scope)
            self.lists.add(numbers)
            erased.enter_lists(numbers)
            if rows:
                self._last_lists[scope] = after = rows[-1][0]
            if len(rows) < PAGE:
                return

    def _gather_bodies(self, erased: Walk, scope: int, session: Session | None) -> None:
        after = self._last_bodies.get(scope, 0)
        while True:
            with self._opened(session) as reading:
                rows = reading.rows(
                    "SELECT key FROM body WHERE space = ? AND scope = ? AND key > ? ORDER BY key LIMIT ?",
                    (self._space, scope, after, PAGE),
                )
                keys = dict.fromkeys((key for (key,) in rows), scope)
                self.bodies.add(keys)
                erased.enter_bodies(reading, keys)
            if rows:
                self._last_bodies[scope] = after = rows[-1][0]
            if len(rows) < PAGE:
                return

    def row_count(self, session: Session) -> int:
        """Estimate the number of rows to erase."""
        count = len(self._seqs) + len(self._refs)
        for table, size in (
            ("event", "count(*)"),
            ("ref", "count(*)"),
            ("text", "count(*)"),
            ("body", "count(*)"),
            ("list", "coalesce(sum(length - start), 0) + count(*)"),
        ):
            sql = f"SELECT {size} FROM {table} WHERE space = ? AND scope IN (@)"
            found = rows_in_chunks(session, sql, (self._space,), list(self.scopes))
            count += sum(int(number) for (number,) in found)
        sql = "SELECT coalesce(sum(length - start), 0) FROM list WHERE space = ? AND no IN (@)"
        found = rows_in_chunks(session, sql, (self._space,), list(self._single_lists))
        return count + sum(int(number) for (number,) in found)

    def _opened(self, session: Session | None) -> AbstractContextManager[Session]:
        return self._database.reading() if session is None else nullcontext(session)


_CELL: Final = " AND ".join(f"{name} = ?" for name in ("space", *RollupKey._fields))
_DROP_EMPTY: Final = (
    f"DELETE FROM rollup WHERE {_CELL} AND {' AND '.join(f'{name} = 0' for name in MEASURES)}"
)


class RowDeletion:
    """Deletes the rows of a plan from the journal, refs and texts, with everything that repeats them.

    An event is also counted in totals, which are reduced; an empty total is removed. The name of a
    ref is also in the receipts of commits that updated it; a receipt is kept, because it makes a repeated
    batch harmless, but without the name. A text is also in the search index. **Invariant:** after each
    transaction, totals equal a recount, and the index holds exactly the texts that have a row.
    """

    def __init__(
        self,
        database: Database,
        texts: TextIndex,
        space: int,
        *,
        plan: Erasure,
        planned: ErasurePlan,
        spill: SpillDatabase,
    ) -> None:
        self._database = database
        self._texts = texts
        self._space = space
        self._scopes = sorted(planned.scopes)
        self._seqs = sorted(set(plan.event_seqs))
        self._names = sorted(set(plan.refs))
        self._erased_names = SpillSet(spill, "erased_ref", "text")
        self._receipts = SpillSet(spill, "receipt", "number")
        self._cleaned = 0
        self.events = self.refs = self.texts = self.bytes = 0

    def some(self, session: Session, limit: int) -> int:
        """Delete about ``limit`` rows; return 0 when none are left."""
        removed = self._some_texts(session, limit)
        removed += self._some_events(session, limit) if removed < limit else 0
        removed += self._some_refs(session, limit) if removed < limit else 0
        return removed

    def _some_texts(self, session: Session, limit: int) -> int:
        sql = f"SELECT no FROM text WHERE space = ? AND scope IN (@) LIMIT {limit}"
        numbers = [no for (no,) in rows_in_chunks(session, sql, (self._space,), self._scopes)]
        if numbers:
            self.texts += self._texts.remove(session, self._space, numbers)
        return len(numbers)

    def _some_events(self, session: Session, limit: int) -> int:
        sql = f"{RECORD_SELECT} WHERE e.space = ? AND e.scope IN (@) LIMIT {limit}"
        rows = list(rows_in_chunks(session, sql, (self._space,), self._scopes))
        if not rows and self._seqs:
            named, self._seqs = self._seqs[:limit], self._seqs[limit:]
            sql = f"{RECORD_SELECT} WHERE e.space = ? AND e.seq IN (@)"
            rows = list(rows_in_chunks(session, sql, (self._space,), named))
            if not rows:
                return self._some_events(session, limit)
        # Not compared with their checksums: what is damaged can be erased as well.
        records = [read_record(row, session.dictionary) for row in rows]
        if records:
            keep_leaves(session, self._space, rows, records)
            session.run_many(
                "DELETE FROM event WHERE space = ? AND seq = ?",
                [(self._space, record.seq) for record in records],
            )
            subtract(session, self._space, deltas(record.event for record in records))
            self.events += len(records)
            self.bytes += sum(len(record.event.data or b"") for record in records)
        return len(records)

    def _some_refs(self, session: Session, limit: int) -> int:
        columns = "SELECT name, coalesce(length(value), 0), version FROM ref"
        sql = f"{columns} WHERE space = ? AND scope IN (@) LIMIT {limit}"
        rows = list(rows_in_chunks(session, sql, (self._space,), self._scopes))
        if not rows and self._names:
            named, self._names = self._names[:limit], self._names[limit:]
            rows = list(
                rows_in_chunks(session, f"{columns} WHERE space = ? AND name IN (@)", (self._space,), named)
            )
            if not rows:
                return self._some_refs(session, limit)
        invalidate_caches(session, self._space)
        session.run_many(
            "DELETE FROM ref WHERE space = ? AND name = ?", [(self._space, name) for name, _, _ in rows]
        )
        self._erased_names.add(dict.fromkeys((name for name, _, _ in rows), 0))
        self.refs += sum(version > 0 for _, _, version in rows)  # version 0: deleted, but never existed
        self.bytes += sum(size for _, size, _ in rows)
        return len(rows)

    # Receipts
    def find_receipts(self) -> None:
        """Find the commits whose receipts name refs to erase."""
        with self._database.reading() as session:
            sql = "SELECT name, scope FROM ref WHERE space = ? AND name IN (@)"
            self._erased_names.add(dict(rows_in_chunks(session, sql, (self._space,), self._names)))
        for scope in self._scopes:
            with self._database.reading() as session:
                sql = "SELECT name, scope FROM ref WHERE space = ? AND scope = ?"
                rows = session.rows(sql, (self._space, scope))
            self._erased_names.add(dict(rows))
        if not len(self._erased_names):
            return
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    f"{_COMMITS} AND batch > ? ORDER BY batch LIMIT ?",
                    (self._space, after, PAGE),
                )
            self._receipts.add(dict.fromkeys((row[1] for row in self._naming(rows)), 0))
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def clean_page(self, session: Session) -> bool:
        """Remove the names from some of these receipts; return False when none are left."""
        page = self._receipts.page(self._cleaned, PAGE)
        if page:
            self._cleaned = page[-1][0]
            sql = f"{_COMMITS} AND no IN (@)"
            numbers = [no for no, _ in page]
            self._clean(session, list(rows_in_chunks(session, sql, (self._space,), numbers)))
        return bool(page)

    def clean_since(self, session: Session, commit_no: int) -> None:
        """Remove the names from the receipts of all commits after one."""
        sql = f"{_COMMITS} AND no > ?"
        self._clean(session, session.rows(sql, (self._space, commit_no)))

    def _clean(self, session: Session, rows: list[Row]) -> None:
        for row in self._naming(rows):
            commit = commit_of(row)
            receipt = msgspec.structs.replace(
                commit.receipt,
                versions=self._without(commit.receipt.versions),
                sums=self._without(commit.receipt.sums),
            )
            replace_commit(
                session, commit_row(self._space, row[1], receipt, row[6], commit.leaves, commit.digest)
            )

    def _naming(self, rows: list[Row]) -> list[Row]:
        """Return the commits whose receipts name an erased ref."""
        versions = {row[1]: unpack_receipt(row[0], 0, 0, 0, row[5]).versions for row in rows}
        erased = self._erased_names.among(name for names in versions.values() for name in names)
        return [row for row in rows if not erased.keys().isdisjoint(versions[row[1]])]

    def _without(self, numbers: dict[str, int]) -> dict[str, int]:
        erased = self._erased_names.among(numbers)
        return {name: number for name, number in numbers.items() if name not in erased}


_COMMITS: Final = f"SELECT {', '.join(COMMIT_COLUMNS)} FROM commits WHERE space = ?"


def keep_leaves(session: Session, space: int, rows: list[Row], records: list[Record]) -> None:
    """Keep the leaves of deleted events with their commits, so that the digests stay as they are."""
    by_batch: dict[str, dict[int, bytes]] = {}
    for row, record in zip(rows, records, strict=True):
        erased = leaf("event", row[-2], event_form(record.event))
        by_batch.setdefault(record.batch, {})[record.seq] = erased
    sql = f"{_COMMITS} AND batch IN (@)"
    for row in list(rows_in_chunks(session, sql, (space,), list(by_batch))):
        commit = commit_of(row)
        first_seq = commit.receipt.first_seq
        erased = {seq - first_seq: each for seq, each in by_batch[commit.receipt.batch].items()}
        leaves = msgspec.structs.replace(commit.leaves, erased=commit.leaves.erased | erased)
        replace_commit(session, commit_row(space, row[1], commit.receipt, row[6], leaves, commit.digest))


def subtract(session: Session, space: int, cells: dict[RollupKey, Measures]) -> None:
    """Subtract from the roll-ups; an empty total is removed."""
    negated = {cell: [-value for value in measures] for cell, measures in cells.items()}
    add_to_rollups(session, space, negated)
    session.run_many(_DROP_EMPTY, [(space, *stored_key(cell)) for cell in cells])


class UnfinishedErasure(msgspec.Struct, frozen=True, kw_only=True):
    """What an unfinished erasure has left to do, stored as a row of ``meta``.

    Rows are deleted in transactions, but packs are rewritten afterwards and old pages are wiped last. If the
    process dies in between, this note lists the packs that hold bytes of deleted objects and, if rows were
    deleted in several transactions, the possibility of unreachable objects. The next erasure in the space
    continues from there. **Invariant:** a pack that holds erased bytes is either deleted or listed in a note
    committed with the deletion.
    """

    packs: tuple[int, ...] = ()
    """Packs that hold bytes of deleted objects."""
    stored_before_us: int = 0
    """Unreachable objects stored before this time may be left over from an interrupted erasure."""
    secure: bool = False
    """Whether the storage must be wiped."""


def read_note(session: Session, space: int) -> UnfinishedErasure | None:
    """Return what an erasure in this space has left to do, if anything."""
    rows = session.rows("SELECT value FROM meta WHERE key = ?", (_key(space),))
    return msgspec.json.decode(rows[0][0], type=UnfinishedErasure) if rows else None


def write_note(
    session: Session,
    space: int,
    *,
    packs: Iterable[int] = (),
    stored_before_us: int = 0,
    secure: bool = False,
) -> None:
    """Add to the note of what is left to do."""
    known = read_note(session, space) or UnfinishedErasure()
    note = UnfinishedErasure(
        packs=tuple(sorted({*known.packs, *packs})),
        stored_before_us=max(known.stored_before_us, stored_before_us),
        secure=known.secure or secure,
    )
    session.run(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (_key(space), msgspec.json.encode(note).decode()),
    )


def drop_note(session: Session, space: int) -> None:
    """Remove the note: nothing is left to do."""
    session.run("DELETE FROM meta WHERE key = ?", (_key(space),))


def _key(space: int) -> str:
    return f"erasing.{space}"


BEFORE_COMMIT: Final = declare("erase.before_commit", "rows of an erasure are deleted, not committed")
AFTER_COMMIT: Final = declare("erase.after_commit", "rows of an erasure are deleted and committed")
BEFORE_REWRITE: Final = declare("erase.before_rewrite", "all rows are erased, packs still hold the bytes")
BEFORE_WIPE: Final = declare(
    "erase.before_wipe", "everything is erased, old pages still hold names of scopes"
)

ONE_TRANSACTION: Final = 50_000
"""A plan of up to this many rows is erased in one transaction."""

_FOREVER: Final = 1 << 62
_TREE: Final = KIND_NUMBERS["tree"]


def erase(database: Database, objects: Objects, texts: TextIndex, space: int, plan: Erasure) -> Erased:
    """Remove what the plan names and the unshared content behind it; also finish an interrupted erasure.

    An empty plan only does the latter.
    """
    if not (plan.scopes or plan.event_seqs or plan.refs or plan.lists):
        with database.reading() as session:
            if read_note(session, space) is None:
                return Erased(proof=_proof(database, secure=plan.secure))
    more: frozenset[int] = frozenset()
    while True:
        with SpillDatabase() as alive, SpillDatabase() as erased:
            erasing = _Erasure(
                database, objects, texts, space, plan=plan, more_scopes=more, alive=alive, erased=erased
            )
            try:
                return erasing.run()
            except _DependedOn as dependents:
                more |= dependents.scopes
                if not plan.cascade:
                    raise forks_depend_on_it(_scope_names(database, space, more)) from None


class _DependedOn(Exception):
    """Something that is kept depends on an erased list."""

    def __init__(self, scopes: set[int]) -> None:
        self.scopes = frozenset(scopes)


class _Erasure:
    def __init__(
        self,
        database: Database,
        objects: Objects,
        texts: TextIndex,
        space: int,
        *,
        plan: Erasure,
        more_scopes: frozenset[int],
        alive: SpillDatabase,
        erased: SpillDatabase,
    ) -> None:
        self._database = database
        self._objects = objects
        self._texts = texts
        self._space = space
        self._secure = plan.secure
        self._absent = plan.absent
        self._planned = ErasurePlan(database, space, plan, more_scopes, erased)
        self._doomed = Walk(database, objects, space, erased)
        self._alive = Walk(database, objects, space, alive, with_slots=True, watch=self._watch)
        self._alive_scratch = alive
        self._dependents: set[int] = set()
        self._rows_are_cut = False
        self._mark = Mark(database, space, self._route, precise=True)
        self._cutting = RowDeletion(database, texts, space, plan=plan, planned=self._planned, spill=erased)
        self._removal = DeletionLog(
            database, objects, space, alive, self._alive, before_us=_FOREVER, note_packs=self._note_packs
        )

    def run(self) -> Erased:
        self._walk_roots()
        with self._database.reading() as session:
            is_small = self._planned.row_count(session) <= ONE_TRANSACTION
            note = read_note(session, self._space)
        if is_small and note is None:
            self._in_one_transaction()
        else:
            self._in_slices(note.stored_before_us if note is not None else 0)
        self._finish()
        counts = self._removal.counts
        return Erased(
            events=self._cutting.events,
            refs=self._cutting.refs,
            lists=counts.lists,
            bodies=counts.bodies,
            texts=self._cutting.texts,
            objects=counts.objects,
            bytes=counts.bytes + self._cutting.bytes,
            kept=self._kept_objects() | self._kept_slots(),
            proof=_proof(self._database, secure=self._secure),
        )

    def _walk_roots(self) -> None:
        """Walk from everything that is erased, and from everything that is kept."""
        self._mark.begin()
        self._begun_at = self._mark.commit_no
        with self._database.reading() as session:
            self._refuse_beside_new(session)
            self._refuse(self._planned.branched_off(session))
        self._planned.gather(self._doomed)
        self._mark.mark_all()
        self._enter_other_lists()
        self._refuse(self._dependents)
        self._cutting.find_receipts()

    def _enter_other_lists(self) -> None:
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT id, no, scope FROM list WHERE space = ? AND id > ? ORDER BY id LIMIT ?",
                    (self._space, after, PAGE),
                )
            others = {no: scope for _, no, scope in rows if not self._planned.takes("list", scope, no)}
            self._alive.enter_lists(others)
            self._alive.drain()
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _route(self, what: str, scope: int, key: Any) -> Walk:
        # Rows written to an erased scope after its deletion are new, and kept.
        is_doomed = not self._rows_are_cut and self._planned.takes(what, scope, key)
        return self._doomed if is_doomed else self._alive

    def _watch(self, links: list[tuple[int, int]]) -> None:
        going = self._planned.lists.among(no for no, _ in links)
        self._dependents.update(owner for no, owner in links if no in going)

    def _refuse(self, scopes: set[int]) -> None:
        if scopes:
            raise _DependedOn(scopes)

    def _refuse_beside_new(self, session: Session) -> None:
        sql = "SELECT 1 FROM ref WHERE space = ? AND name = ? AND value IS NOT NULL"
        for name in self._absent:
            if session.rows(sql, (self._space, name)):
                raise ref_exists_again(name)

    def _catch_up(self, session: Session) -> None:
        """Include what was committed since the marking began."""
        self._mark.catch_up(session)
        if not self._rows_are_cut:
            self._refuse_beside_new(session)
            self._planned.gather(self._doomed, session=session)

    def _in_one_transaction(self) -> None:
        self._mark.catch_up()
        with self._database.writing(self._space) as session:
            self._catch_up(session)
            self._refuse(self._planned.branched_off(session) | self._dependents)
            while self._cutting.some(session, SLICE):
                pass
            while self._cutting.clean_page(session):
                pass
            self._cutting.clean_since(session, self._begun_at)
            self._list_deletions(session, 0)
            self._removal.run(lambda: nullcontext(session), before_seq=_FOREVER, in_slices=False)
            self._wipe_index(session)
            if self._secure:
                write_note(session, self._space, secure=True)
            hit(BEFORE_COMMIT)
        hit(AFTER_COMMIT)

    def _in_slices(self, stored_before_us: int) -> None:
        with self._slice() as session:
            write_note(session, self._space, stored_before_us=self._mark.now_us, secure=self._secure)
        is_clean = False
        while not is_clean:
            with self._slice() as session:
                is_clean = not self._cutting.clean_page(session)
        while not self._rows_are_cut:
            with self._slice() as session:
                self._rows_are_cut = not self._cutting.some(session, SLICE)
                if self._rows_are_cut:
                    self._cutting.clean_since(session, self._begun_at)
        self._list_deletions(None, stored_before_us)
        self._removal.run(self._slice, before_seq=_FOREVER)
        with self._slice() as session:
            self._wipe_index(session)

    @contextmanager
    def _slice(self) -> Generator[Session]:
        self._mark.catch_up()
        with self._database.writing(self._space) as session:
            self._catch_up(session)
            yield session
            hit(BEFORE_COMMIT)
        hit(AFTER_COMMIT)

    def _list_deletions(self, session: Session | None, stored_before_us: int) -> None:
        """List what the erased walk reached for deletion; what the other one reached is kept."""
        for seen, condemn in (
            (self._planned.lists, self._removal.lists),
            (self._doomed.bodies, self._removal.bodies),
            (self._doomed.objects, self._find_unreachable_objects),
        ):
            after: Any = None
            while page := seen.page(after, PAGE):
                after = page[-1][0]
                with self._database.reading() if session is None else nullcontext(session) as reading:
                    condemn(reading, [key for key, _ in page])
        if stored_before_us:
            self._list_leftovers(stored_before_us)

    def _find_unreachable_objects(self, session: Session, names: list[bytes]) -> None:
        sql = (
            "SELECT name, kind, size, length(frame), pack, length FROM object WHERE space = ? AND name IN (@)"
        )
        self._removal.objects(
            (bytes(name), kind == _TREE, inline or min(size, packed or 0), pack)
            for name, kind, size, inline, pack, packed in rows_in_chunks(session, sql, (self._space,), names)
        )

    def _list_leftovers(self, stored_before_us: int) -> None:
        """List unreachable objects that an interrupted erasure may have left."""
        after = b""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT name, stored_at_us FROM object WHERE space = ? AND name > ? "
                    "ORDER BY name LIMIT ?",
                    (self._space, after, PAGE),
                )
                old = [bytes(name) for name, stored_at_us in rows if stored_at_us <= stored_before_us]
                self._find_unreachable_objects(session, old)
            if len(rows) < PAGE:
                return
            after = bytes(rows[-1][0])

    def _wipe_index(self, session: Session) -> None:
        """Wipe the words of removed texts from the index, including those removed long ago."""
        if self._secure:
            rows = session.rows("SELECT no FROM collection WHERE space = ? ORDER BY no", (self._space,))
            self._texts.optimize(session, [no for (no,) in rows])

    def _note_packs(self, session: Session, packs: set[int]) -> None:
        write_note(session, self._space, packs=packs)

    def _finish(self) -> None:
        """Rewrite packs, wipe deleted bytes from the storage, and delete the scopes last."""
        with self._database.reading() as session:
            note = read_note(session, self._space)
        secure = self._secure or (note is not None and note.secure)
        packs = set(note.packs) if note is not None else set[int]()
        if secure:
            # A sweep may leave dead objects in packs; whose they were is unknown by then.
            packs.update(self._objects.packs_with_strays(self._database, self._space))
        if packs:
            hit(BEFORE_REWRITE)
            for pack in sorted(packs):
                self._objects.rewrite(self._database, self._space, pack)
            self._objects.delete_packs(self._database, self._space)
        if secure:
            litter = self._objects.orphans(self._database, self._space, older_than_seconds=ORPHAN_SECONDS)
            self._objects.delete_orphans(litter)
        self._database.reclaim_space(secure=secure)
        writing = partial(self._database.writing, self._space)
        drop_unused_runs(self._database, self._space, writing)
        drop_unused_scopes(self._database, self._space, writing)
        if secure:
            hit(BEFORE_WIPE)
            self._database.reclaim_space(secure=True)  # the names of the scopes
        if note is not None:
            with writing() as session:
                drop_note(session, self._space)

    def _kept_objects(self) -> dict[str, str]:
        kept: dict[str, str] = {}
        after: bytes | None = None
        while page := self._doomed.objects.page(after, PAGE):
            after = page[-1][0]
            shared = self._alive.objects.among(name for name, _ in page)
            with self._database.reading() as session:
                sql = "SELECT name FROM object WHERE space = ? AND name IN (@)"
                stored = [
                    bytes(name) for (name,) in rows_in_chunks(session, sql, (self._space,), list(shared))
                ]
            names = _names_of(self._database, self._space, shared.values())
            kept |= {name.hex(): _shared_with(names, shared[name]) for name in stored}
        return kept

    def _kept_slots(self) -> dict[str, str]:
        kept: dict[str, str] = {}
        after: int | None = None
        while page := self._planned.bodies.page(after, PAGE):
            after = page[-1][0]
            shared = self._alive.bodies.among(key for key, _ in page)
            with self._database.reading() as session:
                commits = {body_part(key)[0] for key in shared}
                sql = "SELECT no, batch FROM commits WHERE space = ? AND no IN (@)"
                batches = dict(rows_in_chunks(session, sql, (self._space,), list(commits)))
            for key in sorted(shared):
                commit_no, part = body_part(key)
                slots = self._slots_of(key)
                names = _names_of(self._database, self._space, [owner for _, owner in slots])
                kept |= {
                    slot_address(batches[commit_no], part, int.from_bytes(slot[8:], "big")): _shared_with(
                        names, owner
                    )
                    for slot, owner in slots
                }
        return kept

    def _slots_of(self, key: int) -> list[Row]:
        return self._alive_scratch.rows(
            "SELECT key, owner FROM slot WHERE key >= ? AND key < ? ORDER BY key",
            (slot_key(key, 0), slot_key(key + 1, 0)),
        )


def _proof(database: Database, *, secure: bool) -> Literal["bytes", "query"]:
    return "bytes" if secure and database.dialect == "sqlite" else "query"


def _shared_with(names: dict[int, str], owner: int) -> str:
    return f"shared with scope {names[owner]!r}" if owner in names else "shared with what came meanwhile"


def _names_of(database: Database, space: int, numbers: Any) -> dict[int, str]:
    with database.reading() as session:
        return dict(
            rows_in_chunks(
                session,
                "SELECT no, name FROM scope WHERE space = ? AND no IN (@)",
                (space,),
                sorted(set(numbers)),
            )
        )


def _scope_names(database: Database, space: int, numbers: frozenset[int]) -> list[str]:
    return sorted(_names_of(database, space, numbers).values())
