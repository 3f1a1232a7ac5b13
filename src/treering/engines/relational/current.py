"""What a group of batches needs to know before it is decided: the present state of what it touches.

A commit works in three steps: read (here), decide (`decision`, without the database), write
(`writing`). Reading everything first keeps the decision pure, lets one rejected batch leave no trace
without rolling anything back, and costs PostgreSQL one exchange instead of one per row. The caller
holds the space's write lock, so what was read stays true until the transaction ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.address import ListAt, ObjectAt, SlotAt, parse_address
from treering.core.batch import Receipt
from treering.core.reach import event_links
from treering.engines.relational.session import ask_in_chunks
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from treering.core.address import Address
    from treering.core.batch import Batch
    from treering.engines.relational.session import Session


class RefState:
    """A ref as the group sees it; ``value`` is ``None`` when it is deleted."""

    __slots__ = ("scope", "value", "version")

    def __init__(self, version: int, value: bytes | None, scope: int | None) -> None:
        self.version = version
        self.value = value
        self.scope = scope


class ListState:
    """A list as the group sees it."""

    __slots__ = ("depth", "length", "no", "parent", "scope", "start")

    def __init__(self, no: int, scope: int, parent: int | None, start: int, length: int, depth: int) -> None:
        self.no = no
        self.scope = scope
        self.parent = parent
        self.start = start
        self.length = length
        self.depth = depth

    def with_length(self, length: int) -> ListState:
        """The same list, grown."""
        return ListState(self.no, self.scope, self.parent, self.start, length, self.depth)


class Current:
    """The present state, changed by the decision as batch after batch of a group is accepted."""

    def __init__(self, space: int, now_us: int) -> None:
        self.space = space
        self.now_us = now_us
        self.seq = 0
        self.committed_at_us = 0
        self.scopes_dropped = 0
        self.receipts: dict[str, Receipt] = {}
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}
        self.tokens: dict[str, int] = {}
        self.objects: set[str] = set()
        self.bodies: set[tuple[str, int]] = set()
        self.commit_numbers: list[int] = []
        self.list_numbers: dict[str, int] = {}
        self.scope_numbers: dict[str, int] = {}
        """Numbers kept ready for rows that do not exist yet."""


class Needs(msgspec.Struct):
    """What the batches of a group name."""

    batches: list[str]
    scopes: set[str]
    refs: set[str]
    lists: set[str]
    leases: set[str]
    objects: set[str]
    slots: set[str]

    @property
    def names_content(self) -> bool:
        """Whether anything is named that has to be there already."""
        return bool(self.objects or self.slots or self.lists)


class _StoredReceipt(msgspec.Struct, array_like=True):
    versions: dict[str, int]
    sums: dict[str, int]
    new_events: int


_decode_receipt = msgspec.msgpack.Decoder(_StoredReceipt).decode
_encode_receipt = msgspec.msgpack.Encoder().encode


def pack_receipt(versions: dict[str, int], sums: dict[str, int], new_events: int) -> bytes:
    """The part of a receipt that no column holds."""
    return _encode_receipt(_StoredReceipt(versions, sums, new_events))


def unpack_receipt(
    batch: str, first_seq: int, last_seq: int, committed_at_us: int, stored: bytes | None
) -> Receipt:
    """A receipt out of its row in ``commits``."""
    try:
        rest = _decode_receipt(bytes(stored)) if stored else _StoredReceipt({}, {}, last_seq - first_seq + 1)
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Corrupt(f"the receipt of commit {batch!r} cannot be read ({error}); run verify") from error
    return Receipt(
        batch=batch,
        first_seq=first_seq,
        last_seq=last_seq,
        committed_at_us=committed_at_us,
        versions=rest.versions,
        sums=rest.sums,
        new_events=rest.new_events,
    )


def needs_of(batch: Batch) -> Needs:
    """Everything that a batch names and that may be stored already."""
    needs = Needs([batch.id], set(), {change.name for change in batch.refs}, set(), set(), set(), set())
    for records in (batch.parts, batch.lists, batch.events, batch.refs, batch.texts):
        for record in records:
            needs.scopes.add(record.scope)
    for append in batch.lists:
        needs.lists.add(append.list)
        if append.parent is not None:
            needs.lists.add(append.parent)
    for fence in batch.fences:
        needs.leases.add(fence.lease)
    needs.objects.update(batch.requires, batch.objects)
    own = f"s:{batch.id}:"
    for address in named_addresses(batch):
        if not address.startswith(own):
            match parse_address(address):
                case ObjectAt(name):
                    needs.objects.add(name)
                case SlotAt(other, _, _):
                    needs.slots.add(other)
                case ListAt(list_id):
                    needs.lists.add(list_id)
    return needs


def together(all_needs: Sequence[Needs]) -> Needs:
    """What a group of batches needs."""
    if len(all_needs) == 1:
        return all_needs[0]
    first = Needs([], set(), set(), set(), set(), set(), set())
    for needs in all_needs:
        first.batches += needs.batches
        first.scopes |= needs.scopes
        first.refs |= needs.refs
        first.lists |= needs.lists
        first.leases |= needs.leases
        first.objects |= needs.objects
        first.slots |= needs.slots
    return first


def named_addresses(batch: Batch) -> Iterator[Address]:
    """Every address that stands anywhere in a batch."""
    for append in batch.lists:
        for item in append.items:
            if isinstance(item, str):
                yield item
    for event in batch.events:
        if event.body is not None or event.links:
            yield from event_links(event)
    for change in batch.refs:
        yield from getattr(change.change, "links", ())
    for text in batch.texts:
        if text.source is not None:
            yield text.source


class ScopeNumbers:
    """The numbers of scopes that were committed before, remembered between commits.

    A scope's row goes when nothing is left under it, and its number with it; ``scopes_dropped`` of the
    space counts that, and a count that differs makes everything remembered worthless.
    """

    LIMIT = 10_000

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, dict[str, int]]] = {}

    def known(self, space: int) -> tuple[int, dict[str, int]]:
        """The count at which they were remembered, and the numbers."""
        return self._known.get(space, (-1, {}))

    def remember(self, current: Current) -> None:
        """Keep the numbers of scopes that were there when the space was locked."""
        dropped, numbers = self.known(current.space)
        if dropped != current.scopes_dropped or len(numbers) > self.LIMIT:
            numbers = {}
        numbers |= current.scopes
        self._known[current.space] = (current.scopes_dropped, numbers)


def read_current(
    session: Session, space: int, needs: Needs, now_us: int, remembered: ScopeNumbers
) -> Current:
    """Lock the space and read the state behind ``needs``.

    Everything is asked before the first answer is looked at, so it is one exchange with a server; only
    numbers for scopes and lists that turn out to be new need another.
    """
    counters = session.lock(space)
    receipts = ask_in_chunks(
        session,
        "SELECT batch, first_seq, last_seq, committed_at_us, receipt FROM commits "
        "WHERE space = ? AND batch IN (@)",
        (space,),
        needs.batches,
    )
    remembered_at, known = remembered.known(space)
    strange = [name for name in needs.scopes if name not in known]
    scopes = _asked(session, "scope", "name, no", "name", space, strange)
    refs = _asked(session, "ref", "name, version, value, scope", "name", space, needs.refs)
    lists = _asked(session, "list", "id, no, scope, parent, start, length, depth", "id", space, needs.lists)
    leases = _asked(session, "lease", "name, token, expires_at_us", "name", space, needs.leases)
    objects = _asked(session, "object", "name", "name", space, list(map(bytes.fromhex, needs.objects)))
    bodies = ask_in_chunks(session, _BODIES, (space,), list(needs.slots)) if needs.slots else ()
    current = Current(space, now_us)
    current.commit_numbers = session.numbers("commits", len(needs.batches))
    ((current.seq, current.committed_at_us, current.scopes_dropped),) = counters
    for row in receipts:
        current.receipts[row[0]] = unpack_receipt(*row)
    current.scopes.update(scopes)
    if current.scopes_dropped == remembered_at:
        current.scopes.update({name: known[name] for name in needs.scopes if name in known})
    elif known:
        current.scopes.update(_asked(session, "scope", "name, no", "name", space, needs.scopes))
    if strange or current.scopes_dropped != remembered_at:
        remembered.remember(current)
    for name, version, value, scope in refs:
        current.refs[name] = RefState(version, None if value is None else bytes(value), scope)
    for list_id, *state in lists:
        current.lists[list_id] = ListState(*state)
    for name, token, expires in leases:
        if expires > now_us:
            current.tokens[name] = token
    for (name,) in objects:
        current.objects.add(bytes(name).hex())
    for batch, key in bodies:
        current.bodies.add((batch, key & 0xFFFF))
    new_scopes = [name for name in needs.scopes if name not in current.scopes]
    current.scope_numbers = _numbered(session, "scope", new_scopes)
    current.list_numbers = _numbered(
        session, "list", [name for name in needs.lists if name not in current.lists]
    )
    return current


def _numbered(session: Session, table: str, names: list[str]) -> dict[str, int]:
    return dict(zip(names, session.numbers(table, len(names)), strict=True)) if names else {}


def _asked(
    session: Session, table: str, columns: str, key: str, space: int, values: Collection[Any]
) -> Iterable[Any]:
    if not values:
        return ()
    sql = f"SELECT {columns} FROM {table} WHERE space = ? AND {key} IN (@)"
    return ask_in_chunks(session, sql, (space,), list(values))


_BODIES: Final = (
    "SELECT c.batch, b.key FROM commits c JOIN body b ON b.key >= c.no * 65536 AND b.key < (c.no + 1) * 65536"
    " WHERE c.space = ? AND c.batch IN (@)"
)
