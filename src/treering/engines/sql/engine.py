"""The engine contract over any SQL database.

A driver (`engines.sqlite`, `engines.postgres`) brings a `Database` and a text index. Everything that the two
have in common is here and in the modules beside this one. Maintenance operations are imported when they run,
so that opening a store stays fast.

Callers that arrive while one commit is being made durable share the next one (`GroupCommit`). There is no
writer thread. A caller that finds the door (a lock) free becomes the leader and commits for everyone who is
waiting. The others sleep at a gate of their own until their batch is done, or until they are called to lead
the next group. (If they queued at the door itself, those whose batch is done would still have to pass through
it one by one, and groups would stay small.) So a lone writer pays for no thread switch, and sixty-four
writers pay for a handful of fsyncs. Only `submit`, which must not block, needs a thread, started on first
use. **Invariant:** whenever the door is released, no caller is left asleep whom the next leader would not
find.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, overload

import msgspec

from treering.core.batch import Receipt
from treering.core.failpoints import declare, hit
from treering.core.ids import check_space
from treering.core.query import check_limit
from treering.core.records import Lease, ListInfo, Page, RefPage, SearchResult
from treering.engines.sql import read, rollups
from treering.engines.sql.commit.decide import (
    AcceptedBatch,
    SpaceCaches,
    cached_state,
    decide_all,
    read_state,
)
from treering.engines.sql.commit.write import encode_batch, merge_dependencies, write_group
from treering.engines.sql.objects import PackGone
from treering.engines.sql.read import ItemCache
from treering.engines.sql.rows import space_number
from treering.errors import (
    Busy,
    Closed,
    Corrupt,
    InvalidInput,
    NotFound,
    ReadOnly,
    StoreFull,
    TreeringError,
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.batch import Batch, Event
    from treering.core.content import Address, Content
    from treering.core.engine import OnWork
    from treering.core.query import Erasure, EventQuery, ListQuery, SearchQuery, SumQuery
    from treering.core.records import (
        Checked,
        CommitDigest,
        Erased,
        Problem,
        Ref,
        Slice,
        SpaceStats,
        Sum,
        SweepProgress,
        Swept,
    )
    from treering.engines.sql.commit.decide import CommitState
    from treering.engines.sql.commit.write import EncodedBatch
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.rows import Dictionary
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Database, Session
    from treering.engines.sql.spill import SpillDatabase
    from treering.engines.sql.verify import Check

    Outcome = Receipt | Exception
    Write = Callable[[Sequence[EncodedBatch]], list[Outcome]]


BEGIN: Final = declare("commit.begin", "a batch was accepted for commit; nothing is written")
BEFORE_COMMIT: Final = declare("commit.before_commit", "all rows of a group are written, not committed")
AFTER_COMMIT: Final = declare("commit.after_commit", "a group is durable, no caller has its receipt")


class SqlEngine:
    """Everything in the `Engine` contract that SQL databases share.

    A commit has one route: get a `CommitState`, decide the group on it, write what was accepted. A subclass
    chooses where the state comes from (`_write_space`): from the cache for the fast path, otherwise from the
    database.
    """

    def __init__(
        self, database: Database, objects: Objects, texts: TextIndex, *, counters_first: bool
    ) -> None:
        self._database = database
        self._objects = objects
        self._texts = texts
        self._spaces: dict[str, int] = {}
        self._caches = SpaceCaches(counters_first=counters_first)
        self._items = ItemCache()
        self._group = GroupCommit(self._write)
        self.archived: Callable[[str], Iterable[Event]] = _no_events
        """Returns the events of a space that are stored elsewhere (see `engines.sql.archived`)."""

    @property
    def dictionary(self) -> Dictionary:
        """The phrases of the store, for those who read the tables themselves."""
        return self._database.dictionary

    # Writing
    def commit(self, batch: Batch) -> Receipt:
        """Commit a batch: atomic, idempotent, durable when it returns."""
        return self._group.commit(encode_batch(batch))

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch in the background; the future resolves when it is durable."""
        return self._group.submit(encode_batch(batch))

    def _write(self, group: Sequence[EncodedBatch]) -> list[Outcome]:
        """Commit a group in one transaction per space; return the outcome of each batch, in order."""
        if len(group) == 1:
            return self._write_to(group[0].batch.space, [group[0]])
        by_space: dict[str, list[EncodedBatch]] = {}
        for encoded in group:
            by_space.setdefault(encoded.batch.space, []).append(encoded)
        outcomes = {name: iter(self._write_to(name, members)) for name, members in by_space.items()}
        return [next(outcomes[encoded.batch.space]) for encoded in group]

    def _write_to(self, name: str, group: list[EncodedBatch]) -> list[Outcome]:
        hit(BEGIN)
        space = self._space_number(name, create=True)
        outcomes = self._write_space(space, group)
        hit(AFTER_COMMIT)
        self._committed(name)
        return outcomes

    def _write_space(self, space: int, group: list[EncodedBatch]) -> list[Outcome]:
        """Commit a group to one space. Overridden to try `_decide_cached` first."""
        return self._write_from_database(space, group)

    def _decide_cached(
        self, space: int, group: list[EncodedBatch]
    ) -> tuple[CommitState, list[AcceptedBatch]] | None:
        """Decide a group on the cached state; ``None`` unless all of it is cached and accepted.

        Rejections and repeated batches are left to `_write_from_database`, because the cache may be stale.
        """
        dependencies = merge_dependencies([encoded.dependencies for encoded in group])
        state = cached_state(self._caches.of(space), space, dependencies, self._database.now_us())
        if state is None:
            return None
        decisions = decide_all(state, group)
        accepted = [each for each in decisions if isinstance(each, AcceptedBatch)]
        return (state, accepted) if len(accepted) == len(decisions) else None

    def _write_from_database(
        self, space: int, group: list[EncodedBatch], *, assume_new: bool = False
    ) -> list[Outcome]:
        """Read the state under the lock of the space, decide the group on it, and write."""
        cache = self._caches.of(space)
        dependencies = merge_dependencies([encoded.dependencies for encoded in group])
        with self._database.writing() as session:
            state = read_state(session, space, dependencies, self._database.now_us(), cache)
            decisions = decide_all(state, group)
            accepted = [each for each in decisions if isinstance(each, AcceptedBatch)]
            written: dict[str, Receipt] = {}
            if accepted:
                receipts = write_group(session, state, accepted, self._texts, assume_new=assume_new)
                written = {receipt.batch: receipt for receipt in receipts}
            hit(BEFORE_COMMIT)
        cache.update(state)
        if any(isinstance(each, Receipt) for each in decisions):
            self._make_durable()
        return [outcome_of(decision, written) for decision in decisions]

    def _make_durable(self) -> None:
        """Called before a receipt of an earlier commit is returned, which may not be durable yet."""

    def _committed(self, space: str) -> None:
        """Called after each commit to a space, to wake followers."""

    def _last_seq(self, space: str) -> int:
        with self._database.reading() as session:
            rows = session.rows("SELECT seq FROM space WHERE name = ?", (space,))
        return rows[0][0] if rows else 0

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that will require them."""
        return self._objects.stage(self._database, self._space_number(space, create=True), contents)

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; ``None`` while someone else holds it."""
        number = self._space_number(space, create=True)
        with self._database.writing(number) as session:
            now_us = self._database.now_us()
            until_us = now_us + round(seconds * 1e6)
            return _claim(session, number, space, name, holder=holder, now_us=now_us, until_us=until_us)

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Prolong a lease; ``None`` if it was lost."""
        number = self._space_number(lease.space, create=True)
        with self._database.writing(number) as session:
            now_us = self._database.now_us()
            until_us = now_us + round(seconds * 1e6)
            changed = session.run(
                "UPDATE lease SET expires_at_us = ? "
                "WHERE space = ? AND name = ? AND token = ? AND expires_at_us > ?",
                (until_us, number, lease.name, lease.token, now_us),
            )
        return msgspec.structs.replace(lease, expires_at_us=until_us) if changed else None

    def release(self, lease: Lease) -> None:
        """Release a lease if it is still held; its token stays used."""
        number = self._space_number(lease.space, create=True)
        with self._database.writing(number) as session:
            session.run(
                "UPDATE lease SET holder = NULL, expires_at_us = 0 "
                "WHERE space = ? AND name = ? AND token = ?",
                (number, lease.name, lease.token),
            )

    # Reading
    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Which of these objects are not stored."""
        number = self._space_number(space)
        if number is None:
            return set(names)
        with self._database.reading() as session:
            return self._objects.missing(session, number, names)

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Verified content, in the order asked for."""
        number = self._space_number(space)
        if number is None and addresses:
            raise NotFound(f"nothing is stored at {addresses[0]!r}: there is no space {space!r}")
        return self._read(lambda session: read.get(session, number or 0, self._objects, addresses))

    def list_info(self, space: str, list_id: str) -> ListInfo | None:
        """A list's length and parent."""
        line = self.lineage(space, list_id)
        return line[0] if line else None

    def lineage(self, space: str, list_id: str) -> list[ListInfo]:
        """A list and its ancestors, itself first."""
        number = self._space_number(space)
        if number is None:
            return []
        with self._database.reading() as session:
            return [info for info, _ in read.lineage(session, number, list_id)]

    def read_list(self, space: str, list_id: str, start: int, stop: int) -> list[Content]:
        """The items from ``start`` up to ``stop`` (or the end), through all parents."""
        number = self._space_number(space)
        if number is None:
            raise NotFound(f"there is no list {list_id!r} in space {space!r}")
        if self._items.has_some:
            with self._database.single_query() as session:
                found = read.read_cached_list(session, number, self._items, list_id, start, stop)
            if found is not None:
                return found
        return self._read(
            lambda session: read.read_list(session, number, self._objects, self._items, list_id, start, stop)
        )

    def _read(self, question: Callable[[Session], list[Content]]) -> list[Content]:
        """Read content; once more from the start when a pack was rewritten under it."""
        try:
            with self._database.reading() as session:
                return question(session)
        except PackGone:
            with self._database.reading() as session:
                return question(session)

    def refs(self, space: str, names: Sequence[str]) -> dict[str, Ref]:
        """The refs among these names that exist."""
        number = self._space_number(space)
        if number is None or not names:
            return {}
        with self._database.single_query() if len(names) == 1 else self._database.reading() as session:
            return read.refs(session, number, names)

    def scan_refs(self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[Ref]:
        """Refs under a prefix, by name."""
        number = self._space_number(space)
        if number is None:
            return []
        with self._database.single_query() as session:
            return read.scan_refs(session, number, prefix, after, limit)

    def list_refs(
        self, space: str, query: ListQuery, *, after: str | None = None, limit: int = 1000
    ) -> RefPage:
        """The refs of a list, a page at a time."""
        number = self._space_number(space)
        if number is None:
            check_limit(limit)
            return RefPage(refs=(), cursor=None)
        with self._database.single_query() as session:
            return read.list_refs(session, number, query, after, limit)

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Events in order, a page at a time."""
        number = self._space_number(space)
        if number is None:
            check_limit(limit)
            return Page(records=(), cursor=None)
        with self._database.single_query() if query.thread is None else self._database.reading() as session:
            return read.scan(session, number, query, after, limit)

    def sums(self, space: str, query: SumQuery) -> list[Sum]:
        """Totals from the roll-ups."""
        number = self._space_number(space)
        if number is None:
            return []
        with self._database.reading() as session:
            return rollups.sums(session, number, query)

    def search(self, space: str, query: SearchQuery) -> SearchResult:
        """Texts that match, best first."""
        number = self._space_number(space)
        if number is None:
            return SearchResult(hits=(), indexed_through=0)
        with self._database.reading() as session:
            return self._texts.search(session, number, query)

    def scan_scopes(
        self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Erasure scopes that anything is stored under."""
        number = self._space_number(space)
        if number is None:
            return []
        with self._database.single_query() as session:
            return read.scan_scopes(session, number, prefix, after, limit)

    def spaces(self) -> list[str]:
        """All spaces that were ever written to, by name."""
        with self._database.reading() as session:
            return [name for (name,) in session.rows("SELECT name FROM space WHERE seq > 0 ORDER BY name")]

    # Looking after itself
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, and the unshared content behind it."""
        from treering.engines.sql.gc import erase

        number = self._number_or_not_found(space)
        try:
            return erase.erase(self._database, self._objects, self._texts, number, plan)
        finally:
            self._items.clear()
            self._caches.drop(number)

    def drop_archived(self, space: str, seqs: Sequence[int]) -> int:
        """Delete the rows of events that are stored elsewhere, but none of their totals; return how many."""
        from treering.engines.sql import archived

        try:
            return archived.drop_archived(self._database, self._number_or_not_found(space), seqs)
        finally:
            self._caches.drop(self._number_or_not_found(space))

    def forget_archived(self, space: str, events: Iterable[Event], *, file: str) -> None:
        """Subtract events that were removed from an archived file from the totals, once for each file."""
        from treering.engines.sql import archived

        archived.forget_archived(self._database, self._number_or_not_found(space), events, file=file)

    def store_id(self) -> str:
        """Return the id of the store, by which files of several stores in one place are told apart."""
        with self._database.reading() as session:
            ((store,),) = session.rows("SELECT value FROM meta WHERE key = 'store_id'")
        return store

    def sweep(
        self,
        space: str,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
        on_progress: Callable[[SweepProgress], None] | None = None,
    ) -> Swept:
        """Mark what refs and events can reach, and remove the rest."""
        from treering.engines.sql.gc import sweep

        number = self._number_or_not_found(space)
        return sweep.sweep(
            self._database,
            self._objects,
            number,
            dry_run=dry_run,
            grace_seconds=grace_seconds,
            on_progress=on_progress,
        )

    def check(
        self, space: str, *, read_content: bool = True, since: int = 0, processes: int = 1
    ) -> Iterator[Problem | Checked]:
        """Verify everything, or what was committed behind a number; in one process or with several."""
        from treering.engines.sql import verify

        number = self._number_or_not_found(space)
        parts = self._database, self._objects, self._texts, number
        archived = partial(self.archived, space)
        again = self._opener() if processes > 1 and next(iter(archived()), None) is None else None
        if again is None:
            return verify.check(*parts, read_content=read_content, since=since, archived=archived)
        from treering.engines.sql.verify_workers import check_in_processes

        return check_in_processes(
            *parts, open=again, processes=processes, read_content=read_content, since=since
        )

    def checking(self, number: int, *, spill: SpillDatabase, read_content: bool, since: int) -> Check:
        """Return the units of a check, for another process of it."""
        from treering.engines.sql.verify import Check

        return Check(
            self._database,
            self._objects,
            self._texts,
            number,
            spill=spill,
            read_content=read_content,
            since=since,
        )

    def _opener(self) -> Callable[[], SqlEngine] | None:
        """Return what another process opens the database with, without its blobs; None if none can."""
        return None

    def commit_digests(self, space: str, *, after_seq: int = 0, limit: int = 1000) -> list[CommitDigest]:
        """The next commits behind a sequence number, in order."""
        from treering.engines.sql.digest_check import commit_digests

        check_limit(limit)
        number = self._space_number(space)
        if number is None:
            return []
        with self._database.reading() as session:
            return commit_digests(session, number, after_seq, limit)

    def reindex(self, space: str, *, on_progress: OnWork | None = None) -> None:
        """Rebuild all that is derived: roll-ups and search index."""
        number = self._number_or_not_found(space)
        rollups.rebuild(self._database, number, partial(self.archived, space), on_progress)
        self._texts.rebuild(self._database, number, on_progress)

    def stats(self, space: str) -> SpaceStats:
        """What the space holds."""
        from treering.engines.sql import stats

        return stats.stats(self._database, self._number_or_not_found(space), space)

    def export(self, space: str, *, after: str | None = None) -> Iterator[Slice]:
        """Everything in the space as slices in a loadable order."""
        from treering.engines.sql import copy

        number = self._number_or_not_found(space)
        return copy.export(self._database, self._objects, number, space, after)

    def load(self, space: str, part: Slice) -> None:
        """Take a slice of another engine's `export`."""
        from treering.engines.sql import copy

        number = self._space_number(space, create=True)
        copy.load(self._database, self._objects, self._texts, number, part)

    # Spaces
    def _number_or_not_found(self, space: str) -> int:
        number = self._space_number(space)
        if number is None:
            raise NotFound(f"there is no space {space!r} in this store; nothing was ever written to it")
        return number

    @overload
    def _space_number(self, name: str, *, create: Literal[True]) -> int: ...
    @overload
    def _space_number(self, name: str) -> int | None: ...
    def _space_number(self, name: str, *, create: bool = False) -> int | None:
        number = self._spaces.get(name)
        if number is None:
            check_space(name)
            with self._database.single_query() as session:
                rows = session.rows("SELECT no FROM space WHERE name = ?", (name,))
            if not rows and create:
                rows = [(self._create_space(name),)]
            if rows:
                number = self._spaces[name] = rows[0][0]
        return number

    def _create_space(self, name: str) -> int:
        given = {"name": name, "seq": 0, "committed_at_us": 0, "created_at_us": self._database.now_us()}
        if self._database.dialect == "postgresql":
            given["no"] = space_number(name)
        with self._database.writing() as session:
            session.run(
                f"INSERT INTO space ({', '.join(given)}) VALUES ({', '.join('?' * len(given))}) "
                "ON CONFLICT DO NOTHING",
                tuple(given.values()),
            )
            for (number,) in session.rows("SELECT no FROM space WHERE name = ?", (name,)):
                return number
        raise InvalidInput(f"the number of space {name!r} is taken by another space; choose another name")


def _no_events(space: str) -> Iterable[Event]:  # noqa: ARG001 - the signature of `SqlEngine.archived`
    return ()


def outcome_of(decision: AcceptedBatch | Outcome, written: dict[str, Receipt]) -> Outcome:
    """Return the receipt as it was written (a repeated event changes it), or the error."""
    if isinstance(decision, AcceptedBatch):
        decision = decision.receipt
    return written.get(decision.batch, decision) if isinstance(decision, Receipt) else decision


def _claim(
    session: Session, space: int, space_name: str, name: str, *, holder: str, now_us: int, until_us: int
) -> Lease | None:
    """Take or renew a lease, by the clock of the database.

    The token grows with every change of holder and is never reused. So a writer that slept past the end of
    its lease is recognised at its next commit, whatever its own clock says.
    """
    rows = session.rows(
        "SELECT holder, token, expires_at_us FROM lease WHERE space = ? AND name = ?", (space, name)
    )
    token = 1
    if rows:
        current_holder, token, expires_at_us = rows[0]
        is_held = current_holder is not None and expires_at_us > now_us
        if is_held and current_holder != holder:
            return None
        if not is_held:
            token += 1
        session.run(
            "UPDATE lease SET holder = ?, token = ?, expires_at_us = ? WHERE space = ? AND name = ?",
            (holder, token, until_us, space, name),
        )
    else:
        session.run(
            "INSERT INTO lease (space, name, holder, token, expires_at_us) VALUES (?, ?, ?, ?, ?)",
            (space, name, holder, token, until_us),
        )
    return Lease(space=space_name, name=name, holder=holder, token=token, expires_at_us=until_us)


GROUP_LIMIT: Final = 256
"""The most batches in one transaction."""

_STORE_ERRORS: Final = (Busy, Closed, Corrupt, ReadOnly, StoreFull, Unreachable)
"""Failures that are not the fault of a single batch; the whole group shares them."""


class _Ticket:
    __slots__ = ("called", "encoded", "future", "gate", "outcome")

    def __init__(self, encoded: EncodedBatch, future: Future[Receipt] | None) -> None:
        self.encoded = encoded
        self.future = future
        self.outcome: Outcome | None = None
        self.called = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def resolve(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.future is None:
            if not self.called:
                self.gate.release()
        elif isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class GroupCommit:
    """Collects batches into groups for ``write``, which commits a group and returns the outcome of each."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._closed = False
        self._reset()
        _open_groups.add(self)

    def _reset(self) -> None:
        self._waiting: deque[_Ticket] = deque()
        self._door = threading.Lock()
        self._calling = threading.Lock()
        self._submitted = threading.Condition()
        self._thread: threading.Thread | None = None

    def commit(self, encoded: EncodedBatch) -> Receipt:
        """Commit in the calling thread, alone or with others; returns when it is durable."""
        self._check_open()
        if not self._waiting and self._door.acquire(blocking=False):
            # A lone writer: nobody waits, so it needs no ticket.
            try:
                (outcome,) = self._outcomes([encoded])
            finally:
                self._leave()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        return self._wait_with_others(encoded)

    def _wait_with_others(self, encoded: EncodedBatch) -> Receipt:
        ticket = _Ticket(encoded, None)
        self._waiting.append(ticket)
        if self._door.acquire(blocking=False):
            ticket.called = True
        else:
            self._sleep(ticket)
        if ticket.called:
            try:
                while ticket.outcome is None:
                    self._serve()
            finally:
                self._leave()
        assert ticket.outcome is not None  # noqa: S101 - a ticket that was not called is done
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def _sleep(self, ticket: _Ticket) -> None:
        """Sleep until the batch is done or the door is ours. An interrupted sleeper is never called."""
        try:
            ticket.gate.acquire()
        except BaseException:
            with self._calling, suppress(ValueError):
                self._waiting.remove(ticket)
            if ticket.called:
                self._leave()
            raise

    def _leave(self) -> None:
        """Hand the door to the first sleeper, or release it if there is none."""
        while True:
            if self._waiting:
                with self._calling:
                    sleeper = self._first_sleeper()
                    if sleeper is not None:
                        sleeper.called = True
                        sleeper.gate.release()
                        return
            self._door.release()
            # Callers that came meanwhile found the door locked and sleep. (Submitted batches have their
            # thread.)
            if not self._waiting or self._first_sleeper() is None or not self._door.acquire(blocking=False):
                return

    def _first_sleeper(self) -> _Ticket | None:
        return next((ticket for ticket in list(self._waiting) if ticket.future is None), None)

    def submit(self, encoded: EncodedBatch) -> Future[Receipt]:
        """Commit in the background."""
        self._check_open()
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()
        self._waiting.append(_Ticket(encoded, future))
        with self._submitted:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-commit", daemon=True)
                self._thread.start()
            self._submitted.notify()
        return future

    def close(self) -> None:
        """Commit what was submitted, then accept no more."""
        with self._submitted:
            self._closed = True
            self._submitted.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._door.acquire()
        try:
            while self._waiting:
                self._serve()
        finally:
            self._leave()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store was closed; open it again")

    def abandon(self) -> None:
        """In a forked child: start over. The thread does not exist, and what waits is the parent's."""
        self._reset()

    def _work(self) -> None:
        while True:
            with self._submitted:
                while not self._waiting and not self._closed:
                    self._submitted.wait()
                if not self._waiting:
                    return
            self._door.acquire()
            try:
                self._serve()
            finally:
                self._leave()

    def _serve(self) -> None:
        """Commit one group, holding the door."""
        group: list[_Ticket] = []
        while self._waiting and len(group) < GROUP_LIMIT:
            group.append(self._waiting.popleft())
        if not group:
            return
        try:
            outcomes = self._outcomes([ticket.encoded for ticket in group])
        except BaseException as error:
            # An interrupt: nobody may be left waiting for a result that never comes.
            unknown = TreeringError(
                f"the commit was interrupted ({error!r}); submit the batch again to learn its outcome"
            )
            for ticket in group:
                ticket.resolve(unknown)
            raise
        for ticket, outcome in zip(group, outcomes, strict=True):
            ticket.resolve(outcome)

    def _outcomes(self, group: list[EncodedBatch]) -> list[Outcome]:
        try:
            return self._write(group)
        except _STORE_ERRORS as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 - the waiting callers have to get it
            if len(group) == 1:
                return [error]
            # One of them made the transaction of all fail: each gets its own.
            return [outcome for encoded in group for outcome in self._outcomes([encoded])]


_open_groups: Final[weakref.WeakSet[GroupCommit]] = weakref.WeakSet()


def _after_fork() -> None:
    for group in list(_open_groups):
        group.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
