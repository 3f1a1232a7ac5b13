"""Finding a checkpoint by what a person types.

Three ways to say which one: a checkpoint's id or the beginning of it (``ckpt_01k9``), a thread (its head),
and a thread with ``@`` and a place on the line to its head: a step (``alice@12``), so many checkpoints back
(``alice@~1``) or a time (``alice@2026-11-16T08:00``). Thread ids may hold an ``@`` of their own: the whole
text is tried as a thread before it is cut. What is not there raises `NotFound` and says what comes near.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.clock import DAY_US, day_of, to_iso
from treering.core.encoding import decode_json
from treering.core.ids import thread_scope, time_of
from treering.core.paging import each_record
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.threads.checkpoint_record import KIND, PREFIX, CheckpointRecord, read_checkpoint
from treering.threads.directory import ThreadInfo, list_threads, thread_info
from treering.threads.head import find_position
from treering.threads.history import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine


_ID_CHARS: Final = 26
_MIN_CHARS: Final = 4
_MS_US: Final = 1000
_NEAR: Final = 3
_CANDIDATES: Final = 5


class Finder:
    """Finds threads of one namespace of a space, and checkpoints of any."""

    def __init__(self, engine: Engine, space: str, namespace: str = "") -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace

    def thread(self, text: str) -> ThreadInfo:
        """A thread by its whole id."""
        info = self._known(text)
        if info is None:
            raise NotFound(self._no_thread(text))
        return info

    def checkpoint(self, text: str) -> CheckpointRecord:
        """A checkpoint by any of the ways to say it."""
        info = self._known(text)
        if info is not None:
            return self._journal(info).by_id(info.head)
        name, at, place = text.rpartition("@")
        if not at and text.startswith(PREFIX):
            return self.by_prefix(text)
        thread = self._known(name) if at else None
        if thread is None:
            raise NotFound(self._no_thread(text))
        return self.within(thread, place)

    def within(self, thread: ThreadInfo, place: str) -> CheckpointRecord:
        """A checkpoint by its place in a thread: ``12``, ``~1``, ``ckpt_...`` or an ISO time."""
        if place.startswith(PREFIX):
            return self.by_prefix(place)
        return find_position(self._line(thread), place, thread.id)

    def by_prefix(self, prefix: str) -> CheckpointRecord:
        """The one checkpoint of the space whose id begins like this."""
        known = prefix.removeprefix(PREFIX)
        if len(known) < _MIN_CHARS:
            raise InvalidInput(
                f"{prefix!r} is too short; give at least {_MIN_CHARS} characters behind {PREFIX}"
            )
        found = list(islice(self._beginning(known), _CANDIDATES + 1))
        if not found:
            raise NotFound(f"there is no checkpoint {prefix!r}; `treering log <thread>` shows what there is")
        if len(found) > 1:
            some = ", ".join(each.id for each in found[:_CANDIDATES])
            more = ", ..." if len(found) > _CANDIDATES else ""
            raise InvalidInput(
                f"{prefix!r} is the beginning of several checkpoints: {some}{more}; give more of it"
            )
        return found[0]

    def _beginning(self, known: str) -> Iterator[CheckpointRecord]:
        try:
            first_us = time_of(known.ljust(_ID_CHARS, "0"))
            last_us = time_of(known.ljust(_ID_CHARS, "z"))
        except InvalidInput:
            return
        # Most events have the very time of their id; all that is promised is the same UTC day.
        found = False
        for since_us, until_us in (
            (first_us, last_us + _MS_US),
            (day_of(first_us) * DAY_US, (day_of(last_us) + 1) * DAY_US),
        ):
            for checkpoint in self._between(since_us, until_us, PREFIX + known):
                found = True
                yield checkpoint
            if found:
                return

    def _between(self, since_us: int, until_us: int, prefix: str) -> Iterator[CheckpointRecord]:
        query = EventQuery(
            kinds=(KIND,),
            ids=(prefix,) if len(prefix) == len(PREFIX) + _ID_CHARS else (),
            since_us=since_us,
            until_us=until_us,
            order="time",
        )
        for record in each_record(self._engine, self._space, query):
            if record.event.id.startswith(prefix):
                yield read_checkpoint(self._engine, self._space, record)

    def _known(self, text: str) -> ThreadInfo | None:
        return thread_info(self._engine, self._space, text, self._namespace) if text else None

    def _journal(self, thread: ThreadInfo) -> Journal:
        return Journal(self._engine, self._space, thread.namespace)

    def _line(self, thread: ThreadInfo) -> Iterator[CheckpointRecord]:
        journal = self._journal(thread)
        return journal.line(journal.by_id(thread.head))

    def _no_thread(self, text: str) -> str:
        from difflib import get_close_matches

        where = f" in namespace {self._namespace!r}" if self._namespace else ""
        everywhere = list_threads(self._engine, self._space, namespace=None, prefix="")
        elsewhere = sorted({each.namespace for each in everywhere if each.id == text})
        if elsewhere:
            names = ", ".join(repr(name) for name in elsewhere[:_NEAR])
            return f"there is no thread {text!r}{where or ' without a namespace'}; there is one in {names}"
        here = [each.id for each in everywhere if each.namespace == self._namespace]
        near = get_close_matches(text, here, n=_NEAR, cutoff=0.5)
        near += [name for name in here if text and text in name and name not in near][: _NEAR - len(near)]
        if near:
            return f"there is no thread {text!r}{where}; did you mean {' or '.join(map(repr, near))}?"
        return f"there is no thread {text!r}{where}; `treering threads` lists what there is"


# -----------------------------------------------------------------------------------------------------------
# How a thread grew: its checkpoints, what rewinds left behind, and the threads that were forked from it.
#
# A thread's own checkpoints form a tree, because saving after a rewind starts a new branch. One page of it is
# read newest first; the checkpoints on the line to the head are told from those that were left behind.


MAX_FORKS_SEARCHED: Final = 5_000
"""Forks are looked for among so many of the threads that are younger than their origin."""


class Rewind(msgspec.Struct, frozen=True, kw_only=True):
    """The head moved back ``to`` a checkpoint; what was behind it up to ``before`` was left."""

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
    checkpoints: list[CheckpointRecord]
    line: frozenset[str]
    """Which of the moments lead to the head."""
    rewinds: list[Rewind]
    forks: list[Fork]
    origin: CheckpointRecord | None
    """The checkpoint of another thread that this one was forked from."""
    older: str | None

    @property
    def left_behind(self) -> list[str]:
        """The checkpoints of this page that do not lead to the head."""
        return [each.id for each in self.checkpoints if each.id not in self.line]


def growth(
    engine: Engine,
    space: str,
    thread: ThreadInfo,
    *,
    limit: int | None = None,
    before: str | None = None,
    with_forks: bool = True,
) -> Growth:
    """Read the newest ``limit`` checkpoints of a thread, or those that are older than ``before``."""
    journal = Journal(engine, space, thread.namespace)
    scope = _scope(thread)
    if before is not None and journal.by_id(before).thread != thread.id:
        raise NotFound(
            f"{before!r} is no checkpoint of thread {thread.id!r}; name one that `treering log` shows"
        )
    found = journal.all_of(scope, behind=before)
    checkpoints = list(islice(found, limit))
    older = checkpoints[-1].id if checkpoints and next(found, None) is not None else None
    shown = {each.id for each in checkpoints}
    return Growth(
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
    """The checkpoints on the line to ``head`` that do not lead to ``target``, newest first."""
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
    # A parent is older than its child, and ids sort by time: behind the oldest there is nothing to find.
    newer = takewhile(lambda each: each.id >= oldest, journal.line(journal.by_id(thread.head)))
    return frozenset(each.id for each in newer if each.id in shown)


def _rewinds(engine: Engine, space: str, scope: str) -> Iterator[Rewind]:
    for record in each_record(engine, space, EventQuery(kinds=("rewind",), scope=scope)):
        told = decode_json(record.event.data or b"{}")
        yield Rewind(at_us=record.event.ts_us, before=told.get("from"), to=told.get("to", ""))


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


def _first(engine: Engine, space: str, thread: ThreadInfo) -> CheckpointRecord | None:
    page = engine.scan(space, EventQuery(kinds=(KIND,), scope=_scope(thread)), limit=1)
    return read_checkpoint(engine, space, page.records[0]) if page.records else None
