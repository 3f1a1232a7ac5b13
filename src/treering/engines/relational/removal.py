"""Removal: deleting what is condemned, in an order that can stop anywhere.

Lists go before their parents, then bodies, then trees before what they name, then all other objects. Whatever
is left at any moment therefore still has everything that it points at, so a commit that names a condemned
address between two slices either finds all of it or is told that it is missing. A slice is one transaction,
which the caller opens; what the walk has reached by then is spared. **Invariant:** no slice leaves an address
behind that leads nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.tree import links_of
from treering.engines.keys import item_key
from treering.engines.relational.remembered import count_removal
from treering.engines.relational.session import Session, in_chunks
from treering.engines.relational.writing import STAGE_SECONDS
from treering.errors import Corrupt

if TYPE_CHECKING:
    from treering.core.content import Content
    from treering.engines.relational.objects import Objects
    from treering.engines.relational.scratch import Scratch
    from treering.engines.relational.session import Database
    from treering.engines.relational.walking import Walk

Opener = Callable[[], AbstractContextManager[Session]]
"""Opens the transaction of a slice, in which the walk has caught up."""

SLICE: Final = 2000
"""Rows that one slice deletes at most (a single longer list aside)."""

_TREES: Final = 64
_WIDTHS: Final = {"dead_list": 4, "dead_body": 2, "dead_object": 3, "dead_tree": 4}
_STAGE_US: Final = STAGE_SECONDS * 1_000_000

_UNUSED_SCOPE: Final = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} x WHERE x.scope = scope.no)"
    for table in ("body", "event", "list", "ref", "text")
)


_UNUSED_RUN: Final = "NOT EXISTS (SELECT 1 FROM event x WHERE x.space = run.space AND x.run = run.no)"


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed, or would be."""

    lists: int = 0
    bodies: int = 0
    objects: int = 0
    bytes: int = 0


class Removal:
    """What is condemned. ``walk`` knows what is spared.

    ``before_us`` says how old objects have to be; one that was staged again is spared together with all
    that it leads to. ``note_packs`` is told in which packs objects lie, in the transaction that deletes them.
    """

    def __init__(
        self,
        database: Database,
        objects: Objects,
        space: int,
        scratch: Scratch,
        walk: Walk,
        *,
        before_us: int,
        note_packs: Callable[[Session, set[int]], None] | None = None,
    ) -> None:
        self._database = database
        self._store = objects
        self._space = space
        self._scratch = scratch
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
            scratch.rows(statement)

    # Condemning
    def lists(self, session: Session, numbers: Sequence[int]) -> None:
        """Condemn lists."""
        for no, depth, start, length in in_chunks(
            session, "SELECT no, depth, start, length FROM list WHERE no IN (@)", (), numbers
        ):
            ((size,),) = session.rows(
                "SELECT coalesce(sum(length(frame)), 0) FROM item WHERE key >= ? AND key < ?", _items(no)
            )
            self._put("dead_list", [(no, depth, length - start, int(size))])

    def bodies(self, session: Session, keys: Sequence[int]) -> None:
        """Condemn bodies."""
        rows = in_chunks(session, "SELECT key, length(frame) FROM body WHERE key IN (@)", (), keys)
        self._put("dead_body", rows)

    def objects(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Condemn objects: name, whether it is a tree, stored bytes, pack."""
        trees: list[tuple[Any, ...]] = []
        others: list[tuple[Any, ...]] = []
        for name, is_tree, size, pack in rows:
            if is_tree:
                trees.append((name, size, pack, 0))
            else:
                others.append((name, size, pack))
        self._put("dead_tree", trees)
        self._put("dead_object", others)

    def is_condemned(self, names: Sequence[bytes]) -> set[bytes]:
        """Which of these objects are condemned and not spared."""
        found: set[bytes] = set()
        for table in ("dead_object", "dead_tree"):
            for start in range(0, len(names), SLICE):
                marks = ",".join("?" * len(names[start : start + SLICE]))
                rows = self._scratch.rows(
                    f"SELECT key FROM {table} d WHERE key IN ({marks}) AND {_spared('object')}",
                    names[start : start + SLICE],
                )
                found.update(key for (key,) in rows)
        return found

    @property
    def tally(self) -> Tally:
        """What was removed so far."""
        return Tally(lists=self._lists, bodies=self._bodies, objects=self._objects, bytes=self._bytes)

    @property
    def outlook(self) -> Tally:
        """What would be removed now."""
        lists, size = self._sum("dead_list", "list")
        bodies, more = self._sum("dead_body", "body")
        objects, packed = self._sum("dead_object", "object")
        trees, rest = self._sum("dead_tree", "object")
        return Tally(lists=lists, bodies=bodies, objects=objects + trees, bytes=size + more + packed + rest)

    # Deleting
    def run(self, opened: Opener, *, before_seq: int, in_slices: bool = True) -> None:
        """Delete everything that is condemned and not spared.

        Lists that have grown past ``before_seq`` since are spared together with all that they lead to.
        Without slices everything happens in one transaction, so the order among trees does not matter.
        """
        self._before_seq = before_seq
        self._pardon()
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
            rows = self._scratch.rows(
                f"SELECT key, items, bytes FROM dead_list d WHERE {_spared('list')} "
                "ORDER BY depth DESC, key LIMIT ?",
                (SLICE,),
            )
            rows = _first(rows, SLICE)
            numbers = [row[0] for row in rows]
            grown = in_chunks(
                session,
                "SELECT no, scope FROM list WHERE seq > ? AND no IN (@)",
                (self._before_seq,),
                numbers,
            )
            if younger := dict(grown):
                self._walk.enter_lists(younger)
                self._walk.drain(session)
                return True
            count_removal(session, self._space)
            session.many("DELETE FROM item WHERE key >= ? AND key < ?", [_items(no) for no in numbers])
            gone = {
                no
                for (no,) in in_chunks(session, "DELETE FROM list WHERE no IN (@) RETURNING no", (), numbers)
            }
        self._forget("dead_list", numbers)
        self._lists += len(gone)
        self._bytes += sum(size for no, _, size in rows if no in gone)
        return bool(rows)

    def _some_bodies(self, opened: Opener) -> bool:
        with opened() as session:
            sizes = dict(
                self._scratch.rows(
                    f"SELECT key, bytes FROM dead_body d WHERE {_spared('body')} ORDER BY key LIMIT ?",
                    (SLICE,),
                )
            )
            count_removal(session, self._space)
            sql = "DELETE FROM body WHERE key IN (@) RETURNING key"
            gone = {key for (key,) in in_chunks(session, sql, (), list(sizes))}
        self._forget("dead_body", sizes)
        self._bodies += len(gone)
        self._bytes += sum(sizes[key] for key in gone)
        return bool(sizes)

    def _some_objects(self, opened: Opener, table: str, condition: str) -> bool:
        with opened() as session:
            rows = self._scratch.rows(
                f"SELECT key, bytes, pack FROM {table} d WHERE {_spared('object')} {condition} LIMIT ?",
                (SLICE,),
            )
            count_removal(session, self._space)
            sql = (
                "DELETE FROM object WHERE space = ? AND stored_at_us <= ? AND staged_until_us <= ? "
                "AND name IN (@) RETURNING name"
            )
            age = (self._space, self._before_us, self._before_us + _STAGE_US)
            gone = {bytes(name) for (name,) in in_chunks(session, sql, age, [row[0] for row in rows])}
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
            self._scratch.many(
                "UPDATE dead_tree SET waits = waits - 1 "
                "WHERE key IN (SELECT child FROM edge WHERE parent = ?)",
                [(name,) for name in gone],
            )
        self._objects += len(removed)
        self._bytes += sum(size for _, size, _ in removed)
        return bool(rows)

    # The order of trees
    def _order_trees(self) -> None:
        """Count for each condemned tree how many condemned ones name it: it goes after them."""
        after = b""
        while names := [
            key
            for (key,) in self._scratch.rows(
                "SELECT key FROM dead_tree WHERE key > ? ORDER BY key LIMIT ?", (after, _TREES)
            )
        ]:
            after = names[-1]
            for name, content in self._readable([name.hex() for name in names]).items():
                parent = bytes.fromhex(name)
                self._scratch.many(
                    "INSERT OR IGNORE INTO edge SELECT ?, key FROM dead_tree WHERE key = ?",
                    [(parent, bytes.fromhex(child)) for child in links_of(content)],
                )
        self._scratch.rows("UPDATE dead_tree SET waits = (SELECT count(*) FROM edge WHERE child = key)")

    def _readable(self, names: list[str]) -> dict[str, Content]:
        """Those of the trees that can be read. A damaged one that is to go leads nowhere anyway."""
        try:
            found = self._store.load(self._database, self._space, names)
            for content in found.values():
                links_of(content)
            return found
        except Corrupt:
            if len(names) == 1:
                return {}
            return {name: content for each in names for name, content in self._readable([each]).items()}

    # The scratch
    def _put(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        marks = ",".join("?" * _WIDTHS[table])
        self._scratch.many(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)

    def _pardon(self) -> None:
        """Forget what was reached since it was condemned, once, before pages are cut from the rest."""
        for table, seen in (("list", "list"), ("body", "body"), ("object", "object"), ("tree", "object")):
            self._scratch.rows(f"DELETE FROM dead_{table} WHERE key IN (SELECT key FROM {seen})")

    def _forget(self, table: str, keys: Iterable[Any]) -> None:
        self._scratch.many(f"DELETE FROM {table} WHERE key = ?", [(key,) for key in keys])

    def _sum(self, table: str, seen: str) -> tuple[int, int]:
        sql = f"SELECT count(*), coalesce(sum(bytes), 0) FROM {table} d WHERE {_spared(seen)}"
        ((count, size),) = self._scratch.rows(sql)
        return count, size


def drop_unused_runs(database: Database, space: int, opened: Opener) -> None:
    """Delete the names of the runs that no row of the journal is of any more."""
    after = -(1 << 63)
    while True:
        with database.reading() as session:
            rows = session.rows(
                f"SELECT no, {_UNUSED_RUN} FROM run WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                (space, after, SLICE),
            )
        unused = [(space, no) for no, is_unused in rows if is_unused]
        if unused:
            with opened() as session:
                session.many(f"DELETE FROM run WHERE space = ? AND no = ? AND {_UNUSED_RUN}", unused)
        if len(rows) < SLICE:
            return
        after = rows[-1][0]


def drop_unused_scopes(database: Database, space: int, opened: Opener) -> None:
    """Delete the scopes that no row belongs to any more."""
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
                session.many(f"DELETE FROM scope WHERE no = ? AND {_UNUSED_SCOPE}", [(no,) for no in unused])
                count_removal(session, space)
        if len(rows) < SLICE:
            return
        after = last


def _spared(seen: str) -> str:
    return f"NOT EXISTS (SELECT 1 FROM {seen} s WHERE s.key = d.key)"


def _items(no: int) -> tuple[int, int]:
    return item_key(no, 0), item_key(no + 1, 0)


def _first(rows: list[tuple[Any, ...]], items: int) -> list[tuple[Any, ...]]:
    """As many lists as have this many items together, but one at least."""
    for count, row in enumerate(rows):
        items -= row[1] + 1
        if items < 0:
            return rows[: max(count, 1)]
    return rows
