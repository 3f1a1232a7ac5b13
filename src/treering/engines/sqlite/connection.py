"""Connections to one SQLite database: one that writes, some that read.

Writers take turns: inside the process by a lock, between processes at a lock file (see `turns`), and
``BEGIN IMMEDIATE`` has the last word. SQLite's own busy handler starves some processes (it sleeps ever
longer), so it is off, and who finds the database locked all the same tries again after a random moment of
up to two milliseconds, until a deadline. Readers wait for no transaction of a writer, but who finds fresh
commits (see `fresh`) lets them settle first; each read transaction is short and ends before anything is given
back, because an open one keeps the log from being recycled. A forked child drops the inherited connections
without closing them (closing would touch the parent's locks) and opens its own.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from treering.engines.sql.session import RECEIPTS, query_in_chunks
from treering.engines.sqlite.commit_log import IS_FRESH, WIPE, flush
from treering.engines.sqlite.errors import FAILURES, damaged, translated
from treering.engines.sqlite.writer_queue import BUSY_SECONDS, RETRY_SECONDS, WriterQueue, retry_while_busy
from treering.errors import Busy, Closed, ReadOnly, StoreFull

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from treering.core.clock import Clock
    from treering.engines.sql.commit.write import Rows
    from treering.engines.sql.session import Dialect, Row


# -----------------------------------------------------------------------------------------------------------
# Transactions of one SQLite database, and when fresh commits settle around them (see `fresh`).
#
# Whoever reads lets them settle first, so every commit that was acknowledged before is seen. Whoever writes
# does so in a transaction of its own, before the one that it came for. **Invariant:** no statement but those
# of `fresh` and `shortcut` ever runs while something is fresh that was there when its transaction began.


FEW: Final = 4
PATIENCE: Final = 8
"""After a reader had to let fewer than `FEW` commits settle, so many go straight into their tables."""


class Reading:
    """A read transaction; one question needs none (``begins=False``)."""

    __slots__ = ("_begins", "_database", "_session", "_writing")

    def __init__(self, database: SqliteDatabase, *, begins: bool) -> None:
        self._database = database
        self._begins = begins
        self._writing: Writing | None = None

    def __enter__(self) -> SqliteSession:
        database = self._database
        try:
            session = database.take_reader()
            try:
                has_settled = self._let_settle(session)
                if has_settled and self._begins:
                    session.execute("BEGIN")
            except BaseException:
                session.connection.close()
                raise
        except FAILURES as error:
            raise translated(error, str(database.path)) from error
        if not has_settled:
            database.give_back(session)
            return self._enter_unsettled()
        self._session = session
        return session

    def _let_settle(self, session: SqliteSession) -> bool:
        """Let what is fresh settle; ``False`` where it cannot be changed.

        What comes meanwhile was acknowledged after this began: a busy writer keeps nobody from reading.
        """
        database = self._database
        if session.is_fresh():
            database.patience = 0 if session.is_fresh(FEW - 1) else PATIENCE
            try:
                database.flush()
            except (ReadOnly, StoreFull):
                return False
        return True

    def _enter_unsettled(self) -> SqliteSession:
        """Read where nothing can be written: in a transaction that settles and is then given up."""
        self._writing = Writing(self._database, settles=False)
        session = self._writing.__enter__()
        try:
            flush(session, self._database.fresh)
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
            self._database.explain(error)

    def _end(self, *, failed: bool) -> None:
        session = self._session
        try:
            if session.connection.in_transaction:  # some errors end it
                session.execute("ROLLBACK" if failed else "COMMIT")
        except FAILURES as failure:
            session.connection.close()
            raise translated(failure, str(self._database.path)) from failure
        self._database.give_back(session)


class Writing:
    """A write transaction: the only one in this database, of any process."""

    __slots__ = ("_database", "_session", "_settles")

    def __init__(self, database: SqliteDatabase, *, settles: bool = True) -> None:
        self._database = database
        self._settles = settles
        self._session: SqliteSession | None = None

    def __enter__(self) -> SqliteSession:
        database = self._database
        database.hold()
        try:
            self._session = session = database.write_session()
            database.turns.enter(BUSY_SECONDS)
            retry_while_busy(session.begin)
            if self._settles and session.is_fresh():
                self._settle(session)
        except BaseException as error:
            self.give_up()
            if isinstance(error, FAILURES):
                raise translated(error, str(database.path)) from error
            raise
        return session

    def _settle(self, session: SqliteSession) -> None:
        """First, and by itself: while a long transaction runs, readers shall find nothing to wait for."""
        session.roll_back()
        self._database.flush_relaxed(session)
        retry_while_busy(session.begin)
        if session.is_fresh():  # of someone who does not wait for turns
            flush(session, self._database.fresh)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        database = self._database
        try:
            if kind is None and self._session is not None:
                self._session.commit()
        except FAILURES as failure:
            raise translated(failure, str(database.path)) from failure
        finally:
            self.give_up()
        if error is not None:
            database.explain(error)

    def give_up(self) -> None:
        """Roll back what is not committed, and let others write."""
        try:
            if self._session is not None:
                self._session.roll_back()
        finally:
            try:
                self._database.turns.leave()
            finally:
                self._database.let_go()


# -----------------------------------------------------------------------------------------------------------
# An open transaction of SQLite, as the shared statements use it.


_LOCK: Final = (
    "SELECT seq, committed_at_us, scopes_dropped, (SELECT coalesce(max(no), 0) FROM commits), "
    "EXISTS (SELECT 1 FROM commits WHERE space = ?1 AND batch = ?2) FROM space WHERE no = ?1"
)
"""One question for all: a lone batch is the ordinary case, and a question costs more than its answer."""

_FRESH: Final = f"SELECT 1 FROM fresh WHERE slot = ? AND {IS_FRESH}"


class SqliteSession:
    """An open transaction on a connection.

    Whatever is over when its call returns goes through one cursor: making one costs as much as a statement.
    """

    __slots__ = ("_execute", "_execute_many", "_largest_commit", "connection")

    def __init__(self, connection: sqlite3.Connection) -> None:
        cursor = connection.cursor()
        self.connection = connection
        self._execute = cursor.execute
        self._execute_many = cursor.executemany
        self._largest_commit: int | None = None

    def begin(self) -> None:
        """Begin a write transaction; what the one before has learnt does not count any more."""
        self._largest_commit = None
        self._execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End the transaction, and make it durable."""
        self._execute("COMMIT")

    def roll_back(self) -> None:
        """Undo the transaction, if there still is one: some errors end it."""
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def is_fresh(self, slot: int = 0) -> bool:
        """Whether the commits in a slot have not settled; by the first one, whether any have not."""
        return bool(self._execute(_FRESH, (slot,)).fetchall())

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return self._execute(sql, parameters).fetchall()

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        return self._execute(sql, parameters).rowcount

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; how many rows were changed in all."""
        if len(rows) == 1:
            return self._execute(sql, rows[0]).rowcount
        return self._execute_many(sql, rows).rowcount

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """The rows of a query, read as they are looked at."""
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
        """The counters of a space; a write transaction has locked everything already."""
        first = batches[0] if batches else None
        ((seq, committed_at_us, removals, largest, is_there),) = self._execute(
            _LOCK, (space, first)
        ).fetchall()
        self._largest_commit = largest
        is_repeated = is_there or len(batches) > 1
        receipts = query_in_chunks(self, RECEIPTS, (space,), batches) if is_repeated else ()
        return [(seq, committed_at_us, removals)], receipts

    def numbers(self, table: str, count: int) -> list[int]:
        """Fresh numbers: behind the largest in use, and behind all that were ever given out."""
        if table == "commits" and self._largest_commit is not None:
            return list(range(self._largest_commit + 1, self._largest_commit + 1 + count))
        ((largest,),) = self._execute(f"SELECT max(no) FROM {table}").fetchall()
        if table != "commits":  # rows of commits are never deleted
            given = self._execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchall()
            largest = max([largest or 0, *(seq for (seq,) in given)])
        return list(range((largest or 0) + 1, (largest or 0) + 1 + count))


# -----------------------------------------------------------------------------------------------------------

Durability = Literal["full", "fast"]


_SYNCHRONOUS: Final[dict[Durability, str]] = {"full": "FULL", "fast": "NORMAL"}
_STUMBLES: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
_SETTINGS: Final = (
    "PRAGMA busy_timeout = 0",
    "PRAGMA cache_size = -16384",
    "PRAGMA journal_size_limit = 67108864",
)
_abandoned: Final[list[SqliteSession | sqlite3.Connection]] = []
"""Connections that a forked child inherited; kept so that nothing closes them."""


class SqliteDatabase:
    """A database file and this process's connections to it."""

    def __init__(self, path: Path, *, durability: Durability, clock: Clock) -> None:
        self.path = path
        self._durability: Durability = durability
        self._clock = clock
        self._start()
        _open_databases.add(self)

    def _start(self) -> None:
        self._write_lock = threading.RLock()
        self.turns = WriterQueue(self.path.with_name(self.path.name + "-turns"))
        self._writer: SqliteSession | None = None
        self._is_relaxed = False
        """Whether the writing connection may not sync its commits: while they settle."""
        self._readers: list[SqliteSession] = []
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._closed = False
        self.fresh: dict[int, Rows] = {}
        """What was written here last as fresh, by the number of the last commit in it."""
        self.patience = 0
        """How many commits shall not be fresh, because they are read at once."""

    @property
    def dialect(self) -> Dialect:
        """SQLite."""
        return "sqlite"

    def now_us(self) -> int:
        """The clock of this machine, which all processes on the store share."""
        return self._clock.now_us()

    def reading(self) -> AbstractContextManager[SqliteSession]:
        """A short read transaction."""
        return Reading(self, begins=True)

    def single_query(self) -> AbstractContextManager[SqliteSession]:
        """The same for one question: SQLite answers each of one moment."""
        return Reading(self, begins=False)

    def writing(self, space: int | None = None) -> AbstractContextManager[SqliteSession]:  # noqa: ARG002 - one lock for all
        """A write transaction: the only one in this database, of any process."""
        return Writing(self)

    def writing_fresh(self) -> AbstractContextManager[SqliteSession]:
        """A write transaction that lets nothing settle, for fresh commits."""
        return Writing(self, settles=False)

    def run(self, sql: str, parameters: Sequence[Any]) -> int:
        """One statement as such a transaction; how many rows it changed."""
        with self._write_lock:
            try:
                session = self.write_session()
                self.turns.enter(BUSY_SECONDS)
                return retry_while_busy(lambda: session.run(sql, parameters))
            except FAILURES as error:
                raise translated(error, str(self.path)) from error
            finally:
                self.turns.leave()

    def flush(self) -> None:
        """Let what is fresh settle, for someone who reads."""
        with self.writing():
            pass

    def flush_relaxed(self, session: SqliteSession) -> None:
        """The same for whoever holds the write lock and has no transaction.

        Nothing has to be synced: until the next sync, what settles is durable where it was.
        """
        self._is_relaxed = True
        try:
            self._sync(session, "NORMAL")
            retry_while_busy(session.begin)
            try:
                flush(session, self.fresh)
                session.commit()
            except BaseException:
                session.roll_back()
                raise
        finally:
            self._sync_again(session)

    def _sync_again(self, session: SqliteSession) -> None:
        """Sync commits as before; where an interrupt has left a transaction, as soon as that is undone."""
        if not session.connection.in_transaction:  # a script would commit it
            self._sync(session, _SYNCHRONOUS[self._durability])
            self._is_relaxed = False

    def _sync(self, session: SqliteSession, mode: str) -> None:
        # As a script: the statement takes effect when it is prepared, and a prepared one is kept.
        session.connection.executescript(f"PRAGMA synchronous = {mode}")

    def reclaim_space(self, *, secure: bool) -> None:
        """Give free pages back to the disk; when ``secure``, leave no old page in the log either."""
        with self.exclusively() as connection:
            self.fresh.clear()
            retry_while_busy(lambda: connection.execute(WIPE))
            # As a script, because a single execute frees a single page.
            retry_while_busy(lambda: connection.executescript("PRAGMA incremental_vacuum"))
            if secure:
                self._truncate_log(connection)

    def _truncate_log(self, connection: sqlite3.Connection) -> None:
        """Move the log into the database and cut it to nothing, as soon as no reader needs it."""
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
                raise translated(error, str(self.path)) from error

    def writer(self) -> sqlite3.Connection:
        """The one connection that writes; whoever uses it holds the write lock."""
        return self.write_session().connection

    def write_session(self) -> SqliteSession:
        """The session of that connection, for one transaction after the other."""
        if self._writer is None:
            self._check_open()
            connection = self._connect()
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self._durability]}")
            connection.execute("PRAGMA secure_delete = ON")
            self._writer = SqliteSession(connection)
        elif self._is_relaxed:
            self._sync_again(self._writer)
        return self._writer

    def take_reader(self) -> SqliteSession:
        """A session that reads, for one transaction."""
        try:
            return self._readers.pop()
        except IndexError:
            self._check_open()
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
            return SqliteSession(connection)

    def give_back(self, session: SqliteSession) -> None:
        """Return a session that reads."""
        if self._closed:
            session.connection.close()
        else:
            self._readers.append(session)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=512
        )
        try:
            for setting in _SETTINGS:  # another process may just be making the database
                retry_while_busy(partial(connection.execute, setting))
        except BaseException:
            connection.close()
            raise
        return connection

    def make_ready(self, connection: sqlite3.Connection) -> None:
        """Put a new database into the modes that cannot be changed once it has tables."""
        retry_while_busy(lambda: connection.execute("PRAGMA auto_vacuum = INCREMENTAL"))
        retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL"))

    def change_count(self) -> int:
        """A number that changes when another connection commits."""
        with self._watching:  # closing a connection that is just asked something crashes the interpreter
            self._check_open()
            if self._watcher is None:
                self._watcher = self._connect()
            ((count,),) = self._watcher.execute("PRAGMA data_version").fetchall()
            return count

    def copy_to(self, target: Path) -> None:
        """Copy the database as it is at one moment; in WAL mode writers go on meanwhile."""
        session = self.take_reader()
        try:
            copy = sqlite3.connect(target)
            try:
                session.connection.backup(copy)
            finally:
                copy.close()
        except FAILURES as error:
            raise translated(error, str(target)) from error
        finally:
            self.give_back(session)

    def explain(self, error: BaseException) -> None:
        """Raise what an error in a transaction means: a driver's is translated, any other is left alone.

        In a damaged database anything may stand in a row, and what stumbles over it does not know why. So
        an error that nobody raises on purpose is a `Corrupt`, if SQLite finds damage.
        """
        if isinstance(error, FAILURES):
            raise translated(error, str(self.path)) from error
        if isinstance(error, _STUMBLES):
            for damage in self.damages("quick_check(1)"):
                raise damaged(str(self.path), damage) from error

    def damages(self, check: str = "integrity_check(100)") -> list[str]:
        """What SQLite itself finds wrong. Reads the whole database in one transaction."""
        try:
            session = self.take_reader()
            rows = session.rows(f"PRAGMA {check}")
            self.give_back(session)
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
            self.turns.close()

    def hold(self) -> None:
        """Keep everyone in this process from writing, until `let_go`."""
        self._write_lock.acquire()

    def let_go(self) -> None:
        """Writers may go on."""
        self._write_lock.release()

    def abandon(self) -> None:
        """In a forked child: forget the parent's connections without touching them."""
        _abandoned.extend(self._readers)
        if self._writer is not None:
            _abandoned.append(self._writer)
        if self._watcher is not None:
            _abandoned.append(self._watcher)
        self.turns.abandon()
        closed = self._closed
        self._start()
        self._closed = closed


_open_databases: Final[weakref.WeakSet[SqliteDatabase]] = weakref.WeakSet()
_held: Final[list[SqliteDatabase]] = []
_forking = threading.Lock()
"""Threads that fork at the same time do so one after the other, or each waits for what the other holds."""


def _before_fork() -> None:
    """Let write transactions end: SQLite's memory of a held lock would be copied into the child for good."""
    _forking.acquire()
    for database in list(_open_databases):
        database.hold()
        _held.append(database)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().let_go()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603 - the parent's lock, as it was when it forked
    _forking = threading.Lock()
    _held.clear()
    for database in list(_open_databases):
        database.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
