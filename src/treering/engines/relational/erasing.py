"""Erasure: what a plan names goes, with the content that only this led to.

One pass over all roots of the space feeds two walks: *doomed* begins at the rows that go, *alive* at all
that stay (every list outside of the plan counts as alive: a writer may be about to link it). What only the
first one reached is deleted, at once and whatever its age; what both reached stays and is named in the
result, with a scope that keeps it. A small plan goes in one transaction; a large one in slices, rows that
link to something before what they link to. Then packs that lost an object are written anew, and the storage
is wiped. **Invariant:** at no moment does an address lead nowhere, and an erasure that was cut short is
finished by running it again.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from treering.core.address import slot_address
from treering.core.content import KIND_NUMBERS
from treering.core.failpoints import declare, hit
from treering.core.query import is_built_on, is_there
from treering.core.records import Erased
from treering.engines.relational import unfinished
from treering.engines.relational.cutting import Cutting
from treering.engines.relational.marking import Mark
from treering.engines.relational.planned import Planned
from treering.engines.relational.reading import body_part
from treering.engines.relational.removal import SLICE, Removal, drop_unused_runs, drop_unused_scopes
from treering.engines.relational.scratch import Scratch
from treering.engines.relational.session import in_chunks
from treering.engines.relational.staging import ORPHAN_SECONDS
from treering.engines.relational.walking import PAGE, Walk, slot_key

if TYPE_CHECKING:
    from collections.abc import Generator

    from treering.core.query import Erasure
    from treering.engines.relational.objects import Objects
    from treering.engines.relational.session import Database, Row, Session
    from treering.engines.relational.texts import TextIndex

BEFORE_COMMIT: Final = declare("erase.before_commit", "rows of an erasure are deleted, not committed")
AFTER_COMMIT: Final = declare("erase.after_commit", "rows of an erasure are deleted and committed")
BEFORE_REWRITE: Final = declare("erase.before_rewrite", "all rows are erased, packs still hold the bytes")
BEFORE_WIPE: Final = declare(
    "erase.before_wipe", "everything is erased, old pages still hold names of scopes"
)

ONE_TRANSACTION: Final = 50_000
"""A plan of up to this many rows goes all at once."""

_FOREVER: Final = 1 << 62
_TREE: Final = KIND_NUMBERS["tree"]


def erase(database: Database, objects: Objects, texts: TextIndex, space: int, plan: Erasure) -> Erased:
    """Remove what the plan names, and the unshared content behind it; also what an earlier one has left.

    A plan that names nothing only does the latter.
    """
    if not (plan.scopes or plan.event_seqs or plan.refs or plan.lists):
        with database.reading() as session:
            if unfinished.read_note(session, space) is None:
                return Erased(proof=_proof(database, secure=plan.secure))
    more: frozenset[int] = frozenset()
    while True:
        with Scratch() as alive, Scratch() as doomed:
            erasing = _Erasing(
                database, objects, texts, space, plan=plan, more_scopes=more, alive=alive, doomed=doomed
            )
            try:
                return erasing.run()
            except _DependedOn as dependents:
                more |= dependents.scopes
                if not plan.cascade:
                    raise is_built_on(_scope_names(database, more)) from None


class _DependedOn(Exception):
    """Something that stays depends on a list that goes."""

    def __init__(self, scopes: set[int]) -> None:
        self.scopes = frozenset(scopes)


class _Erasing:
    def __init__(
        self,
        database: Database,
        objects: Objects,
        texts: TextIndex,
        space: int,
        *,
        plan: Erasure,
        more_scopes: frozenset[int],
        alive: Scratch,
        doomed: Scratch,
    ) -> None:
        self._database = database
        self._objects = objects
        self._texts = texts
        self._space = space
        self._secure = plan.secure
        self._absent = plan.absent
        self._planned = Planned(database, space, plan, more_scopes, doomed)
        self._doomed = Walk(database, objects, space, doomed)
        self._alive = Walk(database, objects, space, alive, with_slots=True, watch=self._watch)
        self._alive_scratch = alive
        self._dependents: set[int] = set()
        self._rows_are_cut = False
        self._mark = Mark(database, space, self._route, precise=True)
        self._cutting = Cutting(database, texts, space, plan=plan, planned=self._planned, scratch=doomed)
        self._removal = Removal(
            database, objects, space, alive, self._alive, before_us=_FOREVER, note_packs=self._note_packs
        )

    def run(self) -> Erased:
        self._survey()
        with self._database.reading() as session:
            is_small = self._planned.row_count(session) <= ONE_TRANSACTION
            note = unfinished.read_note(session, self._space)
        if is_small and note is None:
            self._at_once()
        else:
            self._in_slices(note.stored_before_us if note is not None else 0)
        self._finish()
        tally = self._removal.tally
        return Erased(
            events=self._cutting.events,
            refs=self._cutting.refs,
            lists=tally.lists,
            bodies=tally.bodies,
            texts=self._cutting.texts,
            objects=tally.objects,
            bytes=tally.bytes + self._cutting.bytes,
            kept=self._kept_objects() | self._kept_slots(),
            proof=_proof(self._database, secure=self._secure),
        )

    # Who reaches what
    def _survey(self) -> None:
        """Walk from everything that goes and from everything that stays."""
        self._mark.begin()
        self._begun_at = self._mark.commit_no
        with self._database.reading() as session:
            self._refuse_beside_new(session)
            self._refuse(self._planned.branched_off(session))
        self._planned.gather(self._doomed)
        self._mark.everything()
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
        # What is written to an erased scope after its rows are gone is new, and stays.
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
                raise is_there(name)

    def _catch_up(self, session: Session) -> None:
        """Take in what was committed since the survey began."""
        self._mark.catch_up(session)
        if not self._rows_are_cut:
            self._refuse_beside_new(session)
            self._planned.gather(self._doomed, session=session)

    # Deleting
    def _at_once(self) -> None:
        self._mark.catch_up()
        with self._database.writing(self._space) as session:
            self._catch_up(session)
            self._refuse(self._planned.branched_off(session) | self._dependents)
            while self._cutting.some(session, SLICE):
                pass
            while self._cutting.clean_page(session):
                pass
            self._cutting.clean_since(session, self._begun_at)
            self._condemn(session, 0)
            self._removal.run(lambda: nullcontext(session), before_seq=_FOREVER, in_slices=False)
            self._settle(session)
            if self._secure:
                unfinished.write_note(session, self._space, secure=True)
            hit(BEFORE_COMMIT)
        hit(AFTER_COMMIT)

    def _in_slices(self, stored_before_us: int) -> None:
        with self._slice() as session:
            unfinished.write_note(
                session, self._space, stored_before_us=self._mark.now_us, secure=self._secure
            )
        is_clean = False
        while not is_clean:
            with self._slice() as session:
                is_clean = not self._cutting.clean_page(session)
        while not self._rows_are_cut:
            with self._slice() as session:
                self._rows_are_cut = not self._cutting.some(session, SLICE)
                if self._rows_are_cut:
                    self._cutting.clean_since(session, self._begun_at)
        self._condemn(None, stored_before_us)
        self._removal.run(self._slice, before_seq=_FOREVER)
        with self._slice() as session:
            self._settle(session)

    @contextmanager
    def _slice(self) -> Generator[Session]:
        self._mark.catch_up()
        with self._database.writing(self._space) as session:
            self._catch_up(session)
            yield session
            hit(BEFORE_COMMIT)
        hit(AFTER_COMMIT)

    def _condemn(self, session: Session | None, stored_before_us: int) -> None:
        """Tell the removal what the doomed walk reached; it spares what the other one did."""
        for seen, condemn in (
            (self._planned.lists, self._removal.lists),
            (self._doomed.bodies, self._removal.bodies),
            (self._doomed.objects, self._condemn_objects),
        ):
            after: Any = None
            while page := seen.page(after, PAGE):
                after = page[-1][0]
                with self._database.reading() if session is None else nullcontext(session) as reading:
                    condemn(reading, [key for key, _ in page])
        if stored_before_us:
            self._condemn_leftovers(stored_before_us)

    def _condemn_objects(self, session: Session, names: list[bytes]) -> None:
        sql = (
            "SELECT name, kind, size, length(frame), pack, length FROM object WHERE space = ? AND name IN (@)"
        )
        self._removal.objects(
            (bytes(name), kind == _TREE, inline or min(size, packed or 0), pack)
            for name, kind, size, inline, pack, packed in in_chunks(session, sql, (self._space,), names)
        )

    def _condemn_leftovers(self, stored_before_us: int) -> None:
        """Objects that an erasure which was cut short may have left without anything that leads to them."""
        after = b""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT name, stored_at_us FROM object WHERE space = ? AND name > ? "
                    "ORDER BY name LIMIT ?",
                    (self._space, after, PAGE),
                )
                old = [bytes(name) for name, stored_at_us in rows if stored_at_us <= stored_before_us]
                self._condemn_objects(session, old)
            if len(rows) < PAGE:
                return
            after = bytes(rows[-1][0])

    def _settle(self, session: Session) -> None:
        """Wipe the words of removed texts from the index, also of those that were removed long ago."""
        if self._secure:
            rows = session.rows("SELECT no FROM collection WHERE space = ? ORDER BY no", (self._space,))
            self._texts.settle(session, [no for (no,) in rows])

    def _note_packs(self, session: Session, packs: set[int]) -> None:
        unfinished.write_note(session, self._space, packs=packs)

    # Finishing
    def _finish(self) -> None:
        """Write packs anew, wipe what the storage keeps of deleted bytes, let go of the scopes last."""
        with self._database.reading() as session:
            note = unfinished.read_note(session, self._space)
        secure = self._secure or (note is not None and note.secure)
        packs = set(note.packs) if note is not None else set[int]()
        if secure:
            # A sweep leaves dead objects in packs that live on; whose they were, nobody knows any more.
            packs.update(self._objects.packs_with_strays(self._database, self._space))
        if packs:
            hit(BEFORE_REWRITE)
            for pack in sorted(packs):
                self._objects.rewrite(self._database, self._space, pack)
            self._objects.delete_packs(self._database, self._space)
        if secure:
            litter = self._objects.orphans(self._database, older_than_seconds=ORPHAN_SECONDS)
            self._objects.delete_orphans(litter)
        self._database.tidy(secure=secure)
        writing = partial(self._database.writing, self._space)
        drop_unused_runs(self._database, self._space, writing)
        drop_unused_scopes(self._database, self._space, writing)
        if secure:
            hit(BEFORE_WIPE)
            self._database.tidy(secure=True)  # the names of the scopes
        if note is not None:
            with writing() as session:
                unfinished.drop_note(session, self._space)

    # What stays
    def _kept_objects(self) -> dict[str, str]:
        kept: dict[str, str] = {}
        after: bytes | None = None
        while page := self._doomed.objects.page(after, PAGE):
            after = page[-1][0]
            shared = self._alive.objects.among(name for name, _ in page)
            with self._database.reading() as session:
                sql = "SELECT name FROM object WHERE space = ? AND name IN (@)"
                stored = [bytes(name) for (name,) in in_chunks(session, sql, (self._space,), list(shared))]
            names = _names_of(self._database, shared.values())
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
                sql = "SELECT no, batch FROM commits WHERE no IN (@)"
                batches = dict(in_chunks(session, sql, (), list(commits)))
            for key in sorted(shared):
                commit_no, part = body_part(key)
                slots = self._slots_of(key)
                names = _names_of(self._database, [owner for _, owner in slots])
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


def _names_of(database: Database, numbers: Any) -> dict[int, str]:
    with database.reading() as session:
        return dict(
            in_chunks(session, "SELECT no, name FROM scope WHERE no IN (@)", (), sorted(set(numbers)))
        )


def _scope_names(database: Database, numbers: frozenset[int]) -> list[str]:
    return sorted(_names_of(database, numbers).values())
