"""Verification: read everything that a space holds, and say what is wrong with it.

Three questions. Does every address that stands anywhere lead somewhere (a walk from all roots and all lists)?
Is every stored byte what it was (`contents`)? Do counters and totals say the truth (here and `recount`)?
Everything is read in pages, each in a short transaction, while writers go on; what a page found missing may
just have been erased, so it is looked at again before it is reported. **Invariant:** memory stays flat, no
transaction is open while a report is handed out, and nothing is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.address import ListAt, ObjectAt, SlotAt, parse_address
from treering.core.records import Checked, Problem
from treering.engines.keys import BODY_PART_BITS, ITEM_POSITION_BITS
from treering.engines.relational.contents import Contents
from treering.engines.relational.current import unpack_receipt
from treering.engines.relational.marking import Mark
from treering.engines.relational.reading import body_part
from treering.engines.relational.recount import Recount
from treering.engines.relational.rows import split_links
from treering.engines.relational.scratch import Scratch, Seen
from treering.engines.relational.walking import COMMITS, PAGE, Missing, Origin, Walk
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.engines.relational.objects import Objects
    from treering.engines.relational.session import Database, Row, Session
    from treering.engines.relational.texts import TextIndex

_REPORT_EVERY: Final = 20
"""Pages between two reports of how far the check has come."""


def check(
    database: Database, objects: Objects, texts: TextIndex, space: int, *, read_content: bool = True
) -> Iterator[Problem | Checked]:
    """Verify a space; problems as they are found, a `Checked` now and then and as the last."""
    with Scratch() as scratch:
        yield from _Check(database, objects, texts, space, scratch=scratch, read_content=read_content).run()


class _Check:
    def __init__(
        self,
        database: Database,
        objects: Objects,
        texts: TextIndex,
        space: int,
        *,
        scratch: Scratch,
        read_content: bool,
    ) -> None:
        self._database = database
        self._texts = texts
        self._space = space
        self._scratch = scratch
        self._missing: list[Missing] = []
        self._walk = Walk(database, objects, space, scratch, with_slots=True, notice=self._missing.append)
        self._mark = Mark(database, space, lambda _what, _scope, _key: self._walk, precise=True)
        self._contents = Contents(database, objects, space, read_content=read_content)
        self._recount = Recount(database, space, scratch)
        self._reported = Seen(scratch, "reported", "text")
        self._refs = 0

    def run(self) -> Iterator[Problem | Checked]:
        for page, problems in enumerate(self._pages(), 1):
            for problem in problems:
                if self._reported.add({f"{problem.kind} {problem.where} {problem.detail}": 0}):
                    yield problem
            if page % _REPORT_EVERY == 0:
                yield self._checked()
        yield self._checked()

    def _pages(self) -> Iterator[list[Problem]]:
        for _ in self._mark.steps():
            yield self._dangling()
        for _ in self._enter_lists():
            yield self._dangling()
        yield from self._contents.check_objects()
        yield from self._contents.check_packs()
        yield from self._commits()
        yield from self._contents.check_lists()
        yield from self._events()
        yield from self._check_refs()
        yield from self._check_texts()
        yield from self._recount.problems()

    def _checked(self) -> Checked:
        return Checked(
            objects=self._contents.objects,
            bodies=self._contents.bodies,
            items=self._contents.items,
            events=self._recount.events,
            refs=self._refs,
            bytes=self._contents.bytes,
        )

    # Addresses
    def _enter_lists(self) -> Iterator[None]:
        """Lists that nothing links to are to be whole as well: a writer may be about to link them."""
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT id, no, scope FROM list WHERE space = ? AND id > ? ORDER BY id LIMIT ?",
                    (self._space, after, PAGE),
                )
            self._walk.enter_lists({no: scope for _, no, scope in rows})
            self._walk.drain()
            yield
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _dangling(self) -> list[Problem]:
        found: list[Problem] = []
        while self._missing:
            missing = self._missing.pop()
            with self._database.reading() as session:
                where = self._place(session, missing.origin, missing.target)
                is_there = not missing.damage and self._is_stored(session, missing.target)
            if where is not None and missing.damage:
                found.append(Problem(kind="corrupt", where=where, detail=missing.damage))
            elif where is not None and not is_there:
                found.append(
                    Problem(kind="dangling", where=where, detail=f"{missing.target!r} is not stored")
                )
        return found

    def _place(self, session: Session, origin: Origin, target: str) -> str | None:
        """Where a link stands, in words; None when it does not stand there any more."""
        what, key = origin
        if what == "event":
            rows = session.rows("SELECT id FROM event WHERE space = ? AND seq = ?", (self._space, key))
            return f"event {rows[0][0]!r}" if rows else None
        if what == "ref":
            rows = session.rows("SELECT links FROM ref WHERE space = ? AND name = ?", (self._space, key))
            return f"ref {key!r}" if rows and target in split_links(rows[0][0]) else None
        if what == "text":
            rows = session.rows("SELECT name FROM text WHERE no = ? AND source = ?", (key, target))
            return f"text {rows[0][0]!r}" if rows else None
        if what == "item":
            list_no, position = key >> ITEM_POSITION_BITS, key & ((1 << ITEM_POSITION_BITS) - 1)
            rows = session.rows("SELECT id FROM list WHERE no = ?", (list_no,))
            return f"item {position} of l:{rows[0][0]}" if rows else None
        if what == "body":
            commit_no, part = body_part(key)
            sql = "SELECT batch FROM commits WHERE no = ? AND EXISTS (SELECT 1 FROM body WHERE key = ?)"
            rows = session.rows(sql, (commit_no, key))
            return f"body {part} of commit {rows[0][0]!r}" if rows else None
        sql = "SELECT 1 FROM object WHERE space = ? AND name = ?"
        return f"o:{key}" if session.rows(sql, (self._space, bytes.fromhex(key))) else None

    def _is_stored(self, session: Session, address: str) -> bool:
        match parse_address(address):
            case ObjectAt(name):
                sql = "SELECT 1 FROM object WHERE space = ? AND name = ?"
                return bool(session.rows(sql, (self._space, bytes.fromhex(name))))
            case ListAt(list_id):
                sql = "SELECT 1 FROM list WHERE space = ? AND id = ?"
                return bool(session.rows(sql, (self._space, list_id)))
            case SlotAt(batch, part, _):
                sql = (
                    f"SELECT 1 FROM commits c JOIN body b ON b.key = c.no * {1 << BODY_PART_BITS} + ? "
                    "WHERE c.space = ? AND c.batch = ?"
                )
                return bool(session.rows(sql, (part, self._space, batch)))

    # Counters
    def _commits(self) -> Iterator[list[Problem]]:
        """The ranges of all commits, and their bodies."""
        ranges = Seen(self._scratch, "commit_range", "number")
        after = ""
        while True:
            with self._database.reading() as session:
                ((seq,),) = session.rows("SELECT seq FROM space WHERE no = ?", (self._space,))
                rows = session.rows(
                    "SELECT batch, no, first_seq, last_seq, receipt FROM commits "
                    "WHERE space = ? AND batch > ? ORDER BY batch LIMIT ?",
                    (self._space, after, COMMITS),
                )
            new = set(ranges.add({first: last for _, _, first, last, _ in rows}))
            problems: list[Problem] = []
            for row in rows:
                detail = _commit_problem(row, seq)
                if row[2] not in new:
                    detail = f"another commit has the number {row[2]}, too"
                new.discard(row[2])
                if detail is not None:
                    problems.append(Problem(kind="counter", where=f"commit {row[0]!r}", detail=detail))
            yield problems
            yield from self._contents.check_bodies({row[1]: row[0] for row in rows}, self._scratch)
            if len(rows) < COMMITS:
                break
            after = rows[-1][0]
        yield from self._overlaps(ranges)

    def _overlaps(self, ranges: Seen) -> Iterator[list[Problem]]:
        previous = after = 0
        while page := ranges.page(after, PAGE):
            after = page[-1][0]
            problems: list[Problem] = []
            for first, last in page:
                if first <= previous:
                    detail = f"a commit begins at {first}, though {previous} was given out before"
                    problems.append(Problem(kind="counter", where="commits", detail=detail))
                previous = max(previous, last)
            yield problems

    def _events(self) -> Iterator[list[Problem]]:
        """Events belong to their commits; on the way they are counted for the totals."""
        for _ in self._recount.count():
            yield []
        after = 0
        while True:
            with self._database.reading() as session:
                ((seq, last),) = session.rows(
                    "SELECT s.seq, (SELECT max(e.seq) FROM event e WHERE e.space = s.no) "
                    "FROM space s WHERE s.no = ?",
                    (self._space,),
                )
                rows = session.rows(
                    "SELECT seq FROM event WHERE space = ? AND seq > ? ORDER BY seq LIMIT ?",
                    (self._space, after, PAGE),
                )
                upto = rows[-1][0] if rows else after
                stray = session.rows(
                    "SELECT e.id, e.seq FROM event e "
                    "LEFT JOIN commits c ON c.no = e.commit_no AND c.space = e.space "
                    "LEFT JOIN scope s ON s.no = e.scope WHERE e.space = ? AND e.seq > ? AND e.seq <= ? "
                    "AND (c.no IS NULL OR s.no IS NULL OR e.seq < c.first_seq OR e.seq > c.last_seq)",
                    (self._space, after, upto),
                )
                nameless = session.rows(
                    "SELECT e.id FROM event e LEFT JOIN run u ON u.space = e.space AND u.no = e.run "
                    "WHERE e.space = ? AND e.seq > ? AND e.seq <= ? AND e.run IS NOT NULL AND u.no IS NULL",
                    (self._space, after, upto),
                )
            yield [
                Problem(kind="counter", where=f"event {name!r}", detail=f"{number} is not of its commit")
                for name, number in stray
            ] + [
                Problem(kind="dangling", where=f"event {name!r}", detail="the name of its run is lost")
                for (name,) in nameless
            ]
            if len(rows) < PAGE:
                break
            after = upto
        if (last or 0) > seq:
            yield [Problem(kind="counter", where="space", detail=f"event {last} is past the counter, {seq}")]

    def _check_refs(self) -> Iterator[list[Problem]]:
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT name, version FROM ref WHERE space = ? AND name > ? AND value IS NOT NULL "
                    "ORDER BY name LIMIT ?",
                    (self._space, after, PAGE),
                )
            self._refs += len(rows)
            yield [
                Problem(kind="counter", where=f"ref {name!r}", detail=f"its version is {version}")
                for name, version in rows
                if version < 1
            ]
            if len(rows) < PAGE:
                return
            after = rows[-1][0]

    def _check_texts(self) -> Iterator[list[Problem]]:
        """Whether every text is in the search index."""
        with self._database.reading() as session:
            collections = session.rows(
                "SELECT no FROM collection WHERE space = ? ORDER BY no", (self._space,)
            )
        for (collection,) in collections:
            after = ""
            while True:
                with self._database.reading() as session:
                    rows = session.rows(
                        "SELECT name, no FROM text WHERE collection = ? AND name > ? ORDER BY name LIMIT ?",
                        (collection, after, PAGE),
                    )
                    lacking = self._texts.lacking(session, collection, [no for _, no in rows])
                yield [
                    Problem(kind="derived", where=f"text {name!r}", detail="is not in the index; run reindex")
                    for name, no in rows
                    if no in lacking
                ]
                if len(rows) < PAGE:
                    break
                after = rows[-1][0]


def _commit_problem(row: Row, seq: int) -> str | None:
    batch, _, first, last, receipt = row
    if not 1 <= first <= last <= seq:
        return f"it has the numbers {first} to {last}, and {seq} were given out"
    try:
        unpack_receipt(batch, first, last, 0, receipt)
    except Corrupt as error:
        return str(error)
    return None
