"""The PostgreSQL engine: a store that many machines share.

All rows are in one database, or in one schema of it (``?options=-csearch_path%3D<schema>`` in the URL). Large
staged objects go into packs of the blob store if one is given, otherwise into rows. A commit takes one round
trip if the cache of this process decides it, otherwise two: one that reads what the batch touches, one that
writes and commits. Behind a connection pooler in transaction mode (PgBouncer) nothing outlives a
transaction: statements are not prepared, settings are local, and followers look every second.

Full-text search (`PostgresTextIndex`) works on rows of lexemes, without any extension. A row of ``fts`` holds
the stems (or trigrams) of a text as a ``tsvector``, with how often each occurs, and two more lexemes that
stand for its collection and namespace. So one GIN index answers "these words in this namespace" by
intersecting lists, and texts of other tenants are never looked at. Scores are Okapi BM25 over the texts that
were searched; of equal scores, the older text comes first.

A commit by any process wakes those that wait for it. Every process that commits sends a notification on the
channel ``treering`` after the commit (`Announcer`), so that whoever receives it can see the commit. It sends
at most one every 20 ms: the first commit is announced at once, those during the pause together after it.
Every process that waits has one connection that listens (`Follower`), from its first wait until a few seconds
after the last. **Invariant:** nothing is missed, because a notification is only a hint to look. Waiters look
once the listener listens, after each hint, after each reconnection, and every second in any case: a process
may die between its commit and the notification, and a pooler may swallow notifications.
"""

from __future__ import annotations

import functools
import itertools
import os
import select
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import psycopg

from treering.core.batch import Receipt, Tokens
from treering.core.clock import Clock, SystemClock
from treering.core.engine import Caps
from treering.core.failpoints import hit
from treering.core.ids import new_id
from treering.core.query import SearchQuery
from treering.core.storage import Blobs
from treering.core.text import folded, stem, words
from treering.engines.postgres.connection import RECONNECT_SECONDS, PostgresDatabase, PostgresUrl
from treering.engines.postgres.errors import AlreadyStored, ConnectionLost, StaleCache
from treering.engines.postgres.guarded import GuardedSession
from treering.engines.sql import schema
from treering.engines.sql.commit.decide import EXPECT_OTHERS, AcceptedBatch, decide_all, read_state
from treering.engines.sql.commit.write import merge_dependencies, write_group
from treering.engines.sql.engine import BEFORE_COMMIT, SqlEngine, outcome_of
from treering.engines.sql.objects import Objects, has_left
from treering.engines.sql.rows import decode_phrases, space_number
from treering.engines.sql.search import TextIndex
from treering.engines.sql.session import Session
from treering.errors import Corrupt, InvalidInput, ReadOnly, TreeringError, Unsupported

if TYPE_CHECKING:
    from psycopg import Connection

    from treering.core.engine import OnWork
    from treering.core.query import EventQuery
    from treering.core.records import Page
    from treering.engines.sql.commit.decide import CommitState
    from treering.engines.sql.commit.write import EncodedBatch
    from treering.engines.sql.engine import Outcome


OLDEST_SERVER: Final = 12
"""The oldest PostgreSQL that the SQL is written for; the tests run on 18."""


class PostgresEngine(SqlEngine):
    """A store in a PostgreSQL database."""

    def __init__(self, database: PostgresDatabase, blobs: Blobs | None, url: str) -> None:
        objects = Objects(blobs)
        super().__init__(database, objects, PostgresTextIndex(objects), counters_first=False)
        self._postgres = database
        self._durable: dict[str, int] = {}
        """The highest sequence number of each space that is known to be durable."""
        self._url = url
        self._announcer = Announcer(database)
        self._follower = Follower(database)

    def _opener(self) -> Callable[[], SqlEngine] | None:
        return functools.partial(open_postgres, self._postgres.conninfo)

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

    def has_left(self, space: str) -> bool:
        """Whether a space has moved to another database (`engines.cells`)."""
        with self._postgres.single_query() as session:
            return has_left(session, space_number(space))

    def _write_space(self, space: int, group: list[EncodedBatch]) -> list[Outcome]:
        """Commit a group: decided from the cache, from a snapshot, or from what was read under the lock.

        The first two hold the lock only while the rows are written (`GuardedSession`). If something that they
        relied on has changed, or exists already, or the connection was lost on the way, the group is decided
        again under the lock. What an earlier attempt did commit is recognised by its batch ids.
        """
        try:
            outcomes = self._write_from_cache(space, group)
            return self._write_from_snapshot(space, group) if outcomes is None else outcomes
        except StaleCache:
            pass
        except (ConnectionLost, AlreadyStored):
            self._caches.of(space).clear()
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return self._write_from_database(space, group)
            except ConnectionLost:  # again: a server that goes down takes several connections with it
                if time.monotonic() > deadline:
                    raise
                self._caches.of(space).clear()

    def _write_from_cache(self, space: int, group: list[EncodedBatch]) -> list[Outcome] | None:
        """Commit a group that is decided from the cache; ``None``, with nothing written, if it cannot be."""
        decided = self._decide_cached(space, group)
        if decided is None:
            return None
        state, accepted = decided
        return [*self._write_guarded(state, accepted)]

    def _write_from_snapshot(self, space: int, group: list[EncodedBatch]) -> list[Outcome]:
        """Commit a group that is decided on what was committed a moment ago."""
        cache = self._caches.of(space)
        dependencies = merge_dependencies([encoded.dependencies for encoded in group])
        if dependencies.leases:
            return self._write_from_database(space, group)
        with self._postgres.snapshot() as session:
            state = read_state(session, space, dependencies, self._database.now_us(), cache)
        state.expected_counters = (state.seq, state.committed_at_us, cache.removals)
        state.rely_on_all()
        decisions = decide_all(state, group)
        accepted = [each for each in decisions if isinstance(each, AcceptedBatch)]
        written: dict[str, Receipt] = {}
        if accepted:
            written = {receipt.batch: receipt for receipt in self._write_guarded(state, accepted)}
        else:
            cache.update(state)
        if any(isinstance(each, Receipt) for each in decisions):
            self._make_durable()
        return [outcome_of(decision, written) for decision in decisions]

    def _write_guarded(self, state: CommitState, accepted: list[AcceptedBatch]) -> list[Receipt]:
        """Write batches that were accepted before the space was locked; return their receipts.

        Raises `StaleCache`, with nothing written, if something that the decision relied on has changed.
        """
        cache = self._caches.of(state.space)
        with self._postgres.writing() as session:
            session.is_relaxed = cache.others > 0
            guarded = GuardedSession(session, state)
            receipts = write_group(guarded, state, accepted, self._texts, assume_new=True)
            hit(BEFORE_COMMIT)
        seqs, us = guarded.shift
        cache.others = EXPECT_OTHERS if seqs else max(cache.others - 1, 0)
        state.seq += seqs
        state.committed_at_us += us
        cache.update(state)
        if not (seqs or us):
            return receipts
        return [
            msgspec.structs.replace(
                receipt,
                first_seq=receipt.first_seq + seqs,
                last_seq=receipt.last_seq + seqs,
                committed_at_us=receipt.committed_at_us + us,
            )
            for receipt in receipts
        ]

    def _make_durable(self) -> None:
        self._postgres.flush()

    def _require_durable(self, space: str, seq: int) -> None:
        """Return when everything up to a sequence number that was read is durable."""
        if seq > self._durable.get(space, 0):
            self._postgres.flush()
            self._durable[space] = max(seq, self._durable.get(space, 0))

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Events in order, a page at a time."""
        page = super().scan(space, query, after=after, limit=limit)
        if page.records and query.order == "seq" and not (query.newest_first or query.ids):
            self._require_durable(space, page.records[-1].seq)
        return page

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
        self._require_durable(space, last_seq)
        return last_seq

    def snapshot_to(self, folder: Path, *, on_progress: OnWork | None = None) -> None:
        """Not supported: see `caps`."""
        del on_progress
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
    url: str,
    *,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    phrases: Callable[[], Sequence[str]] = tuple,
) -> PostgresEngine:
    """Open the store in a database; its tables are created on first use.

    Time is the server's, unless the clock given is something other than this machine's. ``phrases`` returns
    the dictionary of a new store (see `engines.sql.rows`).
    """
    address = PostgresUrl(url)
    database = PostgresDatabase(address, clock=None if isinstance(clock, SystemClock) else clock)
    try:
        return _open(database, address, url, blobs, phrases)
    except BaseException:
        database.close()
        raise


def _open(
    database: PostgresDatabase,
    address: PostgresUrl,
    url: str,
    blobs: Blobs | None,
    phrases: Callable[[], Sequence[str]],
) -> PostgresEngine:
    where = address.where
    with database.connected(keep=True) as connection:
        version = connection.info.server_version // 10000
        if version < OLDEST_SERVER:
            raise Unsupported(f"{where} is version {version}; treering needs {OLDEST_SERVER} or newer")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise InvalidInput(f"{where} is encoded in {encoding}; create the database with ENCODING 'UTF8'")
        plain = cast("schema.Connection", connection)
        is_new = schema.read_info(plain, "postgresql") is None
        marker = _marker_name(connection) if blobs is not None else ""
        known = blobs.read(marker) if blobs is not None else None
        said = "" if known is None else known.data.decode(errors="replace").strip()
        if blobs is not None and is_new and said:
            raise Corrupt(
                f"{where} is empty, but {blobs.url} holds packs of a store that was in it "
                f"({said}); restore the database from a backup. "
                f"To begin a new store, use another folder or bucket, or delete {marker} there"
            )
        info = schema.ensure_schema(plain, "postgresql", location=url, store_id=new_id(), phrases=phrases)
    if blobs is not None and said and not said.startswith(f"store {info.store_id} "):
        raise Corrupt(
            f"{where} says that it is store {info.store_id}, but {blobs.url} holds packs of {said}; restore "
            f"the database from a backup. If it is the right one, delete {marker} there"
        )
    if blobs is not None and known is None:
        with suppress(ReadOnly):  # then nothing is written there anyway
            blobs.put(marker, f"store {info.store_id} in {where}\n".encode())
    database.dictionary.define(decode_phrases(info.dictionary or "[]"))
    return PostgresEngine(database, blobs, address.without_password)


def _marker_name(connection: Connection[Any]) -> str:
    """Return the name of the blob that says that a database held a store.

    Without it, a database that was lost and created again would begin a new store beside the old one's packs.
    """
    ((schema_name,),) = connection.execute("SELECT current_schema()").fetchall()
    info = connection.info
    where = f"{info.host or info.hostaddr}:{info.port}/{info.dbname}/{schema_name}"
    return f"stores/{sha256(where.encode()).hexdigest()[:32]}"


_GRAM: Final = 3
_MARK: Final = "\x01"
"""The prefix of lexemes that stand for collections and namespaces."""

_MOST_REPEATS: Final = 50
_LONGEST_LEXEME: Final = 200
_LARGEST_VECTOR: Final = 900_000
"""PostgreSQL's limit is a megabyte; the rest of a longer text is not indexed."""

_COUNT_LIMIT: Final = 100_000
"""Counting texts of a collection stops here: weights hardly change beyond."""

_MOST_LEXEMES: Final = 128
"""The rest of a longer query is ignored."""


class PostgresTextIndex(TextIndex):
    """Texts in the table ``fts``."""

    def create(self, session: Session, collection: int, tokens: Tokens) -> None:
        """Nothing to create: all collections share the table."""

    def add(
        self,
        session: Session,
        space: int,
        collection: int,
        tokens: Tokens,
        texts: Sequence[tuple[int, str, str]],
    ) -> None:
        """Index texts, given as number, namespace and text."""
        session.execute_many(
            "INSERT INTO fts (space, no, collection, namespace, terms) VALUES (?, ?, ?, ?, ?)",
            [
                (space, no, collection, namespace, _vector(text, tokens, _marks(collection, namespace)))
                for no, namespace, text in texts
            ],
        )

    def drop(self, session: Session, space: int, collection: int, text: tuple[int, str, str]) -> None:
        """Remove one text."""
        del collection
        session.execute("DELETE FROM fts WHERE space = ? AND no = ?", (space, text[0]))

    def remove(self, session: Session, space: int, numbers: Sequence[int]) -> int:
        """Remove texts and their rows; unlike FTS5, their numbers are enough."""
        chosen = [(space, number) for number in set(numbers)]
        session.execute_many("DELETE FROM fts WHERE space = ? AND no = ?", chosen)
        session.execute_many("DELETE FROM text WHERE space = ? AND no = ?", chosen)
        return len(chosen)

    def clear(self, session: Session, space: int, collection: int, tokens: Tokens) -> None:
        """Remove all texts of a collection."""
        del tokens
        session.execute("DELETE FROM fts WHERE space = ? AND collection = ?", (space, collection))

    def size(self, session: Session, space: int, collection: int) -> int:
        """Return how many texts of a collection are in the index."""
        sql = "SELECT count(*) FROM fts WHERE space = ? AND collection = ?"
        ((count,),) = session.rows(sql, (space, collection))
        return count

    def optimize(self, session: Session, collections: Sequence[int]) -> None:
        """Nothing to do: no query finds a deleted row."""

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
        wanted = [_quoted(lexeme) for lexeme in dict.fromkeys(_query_lexemes(terms, tokens))][:_MOST_LEXEMES]
        if not wanted:
            return []
        only = [query.namespace] if query.namespace is not None else []
        mark = _quoted(_marks(collection, query.namespace)[-1])
        match = f"{mark} & ( {' | '.join(wanted)} )"
        where = (space, collection, *only)
        parameters = (*wanted, match, *where, *where, _COUNT_LIMIT, query.limit)
        return [(no, score) for no, score in session.rows(_find_sql(len(wanted), bool(only)), parameters)]


@lru_cache(maxsize=2 * _MOST_LEXEMES)
def _find_sql(count: int, in_namespace: bool) -> str:  # noqa: FBT001 - a key of the cache
    """Return the search for ``count`` lexemes: find, weigh each by how many texts contain it, add up.

    ts_rank of one word that occurs n times is (1 + 1/4 + ... + 1/n^2) / 1.64493, so n is r / (1 - r) / 1.6,
    within two percent. The rest is BM25 with its usual k1 = 1.2 and b = 0.75.
    """
    numbers = range(count)
    only = "space = ? AND collection = ?" + (" AND namespace = ?" if in_namespace else "")
    ranks = ", ".join(f"ts_rank('{{1,1,1,1}}', terms, ?::tsquery)::float8 AS r{i}" for i in numbers)
    holders = ", ".join(f"(count(*) FILTER (WHERE r{i} > 0))::float8 AS h{i}" for i in numbers)
    weights = ", ".join(f"ln(1 + (most - h{i} + 0.5) / (h{i} + 0.5)) AS w{i}" for i in numbers)
    score = " + ".join(f"w{i} * 2.2 * r{i} / (r{i} + (1 - r{i}) * k)" for i in numbers)
    return f"""
        WITH found AS MATERIALIZED (
          SELECT no, length(terms)::float8 AS size, {ranks} FROM fts WHERE terms @@ ?::tsquery AND {only}
        ), texts AS (
          SELECT count(*) AS total FROM (SELECT 1 FROM fts WHERE {only} LIMIT ?) AS sample
        ), held AS (
          SELECT avg(size) AS mean, count(*) AS hits, {holders} FROM found
        ), weighed AS MATERIALIZED (
          SELECT mean, {weights}
          FROM (SELECT *, greatest(total, hits)::float8 AS most FROM held, texts) AS counted
        )
        SELECT no, {score} AS score
        FROM (SELECT *, 1.92 * (0.25 + 0.75 * size / mean) AS k FROM found, weighed) AS hit
        ORDER BY score DESC, no LIMIT ?
    """


def _marks(collection: int, namespace: str | None) -> list[str]:
    """Return the lexemes for a collection and for a namespace in it."""
    whole = f"{_MARK}{collection}"
    if namespace is None:
        return [whole]
    digest = sha256(namespace.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return [whole, f"{whole}.{digest}"]


def _vector(text: str, tokens: Tokens, marks: Sequence[str]) -> str:
    """Return a text as a tsvector literal: ``'lexeme':1,2,3`` for a lexeme that occurs three times."""
    lexemes = _grams(text) if tokens == "trigrams" else map(stem, words(text))
    parts = [_quoted(mark) for mark in marks]
    size = 0
    for lexeme, times in Counter(lexeme[:_LONGEST_LEXEME] for lexeme in lexemes).items():
        repeats = min(times, _MOST_REPEATS)
        size += len(lexeme.encode()) + 2 * repeats + 4
        if size > _LARGEST_VECTOR:
            break
        parts.append(f"{_quoted(lexeme)}:{_POSITIONS[repeats]}")
    return " ".join(parts)


def _query_lexemes(terms: Iterable[str], tokens: Tokens) -> Iterator[str]:
    for term in terms:
        if tokens == "trigrams":
            yield from _grams(term)
        else:
            yield from (stem(word)[:_LONGEST_LEXEME] for word in words(term))


def _grams(text: str) -> Iterator[str]:
    """Yield all trigrams without control characters, for languages without spaces."""
    text = folded(text)
    grams = (text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1))
    return (gram for gram in grams if gram.isprintable())


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


_POSITIONS: Final = [",".join(map(str, range(1, count + 1))) for count in range(_MOST_REPEATS + 1)]


CHANNEL: Final = "treering"
ANNOUNCE_SECONDS: Final = 0.02
LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.25
LINGER_SECONDS: Final = 5.0
"""How long the listener stays when nobody waits."""

_NOTIFY: Final = (
    "SELECT pg_notify(?, name), set_config('synchronous_commit', 'off', true) FROM unnest(?::text[]) AS name"
)
"""A notification is a transaction; as a hint, it need not be durable."""


class Announcer:
    """Notifies other processes of this one's commits."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._reset()
        _open_objects.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._spaces: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def announce(self, space: str) -> None:
        """Announce a commit to a space, soon."""
        if space in self._spaces:
            return  # the notification has yet to be sent, and will come after this commit
        with self._changed:
            self._spaces.add(space)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-announce", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send what is left, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def after_fork(self) -> None:
        """Start over in a forked child, where the thread does not exist."""
        self._reset()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._spaces and not self._closed:
                    self._changed.wait()
                if not self._spaces:
                    return
                spaces, self._spaces = self._spaces, set()
            try:
                with self._database.sending_hints() as session:
                    session.execute(_NOTIFY, (CHANNEL, sorted(spaces)))
            except TreeringError:
                pass  # a hint was lost; waiters look every second anyway
            if not self._closed:
                time.sleep(ANNOUNCE_SECONDS)


class Follower:
    """Waits for commits of any process."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._reset()
        _open_objects.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._counter = itertools.count(1)
        self._hints = 0
        self._waiters = 0
        self._last_wait = 0.0
        self._listener: threading.Thread | None = None
        self._closed = False
        self._wake, self._wake_sender = -1, -1

    def hint(self) -> None:
        """Something may have been committed."""
        self._hints = next(self._counter)  # first, so that a wait that begins now sees the change
        if self._waiters:
            with self._changed:
                self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when ``ready`` holds, or when time is up."""
        deadline = time.monotonic() + seconds
        seen = self._hints
        if ready() or seconds <= 0:
            return
        with self._changed:
            self._waiters += 1
            if self._listener is None and not self._closed and not self._database.has_pooler:
                self._wake, self._wake_sender = os.pipe()
                self._listener = threading.Thread(target=self._listen, name="treering-follow", daemon=True)
                self._listener.start()
        try:
            while (left := deadline - time.monotonic()) > 0 and not self._closed:
                with self._changed:
                    if self._hints == seen:
                        self._changed.wait(min(left, LOOK_SECONDS))
                    seen = self._hints
                if ready():
                    return
        finally:
            with self._changed:
                self._waiters -= 1
                self._last_wait = time.monotonic()

    def close(self) -> None:
        """Stop listening, and wake all waiters."""
        with self._changed:
            self._closed = True
            self._hints = next(self._counter)
            self._changed.notify_all()
            thread = self._listener
            if thread is not None:
                os.write(self._wake_sender, b".")
        if thread is not None:
            thread.join()

    def after_fork(self) -> None:
        """Start over in a forked child, where the thread does not exist."""
        self._reset()

    def _listen(self) -> None:
        """Receive notifications until nobody has waited for a while; reconnect when necessary."""
        try:
            while self._is_needed():
                try:
                    with self._database.connected() as connection:
                        self._receive(connection)
                except TreeringError:
                    self._sleep(RETRY_SECONDS)
        finally:
            with self._changed:
                os.close(self._wake)
                os.close(self._wake_sender)
                self._listener = None

    def _receive(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(f"LISTEN {CHANNEL}")
        self.hint()  # earlier commits were not announced to this connection
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while self._is_needed():
            poll.poll(LOOK_SECONDS * 1000)
            connection.pgconn.consume_input()
            if connection.pgconn.notifies() is not None:
                while connection.pgconn.notifies() is not None:
                    pass
                self.hint()

    def _sleep(self, seconds: float) -> None:
        """Sleep, until `close` wakes us."""
        select.select([self._wake], [], [], seconds)

    def _is_needed(self) -> bool:
        with self._changed:
            lingering = time.monotonic() - self._last_wait < LINGER_SECONDS
            return not self._closed and (self._waiters > 0 or lingering)


_open_objects: Final[weakref.WeakSet[Announcer | Follower]] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_open_objects):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
