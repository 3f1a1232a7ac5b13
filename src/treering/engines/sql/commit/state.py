"""What a group of batches needs to know before it is decided: the present state of what it touches.

A commit works in three steps: read (here), decide (`decision`, without the database), write
(`writing`). Reading everything first keeps the decision pure, lets one rejected batch leave no trace
without rolling anything back, and costs PostgreSQL one exchange instead of one per row. The caller
holds the space's write lock, so what was read stays true until the transaction ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from treering.core.batch import Receipt
from treering.engines.sql.session import query_in_chunks
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from treering.engines.sql.commit.encode import Dependencies
    from treering.engines.sql.session import Session


# -----------------------------------------------------------------------------------------------------------
# What this process remembers of a space between its commits, so that it need not ask again.
#
# A scope keeps its number, and a body or object stays, as long as nothing is removed from the space; a ref
# or list is where the last commit left it as long as nobody else has committed. The counters of the space
# tell both: ``seq`` moves with every commit, ``scopes_dropped`` with every removal. (The time of the last
# commit is compared as well: a server that was set back, and lost commits by that, may have come to the
# same ``seq`` again.) **Invariant:** something is remembered only after the transaction that made it true
# has ended, and used only under the lock, when the counters say that it holds.
#
# Over a network the counters are not read first, as that would cost an exchange. There a commit is decided
# from what is remembered, and its first statement makes the transaction fail if the counters are others
# (`Current.advanced`). After such a miss the next commits ask again, until `PATIENCE` of them in a row have
# found the space as this process left it: several writers of one space do not pay for guesses.
#
# Numbers for commits are kept in reserve as well. They are taken under the lock, and given up as soon as the
# counters are others, so within a space a later commit always has the greater number.


SCOPES: Final = 10_000
STATES: Final = 4_096
"""How many scopes, and how many refs, lists, bodies and objects each, are remembered of a space at most."""

VALUE_BYTES: Final = 512
"""A ref that holds more is not remembered."""

PATIENCE: Final = 8
RESERVE: Final = 256
"""How many numbers of commits are taken ahead."""


def invalidate_caches(session: Session, space: int) -> None:
    """Say, in the transaction that does it, that something changes otherwise than by a commit.

    From then on nobody uses what it remembers of the space, nor the numbers that it has in reserve.
    """
    session.run("UPDATE space SET scopes_dropped = scopes_dropped + 1 WHERE no = ?", (space,))


class SpaceCache:
    """What is remembered of one space, and the counters at which it was so."""

    __slots__ = (
        "behind_no",
        "bodies",
        "commit_no",
        "commit_numbers",
        "committed_at_us",
        "counters_first",
        "doubts",
        "lists",
        "objects",
        "refs",
        "removals",
        "scopes",
        "seq",
    )

    def __init__(self, *, counters_first: bool) -> None:
        self.counters_first = counters_first
        self.seq: int = -1
        self.removals: int = -1
        self.committed_at_us: int = 0
        self.doubts = 0
        """How many commits more have to find everything as it was left before one is decided unasked."""
        self.behind_no = self.commit_no = 0
        """The number of the last commit here, and the one that was the greatest before it."""
        self.commit_numbers: list[int] = []
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}
        self.bodies: set[tuple[str, int]] = set()
        self.objects: set[str] = set()

    def check(self, seq: int, committed_at_us: int, removals: int) -> None:
        """Forget what the counters of the locked space show to be out of date."""
        if (seq, committed_at_us, removals) == (self.seq, self.committed_at_us, self.removals):
            if self.doubts:
                self.doubts -= 1
            return
        if seq <= self.seq or removals != self.removals:
            self.scopes.clear()
            self.bodies.clear()
            self.objects.clear()
        if self.seq >= 0:
            self.doubts = PATIENCE
        self.refs.clear()
        self.lists.clear()
        self.commit_numbers = []
        self.seq, self.committed_at_us, self.removals = seq, committed_at_us, removals

    def keep(self, current: CommitState, batches: int) -> None:
        """Remember what a commit of so many batches that has come through left behind."""
        self.seq = -1  # until the rest is there: a fork or an interrupt may happen in between
        if len(self.scopes) > SCOPES:
            self.scopes.clear()
        self.scopes.update(current.scopes)
        if len(self.refs) > STATES or len(self.lists) > STATES:
            self.refs.clear()
            self.lists.clear()
        self.lists.update(current.lists)
        for name, state in current.refs.items():
            if state.value is None or len(state.value) <= VALUE_BYTES:
                self.refs[name] = state
            else:
                self.refs.pop(name, None)
        self.hold(current.bodies, current.objects)
        self.behind_no = current.commit_numbers[0] - 1
        self.commit_no = self.behind_no + current.written
        self.commit_numbers = current.commit_numbers[batches:]
        self.committed_at_us = current.committed_at_us
        self.seq = current.seq

    def hold(self, bodies: Iterable[tuple[str, int]], objects: Iterable[str]) -> None:
        """Remember that these are stored."""
        if len(self.bodies) > STATES:
            self.bodies.clear()
        if len(self.objects) > STATES:
            self.objects.clear()
        self.bodies.update(bodies)
        self.objects.update(objects)


class SpaceCaches:
    """What is remembered of each space; ``counters_first`` where answers come at once."""

    def __init__(self, *, counters_first: bool) -> None:
        self._counters_first = counters_first
        self._spaces: dict[int, SpaceCache] = {}

    def of(self, space: int) -> SpaceCache:
        """What is remembered of a space."""
        memory = self._spaces.get(space)
        if memory is None:
            memory = self._spaces[space] = SpaceCache(counters_first=self._counters_first)
        return memory

    def doubt_others(self, space: int) -> None:
        """Take nothing for granted that is remembered of other spaces: someone else has committed."""
        for number, memory in list(self._spaces.items()):
            if number != space:
                memory.seq = -1

    def forget(self, space: int) -> None:
        """Remember nothing of a space; a commit that is under way keeps what it has."""
        self._spaces.pop(space, None)


# -----------------------------------------------------------------------------------------------------------

Known = TypeVar("Known")


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


class CommitState:
    """The present state, changed by the decision as batch after batch of a group is accepted."""

    __slots__ = (
        "bodies",
        "commit_numbers",
        "committed_at_us",
        "list_numbers",
        "lists",
        "now_us",
        "objects",
        "recalled",
        "receipts",
        "refs",
        "removals",
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
        self.removals = 0
        self.recalled: tuple[int, int, int] | None = None
        """The counters as they were when last seen, if nobody has asked since."""
        self.receipts: dict[str, Receipt] = {}
        self.scopes: dict[str, int] = {}
        self.refs: dict[str, RefState] = {}
        self.lists: dict[str, ListState] = {}
        self.tokens: dict[str, int] = {}
        self.objects: set[str] = set()
        self.bodies: set[tuple[str, int]] = set()
        self.commit_numbers: list[int] = []
        self.written = 0
        """How many of these numbers the group has taken."""
        self.list_numbers: dict[str, int] = {}
        self.scope_numbers: dict[str, int] = {}
        """Numbers kept ready for rows that do not exist yet."""

    def advanced(self) -> tuple[str, tuple[int, ...]]:
        """The statement that moves the counters of the space (see `advance`)."""
        return advance(self.space, self.seq, self.committed_at_us, self.recalled)


def advance(
    space: int, seq: int, committed_at_us: int, recalled: tuple[int, int, int] | None
) -> tuple[str, tuple[int, ...]]:
    """The statement that moves the counters of a space.

    Where they were recalled and not read, it makes the transaction fail unless they are still the
    same; it also locks the space, so it has to come first.
    """
    if recalled is None:
        return _ADVANCE, (seq, committed_at_us, space)
    return _ADVANCE_IF, (seq, committed_at_us, space, *recalled)


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


def read_state(
    session: Session, space: int, dependencies: Dependencies, now_us: int, memory: SpaceCache
) -> CommitState:
    """Lock the space and read the state behind ``dependencies``.

    Everything is asked before the first answer is looked at, so it is one exchange with a server; only
    numbers for scopes and lists that turn out to be new need another. Where answers come at once, those of
    the lock are looked at first, and what is remembered is not asked for.
    """
    current = CommitState(space, now_us)
    counters, receipts = session.lock(space, dependencies.batches)
    unknown_scopes, unknown_refs, unknown_lists = dependencies.scopes, dependencies.refs, dependencies.lists
    unknown_objects, unknown_slots = dependencies.objects.keys(), dependencies.slots.keys()
    reserve = 0
    if memory.counters_first:
        ((seq, committed_at_us, removals),) = counters
        memory.check(seq, committed_at_us, removals)
        unknown_scopes = _take(dependencies.scopes, memory.scopes, current.scopes)
        unknown_refs = _take(dependencies.refs, memory.refs, current.refs)
        unknown_lists = _take(dependencies.lists, memory.lists, current.lists)
        current.objects = unknown_objects & memory.objects
        current.bodies = unknown_slots & memory.bodies
        unknown_objects, unknown_slots = unknown_objects - current.objects, unknown_slots - current.bodies
    elif not memory.doubts:
        reserve = RESERVE
    scopes = _asked(session, _SCOPES, space, unknown_scopes) if unknown_scopes else ()
    refs = _asked(session, _REFS, space, unknown_refs) if unknown_refs else ()
    lists = _asked(session, _LISTS, space, unknown_lists) if unknown_lists else ()
    leases = _asked(session, _LEASES, space, dependencies.leases) if dependencies.leases else ()
    objects = _asked(session, _OBJECTS, space, map(bytes.fromhex, unknown_objects)) if unknown_objects else ()
    bodies = _asked(session, _BODIES, space, {batch for batch, _ in unknown_slots}) if unknown_slots else ()
    current.commit_numbers = session.numbers("commits", len(dependencies.batches) + reserve)
    ((current.seq, current.committed_at_us, current.removals),) = counters
    for row in receipts:
        current.receipts[row[0]] = unpack_receipt(*row)
    if not memory.counters_first:
        memory.check(current.seq, current.committed_at_us, current.removals)
    current.scopes.update(scopes)
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
    if len(current.scopes) < len(dependencies.scopes):
        current.scope_numbers = _numbered(session, "scope", dependencies.scopes, current.scopes)
    if len(current.lists) < len(dependencies.lists):
        current.list_numbers = _numbered(session, "list", dependencies.lists, current.lists)
    return current


def recall_current(
    space: int, dependencies: Dependencies, now_us: int, memory: SpaceCache
) -> CommitState | None:
    """The state behind ``dependencies`` without a question, or ``None`` where not all of it is remembered.

    It is true only if `Current.advanced` comes through, and so is everything that was decided by it.
    """
    if memory.seq < 0 or memory.doubts or len(memory.commit_numbers) < len(dependencies.batches):
        return None
    if dependencies.leases or not (
        dependencies.slots.keys() <= memory.bodies and dependencies.objects.keys() <= memory.objects
    ):
        return None
    current = CommitState(space, now_us)
    current.bodies.update(dependencies.slots)
    current.objects.update(dependencies.objects)
    if (
        _take(dependencies.scopes, memory.scopes, current.scopes)
        or _take(dependencies.refs, memory.refs, current.refs)
        or _take(dependencies.lists, memory.lists, current.lists)
    ):
        return None
    current.seq = memory.seq
    current.committed_at_us = memory.committed_at_us
    current.removals = memory.removals
    current.recalled = (memory.seq, memory.committed_at_us, memory.removals)
    current.commit_numbers = memory.commit_numbers
    return current


def _take(needed: Iterable[str], known: dict[str, Known], taken: dict[str, Known]) -> list[str]:
    """Take what is known; the names of the rest."""
    rest: list[str] = []
    for name in needed:
        if name in known:
            taken[name] = known[name]
        else:
            rest.append(name)
    return rest


def _numbered(session: Session, table: str, needed: Iterable[str], known: Container[str]) -> dict[str, int]:
    names = [name for name in needed if name not in known]
    return dict(zip(names, session.numbers(table, len(names)), strict=True))


def _asked(session: Session, sql: str, space: int, values: Iterable[Any]) -> Iterable[Any]:
    return query_in_chunks(session, sql, (space,), list(values))


_ADVANCE: Final = "UPDATE space SET seq = ?, committed_at_us = ? WHERE no = ?"
_ADVANCE_IF: Final = (
    f"WITH moved AS ({_ADVANCE} AND seq = ? AND committed_at_us = ? AND scopes_dropped = ? RETURNING no) "
    "SELECT 1 / count(*) FROM moved"
)
_SCOPES: Final = "SELECT name, no FROM scope WHERE space = ? AND name IN (@)"
_REFS: Final = "SELECT name, version, value, scope FROM ref WHERE space = ? AND name IN (@)"
_LISTS: Final = "SELECT id, no, scope, parent, start, length, depth FROM list WHERE space = ? AND id IN (@)"
_LEASES: Final = "SELECT name, token, expires_at_us FROM lease WHERE space = ? AND name IN (@)"
_OBJECTS: Final = "SELECT name FROM object WHERE space = ? AND name IN (@)"
_BODIES: Final = (
    "SELECT c.batch, b.key FROM commits c JOIN body b ON b.key >= c.no * 65536 AND b.key < (c.no + 1) * 65536"
    " WHERE c.space = ? AND c.batch IN (@)"
)
