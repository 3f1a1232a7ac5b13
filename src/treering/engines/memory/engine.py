"""The memory engine: a store in plain dicts, and the reference model for all other engines.

All state is guarded by one lock (see `memory.space`), so a commit is a critical section and a read sees a
consistent state. Nothing survives the process, which suits tests and agents that need no persistence.

This engine deliberately shares no decision code with the SQL engines. It implements the contract a second
time, as simply as possible, so that the state machine test (`treering.testing.machine`) can compare two
independent implementations. Prefer obviously correct code to fast code here.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Final

from treering.core.batch import Receipt, validate_batch
from treering.core.clock import SECOND_US, SystemClock
from treering.core.content import Content
from treering.core.engine import Caps
from treering.core.failpoints import declare, hit
from treering.core.ids import check_id, check_space
from treering.core.query import (
    check_limit,
    check_list_query,
    decode_cursor,
    decode_list_cursor,
    encode_cursor,
    encode_list_cursor,
)
from treering.core.records import Hit, Lease, Page, RefPage, SearchResult
from treering.core.rollups import deltas, summarise
from treering.core.text import query_terms, text_of
from treering.engines.memory import maintenance
from treering.engines.memory.space import Space, StoredObject
from treering.errors import Closed, NotFound, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from treering.core.batch import Batch, Event
    from treering.core.clock import Clock
    from treering.core.content import Address
    from treering.core.engine import OnWork
    from treering.core.query import Erasure, EventQuery, ListQuery, SearchQuery, SumQuery
    from treering.core.records import (
        Checked,
        CommitDigest,
        Erased,
        ListInfo,
        Problem,
        Record,
        Ref,
        Slice,
        SpaceStats,
        Sum,
        SweepProgress,
        Swept,
        TextRow,
    )

BEGIN: Final = declare("commit.begin", "a batch was accepted for commit; nothing is written")

_CAPS: Final = Caps(durable=False, shared_writers=False)
_WORD: Final = re.compile(r"[^\W_]+")
_ENDINGS: Final = re.compile(r"(?<=\w{3})(ings?|ed|es|s|ly|e)$")


class MemoryEngine:
    """An engine that keeps everything in the memory of this process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._changed = Condition()
        self._spaces: dict[str, Space] = {}
        self._closed = False

    @property
    def caps(self) -> Caps:
        """What this engine supports."""
        return _CAPS

    @property
    def url(self) -> str:
        """Its location."""
        return "memory:"

    # Writing
    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch; the future is already done."""
        future: Future[Receipt] = Future()
        try:
            future.set_result(self.commit(batch))
        except Exception as error:  # noqa: BLE001 - the error belongs to the caller of result()
            future.set_exception(error)
        return future

    def commit(self, batch: Batch) -> Receipt:
        """Commit a batch: atomic and idempotent."""
        validate_batch(batch)
        with self._changed:
            space = self._space(batch.space)
            hit(BEGIN)
            receipt = space.commit(batch, self._clock.now_us())
            self._spaces[batch.space] = space
            self._changed.notify_all()
            return receipt

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that requires them; return their names."""
        check_space(space)
        names: list[str] = []
        for content in contents:
            with self._changed:
                stored = self._spaces.setdefault(space, self._space(space)).objects
                kept = Content(content.kind, content.data)  # it may be of a class that is told its name
                stored[content.name] = StoredObject(kept, self._clock.now_us())
            names.append(content.name)
        return names

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; return ``None`` while another holder has it."""
        check_space(space)
        check_id(name, "lease name")
        check_id(holder, "holder")
        with self._changed:
            leases = self._spaces.setdefault(space, self._space(space)).leases
            now_us = self._clock.now_us()
            held = leases.get(name)
            token = held.token if held is not None else 0
            if held is None or held.expires_at_us <= now_us:
                token += 1
            elif held.holder != holder:
                return None
            lease = Lease(
                space=space,
                name=name,
                holder=holder,
                token=token,
                expires_at_us=now_us + round(seconds * SECOND_US),
            )
            leases[name] = lease
            return lease

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Extend a lease; return ``None`` if it was lost."""
        with self._changed:
            if not self._holds(lease):
                return None
            return self.claim(lease.space, lease.name, holder=lease.holder, seconds=seconds)

    def release(self, lease: Lease) -> None:
        """Release a lease if it is still held."""
        with self._changed:
            if self._holds(lease):
                self._space(lease.space).leases[lease.name] = Lease(
                    space=lease.space,
                    name=lease.name,
                    holder=lease.holder,
                    token=lease.token,
                    expires_at_us=0,
                )

    # Reading
    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Return the objects that are not stored."""
        with self._changed:
            return set(names) - self._space(space).objects.keys()

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Return content in the given order."""
        with self._changed:
            return [self._space(space).content_at(address) for address in addresses]

    def list_info(self, space: str, list_id: str) -> ListInfo | None:
        """Return the length and parent of a list."""
        with self._changed:
            stored = self._space(space).lists.get(list_id)
            return stored.info if stored is not None else None

    def lineage(self, space: str, list_id: str) -> list[ListInfo]:
        """Return a list and its ancestors, starting with itself."""
        with self._changed:
            return self._space(space).lineage(list_id)

    def read_list(self, space: str, list_id: str, start: int, stop: int) -> list[Content]:
        """Return the items from ``start`` up to ``stop`` (or the end), including those of its parents."""
        with self._changed:
            rows = self._space(space)
            if list_id not in rows.lists:
                raise NotFound(f"list {list_id!r} not found in space {space!r}")
            return [
                rows.content_at(item) if isinstance(item, str) else item
                for item in rows.items(list_id, start, stop)
            ]

    def refs(self, space: str, names: Sequence[str]) -> dict[str, Ref]:
        """Return the refs that exist among these names."""
        with self._changed:
            rows = self._space(space).refs
            return {name: rows[name].ref for name in names if name in rows and not rows[name].deleted}

    def scan_refs(self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[Ref]:
        """Return the next ``limit`` refs with a prefix, by name, behind ``after``."""
        check_limit(limit)
        with self._changed:
            rows = self._space(space).refs
            names = sorted(
                name for name in rows if name.startswith(prefix) and (after is None or name > after)
            )
            return [rows[name].ref for name in names if not rows[name].deleted][:limit]

    def list_refs(
        self, space: str, query: ListQuery, *, after: str | None = None, limit: int = 1000
    ) -> RefPage:
        """Return a page of the refs of a list, by the time at which they are listed."""
        check_limit(limit)
        check_list_query(query)
        position = None if after is None else decode_list_cursor(after)
        with self._changed:
            rows = [row.ref for row in self._space(space).refs.values() if not row.deleted]
        found = [(place, ref) for ref in rows if (place := _place(ref, query)) is not None]
        found.sort(key=lambda each: each[0], reverse=not query.oldest_first)
        if position is not None:
            found = [
                each for each in found if (each[0] > position if query.oldest_first else each[0] < position)
            ]
        cursor = encode_list_cursor(*found[limit - 1][0]) if len(found) >= limit else None
        return RefPage(refs=tuple(ref for _, ref in found[:limit]), cursor=cursor)

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Return a page of events in order."""
        check_limit(limit)
        position = decode_cursor(query, after) if after is not None else None
        with self._changed:
            found = [
                record for record in self._space(space).records.values() if _matches(record.event, query)
            ]
        found.sort(key=lambda record: _sort_key(record, query), reverse=query.newest_first)
        if position is not None:
            found = [
                record
                for record in found
                if (
                    _sort_key(record, query) < position
                    if query.newest_first
                    else _sort_key(record, query) > position
                )
            ]
        page = found[:limit]
        more = len(found) > limit
        return Page(
            records=tuple(page),
            cursor=encode_cursor(query, page[-1].event.ts_us, page[-1].seq) if more else None,
        )

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Wait until the space's last sequence number exceeds ``after_seq``, or time is up; return it."""
        deadline = monotonic() + seconds
        with self._changed:
            while (seq := self._space(space).seq) <= after_seq and (left := deadline - monotonic()) > 0:
                self._changed.wait(left)
            return seq

    def sums(self, space: str, query: SumQuery) -> list[Sum]:
        """Return totals from the roll-ups."""
        with self._changed:
            return summarise(self._space(space).rollups, query)

    def search(self, space: str, query: SearchQuery) -> SearchResult:
        """Return matching texts, those with the most query words first."""
        check_limit(query.limit)
        terms = query_terms(query.text)
        with self._changed:
            rows = self._space(space)
            hits = [
                Hit(
                    collection=text.collection,
                    name=text.name,
                    namespace=text.namespace,
                    source=text.source,
                    score=score,
                )
                for text in rows.texts.values()
                if text.collection == query.collection and query.namespace in {None, text.namespace}
                if (score := _score(text, rows.content_at(text.source), terms))
            ]
            hits.sort(key=lambda each: (-each.score, each.name))
            return SearchResult(hits=tuple(hits[: query.limit]), indexed_through=rows.seq)

    def scan_scopes(
        self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Return the next ``limit`` scopes with a prefix, by name, behind ``after``."""
        check_limit(limit)
        with self._changed:
            names = sorted(self._space(space).scopes())
        return [name for name in names if name.startswith(prefix) and (after is None or name > after)][:limit]

    def spaces(self) -> list[str]:
        """List all spaces that were ever written to, by name."""
        with self._changed:
            return sorted(self._spaces)

    # Maintenance
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, and the unshared content behind it."""
        with self._changed:
            return maintenance.erase(self._existing_space(space), plan)

    def sweep(
        self,
        space: str,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
        on_progress: Callable[[SweepProgress], None] | None = None,  # noqa: ARG002 - nothing to report
    ) -> Swept:
        """Mark everything reachable from refs and events, and remove the rest."""
        with self._changed:
            now_us = self._clock.now_us()
            return maintenance.sweep(
                self._existing_space(space), now_us=now_us, dry_run=dry_run, grace_seconds=grace_seconds
            )

    def check(
        self,
        space: str,
        *,
        read_content: bool = True,
        since: int = 0,  # noqa: ARG002 - everything is checked at once
        processes: int = 1,  # noqa: ARG002
    ) -> Iterator[Problem | Checked]:
        """Verify everything in its current state."""
        with self._changed:
            found = list(maintenance.check(self._existing_space(space), read_content=read_content))
        return iter(found)

    def commit_digests(self, space: str, *, after_seq: int = 0, limit: int = 1000) -> list[CommitDigest]:
        """Return the next commits behind a sequence number, in order."""
        check_limit(limit)
        with self._changed:
            return maintenance.commit_digests(self._space(space), after_seq=after_seq)[:limit]

    def reindex(self, space: str, *, on_progress: OnWork | None = None) -> None:
        """Recompute the roll-ups. There is no stored search index that could be stale."""
        with self._changed:
            rows = self._existing_space(space)
            rows.rollups = deltas(record.event for record in rows.records.values())
        if on_progress is not None:
            on_progress("roll-ups", len(rows.records), len(rows.records))

    def stats(self, space: str) -> SpaceStats:
        """Measure the space."""
        with self._changed:
            return maintenance.stats(self._existing_space(space))

    def export(self, space: str, *, after: str | None = None) -> Iterator[Slice]:
        """Yield everything in the space behind a position, as slices in a loadable order."""
        with self._changed:
            slices = maintenance.export(self._existing_space(space), after=after)
        return iter(slices)

    def load(self, space: str, part: Slice) -> None:
        """Load a slice of another engine's `export`; loading it twice changes nothing."""
        check_space(space)
        with self._changed:
            rows = self._spaces.setdefault(space, self._space(space))
            maintenance.load(rows, part, now_us=self._clock.now_us())
            self._changed.notify_all()

    def snapshot_to(self, folder: Path, *, on_progress: OnWork | None = None) -> None:
        """Not supported: nothing outlives the process."""
        del on_progress
        raise Unsupported(
            f"the memory engine cannot write a snapshot to {folder}; copy the store to a folder instead"
        )

    def close(self) -> None:
        """Release all resources. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _space(self, name: str) -> Space:
        """Return a space, or an empty one that is not stored until something is written to it."""
        if self._closed:
            raise Closed("this memory engine is closed; open a new one")
        return self._spaces.get(name) or Space(name)

    def _existing_space(self, name: str) -> Space:
        """Return a space that was written to, or raise `NotFound`."""
        if name not in self._spaces:
            check_space(name)
            self._space(name)
            raise NotFound(f"space {name!r} not found: nothing was ever written to it")
        return self._space(name)

    def _holds(self, lease: Lease) -> bool:
        held = self._space(lease.space).leases.get(lease.name)
        return (
            held is not None
            and held.holder == lease.holder
            and held.token == lease.token
            and held.expires_at_us > self._clock.now_us()
        )


def _matches(event: Event, query: EventQuery) -> bool:
    return (
        (not query.kinds or event.kind in query.kinds)
        and (not query.ids or event.id in query.ids)
        and event.id.startswith(query.id_prefix or "")
        and (query.since_us is None or event.ts_us >= query.since_us)
        and (query.until_us is None or event.ts_us < query.until_us)
        and all(
            getattr(query, name) in {None, getattr(event, name)}
            for name in ("scope", "run", "thread", "span", "agent", "status")
        )
    )


def _place(ref: Ref, query: ListQuery) -> tuple[int, str] | None:
    """Return where a ref is in a list; ``None`` if it is not in it."""
    listing = ref.listing
    if listing is None or listing.list != query.list:
        return None
    filters = ((getattr(query, name), getattr(listing, name)) for name in _FILTERS)
    if any(wanted is not None and wanted != given for wanted, given in filters):
        return None
    at_us = listing.at_us or 0
    if (query.since_us is not None and at_us < query.since_us) or (
        query.until_us is not None and at_us >= query.until_us
    ):
        return None
    return at_us, ref.name


_FILTERS: Final = ("namespace", "agent", "status", "thread")


def _sort_key(record: Record, query: EventQuery) -> tuple[int, int]:
    return (record.event.ts_us if query.order == "time" else 0, record.seq)


def _score(text: TextRow, content: Content, terms: list[str]) -> int:
    """Return how many of the terms occur in a text."""
    found = text_of(content).lower()
    if text.tokens == "trigrams":
        return sum(term in found for term in terms)
    stems = _stems(found)
    return sum(_stems(term) <= stems for term in terms)


def _stems(text: str) -> set[str]:
    return {_ENDINGS.sub("", word.group()) for word in _WORD.finditer(text)}
