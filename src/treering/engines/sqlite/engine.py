"""The SQLite engine: one folder with a database and the packs beside it.

``treering.db`` (in WAL mode) holds every row. Large staged objects are in pack files of the blob store, a
folder next to it unless another one is given. Many processes may have the store open.
"""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treering import files
from treering.core.clock import SystemClock
from treering.core.engine import Caps
from treering.core.failpoints import declare, hit
from treering.core.ids import new_id
from treering.core.records import Problem
from treering.engines.sql import schema
from treering.engines.sql.dictionary import decode_phrases
from treering.engines.sql.engine import SqlEngine
from treering.engines.sql.objects import Objects
from treering.engines.sqlite.commit_log import CommitLog
from treering.engines.sqlite.connection import SqliteDatabase
from treering.engines.sqlite.errors import FAILURES, damaged, translate
from treering.engines.sqlite.follow import Follower
from treering.engines.sqlite.fts import SqliteTextIndex
from treering.errors import (
    Conflict,
    Corrupt,
    NotFound,
    ReadOnly,
    StoreFull,
    TreeringError,
    Unreachable,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.core.clock import Clock
    from treering.core.records import Checked
    from treering.core.storage import Blobs
    from treering.engines.sql.commit.encode import EncodedBatch
    from treering.engines.sql.commit.group import Outcome
    from treering.engines.sqlite.connection import Durability


_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
_NETWORK_PREFIXES: Final = ("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.juicefs")

COPIED: Final = declare("backup.copied", "the database of a backup is copied, its packs are not")

_SNAPSHOT_TRIES: Final = 5
_MIN_BYTES: Final = 512
"""The smallest database: one page of the smallest size."""
_REFUSALS: Final = {errno.EROFS: ReadOnly, errno.ENOSPC: StoreFull, errno.EDQUOT: StoreFull}


class SqliteEngine(SqlEngine):
    """A store in one folder."""

    def __init__(self, database: SqliteDatabase, blobs: Blobs) -> None:
        objects = Objects(blobs)
        super().__init__(database, objects, SqliteTextIndex(objects), counters_first=True)
        self._sqlite = database
        self._blobs = blobs
        self._follower = Follower(database)
        self._log = CommitLog(database)

    @property
    def caps(self) -> Caps:
        """Everything in the contract."""
        return Caps(durable=True, shared_writers=True, backup=True)

    @property
    def url(self) -> str:
        """The folder of the store."""
        return f"sqlite:///{self._sqlite.path.parent}"

    sql_dialect: Final = "sqlite"

    def sql_connection(self) -> sqlite3.Connection:
        """Open a connection for SQL queries, which the caller closes. Call `flush` before each query."""
        try:
            return sqlite3.connect(self._sqlite.path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise translate(error, str(self._sqlite.path)) from error

    def flush(self) -> None:
        """Flush pending commits, for a caller that reads the tables on its own connection."""
        with self._sqlite.single_query():
            pass

    def _write_space(self, space: int, group: list[EncodedBatch]) -> list[Outcome]:
        """Append a group to the commit log if it was decided from the cache, else write it to the tables."""
        numbers = self._log.next_numbers(len(group))
        decided = None if numbers is None else self._decide_cached(space, group, numbers)
        if decided is not None:
            state, accepted = decided
            if self._log.append(state, accepted, self._caches.of(space)):
                return [each.receipt for each in accepted]
        outcomes = self._write_from_database(space, group)
        cache = self._caches.of(space)
        if not self._log.restart(cache.previous_no, cache.commit_no):
            self._caches.invalidate_others(space)
        return outcomes

    def _committed(self, space: str) -> None:  # noqa: ARG002 - one notification for all spaces
        self._follower.notify()

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, or time is up."""
        self._follower.wait(lambda: self._last_seq(space) > after_seq, seconds)
        return self._last_seq(space)

    def check(self, space: str, *, read_content: bool = True) -> Iterator[Problem | Checked]:
        """Verify everything, starting with SQLite's own checks."""
        found = super().check(space, read_content=read_content)
        return self._check(found) if read_content else found

    def _check(self, found: Iterator[Problem | Checked]) -> Iterator[Problem | Checked]:
        where = str(self._sqlite.path)
        damages = self._sqlite.find_damage()
        yield from (Problem(kind="corrupt", where=where, detail=damage) for damage in damages)
        try:
            yield from found
        except TreeringError:
            raise
        except Exception as error:
            if damages:
                raise damaged(where, f"the check failed with {error!r}") from error
            raise

    def snapshot_to(self, folder: Path) -> None:
        """Copy database and packs consistently into a new folder, while writers continue."""
        refuse_occupied(folder)
        with files.translate_os_errors(str(folder), writing=True):
            folder.mkdir(parents=True, exist_ok=True)
            for attempt in range(_SNAPSHOT_TRIES):
                self._sqlite.copy_to(folder / schema.SQLITE_FILE)
                hit(COPIED)
                try:
                    self._copy_packs(folder)
                except NotFound:  # gc rewrote a pack in between; the next copy refers to the new one
                    if attempt == _SNAPSHOT_TRIES - 1:
                        raise
                else:
                    return

    def _copy_packs(self, folder: Path) -> None:
        root = folder / "blobs"
        drafts = files.Drafts(root, clock=SystemClock())
        for name in _pack_names(folder / schema.SQLITE_FILE):
            if not (root / name).exists():
                *parents, last = name.split("/")
                with (
                    drafts.write([self._blobs.get(name)]) as draft,
                    files.open_folder(root, parents, make=True) as parent,
                ):
                    draft.publish(parent, last)

    def close(self) -> None:
        """Finish what was submitted, then close all connections."""
        self._group.close()
        if self._log.was_used:
            with suppress(TreeringError):  # what cannot be flushed now will be when it is read
                self.flush()
                self._sqlite.reclaim_space(secure=False)
        self._sqlite.close()


def open_sqlite(
    folder: Path,
    *,
    blobs: Blobs,
    durability: Durability = "full",
    clock: Clock | None = None,
    phrases: Sequence[str] = (),
) -> SqliteEngine:
    """Open the store in ``folder``, creating it on first use.

    ``phrases`` become the dictionary of a new store (see `engines.sql.dictionary`).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise ReadOnly(
            f"{folder} cannot be created: {error.strerror}; choose a folder that you may write to"
        ) from error
    except OSError as error:
        kind = _REFUSALS.get(error.errno or 0, Unreachable)
        raise kind(f"{folder} cannot be created: {error.strerror}; choose another folder") from error
    refuse_network(folder)
    path = folder / schema.SQLITE_FILE
    _refuse_truncated(path)
    database = SqliteDatabase(path, durability=durability, clock=clock or SystemClock())
    try:
        with database.exclusively() as connection:
            database.set_modes(connection)
            info = schema.ensure_schema(
                connection, "sqlite", location=str(database.path), store_id=new_id(), phrases=phrases
            )
        database.dictionary.define(decode_phrases(info.dictionary or "[]"))
    except BaseException:
        database.close()
        raise
    return SqliteEngine(database, blobs)


def refuse_network(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Raise `Unsupported` if the folder is on a network file system.

    SQLite's write-ahead log uses shared memory between processes. On a network file system two machines
    would each have a different view of it and destroy the database.
    """
    kind = file_system(folder, mounts)
    if kind is not None and (kind in _NETWORK or kind.startswith(_NETWORK_PREFIXES)):
        raise Unsupported(
            f"{folder} is on a network file system ({kind}), where SQLite cannot share its log safely; "
            "use a local folder, or PostgreSQL (postgresql://...) for several machines"
        )


def file_system(folder: Path, mounts: Path) -> str | None:
    """Return the type of the file system that holds a folder; ``None`` if the system does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = folder.resolve()
    best, kind = -1, None
    for line in lines:
        fields = line.split(" ")
        point = Path(fields[4].replace("\\040", " "))
        if resolved.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[fields.index("-") + 1]
    return kind


def _refuse_truncated(path: Path) -> None:
    """SQLite takes a file that is too short for an empty database, and overwrites it."""
    try:
        size = path.stat().st_size
    except OSError:
        return  # it does not exist; anything else is reported by SQLite
    if 0 < size < _MIN_BYTES:
        raise Corrupt(f"{path} is truncated ({size} bytes); restore it from a backup, or remove it")


def _pack_names(copied: Path) -> list[str]:
    """Return the packs of a copied database. No other process has it open, so reading it needs no log."""
    try:
        with closing(sqlite3.connect(f"{copied.absolute().as_uri()}?immutable=1", uri=True)) as copy:
            return [name for (name,) in copy.execute("SELECT name FROM pack ORDER BY no")]
    except FAILURES as error:
        raise translate(error, str(copied)) from error


def refuse_occupied(folder: Path) -> None:
    """Raise `Conflict` unless the folder is new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty; name a new folder for the copy")
