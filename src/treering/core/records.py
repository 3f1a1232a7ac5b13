"""What an engine returns: frozen records of stored data, results of maintenance, and slices of an export.

An append-only list with a parent is how a fork shares its past. A list owns its items from ``start`` on;
earlier ones belong to its parent, up to the position where it branched off. Reading a range walks the lineage
and takes from each list the items it owns (`locate`), so a fork costs one row no matter how long its past is.
**Invariant:** items below the length of a list never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.batch import Event, Listing, Receipt, Tokens, Usage
from treering.core.content import Address, Content
from treering.core.digests import CommitLeaves

if TYPE_CHECKING:
    from collections.abc import Sequence


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A journal event as it was committed."""

    seq: int
    batch: str
    committed_at_us: int
    event: Event


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some records, and the cursor of the next page (``None``: there are no more)."""

    records: tuple[Record, ...]
    cursor: str | None


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a ref. ``seq`` is the commit that updated it last."""

    name: str
    scope: str
    version: int
    value: bytes
    links: tuple[Address, ...]
    seq: int
    changed_at_us: int
    listing: Listing | None = None


def list_place(ref: Ref) -> tuple[int, str]:
    """Return the place of a ref in its list: lists are sorted by this."""
    listing = ref.listing
    return (0 if listing is None else listing.at_us or 0), ref.name


class RefPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some refs of a list, and the cursor of the next page (``None``: there are no more)."""

    refs: tuple[Ref, ...]
    cursor: str | None


class ListInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A list: its total length, and the first ``start`` items that it shares with ``parent``."""

    list: str
    scope: str
    parent: str | None
    start: int
    length: int
    depth: int


MAX_LIST_DEPTH: Final = 32
"""A list with this many ancestors is flattened (its items are copied) before it can be branched."""


class ListRange(msgspec.Struct, frozen=True, kw_only=True):
    """Positions ``start`` to ``stop`` of one list that owns all of them."""

    list: str
    start: int
    stop: int


def locate(lineage: Sequence[ListInfo], start: int, stop: int) -> list[ListRange]:
    """Return which list of a lineage (the list first, its root last) owns which part of a range.

    The result is in reading order. A range past the end is cut off at the end.
    """
    runs: list[ListRange] = []
    stop = min(stop, lineage[0].length) if lineage else 0
    for info in lineage:
        first = max(start, info.start)
        if first < stop:
            runs.append(ListRange(list=info.list, start=first, stop=stop))
        stop = min(stop, info.start)
        if start >= stop:
            break
    runs.reverse()
    return runs


def branch_point(lineage: Sequence[ListInfo], at: int) -> ListInfo:
    """Return the list of a lineage to branch from at position ``at``.

    This is the list that owns the item before ``at``, not always the newest one: branching from a list that
    contributes nothing would only make the lineage deeper.
    """
    for info in lineage:
        if at > info.start or info.parent is None:
            return info
    return lineage[-1]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease, held until ``expires_at_us`` on the store's clock.

    ``token`` grows whenever the holder changes; a batch that is fenced by it commits only while the lease
    is held.
    """

    space: str
    name: str
    holder: str
    token: int
    expires_at_us: int


class Sum(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the events in one group; ``group`` has the order of `SumQuery.by`.

    ``unpriced_events`` and ``unpriced_tokens`` count usage without a cost. It is not included in
    ``cost_nanos``, rather than counted as free.
    """

    group: tuple[str | int, ...]
    events: int = 0
    errors: int = 0
    usage: Usage = Usage()
    cost_nanos: int = 0
    duration_us: int = 0
    unpriced_events: int = 0
    unpriced_tokens: int = 0


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A text that matches. Higher scores are better matches."""

    collection: str
    name: str
    namespace: str
    source: Address
    score: float


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first. Everything up to ``indexed_through`` was searched."""

    hits: tuple[Hit, ...]
    indexed_through: int


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem found by `check`."""

    kind: Literal["corrupt", "dangling", "derived", "list", "counter"]
    where: str
    detail: str


class RebuildProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of ``what`` are rebuilt: the roll-ups, then the search index."""

    what: str
    done: int
    total: int


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """How much `check` has read so far."""

    objects: int = 0
    bodies: int = 0
    items: int = 0
    events: int = 0
    refs: int = 0
    bytes: int = 0


class EventLeaf(msgspec.Struct, frozen=True, array_like=True):
    """The leaf of an event that is stored, computed from its row."""

    at: int
    """Its position in the commit."""
    id: str
    salt: bytes
    leaf: bytes


class CommitDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The digest of a commit and what it is made of (see `core.digests`)."""

    batch: str
    first_seq: int
    last_seq: int
    committed_at_us: int
    digest: bytes
    leaves: CommitLeaves
    events: tuple[EventLeaf, ...]
    refs: tuple[str, ...]
    """The refs that it changed, in order, without those that were erased."""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What `erase` removed, and what it kept: shared objects by name, with the reason."""

    events: int = 0
    refs: int = 0
    lists: int = 0
    bodies: int = 0
    texts: int = 0
    objects: int = 0
    bytes: int = 0
    kept: dict[str, str] = {}
    proof: Literal["bytes", "query"] = "query"


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What a garbage collection removed, or would remove in a dry run."""

    objects: int = 0
    bodies: int = 0
    lists: int = 0
    packs: int = 0
    bytes: int = 0
    kept_objects: int = 0
    dry_run: bool = False


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What archiving moved out of the database."""

    events: int = 0
    runs: int = 0
    """Runs of which something was moved; a long run may be counted in several chunks."""
    files: int = 0
    bytes: int = 0
    days: tuple[str, ...] = ()
    through: int = 0
    """All events up to this sequence number that can be archived are."""

    def plus(self, other: Archived) -> Archived:
        """Return both together."""
        return Archived(
            events=self.events + other.events,
            runs=self.runs + other.runs,
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            days=tuple(sorted({*self.days, *other.days})),
            through=max(self.through, other.through),
        )


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An archived file: its path in the blob store, its day, and what it holds."""

    path: str
    day: str
    rows: int
    bytes: int
    sha256: str


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """The archived days of a space, and where its files are."""

    url: str | None
    """The blob store; ``None`` if this store has none."""
    rows: int = 0
    bytes: int = 0
    through: int = 0
    """All events up to this sequence number that can be archived are."""
    files: tuple[ArchivedFile, ...] = ()

    @property
    def paths(self) -> list[str]:
        """The locations of the files, for programs that read Parquet."""
        root = (self.url or "").removeprefix("file://").rstrip("/")
        return [f"{root}/{file.path}" for file in self.files]


class SweepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a garbage collection is: events that were followed, then bytes that were deleted."""

    phase: Literal["marking", "deleting"]
    done: int
    total: int
    bytes: int | None = None
    of_bytes: int | None = None


class SpaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one space, in rows and in stored bytes by kind."""

    space: str
    commits: int
    events: int
    refs: int
    lists: int
    items: int
    objects: int
    texts: int
    bytes: dict[str, int]
    growth_bytes: dict[int, int]
    """Stored bytes by the UTC day (since 1970) of their commit."""


# An export is a stream of slices. A slice holds rows as they are stored (including sequence numbers, versions
# and times), so that a copy equals its source and is not a replay of it. Slices come in a loadable order:
# content before whatever links to it, parents before children, refs last. ``position`` resumes the stream
# after the slice, in any process; loading a slice twice changes nothing. Derived rows are not exported but
# rebuilt.


class CommitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A commit: its receipt, its leaves and its digest (see `core.digests`)."""

    receipt: Receipt
    leaves: CommitLeaves
    digest: bytes


class BodyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One body of a commit."""

    batch: str
    part: int
    scope: str
    slots: tuple[Content, ...]
    salt: bytes


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the journal."""

    record: Record
    salt: bytes


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """A list without its items. Parents come before their children."""

    info: ListInfo
    seq: int
    salt: bytes


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a list."""

    list: str
    position: int
    item: Content | Address


class RefRow(msgspec.Struct, frozen=True, kw_only=True):
    """A ref. Deleted ones are kept for their versions."""

    ref: Ref
    deleted: bool
    salt: bytes


class TextRow(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the search index, without derived data."""

    collection: str
    tokens: Tokens
    name: str
    namespace: str
    scope: str
    source: Address
    salt: bytes


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows, limited in number and bytes. Every slice carries the counters of its space."""

    position: str
    last_seq: int
    committed_at_us: int
    objects: tuple[Content, ...] = ()
    commits: tuple[CommitRow, ...] = ()
    bodies: tuple[BodyRow, ...] = ()
    events: tuple[EventRow, ...] = ()
    lists: tuple[ListRow, ...] = ()
    items: tuple[ItemRow, ...] = ()
    texts: tuple[TextRow, ...] = ()
    refs: tuple[RefRow, ...] = ()
