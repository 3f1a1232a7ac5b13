"""Writing what was decided: every table once for a whole group of batches.

Order matters to nobody but a reader of the log: everything happens inside one transaction. The one
thing that is learnt only here is whether an event was new; when one was not, the roll-ups and the
receipt are put right before the transaction ends.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import repeat
from operator import is_not, itemgetter
from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import Set
from treering.core.rollups import deltas, merge
from treering.engines.sql.commit.state import advance, pack_receipt
from treering.engines.sql.rollups import add_to_rollups
from treering.engines.sql.rows import EVENT_COLUMNS, RUN, body_key, event_row, item_key, run_rows
from treering.engines.sql.session import rows_in_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from treering.core.batch import Event, Receipt
    from treering.core.rollups import Measures, RollupKey
    from treering.engines.sql.commit.decide import AcceptedBatch
    from treering.engines.sql.commit.state import CommitState, ListState
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Executor, Session

STAGE_SECONDS: Final = 3600
"""How long an object that nothing links to yet is safe from `sweep`."""


def _insert(table: str, columns: Sequence[str], tail: str = "") -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) {tail}"


_SCOPE: Final = _insert("scope", ("no", "space", "name"))
_COMMIT: Final = _insert(
    "commits", ("no", "space", "batch", "first_seq", "last_seq", "committed_at_us", "receipt", "links")
)
_RECEIPT: Final = "UPDATE commits SET receipt = ? WHERE no = ?"
_BODY: Final = _insert("body", ("key", "scope", "frame"))
_OBJECT: Final = _insert(
    "object",
    ("space", "name", "kind", "size", "stored_at_us", "staged_until_us", "frame"),
    "ON CONFLICT (space, name) DO NOTHING",
)
_REF: Final = _insert(
    "ref",
    ("space", "name", "scope", "version", "value", "links", "seq", "changed_at_us"),
    "ON CONFLICT (space, name) DO UPDATE SET version = excluded.version, "
    "value = excluded.value, links = excluded.links, seq = excluded.seq, "
    "changed_at_us = excluded.changed_at_us",
)
_RESCOPED: Final = "UPDATE ref SET scope = ? WHERE space = ? AND name = ?"
"""Apart from the rest, so that a ref which moves within its scope leaves the index of scopes alone."""
_LIST: Final = _insert("list", ("no", "space", "id", "scope", "parent", "start", "length", "depth", "seq"))
_GROWN: Final = "UPDATE list SET length = ?, seq = ? WHERE no = ?"
_ITEM: Final = _insert("item", ("key", "kind", "frame", "address"))
_NOTHING: Final = repeat(None)


def write_group(
    session: Session,
    current: CommitState,
    accepted: Sequence[AcceptedBatch],
    texts: TextIndex,
    *,
    all_new: bool = False,
) -> list[Receipt]:
    """Write the accepted batches of one space; their receipts, in order.

    With ``all_new``, events are taken to be new without waiting to learn it, which saves an exchange with
    a server; where one is not, the transaction fails and the caller repeats it without.
    """
    current.written = len(accepted)
    session.execute(*current.advanced())
    scopes = _new_scopes(session, current, accepted)
    rows = Rows()
    for each, commit_no in zip(accepted, current.commit_numbers, strict=False):
        rows.add(each, current.space, commit_no, current.now_us, scopes, current.list_numbers)
    rows.execute(session)
    totals = _merged(accepted)
    receipts = [each.receipt for each in accepted]
    if rows.events and not _insert_events(session, rows.events, all_new=all_new):
        receipts, totals = _without_repeats(session, current, accepted)
    if totals:
        add_to_rollups(session, current.space, totals)
    for each in accepted:
        if each.encoded.batch.texts:
            texts.put(session, current.space, scopes, each.encoded)
    return receipts


def write_rows(
    session: Executor, space: int, rows: Rows, *, recalled: tuple[int, int, int] | None = None
) -> None:
    """Write the rows of commits of one space that were accepted before: each of their events is new.

    With ``recalled``, the transaction fails unless the counters of the space are these.
    """
    (_, _, _, _, last_seq, committed_at_us, _, _) = rows.commits[-1]
    session.execute(*advance(space, last_seq, committed_at_us, recalled))
    rows.execute(session)
    for columns, picked in _by_shape(rows.events):
        session.execute_many(_event_sql(columns, ""), picked)


class Rows:
    """The rows of a group, by table; where several batches change the same, the last one counts."""

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

    def __init__(self) -> None:
        self.commits: list[Any] = []
        self.bodies: list[Any] = []
        self.events: list[tuple[Any, ...]] = []
        self.runs: list[Any] = []
        self.objects: list[Any] = []
        self.refs: dict[str, Any] = {}
        self.rescoped: dict[str, Any] = {}
        self.lists: dict[str, Any] = {}
        self.grown: dict[str, Any] = {}
        self.items: list[Any] = []

    def add(
        self,
        each: AcceptedBatch,
        space: int,
        commit_no: int,
        now_us: int,
        scopes: dict[str, int],
        new_lists: Container[str],
    ) -> None:
        """Take in the rows of one batch."""
        encoded, receipt = each.encoded, each.receipt
        batch = encoded.batch
        first_seq, last_seq, at_us = receipt.first_seq, receipt.last_seq, receipt.committed_at_us
        stored = pack_receipt(receipt.versions, receipt.sums, receipt.new_events)
        self.commits.append(
            (commit_no, space, batch.id, first_seq, last_seq, at_us, stored, encoded.item_links)
        )
        if batch.parts:
            for number, (part, frame) in enumerate(zip(batch.parts, encoded.bodies, strict=True)):
                self.bodies.append((body_key(commit_no, number), scopes[part.scope], frame))
        if encoded.objects:
            until_us = now_us + STAGE_SECONDS * 1_000_000
            for name, kind, size, frame in encoded.objects:
                self.objects.append((space, name, kind, size, at_us, until_us, frame))
        if batch.events:
            own_slots = f"s:{batch.id}:"
            for seq, event in enumerate(batch.events, first_seq):
                row = event_row(
                    event,
                    space=space,
                    scope=scopes[event.scope],
                    seq=seq,
                    commit_no=commit_no,
                    own_slots=own_slots,
                )
                self.events.append(row)
            self.runs += run_rows(space, [event.run for event in batch.events])
        for change, state in each.refs:
            name, scope, move = change.name, scopes[change.scope], change.change
            links = "\n".join(move.links) if isinstance(move, Set) and move.links else None
            if state.scope is not None and (state.scope != scope or name in self.rescoped):
                self.rescoped[name] = (scope, space, name)
            state.scope = scope
            self.refs[name] = (space, name, scope, state.version, state.value, links, last_seq, at_us)
        for (append, state), sealed in zip(each.appends, encoded.items, strict=True):
            if append.list in new_lists:
                row = _list_row(space, append.list, scopes[append.scope], state, last_seq)
                self.lists[append.list] = row
            else:
                self.grown[append.list] = (state.length, last_seq, state.no)
            key = item_key(state.no, append.at)
            for kind, frame, address in sealed:
                self.items.append((key, kind, frame, address))
                key += 1

    def take(self, other: Rows) -> None:
        """Take in the rows of commits of the same space that came later, objects aside."""
        self.commits += other.commits
        self.runs += other.runs
        self.bodies += other.bodies
        self.grown.update(other.grown)
        self.items += other.items
        self.refs.update(other.refs)
        self.events += other.events

    def tell_objects(self, session: Executor) -> None:
        """Write the objects alone."""
        if self.objects:
            session.execute_many(_OBJECT, self.objects)

    def execute(self, session: Executor) -> None:
        """Write all but the events."""
        session.execute_many(_COMMIT, self.commits)
        if self.runs:
            session.execute_many(RUN, self.runs)
        self.tell_objects(session)
        if self.bodies:
            session.execute_many(_BODY, self.bodies)
        if self.lists:
            session.execute_many(_LIST, list(self.lists.values()))
        if self.grown:
            session.execute_many(_GROWN, list(self.grown.values()))
        if self.items:
            session.execute_many(_ITEM, self.items)
        if self.refs:
            session.execute_many(_REF, list(self.refs.values()))
        if self.rescoped:
            session.execute_many(_RESCOPED, list(self.rescoped.values()))


def _insert_events(session: Session, rows: list[tuple[Any, ...]], *, all_new: bool) -> bool:
    """Insert events, each with the columns that it has: most are empty, and binding NULLs is not free.

    Gives back whether all of them were new (``all_new`` takes that for granted).
    """
    count = len(rows)
    if count > 1:
        first = {(row[2], row[3]): row for row in reversed(rows)}  # by day and id: shapes mix up the order
        if len(first) < count:
            rows = list(reversed(first.values()))
    written = 0
    for columns, picked in _by_shape(rows):
        if all_new and len(rows) == count:
            session.execute_many(_event_sql(columns, ""), picked)
            written += len(picked)
        else:
            written += session.run_many(
                _event_sql(columns, "ON CONFLICT (space, day, id) DO NOTHING"), picked
            )
    return written == count


def _by_shape(rows: list[tuple[Any, ...]]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The columns that rows of one shape have, and what such rows have there."""
    shapes: dict[tuple[bool, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        shapes.setdefault(tuple(map(is_not, row, _NOTHING)), []).append(row)
    for shape, same in shapes.items():
        columns, chosen = _event_shape(shape)
        yield columns, [chosen(row) for row in same]


@lru_cache(maxsize=1024)
def _event_shape(shape: tuple[bool, ...]) -> tuple[tuple[str, ...], Callable[[tuple[Any, ...]], Any]]:
    """The columns that rows of a shape have, and what takes their values out of such a row."""
    numbers = [number for number, is_there in enumerate(shape) if is_there]
    return tuple(EVENT_COLUMNS[number] for number in numbers), itemgetter(*numbers)


@lru_cache(maxsize=1024)
def _event_sql(columns: tuple[str, ...], tail: str) -> str:
    return _insert("event", columns, tail)


def _list_row(space: int, list_id: str, scope: int, state: ListState, seq: int) -> tuple[Any, ...]:
    return (state.no, space, list_id, scope, state.parent, state.start, state.length, state.depth, seq)


def _new_scopes(session: Session, current: CommitState, accepted: Sequence[AcceptedBatch]) -> dict[str, int]:
    if not current.scope_numbers:
        return current.scopes
    used = {
        name
        for each in accepted
        for name in each.encoded.dependencies.scopes
        if name in current.scope_numbers
    }
    session.execute_many(_SCOPE, [(current.scope_numbers[name], current.space, name) for name in used])
    current.scopes.update({name: current.scope_numbers[name] for name in used})
    return current.scopes


def _merged(accepted: Sequence[AcceptedBatch]) -> dict[RollupKey, Measures]:
    if len(accepted) == 1:
        return accepted[0].encoded.deltas
    totals: dict[RollupKey, Measures] = {}
    for each in accepted:
        merge(totals, each.encoded.deltas)
    return totals


def _without_repeats(
    session: Session, current: CommitState, accepted: Sequence[AcceptedBatch]
) -> tuple[list[Receipt], dict[RollupKey, Measures]]:
    """The receipts and totals of a group in which some events were there already."""
    numbers = [
        seq
        for each in accepted
        for seq in range(each.receipt.first_seq, each.receipt.first_seq + len(each.encoded.batch.events))
    ]
    written = {
        seq
        for (seq,) in rows_in_chunks(
            session, "SELECT seq FROM event WHERE space = ? AND seq IN (@)", (current.space,), numbers
        )
    }
    receipts: list[Receipt] = []
    kept: list[Event] = []
    for each, commit_no in zip(accepted, current.commit_numbers, strict=False):
        first = each.receipt.first_seq
        new = [event for seq, event in enumerate(each.encoded.batch.events, first) if seq in written]
        kept += new
        receipt = each.receipt
        if len(new) != receipt.new_events:
            receipt = _recounted(receipt, len(new))
            stored = pack_receipt(receipt.versions, receipt.sums, receipt.new_events)
            session.run(_RECEIPT, (stored, commit_no))
        receipts.append(receipt)
    return receipts, deltas(kept)


def _recounted(receipt: Receipt, new_events: int) -> Receipt:
    return type(receipt)(
        batch=receipt.batch,
        first_seq=receipt.first_seq,
        last_seq=receipt.last_seq,
        committed_at_us=receipt.committed_at_us,
        versions=receipt.versions,
        sums=receipt.sums,
        new_events=new_events,
    )
