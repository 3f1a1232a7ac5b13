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
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Final

import psycopg

from treering.core.clock import Clock
from treering.engines.postgres.clock import NOW_SQL, ServerClock, steady_us
from treering.engines.postgres.failures import refused, translated
from treering.engines.postgres.pipeline import Pipeline
from treering.engines.postgres.place import Place
from treering.engines.postgres.pool import Pool
from treering.engines.postgres.session import PostgresSession
from treering.engines.relational.session import Dialect
from treering.errors import TreeringError, Unreachable

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

    def asking(self) -> AbstractContextManager[PostgresSession]:
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

    def tidy(self, *, secure: bool) -> None:
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
        self._session.tell(_READ)
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pipeline = self._session.pipeline
        if pipeline.failed or pipeline.dead or (error is not None and not isinstance(error, Exception)):
            _give_up(pipeline, error)
        else:
            try:
                pipeline.ask("COMMIT")
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
