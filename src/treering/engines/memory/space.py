"""One space of the memory engine: plain dicts, and the commit that changes them.

A commit first checks all preconditions and decides (`_check_fences`, `_check_addresses`, `_updated_ref`,
`_grown_lists`), then applies all changes (`_apply`). **Invariant:** only the first half can fail, so a
rejected batch leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from treering.core.batch import ABSENT, ANY, Add, Delete, Receipt, Set, content_links, event_links
from treering.core.clock import day_of
from treering.core.content import ListAddress, ObjectAddress, SlotAddress, list_address, parse_address
from treering.core.digests import (
    AppendLeaf,
    CommitLeaves,
    append_form,
    body_form,
    event_form,
    items_hash,
    leaf,
    list_tag,
    merkle_root,
    new_salts,
    ref_form,
    text_form,
)
from treering.core.records import MAX_LIST_DEPTH, CommitRow, ListInfo, Record, Ref, RefRow, TextRow, locate
from treering.core.rollups import deltas
from treering.errors import Conflict, Fenced, InvalidInput, ListMoved, MissingObjects, NotFound, RefMoved

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.core.batch import Append, Batch, Event, Listing, RefChange, Text, Tokens
    from treering.core.content import Address, Content
    from treering.core.records import Lease
    from treering.core.rollups import Measures, RollupKey


@dataclass
class StoredObject:
    """An object, and the time at which it was last staged, committed or required."""

    content: Content
    used_at_us: int


@dataclass
class StoredBody:
    """The slots of one body."""

    scope: str
    slots: tuple[Content, ...]
    committed_at_us: int
    salt: bytes


@dataclass
class StoredList:
    """A list, the items that it owns, and its last change."""

    info: ListInfo
    seq: int
    changed_at_us: int
    salt: bytes
    items: list[Content | Address] = field(default_factory=list["Content | Address"])


@dataclass
class Space:
    """All data of one space."""

    name: str
    seq: int = 0
    committed_at_us: int = 0
    commits: dict[str, CommitRow] = field(default_factory=dict[str, CommitRow])
    objects: dict[str, StoredObject] = field(default_factory=dict[str, StoredObject])
    bodies: dict[tuple[str, int], StoredBody] = field(default_factory=dict[tuple[str, int], StoredBody])
    records: dict[int, Record] = field(default_factory=dict[int, Record])
    salts: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The salts of the records."""
    event_keys: set[tuple[int, str]] = field(default_factory=set[tuple[int, str]])
    lists: dict[str, StoredList] = field(default_factory=dict[str, StoredList])
    refs: dict[str, RefRow] = field(default_factory=dict[str, RefRow])
    texts: dict[tuple[str, str], TextRow] = field(default_factory=dict[tuple[str, str], TextRow])
    rollups: dict[RollupKey, Measures] = field(default_factory=dict["RollupKey", "Measures"])
    leases: dict[str, Lease] = field(default_factory=dict[str, "Lease"])

    def commit(self, batch: Batch, now_us: int) -> Receipt:
        """Apply a whole batch, or raise and change nothing."""
        committed = self.commits.get(batch.id)
        if committed is not None:
            return committed.receipt
        self._check_fences(batch, now_us)
        self._check_addresses(batch)
        refs = [self._updated_ref(change) for change in batch.refs]
        lists = self._grown_lists(batch)
        return self._apply(batch, refs, lists, max(now_us, self.committed_at_us + 1))

    def content_at(self, address: Address) -> Content:
        """Return the content at an address, or raise `NotFound`."""
        match parse_address(address):
            case ObjectAddress(name) if name in self.objects:
                return self.objects[name].content
            case SlotAddress(batch, part, index) if index < len(self.slots(batch, part)):
                return self.slots(batch, part)[index]
            case ListAddress(list_id):
                raise InvalidInput(
                    f"{address!r} is a list, not content; read it with read_list({list_id!r}, ...)"
                )
            case _:
                raise NotFound(f"nothing is stored at {address!r} in space {self.name!r}")

    def holds(self, address: Address) -> bool:
        """Whether something is stored at an address."""
        match parse_address(address):
            case ObjectAddress(name):
                return name in self.objects
            case SlotAddress(batch, part, index):
                return index < len(self.slots(batch, part))
            case ListAddress(list_id):
                return list_id in self.lists

    def slots(self, batch: str, part: int) -> tuple[Content, ...]:
        """Return the contents of a body; none if it does not exist."""
        body = self.bodies.get((batch, part))
        return body.slots if body is not None else ()

    def lineage(self, list_id: str) -> list[ListInfo]:
        """Return a list and its ancestors, starting with itself."""
        found: list[ListInfo] = []
        next_id: str | None = list_id
        while next_id is not None and next_id in self.lists:
            found.append(self.lists[next_id].info)
            next_id = found[-1].parent
        return found

    def items(self, list_id: str, start: int, stop: int) -> list[Content | Address]:
        """Return items of a list, including those of its parents."""
        found: list[Content | Address] = []
        for run in locate(self.lineage(list_id), start, stop):
            stored = self.lists[run.list]
            found += stored.items[run.start - stored.info.start : run.stop - stored.info.start]
        return found

    def links(self, address: Address) -> Iterator[Address]:
        """Yield the addresses that the content or list at an address links to."""
        match parse_address(address):
            case ListAddress(list_id):
                stored = self.lists.get(list_id)
                if stored is not None:
                    if stored.info.parent is not None:
                        yield list_address(stored.info.parent)
                    for item in stored.items:
                        yield from [item] if isinstance(item, str) else content_links(item)
            case _:
                if self.holds(address):
                    yield from content_links(self.content_at(address))

    def scopes(self) -> set[str]:
        """Return the erasure scopes in use."""
        return {
            *(record.event.scope for record in self.records.values()),
            *(row.ref.scope for row in self.refs.values()),
            *(stored.info.scope for stored in self.lists.values()),
            *(body.scope for body in self.bodies.values()),
            *(text.scope for text in self.texts.values()),
        }

    def add_record(self, record: Record, salt: bytes) -> bool:
        """Add an event to the journal and the totals, unless its id already exists on that day."""
        key = (day_of(record.event.ts_us), record.event.id)
        if key in self.event_keys:
            return False
        self.event_keys.add(key)
        self.records[record.seq] = record
        self.salts[record.seq] = salt
        self.add_to_totals([record.event], sign=1)
        return True

    def remove_record(self, seq: int) -> None:
        """Remove an event from the journal and the totals; its leaf stays with the commit."""
        record = self.records.pop(seq)
        event = record.event
        commit = self.commits[record.batch]
        at = seq - commit.receipt.first_seq
        erased = {at: leaf("event", self.salts.pop(seq), event_form(event))}
        leaves = msgspec.structs.replace(commit.leaves, erased=commit.leaves.erased | erased)
        self.commits[record.batch] = msgspec.structs.replace(commit, leaves=leaves)
        self.event_keys.discard((day_of(event.ts_us), event.id))
        self.add_to_totals([event], sign=-1)

    def add_to_totals(self, events: Iterable[Event], *, sign: int) -> None:
        """Add events to the totals or subtract them; an empty total is removed."""
        for key, measures in deltas(events).items():
            old = self.rollups.get(key, [0] * len(measures))
            new = [a + sign * b for a, b in zip(old, measures, strict=True)]
            if any(new):
                self.rollups[key] = new
            else:
                self.rollups.pop(key, None)

    # Checking preconditions
    def _check_fences(self, batch: Batch, now_us: int) -> None:
        for fence in batch.fences:
            lease = self.leases.get(fence.lease)
            if lease is None or lease.token != fence.token or lease.expires_at_us <= now_us:
                raise Fenced(
                    f"lease {fence.lease!r} is no longer held with token {fence.token}; "
                    "nothing was written, claim it again"
                )

    def _check_addresses(self, batch: Batch) -> None:
        own_lists = {append.list for append in batch.lists}
        missing: dict[str, None] = {}
        dangling: list[Address] = []
        for name in batch.requires:
            if name not in self.objects and name not in batch.objects:
                missing[name] = None
        for address in addresses_in(batch):
            match parse_address(address):
                case ObjectAddress(name):
                    if name not in self.objects and name not in batch.objects:
                        missing[name] = None
                case SlotAddress(batch.id, _, _):
                    pass  # validate_batch checked that the batch contains it
                case ListAddress(list_id) if list_id in own_lists:
                    pass
                case _:
                    if not self.holds(address):
                        dangling.append(address)
        if missing:
            raise MissingObjects(tuple(missing))
        if dangling:
            raise NotFound(
                f"batch {batch.id!r} refers to {dangling[0]!r}, which is not stored; nothing was written"
            )

    def _updated_ref(self, change: RefChange) -> tuple[RefChange, int, bytes | None]:
        """Return the new version and value (``None``: deleted) of a ref."""
        row = self.refs.get(change.name)
        version = row.ref.version if row is not None else 0
        value = row.ref.value if row is not None and not row.deleted else None
        if change.expect == ABSENT:
            if value is not None:
                raise RefMoved(f"ref {change.name!r} exists at version {version}, expected it to be absent")
        elif change.expect != ANY and (value is None or version != change.expect):
            actual = f"is at version {version}" if value is not None else "does not exist"
            raise RefMoved(
                f"ref {change.name!r} {actual}, expected version {change.expect}; read it and try again"
            )
        match change.change:
            case Set(value=new):
                return change, version + 1, new
            case Delete():
                return change, version + 1 if value is not None else version, None
            case Add() as added:
                return change, version + 1, b"%d" % added.total(change.name, value)

    def _grown_lists(self, batch: Batch) -> list[tuple[Append, ListInfo]]:
        """Return the list after each append; later appends see earlier ones of the batch."""
        infos: dict[str, ListInfo] = {}
        grown: list[tuple[Append, ListInfo]] = []
        for append in batch.lists:
            info = self._info(append.list, infos)
            if info is None:
                info = self._new_list(append, infos)
            elif info.length != append.at:
                raise ListMoved(
                    f"list {append.list!r} has {info.length} items, expected {append.at}; "
                    "create a child list at the position you expected"
                )
            elif append.parent is not None and append.parent != info.parent:
                raise Conflict(
                    f"list {append.list!r} exists with parent {info.parent!r}, expected {append.parent!r}; "
                    "use another id for a new list"
                )
            elif info.scope != append.scope:
                raise ListMoved(f"list {append.list!r} has scope {info.scope!r}, not {append.scope!r}")
            info = msgspec.structs.replace(info, length=info.length + len(append.items))
            infos[append.list] = info
            grown.append((append, info))
        return grown

    def _new_list(self, append: Append, infos: dict[str, ListInfo]) -> ListInfo:
        if append.parent is None:
            if append.at:
                raise Conflict(
                    f"list {append.list!r} does not exist, so nothing can be appended at {append.at}"
                )
            return ListInfo(list=append.list, scope=append.scope, parent=None, start=0, length=0, depth=0)
        parent = self._info(append.parent, infos)
        if parent is None:
            raise NotFound(f"list {append.list!r} has the parent {append.parent!r}, which does not exist")
        if parent.length < append.at:
            raise Conflict(
                f"list {append.parent!r} has {parent.length} items, cannot branch off at {append.at}"
            )
        if parent.depth >= MAX_LIST_DEPTH:
            raise InvalidInput(
                f"list {append.parent!r} has {parent.depth} ancestors and cannot branch; flatten it first"
            )
        return ListInfo(
            list=append.list,
            scope=append.scope,
            parent=append.parent,
            start=append.at,
            length=append.at,
            depth=parent.depth + 1,
        )

    def _info(self, list_id: str, infos: dict[str, ListInfo]) -> ListInfo | None:
        stored = self.lists.get(list_id)
        return infos.get(list_id) or (stored.info if stored is not None else None)

    # Applying changes
    def _apply(
        self,
        batch: Batch,
        refs: list[tuple[RefChange, int, bytes | None]],
        lists: list[tuple[Append, ListInfo]],
        at_us: int,
    ) -> Receipt:
        first_seq = self.seq + 1
        self.seq += max(1, len(batch.events))
        self.committed_at_us = at_us
        for name, content in batch.objects.items():
            self.objects.setdefault(name, StoredObject(content, at_us))
        for name in (*batch.requires, *batch.objects, *_objects_in(batch)):
            self.objects[name].used_at_us = at_us
        body_leaves: list[bytes] = []
        for number, part in enumerate(batch.parts):
            (salt,) = new_salts(1)
            self.bodies[batch.id, number] = StoredBody(part.scope, part.slots, at_us, salt)
            body_leaves.append(leaf("body", salt, body_form(number, part.scope, part.slots)))
        appends: list[AppendLeaf] = []
        for append, info in lists:
            (salt,) = new_salts(1)
            stored = self.lists.setdefault(append.list, StoredList(info, self.seq, at_us, salt))
            appends.append(_append_leaf(append, stored))
            stored.info, stored.seq, stored.changed_at_us = info, self.seq, at_us
            stored.items += append.items
        ref_leaves = [self._set_ref(change, version, value, at_us) for change, version, value in refs]
        text_leaves = [self._set_text(text) for text in batch.texts]
        event_leaves: list[bytes] = []
        for seq, event in enumerate(batch.events, first_seq):
            record = Record(seq=seq, batch=batch.id, committed_at_us=at_us, event=event)
            (salt,) = new_salts(1)
            if self.add_record(record, salt):
                event_leaves.append(leaf("event", salt, event_form(event)))
        receipt = Receipt(
            batch=batch.id,
            first_seq=first_seq,
            last_seq=self.seq,
            committed_at_us=at_us,
            versions={change.name: version for change, version, _ in refs},
            sums={
                change.name: int(value or 0) for change, _, value in refs if isinstance(change.change, Add)
            },
            new_events=len(event_leaves),
        )
        leaves = CommitLeaves(
            events=len(event_leaves),
            bodies=tuple(body_leaves),
            appends=tuple(appends),
            refs=tuple(ref_leaves),
            texts=tuple(text_leaves),
        )
        digest = leaves.digest(batch.id, merkle_root(event_leaves))
        self.commits[batch.id] = CommitRow(receipt=receipt, leaves=leaves, digest=digest)
        return receipt

    def _set_ref(self, change: RefChange, version: int, value: bytes | None, at_us: int) -> bytes:
        """Set a ref and return its leaf."""
        ref = Ref(
            name=change.name,
            scope=change.scope,
            version=version,
            value=value or b"",
            links=change.change.links if isinstance(change.change, Set) else (),
            seq=self.seq,
            changed_at_us=at_us,
            listing=_listed(change.change, at_us),
        )
        (salt,) = new_salts(1)
        if version:  # otherwise a ref was deleted that never existed
            self.refs[change.name] = RefRow(ref=ref, deleted=value is None, salt=salt)
        form = ref_form(ref.name, ref.scope, version, value, ref.links, ref.listing)
        return leaf("ref", salt, form)

    def _set_text(self, text: Text) -> bytes:
        """Add or remove an index entry, and return its leaf."""
        (salt,) = new_salts(1)
        if text.source is None:
            self.texts.pop((text.collection, text.name), None)
            return leaf("text", salt, text_form(text))
        cuts: list[Tokens] = [row.tokens for row in self.texts.values() if row.collection == text.collection]
        self.texts[text.collection, text.name] = TextRow(
            collection=text.collection,
            tokens=cuts[0] if cuts else text.tokens,
            name=text.name,
            namespace=text.namespace,
            scope=text.scope,
            source=text.source,
            salt=salt,
        )
        return leaf("text", salt, text_form(text))


def _append_leaf(append: Append, stored: StoredList) -> AppendLeaf:
    list_id, at, count = append.list, append.at, len(append.items)
    parent = append.parent if at == stored.info.start else None
    form = append_form(list_id, append.scope, parent, at, count, items_hash(append.items))
    return AppendLeaf(list_tag(list_id, stored.salt), at, count, leaf("append", stored.salt, form))


def _listed(change: Set | Delete | Add, at_us: int) -> Listing | None:
    listing = change.listing if isinstance(change, Set) else None
    if listing is None or listing.at_us is not None:
        return listing
    return msgspec.structs.replace(listing, at_us=at_us)


def addresses_in(batch: Batch) -> Iterator[Address]:
    """Yield every address in a batch."""
    for append in batch.lists:
        yield from (item for item in append.items if isinstance(item, str))
    for event in batch.events:
        yield from event_links(event)
    for change in batch.refs:
        if isinstance(change.change, Set):
            yield from change.change.links
    yield from (text.source for text in batch.texts if text.source is not None)


def _objects_in(batch: Batch) -> Iterator[str]:
    for address in addresses_in(batch):
        place = parse_address(address)
        if isinstance(place, ObjectAddress):
            yield place.name
