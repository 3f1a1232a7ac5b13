"""Objects: content by its SHA-256 name, in rows or in packs.

A row of ``object`` says where the bytes are: in the row (``frame``), or in a pack (`core.packs`) in the blob
store. Reading has two steps, so that no transaction waits for a disk or a bucket: `Objects.locate` reads the
rows, `Objects.read` the bytes, combining neighbours into one request and decompressing each frame once. In
between, another process may have moved objects to a new pack and deleted the old one: that raises `PackGone`,
and locating again finds the new pack (`Objects.load` does so). **Invariant:** content is returned only if it
hashes to its name.

Staging stores objects ahead of the commit that requires them. For objects that already exist, only their
protection from being swept is extended (``staged_until_us``); the rest goes into packs. A pack is durable
*before* its rows exist, and all its rows are inserted in one transaction: a process that dies in between
leaves a file without rows, which a later sweep removes, and never a row without bytes. A few small objects
are not worth a file and an fsync, and go into rows, as all objects do without a blob store. **Invariant:**
every object in a pack has a row that refers to it there. If two writers stage the same object at the same
time, the second one rewrites its pack without it: a copy without a row would survive erasure.

A pack is never modified. To remove objects, the others are written to a new pack, then the rows are switched
in one transaction, then the old file is deleted, then its row. The process may die at any point: before the
switch, the new file is an orphan; after it, the old pack is empty, and `delete_empty` finds it by its row.
**Invariant:** the row of a pack outlives its file, and a file is deleted only when no object's row refers to
it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from treering.core import failpoints
from treering.core.content import KIND_NUMBERS, Content, is_object_name, seal, unseal
from treering.core.packs import (
    HEAD,
    SALT_SIZE,
    Pack,
    PackEntry,
    PackWriter,
    check_head,
    coalesce_frames,
    filter_pack,
    group_by_frame,
    index_span,
    read_frame,
    read_index,
)
from treering.core.storage import list_all
from treering.engines.sql.commit.decide import invalidate_caches
from treering.engines.sql.commit.write import STAGE_SECONDS
from treering.engines.sql.rows import frame_of, kind_of
from treering.engines.sql.session import IN_LIMIT, query_in_chunks, rows_in_chunks
from treering.errors import Busy, Corrupt, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Future

    from treering.core.storage import Blobs
    from treering.engines.sql.session import Database, Session


WINDOW_OBJECTS: Final = 512
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Size of a window: what is looked up (and, without a blob store, written) at once."""

INLINE_BYTES: Final = 1024 * 1024
"""Less than this is stored in rows."""

FRESH_SECONDS: Final = 60
"""Objects staged more recently than this need no extension."""

PACK_SUFFIX: Final = ".pack"

LINGER_SECONDS: Final = 900
"""A pack without rows after this time is abandoned: it may have been removed as an orphan meanwhile."""

ORPHAN_SECONDS: Final = LINGER_SECONDS + 60
"""A pack without rows that is older than this has no writer any more."""

_WRITE: Final = failpoints.declare("pack.write", "a pack is complete in memory, nothing of it is written")
_WRITTEN: Final = failpoints.declare("pack.written", "a pack is durable, no row refers to it")
_COMMIT: Final = failpoints.declare(
    "stage.before_commit", "rows of staged objects are inserted, not committed"
)

_COLUMNS: Final = "space, name, kind, size, stored_at_us, staged_until_us"
_INLINE: Final = (
    f"INSERT INTO object ({_COLUMNS}, frame) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (space, name) DO UPDATE SET staged_until_us = excluded.staged_until_us"
)
_PACKED: Final = (
    f'INSERT INTO object ({_COLUMNS}, pack, "offset", length, inner_offset) '
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (space, name) DO NOTHING"
)
_PACK: Final = "INSERT INTO pack (space, no, name, size, created_at_us) VALUES (?, ?, ?, ?, ?)"


class _AlreadyStored(Exception):
    """Another writer stored one of these objects meanwhile."""


class Staging:
    """One call of `stage`."""

    def __init__(
        self, database: Database, blobs: Blobs | None, space: int, new_salt: Callable[[], bytes]
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._space = space
        self._new_salt = new_salt
        self._window: dict[str, Content] = {}
        self._window_bytes = 0

    def run(self, contents: Iterable[Content]) -> list[str]:
        """Store everything; return the names in order."""
        names: list[str] = []
        packing: _Packing | None = None
        try:
            for content in contents:
                name = content.name
                names.append(name)
                if name in self._window:
                    continue
                self._window[name] = content
                self._window_bytes += len(content.data)
                if len(self._window) >= WINDOW_OBJECTS or self._window_bytes >= WINDOW_BYTES:
                    if packing is None and self._blobs is not None:
                        packing = _Packing(self._database, self._blobs, self._space, self._new_salt)
                    self._empty_window(packing)
            if packing is None and self._blobs is not None and self._window_bytes >= INLINE_BYTES:
                packing = _Packing(self._database, self._blobs, self._space, self._new_salt)
            self._empty_window(packing)
            if packing is not None:
                packing.finish()
        finally:
            if packing is not None:
                packing.close()
        return names

    def _empty_window(self, packing: _Packing | None) -> None:
        window, self._window, self._window_bytes = self._window, {}, 0
        new_objects = self._new_objects(window)
        if packing is not None:
            packing.add(new_objects)
        elif new_objects:
            self._insert(new_objects)

    def _new_objects(self, window: dict[str, Content]) -> dict[str, Content]:
        """Return the objects of a window that are not stored; extend the protection of the others."""
        names = list(window)
        with self._database.reading() as session:
            stored = _stored(session, self._space, names)
        lasting_us = self._database.now_us() + (STAGE_SECONDS - FRESH_SECONDS) * 1_000_000
        if any(until_us < lasting_us for until_us in stored.values()):
            stored = _touch(self._database, self._space, list(stored))
        return {name: content for name, content in window.items() if name not in stored}

    def _insert(self, new_objects: dict[str, Content]) -> None:
        sealed = [
            (bytes.fromhex(name), KIND_NUMBERS[content.kind], len(content.data), seal(content.data))
            for name, content in new_objects.items()
        ]
        with self._database.writing(self._space) as session:
            now_us = self._database.now_us()
            until_us = now_us + STAGE_SECONDS * 1_000_000
            session.run_many(
                _INLINE,
                [
                    (self._space, name, kind, size, now_us, until_us, frame)
                    for name, kind, size, frame in sealed
                ],
            )
            failpoints.hit(_COMMIT)


class _Packing:
    """Writes objects to packs: one being filled, at most one being written."""

    def __init__(self, database: Database, blobs: Blobs, space: int, new_salt: Callable[[], bytes]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._database = database
        self._blobs = blobs
        self._space = space
        self._new_salt = new_salt
        self._folder = pack_folder(database, space)
        # An executor of its own, used during one call: nothing to close elsewhere, nothing to fork.
        self._sealing = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "treering-seal")
        self._sending = ThreadPoolExecutor(1, "treering-send")
        self._sent: Future[tuple[Pack, int]] | None = None
        self._filling: set[str] = set()
        self._flying: set[str] = set()
        self._writer = self._new_writer()

    def add(self, new_objects: dict[str, Content]) -> None:
        """Add objects that are not stored in the space."""
        known = self._filling | self._flying if self._flying else self._filling
        for name in [name for name in new_objects if name not in known]:
            self._filling.add(name)
            self._writer.add(new_objects[name], name=name)
            if self._writer.full:
                self._send()

    def finish(self) -> None:
        """Write the rest. When this returns, everything is durable and has rows."""
        if not self._writer.empty:
            self._send()
        self._insert_rows()

    def close(self) -> None:
        """Shut down the threads."""
        self._sealing.shutdown(cancel_futures=True)
        self._sending.shutdown()

    def _new_writer(self) -> PackWriter:
        return PackWriter(salt=self._new_salt(), executor=self._sealing)

    def _send(self) -> None:
        """Write a pack in the background, once the previous one has its rows."""
        writer, self._writer = self._writer, self._new_writer()
        self._insert_rows()
        self._flying, self._filling = self._filling, set()
        self._sent = self._sending.submit(lambda: self._put(writer.finish()))

    def _put(self, pack: Pack) -> tuple[Pack, int]:
        begun_us = self._database.now_us()
        failpoints.hit(_WRITE)
        self._blobs.put(blob_name(self._folder, pack), pack.pieces)
        failpoints.hit(_WRITTEN)
        return pack, begun_us

    def _insert_rows(self) -> None:
        """Insert the rows of the pack that was being written."""
        if self._sent is None:
            return
        pack, begun_us = self._sent.result()
        self._sent = None
        while True:
            try:
                insert_pack(self._database, self._space, self._folder, pack, begun_us=begun_us)
            except _AlreadyStored:
                names = [entry.name for entry in pack.entries]
                stored = _touch(self._database, self._space, names)
                self._blobs.delete([blob_name(self._folder, pack)])
                rest = filter_pack(
                    pack.data, set(names) - stored.keys(), pack=pack.name, salt=self._new_salt()
                )
                if rest is None:
                    break
                pack, begun_us = self._put(rest)
            else:
                break


def insert_pack(database: Database, space: int, folder: str, pack: Pack, *, begun_us: int) -> None:
    """Insert the rows of a pack that is in the blob store."""
    with database.writing(space) as session:
        now_us = database.now_us()
        if now_us - begun_us > LINGER_SECONDS * 1_000_000:
            raise Busy(
                f"pack {pack.name} waited {(now_us - begun_us) // 1_000_000} s for its rows, so it may have "
                "been removed; nothing of it was stored: stage again"
            )
        until_us = now_us + STAGE_SECONDS * 1_000_000
        no = insert_pack_row(session, space, folder, pack, now_us=now_us)
        rows = [
            (
                space,
                bytes.fromhex(name),
                KIND_NUMBERS[kind],
                size,
                now_us,
                until_us,
                no,
                offset,
                length,
                inner,
            )
            for name, kind, size, offset, length, inner in pack.entries
        ]
        if session.run_many(_PACKED, rows) != len(rows):
            raise _AlreadyStored
        failpoints.hit(_COMMIT)


def insert_pack_row(session: Session, space: int, folder: str, pack: Pack, *, now_us: int) -> int:
    """Insert the row of a pack; return its number."""
    (no,) = session.numbers("pack", 1)
    session.run(_PACK, (space, no, blob_name(folder, pack), pack.size, now_us))
    return no


def pack_folder(database: Database, space: int) -> str:
    """Return the folder for a space's packs, unique for each store and space: stores may share a bucket."""
    with database.reading() as session:
        ((store,),) = session.rows("SELECT value FROM meta WHERE key = 'store_id'")
        ((name,),) = session.rows("SELECT name FROM space WHERE no = ?", (space,))
    return f"objects/{store}/{name}"


def blob_name(folder: str, pack: Pack) -> str:
    """Return the blob name of a pack."""
    return f"{folder}/{pack.name[:2]}/{pack.name}{PACK_SUFFIX}"


def _touch(database: Database, space: int, names: Sequence[str]) -> dict[str, int]:
    """Protect existing objects from being swept; return until when each one is safe."""
    with database.writing(space) as session:
        until_us = database.now_us() + STAGE_SECONDS * 1_000_000
        stored = _stored(session, space, names)
        session.run_many(
            "UPDATE object SET staged_until_us = ? WHERE space = ? AND name = ?",
            [(until_us, space, bytes.fromhex(name)) for name in stored],
        )
    return dict.fromkeys(stored, until_us)


def _stored(session: Session, space: int, names: Sequence[str]) -> dict[str, int]:
    rows = rows_in_chunks(
        session,
        "SELECT name, staged_until_us FROM object WHERE space = ? AND name IN (@)",
        (space,),
        [bytes.fromhex(name) for name in names],
    )
    return {bytes(name).hex(): until_us for name, until_us in rows}


_PAGE: Final = 1000
_TAIL: Final = 256 * 1024
"""Size of the first read at the end of a pack; its index is rarely larger."""

_REWRITTEN: Final = failpoints.declare(
    "repack.written", "a rewritten pack is durable, rows point at the old one"
)
_SWITCHED: Final = failpoints.declare(
    "repack.switched", "rows point at the rewritten pack, the old one is there"
)
_DELETED: Final = failpoints.declare(
    "repack.deleted", "the file of an empty pack is deleted, its row is there"
)

_INSIDE: Final = "SELECT name FROM object WHERE space = ? AND pack = ?"
_MOVE: Final = (
    'UPDATE object SET pack = ?, "offset" = ?, length = ?, inner_offset = ? '
    "WHERE space = ? AND name = ? AND pack = ?"
)
_EMPTY: Final = (
    "SELECT no, name, size FROM pack p WHERE space = ? "
    "AND NOT EXISTS (SELECT 1 FROM object o WHERE o.space = p.space AND o.pack = p.no) ORDER BY no LIMIT ?"
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
    """Rewrite a pack with exactly the objects whose rows refer to it, without those to drop.

    Returns how much smaller the files became.
    """
    folder = pack_folder(database, space)
    while True:
        with database.reading() as session:
            rows = session.rows(
                "SELECT name, size, created_at_us FROM pack WHERE space = ? AND no = ?", (space, pack_no)
            )
            inside = _inside(session, space, pack_no)
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
            _delete(database, blobs, space, [(pack_no, old_name)])
            return old_size - (new.size if new is not None else 0)
        if new is not None:
            blobs.delete([blob_name(folder, new)])  # another process changed it: look again


def packs_with_strays(database: Database, blobs: Blobs | None, space: int) -> list[int]:
    """Return packs with bytes of objects that no row refers to: a sweep leaves some until a rewrite pays.

    Reads the index of every pack, but no content. A `rewrite` removes all such bytes.
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
                inside = _inside(session, space, no)
            if inside and not inside.issuperset(names_in(blobs, name, size)):
                found.append(no)
        if len(packs) < _PAGE:
            break
        after = packs[-1][0]
    return found


def delete_empty(database: Database, blobs: Blobs | None, space: int) -> int:
    """Delete all packs of a space without objects; return the size of their files."""
    freed = 0
    while True:
        with database.reading() as session:
            rows = session.rows(_EMPTY, (space, _PAGE))
            is_gone = has_left(session, space)
        if not rows or blobs is None or is_gone:
            return freed
        _delete(database, blobs, space, [(no, name) for no, name, _ in rows])
        freed += sum(size for _, _, size in rows)


def orphans(database: Database, blobs: Blobs | None, space: int, *, older_than_seconds: float) -> list[str]:
    """Return pack files in the folder of a space without a row.

    While writers run, the age must exceed `LINGER_SECONDS`: a newer file may belong to a writer that is about
    to insert its rows. Folders of other spaces are not looked at: a space that moved to another database has
    its rows there, and its packs here.
    """
    if blobs is None:
        return []
    before_us = database.now_us() - round(older_than_seconds * 1_000_000)
    folder = pack_folder(database, space)
    files = [info.name for info in list_all(blobs, folder) if info.modified_us <= before_us]
    # Rows are read after files, so files that got a row meanwhile are known. Names are compared by their last
    # part, which is unique: a file system may be case-insensitive.
    with database.reading() as session:
        known = {_last_part(name) for (name,) in session.rows("SELECT name FROM pack")}
        if has_left(session, space):
            return []
    return [name for name in files if name.endswith(PACK_SUFFIX) and _last_part(name) not in known]


def has_left(session: Session, space: int) -> bool:
    """Whether a space moved to another database (`engines.cells`). Ask after its rows were read."""
    return (True,) in session.rows("SELECT scopes_dropped < 0 FROM space WHERE no = ?", (space,))


def names_in(blobs: Blobs, name: str, size: int) -> set[str]:
    """Return the names in the index of a pack; nothing if it was deleted since its row was read."""
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


def _inside(session: Session, space: int, pack_no: int) -> set[str]:
    return {bytes(name).hex() for (name,) in session.rows(_INSIDE, (space, pack_no))}


def _without(blobs: Blobs, name: str, keep: set[str], new_salt: Callable[[], bytes]) -> Pack | None:
    if not keep:
        return None
    try:
        data = blobs.get(name)
    except NotFound:
        raise Corrupt(
            f"pack {name} with {len(keep)} objects ({min(keep)} and others) is not in {blobs.url}; "
            "restore it from a backup or a copy"
        ) from None
    pack = filter_pack(data, keep, pack=name, salt=new_salt())
    lost = keep - {entry.name for entry in pack.entries} if pack is not None else keep
    if lost:
        raise Corrupt(f"object {min(lost)} is not in pack {name}, as its row says; run verify")
    return pack


class _Switch(NamedTuple):
    """The change that makes rows refer to a new pack."""

    space: int
    folder: str
    old_no: int
    inside: set[str]
    drop: AbstractSet[str]
    new: Pack | None
    begun_us: int
    created_at_us: int
    """When the content was stored: a rewritten pack is not growth."""

    def run(self, database: Database) -> bool:
        """Apply it; return False if the old pack has changed, or the new one may have been removed."""
        with database.writing(self.space) as session:
            now_us = database.now_us()
            late = now_us - self.begun_us > LINGER_SECONDS * 1_000_000
            if late or _inside(session, self.space, self.old_no) != self.inside:
                return False
            invalidate_caches(session, self.space)
            session.run_many(
                "DELETE FROM object WHERE space = ? AND name = ? AND pack = ?",
                [(self.space, bytes.fromhex(name), self.old_no) for name in self.inside & self.drop],
            )
            if self.new is not None:
                no = insert_pack_row(session, self.space, self.folder, self.new, now_us=self.created_at_us)
                session.run_many(
                    _MOVE,
                    [
                        (no, offset, length, inner, self.space, bytes.fromhex(name), self.old_no)
                        for name, _, _, offset, length, inner in self.new.entries
                    ],
                )
        return True


def _delete(database: Database, blobs: Blobs, space: int, packs: list[tuple[int, str]]) -> None:
    """Delete files, then their rows."""
    blobs.delete([name for _, name in packs])
    failpoints.hit(_DELETED)
    with database.writing() as session:
        session.run_many("DELETE FROM pack WHERE space = ? AND no = ?", [(space, no) for no, _ in packs])


_SELECT: Final = (
    'SELECT o.name, o.kind, o.frame, p.name, o.size, o."offset", o.length, o.inner_offset, o.pack '
    "FROM object o LEFT JOIN pack p ON p.space = o.space AND p.no = o.pack WHERE o.space = ? "
    "AND o.name IN (@)"
)


class PackGone(Corrupt):
    """The pack of some objects is not in the blob store.

    It was rewritten since they were located, so the read may be retried once in a new transaction. If it is
    missing then too, the objects are lost.
    """


class Located(msgspec.Struct, frozen=True):
    """Where some objects are: the bytes themselves, or their positions, by the blob name of the pack."""

    inline: tuple[tuple[str, int, bytes], ...]
    """Name, kind number, frame."""
    packed: dict[str, list[PackEntry]]


class Objects:
    """All objects of a store. Without a blob store, all of them are in rows."""

    def __init__(
        self, blobs: Blobs | None, *, new_salt: Callable[[], bytes] = lambda: os.urandom(SALT_SIZE)
    ) -> None:
        self._blobs = blobs
        self._new_salt = new_salt

    def missing(self, session: Session, space: int, names: Sequence[str]) -> set[str]:
        """Return the objects that have no row."""
        wanted = _as_keys(names)
        rows = rows_in_chunks(
            session, "SELECT name FROM object WHERE space = ? AND name IN (@)", (space,), wanted
        )
        return set(names) - {bytes(name).hex() for (name,) in rows}

    def locate(self, session: Session, space: int, names: Sequence[str]) -> Located:
        """Locate the objects that exist. Needs the session only until it returns."""
        inline: list[tuple[str, int, bytes]] = []
        packed: dict[str, list[PackEntry]] = {}
        for name, kind, frame, place in _rows(session, space, names):
            if frame is not None:
                inline.append((name, kind, frame))
            else:
                _place_in(packed, name, kind, place)
        return Located(tuple(inline), packed)

    def read(self, located: Located) -> dict[str, Content]:
        """Return verified content by name; raise `PackGone` if a pack was rewritten since."""
        return dict(self.stream(located))

    def stream(self, located: Located) -> Iterator[tuple[str, Content]]:
        """Yield the same one by one, for callers that do not want all of it in memory."""
        for name, kind, frame in located.inline:
            yield name, _verified(name, kind, frame)
        for pack, entries in located.packed.items():
            for frames in coalesce_frames(group_by_frame(entries)):
                start, last = frames[0].offset, frames[-1]
                data = memoryview(
                    self._range(pack, start, last.offset + last.length, frames[0].entries[0].name)
                )
                for offset, length, inside in frames:
                    frame = data[offset - start : offset - start + length]
                    names = [entry.name for entry in inside]
                    yield from zip(names, read_frame(frame, inside, pack=pack), strict=True)

    def fetch(self, session: Session, space: int, names: Sequence[str]) -> dict[str, Content]:
        """Return the verified content of those objects that exist, within one transaction.

        Rows are decompressed as they arrive, so that not all frames are in memory. `PackGone` cannot be
        handled here, because the transaction continues to see the old rows: the caller must begin a new one.
        """
        found: dict[str, Content] = {}
        packed: dict[str, list[PackEntry]] = {}
        for name, kind, frame, place in _rows(session, space, names):
            if frame is not None:
                found[name] = _verified(name, kind, frame)
            else:
                _place_in(packed, name, kind, place)
        if packed:
            found.update(self.stream(Located((), packed)))
        return found

    def load(self, database: Database, space: int, names: Sequence[str]) -> dict[str, Content]:
        """Return the verified content of those objects that exist, without keeping a transaction open."""
        with database.reading() as session:
            located = self.locate(session, space, names)
        try:
            return self.read(located)
        except PackGone:
            with database.reading() as session:
                located = self.locate(session, space, names)
            return self.read(located)

    def _range(self, pack: str, start: int, stop: int, name: str) -> bytes:
        if self._blobs is None:
            raise Corrupt(f"object {name} is in {pack}, but this store was opened without its blob store")
        try:
            return self._blobs.get(pack, start=start, stop=stop)
        except NotFound:
            raise PackGone(
                f"object {name}: its pack {pack} is not in {self._blobs.url}; restore it from a backup"
            ) from None

    def check_index(self, pack: str, size: int) -> None:
        """Check the header and the index of a pack, which only `rewrite` needs."""
        names_in(self._packs(), pack, size)

    def stage(self, database: Database, space: int, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that requires them; return their names in order.

        Memory use is bounded by a few packs. Objects that already exist are not written again, but protected
        from being swept for as long as new ones.
        """
        return Staging(database, self._blobs, space, self._new_salt).run(contents)

    def rewrite(
        self, database: Database, space: int, pack_no: int, drop: AbstractSet[str] = frozenset()
    ) -> int:
        """Rewrite a pack without some objects; return the size freed.

        Afterwards the blob store holds no byte of the dropped objects, nor of any other object in the pack
        that no row refers to. Rows of dropped objects that still refer to this pack are deleted.
        """
        return rewrite(database, self._packs(), space, pack_no=pack_no, drop=drop, new_salt=self._new_salt)

    def packs_with_strays(self, database: Database, space: int) -> list[int]:
        """Return packs with bytes that no row refers to; `rewrite` removes those."""
        return packs_with_strays(database, self._blobs, space)

    def delete_packs(self, database: Database, space: int) -> int:
        """Delete the packs without objects; return the size freed."""
        return delete_empty(database, self._blobs, space)

    def orphans(self, database: Database, space: int, *, older_than_seconds: float) -> list[str]:
        """Return pack files of a space without a row, left by writers that died."""
        return orphans(database, self._blobs, space, older_than_seconds=older_than_seconds)

    def delete_orphans(self, names: Iterable[str]) -> None:
        """Delete the files found by `orphans`."""
        if self._blobs is not None:
            self._blobs.delete(names)

    def _packs(self) -> Blobs:
        if self._blobs is None:
            raise Corrupt("there are packs, but this store was opened without its blob store; pass blobs=")
        return self._blobs


def _rows(
    session: Session, space: int, names: Iterable[str]
) -> Iterator[tuple[str, int, bytes | None, Sequence[Any]]]:
    """Yield name, kind number and frame of each object that exists; for one in a pack, its position instead.

    Callers iterate without binding the generator to a name: the traceback of an error would keep the query
    open.
    """
    keys = _as_keys(dict.fromkeys(names))
    for start in range(0, len(keys), IN_LIMIT):
        some = keys[start : start + IN_LIMIT]
        for key, kind, frame, *place in query_in_chunks(session, _SELECT, (space,), some):
            name = bytes(key).hex()
            yield name, kind, None if frame is None else frame_of(frame, f"object {name}"), place


def _verified(name: str, kind: int, frame: bytes) -> Content:
    where = f"object {name}"
    content = Content(kind_of(kind, where), unseal(frame, where, has_name=True))
    if content.name != name:
        raise Corrupt(f"object {name}: its bytes have another hash; restore it from a backup or a copy")
    return content


def _place_in(packed: dict[str, list[PackEntry]], name: str, kind: int, place: Sequence[Any]) -> None:
    pack, size, offset, length, inner_offset, pack_no = place
    if pack is None:
        raise Corrupt(f"object {name} refers to pack {pack_no}, which has no row; run verify")
    entry = PackEntry(name, kind_of(kind, f"object {name}"), size, offset, length, inner_offset)
    packed.setdefault(pack, []).append(entry)


def _as_keys(names: Iterable[str]) -> list[bytes]:
    keys: list[bytes] = []
    for name in names:
        if not is_object_name(name):
            raise InvalidInput(f"not an object name: {name[:80]!r}; expected 64 lower-case hex digits")
        keys.append(bytes.fromhex(name))
    return keys
