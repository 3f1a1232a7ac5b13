"""The PostgreSQL engine: a store that many machines share.

All rows are in one database, or in one schema of it (``?options=-csearch_path%3D<schema>`` in the URL). Large
staged objects go into packs of the blob store if one is given, otherwise into rows. A commit takes one round
trip if the cache of this process decides it, otherwise two: one that locks the space and reads what the batch
touches, one that writes and commits. A connection pooler works if it supports prepared statements (PgBouncer
from 1.21); if it swallows notifications, followers see commits within a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.clock import Clock, SystemClock
from treering.core.engine import Caps
from treering.core.failpoints import hit
from treering.core.ids import new_id
from treering.core.storage import Blobs
from treering.engines.postgres.connection import PostgresDatabase, PostgresUrl
from treering.engines.postgres.errors import AlreadyStored, ConnectionLost, StaleCache
from treering.engines.postgres.follow import Announcer, Follower
from treering.engines.postgres.fts import PostgresTextIndex
from treering.engines.sql import schema
from treering.engines.sql.commit.write import write_group
from treering.engines.sql.dictionary import decode_phrases
from treering.engines.sql.engine import BEFORE_COMMIT, SqlEngine
from treering.engines.sql.objects import Objects
from treering.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from psycopg import Connection

    from treering.engines.sql.commit.encode import EncodedBatch
    from treering.engines.sql.commit.group import Outcome

OLDEST_SERVER: Final = 12
"""The oldest PostgreSQL that the SQL is written for; the tests run on 18."""


class PostgresEngine(SqlEngine):
    """A store in a PostgreSQL database."""

    def __init__(self, database: PostgresDatabase, blobs: Blobs | None, url: str) -> None:
        objects = Objects(blobs)
        super().__init__(database, objects, PostgresTextIndex(objects), counters_first=False)
        self._postgres = database
        self._url = url
        self._announcer = Announcer(database)
        self._follower = Follower(database)

    @property
    def caps(self) -> Caps:
        """Everything except backup: use a copy into a folder, or the server's own backup."""
        return Caps(durable=True, shared_writers=True)

    @property
    def url(self) -> str:
        """The URL of the database, without the password."""
        return self._url

    sql_dialect: Final = "postgresql"

    def sql_connection(self) -> Connection[Any]:
        """Open a connection for SQL queries, which the caller closes."""
        return self._postgres.connect()

    def _write_space(self, space: int, group: list[EncodedBatch]) -> list[Outcome]:
        """Commit a group, in one round trip if the cache decides it, otherwise in two.

        If an event turns out to exist already, or the connection was lost on the way, the group is written
        again without assuming anything. What the first attempt did commit is recognised by its batch ids.
        """
        try:
            receipts = self._write_from_cache(space, group)
            if receipts is not None:
                return receipts
            return self._write_from_database(space, group, assume_new=True)
        except (ConnectionLost, AlreadyStored):
            return self._write_from_database(space, group)

    def _write_from_cache(self, space: int, group: list[EncodedBatch]) -> list[Outcome] | None:
        """Commit a group that is decided from the cache; ``None``, with nothing written, if it cannot be."""
        cache = self._caches.of(space)
        decided = None if cache.doubts else self._decide_cached(space, group, cache.commit_numbers)
        if decided is None:
            return None
        state, accepted = decided
        try:
            with self._database.writing() as session:
                receipts = write_group(session, state, accepted, self._texts, assume_new=True)
                hit(BEFORE_COMMIT)
        except StaleCache:
            return None
        cache.update(state, len(group))
        return [*receipts]

    def _committed(self, space: str) -> None:
        self._follower.hint()
        self._announcer.announce(space)

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, or time is up."""
        last_seq = 0

        def is_ready() -> bool:
            nonlocal last_seq
            last_seq = self._last_seq(space)
            return last_seq > after_seq

        self._follower.wait(is_ready, seconds)
        return last_seq

    def snapshot_to(self, folder: Path) -> None:
        """Not supported: see `caps`."""
        raise Unsupported(
            f"{self._postgres.where} cannot write a snapshot to {folder}; copy the store to a folder "
            "(store.backup does), or use pg_dump"
        )

    def close(self) -> None:
        """Finish what was submitted, then close all connections."""
        self._group.close()
        self._follower.close()
        self._announcer.close()
        self._postgres.close()


def open_postgres(
    url: str, *, blobs: Blobs | None = None, clock: Clock | None = None, phrases: Sequence[str] = ()
) -> PostgresEngine:
    """Open the store in a database; its tables are created on first use.

    Time is the server's, unless the clock given is something other than this machine's. ``phrases`` become
    the dictionary of a new store (see `engines.sql.dictionary`).
    """
    address = PostgresUrl(url)
    where = address.where
    database = PostgresDatabase(address, clock=None if isinstance(clock, SystemClock) else clock)
    with database.connected(keep=True) as connection:
        version = connection.info.server_version // 10000
        if version < OLDEST_SERVER:
            raise Unsupported(f"{where} is version {version}; treering needs {OLDEST_SERVER} or newer")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise InvalidInput(f"{where} is encoded in {encoding}; create the database with ENCODING 'UTF8'")
        plain = cast("schema.Connection", connection)
        info = schema.ensure_schema(plain, "postgresql", location=url, store_id=new_id(), phrases=phrases)
    database.dictionary.define(decode_phrases(info.dictionary or "[]"))
    return PostgresEngine(database, blobs, address.without_password)
