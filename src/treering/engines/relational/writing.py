"""Writing what was decided: every table once for a whole group of batches.

Order matters to nobody but a reader of the log: everything happens inside one transaction. The one
thing that is learnt only here is whether an event was new; when one was not, the roll-ups and the
receipt are put right before the transaction ends.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import Set
from treering.core.rollup import deltas, merge
from treering.engines.keys import body_key, item_key
from treering.engines.relational.current import pack_receipt
from treering.engines.relational.rows import EVENT_COLUMNS, event_row, join_links
from treering.engines.relational.session import in_chunks
from treering.engines.relational.totals import add_to_rollups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Event, Receipt
    from treering.core.rollup import Cell, Measures
    from treering.engines.relational.current import Current, ListState
    from treering.engines.relational.decision import Accepted
    from treering.engines.relational.session import Session
    from treering.engines.relational.texts import TextIndex

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


def write_group(
    session: Session,
    current: Current,
    accepted: Sequence[Accepted],
    texts: TextIndex,
    *,
    all_new: bool = False,
) -> list[Receipt]:
    """Write the accepted batches of one space; their receipts, in order.

    With ``all_new``, events are taken to be new without waiting to learn it, which saves an exchange with
    a server; where one is not, the transaction fails and the caller repeats it without.
    """
    space = current.space
    session.tell(*current.advanced())
    scopes = _new_scopes(session, current, accepted)
    commits: list[Any] = []
    bodies: list[Any] = []
    events: list[Any] = []
    objects: list[Any] = []
    refs: dict[str, Any] = {}
    rescoped: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    grown: dict[str, Any] = {}
    items: list[Any] = []
    staged_until_us = current.now_us + STAGE_SECONDS * 1_000_000
    for each, commit_no in zip(accepted, current.commit_numbers, strict=False):
        prepared, receipt = each.prepared, each.receipt
        batch = prepared.batch
        at_us = receipt.committed_at_us
        stored = pack_receipt(receipt.versions, receipt.sums, receipt.new_events)
        commits.append(
            (
                commit_no,
                space,
                batch.id,
                receipt.first_seq,
                receipt.last_seq,
                at_us,
                stored,
                prepared.item_links,
            )
        )
        for number, (part, frame) in enumerate(zip(batch.parts, prepared.bodies, strict=True)):
            bodies.append((body_key(commit_no, number), scopes[part.scope], frame))
        for name, kind, size, frame in prepared.objects:
            objects.append((space, name, kind, size, at_us, staged_until_us, frame))
        own_slots = f"s:{batch.id}:"
        for seq, event in enumerate(batch.events, receipt.first_seq):
            events.append(
                event_row(
                    event,
                    space=space,
                    scope=scopes[event.scope],
                    seq=seq,
                    commit_no=commit_no,
                    own_slots=own_slots,
                )
            )
        for change, state in each.refs:
            links = join_links(change.change.links) if isinstance(change.change, Set) else None
            if state.scope is not None and state.scope != scopes[change.scope]:
                rescoped[change.name] = (scopes[change.scope], space, change.name)
            state.scope = scopes[change.scope]
            refs[change.name] = (
                space,
                change.name,
                scopes[change.scope],
                state.version,
                state.value,
                links,
                receipt.last_seq,
                at_us,
            )
        for (append, state), sealed in zip(each.appends, prepared.items, strict=True):
            if append.list in current.list_numbers:
                lists[append.list] = _list_row(
                    space, append.list, scopes[append.scope], state, receipt.last_seq
                )
            else:
                grown[append.list] = (state.length, receipt.last_seq, state.no)
            first = item_key(state.no, append.at)
            items.extend((first + offset, *item) for offset, item in enumerate(sealed))
    for sql, rows in (
        (_COMMIT, commits),
        (_OBJECT, objects),
        (_BODY, bodies),
        (_LIST, list(lists.values())),
        (_GROWN, list(grown.values())),
        (_ITEM, items),
        (_REF, list(refs.values())),
        (_RESCOPED, list(rescoped.values())),
    ):
        if rows:
            session.tell_many(sql, rows)
    receipts = [each.receipt for each in accepted]
    totals = _merged([each.prepared.deltas for each in accepted])
    if events and not _insert_events(session, events, all_new=all_new):
        receipts, totals = _without_repeats(session, current, accepted)
    if totals:
        add_to_rollups(session, space, totals)
    for each in accepted:
        if each.prepared.batch.texts:
            texts.put(session, space, scopes, each.prepared)
    return receipts


def _insert_events(session: Session, rows: Sequence[Sequence[Any]], *, all_new: bool) -> bool:
    """Insert events, each with the columns that it has: most are empty, and binding NULLs is not free.

    Gives back whether all of them were new (``all_new`` takes that for granted).
    """
    shapes: dict[tuple[int, ...], list[list[Any]]] = {}
    first = {(row[2], row[3]): row for row in reversed(rows)}  # by day and id: shapes mix up the order
    for row in rows if len(first) == len(rows) else reversed(first.values()):
        shape = tuple([column for column, value in enumerate(row) if value is not None])
        shapes.setdefault(shape, []).append([row[column] for column in shape])
    if all_new and len(first) == len(rows):
        for shape, same in shapes.items():
            session.tell_many(_event_sql(shape, ""), same)
        return True
    tail = "ON CONFLICT (space, day, id) DO NOTHING"
    return sum(session.many(_event_sql(shape, tail), same) for shape, same in shapes.items()) == len(rows)


@lru_cache(maxsize=1024)
def _event_sql(shape: tuple[int, ...], tail: str) -> str:
    return _insert("event", [EVENT_COLUMNS[column] for column in shape], tail)


def _list_row(space: int, list_id: str, scope: int, state: ListState, seq: int) -> tuple[Any, ...]:
    return (state.no, space, list_id, scope, state.parent, state.start, state.length, state.depth, seq)


def _new_scopes(session: Session, current: Current, accepted: Sequence[Accepted]) -> dict[str, int]:
    if not current.scope_numbers:
        return current.scopes
    used = {name for each in accepted for name in each.prepared.needs.scopes if name in current.scope_numbers}
    session.tell_many(_SCOPE, [(current.scope_numbers[name], current.space, name) for name in used])
    current.scopes.update({name: current.scope_numbers[name] for name in used})
    return current.scopes


def _merged(all_deltas: Sequence[dict[Cell, Measures]]) -> dict[Cell, Measures]:
    if len(all_deltas) == 1:
        return all_deltas[0]
    totals: dict[Cell, Measures] = {}
    for each in all_deltas:
        merge(totals, each)
    return totals


def _without_repeats(
    session: Session, current: Current, accepted: Sequence[Accepted]
) -> tuple[list[Receipt], dict[Cell, Measures]]:
    """The receipts and totals of a group in which some events were there already."""
    numbers = [
        seq
        for each in accepted
        for seq in range(each.receipt.first_seq, each.receipt.first_seq + len(each.prepared.batch.events))
    ]
    written = {
        seq
        for (seq,) in in_chunks(
            session, "SELECT seq FROM event WHERE space = ? AND seq IN (@)", (current.space,), numbers
        )
    }
    receipts: list[Receipt] = []
    kept: list[Event] = []
    for each, commit_no in zip(accepted, current.commit_numbers, strict=False):
        first = each.receipt.first_seq
        new = [event for seq, event in enumerate(each.prepared.batch.events, first) if seq in written]
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
