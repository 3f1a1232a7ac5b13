"""The engine contract: the interface between treering's features and whatever stores the bytes.

An engine takes batches, returns content, lists, refs and journal rows, and maintains itself. It knows nothing
of agents. What not every engine supports is declared in `Caps`; calling an unsupported method raises
`Unsupported`. `treering.testing.engine_suite` tests the behaviour of every method.

**Invariant:** reads see every commit acknowledged before they began, by any process. Commits become visible
in the order of their sequence numbers, which have no gaps, and a receipt has its numbers for good. A read may
also see a commit that is about to be acknowledged; `wait`, and `scan` in the order of commits, return only
what is durable. No method keeps a read transaction open after it returns: iterators read page by page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from treering.core.batch import Batch, Receipt
    from treering.core.content import Address, Content
    from treering.core.query import Erasure, EventQuery, ListQuery, SearchQuery, SumQuery
    from treering.core.records import (
        Checked,
        CommitDigest,
        Erased,
        Lease,
        ListInfo,
        Page,
        Problem,
        Ref,
        RefPage,
        SearchResult,
        Slice,
        SpaceStats,
        Sum,
        SweepProgress,
        Swept,
    )


OnWork: TypeAlias = "Callable[[str, int, int], None]"
"""Called with what is being done, how much of it is done, and how much there is."""


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine supports beyond the core of the contract."""

    durable: bool
    """An acknowledged commit survives SIGKILL (and power loss, if the engine promises ``full``)."""
    shared_writers: bool
    """Several processes may write to one store."""
    claim: bool = True
    search: bool = True
    sums: bool = True
    follow: bool = True
    backup: bool = False
    """`snapshot_to` is supported; otherwise a backup is a copy."""


class Engine(Protocol):
    """A store of any number of spaces."""

    @property
    def caps(self) -> Caps:
        """What this engine supports."""
        ...

    @property
    def url(self) -> str:
        """Its location, without secrets."""
        ...

    # Writing
    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch in the background; the future resolves once it is durable."""
        ...

    def commit(self, batch: Batch) -> Receipt:
        """Commit a batch: atomic, idempotent, durable when it returns."""
        ...

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that requires them, with bounded memory; return their names.

        Staged objects that no commit requires are removed by a later `sweep`.
        """
        ...

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; return ``None`` while another holder has it."""
        ...

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Extend a lease; return ``None`` if it was lost."""
        ...

    def release(self, lease: Lease) -> None:
        """Release a lease if it is still held."""
        ...

    # Reading
    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Return the objects that are not stored. Advisory: a commit checks again."""
        ...

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Return verified content in the given order; raise `NotFound` or `Corrupt` with the address."""
        ...

    def list_info(self, space: str, list_id: str) -> ListInfo | None:
        """Return the length and parent of a list."""
        ...

    def lineage(self, space: str, list_id: str) -> list[ListInfo]:
        """Return a list and its ancestors, starting with itself; empty if the list does not exist."""
        ...

    def read_list(self, space: str, list_id: str, start: int, stop: int) -> list[Content]:
        """Return the items from ``start`` up to ``stop`` (or the end), including those of its parents."""
        ...

    def refs(self, space: str, names: Sequence[str]) -> dict[str, Ref]:
        """Return the refs that exist among these names."""
        ...

    def scan_refs(self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[Ref]:
        """Return the next ``limit`` refs with a prefix, by name in code point order, behind ``after``.

        Fewer than ``limit`` means that there are no more.
        """
        ...

    def list_refs(
        self, space: str, query: ListQuery, *, after: str | None = None, limit: int = 1000
    ) -> RefPage:
        """Return a page of the refs of a list, by the time at which they are listed."""
        ...

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Return a page of events in order."""
        ...

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Wait until the space's last sequence number exceeds ``after_seq``, or time is up; return it.

        Everything up to it is durable, and will not change: a follower goes on from there.
        """
        ...

    def sums(self, space: str, query: SumQuery) -> list[Sum]:
        """Return totals from the roll-ups."""
        ...

    def search(self, space: str, query: SearchQuery) -> SearchResult:
        """Return matching texts, best first."""
        ...

    def scan_scopes(
        self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Return the next ``limit`` scopes with a prefix, by name in code point order, behind ``after``.

        Fewer than ``limit`` means that there are no more.
        """
        ...

    def spaces(self) -> list[str]:
        """List all spaces that were ever written to, by name."""
        ...

    # Maintenance
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, and the unshared content behind it."""
        ...

    def sweep(
        self,
        space: str,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
        on_progress: Callable[[SweepProgress], None] | None = None,
    ) -> Swept:
        """Mark everything reachable from refs and events and remove the rest, alongside running writers.

        An engine that knows how far it is calls ``on_progress``.
        """
        ...

    def check(
        self, space: str, *, read_content: bool = True, since: int = 0, processes: int = 1
    ) -> Iterator[Problem | Checked]:
        """Verify everything; yield problems as they are found, and a `Checked` regularly and at the end.

        With ``since``, commits up to that sequence number may be left out. ``processes`` is how many worker
        processes an engine may use, if it can.
        """
        ...

    def commit_digests(self, space: str, *, after_seq: int = 0, limit: int = 1000) -> list[CommitDigest]:
        """Return the next commits behind a sequence number, in order, with leaves computed from their rows.

        Fewer than ``limit`` may be returned; none means that there are no more.
        """
        ...

    def reindex(self, space: str, *, on_progress: OnWork | None = None) -> None:
        """Rebuild all derived data: roll-ups and search index. Progress counts events, then texts."""
        ...

    def stats(self, space: str) -> SpaceStats:
        """Measure the space."""
        ...

    def export(self, space: str, *, after: str | None = None) -> Iterator[Slice]:
        """Yield everything in the space behind a position, as slices in a loadable order."""
        ...

    def load(self, space: str, part: Slice) -> None:
        """Load a slice of another engine's `export`; loading it twice changes nothing."""
        ...

    def snapshot_to(self, folder: Path, *, on_progress: OnWork | None = None) -> None:
        """Write a consistent copy of the whole store to a new folder, alongside running writers.

        Progress counts the bytes of the database, then those of the packs.
        """
        ...

    def close(self) -> None:
        """Finish submitted work and release all resources. Idempotent."""
        ...
