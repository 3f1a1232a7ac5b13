"""The part of `verify` that compares rows with their checksums, and commits with their digests.

Commits are read in the order of their sequence numbers, together with their events. A row that was damaged is
named by its checksum. What was changed *with* its checksum, or dropped, or inserted, differs from the digest
of its commit, or from the leaf that the commit keeps of it (see `core.digests`). What replaces older rows is
compared with the newest commit that wrote it: a ref has the version of that commit, and a list consists of
exactly the items that were appended to it.

Writers continue meanwhile. So whatever is compared with the commits first catches up with those written
since, in the same transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from treering.core.batch import Text
from treering.core.clock import DAY_US
from treering.core.digests import (
    CommitLeaves,
    append_form,
    body_form,
    decode_leaves,
    event_form,
    item_form,
    leaf,
    list_tag,
    merkle_root,
    text_form,
)
from treering.core.records import CommitDigest, EventLeaf, Problem
from treering.engines.sql.commit.decide import unpack_receipt
from treering.engines.sql.rows import (
    COMMIT_COLUMNS,
    RECORD_SELECT,
    REF_SELECT,
    commit_checksum,
    read_record,
    record_of,
    ref_of,
    ref_row_form,
    run_number,
)
from treering.engines.sql.search import check_text
from treering.engines.sql.session import rows_in_chunks
from treering.engines.sql.spill import SpillDatabase, SpillSet
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from treering.core.content import Address, Content
    from treering.engines.sql.rows import Dictionary
    from treering.engines.sql.session import Database, Row, Session

PAGE: Final = 500
_EVENTS: Final = 5000
"""A page of commits has about this many events at most."""
_MARGIN: Final = 1000
"""Catching up looks at so many numbers again, as commits may become visible out of order."""
_COMMITS: Final = f"SELECT {', '.join(COMMIT_COLUMNS)} FROM commits WHERE space = ?"
_BEHIND: Final = "(last_seq > ? OR (last_seq = ? AND no > ?))"
_LARGEST: Final = (1 << 63) - 1
ODD: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What the values in a damaged row lead to."""


class DigestCheck:
    """Compares the rows of a space with its commits; `commits` or `read_notes` comes first."""

    def __init__(self, database: Database, space: int, spill: SpillDatabase, *, since: int = 0) -> None:
        self._database = database
        self._space = space
        self._spill = spill
        self._since = self._seen = since
        self._texts = SpillSet(spill, "text_leaf", "bytes")
        spill.rows(
            "CREATE TABLE newest (name TEXT PRIMARY KEY, version INTEGER, commit_no INTEGER) WITHOUT ROWID"
        )
        spill.rows(
            "CREATE TABLE appended (tag BLOB, at INTEGER, count INTEGER, leaf BLOB, "
            "PRIMARY KEY (tag, at, count, leaf)) WITHOUT ROWID"
        )

    # Commits and their events

    def commits(
        self, after_seq: int = 0, upto: int | None = None
    ) -> Iterator[tuple[list[Row], dict[int, CommitLeaves], list[Problem]]]:
        """Check the commits in a range; yield each page of them, with their leaves by number."""
        after = (after_seq, _LARGEST if after_seq else 0)
        while True:
            with self._database.reading() as session:
                rows, is_last = self._page(session, after, upto)
                problems, leaves = self._check_page(session, rows)
            yield rows, leaves, problems
            if is_last:
                return
            after = (rows[-1][3], rows[-1][1])

    def numbers(self) -> Iterator[list[Row]]:
        """Yield the first columns of all commits, one page at a time, in the same order."""
        after = (self._since, _LARGEST if self._since else 0)
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT batch, no, first_seq, last_seq, committed_at_us, receipt FROM commits "
                    f"WHERE space = ? AND {_BEHIND} ORDER BY last_seq, no LIMIT ?",
                    (self._space, after[0], *after, PAGE),
                )
            yield rows
            if len(rows) < PAGE:
                return
            after = (rows[-1][3], rows[-1][1])

    def read_notes(self) -> None:
        """Remember what the commits say about rows that outlive them, without checking the commits."""
        for page in self.numbers():
            if not page:
                return
            with self._database.reading() as session:
                sql = f"{_COMMITS} AND no IN (@)"
                for row in rows_in_chunks(session, sql, (self._space,), [each[1] for each in page]):
                    if _is_sound(row):
                        with suppress(Corrupt, *ODD):  # reported with the commit
                            self._note(row, decode_leaves(row[7], f"commit {row[0]!r}"))

    def _page(self, session: Session, after: tuple[int, int], upto: int | None) -> tuple[list[Row], bool]:
        until, values = ("", ()) if upto is None else (" AND last_seq <= ?", (upto,))
        found = session.rows(
            f"{_COMMITS} AND {_BEHIND}{until} ORDER BY last_seq, no LIMIT ?",
            (self._space, after[0], *after, *values, PAGE),
        )
        events = 0
        for count, row in enumerate(found):
            events += _span(row)
            if count and events > _EVENTS:
                return found[:count], False
        return found, len(found) < PAGE

    def _check_page(
        self, session: Session, rows: Sequence[Row]
    ) -> tuple[list[Problem], dict[int, CommitLeaves]]:
        if not rows:
            return [], {}
        problems: list[Problem] = []
        leaves: dict[int, CommitLeaves] = {}
        sound = [row for row in rows if _is_sound(row)]
        events: dict[int, Row] = {}
        if sound:
            events = self._events(session, min(row[2] for row in sound), max(row[3] for row in sound))
        for row in rows:
            where = f"commit {row[0]!r}"
            if row not in sound:
                problems.append(Problem(kind="corrupt", where=where, detail="its checksum differs"))
                continue
            try:
                leaves[row[1]] = found = decode_leaves(row[7], where)
                self._note(row, found)
                problems += self._check_commit(session, row, found, events)
            except (Corrupt, *ODD) as error:
                problems.append(Problem(kind="corrupt", where=where, detail=str(error)))
        return problems, leaves

    def _events(self, session: Session, first: int, last: int) -> dict[int, Row]:
        rows = session.rows(
            f"{RECORD_SELECT} WHERE e.space = ? AND e.seq >= ? AND e.seq <= ? ORDER BY e.seq",
            (self._space, first, last),
        )
        return {row[0]: row for row in rows}

    def _check_commit(
        self, session: Session, row: Row, leaves: CommitLeaves, events: dict[int, Row]
    ) -> list[Problem]:
        batch, first, last = row[0], row[2], row[3]
        found: dict[int, bytes] = dict(leaves.erased)
        problems: list[Problem] = []
        for seq in range(first, last + 1):
            if seq in events:
                found[seq - first] = b""
                try:
                    record = record_of(events[seq], session.dictionary)
                except (Corrupt, *ODD) as error:
                    where = f"event {events[seq][3]!r}"
                    problems.append(Problem(kind="corrupt", where=where, detail=str(error)))
                    continue
                found[seq - first] = leaf("event", events[seq][-2], event_form(record.event))
        if problems:
            return problems
        where = f"commit {batch!r}"
        if len(found) != leaves.events:
            gaps = [first + at for at in range(leaves.events) if at not in found]
            which = f", of {gaps[0]} to {gaps[-1]}" if len(found) < leaves.events and gaps else ""
            detail = f"it wrote {leaves.events} events, and {len(found)} are stored or erased{which}"
            return [Problem(kind="corrupt", where=where, detail=detail)]
        root = merkle_root([found[at] for at in sorted(found)])
        if leaves.digest(batch, root) != bytes(row[8]):
            detail = "its rows are not those it was committed with: their digest differs"
            return [Problem(kind="corrupt", where=where, detail=detail)]
        return []

    def _note(self, row: Row, leaves: CommitLeaves) -> None:
        """Remember what a commit says about rows that outlive it."""
        batch, no, first, last, at_us, stored = row[:6]
        self._spill.many(
            "INSERT OR IGNORE INTO appended VALUES (?, ?, ?, ?)",
            [(each.tag, each.at, each.count, each.leaf) for each in leaves.appends],
        )
        if leaves.texts:
            self._texts.add(dict.fromkeys(leaves.texts, int(no)))
        versions = unpack_receipt(batch, first, last, at_us, stored).versions
        self._spill.many(
            "INSERT INTO newest VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "version = excluded.version, commit_no = excluded.commit_no "
            "WHERE newest.version <= excluded.version",
            [(name, version, no) for name, version in versions.items() if version],
        )
        self._seen = max(self._seen, last)

    def catch_up(self, session: Session) -> None:
        """Remember the commits that were written since, as they are in this transaction."""
        after = self._seen - _MARGIN
        while True:
            rows = session.rows(
                f"{_COMMITS} AND last_seq > ? ORDER BY last_seq LIMIT ?", (self._space, after, PAGE)
            )
            for row in filter(_is_sound, rows):  # others are reported when it is their turn
                self._note(row, decode_leaves(row[7], f"commit {row[0]!r}"))
            if len(rows) < PAGE:
                return
            after = rows[-1][3]

    def counters(self) -> list[Problem]:
        """Check that the counters of the space are those of its last commit."""
        with self._database.reading() as session:
            rows = session.rows(
                "SELECT s.seq, s.committed_at_us, max(c.last_seq), max(c.committed_at_us) FROM space s "
                "LEFT JOIN commits c ON c.space = s.no WHERE s.no = ? GROUP BY s.seq, s.committed_at_us",
                (self._space,),
            )
        found = [
            f"{name} is {value}, but that of the last commit is {expected}"
            for seq, at_us, last_seq, last_at_us in rows
            for name, value, expected in (
                ("its counter", seq, last_seq),
                ("the time of its last commit", at_us, last_at_us),
            )
            if value != (expected or 0)
        ]
        return [Problem(kind="counter", where="space", detail=detail) for detail in found]

    def runs(self) -> Iterator[list[Problem]]:
        """Check the names of runs: their numbers follow from them."""
        after: Any = -(1 << 63)
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT no, name FROM run WHERE space = ? AND no >= ? ORDER BY no LIMIT ?",
                    (self._space, after, PAGE + 1),
                )
            yield [
                Problem(kind="corrupt", where=f"run {name!r}", detail=f"its number is not {no}")
                for no, name in rows
                if not isinstance(name, str) or run_number(name) != no
            ]
            if len(rows) <= PAGE:
                return
            after = rows[-1][0]

    # Refs

    def refs(self) -> Iterator[tuple[int, list[Problem]]]:
        """Check all refs; yield how many of each page exist, and its problems."""
        after = ""
        while True:
            with self._database.reading() as session:
                self.catch_up(session)
                rows = session.rows(
                    f"{REF_SELECT} WHERE r.space = ? AND r.name > ? AND r.seq > ? ORDER BY r.name LIMIT ?",
                    (self._space, after, self._since or -(1 << 63), PAGE),
                )
                leaves = self._leaves_of(session, {row[5] for row in rows})
            newest = self._newest([row[0] for row in rows])
            problems: list[Problem] = []
            for row in rows:
                detail = self._ref_problem(row, leaves.get(row[5]), newest.get(row[0]))
                if detail is not None:
                    problems.append(Problem(kind="corrupt", where=f"ref {row[0]!r}", detail=detail))
            yield sum(row[3] is not None for row in rows), problems
            if len(rows) < PAGE:
                break
            after = rows[-1][0]
        yield 0, self._missing_refs()

    def _leaves_of(self, session: Session, seqs: set[Any]) -> dict[int, CommitLeaves]:
        """Return the leaves of the commits that end with these numbers."""
        numbers = [seq for seq in seqs if isinstance(seq, int)]
        sql = "SELECT last_seq, batch, leaves FROM commits WHERE space = ? AND last_seq IN (@)"
        found: dict[int, CommitLeaves] = {}
        for seq, batch, stored in rows_in_chunks(session, sql, (self._space,), numbers):
            try:
                found[seq] = decode_leaves(stored, f"commit {batch!r}")
            except Corrupt:  # reported with its commit
                continue
        return found

    def _newest(self, names: list[str]) -> dict[str, int]:
        marks = ",".join("?" * len(names))
        return dict(self._spill.rows(f"SELECT name, version FROM newest WHERE name IN ({marks})", names))  # pyright: ignore[reportArgumentType]

    def _ref_problem(self, row: Row, leaves: CommitLeaves | None, newest: int | None) -> str | None:
        try:
            ref = ref_of(row)
        except (Corrupt, *ODD) as error:
            return str(error)
        if leaves is not None and leaf("ref", bytes(row[-2]), ref_row_form(row, ref)) not in leaves.refs:
            return f"it is not what the commit of number {ref.seq} set"
        if leaves is None:
            return f"no commit ends with the number {ref.seq}, at which it was set"
        if newest is not None and ref.version < newest:
            return f"it is at version {ref.version}, but a commit set it to {newest}"
        if ref.version < 1 and row[3] is not None:
            return f"its version is {ref.version}"
        return None

    def _missing_refs(self) -> list[Problem]:
        problems: list[Problem] = []
        after = ""
        while page := self._spill.rows(
            "SELECT name, commit_no FROM newest WHERE name > ? ORDER BY name LIMIT ?", (after, PAGE)
        ):
            after = page[-1][0]
            with self._database.reading() as session:
                names = dict(page)  # pyright: ignore[reportArgumentType]
                sql = "SELECT name FROM ref WHERE space = ? AND name IN (@)"
                for (name,) in rows_in_chunks(session, sql, (self._space,), list(names)):
                    names.pop(name, None)
                for name, no in names.items():
                    sql = f"{_COMMITS} AND no = ?"
                    for row in session.rows(sql, (self._space, no)):
                        if name in unpack_receipt(row[0], 0, 0, 0, row[5]).versions:  # not erased meanwhile
                            detail = f"commit {row[0]!r} set it, and its row is missing"
                            problems.append(Problem(kind="corrupt", where=f"ref {name!r}", detail=detail))
        return problems

    # Bodies, texts and lists

    def body_problem(
        self, leaves: CommitLeaves | None, part: int, scope: str, salt: bytes, contents: list[Content]
    ) -> str | None:
        """Return what is wrong with a body, compared with its commit."""
        if leaves is None:
            return None  # reported with its commit
        if part < len(leaves.bodies):
            if leaf("body", salt, body_form(part, scope, contents)) == leaves.bodies[part]:
                return None
            return "it is not what its commit wrote"
        return f"its commit wrote {len(leaves.bodies)} bodies"

    def text_problem(self, row: Row) -> str | None:
        """Return what is wrong with a row of `TEXT_SELECT`; call `catch_up` before it is read."""
        try:
            check_text(self._space, row)
        except (Corrupt, *ODD) as error:
            return str(error)
        _, collection, _, name, namespace, scope, source, salt, _ = row
        text = Text(collection=collection, name=name, scope=scope, source=source, namespace=namespace)
        is_known = self._texts.among([leaf("text", bytes(salt), text_form(text))])
        return None if is_known else "no commit has put it into the index"

    def appends(self, list_id: str, salt: bytes) -> list[Row]:
        """Return the appends to a list: position, count and leaf, in order."""
        return self._spill.rows(
            "SELECT at, count, leaf FROM appended WHERE tag = ? ORDER BY at, count",
            (list_tag(list_id, salt),),
        )


class ListCheck:
    """Compares the items of one list, given in order, with the appends that commits keep leaves of."""

    def __init__(
        self,
        list_id: str,
        scope: str,
        parent: str | None,
        start: int,
        length: int,
        salt: bytes,
        appends: Iterable[Row],
    ) -> None:
        self._list = (list_id, scope)
        self._parent = parent
        self._start = start
        self._salt = salt
        self._appends: list[tuple[int, int, bytes]] = [
            (at, count, leaf) for at, count, leaf in appends if count
        ]
        self._next: int = 0
        self._position = start
        self._digest = sha256()
        self._differs: int | None = None
        places = [(at, at + count) for at, count, _ in self._appends]
        ends = [start, *(end for _, end in places)]
        self._is_whole = [at for at, _ in places] == ends[:-1] and ends[-1] == length

    def add(self, position: int, item: Content | Address) -> None:
        """Take the next item."""
        if position != self._position or self._next == len(self._appends):
            return  # reported with the list, or by the number of appends
        self._digest.update(item_form(item))
        self._position += 1
        at, count, expected = self._appends[self._next]
        if self._position == at + count:
            items = self._digest.digest()
            parents = {None, self._parent} if at == self._start else {None}
            forms = [append_form(*self._list, parent, at, count, items) for parent in parents]
            if expected not in [leaf("append", self._salt, form) for form in forms]:
                self._differs = at if self._differs is None else self._differs
            self._digest = sha256()
            self._next += 1

    def problem(self, *, with_items: bool) -> str | None:
        """Return what is wrong with the list, once it has been given all items."""
        if not self._is_whole:
            return "its length is not that of what was appended to it"
        if with_items and self._differs is not None:
            return f"its items from {self._differs} on are not what was appended"
        return None


def commit_digests(session: Session, space: int, after_seq: int, limit: int) -> list[CommitDigest]:
    """Return the next commits behind a sequence number, with the leaves of their events, as they are now."""
    rows = session.rows(
        f"{_COMMITS} AND last_seq > ? ORDER BY last_seq LIMIT ?", (space, after_seq, min(limit, PAGE))
    )
    total = 0
    for count, row in enumerate(rows):
        total += _span(row)
        if count and total > _EVENTS:
            rows = rows[:count]
            break
    if not rows:
        return []
    records = session.rows(
        f"{RECORD_SELECT} WHERE e.space = ? AND e.seq >= ? AND e.seq <= ? ORDER BY e.seq",
        (space, rows[0][2], rows[-1][3]),
    )
    events = [_event_leaf(row, session.dictionary) for row in records]
    numbers = [row[0] for row in records]
    found: list[CommitDigest] = []
    for batch, _, first, last, at_us, stored, _, leaves, digest, _ in rows:
        own = range(bisect_left(numbers, first), bisect_right(numbers, last))
        found.append(
            CommitDigest(
                batch=batch,
                first_seq=first,
                last_seq=last,
                committed_at_us=at_us,
                digest=bytes(digest),
                leaves=decode_leaves(leaves, f"commit {batch!r}"),
                events=tuple([structs.replace(events[at], at=numbers[at] - first) for at in own]),
                refs=tuple(unpack_receipt(batch, first, last, at_us, stored).versions),
            )
        )
    return found


def _event_leaf(row: Row, dictionary: Dictionary) -> EventLeaf:
    """Return the leaf of the row as it is; an empty one if it cannot be read."""
    salt, name = bytes(row[-2]), str(row[3])
    try:
        return EventLeaf(0, name, salt, leaf("event", salt, event_form(read_record(row, dictionary).event)))
    except (Corrupt, *ODD):
        return EventLeaf(0, name, salt, b"")


def wrong_days(session: Session, space: int, first: int, last: int) -> list[str]:
    """Return the ids of events whose day is not that of their time."""
    rows = session.rows(
        f"SELECT id FROM event WHERE space = ? AND seq > ? AND seq <= ? AND day <> ts_us / {DAY_US}",
        (space, first, last),
    )
    return [name for (name,) in rows]


def _is_sound(row: Row) -> bool:
    try:
        return commit_checksum(row[:9]) == row[9]
    except ODD:
        return False


def _span(row: Row) -> int:
    first, last = row[2], row[3]
    return last - first + 1 if isinstance(first, int) and isinstance(last, int) else 1
