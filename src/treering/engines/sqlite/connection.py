"""Connections to one SQLite database: one that writes, some that read, and the queue of its writers.

Readers do not wait for a writer's transaction, but one that finds pending commits (`commit_log`) flushes them
first, so it sees every commit that was acknowledged before. Read transactions are short and end before
anything is returned, because an open one keeps SQLite's write-ahead log from being recycled. A write
transaction flushes in a transaction of its own before the one it came for. **Invariant:** only statements of
the commit log ever run while commits are pending that were there when their transaction began.

Writers queue: within the process at a lock, between processes at a lock file (`WriterQueue`), and ``BEGIN
IMMEDIATE`` decides. SQLite's own busy handler starves some processes, because it sleeps longer and longer. So
it is off. Before a process asks SQLite for its write lock, it locks a file beside the database (``flock``).
The kernel queues the waiters and wakes the first one when the lock is released. Nobody polls, so eight
processes on two cores spend their time on commits and not on finding the database locked, and nobody starves.
A process that had to wait keeps the lock for a moment after its commit, so that a busy process makes several
commits per turn: a handover costs more than a commit.

A blocking ``flock`` has no timeout. So it waits in a thread of its own; a writer that has waited too long
gives up and leaves it to that thread to release the lock as soon as it gets it. The same thread ends a turn
that is kept and not used. **Invariant:** the lock is advisory and ends with its process. SQLite's own lock
still decides: a writer that finds the database locked all the same, by a process that does not use the queue,
retries after a random delay of up to two milliseconds, until a deadline (`retry_while_busy`).

A forked child drops the inherited connections without closing them, because closing would release the
parent's locks, and opens its own.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from contextlib import AbstractContextManager, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from treering.engines.sql.rows import Dictionary
from treering.engines.sql.session import RECEIPTS, query_in_chunks
from treering.engines.sqlite.commit_log import IS_PENDING, WIPE, flush
from treering.errors import Busy, Closed, Corrupt, ReadOnly, StoreFull, TreeringError, Unreachable
from treering.files import FILE_MODE, open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from treering.core.clock import Clock
    from treering.core.engine import OnWork
    from treering.engines.sql.commit.write import CommitRows
    from treering.engines.sql.session import Dialect, Row


Durability = Literal["full", "fast"]
Result = TypeVar("Result")

BUSY_SECONDS: Final = 30.0
"""How long a writer waits for a lock."""
RETRY_SECONDS: Final = 0.002
"""The longest delay between two attempts to get SQLite's lock."""
TURN_SECONDS: Final = 0.02
"""How long a process that had to wait may keep the lock; with eight of them, each waits less than 0.2 s."""
IDLE_SECONDS: Final = 0.001
"""A turn that was not used for this long ends."""
FEW_COMMITS: Final = 4
SKIPPED_COMMITS: Final = 8
"""After a reader had to flush fewer than `FEW_COMMITS` slots, this many commits skip the log."""

_SYNCHRONOUS: Final[dict[Durability, str]] = {"full": "FULL", "fast": "NORMAL"}
_PAGES_AT_ONCE: Final = 1_000
"""Of a copy with progress."""
_SYMPTOMS: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""What code may raise that reads a row of a damaged database."""
_SETTINGS: Final = (
    "PRAGMA busy_timeout = 0",
    "PRAGMA cache_size = -16384",
    "PRAGMA journal_size_limit = 67108864",
)
_abandoned: Final[list[SqliteSession | sqlite3.Connection]] = []
"""Connections that a forked child inherited; referenced so that nothing closes them."""


class SqliteDatabase:
    """A database file and this process's connections to it."""

    def __init__(self, path: Path, *, durability: Durability, clock: Clock) -> None:
        self.path = path
        self._durability: Durability = durability
        self._clock = clock
        self.dictionary = Dictionary()
        self._reset()
        _open_databases.add(self)

    def _reset(self) -> None:
        self._write_lock = threading.RLock()
        self.queue = WriterQueue(self.path.with_name(self.path.name + "-turns"))
        self._writer: SqliteSession | None = None
        self._is_unsynced = False
        """Whether the writing connection may be in the mode that does not sync: during a flush."""
        self._readers: list[SqliteSession] = []
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._closed = False
        self.pending: dict[int, CommitRows] = {}
        """The rows of this process's pending commits, by the number of the last commit in their slot."""
        self.skip_log = 0
        """How many commits go straight into the tables, because they are read at once."""

    @property
    def dialect(self) -> Dialect:
        """SQLite."""
        return "sqlite"

    def now_us(self) -> int:
        """Return the time on this machine, which all processes on the store share."""
        return self._clock.now_us()

    def reading(self) -> AbstractContextManager[SqliteSession]:
        """A short read transaction."""
        return ReadTransaction(self, begins=True)

    def single_query(self) -> AbstractContextManager[SqliteSession]:
        """A session for one query, which sees one moment without a transaction."""
        return ReadTransaction(self, begins=False)

    def writing(self, space: int | None = None) -> AbstractContextManager[SqliteSession]:  # noqa: ARG002 - one lock for all
        """A write transaction: the only one in this database, of any process."""
        return WriteTransaction(self)

    def appending(self) -> AbstractContextManager[SqliteSession]:
        """A write transaction for the commit log, which does not flush."""
        return WriteTransaction(self, flushes=False)

    def execute_alone(self, sql: str, parameters: Sequence[Any]) -> int:
        """Run one statement as such a transaction; return how many rows it changed."""
        with self._write_lock:
            try:
                session = self.write_session()
                self.queue.enter(BUSY_SECONDS)
                return retry_while_busy(lambda: session.run(sql, parameters))
            except FAILURES as error:
                raise translate(error, str(self.path)) from error
            finally:
                self.queue.leave()

    def flush(self) -> None:
        """Flush pending commits, for a reader."""
        with self.writing():
            pass

    def flush_unsynced(self, session: SqliteSession) -> None:
        """Flush pending commits, holding the write lock and without an open transaction.

        Nothing has to be synced: until the next sync, these commits are durable in the log.
        """
        self._is_unsynced = True
        try:
            self._set_synchronous(session, "NORMAL")
            retry_while_busy(session.begin)
            try:
                flush(session, self.pending)
                session.commit()
            except BaseException:
                session.roll_back()
                raise
        finally:
            self._sync_again(session)

    def _sync_again(self, session: SqliteSession) -> None:
        """Sync commits again; if an interrupt left a transaction open, as soon as that is rolled back."""
        if not session.connection.in_transaction:  # a script would commit it
            self._set_synchronous(session, _SYNCHRONOUS[self._durability])
            self._is_unsynced = False

    def _set_synchronous(self, session: SqliteSession, mode: str) -> None:
        # As a script: the statement takes effect when it is prepared, and prepared statements are cached.
        session.connection.executescript(f"PRAGMA synchronous = {mode}")

    def reclaim_space(self, *, secure: bool) -> None:
        """Return free pages to the disk; when ``secure``, leave no old page in the log either."""
        with self.exclusively() as connection:
            self.pending.clear()
            retry_while_busy(lambda: connection.execute(WIPE))
            # As a script, because a single execute frees a single page.
            retry_while_busy(lambda: connection.executescript("PRAGMA incremental_vacuum"))
            if secure:
                self._truncate_log(connection)

    def _truncate_log(self, connection: sqlite3.Connection) -> None:
        """Move the write-ahead log into the database and truncate it, as soon as no reader needs it."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if not busy:
                return
            if time.monotonic() > deadline:
                raise Busy(
                    f"{self.path}: a reader holds the log open, so erased bytes may still be in it; "
                    "close other readers and run the erasure again"
                )
            time.sleep(random.uniform(0, RETRY_SECONDS))

    @contextmanager
    def exclusively(self) -> Generator[sqlite3.Connection]:
        """The writing connection outside of a transaction, with errors translated."""
        with self._write_lock:
            try:
                yield self.writer()
            except FAILURES as error:
                raise translate(error, str(self.path)) from error

    def writer(self) -> sqlite3.Connection:
        """Return the one connection that writes; its user holds the write lock."""
        return self.write_session().connection

    def write_session(self) -> SqliteSession:
        """Return the session of that connection, for one transaction after another."""
        if self._writer is None:
            self._check_open()
            connection = self._connect()
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
            connection.execute("PRAGMA secure_delete = ON")
            self._writer = SqliteSession(connection, self.dictionary)
        elif self._is_unsynced:
            self._sync_again(self._writer)
        return self._writer

    def acquire_reader(self) -> SqliteSession:
        """Return a read-only session for one transaction."""
        try:
            return self._readers.pop()
        except IndexError:
            self._check_open()
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
            return SqliteSession(connection, self.dictionary)

    def release_reader(self, session: SqliteSession) -> None:
        """Take a read-only session back."""
        if self._closed:
            session.connection.close()
        else:
            self._readers.append(session)

    def _connect(self) -> sqlite3.Connection:
        _create_private(self.path)
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        try:
            for setting in _SETTINGS:  # another process may just be creating the database
                retry_while_busy(partial(connection.execute, setting))
        except BaseException:
            connection.close()
            raise
        return connection

    def set_modes(self, connection: sqlite3.Connection) -> None:
        """Set the modes of a new database that cannot be changed once it has tables."""
        retry_while_busy(lambda: connection.execute("PRAGMA auto_vacuum = INCREMENTAL"))
        retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))

    def change_count(self) -> int:
        """Return a number that changes when another connection commits."""
        with self._watching:  # closing a connection while it is in use crashes the interpreter
            self._check_open()
            if self._watcher is None:
                self._watcher = self._connect()
            ((count,),) = self._watcher.execute("PRAGMA data_version").fetchall()
            return count

    def copy_to(self, target: Path, on_progress: OnWork | None = None) -> None:
        """Copy the database as it is at one moment; in WAL mode writers continue meanwhile.

        With ``on_progress`` it is copied in pieces, within a read transaction that keeps the moment: without
        one, SQLite begins anew when another connection writes between two pieces.
        """
        session = self.acquire_reader()
        try:
            _create_private(target)
            copy = sqlite3.connect(target)
            try:
                if on_progress is None:
                    session.connection.backup(copy)
                else:
                    with _one_moment(session.connection):
                        session.connection.backup(
                            copy, pages=_PAGES_AT_ONCE, progress=_in_bytes(session.connection, on_progress)
                        )
            finally:
                copy.close()
        except FAILURES as error:
            raise translate(error, str(target)) from error
        finally:
            self.release_reader(session)

    def raise_cause(self, error: BaseException) -> None:
        """Raise the cause of an error in a transaction: translated, or `Corrupt`; otherwise do nothing.

        In a damaged database a row may hold anything, and the code that reads it does not know why it fails.
        So an error that nobody raises on purpose becomes `Corrupt` if SQLite finds damage.
        """
        if isinstance(error, FAILURES):
            raise translate(error, str(self.path)) from error
        if isinstance(error, _SYMPTOMS):
            for damage in self.find_damage("quick_check(1)"):
                raise damaged(str(self.path), damage) from error

    def find_damage(self, check: str = "integrity_check(100)") -> list[str]:
        """Return what SQLite itself finds wrong. Reads the whole database in one transaction."""
        try:
            session = self.acquire_reader()
            rows = session.rows(f"PRAGMA {check}")
            self.release_reader(session)
        except FAILURES as error:
            return [str(error)]
        return [" ".join(text.split()) for (text,) in rows if text != "ok"]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.path} was closed; open the store again")

    def close(self) -> None:
        """Close all connections; the last one of all processes folds the log into the database."""
        with self._write_lock:
            self._closed = True
            while self._readers:
                self._readers.pop().connection.close()
            if self._writer is not None:
                self._writer.connection.close()
            with self._watching:
                if self._watcher is not None:
                    self._watcher.close()
            self._watcher = self._writer = None
            self.queue.close()

    def lock_writes(self) -> None:
        """Keep all other threads of this process from writing, until `unlock_writes`."""
        self._write_lock.acquire()

    def unlock_writes(self) -> None:
        """Let other threads write again."""
        self._write_lock.release()

    def abandon(self) -> None:
        """In a forked child: forget the parent's connections without touching them."""
        _abandoned.extend(self._readers)
        if self._writer is not None:
            _abandoned.append(self._writer)
        if self._watcher is not None:
            _abandoned.append(self._watcher)
        self.queue.abandon()
        closed = self._closed
        self._reset()
        self._closed = closed


class ReadTransaction:
    """A read transaction; without ``begins``, for one query only."""

    __slots__ = ("_begins", "_database", "_session", "_writing")

    def __init__(self, database: SqliteDatabase, *, begins: bool) -> None:
        self._database = database
        self._begins = begins
        self._writing: WriteTransaction | None = None

    def __enter__(self) -> SqliteSession:
        database = self._database
        try:
            session = database.acquire_reader()
            try:
                is_flushed = self._flush(session)
                if is_flushed and self._begins:
                    session.execute("BEGIN")
            except BaseException:
                session.connection.close()
                raise
        except FAILURES as error:
            raise translate(error, str(database.path)) from error
        if not is_flushed:
            database.release_reader(session)
            return self._enter_unflushed()
        self._session = session
        return session

    def _flush(self, session: SqliteSession) -> bool:
        """Flush what is pending; ``False`` if the database cannot be written.

        Only once: later commits were acknowledged after this read began, so a busy writer delays no reader.
        """
        database = self._database
        if session.has_pending():
            database.skip_log = 0 if session.has_pending(FEW_COMMITS - 1) else SKIPPED_COMMITS
            try:
                database.flush()
            except (ReadOnly, StoreFull):
                return False
        return True

    def _enter_unflushed(self) -> SqliteSession:
        """Read where nothing can be written: in a transaction that flushes and is rolled back."""
        self._writing = WriteTransaction(self._database, flushes=False)
        session = self._writing.__enter__()
        try:
            flush(session, self._database.pending)
        except BaseException as error:
            self._writing.__exit__(type(error), error, error.__traceback__)
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writing is not None:
            self._writing.give_up()
        else:
            self._end(failed=kind is not None)
        if error is not None:
            self._database.raise_cause(error)

    def _end(self, *, failed: bool) -> None:
        session = self._session
        try:
            if session.connection.in_transaction:  # some errors end it
                session.execute("ROLLBACK" if failed else "COMMIT")
        except FAILURES as failure:
            session.connection.close()
            raise translate(failure, str(self._database.path)) from failure
        self._database.release_reader(session)


class WriteTransaction:
    """A write transaction: the only one in this database, of any process."""

    __slots__ = ("_database", "_flushes", "_session")

    def __init__(self, database: SqliteDatabase, *, flushes: bool = True) -> None:
        self._database = database
        self._flushes = flushes
        self._session: SqliteSession | None = None

    def __enter__(self) -> SqliteSession:
        database = self._database
        database.lock_writes()
        try:
            self._session = session = database.write_session()
            database.queue.enter(BUSY_SECONDS)
            retry_while_busy(session.begin)
            if self._flushes and session.has_pending():
                self._flush(session)
        except BaseException as error:
            self.give_up()
            if isinstance(error, FAILURES):
                raise translate(error, str(database.path)) from error
            raise
        return session

    def _flush(self, session: SqliteSession) -> None:
        """Flush in a transaction of its own, so that readers need not wait for a long one."""
        session.roll_back()
        self._database.flush_unsynced(session)
        retry_while_busy(session.begin)
        if session.has_pending():  # by a process that does not use the writer queue
            flush(session, self._database.pending)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        database = self._database
        try:
            if kind is None and self._session is not None:
                self._session.commit()
        except FAILURES as failure:
            raise translate(failure, str(database.path)) from failure
        finally:
            self.give_up()
        if error is not None:
            database.raise_cause(error)

    def give_up(self) -> None:
        """Roll back what is not committed, and release the locks."""
        try:
            if self._session is not None:
                self._session.roll_back()
        finally:
            try:
                self._database.queue.leave()
            finally:
                self._database.unlock_writes()


_LOCK_SPACE: Final = (
    "SELECT seq, committed_at_us, scopes_dropped, (SELECT coalesce(max(no), 0) FROM commits), "
    "EXISTS (SELECT 1 FROM commits WHERE space = ?1 AND batch = ?2) FROM space WHERE no = ?1"
)
"""One query for everything: mostly it is a lone batch, and a query costs more than its result."""

_HAS_PENDING: Final = f"SELECT 1 FROM fresh WHERE slot = ? AND {IS_PENDING}"


class SqliteSession:
    """An open transaction on a connection.

    Statements that are finished when their call returns share one cursor: creating one costs as much as a
    statement.
    """

    __slots__ = ("_execute", "_execute_many", "_largest_commit", "connection", "dictionary")

    def __init__(self, connection: sqlite3.Connection, dictionary: Dictionary) -> None:
        cursor = connection.cursor()
        self.connection = connection
        self.dictionary = dictionary
        self._execute = cursor.execute
        self._execute_many = cursor.executemany
        self._largest_commit: int | None = None

    def begin(self) -> None:
        """Begin a write transaction."""
        self._largest_commit = None
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction and make it durable."""
        self._execute("COMMIT")

    def roll_back(self) -> None:
        """Roll the transaction back, if it is still open: some errors end it."""
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def has_pending(self, slot: int = 0) -> bool:
        """Whether the commits in a slot are pending; for the first slot, whether any are."""
        return bool(self._execute(_HAS_PENDING, (slot,)).fetchall())

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query."""
        return self._execute(sql, parameters).fetchall()

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; return how many rows it changed."""
        return self._execute(sql, parameters).rowcount

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; return how many rows were changed in all."""
        if len(rows) == 1:
            return self._execute(sql, rows[0]).rowcount
        return self._execute_many(sql, rows).rowcount

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a query, read while they are iterated over."""
        return self.connection.execute(sql, parameters)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        self._execute(sql, parameters)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row."""
        if len(rows) == 1:
            self._execute(sql, rows[0])
        else:
            self._execute_many(sql, rows)

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Return the counters of a space, which a write transaction has locked already, and receipts."""
        first = batches[0] if batches else None
        ((seq, committed_at_us, removals, largest, first_exists),) = self._execute(
            _LOCK_SPACE, (space, first)
        ).fetchall()
        self._largest_commit = largest
        may_repeat = first_exists or len(batches) > 1
        receipts = query_in_chunks(self, RECEIPTS, (space,), batches) if may_repeat else ()
        return [(seq, committed_at_us, removals)], receipts

    def numbers(self, table: str, count: int) -> list[int]:
        """Return new numbers: higher than all in use, and than all that were ever given."""
        if table == "commits" and self._largest_commit is not None:
            return list(range(self._largest_commit + 1, self._largest_commit + 1 + count))
        ((largest,),) = self._execute(f"SELECT max(no) FROM {table}").fetchall()
        if table != "commits":  # rows of commits are never deleted
            given = self._execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchall()
            largest = max([largest or 0, *(seq for (seq,) in given)])
        return list(range((largest or 0) + 1, (largest or 0) + 1 + count))


class WriterQueue:
    """The queue of writers to one database; used by one thread of a process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._is_held = False
        """Whether the lock on `_file` is held; one that was waited for belongs to `_turn`."""
        self._requests: SimpleQueue[_Request] | None = None
        """To the thread that waits for locks."""
        self._turn: _Turn | None = None

    def enter(self, seconds: float) -> None:
        """Wait until this process may write; raises `Busy` after so many seconds."""
        if self._turn is not None:
            if self._turn.resume():
                return
            self._turn = None
        if self._file is None:
            try:
                self._file = self._open()
            except OSError:  # the folder is read-only: SQLite's error is better
                return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            self._turn = self._wait_for_turn(seconds)
        else:
            self._is_held = True

    def leave(self) -> None:
        """Let the next process write, now or when our turn is over."""
        if self._is_held and self._file is not None:
            self._is_held = False
            flock(self._file, LOCK_UN)
        elif self._turn is not None and not self._turn.pause():
            self._turn = None

    def close(self) -> None:
        """Release everything; this process writes no more."""
        if self._turn is not None:
            self._turn.end()
        self._close_file()

    def abandon(self) -> None:
        """In a forked child: close inherited files. The parent keeps its turn."""
        if self._turn is not None:
            self._turn.abandon()
        self._close_file()

    def _close_file(self) -> None:
        self._turn = None
        self._is_held = False
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def _wait_for_turn(self, seconds: float) -> _Turn:
        if self._requests is None:
            self._requests = SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._requests,), name="treering-writer-queue", daemon=True
            ).start()
        request = _Request(self._open())
        self._requests.put(request)
        if not request.gate.acquire(timeout=seconds) and request.give_up():
            self._requests = None  # that thread is still waiting; the next wait starts another
            raise Busy(f"{self._path}: other writers held the lock for {seconds:.0f} s; retry")
        return request.turn


class _Turn:
    """A lock that was waited for, on a file descriptor of its own, kept for some time."""

    def __init__(self, file: int, *, seconds: float) -> None:
        self._file = file
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._used_at: float | None = None
        """When it was last used; ``None`` while it is in use."""
        self.is_over = False

    def pause(self) -> bool:
        """Stop writing; ``False`` if that ends the turn."""
        now = time.monotonic()
        if now >= self._until:
            self.end()
            return False
        self._used_at = now
        return True

    def resume(self) -> bool:
        """Write again; ``False`` if the turn has ended meanwhile."""
        with self._lock:
            if not self.is_over:
                self._used_at = None
            return not self.is_over

    def end_if_idle(self) -> None:
        """End the turn if it has not been used for a while."""
        with self._lock:
            if self._used_at is not None and time.monotonic() - self._used_at >= IDLE_SECONDS:
                self._end()

    def end(self) -> None:
        """Let the next process write."""
        with self._lock:
            self._end()

    def abandon(self) -> None:
        """In a forked child: close the file without unlocking. (Nobody holds `_lock` here.)"""
        if not self.is_over:
            os.close(self._file)
        self.is_over = True

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            flock(self._file, LOCK_UN)
            os.close(self._file)


class _Request:
    """A writer that waits for the lock on a file descriptor of its own."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.gate = threading.Lock()
        self.gate.acquire()
        self.turn: _Turn
        self._lock = threading.Lock()
        self._is_given_up = False
        self._is_granted = False

    def grant(self) -> _Turn | None:
        """Hand the lock over, or release it if the writer has given up."""
        with self._lock:
            self._is_granted = True
            if self._is_given_up:
                os.close(self.file)
                return None
            self.turn = _Turn(self.file, seconds=TURN_SECONDS)
        self.gate.release()
        return self.turn

    def give_up(self) -> bool:
        """Stop waiting; ``False`` if the lock was granted just now."""
        with self._lock:
            self._is_given_up = not self._is_granted
            return self._is_given_up


def _serve(requests: SimpleQueue[_Request]) -> None:
    """Wait for one lock after another, in a thread."""
    request = requests.get()
    while True:
        flock(request.file, LOCK_EX)
        request = _next_after(request.grant(), requests)


def _next_after(turn: _Turn | None, requests: SimpleQueue[_Request]) -> _Request:
    """Return the next request; until then, end the turn if it is not used."""
    while turn is not None and not turn.is_over:
        try:
            return requests.get(timeout=IDLE_SECONDS)
        except Empty:
            turn.end_if_idle()
    return requests.get()


def retry_while_busy(action: Callable[[], Result]) -> Result:
    """Do something that needs SQLite's lock, retrying after random delays until a deadline."""
    try:
        return action()
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        time.sleep(random.uniform(0, RETRY_SECONDS))
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise


_open_databases: Final[weakref.WeakSet[SqliteDatabase]] = weakref.WeakSet()
_locked: Final[list[SqliteDatabase]] = []
_forking = threading.Lock()
"""Serialises threads that fork at the same time, or each would wait for what the other has locked."""


def _before_fork() -> None:
    """Wait for write transactions: SQLite's state of a held lock would be copied into the child for good."""
    _forking.acquire()
    for database in list(_open_databases):
        database.lock_writes()
        _locked.append(database)


def _after_fork_in_parent() -> None:
    while _locked:
        _locked.pop().unlock_writes()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603 - the parent's lock, held as it was during the fork
    _forking = threading.Lock()
    _locked.clear()
    for database in list(_open_databases):
        database.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # from here on it is that moment
        yield
    finally:
        connection.execute("COMMIT")


def _in_bytes(connection: sqlite3.Connection, on_progress: OnWork) -> Callable[[int, int, int], None]:
    ((page,),) = connection.execute("PRAGMA page_size")

    def report(_: int, left: int, pages: int) -> None:
        on_progress("database", (pages - left) * page, pages * page)

    return report


def _create_private(path: Path) -> None:
    """Create a database that only its owner may read; SQLite gives its log the same mode."""
    if not path.exists():
        with suppress(OSError):  # another process was faster, or SQLite reports what is wrong
            open_private(path, "xb").close()


FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises; the latter if bytes of a damaged database get into an error message."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CANNOT_GROW: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_WRITE,
    }
)
"""SQLite's errors when a file cannot be created or grow; only plain writes report a full disk as such."""

_MIN_FREE_BYTES: Final = 64 * 1024
"""With less than this, a file that cannot grow means a full disk: shared memory grows by half of it."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that a retry may succeed."""
    return _code(error) in _BUSY


def translate(error: sqlite3.Error | UnicodeDecodeError, where: str) -> TreeringError:
    """Return our error for one of sqlite3; ``where`` names the database."""
    code = _code(error)
    if isinstance(error, UnicodeDecodeError) or (isinstance(error, sqlite3.OperationalError) and code < 0):
        return damaged(where, str(error))  # no SQLite code: the module failed to decode a text
    if code in _BUSY:
        return Busy(f"{where} is locked by other writers; retry")
    if code == sqlite3.SQLITE_FULL or (_extended_code(error) in _CANNOT_GROW and _is_full(where)):
        return StoreFull(f"{where}: the disk is full; nothing was written. Free space and retry")
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return damaged(where, str(error))
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return ReadOnly(f"{where} cannot be written ({error}); check the permissions of file and folder")
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}:
        return Unreachable(f"{where} cannot be read or written ({error}); check the disk and the path")
    return TreeringError(f"{where}: SQLite reports {error}")


def damaged(where: str, damage: str) -> Corrupt:
    """Return our error for a database that is not as SQLite wrote it."""
    return Corrupt(f"{where} is damaged ({damage}); restore it from a backup, or run `treering verify`")


def _code(error: Exception) -> int:
    extended = _extended_code(error)
    return extended & 0xFF if extended >= 0 else extended


def _extended_code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", -1)


def _is_full(where: str) -> bool:
    try:
        disk = os.statvfs(Path(where).parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES
