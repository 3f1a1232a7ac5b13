"""The heads of many threads at once: what a list of sessions shows of each, in a few reads.

`Store.threads` tells which threads there are without reading their moments. What an adapter keeps in their
state is read here for all of them together: one scan of the journal and one read of contents per page,
however many threads there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

from treering.core.clock import day_of
from treering.store import Store
from treering.views.checkpoints import Checkpoint, StateValue, by_id, created_at_us, read_checkpoint
from treering.views.directory import ThreadInfo
from treering.views.values import read_state

_PAGE: Final = 500


def read_heads(
    store: Store, threads: Iterable[ThreadInfo], *names: str
) -> Iterator[tuple[ThreadInfo, dict[str, Any]]]:
    """Threads with those of the named state values that they have; a thread that just went is left out."""
    waiting = iter(threads)
    while page := list(islice(waiting, _PAGE)):
        heads = _checkpoints(store, [each.head for each in page])
        found = [(each, heads[each.head]) for each in page if each.head in heads]
        places: dict[str, StateValue] = {
            f"{number}/{name}": head.state[name]
            for number, (_, head) in enumerate(found)
            for name in names
            if name in head.state
        }
        values = read_state(store.engine, store.space, places)
        for number, (each, _) in enumerate(found):
            yield (
                each,
                {name: values[key] for name in names if (key := f"{number}/{name}") in values},
            )


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
