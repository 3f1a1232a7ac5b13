"""How a thread grew: its moments, what rewinds left behind, and the threads that were forked from it.

A thread's own moments form a tree, because saving after a rewind starts a new branch. One page of it is read
newest first; the moments on the line to the head are told from those that were left behind.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.clock import to_iso
from treering.core.encoding import decode_json
from treering.core.pages import each_record
from treering.core.query import EventQuery
from treering.errors import NotFound
from treering.views.checkpoints import KIND, Checkpoint, read_checkpoint
from treering.views.directory import ThreadInfo, list_threads
from treering.views.journal import Journal, thread_scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine

MAX_FORKS_SEARCHED: Final = 5_000
"""Forks are looked for among so many of the threads that are younger than their origin."""


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """The head moved back ``to`` a moment; what was behind it up to ``before`` was left."""

    at_us: int
    before: str | None
    to: str

    @property
    def at(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.at_us)


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Another thread that began at the moment ``at``."""

    thread: str
    namespace: str
    at: str
    head: str
    step: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a thread, newest first. ``older`` is where the next page begins (``None``: at the root)."""

    thread: ThreadInfo
    moments: list[Checkpoint]
    line: frozenset[str]
    """Which of the moments lead to the head."""
    rewinds: list[Rewind]
    forks: list[Fork]
    origin: Checkpoint | None
    """The moment of another thread that this one was forked from."""
    older: str | None

    @property
    def left_behind(self) -> list[str]:
        """The moments of this page that do not lead to the head."""
        return [each.id for each in self.moments if each.id not in self.line]


def growth(
    engine: Engine,
    space: str,
    thread: ThreadInfo,
    *,
    limit: int | None = None,
    before: str | None = None,
    with_forks: bool = True,
) -> Growth:
    """Read the newest ``limit`` moments of a thread, or those that are older than ``before``."""
    journal = Journal(engine, space, thread.namespace)
    scope = _scope(thread)
    if before is not None and journal.by_id(before).thread != thread.id:
        raise NotFound(f"{before!r} is no moment of thread {thread.id!r}; name one that `treering log` shows")
    found = journal.all_of(scope, behind=before)
    moments = list(islice(found, limit))
    older = moments[-1].id if moments and next(found, None) is not None else None
    shown = {each.id for each in moments}
    return Growth(
        thread=thread,
        moments=moments,
        line=_line(journal, thread, shown),
        rewinds=[each for each in _rewinds(engine, space, scope) if each.to in shown],
        forks=[each for each in _forks(engine, space, thread) if each.at in shown] if with_forks else [],
        origin=_origin(engine, space, thread),
        older=older,
    )


def left_behind(engine: Engine, space: str, head: Checkpoint, target: Checkpoint) -> list[Checkpoint]:
    """The moments on the line to ``head`` that do not lead to ``target``, newest first."""
    journal = Journal(engine, space, head.namespace)
    kept = journal.line(target)
    nearest = next(kept, None)
    left: list[Checkpoint] = []
    for each in journal.line(head):
        while nearest is not None and nearest.id > each.id:
            nearest = next(kept, None)
        if nearest is not None and nearest.id == each.id:
            break
        left.append(each)
    return left


def _scope(thread: ThreadInfo) -> str:
    return thread_scope(thread.id, thread.namespace)


def _line(journal: Journal, thread: ThreadInfo, shown: set[str]) -> frozenset[str]:
    oldest = min(shown, default="")
    # A parent is older than its child, and ids sort by time: behind the oldest there is nothing to find.
    newer = takewhile(lambda each: each.id >= oldest, journal.line(journal.by_id(thread.head)))
    return frozenset(each.id for each in newer if each.id in shown)


def _rewinds(engine: Engine, space: str, scope: str) -> Iterator[Rewind]:
    for record in each_record(engine, space, EventQuery(kinds=("rewind",), scope=scope)):
        told = decode_json(record.event.data or b"{}")
        yield Rewind(at_us=record.event.ts_us, before=told.get("from"), to=told.get("to", ""))


def _origin(engine: Engine, space: str, thread: ThreadInfo) -> Checkpoint | None:
    first = _first(engine, space, thread)
    if first is None or first.parent is None:
        return None
    try:
        return Journal(engine, space, thread.namespace).by_id(first.parent)
    except NotFound:  # deleted, or dropped by retention
        return None


def _forks(engine: Engine, space: str, thread: ThreadInfo) -> Iterator[Fork]:
    younger = (
        each
        for each in list_threads(engine, space, namespace=None, prefix="")
        if each.created_at_us >= thread.created_at_us
        and (each.id, each.namespace) != (thread.id, thread.namespace)
    )
    for info in islice(younger, MAX_FORKS_SEARCHED):
        first = _first(engine, space, info)
        if first is not None and first.parent is not None:
            yield Fork(
                thread=info.id, namespace=info.namespace, at=first.parent, head=info.head, step=info.step
            )


def _first(engine: Engine, space: str, thread: ThreadInfo) -> Checkpoint | None:
    page = engine.scan(space, EventQuery(kinds=(KIND,), scope=_scope(thread)), limit=1)
    return read_checkpoint(engine, space, page.records[0]) if page.records else None
