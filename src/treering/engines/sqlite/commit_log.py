"""The commit log: small commits as one row each, flushed into the tables in groups; and how far it had come.

The rows of a commit go into six tables and as many indexes. That is a dozen pages of SQLite's write-ahead
log, where the content would fill one. So a small commit, or several that arrive together, is written as one
row of the table ``fresh`` that holds all of its rows. Such commits are *pending* until they are flushed: a
few dozen together, so that each page of a table is written once for all of them. A pending commit is as
durable as any other. Readers, and writers that do not append to the log, flush it first, so no other code
needs to know about it.

The table has a few slots, filled in order. A slot is pending while its commit number is higher than all in
``commits``; after that it is free to be overwritten. What a free slot still holds is wiped when something
is erased and when the store is closed. Each slot is padded to a page of its own, so that writing one changes
no other page.

A process decides a commit from its cache, and the insert into the log checks the cache: nothing may have been
flushed or committed by anyone else since. Commits are numbered consecutively in the whole store, so if the
highest number in ``commits`` is the one that this process knows, and the next slot is free, the cache holds.

**Invariant:** a pending commit is one that would have succeeded in the tables. Its slot is written only if
nothing was committed except what this process knows of, and neither its batches nor its events exist already.
So all commits that are pending at one time were written by one process.

SQLite takes a damaged write-ahead log for one that ends before the damage: commits that were acknowledged
would silently be gone. So the number of the last acknowledged commit is kept in a file beside the database,
``treering.db-last`` (`LastCommit`). It is written after each commit and never synced, because a sync would
double the cost of a commit. Opening and `verify` compare it with the database. **Invariant:** the number is
never higher than what is durable, so it raises no false alarm: it is written once the commit is. With
durability ``fast``, power loss may take commits that were acknowledged, so a number written in that mode
counts only until the machine restarts. What cannot be noticed: the loss of the newest commits together with
this file; and after a power loss, that of commits whose number had not reached the disk yet.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from treering.core.content import seal_pieces, unseal
from treering.core.failpoints import declare, hit, is_armed
from treering.engines.sql.commit.write import CommitRows
from treering.engines.sql.engine import BEFORE_COMMIT
from treering.engines.sql.read import pack_item_blocks
from treering.engines.sql.session import for_rows
from treering.errors import Corrupt, TreeringError
from treering.files import FILE_MODE

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from treering.engines.sql.commit.decide import AcceptedBatch, CommitState, SpaceCache
    from treering.engines.sql.session import Session
    from treering.engines.sqlite.connection import SqliteDatabase

FLUSHED: Final = declare("flush.before_commit", "pending commits are in their tables, not committed")

SLOTS: Final = 64
MAX_COMMITS: Final = 128
"""The log is flushed when this many slots or commits are pending."""
MAX_BYTES: Final = 32 * 1024
"""Larger commits go straight into the tables."""
MAX_EVENTS: Final = 8
"""Batches with more events go straight into the tables, because each event has to be looked up."""

LAST: Final = "-last"
"""Appended to the name of the database: the file with the number of the last commit."""

IS_PENDING: Final = "no > (SELECT coalesce(max(no), 0) FROM commits)"
WIPE: Final = "DELETE FROM fresh WHERE NOT " + IS_PENDING
"""Deletes what was flushed."""

_FORMAT: Final = 1
_ALL: Final = f"SELECT slot, no, space FROM fresh WHERE {IS_PENDING} ORDER BY no"
_LAST_NO: Final = (
    "SELECT max((SELECT coalesce(max(no), 0) FROM commits), (SELECT coalesce(max(no), 0) FROM fresh)), "
    f"(SELECT coalesce(max(slot) + 1, 0) - count(*) FROM fresh WHERE {IS_PENDING})"
)
"""The last number, and how many slots before the last pending one are not pending, which none should be."""
_HALF_A_PAGE: Final = 2048
_PADDING: Final = bytes(_HALF_A_PAGE)
_ROWS_PER_INSERT: Final = 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class CommitLog:
    """This process's end of the commit log; used by the one thread that commits at a time.

    **Invariant:** `_last_no` is known only while every cache of this process is true after that commit and
    the pending ones.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._last_no = 0
        """The number of the last commit that went into the tables; 0 if it is not known."""
        self._slot = 0
        self._pending = 0
        """The next slot, and how many commits the slots before it hold."""
        self._names: set[tuple[Any, ...]] = set()
        """The batches and events that are pending, which no table has yet."""
        self.was_used = False

    def next_numbers(self, batches: int) -> list[int] | None:
        """Return numbers for a group of commits; ``None`` if the log cannot take it now."""
        if not self._last_no or self._slot == SLOTS or self._pending + batches > MAX_COMMITS:
            return None
        if self._database.skip_log:
            self._database.skip_log -= 1
            return None
        first = self._last_no + self._pending + 1
        return list(range(first, first + batches))

    def append(self, state: CommitState, accepted: Sequence[AcceptedBatch], cache: SpaceCache) -> bool:
        """Write a group that was decided from ``cache``, and update that.

        Returns ``False``, with nothing written, if the group is too large for the log or needs a table that
        the log does not cover, or if the cache turns out to be stale.
        """
        for each in accepted:
            encoded = each.encoded
            if encoded.batch.texts or encoded.deltas or len(encoded.batch.events) > MAX_EVENTS:
                return False
        rows = CommitRows(state, accepted, self._database.dictionary)
        packed = _pack(rows, state.space, state.commit_numbers[-1])
        if packed is None or rows.rescoped or len(packed) > MAX_BYTES:
            return False
        space, number = state.space, state.commit_numbers[-1]
        batches = [row[1] for row in rows.commits]
        events = [row[3] for row in rows.events]
        days = {row[2] for row in rows.events}
        names = {(space, batch) for batch in batches} | {(space, *row[2:4]) for row in rows.events}
        if len(days) > 1 or len(names) < len(batches) + len(events) or not names.isdisjoint(self._names):
            return False
        assert state.expected_counters is not None  # noqa: S101 - decided from the cache
        _, _, removals = state.expected_counters
        values = (self._slot, number, space, packed, self._last_no, removals, *batches, *days, *events)
        if not self._insert(_insert_sql(len(batches), len(events)), values, rows):
            return False
        last_no, self._last_no = self._last_no, 0  # a fork or an interrupt may happen in between
        cache.update(state)
        self.was_used = True
        self._names |= names
        self._database.pending[number] = rows
        self._slot += 1
        self._pending += len(accepted)
        self._last_no = last_no
        return True

    def restart(self, previous_no: int, last_no: int) -> bool:
        """Continue after a commit to the tables, which flushed the log.

        ``last_no`` is its number and ``previous_no`` the highest one before it. Returns ``False`` if another
        process has committed in between.
        """
        is_alone = previous_no == self._last_no + self._pending and last_no > 0
        self._names.clear()
        self._database.pending.clear()
        self._slot = self._pending = 0
        self._last_no = last_no
        return is_alone

    def _insert(self, sql: str, values: tuple[Any, ...], rows: CommitRows) -> bool:
        if not rows.objects and not is_armed(BEFORE_COMMIT):
            return self._database.execute_alone(sql, values) == 1
        try:
            with self._database.appending() as session:
                if session.run(sql, values) != 1:
                    raise _StaleCache
                rows.write_objects(session)
                hit(BEFORE_COMMIT)
        except _StaleCache:
            return False
        return True


class _StaleCache(Exception):
    """Another process has committed, or a batch or event of the group exists already."""


def flush(session: Session, own: Mapping[int, CommitRows]) -> None:
    """Move all pending commits into their tables, within a write transaction.

    ``own`` are the rows of this process's commits by slot number, which need not be read.
    """
    spaces: dict[int, CommitRows] = {}
    for slot, no, space in session.rows(_ALL):
        rows = own.get(no)
        spaces.setdefault(space, CommitRows()).extend(
            _read(session, slot, space, no) if rows is None else rows
        )
    inserts = _MultiRowInserts(session)
    for space, rows in spaces.items():
        rows.items = pack_item_blocks(rows.items)
        last_seq, committed_at_us = rows.commits[-1][4:6]
        session.execute(
            "UPDATE space SET seq = ?, committed_at_us = ? WHERE no = ?", (last_seq, committed_at_us, space)
        )
        rows.write(inserts)
        rows.write_new_events(inserts)
    hit(FLUSHED)


class _MultiRowInserts:
    """The statements of a session, inserting several rows at a time.

    Every call releases the GIL, and while other threads wait for it, getting it back costs more than a row.
    (If none does, as for spans that arrive by the thousand, one row per call takes less memory.)
    """

    def __init__(self, session: Session) -> None:
        self.execute = session.execute
        self._session = session

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        start = 0
        while start < len(rows):
            size = min(1 << (len(rows) - start).bit_length() - 1, _ROWS_PER_INSERT)
            multi_row = for_rows(sql, size, distinct=True)  # SQLite applies the rows one after another
            if multi_row is None:
                self._session.execute_many(sql, rows)
                return
            self.execute(multi_row, [*chain.from_iterable(rows[start : start + size])])
            start += size


@lru_cache(maxsize=256)
def _insert_sql(batches: int, events: int) -> str:
    """Return the statement that writes a slot, or does nothing if the commits must not be pending.

    Its values: slot, number of the last of these commits, space, rows, number of the last commit in the
    tables, removals of the space; the batches; and if there are events, their day and their ids.
    """
    unless = f"AND NOT EXISTS (SELECT 1 FROM commits WHERE space = ?3 AND batch IN ({_marks(batches)})) "
    if events:
        ids = _marks(events)
        unless += f"AND NOT EXISTS (SELECT 1 FROM event WHERE space = ?3 AND day = ? AND id IN ({ids})) "
    return (
        "INSERT INTO fresh (slot, no, space, rows) SELECT ?1, ?2, ?3, ?4 "
        "WHERE (SELECT max(no) FROM commits) = ?5 "
        "AND NOT EXISTS (SELECT 1 FROM fresh WHERE slot = ?1 AND no > ?5) "
        f"AND EXISTS (SELECT 1 FROM space WHERE no = ?3 AND scopes_dropped = ?6) {unless}"
        "ON CONFLICT (slot) DO UPDATE SET no = excluded.no, space = excluded.space, rows = excluded.rows"
    )


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _pack(rows: CommitRows, space: int, no: int) -> bytes | None:
    """Encode rows as they are stored in a slot, long enough to fill a page.

    ``None`` if a value is of a subclass (of ``str``, say), which SQLite takes but MessagePack does not.
    """
    content: list[Any] = [
        _FORMAT,
        space,
        no,
        rows.commits,
        rows.runs,
        rows.bodies,
        rows.grown,
        rows.items,
        rows.refs,
        rows.events,
    ]
    try:
        packed = _encode(content)
    except TypeError:
        return None
    if len(packed) < _HALF_A_PAGE:
        content.append(_PADDING[len(packed) :])
        packed = _encode(content)
    return b"".join(seal_pieces(packed, compress_from=len(packed) + 1))


def _read(session: Session, slot: int, space: int, no: int) -> CommitRows:
    where = f"slot {slot} of the commit log"
    ((packed,),) = session.rows("SELECT rows FROM fresh WHERE slot = ?", (slot,))
    rows = CommitRows()
    try:
        version, own_space, own_no, *content = _decode(unseal(packed, where))
        rows.commits, rows.runs, rows.bodies, rows.grown, rows.items, rows.refs, rows.events, *_ = content
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Corrupt(f"{where} cannot be read ({error}); restore the store from a backup") from error
    if version != _FORMAT:
        raise Corrupt(f"{where} has format {version}, which this treering cannot read; upgrade it")
    if (own_space, own_no) != (space, no):
        raise Corrupt(
            f"{where} holds commit {own_no} of space {own_space}, but its row says commit {no} of space "
            f"{space}; restore the store from a backup"
        )
    return rows


class LastCommit:
    """The number of the last commit that this store acknowledged, in a file beside the database."""

    def __init__(self, path: Path, *, is_durable: bool) -> None:
        self._database = path
        self._path = path.with_name(path.name + LAST)
        self._is_durable = is_durable
        self._file: int | None = None
        self._no = 0

    def record(self, no: int) -> None:
        """Note that a commit was made durable. Failing to is no error: then less is noticed later."""
        if no <= self._no:
            return
        self._no = no
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            os.pwrite(self._file, _line(no, "disk" if self._is_durable else _boot_id()), 0)
        except OSError:
            return

    def recorded(self) -> int:
        """Return the number in the file; 0 if there is none that counts."""
        try:
            return _number_in(self._path.read_bytes())
        except OSError:
            return 0

    def missing(self, connection: sqlite3.Connection, recorded: int) -> str | None:
        """Say which commits are missing from a database, of those recorded before it was read."""
        ((found, gaps),) = connection.execute(_LAST_NO).fetchall()
        if gaps and recorded:
            return f"acknowledged commits are missing from {gaps} slots of its commit log, which were damaged"
        if found >= recorded:
            return None
        return (
            f"{recorded - found} acknowledged commits are missing: the last one was {recorded}, the database "
            f"ends with {found}, so its log was damaged, or an older database was put in its place"
        )

    def refuse(self, damage: str) -> Corrupt:
        """Return the error for a database that lost commits, and keep what is left of its log."""
        log = self._database.with_name(self._database.name + "-wal")
        kept = log.with_name(log.name + "-damaged")
        with suppress(OSError):
            if log.stat().st_size and not kept.exists():
                shutil.copyfile(log, kept)
        return Corrupt(
            f"{self._database}: {damage}. Restore the store from a backup, or keep what there is: "
            f"treering doctor --accept-loss --store {self._database.parent}"
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def accept_loss(path: Path) -> bool:
    """Forget how far a database had come, so that it opens as it is; return whether that was known."""
    last = path.with_name(path.name + LAST)
    try:
        last.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TreeringError(f"{last} cannot be removed: {error.strerror}; check its permissions") from error
    return True


@cache
def _boot_id() -> str:
    """Return what changes when the machine restarts; without such a thing, what matches nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _line(no: int, holds_on: str) -> bytes:
    text = f"{no:020d} {holds_on}".encode()
    return text + b" %08x\n" % crc32(text)


def _number_in(line: bytes) -> int:
    text, _, check = line.partition(b"\n")[0].rpartition(b" ")
    no, _, holds_on = text.partition(b" ")
    if check != b"%08x" % crc32(text) or holds_on.decode("ascii", "replace") not in ("disk", _boot_id()):
        return 0
    return int(no) if holds_on != b"unknown" else 0
