"""The contract between the views and whatever stores the bytes.

An engine knows nothing of agents. It takes batches, gives back content, lists, refs and journal rows,
and looks after itself. What not every engine can do is named in `Caps`; using what ``caps`` denies
raises `Unsupported`. The behaviour behind each method is pinned by `treering.testing.engine_suite`.

Reads see every commit that was acknowledged before they began, from any process. No method keeps a
read transaction open after it returned: iterators are repeated pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from treering.core.batch import Batch, Receipt
    from treering.core.content import Address, Content
    from treering.core.query import Erasure, EventQuery, SearchQuery, SumQuery
    from treering.core.records import (
        Checked,
        Erased,
        Lease,
        ListInfo,
        Page,
        Problem,
        Ref,
        SearchResult,
        Slice,
        SpaceStats,
        Sum,
        Swept,
    )


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine offers beyond the contract's core."""

    durable: bool
    """An acknowledged commit survives SIGKILL (and, where the engine says ``full``, power loss)."""
    shared_writers: bool
    """Several processes may write to one store."""
    claim: bool = True
    search: bool = True
    sums: bool = True
    follow: bool = True
    backup: bool = False
    """`snapshot_to` is there; without it a backup is a copy."""


class Engine(Protocol):
    """One store of many spaces."""

    @property
    def caps(self) -> Caps:
        """What this engine offers."""
        ...

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    # Writing
    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch in the background; the future resolves when it is durable."""
        ...

    def commit(self, batch: Batch) -> Receipt:
        """Commit a batch: atomic, idempotent, durable when it returns."""
        ...

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that will require them, with bounded memory.

        Gives back their names. Staged objects that no commit requires disappear with a later `sweep`.
        """
        ...

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take a lease, or ``None`` while someone else holds it. The holder itself gets it renewed."""
        ...

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Prolong a lease; ``None`` when it was lost."""
        ...

    def release(self, lease: Lease) -> None:
        """Give a lease back, if it is still held."""
        ...

    # Reading
    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Which of these objects are not stored. Advice only: a commit checks again."""
        ...

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Verified content, in the order asked for. Raises `NotFound` or `Corrupt` naming the address."""
        ...

    def list_info(self, space: str, list_id: str) -> ListInfo | None:
        """A list's length and parent."""
        ...

    def lineage(self, space: str, list_id: str) -> list[ListInfo]:
        """A list and its ancestors, itself first; empty when there is no such list."""
        ...

    def read_list(self, space: str, list_id: str, start: int, stop: int) -> list[Content]:
        """The items from ``start`` up to ``stop`` (or the end), through all parents."""
        ...

    def refs(self, space: str, names: Sequence[str]) -> dict[str, Ref]:
        """The refs among these names that exist."""
        ...

    def scan_refs(self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[Ref]:
        """Refs whose name starts with ``prefix``, by name in code point order, behind ``after``.

        ``limit`` of them, unless there are no more.
        """
        ...

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Events in order, a page at a time."""
        ...

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, or time is up; give it back."""
        ...

    def sums(self, space: str, query: SumQuery) -> list[Sum]:
        """Totals from the roll-ups."""
        ...

    def search(self, space: str, query: SearchQuery) -> SearchResult:
        """Texts that match, best first."""
        ...

    def scan_scopes(
        self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Erasure scopes that anything is stored under, by name in code point order, behind ``after``.

        ``limit`` of them, unless there are no more.
        """
        ...

    def spaces(self) -> list[str]:
        """All spaces that were ever written to, by name."""
        ...

    # Looking after itself
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, and the unshared content behind it."""
        ...

    def sweep(self, space: str, *, dry_run: bool = False, grace_seconds: float = 3600.0) -> Swept:
        """Mark what refs and events can reach, and remove the rest, beside running writers."""
        ...

    def check(self, space: str, *, read_content: bool = True) -> Iterator[Problem | Checked]:
        """Verify everything; yields problems as they are found and a `Checked` now and then and last."""
        ...

    def reindex(self, space: str) -> None:
        """Rebuild all that is derived: roll-ups and search index."""
        ...

    def stats(self, space: str) -> SpaceStats:
        """What the space holds."""
        ...

    def export(self, space: str, *, after: str | None = None) -> Iterator[Slice]:
        """Everything in the space as slices in a loadable order (see `core.dump`), behind a position."""
        ...

    def load(self, space: str, part: Slice) -> None:
        """Take a slice of another engine's `export`; loading it twice changes nothing."""
        ...

    def snapshot_to(self, folder: Path) -> None:
        """A consistent copy of the whole store in a new folder, while writers go on."""
        ...

    def close(self) -> None:
        """Finish what was submitted, then let go of everything. Idempotent."""
        ...
