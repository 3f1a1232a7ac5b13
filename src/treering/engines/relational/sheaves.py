"""Sheaves: several items of a list in one row.

Messages come one by one, and a row each is what a step writes. When commits settle together (on SQLite, see
`sqlite.fresh`), items that follow each other in a list are bound: one row, under the position of the first,
holds all of them as a body does (`core.body`), in one frame. Together they shrink to half of what they take
alone, and a conversation is read in a few dozen rows. The column ``kind`` says how many there are, as a
number below zero. **Invariant:** a position is in one row only. Items that point elsewhere (addresses, trees)
are never bound, so whoever follows links has nothing to look for in a sheaf.
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from treering.core.address import Address
from treering.core.body import pack_body, unpack_body
from treering.core.content import KIND_NUMBERS, Content
from treering.core.frame import HEADER_SIZE, seal, unseal, unseal_all
from treering.engines.keys import ITEM_POSITION_BITS, ITEM_POSITION_MASK, item_key
from treering.engines.relational.rows import frame_of, kind_of
from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.content import Kind
    from treering.core.lists import Run
    from treering.engines.relational.session import Session

FEWEST: Final = 4
MOST: Final = 64
"""How many items make a sheaf."""

_TREE: Final = KIND_NUMBERS["tree"]
_SELECT: Final = (
    "SELECT key, kind, frame, address FROM item "
    "WHERE key >= coalesce((SELECT max(key) FROM item WHERE key >= ? AND key <= ?), ?) AND key < ? "
    "ORDER BY key"
)
"""From the row on that holds the first position, which may be one with a lower key."""

_SHEAVES: Final = "SELECT key, kind FROM item WHERE key > ? AND key <= ? AND kind < 0"

COUNT: Final = "CASE WHEN i.kind < 0 THEN -i.kind ELSE 1 END"
"""How many items are in a row ``i``."""


def bind(items: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """Rows of new items (key, kind, frame, address) in which those that follow each other are bound."""
    bound: list[Sequence[Any]] = []
    run: list[Sequence[Any]] = []
    for row in sorted(items, key=itemgetter(0)):
        if run and (row[0] != run[-1][0] + 1 or len(run) == MOST):
            bound += _bound(run)
            run = []
        if row[2] is None or row[1] == _TREE:
            bound += _bound(run)
            run = []
            bound.append(row)
        else:
            run.append(row)
    return bound + _bound(run)


def _bound(run: list[Sequence[Any]]) -> list[Sequence[Any]]:
    if len(run) < FEWEST:
        return run
    contents = [Content(kind_of(row[1], "a new item"), unseal(row[2], "a new item")) for row in run]
    return [(run[0][0], -len(run), seal(pack_body(contents)), None)]


def is_sheaf(kind: Any) -> TypeGuard[int]:
    """Whether a row of that kind holds several items."""
    return isinstance(kind, int) and kind < 0


def unbind(kind: int, frame: Any, where: str) -> list[Content]:
    """The items in a sheaf, verified."""
    contents = unpack_body(unseal(frame_of(frame, where), where), where)
    if len(contents) != -kind:
        raise Corrupt(f"{where}: holds {len(contents)} items where its row says {-kind}; restore a backup")
    return contents


def positions_bound(session: Session, keys: Iterable[int]) -> set[int]:
    """The positions (as keys) that are in a sheaf already, of all lists that the given ones are in."""
    ranges: dict[int, tuple[int, int]] = {}
    for key in keys:
        first, last = ranges.get(key >> ITEM_POSITION_BITS, (key, key))
        ranges[key >> ITEM_POSITION_BITS] = min(first, key), max(last, key)
    asked = [session.ask(_SHEAVES, (first - MOST, last)) for first, last in ranges.values()]
    return {position for rows in asked for key, kind in rows for position in range(key, key - kind)}


def read(session: Session, list_no: int, run: Run) -> list[Content | Address]:
    """The items of a run: verified content, or where it is.

    Each frame is let go before the next is read, so its memory serves for that one.
    """
    where = f"list {run.list!r}"
    start, stop = run.start, run.stop
    found: list[Content | Address | None] = []
    kinds: list[Kind] = []
    headers: list[bytes] = []
    payloads: list[bytes] = []
    first = item_key(list_no, start)
    bounds = (item_key(list_no, 0), first, first, item_key(list_no, stop))
    # The rows have no name here: the traceback of an error would keep them, and with them the log, open.
    for key, kind, frame, address in session.ask(_SELECT, bounds):
        position = key & ITEM_POSITION_MASK
        if is_sheaf(kind):
            if position > start + len(found):
                break
            contents = unbind(kind, frame, where)
            found += islice(contents, start + len(found) - position, stop - position)
            continue
        if position != start + len(found):
            break
        if frame is None:
            found.append(Address(address))
        else:
            sealed = frame if type(frame) is bytes else frame_of(frame, where)
            found.append(None)
            kinds.append(kind_of(kind, where))
            headers.append(sealed[:HEADER_SIZE])
            payloads.append(sealed[HEADER_SIZE:])
    if len(found) != stop - start:
        raise Corrupt(
            f"{where} lacks {stop - start - len(found)} of its items {start} to {stop}; "
            "run verify, then restore it from a backup"
        )
    plain = map(Content, kinds, unseal_all(headers, payloads, where))
    return [next(plain) if item is None else item for item in found]
