"""Reading everything back: objects, packs, bodies and items, each against its own checksum or name.

Rows are read in pages of bounded bytes; a pack is read once, from its beginning to its end. What a page
found missing is looked at again later by the caller; what is damaged is damaged, and every piece of it is
named, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from treering.core.body import unpack_body
from treering.core.content import object_name
from treering.core.frame import unseal
from treering.core.packs import PackEntry, frames_of
from treering.core.records import Problem
from treering.engines.keys import BODY_PART_BITS, ITEM_POSITION_BITS, item_key
from treering.engines.relational.objects import Located, PackGone
from treering.engines.relational.reading import body_part
from treering.engines.relational.rows import frame_of, kind_of
from treering.engines.relational.session import in_chunks
from treering.engines.relational.sheaves import COUNT, is_sheaf, unbind
from treering.engines.relational.walking import PAGE, by_weight, slot_key
from treering.errors import Corrupt

if TYPE_CHECKING:
    from treering.engines.relational.objects import Objects
    from treering.engines.relational.scratch import Scratch
    from treering.engines.relational.session import Database, Row

Found = Iterator[list[Problem]]
"""Problems, a page at a time; most pages have none."""

_LISTS: Final = 256
_ITEM_RANGE: Final = (
    f"i.key >= l.no * {1 << ITEM_POSITION_BITS} AND i.key < (l.no + 1) * {1 << ITEM_POSITION_BITS}"
)


class Contents:
    """The content of a space, and how much of it was read so far."""

    def __init__(self, database: Database, objects: Objects, space: int, *, read_content: bool) -> None:
        self._database = database
        self._store = objects
        self._space = space
        self._reads = read_content
        self.objects = self.bodies = self.items = self.bytes = 0

    # Objects in rows
    def check_objects(self) -> Found:
        """Rehash the objects that lie in rows."""
        after = b""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT o.name, length(o.frame), p.no FROM object o LEFT JOIN pack p ON p.no = o.pack "
                    "WHERE o.space = ? AND o.name > ? ORDER BY o.name LIMIT ?",
                    (self._space, after, PAGE),
                )
            problems = [
                _corrupt(f"o:{bytes(name).hex()}", "its row says neither bytes nor an existing pack")
                for name, size, pack in rows
                if size is None and pack is None
            ]
            self.objects += sum(size is not None for _, size, _ in rows)
            if self._reads:
                for group in by_weight((bytes(name), size) for name, size, _ in rows if size is not None):
                    problems += self._rehash(group)
            yield problems
            if len(rows) < PAGE:
                return
            after = bytes(rows[-1][0])

    def _rehash(self, names: list[bytes]) -> list[Problem]:
        problems: list[Problem] = []
        with self._database.reading() as session:
            sql = (
                "SELECT name, kind, size, frame FROM object "
                "WHERE space = ? AND frame IS NOT NULL AND name IN (@)"
            )
            rows = list(in_chunks(session, sql, (self._space,), names))
        for key, number, size, frame in rows:
            name = bytes(key).hex()
            where = f"object {name}"
            try:
                sealed = frame_of(frame, where)
                self.bytes += len(sealed)
                kind, data = kind_of(number, where), unseal(sealed, where)
                if len(data) != size or object_name(kind, data) != name:
                    raise Corrupt("the bytes do not hash to this name")
            except Corrupt as error:
                problems.append(_corrupt(f"o:{name}", str(error)))
        return problems

    # Objects in packs
    def check_packs(self) -> Found:
        """Rehash the objects that lie in packs; without reading content, only see whether packs are there."""
        after = 0
        while True:
            with self._database.reading() as session:
                packs = session.rows(
                    "SELECT no, name, size FROM pack WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                    (self._space, after, PAGE),
                )
            for no, name, size in packs:
                yield self._check_pack(no, name, size)
            if len(packs) < PAGE:
                return
            after = packs[-1][0]

    def _check_pack(self, no: int, name: str, size: int) -> list[Problem]:
        with self._database.reading() as session:
            rows = session.rows(
                'SELECT name, kind, size, "offset", length, inner_offset FROM object WHERE pack = ?', (no,)
            )
        entries: list[PackEntry] = []
        problems: list[Problem] = []
        for key, kind, *place in rows:
            entry_name = bytes(key).hex()
            try:
                entries.append(PackEntry(entry_name, kind_of(kind, f"object {entry_name}"), *place))
            except Corrupt as error:
                problems.append(_corrupt(f"o:{entry_name}", str(error)))
        self.objects += len(entries)
        outside = [entry.name for entry in entries if entry.offset + entry.length > size]
        problems += [_corrupt(f"o:{each}", f"its place is outside of pack {name}") for each in outside]
        frames = list(frames_of(entries).values())
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
                still = session.rows("SELECT 1 FROM object WHERE pack = ? LIMIT 1", (no,))
            if still:
                return [*problems, _corrupt(f"pack {name}", str(error))]
        return problems

    def _read_frames(self, pack: str, frames: list[list[PackEntry]]) -> Found:
        """Read all of a pack in as few requests as it takes; where something is damaged, frame by frame."""
        try:
            entries = [entry for frame in frames for entry in frame]
            for _, content in self._store.stream(Located((), {pack: entries})):
                self.bytes += len(content.data)
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

    # Bodies
    def check_bodies(self, batches: dict[int, str], slots: Scratch) -> Found:
        """Unfold the bodies of some commits, and look whether all slots that something links to are there."""
        part_size = 1 << BODY_PART_BITS
        with self._database.reading() as session:
            sizes = list(
                in_chunks(
                    session,
                    "SELECT b.key, length(b.frame) FROM commits c "
                    f"JOIN body b ON b.key >= c.no * {part_size} AND b.key < (c.no + 1) * {part_size} "
                    "WHERE c.no IN (@)",
                    (),
                    list(batches),
                )
            )
        self.bodies += len(sizes)
        if not self._reads:
            return
        for group in by_weight(sizes):
            with self._database.reading() as session:
                rows = list(in_chunks(session, "SELECT key, frame FROM body WHERE key IN (@)", (), group))
            problems: list[Problem] = []
            for key, frame in rows:
                commit_no, part = body_part(key)
                where = f"body {part} of commit {batches[commit_no]!r}"
                try:
                    sealed = frame_of(frame, where)
                    self.bytes += len(sealed)
                    count = len(unpack_body(unseal(sealed, where), where))
                except Corrupt as error:
                    problems.append(_corrupt(where, str(error)))
                    continue
                for (slot,) in slots.rows(
                    "SELECT key FROM slot WHERE key >= ? AND key < ?",
                    (slot_key(key, count), slot_key(key + 1, 0)),
                ):
                    index = int.from_bytes(slot[8:], "big")
                    detail = f"something links to slot {index}, and there are {count}"
                    problems.append(Problem(kind="dangling", where=where, detail=detail))
            yield problems

    # Lists
    def check_lists(self) -> Found:
        """Lengths, parents and items of all lists."""
        after = ""
        while True:
            with self._database.reading() as session:
                rows = session.rows(
                    "SELECT l.id, l.no, l.parent, l.start, l.length, l.depth, p.no, p.length, p.depth "
                    "FROM list l LEFT JOIN list p ON p.no = l.parent "
                    "WHERE l.space = ? AND l.id > ? ORDER BY l.id LIMIT ?",
                    (self._space, after, _LISTS),
                )
                if not rows:
                    return
                marks = ",".join("?" * len(rows))
                counts = session.rows(
                    f"SELECT l.no, sum({COUNT}), min(i.key), max(i.key + {COUNT} - 1) FROM list l "
                    f"JOIN item i ON {_ITEM_RANGE} WHERE l.no IN ({marks}) GROUP BY l.no",
                    [row[1] for row in rows],
                )
            items = {no: tuple(count) for no, *count in counts}
            problems = [
                Problem(kind="list", where=f"l:{row[0]}", detail=detail)
                for row in rows
                if (detail := _list_problem(row, items.get(row[1], (0, 0, 0))))
            ]
            self.items += sum(count[0] for count in items.values())
            if self._reads:
                names = {row[1]: row[0] for row in rows}
                problems += self._check_items({no: count[0] for no, count in items.items()}, names)
            yield problems
            if len(rows) < _LISTS:
                return
            after = rows[-1][0]

    def _check_items(self, counts: dict[int, int], names: dict[int, str]) -> list[Problem]:
        problems: list[Problem] = []
        short = [no for no, count in counts.items() if count <= PAGE]
        for group in by_weight((no, counts[no] * (1 << 12)) for no in short):
            with self._database.reading() as session:
                marks = ",".join("?" * len(group))
                sql = (
                    f"SELECT i.key, coalesce(length(i.frame), 0) FROM list l JOIN item i ON {_ITEM_RANGE} "
                    f"WHERE l.no IN ({marks})"
                )
                sizes = session.rows(sql, group)
            problems += self._unfold_items(sizes, names)
        for no in counts.keys() - set(short):
            after, sizes = item_key(no, 0) - 1, [()] * PAGE
            while len(sizes) == PAGE:
                with self._database.reading() as session:
                    sizes = session.rows(
                        "SELECT key, coalesce(length(frame), 0) FROM item WHERE key > ? AND key < ? "
                        "ORDER BY key LIMIT ?",
                        (after, item_key(no + 1, 0), PAGE),
                    )
                problems += self._unfold_items(sizes, names)
                after = sizes[-1][0] if sizes else after
        return problems

    def _unfold_items(self, sizes: list[Row], names: dict[int, str]) -> list[Problem]:
        problems: list[Problem] = []
        for group in by_weight(sizes):
            with self._database.reading() as session:
                sql = "SELECT key, kind, frame, address FROM item WHERE key IN (@)"
                rows = list(in_chunks(session, sql, (), group))
            for key, kind, frame, address in rows:
                where = (
                    f"item {key & ((1 << ITEM_POSITION_BITS) - 1)} of l:{names[key >> ITEM_POSITION_BITS]}"
                )
                if frame is None:
                    if address is None:
                        problems.append(_corrupt(where, "its row has neither bytes nor an address"))
                    continue
                try:
                    sealed = frame_of(frame, where)
                    self.bytes += len(sealed)
                    if is_sheaf(kind):
                        unbind(kind, sealed, where)
                    else:
                        unseal(sealed, where)
                        kind_of(kind, where)
                except Corrupt as error:
                    problems.append(_corrupt(where, str(error)))
        return problems


def _list_problem(row: tuple[Any, ...], items: tuple[int, ...]) -> str | None:
    _, no, parent, start, length, depth, parent_no, parent_length, parent_depth = row
    count, first, last = items
    if count != length - start:
        return f"has {count} items where its length says {length - start}"
    if count and (first != item_key(no, start) or last != item_key(no, length - 1)):
        return f"its items do not lie at the positions {start} to {length - 1}"
    if parent is None:
        return None if start == 0 and depth == 0 else "begins behind a parent that it does not have"
    if parent_no is None:
        return f"its parent (row {parent}) is not stored"
    if parent_length < start or parent_depth != depth - 1:
        return "does not fit its parent"
    return None


def _corrupt(where: str, detail: str) -> Problem:
    return Problem(kind="corrupt", where=where, detail=detail)
