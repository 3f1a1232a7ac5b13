"""Connections to one SQLite database: one that writes, some that read.

Writers take turns: inside the process by a lock, between processes at a lock file (see `turns`), and
``BEGIN IMMEDIATE`` has the last word. SQLite's own busy handler starves some processes (it sleeps ever
longer), so it is off, and who finds the database locked all the same tries again after a random moment of
up to two milliseconds, until a deadline. Readers never wait
for writers; each read transaction is short and ends before anything is given back, because an open one
keeps the log from being recycled. A forked child drops the inherited connections without closing them
(closing would touch the parent's locks) and opens its own.
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
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from treering.engines.sqlite.failures import FAILURES, damaged, is_busy, translated
from treering.engines.sqlite.session import SqliteSession
from treering.engines.sqlite.turns import Turns
from treering.errors import Busy, Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path
    from types import TracebackType

    from treering.core.clock import Clock
    from treering.engines.relational.session import Dialect
    from treering.engines.sqlite.bundles import Bundle

Durability = Literal["full", "fast"]
Answer = TypeVar("Answer")

BUSY_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.002

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
        self.turns = Turns(self.path.with_name(self.path.name + "-turns"))
        self._writer: SqliteSession | None = None
        self._readers: list[SqliteSession] = []
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._closed = False

    @property
    def dialect(self) -> Dialect:
        """SQLite."""
        return "sqlite"

    def now_us(self) -> int:
        """The clock of this machine, which all processes on the store share."""
        return self._clock.now_us()

    def reading(self) -> AbstractContextManager[SqliteSession]:
        """A short read transaction."""
        return _Reading(self, begins=True)

    def asking(self) -> AbstractContextManager[SqliteSession]:
        """The same for one question: SQLite answers each of one moment."""
        return _Reading(self, begins=False)

    def writing(self, space: int | None = None) -> AbstractContextManager[SqliteSession]:  # noqa: ARG002 - one lock for all
        """A write transaction: the only one in this database, of any process."""
        return _Writing(self)

    def run(self, bundle: Bundle) -> bool:
        """Run a bundle as a write transaction; whether it came through."""
        self.hold()
        try:
            session = self.write_session()
            self.turns.enter(BUSY_SECONDS)
            return _patiently(lambda: session.bundles.run(bundle))
        except FAILURES as error:
            raise translated(error, str(self.path)) from error
        finally:
            self.turns.leave()
            self.let_go()

    def tidy(self, *, secure: bool) -> None:
        """Give free pages back to the disk; when ``secure``, leave no old page in the log either."""
        with self.exclusively() as connection:
            # As a script, because a single execute frees a single page.
            _patiently(lambda: connection.executescript("PRAGMA incremental_vacuum"))
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
                _patiently(partial(connection.execute, setting))
        except BaseException:
            connection.close()
            raise
        return connection

    def make_ready(self, connection: sqlite3.Connection) -> None:
        """Put a new database into the modes that cannot be changed once it has tables."""
        _patiently(lambda: connection.execute("PRAGMA auto_vacuum = INCREMENTAL"))
        _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))

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


def _patiently(action: Callable[[], Answer]) -> Answer:
    """Do something that needs a lock of the database, patiently but not for ever."""
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


class _Reading:
    __slots__ = ("_begins", "_database", "_session")

    def __init__(self, database: SqliteDatabase, *, begins: bool) -> None:
        self._database = database
        self._begins = begins

    def __enter__(self) -> SqliteSession:
        try:
            self._session = session = self._database.take_reader()
            try:
                if self._begins:
                    session.tell("BEGIN")
            except BaseException:
                session.connection.close()
                raise
        except FAILURES as error:
            raise translated(error, str(self._database.path)) from error
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        try:
            if session.connection.in_transaction:  # some errors end it
                session.tell("ROLLBACK" if kind else "COMMIT")
        except FAILURES as failure:
            session.connection.close()
            raise translated(failure, str(self._database.path)) from failure
        self._database.give_back(session)
        if error is not None:
            self._database.explain(error)


class _Writing:
    __slots__ = ("_database", "_session")

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> SqliteSession:
        database = self._database
        database.hold()
        try:
            self._session = session = database.write_session()
            database.turns.enter(BUSY_SECONDS)
            _patiently(session.begin)
        except BaseException as error:
            database.turns.leave()
            database.let_go()
            if isinstance(error, FAILURES):
                raise translated(error, str(database.path)) from error
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        database = self._database
        try:
            if kind is None:
                self._session.commit()
            else:
                self._roll_back()
        except FAILURES as failure:
            self._roll_back()
            raise translated(failure, str(database.path)) from failure
        finally:
            database.turns.leave()
            database.let_go()
        if error is not None:
            database.explain(error)

    def _roll_back(self) -> None:
        if self._session.connection.in_transaction:
            self._session.connection.execute("ROLLBACK")


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
