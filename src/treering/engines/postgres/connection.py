"""Transactions on a PostgreSQL database: many that read, and one at a time that writes to a space.

**Writes** run at READ COMMITTED and lock the row of their space before anything else. That row is the mutex
of the space: a transaction that gets the lock has waited for the previous one to end, and every statement
after that sees what it committed. So sequence numbers, which are counted in that row, become visible in
order, and followers miss nothing. Since every write takes this one lock first and touches only rows of its
space, writers cannot deadlock. Where there are other writers, a transaction releases the lock before it is
durable, and another one behind it waits for that (see docs/decisions/0020-order-of-commits-on-postgresql.md).

**Reads** run at REPEATABLE READ, READ ONLY, so that several queries see one moment. Their ``COMMIT`` is sent
but not waited for; the next user of the connection receives its result. A single query needs neither.

**Durability** is the server's: nothing is acknowledged before a commit at the server's own
``synchronous_commit`` has followed it, and what that guarantees depends on ``fsync`` and that setting.

**Failover**: the URL may name several hosts (``host1:5432,host2:5432``); a new connection goes to the one
that takes writes. While there is none, callers wait for up to `RECONNECT_SECONDS`.

A connection that died while it was idle is noticed at the first round trip of a transaction. Nothing has been
decided by then, so the same statements go out again over a new connection. Later, a lost connection is an
error (`ConnectionLost`), and the engine repeats commits by their ids. A forked child drops inherited
connections without closing them, because that would end the parent's sessions, and opens its own.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from treering.core.clock import Clock
from treering.engines.cells import Moved
from treering.engines.postgres.errors import ConnectionLost, connection_refused, translate
from treering.engines.postgres.pipeline import MAX_PARAMETERS, PendingResult, Pipeline
from treering.engines.sql.rows import Dictionary
from treering.engines.sql.session import RECEIPTS, Dialect, Row, for_rows, query_in_chunks
from treering.errors import Busy, Closed, InvalidInput, TreeringError, Unreachable

RECONNECT_SECONDS: Final = 30.0
"""How long a server may be away (a restart, a failover) before calls that need it fail."""

LOCK_SECONDS: Final = 30.0
"""How long a writer waits for the lock of a space."""

STUCK_SECONDS: Final = 20.0
"""After how long the server ends a transaction whose client went silent while it holds the lock.

Less than `LOCK_SECONDS`, so that waiting writers outlast it.
"""

POOL_SIZE: Final = 16
"""How many connections a process has at most, not counting the one that listens."""

WAIT_SECONDS: Final = 30.0
"""How long a thread waits for a free connection."""
IDLE_SECONDS: Final = 60.0
"""After how long an idle connection is closed."""

CLOCK_REFRESH_US: Final = 60 * 1_000_000
"""How often the server's clock is read."""

_DEFAULTS: Final = {
    "application_name": "treering",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Connection parameters, unless the URL sets them. A server that went silent is noticed within a minute."""

_BACKEND: Final = "SELECT pg_backend_pid()"
_BEGIN_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ"
_BEGIN_READ: Final = f"{_BEGIN_SNAPSHOT} READ ONLY"
_COUNTERS: Final = "SELECT seq, committed_at_us, scopes_dropped FROM space WHERE no = ?"
_LOCK_SPACE: Final = f"{_COUNTERS} FOR UPDATE"
_RELAX: Final = "SELECT set_config('synchronous_commit', 'off', true)"
_FLUSH_IF_NEEDED: Final = (
    "SELECT CASE WHEN pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn() "
    "OR current_setting('synchronous_standby_names') <> '' "
    "THEN pg_logical_emit_message(true, 'treering', '') END"
)
_SERVER_TIME: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_VACUUM: Final = "VACUUM body, item, object, event, ref, list, commits, text, fts, rollup, run, scope"
_MAX_QUEUED: Final = 2000
"""How many statements are sent before their results are received."""

_abandoned: Final[list[Pipeline]] = []
"""Connections that a forked child inherited; referenced so that nothing closes them."""


def _settings(*, is_local: bool) -> str:
    """Return the query that limits waiting: in this session, or behind a pooler in this transaction."""
    limits = {"lock_timeout": LOCK_SECONDS, "idle_in_transaction_session_timeout": STUCK_SECONDS}
    calls = (f"set_config('{name}', '{value * 1000:.0f}ms', {is_local})" for name, value in limits.items())
    return f"SELECT {', '.join(calls)}"


class PostgresUrl:
    """The URL of a database: to connect with, and in forms that are safe to show."""

    def __init__(self, url: str) -> None:
        try:
            parts: dict[str, Any] = conninfo_to_dict(url)
        except ProgrammingError as error:
            raise InvalidInput(
                f"the URL of the PostgreSQL store cannot be read ({' '.join(str(error).split())}); "
                "write postgresql://user:password@host:port/database, special characters as %XX"
            ) from None
        host = str(parts.get("host") or parts.get("hostaddr") or "localhost")
        port = str(parts.get("port") or 5432)
        name = str(parts.get("dbname") or parts.get("user") or "")
        user = f"{quote(str(parts['user']))}@" if parts.get("user") else ""
        # Of several hosts, one is the primary: the others would refuse the first write.
        several = {"target_session_attrs": "read-write"} if "," in host else {}
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **several, **parts})
        self.without_password = f"postgresql://{user}{quote(host, safe=',:')}:{port}/{quote(name)}"
        self.where = f"PostgreSQL at {host}:{port}, database {name!r}"
        """The database as error messages name it."""


class PostgresDatabase:
    """A database and this process's connections to it."""

    def __init__(self, url: PostgresUrl, *, clock: Clock | None) -> None:
        self.where = url.where
        self.conninfo = url.conninfo
        self._has_pooler: bool | None = None
        self._server_clock = ServerClock()
        self._clock: Clock = clock or self._server_clock
        self.dictionary = Dictionary()
        self._pool = Pool(self._connect_with_retry, url.where)
        self._hint_pool = Pool(self._connect_with_retry, url.where)
        _open_databases.add(self)

    @property
    def dialect(self) -> Dialect:
        """PostgreSQL."""
        return "postgresql"

    def now_us(self) -> int:
        """Return the time on the server, which all machines share."""
        return self._clock.now_us()

    def reading(self) -> AbstractContextManager[PostgresSession]:
        """A short read transaction."""
        return _ReadTransaction(self, self._pool, _BEGIN_READ, PostgresSession)

    def snapshot(self) -> AbstractContextManager[PostgresSession]:
        """A transaction that sees one moment and writes nothing, but may take numbers from sequences."""
        return _ReadTransaction(self, self._pool, _BEGIN_SNAPSHOT, SnapshotSession)

    def single_query(self) -> AbstractContextManager[PostgresSession]:
        """A session for one query, which sees one moment without a transaction."""
        return _SingleQuery(self, self._pool)

    def writing(self, space: int | None = None) -> AbstractContextManager[PostgresSession]:
        """A write transaction; with a space, entered when its row is locked."""
        return _WriteTransaction(self, self._pool, space)

    def sending_hints(self) -> AbstractContextManager[PostgresSession]:
        """A write transaction on a connection of its own.

        Commits stay on the connection that has prepared their statements.
        """
        return _WriteTransaction(self, self._hint_pool, None)

    def flush(self) -> None:
        """Wait until everything that was committed so far is durable."""
        with self.single_query() as session:
            session.rows(_FLUSH_IF_NEEDED)

    def reclaim_space(self, *, secure: bool) -> None:
        """When ``secure``, let the server remove dead rows now; otherwise autovacuum does in time.

        This frees the space for new rows. It does not overwrite bytes, and the server's log and backups keep
        what they have: here, erasure is proven by queries, not by searching files for bytes.
        """
        if secure:
            with self.connected() as connection:
                connection.execute(_VACUUM)

    @contextmanager
    def connected(self, *, keep: bool = False) -> Generator[psycopg.Connection[Any]]:
        """A connection outside of the pool and of any transaction, with errors translated.

        With ``keep``, it goes into the pool afterwards.
        """
        connection = self.connect()
        try:
            yield connection
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise translate(error, self.where) from error
            raise
        if keep:
            self._pool.add(self._pipeline(connection))
        else:
            connection.close()

    def connect(self) -> psycopg.Connection[Any]:
        """Open a new connection."""
        try:
            connection = psycopg.connect(
                self.conninfo, autocommit=True, client_encoding="UTF8", prepare_threshold=None
            )
        except psycopg.Error as error:
            raise connection_refused(error, self.where) from None
        try:
            if not self._is_pooled(connection):
                connection.execute(_settings(is_local=False).encode())
                connection.execute("SET default_transaction_isolation = 'read committed'")
            if self._server_clock.is_stale:
                asked_at_us = steady_us()
                for (server_us,) in connection.execute(_SERVER_TIME):
                    self._server_clock.set(server_us, asked_at_us=asked_at_us)
        except psycopg.Error as error:
            connection.close()
            raise translate(error, self.where) from error
        return connection

    def refresh_clock(self, session: PostgresSession) -> None:
        """Read the server's clock if that was long ago."""
        if self._server_clock.is_stale:
            asked_at_us = steady_us()
            ((server_us,),) = session.rows(_SERVER_TIME)
            self._server_clock.set(server_us, asked_at_us=asked_at_us)

    @property
    def has_pooler(self) -> bool:
        """Whether there is a connection pooler, through which notifications do not arrive."""
        return bool(self._has_pooler)

    def _is_pooled(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether a pooler (PgBouncer) is in between, which hands out process ids of its own.

        Asked once: all connections of a database go the same way.
        """
        if self._has_pooler is None:
            rows = connection.execute(_BACKEND).fetchall()
            self._has_pooler = rows != [(connection.info.backend_pid,)]
        return self._has_pooler

    def _pipeline(self, connection: psycopg.Connection[Any]) -> Pipeline:
        return Pipeline(connection, self.where, is_pooled=self._is_pooled(connection))

    def _connect_with_retry(self) -> Pipeline:
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return self._pipeline(self.connect())
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self._hint_pool.close()

    def abandon(self) -> None:
        """In a forked child: forget the parent's connections without touching them."""
        _abandoned.extend(self._pool.abandon())
        _abandoned.extend(self._hint_pool.abandon())


class _ReadTransaction:
    __slots__ = ("_begin", "_database", "_make", "_pool", "_session")

    def __init__(
        self, database: PostgresDatabase, pool: Pool, begin: str, make: type[PostgresSession]
    ) -> None:
        self._database = database
        self._pool = pool
        self._begin = begin
        self._make = make

    def __enter__(self) -> PostgresSession:
        self._session = self._make(self._database.dictionary, self._pool)
        self._session.execute(self._begin)
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pipeline = self._session.pipeline
        if pipeline.failed or pipeline.dead or (error is not None and not isinstance(error, Exception)):
            _give_up(pipeline, error)
        else:
            try:
                pipeline.query("COMMIT")
                pipeline.send()
            except TreeringError:
                pipeline.dead = True  # the reads succeeded; the next transaction gets another connection
        self._pool.release(pipeline)


class _SingleQuery:
    __slots__ = ("_database", "_pool", "_session")

    def __init__(self, database: PostgresDatabase, pool: Pool) -> None:
        self._database = database
        self._pool = pool

    def __enter__(self) -> PostgresSession:
        self._session = PostgresSession(self._database.dictionary, self._pool)
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pipeline = self._session.pipeline
        if error is not None:
            _give_up(pipeline, error)
        self._pool.release(pipeline)


class _WriteTransaction:
    __slots__ = ("_database", "_pool", "_session", "_space")

    def __init__(self, database: PostgresDatabase, pool: Pool, space: int | None) -> None:
        self._database = database
        self._pool = pool
        self._space = space

    def __enter__(self) -> PostgresSession:
        self._session = session = PostgresSession(self._database.dictionary, self._pool)
        try:
            session.pipeline.begin()
            if session.pipeline.is_pooled:
                session.execute(_settings(is_local=True))
            self._database.refresh_clock(session)
            if self._space is not None:
                counters, _ = session.lock(self._space)
                list(counters)
        except BaseException as error:
            self._leave(error)
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._session.pipeline.commit(flush=self._session.is_relaxed)
            except BaseException as failure:
                self._leave(failure)
                raise
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        pipeline = self._session.pipeline
        if error is not None:
            _give_up(pipeline, error)
        self._pool.release(pipeline)


def _give_up(pipeline: Pipeline, error: BaseException | None) -> None:
    """Roll back. After an interrupt nobody knows what was sent, so the connection is not kept."""
    if not isinstance(error, Exception):
        pipeline.dead = True
    elif not pipeline.dead:
        pipeline.roll_back()


class PostgresSession:
    """An open transaction on a connection.

    Statements are queued and go out with the next round trip, when a result is needed. A connection that
    died while it was idle is noticed then; as long as no result was seen, the same statements go out again.
    """

    __slots__ = ("_has_results", "_pool", "dictionary", "is_relaxed", "pipeline")

    def __init__(self, dictionary: Dictionary, pool: Pool) -> None:
        self.dictionary = dictionary
        self.pipeline = pool.acquire()
        self._pool = pool
        self._has_results = False
        self.is_relaxed = False
        """Whether this transaction releases its locks before it is durable; its end waits for that."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query, or of a statement with RETURNING."""
        pending = self.pipeline.query(sql, parameters)
        self.exchange()
        return self.pipeline.rows(pending)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """Return the rows of a query, which goes out with the next round trip."""
        return _PendingRows(self, self.pipeline.query(sql, parameters))

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; return how many rows it changed."""
        pending = self.pipeline.query(sql, parameters)
        self.exchange()
        return pending.count

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; return how many rows were changed in all."""
        count = 0
        for start in range(0, len(rows), _MAX_QUEUED):
            pending = self._queue_many(sql, rows[start : start + _MAX_QUEUED], distinct=False)
            self.exchange()
            count += sum(each.count for each in pending)
        return count

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement with the next round trip."""
        self.pipeline.query(sql, parameters)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row, with the next round trip."""
        if len(rows) == 1:
            self.pipeline.query(sql, rows[0])
        elif len(rows) > _MAX_QUEUED:
            self.run_many(sql, rows)
        else:
            self._queue_many(sql, rows, distinct=True)

    def numbers(self, table: str, count: int) -> list[int]:
        """Return new numbers from the table's sequence: never given twice, in no meaningful order."""
        if not count:
            return []
        sql = f"SELECT nextval('{table}_no_seq') FROM generate_series(1, ?)"
        return [number for (number,) in self.rows(sql, (count,))]

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Lock the row of a space; return its counters, and the rows of batches that are committed."""
        self.pipeline.query(_RELAX)
        self.is_relaxed = True
        counters = _Counters(self, self.pipeline.query(_LOCK_SPACE, (space,)))
        return counters, query_in_chunks(self, RECEIPTS, (space,), batches) if batches else ()

    def exchange(self) -> None:
        """Send what is queued and wait for the results."""
        try:
            self.pipeline.collect()
        except ConnectionLost:
            if self._has_results:
                raise
            # The connection died while it was idle. No result was seen, so it does not matter.
            lost = self.pipeline
            self.pipeline = self._pool.replace(lost)
            self.pipeline.resend(lost)
            self.pipeline.collect()
        self._has_results = True

    def _queue_many(self, sql: str, rows: Sequence[Sequence[Any]], *, distinct: bool) -> list[PendingResult]:
        query = self.pipeline.query
        start = 0
        pending: list[PendingResult] = []
        for size in chunk_sizes(len(rows), len(rows[0]) if rows else 1):
            multi_row = for_rows(sql, size, distinct=distinct) if size > 1 else sql
            if multi_row is None:
                pending += [query(sql, row) for row in rows[start:]]
                break
            chunk = rows[start : start + size]
            pending.append(query(multi_row, [value for row in chunk for value in row]))
            start += size
        return pending


class SnapshotSession(PostgresSession):
    """A session that the state of a commit is read from, as of one moment, without locking the space."""

    __slots__ = ()

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Return the counters of a space, and the rows of batches that are committed."""
        counters = _Counters(self, self.pipeline.query(_COUNTERS, (space,)))
        return counters, query_in_chunks(self, RECEIPTS, (space,), batches) if batches else ()


class _PendingRows:
    """Rows that are waited for when they are iterated over."""

    __slots__ = ("_pending", "_session")

    def __init__(self, session: PostgresSession, pending: PendingResult) -> None:
        self._session = session
        self._pending = pending

    def __iter__(self) -> Iterator[Row]:
        if self._pending.result is None:
            self._session.exchange()
        return iter(self._session.pipeline.rows(self._pending))


class _Counters(_PendingRows):
    """The counters of a space, which are waited for; raises `Moved` if it has left this database."""

    def __iter__(self) -> Iterator[Row]:
        rows = list(super().__iter__())
        if rows and rows[0][2] < 0:
            raise Moved(
                "this namespace is being moved to another database, or was; open the store by the URL of its "
                "first database, which knows where it is"
            )
        return iter(rows)


def chunk_sizes(rows: int, columns: int) -> Iterable[int]:
    """Yield how many rows go into each statement: few distinct sizes, so few statements to prepare."""
    size = 64
    while size * columns > MAX_PARAMETERS:
        size //= 2
    while rows:
        while size > rows:
            size //= 4
        size = max(size, 1)
        yield size
        rows -= size


class Pool:
    """The connections of one process to one database, kept for the next transaction.

    The one released last is acquired first, so a process keeps no more of them open than it uses at a time;
    the others are closed after a minute. When one turns out to be dead, the other idle ones probably are too
    (the server restarted), so all of them are dropped. No thread maintains the pool: connections are opened
    by the thread that needs one, which also gets the error.
    """

    def __init__(self, connect: Callable[[], Pipeline], where: str) -> None:
        self._connect = connect
        self._where = where
        self._free = _permits()
        self._idle: deque[tuple[float, Pipeline]] = deque()
        self._closed = False

    def acquire(self) -> Pipeline:
        """Return a connection for one transaction."""
        try:
            self._free.get(timeout=WAIT_SECONDS)
        except Empty:
            raise Busy(
                f"{self._where}: all {POOL_SIZE} connections of this process are in use; retry"
            ) from None
        try:
            while True:
                self._check_open()
                try:
                    _, pipeline = self._idle.pop()
                except IndexError:
                    return self._connect()
                try:
                    pipeline.reset()
                    return pipeline
                except TreeringError:
                    pipeline.close()
        except BaseException:
            self._free.put(None)
            raise

    def add(self, pipeline: Pipeline) -> None:
        """Add a connection that was opened for something else."""
        self._idle.append((time.monotonic(), pipeline))

    def release(self, pipeline: Pipeline) -> None:
        """Return a connection to the pool; a dead one is closed."""
        now = time.monotonic()
        if pipeline.dead or self._closed:
            pipeline.close()
        else:
            self._idle.append((now, pipeline))
        self._free.put(None)
        while len(self._idle) > 1 and self._idle[0][0] < now - IDLE_SECONDS:
            try:
                self._idle.popleft()[1].close()
            except IndexError:
                return

    def replace(self, dead: Pipeline) -> Pipeline:
        """Return a new connection for one that died in use."""
        dead.close()
        self.drop_idle()
        self._check_open()
        return self._connect()

    def drop_idle(self) -> None:
        """Close all idle connections."""
        while True:
            try:
                self._idle.popleft()[1].close()
            except IndexError:
                return

    def close(self) -> None:
        """Close all connections; those in use when they are released."""
        self._closed = True
        self.drop_idle()

    def abandon(self) -> list[Pipeline]:
        """In a forked child: forget the parent's connections without touching them."""
        inherited = [pipeline for _, pipeline in self._idle]
        self._free = _permits()
        self._idle = deque()
        return inherited

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._where} was closed; open the store again")


def _permits() -> SimpleQueue[None]:
    """One permit for each connection; faster than `threading.Semaphore`, which is written in Python."""
    permits: SimpleQueue[None] = SimpleQueue()
    for _ in range(POOL_SIZE):
        permits.put(None)
    return permits


class ServerClock:
    """The server's clock, without asking the server every time.

    Leases and grace periods of all machines go by one clock, which can only be the server's. It is read once
    a minute and extrapolated by this machine's monotonic clock in between. The error is half a round trip
    plus a few milliseconds of drift, which a lease tolerates and a fencing token makes harmless.
    """

    def __init__(self) -> None:
        self._ahead_us: int | None = None
        self._read_at_us = 0

    def now_us(self) -> int:
        """Return the time on the server, in microseconds since 1970."""
        assert self._ahead_us is not None  # noqa: S101 - set before the engine is handed out
        return steady_us() + self._ahead_us

    @property
    def is_stale(self) -> bool:
        """Whether it is time to read it again."""
        return self._ahead_us is None or steady_us() - self._read_at_us > CLOCK_REFRESH_US

    def set(self, server_us: int, *, asked_at_us: int) -> None:
        """Set the server's time as an answer to a query sent at ``asked_at_us`` (by `steady_us`)."""
        here_us = steady_us()
        self._ahead_us = server_us - (asked_at_us + here_us) // 2
        self._read_at_us = here_us


# Keeps counting while the machine sleeps, where the system has such a clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_us() -> int:
    """Return this machine's monotonic clock."""
    return time.clock_gettime_ns(_STEADY) // 1000


_open_databases: Final[weakref.WeakSet[PostgresDatabase]] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_open_databases):
        database.abandon()


os.register_at_fork(after_in_child=_after_fork)
