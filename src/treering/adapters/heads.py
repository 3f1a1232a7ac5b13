"""The heads of many threads at once: what a list of sessions shows of each, in a few reads.

`Store.threads` tells which threads there are without reading their moments. What an adapter keeps in their
state is read here for all of them together: one scan of the journal for each day that a head is of and one
read of contents per page, however many threads there are. A thread that goes meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

from treering.core.clock import day_of
from treering.errors import Corrupt, NotFound
from treering.store import Store
from treering.views.checkpoints import Checkpoint, StateValue, by_id, created_at_us, read_checkpoint
from treering.views.directory import ThreadInfo
from treering.views.moments import Moment
from treering.views.values import read_state

_PAGE: Final = 500

State = dict[str, Any]


def read_heads(
    store: Store, threads: Iterable[ThreadInfo], *names: str
) -> Iterator[tuple[ThreadInfo, Checkpoint, State]]:
    """Threads with their newest checkpoint, and those of the named state values (all, if none) it has."""
    waiting = iter(threads)
    while page := list(islice(waiting, _PAGE)):
        heads = _checkpoints(store, [each.head for each in page])
        states = _states(store, heads.values(), names)
        for each in page:
            if each.head in states:
                yield each, heads[each.head], states[each.head]


def _checkpoints(store: Store, ids: Sequence[str]) -> dict[str, Checkpoint]:
    """Checkpoints by their ids, asked for day by day, which is how the journal is keyed."""
    found: dict[str, Checkpoint] = {}
    for _, same_day in groupby(sorted(ids), key=lambda each: day_of(created_at_us(each))):
        query = by_id(*same_day)
        page = store.engine.scan(store.space, query, limit=len(query.ids))
        for record in page.records:
            checkpoint = read_checkpoint(store.engine, store.space, record)
            found[checkpoint.id] = checkpoint
    return found


def _states(store: Store, heads: Collection[Checkpoint], names: Collection[str]) -> dict[str, State]:
    """State values by checkpoint; all together, unless some of them just went."""
    places: dict[str, StateValue] = {
        f"{head.id}/{name}": place
        for head in heads
        for name, place in head.state.items()
        if not names or name in names
    }
    try:
        values = read_state(store.engine, store.space, places)
    except Corrupt:
        return dict(_one_by_one(store, heads, names))
    return {
        head.id: {name: values[key] for name in head.state if (key := f"{head.id}/{name}") in values}
        for head in heads
    }


def _one_by_one(
    store: Store, heads: Iterable[Checkpoint], names: Collection[str]
) -> Iterator[tuple[str, State]]:
    for head in heads:
        moment = Moment(store.engine, store.space, head)
        try:
            yield head.id, {name: moment.value(name) for name in head.state if not names or name in names}
        except NotFound:
            continue
