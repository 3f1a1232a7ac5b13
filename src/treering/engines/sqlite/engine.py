"""The SQLite engine: one folder with a database and the packs beside it.

``treering.db`` (in WAL mode) holds every row. Large staged objects are in pack files of the blob store, a
folder next to it unless another one is given. Many processes may have the store open.

SQLite takes a missing or empty database for a new one. So ``store.json`` says which store a folder holds; it
is written when the store is created, after its tables. A folder that has it (or a log, or packs) without a
database is not begun anew, but refused. Only the loss of the whole folder cannot be noticed.

A commit by any process wakes those that wait for it (`Follower`). Commits of this process notify waiters
directly. Those of others are noticed by one poller per process, which asks SQLite every few milliseconds
whether the file has changed (that takes about three microseconds), and only while someone waits.

Full-text search uses FTS5 (`SqliteTextIndex`): one index per collection, with the namespace as a token of its
own. The tables hold no copy of the text (``content=''``), only its tokens. The namespace is hashed into one
token, so a search in one namespace is an AND over two columns and reads only the entries of that namespace.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from treering import files
from treering.core.clock import SystemClock, to_iso
from treering.core.engine import Caps
from treering.core.failpoints import declare, hit
from treering.core.ids import new_id
from treering.core.records import Problem
from treering.engines.sql import schema
from treering.engines.sql.engine import SqlEngine
from treering.engines.sql.objects import Objects
from treering.engines.sql.rows import decode_phrases
from treering.engines.sql.search import TextIndex
from treering.engines.sqlite.commit_log import CommitLog, LastCommit
from treering.engines.sqlite.connection import FAILURES, SqliteDatabase, damaged, retry_while_busy, translate
from treering.errors import (
    Closed,
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
    from collections.abc import Callable, Iterator, Sequence

    from treering.core.batch import Tokens
    from treering.core.clock import Clock
    from treering.core.engine import OnWork
    from treering.core.query import SearchQuery
    from treering.core.records import Checked
    from treering.core.storage import Blobs
    from treering.engines.sql.commit.write import EncodedBatch
    from treering.engines.sql.engine import Outcome
    from treering.engines.sql.session import Session
    from treering.engines.sqlite.connection import Durability


_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
_NETWORK_PREFIXES: Final = ("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.juicefs")

MARKER: Final = "store.json"
CREATED: Final = declare("store.created", "the tables of a new store are durable, its marker is not written")
COPIED: Final = declare("backup.copied", "the database of a backup is copied, its packs are not")

_SNAPSHOT_TRIES: Final = 5
_LEFT_BEHIND: Final = {"blobs/objects": "*/*/*/*.pack", "workspaces": "*/*.known"}
"""What only a store writes, by folder; a user's own folder may have such a name."""
_RESTORE: Final = (
    "restore the folder from a backup; to begin a new store, choose another folder or remove this one"
)
_MIN_BYTES: Final = 512
"""The smallest database: one page of the smallest size."""
_REFUSALS: Final = {errno.EROFS: ReadOnly, errno.ENOSPC: StoreFull, errno.EDQUOT: StoreFull}


class SqliteEngine(SqlEngine):
    """A store in one folder."""

    def __init__(self, database: SqliteDatabase, blobs: Blobs, last: LastCommit) -> None:
        objects = Objects(blobs)
        super().__init__(database, objects, SqliteTextIndex(objects), counters_first=True)
        self._sqlite = database
        self._blobs = blobs
        self._follower = Follower(database)
        self._log = CommitLog(database)
        self._last = last

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
        decided = None if numbers is None else self._decide_cached(space, group)
        if numbers is not None and decided is not None:
            state, accepted = decided
            state.commit_numbers = numbers
            if self._log.append(state, accepted, self._caches.of(space)):
                self._last.record(state.commit_numbers[-1])
                return [each.receipt for each in accepted]
        outcomes = self._write_from_database(space, group)
        cache = self._caches.of(space)
        if not self._log.restart(cache.previous_no, cache.commit_no):
            self._caches.invalidate_others(space)
        self._last.record(cache.commit_no)
        return outcomes

    def _opener(self) -> Callable[[], SqlEngine] | None:
        return functools.partial(_open_rows, self._sqlite.path.parent)

    def _committed(self, space: str) -> None:  # noqa: ARG002 - one notification for all spaces
        self._follower.notify()

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, or time is up."""
        self._follower.wait(lambda: self._last_seq(space) > after_seq, seconds)
        return self._last_seq(space)

    def check(
        self, space: str, *, read_content: bool = True, since: int = 0, processes: int = 1
    ) -> Iterator[Problem | Checked]:
        """Verify everything, starting with SQLite's own checks and a look for lost commits."""
        found = super().check(space, read_content=read_content, since=since, processes=processes)
        read_content = read_content and not since  # SQLite's own check reads the whole file
        return self._check(found, read_content=read_content)

    def _check(
        self, found: Iterator[Problem | Checked], *, read_content: bool
    ) -> Iterator[Problem | Checked]:
        where = str(self._sqlite.path)
        recorded = self._last.recorded()
        with self._sqlite.exclusively() as connection:
            missing = self._last.missing(connection, recorded)
        if missing is not None:
            yield Problem(kind="corrupt", where=where, detail=missing)
        if not read_content:
            yield from found
            return
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

    def snapshot_to(self, folder: Path, *, on_progress: OnWork | None = None) -> None:
        """Copy database and packs consistently into a new folder, while writers continue."""
        refuse_occupied(folder)
        with files.translate_os_errors(str(folder), writing=True):
            files.make_folder(folder)
            for attempt in range(_SNAPSHOT_TRIES):
                self._sqlite.copy_to(folder / schema.SQLITE_FILE, on_progress)
                hit(COPIED)
                try:
                    self._copy_packs(folder, on_progress)
                except NotFound:  # gc rewrote a pack in between; the next copy refers to the new one
                    if attempt == _SNAPSHOT_TRIES - 1:
                        raise
                else:
                    return

    def _copy_packs(self, folder: Path, on_progress: OnWork | None) -> None:
        root = folder / "blobs"
        drafts = files.Drafts(root, clock=SystemClock())
        packs = _packs(folder / schema.SQLITE_FILE)
        done, total = 0, sum(packs.values())
        for name, size in packs.items():
            if not (root / name).exists():
                *parents, last = name.split("/")
                with (
                    drafts.write([self._blobs.get(name)]) as draft,
                    files.open_folder(root, parents, make=True) as parent,
                ):
                    draft.publish(parent, last)
            done += size
            if on_progress is not None:
                on_progress("packs", done, total)

    def close(self) -> None:
        """Finish what was submitted, then close all connections."""
        self._group.close()
        if self._log.was_used:
            with suppress(TreeringError):  # what cannot be flushed now will be when it is read
                self.flush()
                self._sqlite.reclaim_space(secure=False)
        self._last.close()
        self._sqlite.close()


def _open_rows(folder: Path) -> SqliteEngine:
    """Open a store that exists, to read rows only: without its blobs."""
    return open_sqlite(folder, blobs=cast("Blobs", None), durability="fast")


def open_sqlite(
    folder: Path,
    *,
    blobs: Blobs,
    durability: Durability = "full",
    clock: Clock | None = None,
    phrases: Callable[[], Sequence[str]] = tuple,
) -> SqliteEngine:
    """Open the store in ``folder``, creating it on first use.

    ``phrases`` returns the dictionary of a new store (see `engines.sql.rows`).
    """
    try:
        files.make_folder(folder)
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
    traces = traces_of(folder)
    refuse_lost(path, traces)
    clock = clock or SystemClock()
    last = LastCommit(path, is_durable=durability == "full")
    try:
        if _is_unwritable(path):
            raise ReadOnly(f"{path} cannot be written; check the mount and its permissions")
        database = _open_database(path, path, last, traces, durability, clock, phrases)
    except (ReadOnly, StoreFull) as error:
        if not path.exists() or not path.stat().st_size:
            raise
        from treering.engines.sqlite.read_only import DatabaseCopy, ReadingEngine

        copy = DatabaseCopy(path, error)
        try:
            database = _open_database(path, copy.path, last, traces, "fast", clock, phrases)
        except NotFound:
            raise error from None
        return ReadingEngine(database, blobs, last, copy)
    return SqliteEngine(database, blobs, last)


def _is_unwritable(path: Path) -> bool:
    """Whether this process cannot write a database that exists."""
    return path.exists() and not (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK))


def _open_database(
    original: Path,
    path: Path,
    last: LastCommit,
    traces: Sequence[str],
    durability: Durability,
    clock: Clock,
    phrases: Callable[[], Sequence[str]],
) -> SqliteDatabase:
    """Open a database, or its copy at ``path``; create what is missing of the original."""
    database = SqliteDatabase(path, durability=durability, clock=clock)
    try:
        recorded = last.recorded()
        with database.exclusively() as connection:
            # Another process may be creating the database, and holds it alone for a moment.
            if retry_while_busy(lambda: schema.read_info(connection, "sqlite")) is None:
                if traces:
                    raise lost(original, "has no tables", traces)
                if path != original:
                    raise NotFound(f"{original} has no tables")
            elif (damage := retry_while_busy(lambda: last.missing(connection, recorded))) is not None:
                raise last.refuse(damage)
            database.set_modes(connection)
            info = schema.ensure_schema(
                connection, "sqlite", location=str(database.path), store_id=new_id(), phrases=phrases
            )
        mark(original, info.store_id or "", clock, writable=path == original)
        database.dictionary.define(decode_phrases(info.dictionary or "[]"))
    except BaseException:
        database.close()
        raise
    return database


def store_of(folder: Path) -> str | None:
    """Return the id of the store that a folder holds, by its marker; ``None`` if it has none."""
    path = folder / MARKER
    try:
        found: Any = json.loads(path.read_bytes())
        return str(found["store"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Corrupt(
            f"{path} cannot be read ({error.strerror}); check the permissions and the disk"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path} is damaged; if the database beside it is the right one, remove this file"
        ) from error


def traces_of(folder: Path) -> list[str]:
    """Return what shows that a folder held a store, besides the database and its log.

    (A log alone may be left of a store whose creation was interrupted, in which nothing was committed.)
    """
    if os.path.lexists(folder / MARKER):
        return [MARKER]
    return [name for name, left in _LEFT_BEHIND.items() if any(folder.glob(f"{name}/{left}"))]


def refuse_lost(path: Path, traces: Sequence[str]) -> None:
    """Raise `Corrupt` if the database is missing or empty in a folder that held a store.

    ``traces`` were looked for before: another process may just be creating the store.
    """
    if traces and not (path.exists() and path.stat().st_size):
        raise lost(path, "is empty" if path.exists() else "is missing", traces)


def lost(path: Path, what: str, traces: Sequence[str]) -> Corrupt:
    """Return the error for a database that holds nothing."""
    return Corrupt(f"{path} {what}, but its folder held a store ({', '.join(traces)}); {_RESTORE}")


def mark(path: Path, store_id: str, clock: Clock, *, writable: bool) -> None:
    """Write the marker of a store that has none; raise `Corrupt` if the folder is that of another store."""
    found = store_of(path.parent)
    if found is None:
        if not writable:
            return
        hit(CREATED)
        data = json.dumps({"store": store_id, "marked_at": to_iso(clock.now_us())}).encode() + b"\n"
        files.write_durably(path.with_name(MARKER), data)
    elif found != store_id:
        raise Corrupt(
            f"{path} holds store {store_id}, but {MARKER} beside it says {found}: the database was replaced. "
            f"Restore the whole folder from a backup, or, if this database is the right one, remove {MARKER}"
        )


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


def _packs(copied: Path) -> dict[str, int]:
    """Return the packs of a copied database with their sizes.

    No other process has it open, so reading it needs no log.
    """
    try:
        with closing(sqlite3.connect(f"{copied.absolute().as_uri()}?immutable=1", uri=True)) as copy:
            return dict(copy.execute("SELECT name, size FROM pack ORDER BY no"))
    except FAILURES as error:
        raise translate(error, str(copied)) from error


def refuse_occupied(folder: Path) -> None:
    """Raise `Conflict` unless the folder is new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty; name a new folder for the copy")


POLL_SECONDS: Final = 0.004


class Follower:
    """Waits for changes of one database."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._waiters = 0
        self._changes = 0
        self._poller: threading.Thread | None = None

    def notify(self) -> None:
        """Wake waiters: this process has committed something."""
        if self._waiters:
            with self._changed:
                self._changes += 1
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when ``ready`` holds after a change, or when time is up."""
        if seconds <= 0 or ready():
            return
        deadline = time.monotonic() + seconds
        with self._changed:
            self._waiters += 1
            if (
                self._poller is None or not self._poller.is_alive()
            ):  # in a forked child the thread does not exist
                self._poller = threading.Thread(target=self._poll, name="treering-follow", daemon=True)
                self._poller.start()
        try:
            while True:
                seen = self._changes
                left = deadline - time.monotonic()
                if ready() or left <= 0:
                    return
                with self._changed:
                    if self._changes == seen:  # otherwise it changed meanwhile
                        self._changed.wait(min(left, 1.0))
        finally:
            with self._changed:
                self._waiters -= 1

    def _poll(self) -> None:
        last = None
        while True:
            with self._changed:
                if not self._waiters:
                    self._poller = None
                    return
            try:
                version = self._database.change_count()
            except (Closed, sqlite3.Error):
                version = None  # closed, or about to be: waiters find out when they look
            if version != last:
                last = version
                self.notify()
            time.sleep(POLL_SECONDS)


_TOKENIZERS: Final[dict[Tokens, str]] = {
    "words": "porter unicode61 remove_diacritics 2",
    "trigrams": "trigram",
}
_GRAM: Final = 3


class SqliteTextIndex(TextIndex):
    """Texts in FTS5 tables named ``fts_<collection>``."""

    def create(self, session: Session, collection: int, tokens: Tokens) -> None:
        """Create an FTS5 table."""
        session.run(
            f"CREATE VIRTUAL TABLE fts_{collection} "
            f"USING fts5(namespace, words, content='', tokenize='{_TOKENIZERS[tokens]}')"
        )

    def add(
        self,
        session: Session,
        space: int,
        collection: int,
        tokens: Tokens,
        texts: Sequence[tuple[int, str, str]],
    ) -> None:
        """Index texts, given as number, namespace and text."""
        del space, tokens  # the table has its tokenizer
        session.run_many(
            f"INSERT INTO fts_{collection} (rowid, namespace, words) VALUES (?, ?, ?)",
            [(no, _token(namespace), words) for no, namespace, words in texts],
        )

    def drop(self, session: Session, space: int, collection: int, text: tuple[int, str, str]) -> None:
        """Remove one text; as the index has no copy, it has to be given what it indexed."""
        del space
        no, namespace, words = text
        session.run(
            f"INSERT INTO fts_{collection} (fts_{collection}, rowid, namespace, words) "
            "VALUES ('delete', ?, ?, ?)",
            (no, _token(namespace), words),
        )

    def clear(self, session: Session, space: int, collection: int, tokens: Tokens) -> None:
        """Remove all texts of a collection."""
        del space
        session.run(f"DROP TABLE IF EXISTS fts_{collection}")
        self.create(session, collection, tokens)

    def size(self, session: Session, space: int, collection: int) -> int:
        """Return how many texts of a collection are in the index."""
        del space
        ((count,),) = session.rows(f"SELECT count(*) FROM fts_{collection}_docsize")
        return count

    def optimize(self, session: Session, collections: Sequence[int]) -> None:
        """Merge each index into one segment: only then are the tokens of deleted texts really gone."""
        for collection in collections:
            session.run(f"INSERT INTO fts_{collection} (fts_{collection}) VALUES ('optimize')")

    def find(
        self,
        session: Session,
        space: int,
        collection: int,
        tokens: Tokens,
        terms: Sequence[str],
        query: SearchQuery,
    ) -> list[tuple[int, float]]:
        """Return numbers and scores of texts that contain any of the terms, best first."""
        del space  # a collection has its own table
        wanted = _grams(terms) if tokens == "trigrams" else terms
        if not wanted:
            return []
        match = "words : (" + " OR ".join(f'"{term}"' for term in wanted) + ")"
        if query.namespace is not None:
            match = f'namespace : "{_token(query.namespace)}" AND {match}'
        rows = session.rows(
            f"SELECT rowid, -bm25(fts_{collection}) AS score FROM fts_{collection} "
            f"WHERE fts_{collection} MATCH ? ORDER BY score DESC, rowid LIMIT ?",
            (match, query.limit),
        )
        return [(no, score) for no, score in rows]


def _token(namespace: str) -> str:
    return "n" + sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def _grams(terms: Sequence[str]) -> list[str]:
    """Return all trigrams, for languages without spaces."""
    grams = {term[at : at + _GRAM]: None for term in terms for at in range(max(len(term) - _GRAM + 1, 0))}
    return list(grams)
