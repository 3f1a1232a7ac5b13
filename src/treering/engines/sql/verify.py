"""Verification: read everything in a space and report what is wrong.

It checks three things: every address is stored (by walking from all roots and all lists), every stored byte
is unchanged (`ContentChecker`: rows are read in pages of limited size, a pack once from start to end, and
every damaged part is reported), and counters and totals are correct (here and in `rollups`). All reads are
short transactions, alongside running writers; something that a page found missing may just have been erased,
so it is checked again before it is reported. **Invariant:** memory use is bounded, no transaction is open
while a problem is yielded, and nothing is changed.

The checks are cut into units that need nothing of each other: all run here, one after the other, or most of
them in other processes (`verify_workers`). ``since`` limits them to what was committed behind a sequence
number, and to all that this links to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from treering.core.content import (
    Address,
    Content,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    object_name,
    parse_address,
    unpack_body,
    unseal,
)
from treering.core.packs import PackEntry, group_by_frame
from treering.core.records import Checked, Problem
from treering.engines.sql.commit.decide import ListState, check_list, unpack_receipt
from treering.engines.sql.digest_check import ODD, DigestCheck, ListCheck, wrong_days
from treering.engines.sql.gc.mark import (
    PAGE,
    BrokenLink,
    LinkOrigin,
    Mark,
    Walk,
    by_weight,
)
from treering.engines.sql.objects import Located, PackGone
from treering.engines.sql.read import (
    ITEM_COUNT,
    body_part,
    check_body,
    is_item_block,
    unpack_item_block,
)
from treering.engines.sql.rollups import Recount
from treering.engines.sql.rows import (
    BODY_PART_BITS,
    ITEM_POSITION_BITS,
    ITEM_POSITION_MASK,
    frame_of,
    item_checksum,
    item_key,
    kind_of,
    split_links,
)
from treering.engines.sql.search import TEXT_SELECT
from treering.engines.sql.session import rows_in_chunks
from treering.engines.sql.spill import SpillDatabase, SpillSet
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from treering.core.batch import Event
    from treering.core.digests import CommitLeaves
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Database, Row, Session


ProblemPages = Iterator[list[Problem]]
"""Problems, one page at a time; most pages are empty."""

_LISTS: Final = 256
_LAST_NAME: Final = b"\xff" * 33
_BEFORE_ALL: Final = -(1 << 63)
_ITEM_RANGE: Final = (
    f"i.space = l.space AND i.key >= l.no * {1 << ITEM_POSITION_BITS} "
    f"AND i.key < (l.no + 1) * {1 << ITEM_POSITION_BITS}"
)


class ContentChecker:
    """Checks the content of a space, and counts how much was read."""

    def __init__(
        self,
        database: Database,
        objects: Objects,
        digests: DigestCheck,
        space: int,
        *,
        read_content: bool,
        since: int,
    ) -> None:
        self._database = database
        self._digests = digests
        self._store = objects
        self._space = space
        self._reads = read_content
        self._since = since
        self.objects = self.bodies = self.items = self.bytes = 0

    def check_objects(
        self, *, after: bytes = b"", upto: bytes = _LAST_NAME, only: SpillSet | None = None
    ) -> ProblemPages:
        """Rehash the objects in rows: those in a range of names, or ``only`` some."""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    'SELECT o.name, length(o.frame), p.no, o.pack, o."offset", o.length, o.inner_offset '
                    "FROM object o LEFT JOIN pack p ON p.space = o.space AND p.no = o.pack "
                    "WHERE o.space = ? AND o.name > ? AND o.name <= ? ORDER BY o.name LIMIT ?",
                    (self._space, after, upto, PAGE),
                )
            is_last = len(rows) < PAGE
            after = after if is_last else bytes(rows[-1][0])
            if only is not None:
                wanted = only.among(bytes(row[0]) for row in rows)
                rows = [row for row in rows if bytes(row[0]) in wanted]
            problems = [
                _corrupt(f"o:{bytes(name).hex()}", "its row has neither bytes nor an existing pack")
                for name, size, pack, *_ in rows
                if size is None and pack is None
            ]
            problems += [
                _corrupt(f"o:{bytes(name).hex()}", f"its row has bytes, and a place in a pack: {place}")
                for name, size, _, *place in rows
                if size is not None and place != [None] * 4
            ]
            self.objects += sum(row[1] is not None for row in rows)
            if self._reads:
                sizes = [(bytes(row[0]), row[1]) for row in rows if row[1] is not None]
                for group in by_weight(sizes):
                    problems += self._rehash(group)
            yield problems
            if is_last:
                return

    def _rehash(self, names: list[bytes]) -> list[Problem]:
        problems: list[Problem] = []
        with self._database.reading() as session:
            sql = (
                "SELECT name, kind, size, frame FROM object "
                "WHERE space = ? AND frame IS NOT NULL AND name IN (@)"
            )
            rows = list(rows_in_chunks(session, sql, (self._space,), names))
        for key, number, size, frame in rows:
            name = bytes(key).hex()
            where = f"object {name}"
            try:
                sealed = frame_of(frame, where)
                self.bytes += len(sealed)
                kind, data = kind_of(number, where), unseal(sealed, where)
                if len(data) != size or object_name(kind, data) != name:
                    raise Corrupt("its bytes have another hash")
            except Corrupt as error:
                problems.append(_corrupt(f"o:{name}", str(error)))
        return problems

    def check_packs(self, *, only: SpillSet | None = None) -> ProblemPages:
        """Rehash the objects in packs, or ``only`` some; without reading content, look for the packs."""
        after = 0
        while True:
            with self._database.reading() as session:
                packs = session.rows(
                    "SELECT no, name, size FROM pack WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, after, PAGE),
                )
            for no, name, size in packs:
                yield self._check_pack(no, name, size, only)
            if len(packs) < PAGE:
                return
            after = packs[-1][0]

    def _check_pack(self, no: int, name: str, size: int, only: SpillSet | None) -> list[Problem]:
        with self._database.reading() as session:
            rows = session.rows(
                'SELECT name, kind, size, "offset", length, inner_offset FROM object WHERE space = ? '
                "AND pack = ?",
                (self._space, no),
            )
        if only is not None:
            wanted = only.among(bytes(row[0]) for row in rows)
            rows = [row for row in rows if bytes(row[0]) in wanted]
            if not rows:
                return []
        entries: list[PackEntry] = []
        problems: list[Problem] = []
        for key, kind, *place in rows:
            entry_name = bytes(key).hex()
            try:
                if not all(isinstance(number, int) for number in place):
                    raise Corrupt(f"its place in the pack is {place}")
                entries.append(PackEntry(entry_name, kind_of(kind, f"object {entry_name}"), *place))
            except Corrupt as error:
                problems.append(_corrupt(f"o:{entry_name}", str(error)))
        self.objects += len(entries)
        outside = [entry.name for entry in entries if entry.offset + entry.length > size]
        problems += [_corrupt(f"o:{each}", f"its position is outside of pack {name}") for each in outside]
        frames = list(group_by_frame(entries).values())
        try:
            if self._reads and entries:
                self._store.check_index(name, size)
        except Corrupt as error:
            problems.append(_corrupt(f"pack {name}", str(error)))
        try:
            for found in self._read_frames(name, frames if self._reads else frames[-1:]):
                problems += found
        except PackGone as error:
            with self._database.reading() as session:
                still = session.rows(
                    "SELECT 1 FROM object WHERE space = ? AND pack = ? LIMIT 1", (self._space, no)
                )
            if still:
                return [*problems, _corrupt(f"pack {name}", str(error))]
        return problems

    def _read_frames(self, pack: str, frames: list[list[PackEntry]]) -> ProblemPages:
        """Read a whole pack in as few requests as possible; where it is damaged, frame by frame."""
        try:
            entries = [entry for frame in frames for entry in frame]
            sizes = {entry.name: entry.size for entry in entries}
            for name, content in self._store.stream(Located((), {pack: entries})):
                self.bytes += len(content.data)
                if len(content.data) != sizes[name]:
                    yield [_corrupt(f"o:{name}", f"it has {len(content.data)} bytes, not {sizes[name]}")]
        except PackGone:
            raise
        except Corrupt as error:
            if len(frames) > 1:
                middle = len(frames) // 2
                yield from self._read_frames(pack, frames[:middle])
                yield from self._read_frames(pack, frames[middle:])
            elif len(frames[0]) > 1:
                for entry in frames[0]:
                    yield from self._read_frames(pack, [[entry]])
            else:
                yield [_corrupt(f"o:{frames[0][0].name}", str(error))]

    def check_bodies(
        self, batches: dict[int, str], leaves: dict[int, CommitLeaves], slots: SlotCounts
    ) -> ProblemPages:
        """Decompress the bodies of some commits, and note how many slots they have."""
        part_size = 1 << BODY_PART_BITS
        with self._database.reading() as session:
            sizes = list(
                rows_in_chunks(
                    session,
                    "SELECT b.key, length(b.frame) FROM commits c "
                    "JOIN body b ON b.space = c.space "
                    f"AND b.key >= c.no * {part_size} AND b.key < (c.no + 1) * {part_size} "
                    "WHERE c.space = ? AND c.no IN (@)",
                    (self._space,),
                    list(batches),
                )
            )
        self.bodies += len(sizes)
        if not self._reads:
            return
        for group in by_weight(sizes):
            with self._database.reading() as session:
                sql = (
                    "SELECT b.key, s.name, b.frame, b.salt, b.checksum FROM body b "
                    "LEFT JOIN scope s ON s.space = b.space AND s.no = b.scope "
                    "WHERE b.space = ? AND b.key IN (@)"
                )
                rows = list(rows_in_chunks(session, sql, (self._space,), group))
            problems: list[Problem] = []
            counts: list[tuple[int, int]] = []
            for key, scope, frame, salt, check in rows:
                commit_no, part = body_part(key)
                where = f"body {part} of commit {batches[commit_no]!r}"
                try:
                    check_body(self._space, key, scope, frame, salt, check, where=where)
                    sealed = frame_of(frame, where)
                    self.bytes += len(sealed)
                    contents = unpack_body(unseal(sealed, where), where)
                    detail = self._digests.body_problem(leaves.get(commit_no), part, scope, salt, contents)
                except (Corrupt, TypeError, ValueError) as error:
                    problems.append(_corrupt(where, str(error)))
                    continue
                if detail is not None:
                    problems.append(_corrupt(where, detail))
                counts.append((key, len(contents)))
            slots.add(counts)
            yield problems

    def check_lists(self) -> ProblemPages:
        """Check lengths, parents and items of all lists, or of those that grew since."""
        after = ""
        while True:
            with self._database.reading() as session:
                self._digests.catch_up(session)
                rows = session.rows(
                    "SELECT l.id, l.no, l.parent, l.start, l.length, l.depth, p.no, p.length, p.depth, "
                    "s.name, l.scope, p.id, l.seq, l.salt, l.checksum "
                    "FROM list l LEFT JOIN list p ON p.space = l.space AND p.no = l.parent "
                    "LEFT JOIN scope s ON s.space = l.space AND s.no = l.scope "
                    "WHERE l.space = ? AND l.id > ? AND l.seq > ? ORDER BY l.id LIMIT ?",
                    (self._space, after, self._since or _BEFORE_ALL, _LISTS),
                )
                if not rows:
                    return
                marks = ",".join("?" * len(rows))
                counts = session.rows(
                    f"SELECT l.no, sum({ITEM_COUNT}), min(i.key), max(i.key + {ITEM_COUNT} - 1) FROM list l "
                    f"JOIN item i ON {_ITEM_RANGE} "
                    f"WHERE l.space = ? AND l.no IN ({marks}) GROUP BY l.no",
                    [self._space, *(row[1] for row in rows)],
                )
            items = {no: tuple(count) for no, *count in counts}
            problems = [
                Problem(kind="list", where=f"l:{row[0]}", detail=detail)
                for row in rows
                if (detail := _list_problem(row, items.get(row[1], (0, 0, 0))))
            ]
            self.items += sum(count[0] for count in items.values())
            checks: dict[int, ListCheck] = {}
            for row in rows:
                try:
                    checks[row[1]] = self._list_check(row)
                except (Corrupt, TypeError, ValueError) as error:
                    problems.append(_corrupt(f"l:{row[0]}", str(error)))
            if self._reads:
                names = {row[1]: row[0] for row in rows}
                problems += self._check_items({no: count[0] for no, count in items.items()}, names, checks)
            if not problems:
                problems = self._differing(rows, checks)
            yield problems
            if len(rows) < _LISTS:
                return
            after = rows[-1][0]

    def _list_check(self, row: Row) -> ListCheck:
        list_id, no, parent, start, length, depth, _, _, _, scope, scope_no, parent_id, seq, salt, check = row
        state = ListState(no, scope_no, parent, start, length, depth, salt)
        check_list(self._space, list_id, state, scope, seq, check)
        appends = self._digests.appends(list_id, salt)
        if self._since and appends:  # those before are not known
            start = max(start, appends[0][0])
        return ListCheck(list_id, scope, parent_id, start, length, salt, appends)

    def _differing(self, rows: list[Row], checks: dict[int, ListCheck]) -> list[Problem]:
        """Return the lists that are not what was appended to them, unless they were erased meanwhile."""
        found = {
            row[1]: _corrupt(f"l:{row[0]}", detail)
            for row in rows
            if (detail := checks[row[1]].problem(with_items=self._reads))
        }
        if not found:
            return []
        with self._database.reading() as session:
            sql = "SELECT no FROM list WHERE space = ? AND no IN (@)"
            return [found[no] for (no,) in rows_in_chunks(session, sql, (self._space,), list(found))]

    def _check_items(
        self, counts: dict[int, int], names: dict[int, str], checks: dict[int, ListCheck]
    ) -> list[Problem]:
        problems: list[Problem] = []
        short = [no for no, count in counts.items() if count <= PAGE]
        for group in by_weight((no, counts[no] * (1 << 12)) for no in short):
            with self._database.reading() as session:
                marks = ",".join("?" * len(group))
                sql = (
                    f"SELECT i.key, coalesce(length(i.frame), 0) FROM list l JOIN item i ON {_ITEM_RANGE} "
                    f"WHERE l.space = ? AND l.no IN ({marks}) ORDER BY i.key"
                )
                sizes = session.rows(sql, [self._space, *group])
            problems += self._unfold_items(sizes, names, checks)
        for no in counts.keys() - set(short):
            after, sizes = item_key(no, 0) - 1, [()] * PAGE
            while len(sizes) == PAGE:
                with self._database.reading() as session:
                    sizes = session.rows(
                        "SELECT key, coalesce(length(frame), 0) FROM item "
                        "WHERE space = ? AND key > ? AND key < ? "
                        "ORDER BY key LIMIT ?",
                        (self._space, after, item_key(no + 1, 0), PAGE),
                    )
                problems += self._unfold_items(sizes, names, checks)
                after = sizes[-1][0] if sizes else after
        return problems

    def _unfold_items(
        self, sizes: list[Row], names: dict[int, str], checks: dict[int, ListCheck]
    ) -> list[Problem]:
        problems: list[Problem] = []
        for group in by_weight(sizes):
            with self._database.reading() as session:
                sql = "SELECT key, kind, frame, address, checksum FROM item WHERE space = ? AND key IN (@)"
                rows = sorted(rows_in_chunks(session, sql, (self._space,), group), key=itemgetter(0))
            for key, kind, frame, address, check in rows:
                list_no, position = key >> ITEM_POSITION_BITS, key & ITEM_POSITION_MASK
                where = f"item {position} of l:{names[list_no]}"
                try:
                    if item_checksum(self._space, key, kind, frame, address) != check:
                        raise Corrupt("it is not as it was written: its checksum differs")
                    for at, item in enumerate(self._items_in(kind, frame, address, where), position):
                        if list_no in checks:
                            checks[list_no].add(at, item)
                except (Corrupt, TypeError, ValueError) as error:
                    problems.append(_corrupt(where, str(error)))
        return problems

    def _items_in(
        self, kind: int | None, frame: bytes | None, address: str | None, where: str
    ) -> Sequence[Content | Address]:
        if frame is None:
            if address is None:
                raise Corrupt("its row has neither bytes nor an address")
            return [Address(address)]
        sealed = frame_of(frame, where)
        self.bytes += len(sealed)
        if is_item_block(kind):
            return unpack_item_block(kind, sealed, where)
        return [Content(kind_of(kind, where), unseal(sealed, where))]


def _list_problem(row: tuple[Any, ...], items: tuple[int, ...]) -> str | None:
    _, no, parent, start, length, depth, parent_no, parent_length, parent_depth, *_ = row
    count, first, last = items
    if count != length - start:
        return f"has {count} items, but its length requires {length - start}"
    if count and (first != item_key(no, start) or last != item_key(no, length - 1)):
        return f"its items are not at positions {start} to {length - 1}"
    if parent is None:
        return None if start == 0 and depth == 0 else "starts after a parent, but has none"
    if parent_no is None:
        return f"its parent (row {parent}) is not stored"
    if parent_length < start or parent_depth != depth - 1:
        return "is inconsistent with its parent"
    return None


def _corrupt(where: str, detail: str) -> Problem:
    return Problem(kind="corrupt", where=where, detail=detail)


_REPORT_EVERY: Final = 20
"""Pages between two progress reports."""


class SlotCounts:
    """How many slots each body has that was read: compared with the links to slots, once all are known."""

    def __init__(self, spill: SpillDatabase) -> None:
        self._spill = spill
        spill.rows("CREATE TABLE slot_count (key INTEGER PRIMARY KEY, count INTEGER)")

    def add(self, counts: list[tuple[int, int]]) -> None:
        """Note the numbers of slots of some bodies."""
        self._spill.many("INSERT OR IGNORE INTO slot_count VALUES (?, ?)", counts)

    def take(self) -> list[tuple[int, int]]:
        """Return what was noted, and forget it."""
        return self._spill.rows("DELETE FROM slot_count RETURNING key, count")

    def beyond(self) -> Iterator[list[tuple[int, int, int]]]:
        """Yield pages of links to slots that do not exist: key of the body, slot, number of slots."""
        after = b""
        while page := self._spill.rows(
            "SELECT key FROM slot WHERE key > ? ORDER BY key LIMIT ?", (after, PAGE)
        ):
            after = page[-1][0]
            places = [(int.from_bytes(slot[:8]), int.from_bytes(slot[8:])) for (slot,) in page]
            sql = "SELECT key, count FROM slot_count WHERE key >= ? AND key <= ?"
            counts = dict(self._spill.rows(sql, (places[0][0], places[-1][0])))
            yield [(key, slot, counts[key]) for key, slot in places if slot >= counts.get(key, slot + 1)]


def check(
    database: Database,
    objects: Objects,
    texts: TextIndex,
    space: int,
    *,
    read_content: bool = True,
    since: int = 0,
    archived: Callable[[], Iterable[Event]] = tuple,
) -> Iterator[Problem | Checked]:
    """Verify a space in this process; yield problems as they are found, and a `Checked` regularly.

    ``archived`` returns the events that are counted in the totals, but stored outside of the database.
    """
    with SpillDatabase() as spill:
        checking = Check(
            database,
            objects,
            texts,
            space,
            spill=spill,
            read_content=read_content,
            since=since,
            archived=archived,
        )
        reported = Reported(spill)
        for page, problems in enumerate((each for unit in UNITS for each in checking.pages(unit)), 1):
            yield from reported.new(problems)
            if page % _REPORT_EVERY == 0:
                yield checking.checked()
        yield checking.checked()


class Reported:
    """The problems reported so far: each is reported once."""

    def __init__(self, spill: SpillDatabase) -> None:
        self._known = SpillSet(spill, "reported", "text")

    def new(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        """Yield those that were not reported yet."""
        for problem in problems:
            if self._known.add({f"{problem.kind} {problem.where} {problem.detail}": 0}):
                yield problem


class Unit(NamedTuple):
    """A part of the checks: its name, and the range of keys that it is limited to."""

    name: str
    after: Any = None
    upto: Any = None


UNITS: Final = tuple(
    Unit(name)
    for name in (
        "links", "objects", "packs", "commits", "slots", "numbers", "lists", "events", "runs", "refs",
        "texts", "roll-ups",
    )
)  # fmt: skip
"""All checks, in the order of the report. Lists, refs and texts are compared with the commits read before."""


class Check:
    """The units of one check, with what they remember."""

    def __init__(
        self,
        database: Database,
        objects: Objects,
        texts: TextIndex,
        space: int,
        *,
        spill: SpillDatabase,
        read_content: bool,
        since: int,
        archived: Callable[[], Iterable[Event]] = tuple,
    ) -> None:
        self._database = database
        self._texts = texts
        self._since = since
        self._space = space
        self._spill = spill
        self._missing: list[BrokenLink] = []
        self._walk = Walk(database, objects, space, spill, with_slots=True, notice=self._missing.append)
        self._mark = Mark(database, space, lambda _what, _scope, _key: self._walk, precise=True)
        self._digests = DigestCheck(database, space, spill, since=since)
        self._contents = ContentChecker(
            database, objects, self._digests, space, read_content=read_content, since=since
        )
        self._recount = Recount(database, space, spill, archived)
        self.slots = SlotCounts(spill)
        self._refs = 0

    def pages(self, unit: Unit) -> Iterator[list[Problem]]:
        """Run one unit; yield its problems, one page at a time."""
        try:
            yield from self._pages_of(unit)
        except (Corrupt, *ODD) as error:  # of a value that no row should have; the rest is checked
            yield [_corrupt(unit.name, f"not all could be checked: {error!r}")]

    def _pages_of(self, unit: Unit) -> ProblemPages:
        reached = self._walk.objects if self._since else None
        match unit.name:
            case "links":
                return self._links()
            case "objects":
                return self._contents.check_objects(
                    after=unit.after or b"", upto=unit.upto or _LAST_NAME, only=reached
                )
            case "packs":
                return self._contents.check_packs(only=reached)
            case "commits":
                return self._commits(unit.after or 0, unit.upto)
            case "slots":
                return self._slots()
            case "numbers":
                return self._numbers()
            case "lists":
                return self._contents.check_lists()
            case "events":
                return self._events()
            case "runs":
                return self._digests.runs()
            case "refs":
                return self._check_refs()
            case "texts":  # they and the totals say nothing about when they were written
                return iter(()) if self._since else self._check_texts()
            case _:
                return iter(()) if self._since else self._recount.problems()

    def _links(self) -> Iterator[list[Problem]]:
        for _ in self._mark.steps(self._since):
            yield self._dangling()
        for _ in self._enter_lists():
            yield self._dangling()

    def read_notes(self) -> None:
        """Remember what commits say about lists, refs and texts, without checking the commits."""
        self._digests.read_notes()

    def checked(self) -> Checked:
        """Return how much was read so far."""
        return Checked(
            objects=self._contents.objects,
            bodies=self._contents.bodies,
            items=self._contents.items,
            events=self._recount.events,
            refs=self._refs,
            bytes=self._contents.bytes,
        )

    def _enter_lists(self) -> Iterator[None]:
        """Check unlinked lists as well: a writer may be about to link them."""
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT id, no, scope FROM list WHERE space = ? AND id > ? AND seq > ? "
                    "ORDER BY id LIMIT ?",
                    (self._space, after, self._since or _BEFORE_ALL, PAGE),
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
                where = self._location(session, missing.origin, missing.target)
                is_there = not missing.damage and self._is_stored(session, missing.target)
            if where is not None and missing.damage:
                found.append(Problem(kind="corrupt", where=where, detail=missing.damage))
            elif where is not None and not is_there:
                found.append(
                    Problem(kind="dangling", where=where, detail=f"{missing.target!r} is not stored")
                )
        return found

    def _location(self, session: Session, origin: LinkOrigin, target: str) -> str | None:
        """Describe the location of a link; None if it no longer exists."""
        what, key = origin
        if what == "event":
            rows = session.rows("SELECT id FROM event WHERE space = ? AND seq = ?", (self._space, key))
            return f"event {rows[0][0]!r}" if rows else None
        if what == "ref":
            rows = session.rows("SELECT links FROM ref WHERE space = ? AND name = ?", (self._space, key))
            return f"ref {key!r}" if rows and target in split_links(rows[0][0]) else None
        if what == "text":
            sql = "SELECT name FROM text WHERE space = ? AND no = ? AND source = ?"
            rows = session.rows(sql, (self._space, key, target))
            return f"text {rows[0][0]!r}" if rows else None
        if what == "item":
            list_no, position = key >> ITEM_POSITION_BITS, key & ((1 << ITEM_POSITION_BITS) - 1)
            rows = session.rows("SELECT id FROM list WHERE space = ? AND no = ?", (self._space, list_no))
            return f"item {position} of l:{rows[0][0]}" if rows else None
        if what == "body":
            commit_no, part = body_part(key)
            sql = (
                "SELECT batch FROM commits c WHERE space = ? AND no = ? "
                "AND EXISTS (SELECT 1 FROM body b WHERE b.space = c.space AND b.key = ?)"
            )
            rows = session.rows(sql, (self._space, commit_no, key))
            return f"body {part} of commit {rows[0][0]!r}" if rows else None
        sql = "SELECT 1 FROM object WHERE space = ? AND name = ?"
        return f"o:{key}" if session.rows(sql, (self._space, bytes.fromhex(key))) else None

    def _is_stored(self, session: Session, address: str) -> bool:
        match parse_address(address):
            case ObjectAddress(name):
                sql = "SELECT 1 FROM object WHERE space = ? AND name = ?"
                return bool(session.rows(sql, (self._space, bytes.fromhex(name))))
            case ListAddress(list_id):
                sql = "SELECT 1 FROM list WHERE space = ? AND id = ?"
                return bool(session.rows(sql, (self._space, list_id)))
            case SlotAddress(batch, part, _):
                sql = (
                    "SELECT 1 FROM commits c "
                    f"JOIN body b ON b.space = c.space AND b.key = c.no * {1 << BODY_PART_BITS} + ? "
                    "WHERE c.space = ? AND c.batch = ?"
                )
                return bool(session.rows(sql, (part, self._space, batch)))

    def _commits(self, after: int, upto: int | None) -> Iterator[list[Problem]]:
        """Check the digests of the commits in a range of numbers, and their bodies."""
        for rows, leaves, problems in self._digests.commits(max(after, self._since), upto):
            yield problems
            yield from self._contents.check_bodies({row[1]: row[0] for row in rows}, leaves, self.slots)

    def _slots(self) -> Iterator[list[Problem]]:
        """Check that all slots that something links to exist."""
        for page in self.slots.beyond():
            problems: list[Problem] = []
            for key, slot, count in page:
                with self._database.reading() as session:
                    where = self._location(session, LinkOrigin("body", key), "")
                if where is not None:
                    detail = f"something links to slot {slot}, but it has {count}"
                    problems.append(Problem(kind="dangling", where=where, detail=detail))
            yield problems

    def _numbers(self) -> Iterator[list[Problem]]:
        """Check the sequence numbers of all commits."""
        ranges = SpillSet(self._spill, "commit_range", "number")
        for rows in self._digests.numbers():
            problems: list[Problem] = []
            with self._database.reading() as session:
                ((seq,),) = session.rows("SELECT seq FROM space WHERE no = ?", (self._space,))
            new = set(ranges.add({row[2]: row[3] for row in rows}))
            for row in rows:
                detail = _commit_problem(row, seq)
                if row[2] not in new:
                    detail = f"another commit also has the number {row[2]}"
                new.discard(row[2])
                if detail is not None:
                    problems.append(Problem(kind="counter", where=f"commit {row[0]!r}", detail=detail))
            yield problems
        yield from self._overlaps(ranges)
        yield self._digests.counters()

    def _overlaps(self, ranges: SpillSet) -> Iterator[list[Problem]]:
        previous = after = 0
        while page := ranges.page(after, PAGE):
            after = page[-1][0]
            problems: list[Problem] = []
            for first, last in page:
                if first <= previous:
                    detail = f"a commit starts at {first}, but {previous} was already assigned"
                    problems.append(Problem(kind="counter", where="commits", detail=detail))
                previous = max(previous, last)
            yield problems

    def _events(self) -> Iterator[list[Problem]]:
        """Check that events belong to their commits, and count them for the totals."""
        if not self._since:
            for _ in self._recount.count():
                yield []
        after = self._since
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
                    "LEFT JOIN commits c ON c.space = e.space AND c.no = e.commit_no "
                    "LEFT JOIN scope s ON s.space = e.space AND s.no = e.scope "
                    "WHERE e.space = ? AND e.seq > ? AND e.seq <= ? "
                    "AND (c.no IS NULL OR s.no IS NULL OR e.seq < c.first_seq OR e.seq > c.last_seq)",
                    (self._space, after, upto),
                )
                days = wrong_days(session, self._space, after, upto)
                nameless = session.rows(
                    "SELECT e.id FROM event e LEFT JOIN run u ON u.space = e.space AND u.no = e.run "
                    "WHERE e.space = ? AND e.seq > ? AND e.seq <= ? AND e.run IS NOT NULL AND u.no IS NULL",
                    (self._space, after, upto),
                )
            yield (
                [
                    Problem(
                        kind="counter",
                        where=f"event {name!r}",
                        detail=f"{number} does not belong to its commit",
                    )
                    for name, number in stray
                ]
                + [
                    Problem(kind="dangling", where=f"event {name!r}", detail="the name of its run is missing")
                    for (name,) in nameless
                ]
                + [
                    Problem(kind="corrupt", where=f"event {name!r}", detail="its day is not that of its time")
                    for name in days
                ]
            )
            if len(rows) < PAGE:
                break
            after = upto
        if (last or 0) > seq:
            yield [Problem(kind="counter", where="space", detail=f"event {last} exceeds the counter, {seq}")]

    def _check_refs(self) -> Iterator[list[Problem]]:
        for count, problems in self._digests.refs():
            self._refs += count
            yield problems

    def _check_texts(self) -> Iterator[list[Problem]]:
        """Check every text and whether it is in the search index, and that nothing else is."""
        after = -(1 << 63)
        while True:
            with self._database.reading() as session:
                self._digests.catch_up(session)
                rows = session.rows(
                    f"{TEXT_SELECT} AND t.no > ? ORDER BY t.no LIMIT ?", (self._space, after, PAGE)
                )
                sql = "SELECT no, collection FROM text WHERE space = ? AND no IN (@)"
                numbers: dict[int, list[int]] = {}
                for no, collection in rows_in_chunks(session, sql, (self._space,), [row[0] for row in rows]):
                    numbers.setdefault(collection, []).append(no)
                lacking: set[int] = set()
                for collection, wanted in numbers.items():
                    lacking |= self._texts.lacking(session, collection, wanted)
            yield [
                Problem(kind="derived", where=f"text {row[3]!r}", detail="is not in the index; run reindex")
                for row in rows
                if row[0] in lacking
            ] + [
                _corrupt(f"text {row[3]!r}", detail)
                for row in rows
                if (detail := self._digests.text_problem(row))
            ]
            if len(rows) < PAGE:
                break
            after = rows[-1][0]
        with self._database.reading() as session:
            collections = session.rows(
                "SELECT c.name, c.no, count(t.no) FROM collection c "
                "LEFT JOIN text t ON t.space = c.space AND t.collection = c.no "
                "WHERE c.space = ? GROUP BY c.name, c.no ORDER BY c.no",
                (self._space,),
            )
            sizes = {no: self._texts.size(session, self._space, no) for _, no, _ in collections}
        yield [
            Problem(
                kind="derived",
                where=f"collection {name!r}",
                detail=f"has {count} texts, but {sizes[no]} are in its index; run reindex",
            )
            for name, no, count in collections
            if sizes[no] != count
        ]


def _commit_problem(row: Row, seq: int) -> str | None:
    batch, _, first, last, _, receipt = row[:6]
    if not 1 <= first <= last <= seq:
        return f"it has the numbers {first} to {last}, but only {seq} were assigned"
    try:
        unpack_receipt(batch, first, last, 0, receipt)
    except Corrupt as error:
        return str(error)
    return None
