"""A portrait of a space: everything readable in it, as plain values to compare.

Two engines with the same history have equal portraits (with ``times=False``, because their clocks differ),
and so does one engine before and after an operation that must not change anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.query import EventQuery, SumQuery, encode_cursor
from treering.core.records import Problem, Record, Ref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.batch import Receipt
    from treering.core.engine import Engine
    from treering.core.records import RefRow, Slice

Portrait = dict[str, Any]

_PAGE: Final = 7


def portrait(engine: Engine, space: str, *, times: bool = True) -> Portrait:
    """Return everything in a space, by kind."""
    slices = list(engine.export(space))
    infos = {row.info.list: row.info for part in slices for row in part.lists}
    return {
        "commits": {
            row.receipt.batch: _receipt(row.receipt, times=times) for part in slices for row in part.commits
        },
        "objects": {content.name: content for part in slices for content in part.objects},
        "bodies": {(row.batch, row.part): (row.scope, row.slots) for part in slices for row in part.bodies},
        "lists": infos,
        "items": {list_id: tuple(engine.read_list(space, list_id, 0, 1 << 30)) for list_id in infos},
        "digests": _digests(slices) if times else None,
        "texts": {
            (row.collection, row.name): msgspec.structs.replace(row, salt=b"")
            for part in slices
            for row in part.texts
        },
        "ref rows": {row.ref.name: _ref_row(row, times=times) for row in _ref_rows(slices)},
        "refs": {ref.name: _ref(ref, times=times) for ref in all_refs(engine, space)},
        "records": [_record(record, times=times) for record in all_records(engine, space)],
        "timeline": [record.seq for record in all_records(engine, space, EventQuery(order="time"))],
        "sums": _sums(engine, space) if engine.caps.sums else None,
    }


def all_records(
    engine: Engine, space: str, query: EventQuery | None = None, *, limit: int = _PAGE
) -> list[Record]:
    """Return all matching records, reading in pages."""
    query = query or EventQuery()
    found: list[Record] = []
    page = engine.scan(space, query, limit=limit)
    found += page.records
    while page.cursor is not None:
        page = engine.scan(space, query, after=page.cursor, limit=limit)
        found += page.records
    return found


def all_refs(engine: Engine, space: str, prefix: str = "", *, limit: int = _PAGE) -> list[Ref]:
    """Return all refs with a prefix, reading in pages."""
    found: list[Ref] = []
    while page := engine.scan_refs(space, prefix, after=found[-1].name if found else None, limit=limit):
        found += page
    return found


def cursor_behind(record: Record) -> str:
    """Return the cursor after a record in commit order."""
    return encode_cursor(EventQuery(), record.event.ts_us, record.seq)


def problems(engine: Engine, space: str) -> list[Problem]:
    """Return the problems found by `check`."""
    return [found for found in engine.check(space) if isinstance(found, Problem)]


def same_receipt(one: Receipt, other: Receipt) -> bool:
    """Whether two receipts are equal except for their times."""
    return _untimed(one) == _untimed(other)


def _ref_rows(slices: list[Slice]) -> Iterator[RefRow]:
    # Deleting a ref that never existed may leave a row at version 0, or none.
    return (row for part in slices for row in part.refs if row.ref.version)


def _receipt(receipt: Receipt, *, times: bool) -> Receipt:
    return receipt if times else _untimed(receipt)


def _untimed(receipt: Receipt) -> Receipt:
    return msgspec.structs.replace(receipt, committed_at_us=0)


def _record(record: Record, *, times: bool) -> Record:
    return record if times else msgspec.structs.replace(record, committed_at_us=0)


def _ref(ref: Ref, *, times: bool) -> Ref:
    return ref if times else msgspec.structs.replace(ref, changed_at_us=0)


def _ref_row(row: RefRow, *, times: bool) -> tuple[Ref, bool]:
    # The last value of a deleted ref may be kept or not; nobody can read it.
    ref = msgspec.structs.replace(row.ref, value=b"", links=()) if row.deleted else row.ref
    return _ref(ref, times=times), row.deleted


def _digests(slices: list[Slice]) -> Portrait:
    """Return what the digests of commits are made of; salts are random, so only copies have the same."""
    return {
        "commits": {row.receipt.batch: (row.leaves, row.digest) for part in slices for row in part.commits},
        "salts": {row.record.seq: row.salt for part in slices for row in part.events},
    }


def _sums(engine: Engine, space: str) -> Portrait:
    return {
        "run": engine.sums(space, SumQuery(grain="run", by=("key", "day", "kind"))),
        "thread": engine.sums(space, SumQuery(grain="thread", by=("key", "agent", "model"))),
        "day": engine.sums(space, SumQuery(grain="day", by=("day", "kind", "currency"))),
        "call": engine.sums(space, SumQuery(grain="call", by=("kind", "key", "bucket"))),
    }
