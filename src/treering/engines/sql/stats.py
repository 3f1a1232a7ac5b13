"""Statistics of a space: rows, and stored bytes by kind and by day.

Nothing is counted during writes. The tables are read along indexes that start with the space, in pages with a
short transaction each, so that measuring a large store blocks nobody. The numbers of a store that is being
written to are therefore not from a single moment. Bytes are those of the stored values (compressed, without
the overhead of the database); a pack counts with the size of its file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from treering.core.clock import DAY_US
from treering.core.records import SpaceStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.engines.sql.session import Database, Row

_PAGE: Final = 20_000

_COMMITS: Final = (
    f"SELECT committed_at_us / {DAY_US}, COUNT(*), MAX(last_seq), "
    "SUM(length(batch) + COALESCE(length(receipt), 0) + COALESCE(length(links), 0)) "
    "FROM commits WHERE space = ? AND @ GROUP BY 1"
)
_BODIES: Final = (
    f"SELECT c.committed_at_us / {DAY_US}, COUNT(*), SUM(length(b.frame)) FROM commits c "
    "JOIN body b ON b.space = c.space AND b.key >= c.no * 65536 AND b.key < (c.no + 1) * 65536 "
    "WHERE c.space = ? AND @ GROUP BY 1"
)
_EVENTS: Final = (
    f"SELECT c.committed_at_us / {DAY_US}, COUNT(*), SUM(length(e.id) + COALESCE(length(e.data), 0) "
    "+ COALESCE(length(e.body), 0) + COALESCE(length(e.links), 0)) "
    "FROM event e JOIN commits c ON c.space = e.space AND c.no = e.commit_no WHERE e.space = ? AND @ "
    "GROUP BY 1"
)
_OBJECTS: Final = (
    f"SELECT stored_at_us / {DAY_US}, COUNT(*), SUM(COALESCE(length(frame), 0)) "
    "FROM object WHERE space = ? AND @ GROUP BY 1"
)
_PACKS: Final = f"SELECT created_at_us / {DAY_US}, COUNT(*), SUM(size) FROM pack WHERE space = ? GROUP BY 1"
_REFS: Final = (
    f"SELECT changed_at_us / {DAY_US}, SUM(CASE WHEN value IS NULL THEN 0 ELSE 1 END), "
    "SUM(length(name) + COALESCE(length(value), 0) + COALESCE(length(links), 0)) "
    "FROM ref WHERE space = ? AND @ GROUP BY 1"
)
_LISTS: Final = "SELECT COUNT(*), SUM(length - start) FROM list WHERE space = ? AND @"
_ITEMS: Final = (
    "SELECT l.seq, SUM(COALESCE(length(i.frame), 0) + COALESCE(length(i.address), 0)) FROM list l "
    "JOIN item i ON i.space = l.space AND i.key >= l.no * 4294967296 AND i.key < (l.no + 1) * 4294967296 "
    "WHERE l.space = ? AND @ GROUP BY l.seq"
)
_TEXTS: Final = (
    "SELECT c.no, COUNT(*) FROM collection c JOIN text t ON t.space = c.space AND t.collection = c.no "
    "WHERE c.space = ? GROUP BY c.no"
)
_INDEX: Final = {
    "sqlite": "SELECT SUM(length(block)) FROM fts_{1}_data",
    "postgresql": "SELECT SUM(pg_column_size(terms)) FROM fts WHERE space = {0} AND collection = {1}",
}

_KINDS: Final = ("objects", "packs", "bodies", "items", "events", "refs", "commits", "index")
"""``objects`` counts those in rows; all others are included in ``packs``."""


def stats(database: Database, space: int, space_name: str) -> SpaceStats:
    """Measure a space."""
    return _Count(database, space).result(space_name)


class _Count:
    def __init__(self, database: Database, space: int) -> None:
        self._database = database
        self._space = space
        self._bytes: Counter[str] = Counter()
        self._growth: Counter[int] = Counter()

    def result(self, space_name: str) -> SpaceStats:
        days: dict[int, int] = {}
        commits = 0
        for day, count, last_seq, size in self._pages(_COMMITS, "commits", "batch"):
            commits += count
            days[day] = max(days.get(day, 0), last_seq)
            self._add("commits", day, size)
        lists = items = 0
        for count, length in self._pages(_LISTS, "list", "id"):
            lists += count
            items += int(length or 0)
        self._count_items(sorted((last_seq, day) for day, last_seq in days.items()))
        self._by_day("bodies", self._pages(_BODIES, "commits", "batch", prefix="c."))
        self._by_day("packs", self._rows(_PACKS))
        texts = self._count_index()
        return SpaceStats(
            space=space_name,
            commits=commits,
            events=self._by_day("events", self._pages(_EVENTS, "event", "seq", prefix="e.")),
            refs=self._by_day("refs", self._pages(_REFS, "ref", "name")),
            lists=lists,
            items=items,
            objects=self._by_day("objects", self._pages(_OBJECTS, "object", "name")),
            texts=texts,
            bytes={kind: self._bytes[kind] for kind in _KINDS},
            growth_bytes=dict(sorted(self._growth.items())),
        )

    def _by_day(self, kind: str, rows: Iterable[Row]) -> int:
        total = 0
        for day, count, size in rows:
            total += int(count)
            self._add(kind, day, size)
        return total

    def _count_items(self, ends: list[tuple[int, int]]) -> None:
        """Items have no time: they count for the day on which their list last grew."""
        for seq, size in self._pages(_ITEMS, "list", "id", prefix="l."):
            at = min(bisect_left(ends, (seq, 0)), len(ends) - 1)
            self._add("items", ends[at][1] if ends else 0, size)

    def _count_index(self) -> int:
        """The search index is derived, so it is not growth, but its size is counted."""
        total = 0
        for collection, count in self._rows(_TEXTS):
            total += int(count)
            sql = _INDEX[self._database.dialect].format(self._space, collection)
            with self._database.reading() as session:
                ((size,),) = session.rows(sql)
            self._bytes["index"] += int(size or 0)
        return total

    def _add(self, kind: str, day: int, size: int | None) -> None:
        self._bytes[kind] += int(size or 0)
        self._growth[int(day)] += int(size or 0)

    def _rows(self, sql: str) -> list[Row]:
        with self._database.reading() as session:
            return session.rows(sql, (self._space,))

    def _pages(self, sql: str, table: str, key: str, *, prefix: str = "") -> Iterator[Row]:
        """Yield the rows of an aggregate over consecutive ranges of a table, with a transaction for each."""
        low: Any = None
        while True:
            with self._database.reading() as session:
                behind = f"AND {key} > ?" if low is not None else ""
                bounds = [] if low is None else [low]
                ends = session.rows(
                    f"SELECT {key} FROM {table} WHERE space = ? {behind} "
                    f"ORDER BY {key} LIMIT 1 OFFSET {_PAGE - 1}",
                    (self._space, *bounds),
                )
                condition = " AND ".join(
                    [f"{prefix}{key} > ?"] * len(bounds) + [f"{prefix}{key} <= ?"] * len(ends) or ["1 = 1"]
                )
                high = [row[0] for row in ends]
                rows = session.rows(sql.replace("@", condition), (self._space, *bounds, *high))
            yield from rows
            if not ends:
                return
            low = high[0]
