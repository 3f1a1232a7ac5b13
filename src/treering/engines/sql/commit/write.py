"""What a commit writes: batches are encoded in their callers' threads, and written in groups once decided.

Compressing, checksumming and extracting text are the expensive part of a commit and need no database. They
happen before the batch waits for its group (`encode_batch`), so that writers hold the one lock of the store
only for the inserts themselves. What the batch refers to, its `Dependencies`, is collected here too: the
decision (`decide`) needs the state behind them, and nothing else.

Every table is written once for a whole group (`write_group`). Everything happens in one transaction, so the
order matters only to someone reading the log. One thing is learnt only here: whether an event is new. If one
is not, the roll-ups and the receipt are corrected before the transaction ends.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from operator import is_not, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from treering.core.batch import Set, content_links, validate_batch
from treering.core.content import (
    KIND_NUMBERS,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    pack_body,
    parse_address,
    seal,
)
from treering.core.digests import (
    AppendLeaf,
    CommitLeaves,
    append_form,
    body_form,
    decode_leaves,
    encode_leaves,
    event_form,
    items_hash,
    leaf,
    list_tag,
    merkle_root,
    new_salts,
    ref_form,
    text_form,
)
from treering.core.records import CommitRow
from treering.core.rollups import deltas, merge
from treering.core.text import text_of
from treering.engines.sql.commit.decide import pack_receipt, receipt_of
from treering.engines.sql.rollups import add_to_rollups
from treering.engines.sql.rows import (
    COMMIT_COLUMNS,
    EVENT_COLUMNS,
    LISTING_COLUMNS,
    RUN,
    body_checksum,
    body_key,
    commit_checksum,
    event_row,
    item_checksum,
    item_key,
    list_checksum,
    listing_of,
    listing_row,
    ref_checksum,
    run_rows,
)
from treering.engines.sql.session import rows_in_chunks
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.batch import Append, Batch, Event, Receipt, RefChange
    from treering.core.content import Address, Content, ParsedAddress
    from treering.core.rollups import Measures, RollupKey
    from treering.engines.sql.commit.decide import AcceptedBatch, CommitState, ListState, RefState
    from treering.engines.sql.rows import Dictionary
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Executor, Session

STAGE_SECONDS: Final = 3600
"""How long an object that nothing links to yet is safe from `sweep`."""


class Dependencies:
    """The names of everything that a group of batches refers to. The dicts are ordered sets."""

    __slots__ = ("batches", "leases", "linked", "lists", "objects", "refs", "scopes", "slots")

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.scopes: set[str] = set()
        self.refs: set[str] = set()
        self.lists: set[str] = set()
        """Lists to look up: those that grow, are branched from, or are linked to."""
        self.leases: set[str] = set()
        self.objects: dict[str, None] = {}
        """Objects that have to exist, because the batch does not contain them."""
        self.slots: dict[tuple[str, int], None] = {}
        """Bodies of other commits that have to exist: batch and part."""
        self.linked: dict[str, None] = {}
        """Lists that have to exist, because the batch does not create them."""


def dependencies_of(batch: Batch, named: Iterable[ParsedAddress]) -> Dependencies:
    """Return what a batch changes, and what it links to without containing it."""
    dependencies = Dependencies()
    dependencies.batches.append(batch.id)
    scopes = dependencies.scopes
    for part in batch.parts:
        scopes.add(part.scope)
    for event in batch.events:
        scopes.add(event.scope)
    for text in batch.texts:
        scopes.add(text.scope)
    for change in batch.refs:
        scopes.add(change.scope)
        dependencies.refs.add(change.name)
    for fence in batch.fences:
        dependencies.leases.add(fence.lease)
    for name in batch.requires:
        dependencies.objects[name] = None
    for place in named:
        if isinstance(place, ListAddress):
            dependencies.lists.add(place.list)
            dependencies.linked[place.list] = None
        elif isinstance(place, ObjectAddress):
            dependencies.objects[place.name] = None
        else:
            dependencies.slots[place.batch, place.part] = None
    for append in batch.lists:
        scopes.add(append.scope)
        dependencies.linked.pop(append.list, None)
        dependencies.lists.add(append.list)
        if append.parent is not None:
            dependencies.lists.add(append.parent)
    for name in batch.objects:
        dependencies.objects.pop(name, None)
    return dependencies


def merge_dependencies(parts: Sequence[Dependencies]) -> Dependencies:
    """Return the dependencies of a group of batches."""
    if len(parts) == 1:
        return parts[0]
    merged = Dependencies()
    for dependencies in parts:
        merged.batches += dependencies.batches
        merged.scopes |= dependencies.scopes
        merged.refs |= dependencies.refs
        merged.lists |= dependencies.lists
        merged.leases |= dependencies.leases
        merged.objects |= dependencies.objects
        merged.slots |= dependencies.slots
    return merged


EncodedItem = tuple[int | None, bytes | None, str | None]
"""An item as it is stored: kind and frame of content, or an address."""


class EncodedBatch(NamedTuple):
    """A validated batch and everything that can be computed from it alone."""

    batch: Batch
    dependencies: Dependencies
    bodies: list[bytes]
    items: list[list[EncodedItem]]
    objects: list[tuple[bytes, int, int, bytes]]
    """name, kind, size, frame"""
    words: list[str | None]
    """The text to index for each of the batch's texts, if the batch contains its source."""
    deltas: dict[RollupKey, Measures]
    item_links: str | None
    """What its list items and texts link to, so that a concurrent mark finds it by the commit."""
    salts: Salts
    events: list[bytes]
    """The canonical form of each event."""
    events_root: bytes
    body_leaves: tuple[bytes, ...]
    appended: list[bytes]
    """The hash of the items of each append."""
    text_leaves: tuple[bytes, ...]


class Salts(NamedTuple):
    """The random salts of a batch's rows (see `core.digests`)."""

    events: list[bytes]
    bodies: list[bytes]
    lists: list[bytes]
    """One for each append, used if it creates its list."""
    refs: list[bytes]
    texts: list[bytes]


def draw_salts(batch: Batch) -> Salts:
    """Draw the salts of a new batch."""
    kinds = (batch.events, batch.parts, batch.lists, batch.refs, batch.texts)
    drawn = new_salts(sum(map(len, kinds)))
    salts: list[list[bytes]] = []
    start = 0
    for rows in kinds:
        stop = start + len(rows)
        salts.append(drawn[start:stop])
        start = stop
    return Salts(*salts)


def encode_batch(batch: Batch, salts: Salts | None = None) -> EncodedBatch:
    """Validate a batch and encode its content. Salts are given for rows that had them before."""
    dependencies = dependencies_of(batch, validate_batch(batch))
    links: list[Address] = []
    items: list[list[EncodedItem]] = []
    for append in batch.lists:
        sealed: list[EncodedItem] = []
        for item in append.items:
            if isinstance(item, str):
                links.append(item)
                sealed.append((None, None, item))
            else:
                if item.kind == "tree":
                    links += content_links(item)
                sealed.append((KIND_NUMBERS[item.kind], seal(item.data), None))
        items.append(sealed)
    words: list[str | None] = []
    for text in batch.texts:
        words.append(_words(batch, text.source))
        if text.source is not None:
            links.append(text.source)
    salts = salts or draw_salts(batch)
    forms = [event_form(event) for event in batch.events]
    return EncodedBatch(
        batch,
        dependencies,
        [seal(pack_body(part.slots)) for part in batch.parts] if batch.parts else [],
        items,
        [
            (bytes.fromhex(name), KIND_NUMBERS[content.kind], len(content.data), seal(content.data))
            for name, content in batch.objects.items()
        ]
        if batch.objects
        else [],
        words,
        deltas(batch.events),
        "\n".join(links) if links else None,
        salts,
        forms,
        merkle_root([leaf("event", salt, form) for salt, form in zip(salts.events, forms, strict=True)]),
        tuple(
            leaf("body", salt, body_form(number, part.scope, part.slots))
            for number, (part, salt) in enumerate(zip(batch.parts, salts.bodies, strict=True))
        ),
        [items_hash(append.items) for append in batch.lists],
        tuple(
            leaf("text", salt, text_form(text)) for text, salt in zip(batch.texts, salts.texts, strict=True)
        ),
    )


def own_content(batch: Batch, address: Address) -> Content | None:
    """Return the content at an address, if the batch contains it."""
    match parse_address(address):
        case ObjectAddress(name):
            return batch.objects.get(name)
        case SlotAddress(batch.id, part, index):
            return batch.parts[part].slots[index]
        case _:
            return None


def _words(batch: Batch, source: Address | None) -> str | None:
    content = own_content(batch, source) if source is not None else None
    return text_of(content) if content is not None else None


def write_group(
    session: Session,
    state: CommitState,
    accepted: Sequence[AcceptedBatch],
    texts: TextIndex,
    *,
    assume_new: bool = False,
) -> list[Receipt]:
    """Write the accepted batches of one space; return their receipts, in order.

    With ``assume_new``, events are taken to be new without waiting to learn it, which saves a round trip to
    a server. If one is not, the transaction fails and the caller repeats it without.
    """
    session.execute(*state.advance())
    if not state.commit_numbers:
        state.commit_numbers = [each.receipt.first_seq for each in accepted]
    _insert_scopes(session, state, accepted)
    rows = CommitRows(state, accepted, session.dictionary)
    rows.write(session)
    receipts, totals = [each.receipt for each in accepted], _total_deltas(accepted)
    if rows.events and not _insert_events(session, rows.events, assume_new=assume_new):
        receipts, totals = _recount(session, state, accepted, rows.commits)
    if totals:
        add_to_rollups(session, state.space, totals)
    for each in accepted:
        if each.encoded.batch.texts:
            texts.put(session, state.space, state.scopes, each.encoded)
    return receipts


class CommitRows:
    """The rows of a group, by table; where several batches change the same row, the last one counts."""

    __slots__ = (
        "bodies",
        "commits",
        "events",
        "grown",
        "items",
        "lists",
        "objects",
        "refs",
        "rescoped",
        "runs",
    )

    def __init__(
        self,
        state: CommitState | None = None,
        accepted: Sequence[AcceptedBatch] = (),
        dictionary: Dictionary | None = None,
    ) -> None:
        self.commits: list[Any] = []
        self.bodies: list[Any] = []
        self.events: list[tuple[Any, ...]] = []
        self.runs: dict[str, Any] = {}
        self.objects: list[Any] = []
        self.refs: dict[str, Any] = {}
        self.rescoped: dict[str, Any] = {}
        """Refs that move to another scope."""
        self.lists: dict[str, Any] = {}
        self.grown: dict[str, Any] = {}
        """Lists that exist and get longer."""
        self.items: list[Any] = []
        if state is not None and dictionary is not None:
            for each, commit_no in zip(accepted, state.commit_numbers, strict=False):
                self._add(state, each, commit_no, dictionary)

    def _add(self, state: CommitState, each: AcceptedBatch, commit_no: int, dictionary: Dictionary) -> None:
        encoded, receipt = each.encoded, each.receipt
        space, scopes, batch = state.space, state.scopes, encoded.batch
        first_seq, last_seq, at_us = receipt.first_seq, receipt.last_seq, receipt.committed_at_us
        salts = encoded.salts
        for number, part in enumerate(batch.parts):
            key, frame, salt = body_key(commit_no, number), encoded.bodies[number], salts.bodies[number]
            check = body_checksum(space, key, part.scope, frame, salt)
            self.bodies.append((space, key, scopes[part.scope], frame, salt, check))
        if encoded.objects:
            until_us = state.now_us + STAGE_SECONDS * 1_000_000
            for name, kind, size, frame in encoded.objects:
                self.objects.append((space, name, kind, size, at_us, until_us, frame))
        if batch.events:
            batch_id = batch.id
            for seq, event, salt, form in zip(
                range(first_seq, last_seq + 1), batch.events, salts.events, encoded.events, strict=True
            ):
                row = event_row(
                    event,
                    space=space,
                    scope=scopes[event.scope],
                    seq=seq,
                    commit_no=commit_no,
                    batch=batch_id,
                    committed_at_us=at_us,
                    salt=salt,
                    form=form,
                    dictionary=dictionary,
                )
                self.events.append(row)
            self.runs.update({row[2]: row for row in run_rows(space, [event.run for event in batch.events])})
        ref_leaves = [
            self._add_ref(state, change, ref, salt, seq=last_seq, at_us=at_us)
            for (change, ref), salt in zip(each.refs, salts.refs, strict=True)
        ]
        append_leaves = [
            self._add_append(state, append, target, items, hashed, seq=last_seq)
            for (append, target), items, hashed in zip(
                each.appends, encoded.items, encoded.appended, strict=True
            )
        ]
        leaves = CommitLeaves(
            events=receipt.new_events,
            bodies=encoded.body_leaves,
            appends=tuple(append_leaves),
            refs=tuple(ref_leaves),
            texts=encoded.text_leaves,
        )
        digest = leaves.digest(batch.id, encoded.events_root)
        self.commits.append(commit_row(space, commit_no, receipt, encoded.item_links, leaves, digest))

    def _add_ref(
        self, state: CommitState, change: RefChange, ref: RefState, salt: bytes, *, seq: int, at_us: int
    ) -> bytes:
        """Add the row of a ref, and return its leaf."""
        space, name, scope, move = state.space, change.name, state.scopes[change.scope], change.change
        is_set = isinstance(move, Set)
        links = move.links if is_set else ()
        if ref.scope is not None and (ref.scope != scope or name in self.rescoped):
            self.rescoped[name] = (scope, space, name)
        ref.scope = scope
        listed = listing_row(move.listing if is_set else None, at_us)
        form = ref_form(name, change.scope, ref.version, ref.value, links, listing_of(listed))
        check = ref_checksum(seq, at_us, salt, form)
        joined = "\n".join(links) if links else None
        self.refs[name] = (
            space, name, scope, ref.version, ref.value, joined, seq, at_us, *listed, salt, check
        )  # fmt: skip
        return leaf("ref", salt, form)

    def _add_append(
        self,
        state: CommitState,
        append: Append,
        target: ListState,
        items: list[EncodedItem],
        hashed: bytes,
        *,
        seq: int,
    ) -> AppendLeaf:
        """Add the rows of an append, and return its leaf."""
        space, list_id, salt = state.space, append.list, target.salt
        check = list_checksum(
            space, target.no, list_id, append.scope, target.parent, target.start, target.length,
            target.depth, seq, salt,
        )  # fmt: skip
        is_new = list_id in state.list_numbers
        if is_new:
            self.lists[list_id] = (
                space, target.no, list_id, state.scopes[append.scope], target.parent, target.start,
                target.length, target.depth, seq, salt, check,
            )  # fmt: skip
        else:
            self.grown[list_id] = (target.length, seq, check, space, target.no)
        key = item_key(target.no, append.at)
        for kind, frame, address in items:
            self.items.append(
                (space, key, kind, frame, address, item_checksum(space, key, kind, frame, address))
            )
            key += 1
        parent = append.parent if append.at == target.start else None
        form = append_form(list_id, append.scope, parent, append.at, len(items), hashed)
        return AppendLeaf(list_tag(list_id, salt), append.at, len(items), leaf("append", salt, form))

    def extend(self, later: CommitRows) -> None:
        """Add the rows of later commits to the same space, except for their objects."""
        self.commits += later.commits
        self.runs.update(later.runs)
        self.bodies += later.bodies
        self.grown.update(later.grown)
        self.items += later.items
        self.refs.update(later.refs)
        self.events += later.events

    def write(self, session: Executor) -> None:
        """Write everything except the events."""
        session.execute_many(INSERT_COMMIT, self.commits)
        if self.runs:
            session.execute_many(RUN, list(self.runs.values()))
        self.write_objects(session)
        if self.bodies:
            session.execute_many(_BODY, self.bodies)
        if self.lists:
            session.execute_many(_LIST, list(self.lists.values()))
        if self.grown:
            session.execute_many(GROW_LIST, list(self.grown.values()))
        if self.items:
            session.execute_many(_ITEM, self.items)
        if self.refs:
            session.execute_many(UPSERT_REF, list(self.refs.values()))
        if self.rescoped:
            session.execute_many(_RESCOPED, list(self.rescoped.values()))

    def write_objects(self, session: Executor) -> None:
        """Write the objects only."""
        if self.objects:
            session.execute_many(_OBJECT, self.objects)

    def write_new_events(self, session: Executor) -> None:
        """Write the events, all of which are known to be new."""
        for columns, values in _by_shape(self.events):
            session.execute_many(_event_sql(columns, ""), values)


def _insert_scopes(session: Session, state: CommitState, accepted: Sequence[AcceptedBatch]) -> None:
    """Insert the new scopes that accepted batches use, and add them to the state."""
    if not state.scope_numbers:
        return
    used = {
        name: state.scope_numbers[name]
        for each in accepted
        for name in each.encoded.dependencies.scopes
        if name in state.scope_numbers
    }
    session.execute_many(_SCOPE, [(state.space, number, name) for name, number in used.items()])
    state.scopes.update(used)


def _insert_events(session: Session, rows: list[tuple[Any, ...]], *, assume_new: bool) -> bool:
    """Insert events; return whether all of them were new (``assume_new`` takes that for granted).

    Each is inserted with the columns that it has: most are empty, and binding NULLs is not free.
    """
    count = len(rows)
    if count > 1:
        first = {(row[2], row[3]): row for row in reversed(rows)}  # by day and id: shapes change the order
        if len(first) < count:
            rows = list(reversed(first.values()))
    written = 0
    for columns, values in _by_shape(rows):
        if assume_new and len(rows) == count:
            session.execute_many(_event_sql(columns, ""), values)
            written += len(values)
        else:
            sql = _event_sql(columns, "ON CONFLICT (space, day, id) DO NOTHING")
            written += session.run_many(sql, values)
    return written == count


def _by_shape(rows: list[tuple[Any, ...]]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """Group rows by which columns are set; yield the columns and their values in each row."""
    shapes: dict[tuple[bool, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        shapes.setdefault(tuple(map(is_not, row, _NOTHING)), []).append(row)
    for shape, same in shapes.items():
        columns, values_of = _event_shape(shape)
        yield columns, [values_of(row) for row in same]


@lru_cache(maxsize=1024)
def _event_shape(shape: tuple[bool, ...]) -> tuple[tuple[str, ...], Callable[[tuple[Any, ...]], Any]]:
    numbers = [number for number, is_set in enumerate(shape) if is_set]
    return tuple(EVENT_COLUMNS[number] for number in numbers), itemgetter(*numbers)


def commit_row(
    space: int, no: int, receipt: Receipt, links: str | None, leaves: CommitLeaves, digest: bytes
) -> tuple[Any, ...]:
    """Return the row of a commit: its space, then `COMMIT_COLUMNS`."""
    values = (
        receipt.batch,
        no,
        receipt.first_seq,
        receipt.last_seq,
        receipt.committed_at_us,
        pack_receipt(receipt.versions, receipt.sums, receipt.new_events),
        links,
        encode_leaves(leaves),
        digest,
    )
    return (space, *values, commit_checksum(values))


def _total_deltas(accepted: Sequence[AcceptedBatch]) -> dict[RollupKey, Measures]:
    if len(accepted) == 1:
        return accepted[0].encoded.deltas
    totals: dict[RollupKey, Measures] = {}
    for each in accepted:
        merge(totals, each.encoded.deltas)
    return totals


def _recount(
    session: Session, state: CommitState, accepted: Sequence[AcceptedBatch], rows: Sequence[Sequence[Any]]
) -> tuple[list[Receipt], dict[RollupKey, Measures]]:
    """Correct the receipts of a group in which some events existed already; return them and the totals."""
    numbers = [
        seq
        for each in accepted
        for seq in range(each.receipt.first_seq, each.receipt.first_seq + len(each.encoded.batch.events))
    ]
    sql = "SELECT seq FROM event WHERE space = ? AND seq IN (@)"
    written = {seq for (seq,) in rows_in_chunks(session, sql, (state.space,), numbers)}
    receipts: list[Receipt] = []
    all_new: list[Event] = []
    for each, row in zip(accepted, rows, strict=True):
        receipt, encoded = each.receipt, each.encoded
        at = [
            place for place in range(len(encoded.events)) if receipt.first_seq + place in written
        ]  # among the events of the batch
        all_new += [encoded.batch.events[place] for place in at]
        if len(at) != receipt.new_events:
            receipt = msgspec.structs.replace(receipt, new_events=len(at))
            leaves = decode_leaves(row[8], f"commit {receipt.batch!r}")
            leaves = msgspec.structs.replace(leaves, events=len(at))
            salts, forms = encoded.salts.events, encoded.events
            root = merkle_root([leaf("event", salts[place], forms[place]) for place in at])
            digest = leaves.digest(receipt.batch, root)
            replace_commit(
                session, commit_row(state.space, row[2], receipt, encoded.item_links, leaves, digest)
            )
        receipts.append(receipt)
    return receipts, deltas(all_new)


def commit_of(row: Sequence[Any]) -> CommitRow:
    """Return the commit in a row of `COMMIT_COLUMNS`, or raise `Corrupt` if it is not as it was written."""
    receipt = receipt_of((*row[:6], row[9]))
    where = f"commit {receipt.batch!r}"
    try:
        is_good = commit_checksum(row) == row[9]
    except (TypeError, ValueError):
        is_good = False
    if not is_good:
        raise Corrupt(
            f"{where} is not as it was written: its checksum differs; "
            "run verify, then restore it from a backup or a copy"
        )
    return CommitRow(receipt=receipt, leaves=decode_leaves(row[7], where), digest=bytes(row[8]))


def replace_commit(session: Executor, row: Sequence[Any]) -> None:
    """Write the row of a commit again: its space, then `COMMIT_COLUMNS`. Its id and number stay."""
    space, _, no, *values = row
    session.execute(_REPLACE_COMMIT, (*values, space, no))


def _insert(table: str, columns: Sequence[str], tail: str = "") -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) {tail}"


@lru_cache(maxsize=1024)
def _event_sql(columns: tuple[str, ...], tail: str) -> str:
    return _insert("event", columns, tail)


_SCOPE: Final = _insert("scope", ("space", "no", "name"))
INSERT_COMMIT: Final = _insert("commits", ("space", *COMMIT_COLUMNS))
_REPLACE_COMMIT: Final = (
    f"UPDATE commits SET {', '.join(f'{name} = ?' for name in COMMIT_COLUMNS[2:])} WHERE space = ? AND no = ?"
)
_BODY: Final = _insert("body", ("space", "key", "scope", "frame", "salt", "checksum"))
_OBJECT: Final = _insert(
    "object",
    ("space", "name", "kind", "size", "stored_at_us", "staged_until_us", "frame"),
    "ON CONFLICT (space, name) DO NOTHING",
)
UPSERT_REF: Final = _insert(
    "ref",
    (
        "space",
        "name",
        "scope",
        "version",
        "value",
        "links",
        "seq",
        "changed_at_us",
        *LISTING_COLUMNS,
        "salt",
        "checksum",
    ),
    "ON CONFLICT (space, name) DO UPDATE SET version = excluded.version, "
    "value = excluded.value, links = excluded.links, seq = excluded.seq, "
    "changed_at_us = excluded.changed_at_us, "
    + ", ".join(f"{name} = excluded.{name}" for name in (*LISTING_COLUMNS, "salt", "checksum")),
)
_RESCOPED: Final = "UPDATE ref SET scope = ? WHERE space = ? AND name = ?"
"""Separate from `UPSERT_REF`, so that a ref which stays in its scope leaves the index of scopes alone."""
_LIST: Final = _insert(
    "list",
    ("space", "no", "id", "scope", "parent", "start", "length", "depth", "seq", "salt", "checksum"),
)
GROW_LIST: Final = "UPDATE list SET length = ?, seq = ?, checksum = ? WHERE space = ? AND no = ?"
_ITEM: Final = _insert("item", ("space", "key", "kind", "frame", "address", "checksum"))
_NOTHING: Final = repeat(None)
