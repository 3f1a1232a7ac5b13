"""Staging: objects on their way into the store, ahead of the commit that requires them.

Contents come in windows. Of each window, what the space holds already is only prolonged (`staged_until_us`
keeps it from being swept); the rest goes into a pack. A pack is durable in the blob store *before* its
rows exist, and the rows of one pack appear in one transaction: dying anywhere in between leaves a file
that no row knows, which a later sweep removes, and never a row without bytes. A handful of small objects
is not worth a file and its fsync; it goes into the rows themselves, as everything does without blob store.

**Invariant:** every object in a pack file has the row that points at it there. When two writers stage the
same object at the same time, the second one writes its pack again without it: a copy that no row knows
would survive the erasure of its content.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from treering.core import failpoints
from treering.core.content import KIND_NUMBERS, Content
from treering.core.frame import seal
from treering.core.packs import Pack, PackWriter, trimmed
from treering.engines.relational.session import in_chunks
from treering.engines.relational.writing import STAGE_SECONDS
from treering.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from treering.core.storage import Blobs
    from treering.engines.relational.session import Database, Session

WINDOW_OBJECTS: Final = 512
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""How much is looked up (and, without a blob store, written) at once."""

INLINE_BYTES: Final = 1024 * 1024
"""A staging of less than this goes into rows."""

FRESH_SECONDS: Final = 60
"""What was staged this short a time ago needs no prolonging."""

PACK_SUFFIX: Final = ".pack"

LINGER_SECONDS: Final = 900
"""A pack whose rows come later than this is given up: it may have been taken for an orphan meanwhile."""

ORPHAN_SECONDS: Final = LINGER_SECONDS + 60
"""A pack file without rows that is older than this has no writer any more."""

_WRITE: Final = failpoints.declare("pack.write", "a pack is complete in memory, no byte of it is written")
_WRITTEN: Final = failpoints.declare("pack.written", "a pack is durable, no row points at it")
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
_PACK: Final = "INSERT INTO pack (no, space, name, size, created_at_us) VALUES (?, ?, ?, ?, ?)"


class _AlreadyThere(Exception):
    """Another writer stored one of these objects since we looked."""


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
        """Store everything; the names, in order."""
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
        fresh = self._fresh(window)
        if packing is not None:
            packing.add(fresh)
        elif fresh:
            self._insert(fresh)

    def _fresh(self, window: dict[str, Content]) -> dict[str, Content]:
        """What of a window is not stored; the rest is prolonged where it needs to be."""
        names = list(window)
        with self._database.reading() as session:
            stored = _stored(session, self._space, names)
        lasting_us = self._database.now_us() + (STAGE_SECONDS - FRESH_SECONDS) * 1_000_000
        if any(until_us < lasting_us for until_us in stored.values()):
            stored = _prolong(self._database, self._space, list(stored))
        return {name: content for name, content in window.items() if name not in stored}

    def _insert(self, fresh: dict[str, Content]) -> None:
        sealed = [
            (bytes.fromhex(name), KIND_NUMBERS[content.kind], len(content.data), seal(content.data))
            for name, content in fresh.items()
        ]
        with self._database.writing(self._space) as session:
            now_us = self._database.now_us()
            until_us = now_us + STAGE_SECONDS * 1_000_000
            session.many(
                _INLINE,
                [
                    (self._space, name, kind, size, now_us, until_us, frame)
                    for name, kind, size, frame in sealed
                ],
            )
            failpoints.hit(_COMMIT)


class _Packing:
    """Objects on their way into packs: one being filled, at most one being written."""

    def __init__(self, database: Database, blobs: Blobs, space: int, new_salt: Callable[[], bytes]) -> None:
        self._database = database
        self._blobs = blobs
        self._space = space
        self._new_salt = new_salt
        self._folder = pack_folder(database, space)
        # A pool of its own: it lives as long as the call, so there is nothing to close and nothing to fork.
        self._sealing = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "treering-seal")
        self._sending = ThreadPoolExecutor(1, "treering-send")
        self._sent: Future[tuple[Pack, int]] | None = None
        self._filling: set[str] = set()
        self._flying: set[str] = set()
        self._writer = self._new_writer()

    def add(self, fresh: dict[str, Content]) -> None:
        """Put objects in that the space does not hold."""
        known = self._filling | self._flying if self._flying else self._filling
        for name in [name for name in fresh if name not in known]:
            self._filling.add(name)
            self._writer.add(fresh[name], name=name)
            if self._writer.full:
                self._send()

    def finish(self) -> None:
        """Write what is left; everything is durable and has its row when this returns."""
        if not self._writer.empty:
            self._send()
        self._settle()

    def close(self) -> None:
        """Let go of the threads."""
        self._sealing.shutdown(cancel_futures=True)
        self._sending.shutdown()

    def _new_writer(self) -> PackWriter:
        return PackWriter(salt=self._new_salt(), executor=self._sealing)

    def _send(self) -> None:
        """Write a pack in the background, once the one before has its rows."""
        writer, self._writer = self._writer, self._new_writer()
        self._settle()
        self._flying, self._filling = self._filling, set()
        self._sent = self._sending.submit(lambda: self._put(writer.finish()))

    def _put(self, pack: Pack) -> tuple[Pack, int]:
        begun_us = self._database.now_us()
        failpoints.hit(_WRITE)
        self._blobs.put(blob_name(self._folder, pack), pack.pieces)
        failpoints.hit(_WRITTEN)
        return pack, begun_us

    def _settle(self) -> None:
        """Insert the rows of the pack that is on its way."""
        if self._sent is None:
            return
        pack, begun_us = self._sent.result()
        self._sent = None
        while True:
            try:
                insert_pack(self._database, self._space, self._folder, pack, begun_us=begun_us)
            except _AlreadyThere:
                names = [entry.name for entry in pack.entries]
                stored = _prolong(self._database, self._space, names)
                self._blobs.delete([blob_name(self._folder, pack)])
                rest = trimmed(pack.data, set(names) - stored.keys(), pack=pack.name, salt=self._new_salt())
                if rest is None:
                    break
                pack, begun_us = self._put(rest)
            else:
                break


def insert_pack(database: Database, space: int, folder: str, pack: Pack, *, begun_us: int) -> None:
    """The rows of a pack that is in the blob store."""
    with database.writing(space) as session:
        now_us = database.now_us()
        if now_us - begun_us > LINGER_SECONDS * 1_000_000:
            raise Busy(
                f"pack {pack.name} waited {(now_us - begun_us) // 1_000_000} s for its rows, so it may have "
                "been cleared away; nothing of it was kept: stage again"
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
        if session.many(_PACKED, rows) != len(rows):
            raise _AlreadyThere
        failpoints.hit(_COMMIT)


def insert_pack_row(session: Session, space: int, folder: str, pack: Pack, *, now_us: int) -> int:
    """The row of a pack itself; its number."""
    (no,) = session.numbers("pack", 1)
    session.run(_PACK, (no, space, blob_name(folder, pack), pack.size, now_us))
    return no


def store_folder(database: Database) -> str:
    """Where the packs of this store are in the blob store, and nobody else's: two may share a bucket."""
    with database.reading() as session:
        ((store,),) = session.rows("SELECT value FROM meta WHERE key = 'store_id'")
    return f"objects/{store}"


def pack_folder(database: Database, space: int) -> str:
    """Where the packs of a space are. No two spaces share one."""
    with database.reading() as session:
        ((name,),) = session.rows("SELECT name FROM space WHERE no = ?", (space,))
    return f"{store_folder(database)}/{name}"


def blob_name(folder: str, pack: Pack) -> str:
    """The name of a pack's file."""
    return f"{folder}/{pack.name[:2]}/{pack.name}{PACK_SUFFIX}"


def _prolong(database: Database, space: int, names: Sequence[str]) -> dict[str, int]:
    """Keep those objects that exist from being swept; until when each of them is safe."""
    with database.writing(space) as session:
        until_us = database.now_us() + STAGE_SECONDS * 1_000_000
        stored = _stored(session, space, names)
        session.many(
            "UPDATE object SET staged_until_us = ? WHERE space = ? AND name = ?",
            [(until_us, space, bytes.fromhex(name)) for name in stored],
        )
    return dict.fromkeys(stored, until_us)


def _stored(session: Session, space: int, names: Sequence[str]) -> dict[str, int]:
    rows = in_chunks(
        session,
        "SELECT name, staged_until_us FROM object WHERE space = ? AND name IN (@)",
        (space,),
        [bytes.fromhex(name) for name in names],
    )
    return {bytes(name).hex(): until_us for name, until_us in rows}
