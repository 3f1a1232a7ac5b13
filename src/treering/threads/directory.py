"""The directory: which threads there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.clock import day_of, to_iso
from treering.core.paging import each_record, each_ref, record_pages, ref_pages
from treering.core.query import EventQuery
from treering.core.records import Problem
from treering.errors import Corrupt, InvalidInput
from treering.threads.checkpoint_record import KIND, PREFIX, by_id, created_at_us, read_checkpoint
from treering.threads.history import (
    HEADS,
    REMOVALS,
    RETENTION,
    dropped_by,
    head_ref,
    heads_prefix,
    read_head,
)
from treering.threads.hooks import check_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Ref


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A thread as its head tells it, without reading any of its checkpoints."""

    id: str
    namespace: str
    head: str
    step: int
    created_at_us: int
    updated_at_us: int

    @property
    def place(self) -> tuple[int, str, str, str]:
        """What the newest first are ordered by; no two threads have the same."""
        return self.updated_at_us, self.head, self.namespace, self.id

    @property
    def created_at(self) -> str:
        """When it was first saved, ISO 8601 with offset."""
        return to_iso(self.created_at_us)

    @property
    def updated_at(self) -> str:
        """When its head last moved, ISO 8601 with offset."""
        return to_iso(self.updated_at_us)


def list_threads(engine: Engine, space: str, *, namespace: str | None, prefix: str) -> list[ThreadInfo]:
    """The threads of a namespace (``None``: of all), newest first."""
    check_text("prefix", prefix)
    if namespace is not None:
        check_text("namespace", namespace)
    found = (_info(ref) for ref in _heads(engine, space, namespace, prefix))
    return sorted(
        (each for each in found if each.id.startswith(prefix)),
        key=lambda each: each.place,
        reverse=True,
    )


def thread_info(engine: Engine, space: str, thread_id: str, namespace: str) -> ThreadInfo | None:
    """One thread, or ``None`` when it was never saved."""
    name = head_ref(thread_id, namespace)
    ref = engine.refs(space, [name]).get(name)
    return None if ref is None else _info(ref)


def _heads(engine: Engine, space: str, namespace: str | None, prefix: str) -> Iterator[Ref]:
    wanted = HEADS if namespace is None else heads_prefix(namespace) + prefix
    return each_ref(engine, space, wanted)


def _info(ref: Ref) -> ThreadInfo:
    value = read_head(ref)
    return ThreadInfo(
        id=value.thread,
        namespace=value.namespace,
        head=value.checkpoint,
        step=value.step,
        created_at_us=value.first_us,
        updated_at_us=ref.changed_at_us,
    )


# -----------------------------------------------------------------------------------------------------------
# Threads that were cut: heads and parents that are not stored, although nothing says that they were removed.
#
# The engine follows addresses; that a head stands at a checkpoint, and that a checkpoint has a parent, only
# threads know. One pass over the journal gathers the parents that are missing, one over what was removed
# takes off those that went by retention, `delete`, `clean` or `forget`.


_ASKED: Final = 400
"""How many ids one question names."""


class _Child(msgspec.Struct, frozen=True):
    """A checkpoint whose parent is not there."""

    id: str
    thread: str
    seq: int


def severed(engine: Engine, space: str) -> Iterator[Problem]:
    """What is missing in the threads of a space."""
    yield from _lost_heads(engine, space)
    orphans: dict[str, list[_Child]] = {}
    yield from _find_orphans(engine, space, orphans)
    if orphans:
        _take_off_removed(engine, space, orphans)
    for parent, children in orphans.items():
        for child in children:
            yield _problem(
                f"thread {child.thread!r}", f"checkpoint {child.id!r} has lost its parent {parent!r}"
            )


def _lost_heads(engine: Engine, space: str) -> Iterator[Problem]:
    for page in ref_pages(engine, space, HEADS):
        heads: dict[str, str] = {}
        for ref in page:
            try:
                heads[ref.name] = read_head(ref).checkpoint
            except Corrupt as error:
                yield Problem(kind="corrupt", where=ref.name, detail=str(error))
        stored = _stored(engine, space, heads.values())
        lost = {name: head for name, head in heads.items() if head not in stored}
        now = engine.refs(space, list(lost)) if lost else {}
        for name, head in lost.items():
            if name in now and read_head(now[name]).checkpoint == head:  # else it was removed meanwhile
                yield _problem(name, f"its head is checkpoint {head!r}, which is not stored")


def _find_orphans(engine: Engine, space: str, orphans: dict[str, list[_Child]]) -> Iterator[Problem]:
    nearby: set[str] = set()
    for records in record_pages(engine, space, EventQuery(kinds=(KIND,))):
        own = {record.event.id for record in records}
        wanted: dict[str, list[_Child]] = {}
        for record in records:
            if not record.event.id.startswith(PREFIX):  # of someone who writes batches of their own
                continue
            try:
                checkpoint = read_checkpoint(engine, space, record)
            except Corrupt as error:
                yield Problem(kind="corrupt", where=record.event.id, detail=str(error))
                continue
            parent = checkpoint.parent
            if parent is not None and parent not in own and parent not in nearby:
                child = _Child(checkpoint.id, checkpoint.thread, record.seq)
                wanted.setdefault(parent, []).append(child)
        for parent in wanted.keys() - _stored(engine, space, wanted):
            orphans.setdefault(parent, []).extend(wanted[parent])
        nearby = own


def _take_off_removed(engine: Engine, space: str, orphans: dict[str, list[_Child]]) -> None:
    for scope, kind in REMOVALS:
        for record in each_record(engine, space, EventQuery(kinds=(kind,), scope=scope)):
            gone = dropped_by(engine, space, record) if kind == RETENTION else list(orphans)
            for parent in gone:
                left = [child for child in orphans.get(parent, ()) if child.seq > record.seq]
                if left:
                    orphans[parent] = left
                else:
                    orphans.pop(parent, None)


def _stored(engine: Engine, space: str, ids: Iterable[str]) -> set[str]:
    """Those of these checkpoints that are there."""
    by_day: dict[int, list[str]] = {}
    for each in ids:
        try:
            by_day.setdefault(day_of(created_at_us(each)), []).append(each)
        except InvalidInput:  # nothing of that name can be there
            continue
    found: set[str] = set()
    for of_a_day in by_day.values():
        for start in range(0, len(of_a_day), _ASKED):
            some = by_id(*of_a_day[start : start + _ASKED])
            found.update(record.event.id for record in each_record(engine, space, some))
    return found


def _problem(where: str, what: str) -> Problem:
    return Problem(kind="dangling", where=where, detail=f"{what}; restore it from a backup")
