"""Transactions on a PostgreSQL database: many that read, and one at a time that writes to a space.

**Writes** run at READ COMMITTED and lock the row of their space before anything else (``FOR UPDATE``).
That row is the mutex of the space: a transaction that comes after has waited for the one before to end,
and every statement behind the lock sees what it committed. So sequence numbers, which are counted in that
row, become visible in their own order and followers miss nothing; and since every write takes this one
lock first and touches only rows of its space, no two of them can wait for each other in a circle.

**Reads** run at REPEATABLE READ, READ ONLY: several questions see one moment. Their ``COMMIT`` is sent but
not waited for; whoever takes the connection next takes in the answer. A single question needs neither.

**Durability** is the server's: nothing is acknowledged before its COMMIT was, and what that means is its
``fsync`` and ``synchronous_commit``, which are left as they are.

A connection that died while it was idle is noticed at the first exchange of a transaction; at that point
nothing has been decided, so the same questions go out again over a new one. After the first answers a
loss is an error (`Lost`), and the engine repeats commits by their ids. A forked child drops inherited
connections without closing them (a goodbye would end the parent's session) and opens its own.
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
from treering.engines.postgres.errors import Lost, refused, translated
from treering.engines.postgres.pipeline import MAX_PARAMETERS, Answer, Pipeline
from treering.engines.sql.session import RECEIPTS, Dialect, Row, for_rows, query_in_chunks
from treering.errors import Busy, Closed, InvalidInput, TreeringError, Unreachable

# -----------------------------------------------------------------------------------------------------------
# Connections that are kept for the next transaction.
#
# The one given back last is taken first, so that a process keeps no more of them alive than it uses at a
# time; what has been idle for a minute is closed. When one turns out to be dead, its idle neighbours are
# likely dead, too (the server restarted), and all of them are dropped instead of being tried one by one.
# There is no thread behind it: connections are made by whoever needs one, and errors are theirs.


POOL_SIZE: Final = 16
"""How many connections a process has at most, apart from the one that listens."""

WAIT_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 60.0


class Pool:
    """The connections of one process to one database."""

    def __init__(self, connect: Callable[[], Pipeline], where: str) -> None:
        self._connect = connect
        self._where = where
        self._free = _permits()
        self._idle: deque[tuple[float, Pipeline]] = deque()
        self._closed = False

    def take(self) -> Pipeline:
        """A connection for one transaction."""
        try:
            self._free.get(timeout=WAIT_SECONDS)
        except Empty:
            raise Busy(
                f"{self._where}: all {POOL_SIZE} connections of this process are in use; try again"
            ) from None
        try:
            while True:
                self._check_open()
                try:
                    _, pipeline = self._idle.pop()
                except IndexError:
                    return self._connect()
                try:
                    pipeline.tidy()
                    return pipeline
                except TreeringError:
                    pipeline.close()
        except BaseException:
            self._free.put(None)
            raise

    def add(self, pipeline: Pipeline) -> None:
        """Take in a connection that was made for something else."""
        self._idle.append((time.monotonic(), pipeline))

    def give_back(self, pipeline: Pipeline) -> None:
        """Return a connection; a dead one is not kept."""
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

    def exchange(self, dead: Pipeline) -> Pipeline:
        """A fresh connection for one that died in use."""
        dead.close()
        self.drop_idle()
        self._check_open()
        return self._connect()

    def drop_idle(self) -> None:
        """Close all connections that nobody uses."""
        while True:
            try:
                self._idle.popleft()[1].close()
            except IndexError:
                return

    def close(self) -> None:
        """Close all connections, those in use when they are given back."""
        self._closed = True
        self.drop_idle()

    def abandon(self) -> list[Pipeline]:
        """In a forked child: let go of the parent's connections without touching them."""
        inherited = [pipeline for _, pipeline in self._idle]
        self._free = _permits()
        self._idle = deque()
        return inherited

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._where} was closed; open the store again")


def _permits() -> SimpleQueue[None]:
    """One permit for each connection; quicker than a semaphore, which is written in Python."""
    permits: SimpleQueue[None] = SimpleQueue()
    for _ in range(POOL_SIZE):
        permits.put(None)
    return permits


# -----------------------------------------------------------------------------------------------------------
# An open transaction of PostgreSQL, as the shared statements use it: questions travel together.
#
# What is asked or told is queued; it goes out with the next exchange, when someone needs an answer. A
# connection that died while it was idle is noticed then, and as long as no answer was seen the same goes out
# again.


_LOCK: Final = "SELECT seq, committed_at_us, scopes_dropped FROM space WHERE no = ? FOR UPDATE"
_AT_ONCE: Final = 2000
"""How many statements may be under way before their answers are taken in."""


class PostgresSession:
    """An open transaction on a connection."""

    __slots__ = ("_answered", "_pool", "pipeline")

    def __init__(self, pool: Pool, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._pool = pool
        self._answered = False

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query; also of a statement with RETURNING."""
        answer = self.pipeline.query(sql, parameters)
        self.exchange()
        return self.pipeline.rows(answer)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Iterable[Row]:
        """The rows of a query, which goes out with the next exchange."""
        return _Later(self, self.pipeline.query(sql, parameters))

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        answer = self.pipeline.query(sql, parameters)
        self.exchange()
        return answer.count

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement with the next exchange."""
        self.pipeline.query(sql, parameters)

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row; how many rows were changed in all."""
        count = 0
        for start in range(0, len(rows), _AT_ONCE):
            answers = self._ask_many(sql, rows[start : start + _AT_ONCE], distinct=False)
            self.exchange()
            count += sum(answer.count for answer in answers)
        return count

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row, with the next exchange."""
        if len(rows) == 1:
            self.pipeline.query(sql, rows[0])
        elif len(rows) > _AT_ONCE:
            self.run_many(sql, rows)
        else:
            self._ask_many(sql, rows, distinct=True)

    def numbers(self, table: str, count: int) -> list[int]:
        """Fresh numbers from the table's sequence: never given twice, in no order that means anything."""
        if not count:
            return []
        sql = f"SELECT nextval('{table}_no_seq') FROM generate_series(1, ?)"
        return [number for (number,) in self.rows(sql, (count,))]

    def lock(self, space: int, batches: Sequence[str] = ()) -> tuple[Iterable[Row], Iterable[Row]]:
        """Lock the row of a space; its counters, and the batches that are there already."""
        counters = _Later(self, self.pipeline.query(_LOCK, (space,)))
        return counters, query_in_chunks(self, RECEIPTS, (space,), batches) if batches else ()

    def exchange(self) -> None:
        """Send what is queued and wait for the answers."""
        try:
            self.pipeline.collect()
        except Lost:
            if self._answered:
                raise
            # The connection died while it was idle. Nobody has seen an answer yet, so it does not matter.
            dead = self.pipeline
            self.pipeline = self._pool.exchange(dead)
            self.pipeline.ask_again(dead)
            self.pipeline.collect()
        self._answered = True

    def _ask_many(self, sql: str, rows: Sequence[Sequence[Any]], *, distinct: bool) -> list[Answer]:
        ask = self.pipeline.query
        start = 0
        answers: list[Answer] = []
        for size in sizes_of(len(rows), len(rows[0]) if rows else 1):
            together = for_rows(sql, size, distinct=distinct) if size > 1 else sql
            if together is None:
                answers += [ask(sql, row) for row in rows[start:]]
                break
            chunk = rows[start : start + size]
            answers.append(ask(together, [value for row in chunk for value in row] if size > 1 else chunk[0]))
            start += size
        return answers


class _Later:
    """Rows that are awaited when someone looks at them."""

    __slots__ = ("_answer", "_session")

    def __init__(self, session: PostgresSession, answer: Answer) -> None:
        self._session = session
        self._answer = answer

    def __iter__(self) -> Iterator[Row]:
        if self._answer.result is None:
            self._session.exchange()
        return iter(self._session.pipeline.rows(self._answer))


def sizes_of(rows: int, columns: int) -> Iterable[int]:
    """How many rows go into each statement: few distinct sizes, so few statements to prepare."""
    size = 64
    while size * columns > MAX_PARAMETERS:
        size //= 2
    while rows:
        while size > rows:
            size //= 4
        size = max(size, 1)
        yield size
        rows -= size


# -----------------------------------------------------------------------------------------------------------
# The server's clock, without asking the server every time.
#
# Leases and grace times of all machines go by one clock, which can only be the server's. It is read once a
# minute and carried on by this machine's steady clock in between: off by half a trip to the server plus a
# few milliseconds of drift, which a lease does not notice and a fencing token makes harmless.


NOW_SQL: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
REFRESH_US: Final = 60 * 1_000_000

# Goes on while the machine sleeps, where the system has such a clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ServerClock:
    """Microseconds since 1970 on the server."""

    def __init__(self) -> None:
        self._ahead_us: int | None = None
        self._read_at_us = 0

    def now_us(self) -> int:
        """The time on the server."""
        assert self._ahead_us is not None  # noqa: S101 - set before the engine is handed out
        return steady_us() + self._ahead_us

    @property
    def is_stale(self) -> bool:
        """Whether it is time to read it again."""
        return self._ahead_us is None or steady_us() - self._read_at_us > REFRESH_US

    def set(self, server_us: int, *, asked_at_us: int) -> None:
        """Take what the server answered to a question that was asked at ``asked_at_us`` of `steady_us`."""
        here_us = steady_us()
        self._ahead_us = server_us - (asked_at_us + here_us) // 2
        self._read_at_us = here_us


def steady_us() -> int:
    """This machine's steady clock."""
    return time.clock_gettime_ns(_STEADY) // 1000


# -----------------------------------------------------------------------------------------------------------
# Where a store is: what its URL says, in a form to connect by and in forms that may be shown.


_DEFAULTS: Final = {
    "application_name": "treering",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Connection parameters that the URL may set otherwise. A server that went silent is noticed in a minute."""


class Place:
    """A database by its URL."""

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
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **parts})
        self.url = f"postgresql://{user}{quote(host, safe=',:')}:{port}/{quote(name)}"
        self.words = f"PostgreSQL at {host}:{port}, database {name!r}"


# -----------------------------------------------------------------------------------------------------------

RECONNECT_SECONDS: Final = 5.0
"""How long a server that was there before may be away (a restart, a failover) without anyone noticing."""

LOCK_SECONDS: Final = 30.0
"""How long a writer waits for its turn."""

STUCK_SECONDS: Final = 20.0
"""After how long the server ends a transaction whose client went silent with the lock in its hand.

Less than `LOCK_SECONDS`, so that those who wait for the lock outlive the one who sleeps on it.
"""

_SETTINGS: Final = (
    "SELECT set_config('lock_timeout', %s, false), "
    "set_config('idle_in_transaction_session_timeout', %s, false), "
    "set_config('default_transaction_isolation', 'read committed', false)"
)
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_VACUUM: Final = "VACUUM body, item, object, event, ref, list, commits, text, fts, rollup, run, scope"

_abandoned: Final[list[Pipeline]] = []
"""Connections that a forked child inherited; kept so that nothing closes them."""


class PostgresDatabase:
    """A database and this process's connections to it."""

    def __init__(self, place: Place, *, clock: Clock | None) -> None:
        self.where = place.words
        self._conninfo = place.conninfo
        self._server_clock = ServerClock()
        self._clock: Clock = clock or self._server_clock
        self._pool = Pool(self._connect_patiently, place.words)
        self._pool_aside = Pool(self._connect_patiently, place.words)
        _open_databases.add(self)

    @property
    def dialect(self) -> Dialect:
        """PostgreSQL."""
        return "postgresql"

    def now_us(self) -> int:
        """The clock of the server, which all machines share."""
        return self._clock.now_us()

    def reading(self) -> AbstractContextManager[PostgresSession]:
        """A short read transaction."""
        return _Reading(self._pool)

    def single_query(self) -> AbstractContextManager[PostgresSession]:
        """The same for a single question, which is of one moment without a transaction around it."""
        return _Asking(self._pool)

    def writing(self, space: int | None = None) -> AbstractContextManager[PostgresSession]:
        """A write transaction; with a space, entered when its row is locked."""
        return _Writing(self, self._pool, space)

    def aside(self) -> AbstractContextManager[PostgresSession]:
        """A write transaction on a connection of its own.

        Commits stay on the one that has their statements prepared and their tables at hand.
        """
        return _Writing(self, self._pool_aside, None)

    def reclaim_space(self, *, secure: bool) -> None:
        """When ``secure``, let the server clear away dead rows; otherwise its autovacuum does in time.

        This frees the space for new rows. It does not overwrite bytes, and the server's log and backups
        keep what they have: that something is gone is proven by query here, not by a scan of bytes.
        """
        if secure:
            with self.connected() as connection:
                connection.execute(_VACUUM)

    @contextmanager
    def connected(self, *, keep: bool = False) -> Generator[psycopg.Connection[Any]]:
        """A connection of one's own, outside of any transaction, with errors translated.

        With ``keep``, the first transaction gets it if all goes well.
        """
        connection = self.connect()
        try:
            yield connection
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise translated(error, self.where) from error
            raise
        if keep:
            self._pool.add(Pipeline(connection, self.where))
        else:
            connection.close()

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection."""
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, client_encoding="UTF8")
        except psycopg.Error as error:
            raise refused(error, self.where) from None
        try:
            connection.execute(
                _SETTINGS, [f"{seconds * 1000:.0f}ms" for seconds in (LOCK_SECONDS, STUCK_SECONDS)]
            )
            if self._server_clock.is_stale:
                asked_at_us = steady_us()
                for (server_us,) in connection.execute(NOW_SQL):
                    self._server_clock.set(server_us, asked_at_us=asked_at_us)
        except psycopg.Error as error:
            connection.close()
            raise translated(error, self.where) from error
        return connection

    def refresh_clock(self, session: PostgresSession) -> None:
        """Read the server's clock when it is time to."""
        if self._server_clock.is_stale:
            asked_at_us = steady_us()
            ((server_us,),) = session.rows(NOW_SQL)
            self._server_clock.set(server_us, asked_at_us=asked_at_us)

    def _connect_patiently(self) -> Pipeline:
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return Pipeline(self.connect(), self.where)
            except Unreachable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self._pool_aside.close()

    def abandon(self) -> None:
        """In a forked child: forget the parent's connections without touching them."""
        _abandoned.extend(self._pool.abandon())
        _abandoned.extend(self._pool_aside.abandon())


class _Reading:
    __slots__ = ("_pool", "_session")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> PostgresSession:
        self._session = PostgresSession(self._pool, self._pool.take())
        self._session.execute(_READ)
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
                pipeline.dead = True  # what was read was read; the next one gets another connection
        self._pool.give_back(pipeline)


class _Asking:
    __slots__ = ("_pool", "_session")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> PostgresSession:
        self._session = PostgresSession(self._pool, self._pool.take())
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pipeline = self._session.pipeline
        if error is not None:
            _give_up(pipeline, error)
        self._pool.give_back(pipeline)


class _Writing:
    __slots__ = ("_database", "_pool", "_session", "_space")

    def __init__(self, database: PostgresDatabase, pool: Pool, space: int | None) -> None:
        self._database = database
        self._pool = pool
        self._space = space

    def __enter__(self) -> PostgresSession:
        self._session = session = PostgresSession(self._pool, self._pool.take())
        try:
            session.pipeline.begin()
            self._database.refresh_clock(session)
            if self._space is not None:
                session.lock(self._space)
                session.exchange()
        except BaseException as error:
            self._leave(error)
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._session.pipeline.commit()
            except BaseException as failure:
                self._leave(failure)
                raise
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        pipeline = self._session.pipeline
        if error is not None:
            _give_up(pipeline, error)
        self._pool.give_back(pipeline)


def _give_up(pipeline: Pipeline, error: BaseException | None) -> None:
    """Roll back; after an interrupt nobody knows what is under way, so the connection is not kept."""
    if not isinstance(error, Exception):
        pipeline.dead = True
    elif not pipeline.dead:
        pipeline.roll_back()


_open_databases: Final[weakref.WeakSet[PostgresDatabase]] = weakref.WeakSet()


def _after_fork() -> None:
    for database in list(_open_databases):
        database.abandon()


os.register_at_fork(after_in_child=_after_fork)
