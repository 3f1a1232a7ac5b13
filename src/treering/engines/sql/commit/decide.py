"""The decision: may this batch commit, and what will it have done? And the state that it is decided on.

`decide` is pure, and the only place that decides. The batches of a group are decided one after another
against one `CommitState`, each seeing the effects of those before it. A batch is checked completely before it
changes the state, so a rejected batch leaves no trace and does not affect its neighbours.

**Invariant:** the result depends on the state alone, not on where it came from. A batch that is accepted on a
cached state is accepted on a freshly read one, with the same receipt. A rejection or a repeated batch on a
cached state may be wrong, because the cache may be stale; so callers decide those again on a fresh one.

`read_state` fills the state under the lock of the space, so it stays true until the transaction ends;
everything is asked in one go, which costs a server one round trip and not one per row. `cached_state` fills
it from the `SpaceCache`, without a single query.

A scope keeps its number, and a body or object stays stored, until something is removed (``scopes_dropped``
moves); a ref or list is where the last commit left it until somebody else commits (``seq`` moves). On SQLite
the cache is valid as long as these counters are, and so is the time of the last commit, because a store
restored from a backup may reach the same ``seq`` again. On PostgreSQL, where other writers are common, the
write itself compares what the decision relied on (`engines.postgres.guarded`), row by row.

**Invariant:** something enters the cache only after the transaction that made it true has ended. What is
decided on it is written only if it is still true: the counters are compared under the lock by `read_state`
or by the insert into SQLite's commit log, the rows by a guarded write.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from treering.core.batch import ABSENT, ANY, Add, Delete, Receipt, Set
from treering.core.content import list_address
from treering.core.digests import first_of
from treering.core.records import MAX_LIST_DEPTH
from treering.engines.sql.rows import REF_SELECT, list_checksum, receipt_checksum, ref_of
from treering.engines.sql.session import query_in_chunks
from treering.errors import (
    Conflict,
    Corrupt,
    Fenced,
    InvalidInput,
    ListMoved,
    MissingObjects,
    NotFound,
    RefMoved,
    TreeringError,
)

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterable, Sequence

    from treering.core.batch import Append, Batch, RefChange
    from treering.engines.sql.commit.write import Dependencies, EncodedBatch
    from treering.engines.sql.session import Session


class AcceptedBatch:
    """A batch that will be written, with its receipt and the new states of its refs and lists."""

    __slots__ = ("appends", "encoded", "receipt", "refs")

    def __init__(
        self,
        encoded: EncodedBatch,
        receipt: Receipt,
        refs: list[tuple[RefChange, RefState]],
        appends: list[tuple[Append, ListState]],
    ) -> None:
        self.encoded = encoded
        self.receipt = receipt
        self.refs = refs
        self.appends = appends


def decide_all(
    state: CommitState, group: Iterable[EncodedBatch]
) -> list[AcceptedBatch | Receipt | TreeringError]:
    """Decide one batch after another: accepted, committed before (its receipt), or rejected (the error)."""
    decisions: list[AcceptedBatch | Receipt | TreeringError] = []
    for encoded in group:
        try:
            decisions.append(decide(state, encoded))
        except TreeringError as rejection:
            decisions.append(rejection)
    return decisions


def decide(state: CommitState, encoded: EncodedBatch) -> AcceptedBatch | Receipt:
    """Accept a batch and apply it to ``state``, or return the receipt of its first commit.

    Raises the error that the batch has to be rejected with.
    """
    batch = encoded.batch
    if state.damages:
        _refuse_damaged(state, batch)
    repeated = state.receipts.get(batch.id)
    if repeated is not None:
        return repeated
    if batch.fences:
        _check_fences(state, batch)
    _check_addresses(state, encoded)
    refs = [(change, _move(state, change)) for change in batch.refs]
    appends = _append(state, encoded) if batch.lists else []
    return _apply(state, encoded, refs, appends)


def _refuse_damaged(state: CommitState, batch: Batch) -> None:
    """Refuse what would be decided on a damaged row, or would replace it by one that looks sound."""
    rows = [("commit", batch.id)]
    rows += [("ref", change.name) for change in batch.refs]
    rows += [("list", append.list) for append in batch.lists]
    for row in rows:
        if row in state.damages:
            raise state.damages[row]


def _check_fences(state: CommitState, batch: Batch) -> None:
    for fence in batch.fences:
        if state.tokens.get(fence.lease) != fence.token:
            raise Fenced(
                f"lease {fence.lease!r} is no longer held with token {fence.token}; "
                "nothing was written. Claim it again"
            )


def _check_addresses(state: CommitState, encoded: EncodedBatch) -> None:
    dependencies = encoded.dependencies
    if dependencies.objects:
        missing = tuple(name for name in dependencies.objects if name not in state.objects)
        if missing:
            raise MissingObjects(missing)
    if dependencies.slots or dependencies.linked:
        others = [
            f"s:{batch}:{part}" for batch, part in dependencies.slots if (batch, part) not in state.bodies
        ]
        others += [list_address(name) for name in dependencies.linked if name not in state.lists]
        if others:
            raise NotFound(
                f"batch {encoded.batch.id!r} links to {others[0]!r}, which is not stored; nothing was written"
            )


def _move(state: CommitState, change: RefChange) -> RefState:
    """Return the state of a ref after a change, once the change's expectation is met."""
    ref = state.refs.get(change.name)
    version, value, scope = (0, None, None) if ref is None else (ref.version, ref.value, ref.scope)
    expect = change.expect
    if expect == ABSENT:
        if value is not None:
            raise RefMoved(f"ref {change.name!r} already exists, at version {version}")
    elif expect != ANY and (value is None or expect != version):
        actual = f"is at version {version}" if value is not None else "does not exist"
        raise RefMoved(f"ref {change.name!r} {actual}, expected version {expect}; read it again and retry")
    move = change.change
    if isinstance(move, Set):
        return RefState(version + 1, bytes(move.value), scope)
    if isinstance(move, Delete):
        return RefState(version + 1 if value is not None else version, None, scope)
    return RefState(version + 1, b"%d" % move.total(change.name, value), scope)


def _append(state: CommitState, encoded: EncodedBatch) -> list[tuple[Append, ListState]]:
    """Return the state of each list that the batch appends to, after the append."""
    appends: list[tuple[Append, ListState]] = []
    appended: dict[str, ListState] = {}
    for append, salt in zip(encoded.batch.lists, encoded.salts.lists, strict=True):
        parent = None
        if append.parent is not None:
            parent = appended.get(append.parent) or state.lists.get(append.parent)
        target = appended.get(append.list) or state.lists.get(append.list)
        if target is None:
            target = _create_list(state, append, parent, salt)
        elif target.length != append.at:
            raise ListMoved(
                f"list {append.list!r} has {target.length} items, expected {append.at}; "
                "start a child list at the position you know"
            )
        elif append.parent is not None and (parent is None or parent.no != target.parent):
            raise Conflict(f"list {append.list!r} exists with a parent other than {append.parent!r}")
        elif target.scope != _scope_number(state, append.scope):
            raise ListMoved(f"list {append.list!r} belongs to a scope other than {append.scope!r}")
        target = target.with_length(append.at + len(append.items))
        appended[append.list] = target
        appends.append((append, target))
    return appends


def _create_list(state: CommitState, append: Append, parent: ListState | None, salt: bytes) -> ListState:
    no = state.list_numbers[append.list]
    scope = _scope_number(state, append.scope)
    if append.parent is None:
        if append.at:
            raise Conflict(f"list {append.list!r} does not exist, so it has no position {append.at}")
        return ListState(no, scope, None, 0, 0, 0, salt)
    if parent is None:
        raise NotFound(f"list {append.list!r} names the parent {append.parent!r}, which does not exist")
    if parent.length < append.at:
        raise Conflict(f"list {append.parent!r} has {parent.length} items; cannot branch off at {append.at}")
    if parent.depth >= MAX_LIST_DEPTH:
        raise InvalidInput(f"list {append.parent!r} is {parent.depth} parents deep; flatten it first")
    return ListState(no, scope, parent.no, append.at, append.at, parent.depth + 1, salt)


def _scope_number(state: CommitState, scope: str) -> int:
    number = state.scopes.get(scope)
    return state.scope_numbers[scope] if number is None else number


def _apply(
    state: CommitState,
    encoded: EncodedBatch,
    refs: list[tuple[RefChange, RefState]],
    appends: list[tuple[Append, ListState]],
) -> AcceptedBatch:
    """Number the batch, and let the next ones see what it does."""
    batch = encoded.batch
    first_seq = state.seq + 1
    state.seq += len(batch.events) or 1
    state.committed_at_us = max(state.now_us, state.committed_at_us + 1)
    versions: dict[str, int] = {}
    sums: dict[str, int] = {}
    for change, ref in refs:
        versions[change.name] = ref.version
        if isinstance(change.change, Add):
            sums[change.name] = int(ref.value or b"0")
        state.refs[change.name] = ref
    receipt = Receipt(
        batch=batch.id,
        first_seq=first_seq,
        last_seq=state.seq,
        committed_at_us=state.committed_at_us,
        versions=versions,
        sums=sums,
        new_events=len(batch.events),
    )
    state.receipts[batch.id] = receipt
    state.objects.update(batch.objects)
    for part in range(len(batch.parts)):
        state.bodies.add((batch.id, part))
    for append, target in appends:
        state.lists[append.list] = target
    state.written += 1
    return AcceptedBatch(encoded, receipt, refs, appends)


CACHED_SCOPES: Final = 10_000
"""How many scopes of a space are cached at most."""
CACHED_STATES: Final = 4_096
"""How many refs, lists, bodies and objects of a space are cached at most, each."""
VALUE_BYTES: Final = 512
"""A ref with a longer value is not cached."""
EXPECT_OTHERS: Final = 16
"""For how many commits other writers are expected after one was noticed."""


class RefState:
    """A ref as the decision sees it; ``value`` is ``None`` when it is deleted."""

    __slots__ = ("scope", "value", "version")

    def __init__(self, version: int, value: bytes | None, scope: int | None) -> None:
        self.version = version
        self.value = value
        self.scope = scope


class ListState:
    """A list as the decision sees it."""

    __slots__ = ("depth", "length", "no", "parent", "salt", "scope", "start")

    def __init__(
        self, no: int, scope: int, parent: int | None, start: int, length: int, depth: int, salt: bytes
    ) -> None:
        self.no = no
        self.scope = scope
        self.parent = parent
        self.start = start
        self.length = length
        self.depth = depth
        self.salt = salt

    def with_length(self, length: int) -> ListState:
        """Return the same list with another length."""
        return ListState(self.no, self.scope, self.parent, self.start, length, self.depth, self.salt)


class CommitState:
    """The state that a group is decided on, updated by the decision as it accepts batch after batch."""

    __slots__ = (
        "bodies",
        "commit_numbers",
        "committed_at_us",
        "damages",
        "expected_counters",
        "list_numbers",
        "lists",
        "now_us",
        "objects",
        "receipts",
        "refs",
        "relied_lists",
        "relied_refs",
        "scope_numbers",
        "scopes",
        "seq",
        "space",
        "tokens",
        "written",
    )

    def __init__(self, space: int, now_us: int) -> None:
        self.space = space
        self.now_us = now_us
        self.seq = 0
        self.committed_at_us = 0
        self.expected_counters: tuple[int, int, int] | None = None
        """The counters that the write has to find, if they were taken from the cache and not read."""
        self.receipts: dict[str, Receipt] = {}
        self.damages: dict[tuple[str, str], Corrupt] = {}
        """Rows that were read and are not as they were written, by table and name."""
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}
        self.relied_refs: dict[str, RefState] = {}
        self.relied_lists: dict[int, ListState] = {}
        """What the decision is made on, before it changes that: refs by name, lists by number."""
        self.tokens: dict[str, int] = {}
        """The fencing tokens of the leases that are held."""
        self.objects: set[str] = set()
        self.bodies: set[tuple[str, int]] = set()
        self.commit_numbers: list[int] = []
        """Numbers for the commits; where there are none, a commit has the number of its first event."""
        self.written = 0
        """How many commits the group has made."""
        self.list_numbers: dict[str, int] = {}
        self.scope_numbers: dict[str, int] = {}
        """Numbers for lists and scopes that do not exist yet."""

    def rely_on_all(self) -> None:
        """Remember the refs and lists as they are now, for a write that compares them."""
        self.relied_refs.update(self.refs)
        self.relied_lists.update((each.no, each) for each in self.lists.values())

    def advance(self) -> tuple[str, tuple[int, ...]]:
        """Return the statement that moves the counters of the locked space."""
        return _ADVANCE, (self.seq, self.committed_at_us, self.space)


class SpaceCache:
    """What this process knows of one space, and the counters at which it was true."""

    __slots__ = (
        "bodies",
        "commit_no",
        "committed_at_us",
        "counters_first",
        "lists",
        "objects",
        "others",
        "previous_no",
        "refs",
        "removals",
        "scopes",
        "seq",
    )

    def __init__(self, *, counters_first: bool) -> None:
        self.counters_first = counters_first
        """Whether `read_state` looks at the counters first, and then asks only for what is not cached."""
        self.seq: int = -1
        """-1 while nothing here may be used."""
        self.removals: int = -1
        self.committed_at_us: int = 0
        self.others = 0
        """For how many more commits other writers are expected, since one was noticed."""
        self.previous_no = self.commit_no = 0
        """The number of the last commit of this process, and the highest one before it."""
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}
        self.bodies: set[tuple[str, int]] = set()
        self.objects: set[str] = set()

    def validate(self, seq: int, committed_at_us: int, removals: int) -> None:
        """Drop what the counters of the locked space show to be out of date.

        Where the write compares every row that the decision relied on (`counters_first` is false), commits of
        others invalidate nothing.
        """
        if (seq, committed_at_us, removals) == (self.seq, self.committed_at_us, self.removals):
            return
        if self.seq >= 0 and seq != self.seq:
            self.others = EXPECT_OTHERS
        if seq <= self.seq or removals != self.removals:
            self.clear()
        elif self.counters_first:
            self.refs.clear()
            self.lists.clear()
        self.seq, self.committed_at_us, self.removals = seq, committed_at_us, removals

    def clear(self) -> None:
        """Forget everything."""
        self.seq = -1
        for known in (self.scopes, self.bodies, self.objects, self.refs, self.lists):
            known.clear()

    def update(self, state: CommitState) -> None:
        """Take over the state after a commit. Call it when the transaction has ended."""
        self.seq = -1  # a fork or an interrupt may happen in between
        if len(self.scopes) > CACHED_SCOPES:
            self.scopes.clear()
        if len(self.refs) > CACHED_STATES or len(self.lists) > CACHED_STATES:
            self.refs.clear()
            self.lists.clear()
        if len(self.bodies) > CACHED_STATES:
            self.bodies.clear()
        if len(self.objects) > CACHED_STATES:
            self.objects.clear()
        self.scopes.update(state.scopes)
        self.lists.update(state.lists)
        for name, ref in state.refs.items():
            if ref.value is None or len(ref.value) <= VALUE_BYTES:
                self.refs[name] = ref
            else:
                self.refs.pop(name, None)
        self.bodies.update(state.bodies)
        self.objects.update(state.objects)
        if state.commit_numbers:
            self.previous_no = state.commit_numbers[0] - 1
            self.commit_no = self.previous_no + state.written
        self.committed_at_us = state.committed_at_us
        self.seq = state.seq


class SpaceCaches:
    """The caches of all spaces of a store."""

    def __init__(self, *, counters_first: bool) -> None:
        self._counters_first = counters_first
        self._spaces: dict[int, SpaceCache] = {}

    def of(self, space: int) -> SpaceCache:
        """Return the cache of a space."""
        cache = self._spaces.get(space)
        if cache is None:
            cache = self._spaces[space] = SpaceCache(counters_first=self._counters_first)
        return cache

    def invalidate_others(self, space: int) -> None:
        """Invalidate the caches of all other spaces: another process has committed."""
        for number, cache in list(self._spaces.items()):
            if number != space:
                cache.seq = -1

    def drop(self, space: int) -> None:
        """Drop the cache of a space; a commit in progress keeps what it has taken from it."""
        self._spaces.pop(space, None)


def invalidate_caches(session: Session, space: int) -> None:
    """Invalidate the caches that all processes have of a space, as part of this transaction.

    Whatever changes a space other than by a commit has to do this.
    """
    session.run("UPDATE space SET scopes_dropped = scopes_dropped + 1 WHERE no = ?", (space,))


def cached_state(
    cache: SpaceCache, space: int, dependencies: Dependencies, now_us: int
) -> CommitState | None:
    """Return the state behind ``dependencies`` from the cache, or ``None`` if not all of it is cached.

    It is only as true as the cache is, so the write has to compare what the decision relied on. Receipts are
    not cached, so whether a batch is a repetition shows when it is written.
    """
    if cache.seq < 0 or dependencies.leases:
        return None
    if not (dependencies.slots.keys() <= cache.bodies and dependencies.objects.keys() <= cache.objects):
        return None
    state = CommitState(space, now_us)
    state.bodies.update(dependencies.slots)
    state.objects.update(dependencies.objects)
    if (
        _take(dependencies.scopes, cache.scopes, state.scopes)
        or _take(dependencies.refs, cache.refs, state.refs)
        or _take(dependencies.lists, cache.lists, state.lists)
    ):
        return None
    state.seq = cache.seq
    state.committed_at_us = cache.committed_at_us
    state.expected_counters = (cache.seq, cache.committed_at_us, cache.removals)
    state.rely_on_all()
    return state


def read_state(
    session: Session, space: int, dependencies: Dependencies, now_us: int, cache: SpaceCache
) -> CommitState:
    """Lock the space and read the state behind ``dependencies``.

    Everything is asked before the first answer is looked at, so a server needs one round trip; numbers for
    new scopes and lists need another. Where queries are cheap (`SpaceCache.counters_first`), the counters
    are looked at first, and what is cached is not asked for.
    """
    state = CommitState(space, now_us)
    counters, receipts = session.lock(space, dependencies.batches)
    scope_names: Iterable[str] = dependencies.scopes
    ref_names: Iterable[str] = dependencies.refs
    list_ids: Iterable[str] = dependencies.lists
    object_names, slots = dependencies.objects.keys(), dependencies.slots.keys()
    if cache.counters_first:
        ((seq, committed_at_us, removals),) = counters
        cache.validate(seq, committed_at_us, removals)
        scope_names = _take(dependencies.scopes, cache.scopes, state.scopes)
        ref_names = _take(dependencies.refs, cache.refs, state.refs)
        list_ids = _take(dependencies.lists, cache.lists, state.lists)
        state.objects = object_names & cache.objects
        state.bodies = slots & cache.bodies
        object_names, slots = object_names - state.objects, slots - state.bodies
    scopes = _query(session, _SCOPES, space, scope_names)
    refs = _query(session, _REFS, space, ref_names)
    lists = _query(session, _LISTS, space, list_ids)
    leases = _query(session, _LEASES, space, dependencies.leases)
    objects = _query(session, _OBJECTS, space, map(bytes.fromhex, object_names))
    bodies = _query(session, _BODIES, space, {batch for batch, _ in slots})
    if cache.counters_first:
        state.commit_numbers = session.numbers("commits", len(dependencies.batches))
    ((state.seq, state.committed_at_us, removals),) = counters
    if not cache.counters_first:
        cache.validate(state.seq, state.committed_at_us, removals)
    for row in receipts:
        with _noted(state, "commit", row[0]):
            state.receipts[row[0]] = receipt_of(row)
    state.scopes.update(scopes)
    for scope, *row in refs:
        with _noted(state, "ref", row[0]):
            ref = ref_of(tuple(row))
            state.refs[ref.name] = RefState(ref.version, None if row[3] is None else ref.value, scope)
    for list_id, *columns, scope, seq, check in lists:
        state.lists[list_id] = found = ListState(*columns)
        with _noted(state, "list", list_id):
            check_list(space, list_id, found, scope, seq, check)
    for name, token, expires in leases:
        if expires > now_us:
            state.tokens[name] = token
    for (name,) in objects:
        state.objects.add(bytes(name).hex())
    for batch, key in bodies:
        state.bodies.add((batch, key & 0xFFFF))
    if len(state.scopes) < len(dependencies.scopes):
        state.scope_numbers = _number_new(session, "scope", dependencies.scopes, state.scopes)
    if len(state.lists) < len(dependencies.lists):
        state.list_numbers = _number_new(session, "list", dependencies.lists, state.lists)
    return state


@contextmanager
def _noted(state: CommitState, table: str, name: str) -> Generator[None]:
    """Note a damaged row, so that only the batches that need it are rejected."""
    try:
        yield
    except Corrupt as error:
        state.damages[table, name] = error


def check_list(space: int, list_id: str, found: ListState, scope: str, seq: int, check: int) -> None:
    """Raise `Corrupt` if the row of a list is not as it was written."""
    try:
        is_good = check == list_checksum(
            space, found.no, list_id, scope, found.parent, found.start, found.length, found.depth, seq,
            found.salt,
        )  # fmt: skip
    except (TypeError, ValueError):
        is_good = False
    if not is_good:
        raise Corrupt(
            f"list {list_id!r} is not as it was written: its checksum differs; "
            "run verify, then restore it from a backup or a copy"
        )


Cached = TypeVar("Cached")


def _take(names: Iterable[str], cached: dict[str, Cached], taken: dict[str, Cached]) -> list[str]:
    """Copy what is cached under these names; return the other names."""
    missing: list[str] = []
    for name in names:
        if name in cached:
            taken[name] = cached[name]
        else:
            missing.append(name)
    return missing


def _query(session: Session, sql: str, space: int, values: Iterable[Any]) -> Iterable[Any]:
    wanted = list(values)
    return query_in_chunks(session, sql, (space,), wanted) if wanted else ()


def _number_new(session: Session, table: str, names: Iterable[str], known: Container[str]) -> dict[str, int]:
    new = [name for name in names if name not in known]
    return dict(zip(new, session.numbers(table, len(new)), strict=True))


def receipt_of(row: Sequence[Any]) -> Receipt:
    """Return the receipt in a row of `RECEIPTS`, or raise `Corrupt` if it is not as it was written."""
    *values, check = row
    try:
        is_good = first_of(check) == receipt_checksum(*values)
    except (TypeError, ValueError):
        is_good = False
    if not is_good:
        raise Corrupt(
            f"commit {values[0]!r} is not as it was written: its checksum differs; "
            "run verify, then restore it from a backup or a copy"
        )
    batch, _, *rest = values
    return unpack_receipt(batch, *rest)


class _StoredReceipt(msgspec.Struct, array_like=True):
    versions: dict[str, int]
    sums: dict[str, int]
    new_events: int


_decode_receipt = msgspec.msgpack.Decoder(_StoredReceipt).decode
_encode_receipt = msgspec.msgpack.Encoder().encode


def pack_receipt(versions: dict[str, int], sums: dict[str, int], new_events: int) -> bytes:
    """Encode the part of a receipt that has no column of its own."""
    return _encode_receipt(_StoredReceipt(versions, sums, new_events))


def unpack_receipt(
    batch: str, first_seq: int, last_seq: int, committed_at_us: int, stored: bytes | None
) -> Receipt:
    """Decode a receipt from its row in ``commits``."""
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


_ADVANCE: Final = "UPDATE space SET seq = ?, committed_at_us = ? WHERE no = ?"
_SCOPES: Final = "SELECT name, no FROM scope WHERE space = ? AND name IN (@)"
_REFS: Final = REF_SELECT.replace("SELECT", "SELECT r.scope,", 1) + " WHERE r.space = ? AND r.name IN (@)"
_LISTS: Final = (
    "SELECT l.id, l.no, l.scope, l.parent, l.start, l.length, l.depth, l.salt, s.name, l.seq, l.checksum "
    "FROM list l LEFT JOIN scope s ON s.space = l.space AND s.no = l.scope WHERE l.space = ? AND l.id IN (@)"
)
_LEASES: Final = "SELECT name, token, expires_at_us FROM lease WHERE space = ? AND name IN (@)"
_OBJECTS: Final = "SELECT name FROM object WHERE space = ? AND name IN (@)"
_BODIES: Final = (
    "SELECT c.batch, b.key FROM commits c "
    "JOIN body b ON b.space = c.space AND b.key >= c.no * 65536 AND b.key < (c.no + 1) * 65536 "
    "WHERE c.space = ? AND c.batch IN (@)"
)
