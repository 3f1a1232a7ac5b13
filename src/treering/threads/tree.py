"""The tree of a thread: its checkpoints, its rewinds, and the threads that were forked from it.

Saving after a rewind starts a new branch, so the checkpoints of a thread form a tree. A page of it is read
newest first; the checkpoints that lead to the head are told apart from those that a rewind left behind.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.clock import to_datetime
from treering.core.encoding import decode_json
from treering.core.ids import thread_scope
from treering.core.query import EventQuery, each_record
from treering.errors import NotFound
from treering.threads.checkpoint import KIND, CheckpointRecord, read_checkpoint
from treering.threads.directory import ThreadInfo, each_thread
from treering.threads.history import REWIND, Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine

MAX_FORKS_SEARCHED: Final = 5_000
"""How many of the younger threads are searched for forks."""


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """The head moved back ``to`` a checkpoint; what followed it, up to ``before``, was left behind."""

    at_us: int
    before: str | None
    to: str

    @property
    def at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.at_us)


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Another thread that began at checkpoint ``at``."""

    thread: str
    namespace: str
    at: str
    head: str
    step: int


class ThreadTree(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a thread, newest first. ``older`` is where the next page starts (``None``: no more)."""

    thread: ThreadInfo
    checkpoints: list[CheckpointRecord]
    line: frozenset[str]
    """The checkpoints of this page that lead to the head."""
    rewinds: list[Rewind]
    forks: list[Fork]
    origin: CheckpointRecord | None
    """The checkpoint of another thread that this one was forked from."""
    older: str | None

    @property
    def left_behind(self) -> list[str]:
        """The checkpoints of this page that do not lead to the head."""
        return [each.id for each in self.checkpoints if each.id not in self.line]


def read_tree(
    engine: Engine,
    space: str,
    thread: ThreadInfo,
    *,
    limit: int | None = None,
    before: str | None = None,
    with_forks: bool = True,
) -> ThreadTree:
    """Read the newest ``limit`` checkpoints of a thread, or those that are older than ``before``."""
    journal = Journal(engine, space, thread.namespace)
    scope = _scope(thread)
    if before is not None and journal.by_id(before).thread != thread.id:
        raise NotFound(
            f"checkpoint {before!r} not found in thread {thread.id!r}; list its checkpoints with: "
            f"treering log {thread.id}"
        )
    found = journal.all_of(scope, behind=before)
    checkpoints = list(islice(found, limit))
    older = checkpoints[-1].id if checkpoints and next(found, None) is not None else None
    shown = {each.id for each in checkpoints}
    return ThreadTree(
        thread=thread,
        checkpoints=checkpoints,
        line=_line(journal, thread, shown),
        rewinds=[each for each in _rewinds(engine, space, scope) if each.to in shown],
        forks=[each for each in _forks(engine, space, thread) if each.at in shown] if with_forks else [],
        origin=_origin(engine, space, thread),
        older=older,
    )


def left_behind(
    engine: Engine, space: str, head: CheckpointRecord, target: CheckpointRecord
) -> list[CheckpointRecord]:
    """Return the checkpoints that a rewind from ``head`` to ``target`` leaves behind, newest first."""
    journal = Journal(engine, space, head.namespace)
    kept = journal.line(target)
    nearest = next(kept, None)
    left: list[CheckpointRecord] = []
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
    # A parent is older than its child, and ids sort by time: nothing on the page is older than its oldest.
    newer = takewhile(lambda each: each.id >= oldest, journal.line(journal.by_id(thread.head)))
    return frozenset(each.id for each in newer if each.id in shown)


def _rewinds(engine: Engine, space: str, scope: str) -> Iterator[Rewind]:
    for record in each_record(engine, space, EventQuery(kinds=(REWIND,), scope=scope)):
        data = decode_json(record.event.data or b"{}")
        yield Rewind(at_us=record.event.ts_us, before=data.get("from"), to=data.get("to", ""))


def _origin(engine: Engine, space: str, thread: ThreadInfo) -> CheckpointRecord | None:
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
        for each in each_thread(engine, space, namespace=None)
        if each.created_at_us >= thread.created_at_us
        and (each.id, each.namespace) != (thread.id, thread.namespace)
    )
    for info in islice(younger, MAX_FORKS_SEARCHED):
        first = _first(engine, space, info)
        if first is not None and first.parent is not None:
            yield Fork(
                thread=info.id, namespace=info.namespace, at=first.parent, head=info.head, step=info.step
            )


def _first(engine: Engine, space: str, thread: ThreadInfo) -> CheckpointRecord | None:
    page = engine.scan(space, EventQuery(kinds=(KIND,), scope=_scope(thread)), limit=1)
    return read_checkpoint(engine, space, page.records[0]) if page.records else None
