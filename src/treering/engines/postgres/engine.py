"""The PostgreSQL engine: a store that many machines share.

All rows are in one database (or one schema of it, by ``?options=-csearch_path%3D<schema>`` in the URL).
Large staged objects go into packs of the blob store when one is given, and into rows otherwise. A commit
is one exchange with the server where this process remembers all that the batch touches (see
`engines.relational.remembered`). Otherwise it is two: one that locks the space and reads what the batch
touches, one that writes and commits. A pooler in between works as long as it knows prepared statements
(PgBouncer from 1.21); where it swallows messages, followers hear of commits by looking once a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.clock import Clock, SystemClock
from treering.core.engine import Caps
from treering.core.failpoints import hit
from treering.core.ids import new_id
from treering.core.storage import Blobs
from treering.engines.postgres.connection import Place, PostgresDatabase
from treering.engines.postgres.errors import Lost, Moved, Repeated
from treering.engines.postgres.follow import Announcer, Follower
from treering.engines.postgres.fts import PostgresTextIndex
from treering.engines.sql import schema
from treering.engines.sql.commit.decide import AcceptedBatch, accept, decide_all, remember
from treering.engines.sql.commit.encode import merge_dependencies
from treering.engines.sql.commit.state import recall_current
from treering.engines.sql.commit.write import Rows, write_rows
from treering.engines.sql.engine import BEFORE_COMMIT, SqlEngine
from treering.engines.sql.objects import Objects
from treering.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from psycopg import Connection

    from treering.engines.sql.commit.encode import EncodedBatch
    from treering.engines.sql.commit.group import Outcome
    from treering.engines.sql.commit.state import SpaceCache

OLDEST_SERVER: Final = 12
"""PostgreSQL 12 is the oldest that the SQL is written for; the tests run on 18."""


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
        """Everything but a backup of its own: that is a copy into a folder, or the server's business."""
        return Caps(durable=True, shared_writers=True)

    @property
    def url(self) -> str:
        """Where the database is, without the password."""
        return self._url

    sql_dialect: Final = "postgresql"

    def sql_connection(self) -> Connection[Any]:
        """A new connection for questions in SQL, which whoever asks closes."""
        return self._postgres.connect()

    def _write_space(self, space: int, group: list[EncodedBatch], *, all_new: bool = True) -> list[Outcome]:
        """Commit a group, in one exchange or two if all goes well.

        When an event turned out to be a repeat, or the connection was lost on the way, it is done again
        with care: what the first attempt did commit is recognised by the ids of the batches.
        """
        try:
            outcomes = self._write_unasked(space, group)
            if outcomes is None:
                outcomes = super()._write_space(space, group, all_new=all_new)
        except (Lost, Repeated):
            return super()._write_space(space, group)
        return outcomes

    def _write_unasked(self, space: int, group: list[EncodedBatch]) -> list[Outcome] | None:
        """Commit a group as what is remembered decides it; ``None`` if it has to be asked about.

        A rejection is never taken from memory.
        """
        memory = self._remembered.of(space)
        if memory.doubts or len(memory.commit_numbers) < len(group):
            return None
        now_us = self._database.now_us()
        try:
            accepted = accept(group, memory, now_us)
            if accepted is not None:
                return self._write_ordinary(space, accepted, memory, now_us)
            return self._write_recalled(space, group, memory, now_us)
        except Moved:
            return None

    def _write_ordinary(
        self, space: int, accepted: list[AcceptedBatch], memory: SpaceCache, now_us: int
    ) -> list[Outcome]:
        """Commit batches that are ordinary: with less ado than what may be anything."""
        rows, numbers = Rows(), memory.commit_numbers
        for each, number in zip(accepted, numbers, strict=False):
            rows.add(each, space, number, now_us, memory.scopes, ())
        recalled = (memory.seq, memory.committed_at_us, memory.removals)
        with self._database.writing() as session:
            write_rows(session, space, rows, recalled=recalled)
            hit(BEFORE_COMMIT)
        memory.commit_numbers = numbers[len(accepted) :]
        remember(memory, accepted)
        return [each.receipt for each in accepted]

    def _write_recalled(
        self, space: int, group: list[EncodedBatch], memory: SpaceCache, now_us: int
    ) -> list[Outcome] | None:
        """Commit any other group, if all that it needs is remembered."""
        dependencies = merge_dependencies([encoded.dependencies for encoded in group])
        current = recall_current(space, dependencies, now_us, memory)
        if current is None:
            return None
        decisions = decide_all(current, group)
        if not all(isinstance(each, AcceptedBatch) for each in decisions):
            return None
        with self._database.writing() as session:
            outcomes = self._write_decided(session, current, decisions, all_new=True)
        memory.keep(current, len(group))
        return outcomes

    def _committed(self, space: str) -> None:
        self._follower.hint()
        self._announcer.say(space)

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, or time is up."""
        last_seq = 0

        def is_ready() -> bool:
            nonlocal last_seq
            last_seq = self._last_seq(space)
            return last_seq > after_seq

        self._follower.wait(is_ready, seconds)
        return last_seq

    def _last_seq(self, space: str) -> int:
        with self._database.reading() as session:
            rows = session.rows("SELECT seq FROM space WHERE name = ?", (space,))
        return rows[0][0] if rows else 0

    def snapshot_to(self, folder: Path) -> None:
        """Not offered: see `caps`."""
        raise Unsupported(
            f"{self._postgres.where} cannot write a snapshot to {folder}; copy the store to a folder "
            "(store.backup does), or use pg_dump"
        )

    def close(self) -> None:
        """Finish what was submitted, then let go of everything."""
        self._group.close()
        self._follower.close()
        self._announcer.close()
        self._postgres.close()


def open_postgres(url: str, *, blobs: Blobs | None = None, clock: Clock | None = None) -> PostgresEngine:
    """Open the store in a database, whose tables are made on first use.

    Time is the server's, unless a clock is given that is not simply this machine's.
    """
    place = Place(url)
    where = place.words
    database = PostgresDatabase(place, clock=None if isinstance(clock, SystemClock) else clock)
    with database.connected(keep=True) as connection:
        version = connection.info.server_version // 10000
        if version < OLDEST_SERVER:
            raise Unsupported(f"{where} is version {version}; treering needs {OLDEST_SERVER} or newer")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise InvalidInput(f"{where} is encoded in {encoding}; create the database with ENCODING 'UTF8'")
        schema.ensure_schema(
            cast("schema.Connection", connection), "postgresql", location=url, store_id=new_id()
        )
    return PostgresEngine(database, blobs, place.url)
