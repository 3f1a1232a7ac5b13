"""Packs written anew, and packs deleted.

A pack is never changed. To take objects out of it, the others are written into a new pack; then the rows
are switched in one transaction; then the old file is deleted; then its row. The order makes every moment
safe to die in: before the switch the new file is an orphan, after it the old pack is one that no object
lies in, which `delete_empty` finds by its row and finishes. **Invariant:** a pack's row outlives its file,
and a file is deleted only when no object's row points into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from treering.core import failpoints
from treering.core.packs import HEAD, Pack, check_head, index_span, read_index, trimmed
from treering.engines.relational.remembered import count_removal
from treering.engines.relational.staging import (
    LINGER_SECONDS,
    PACK_SUFFIX,
    blob_name,
    insert_pack_row,
    pack_folder,
    store_folder,
)
from treering.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from treering.core.storage import Blobs
    from treering.engines.relational.session import Database, Session

_PAGE: Final = 1000
_TAIL: Final = 256 * 1024
"""The end of a pack that is read at first; an index is seldom longer."""

_REWRITTEN: Final = failpoints.declare(
    "repack.written", "a rewritten pack is durable, rows point at the old one"
)
_SWITCHED: Final = failpoints.declare(
    "repack.switched", "rows point at the rewritten pack, the old one is there"
)
_DELETED: Final = failpoints.declare(
    "repack.deleted", "the file of an empty pack is deleted, its row is there"
)

_INSIDE: Final = "SELECT name FROM object WHERE pack = ?"
_MOVE: Final = (
    'UPDATE object SET pack = ?, "offset" = ?, length = ?, inner_offset = ? '
    "WHERE space = ? AND name = ? AND pack = ?"
)
_EMPTY: Final = (
    "SELECT no, name, size FROM pack p WHERE space = ? "
    "AND NOT EXISTS (SELECT 1 FROM object o WHERE o.pack = p.no) ORDER BY no LIMIT ?"
)


def rewrite(
    database: Database,
    blobs: Blobs,
    space: int,
    *,
    pack_no: int,
    drop: AbstractSet[str],
    new_salt: Callable[[], bytes],
) -> int:
    """Write a pack anew with exactly the objects whose rows point into it, without those to drop.

    Gives back how much smaller the files became.
    """
    folder = pack_folder(database, space)
    while True:
        with database.reading() as session:
            rows = session.rows(
                "SELECT name, size, created_at_us FROM pack WHERE no = ? AND space = ?", (pack_no, space)
            )
            inside = _inside(session, pack_no)
        if not rows:
            return 0
        ((old_name, old_size, created_at_us),) = rows
        begun_us = database.now_us()
        new = _without(blobs, old_name, inside - drop, new_salt)
        if new is not None:
            blobs.put(blob_name(folder, new), new.pieces)
            failpoints.hit(_REWRITTEN)
        switch = _Switch(space, folder, pack_no, inside, drop, new, begun_us, created_at_us)
        if switch.run(database):
            failpoints.hit(_SWITCHED)
            _delete(database, blobs, [(pack_no, old_name)])
            return old_size - (new.size if new is not None else 0)
        if new is not None:
            blobs.delete([blob_name(folder, new)])  # another process was quicker: look again


def with_strays(database: Database, blobs: Blobs | None, space: int) -> list[int]:
    """Packs that hold bytes of objects which no row looks for there: a sweep leaves some until it pays.

    Reads the index of every pack, not its content. A `rewrite` of these leaves no stray byte.
    """
    found: list[int] = []
    after = 0
    while blobs is not None:
        with database.reading() as session:
            packs = session.rows(
                "SELECT no, name, size FROM pack WHERE space = ? AND no > ? ORDER BY no LIMIT ?",
                (space, after, _PAGE),
            )
        for no, name, size in packs:
            with database.reading() as session:
                inside = _inside(session, no)
            if inside and not inside.issuperset(names_in(blobs, name, size)):
                found.append(no)
        if len(packs) < _PAGE:
            break
        after = packs[-1][0]
    return found


def delete_empty(database: Database, blobs: Blobs | None, space: int) -> int:
    """Delete all packs of a space that no object lies in; the size of their files."""
    freed = 0
    while True:
        with database.reading() as session:
            rows = session.rows(_EMPTY, (space, _PAGE))
        if not rows or blobs is None:
            return freed
        _delete(database, blobs, [(no, name) for no, name, _ in rows])
        freed += sum(size for _, _, size in rows)


def orphans(database: Database, blobs: Blobs | None, *, older_than_seconds: float) -> list[str]:
    """Pack files of this store that no row knows.

    While writers run, the age has to be more than `staging.LINGER_SECONDS`: a younger file may belong to
    one that is about to insert its rows.
    """
    if blobs is None:
        return []
    before_us = database.now_us() - round(older_than_seconds * 1_000_000)
    folder = store_folder(database)
    files: list[str] = []
    after: str | None = None
    while True:
        page = blobs.list(folder, after=after, limit=_PAGE)
        files += [info.name for info in page if info.modified_us <= before_us]
        if len(page) < _PAGE:
            break
        after = page[-1].name
    # Rows are read after files, so a file that got its row meanwhile is known. Names are compared by their
    # last part, which is unique by itself: a file system may not keep upper and lower case apart.
    with database.reading() as session:
        known = {_last_part(name) for (name,) in session.rows("SELECT name FROM pack")}
    return [name for name in files if name.endswith(PACK_SUFFIX) and _last_part(name) not in known]


def names_in(blobs: Blobs, name: str, size: int) -> set[str]:
    """What a pack says that it holds; nothing when it was deleted since its row was read."""
    try:
        check_head(blobs.get(name, stop=len(HEAD)), pack=name)
        first = max(size - _TAIL, 0)
        tail = blobs.get(name, start=first, stop=size)
        start, stop = index_span(tail, size=size, pack=name)
        index = (
            tail[start - first : stop - first] if start >= first else blobs.get(name, start=start, stop=stop)
        )
    except NotFound:
        return set()
    return {entry.name for entry in read_index(index, start=start, pack=name)}


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _inside(session: Session, pack_no: int) -> set[str]:
    return {bytes(name).hex() for (name,) in session.rows(_INSIDE, (pack_no,))}


def _without(blobs: Blobs, name: str, keep: set[str], new_salt: Callable[[], bytes]) -> Pack | None:
    if not keep:
        return None
    try:
        data = blobs.get(name)
    except NotFound:
        raise Corrupt(
            f"pack {name} is not in {blobs.url}, and {len(keep)} objects lie in it, {min(keep)} among them; "
            "restore it from a backup or a copy"
        ) from None
    pack = trimmed(data, keep, pack=name, salt=new_salt())
    lost = keep - {entry.name for entry in pack.entries} if pack is not None else keep
    if lost:
        raise Corrupt(f"object {min(lost)} is not in pack {name}, where its row says; run verify")
    return pack


class _Switch(NamedTuple):
    """What it takes to let rows point at a new pack."""

    space: int
    folder: str
    old_no: int
    inside: set[str]
    drop: AbstractSet[str]
    new: Pack | None
    begun_us: int
    created_at_us: int
    """When the content was stored: a rewritten pack is no growth."""

    def run(self, database: Database) -> bool:
        """Do it; False when the old pack is not as it was, or the new one too old to be trusted."""
        with database.writing(self.space) as session:
            now_us = database.now_us()
            late = now_us - self.begun_us > LINGER_SECONDS * 1_000_000
            if late or _inside(session, self.old_no) != self.inside:
                return False
            count_removal(session, self.space)
            session.many(
                "DELETE FROM object WHERE space = ? AND name = ? AND pack = ?",
                [(self.space, bytes.fromhex(name), self.old_no) for name in self.inside & self.drop],
            )
            if self.new is not None:
                no = insert_pack_row(session, self.space, self.folder, self.new, now_us=self.created_at_us)
                session.many(
                    _MOVE,
                    [
                        (no, offset, length, inner, self.space, bytes.fromhex(name), self.old_no)
                        for name, _, _, offset, length, inner in self.new.entries
                    ],
                )
        return True


def _delete(database: Database, blobs: Blobs, packs: list[tuple[int, str]]) -> None:
    """Delete files, then the rows that remembered them."""
    blobs.delete([name for _, name in packs])
    failpoints.hit(_DELETED)
    with database.writing() as session:
        session.many("DELETE FROM pack WHERE no = ?", [(no,) for no, _ in packs])
