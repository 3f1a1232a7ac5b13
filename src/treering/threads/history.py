"""The history of threads: what their heads hold, and how checkpoints are found and followed back to the
first.

The checkpoints of a thread are the events of its scope. A parent is always older than its child, so the line
that leads to a head is found in one pass over a thread, newest first, and continues in the thread that it was
forked from. Where retention dropped a parent, the line continues with what is left of it; the rewinds in the
same scope tell which checkpoints had been left behind. **Invariant:** a missing parent is `Corrupt` unless an
event says why it was removed; a chain that was cut never passes for a short one.
"""

from __future__ import annotations

import heapq
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.clock import day_of, from_datetime
from treering.core.encoding import decode, decode_json
from treering.core.ids import ID_CHARS, MAINTENANCE_SCOPE, Scope, only_match, thread_scope
from treering.core.query import EventQuery, each_record, record_pages, records_by_id, ref_pages
from treering.core.records import Problem
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.threads.checkpoint import (
    KIND,
    PREFIX,
    CheckpointRecord,
    Revisions,
    by_id,
    created_at_us,
    read_checkpoint,
)
from treering.threads.writer import HEADS, read_head

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Record

REWIND: Final = "rewind"
DELETED: Final = "thread.deleted"
CLEANED: Final = "thread.cleaned"
CHAT_DELETED: Final = "chat.deleted"
RETENTION: Final = "retention"
LEDGER: Final = str(Scope("", "ledger", "threads"))
"""Where removals of threads are recorded: a scope of its own, which no removal of a thread takes along."""
REMOVALS: Final = (
    (MAINTENANCE_SCOPE, RETENTION),
    (MAINTENANCE_SCOPE, "forget"),
    (LEDGER, DELETED),
    (LEDGER, CLEANED),
    (LEDGER, CHAT_DELETED),
)
"""The events that explain why a checkpoint is missing: their scopes and kinds."""

_FIRST_PAGE: Final = 20
_LAST_PAGE: Final = 1000
_IDS_PER_QUERY: Final = 400
_MAX_STEP_DIGITS: Final = 15
"""Steps have 53 bits, so a longer number is not a step."""
_MIN_CHARS: Final = 4
_CANDIDATES: Final = 6


def find_position(
    line: Iterator[CheckpointRecord],
    position: str | int | datetime,
    thread_id: str,
    *,
    local_times: bool = False,
) -> CheckpointRecord:
    """Return the checkpoint at a position of a thread's line (newest first). Raise `NotFound` if there is
    none.

    A position is a step (``12``), a number of checkpoints back (``"~1"``), or a time: a `datetime` or ISO
    8601 text, which selects the newest checkpoint at or before it. A text without an offset is in UTC; with
    ``local_times``, as on the command line, it is in the local time zone.
    """
    if isinstance(position, str):
        back = position.removeprefix("~")
        if back != position and _is_number(back or "1"):
            count = int(back or 1)
            found = next(islice(line, count, None), None)
            return found or _refuse(thread_id, f"checkpoint {count} before its head")
        position = int(position) if _is_number(position) else parse_time(position, is_local=local_times)
    if isinstance(position, datetime):
        until_us = from_datetime(position)
        found = next((each for each in line if each.created_at_us <= until_us), None)
        return found or _refuse(thread_id, f"checkpoint at or before {position.isoformat()}")
    if type(position) is not int:
        raise InvalidInput(f"{position!r} does not select a checkpoint; give its id, its step or a datetime")
    found = next((each for each in line if each.step == position), None)
    return found or _refuse(thread_id, f"step {position}")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_STEP_DIGITS


def parse_time(text: str, *, is_local: bool = False) -> datetime:
    """Return the time that a position names. Raise `InvalidInput` if it is none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone() if is_local else moment
    except ValueError:
        raise InvalidInput(
            f"{text[:80]!r} is not a position in a thread; use a step (12), steps back (~1), "
            f"a checkpoint ({PREFIX}...) or a time (2026-11-16T08:00)"
        ) from None


def _refuse(thread_id: str, what: str) -> CheckpointRecord:
    raise NotFound(f"thread {thread_id!r} has no {what}; list its checkpoints with: treering log {thread_id}")


def find_by_beginning(
    engine: Engine, space: str, text: str, *, namespace: str | None = None
) -> CheckpointRecord:
    """Return the one checkpoint whose id is or begins with ``text``, of a namespace or of all.

    Raise `InvalidInput` with the candidates if there are several.
    """
    known = text.removeprefix(PREFIX)
    if len(known) < _MIN_CHARS:
        raise InvalidInput(f"{text!r} is too short; give at least {_MIN_CHARS} characters after {PREFIX}")
    revisions = Revisions(engine, space)
    found: dict[str, CheckpointRecord] = {}
    for record in records_by_id(engine, space, PREFIX + known, kinds=(KIND,)):
        each = revisions.read(record)
        if namespace in (None, each.namespace):
            found[each.id] = each
        if len(found) == _CANDIDATES:
            break
    match = only_match(found, text, "checkpoint")
    if match is None:
        where = "" if namespace is None else " in this namespace"
        raise NotFound(f"checkpoint {text!r} not found{where}; list checkpoints with: treering log THREAD")
    return found[match]


def read_heads(engine: Engine, space: str, ids: Iterable[str]) -> dict[str, CheckpointRecord]:
    """Return these checkpoints by their ids, without those that are lost or cannot be read."""
    revisions = Revisions(engine, space)
    found: dict[str, CheckpointRecord] = {}
    for record in _records_by_id(engine, space, ids):
        try:
            found[record.event.id] = revisions.read(record)
        except Corrupt:
            continue
    return found


def dropped_by(engine: Engine, space: str, record: Record) -> list[str]:
    """Return the checkpoints that an event of retention lists as dropped."""
    body = record.event.body
    dropped: Any = {} if body is None else decode(engine.get(space, [body])[0])
    return dropped.get(KIND, [])


class Journal:
    """Reads the checkpoints of one namespace."""

    def __init__(self, engine: Engine, space: str, namespace: str) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace

    def by_id(self, checkpoint_id: str) -> CheckpointRecord:
        """Return one checkpoint, by its id or a unique beginning of it. Raise `NotFound` for one of another
        namespace.
        """
        return self._found(checkpoint_id)[0]

    def all_of(self, scope: str, *, behind: str | None = None) -> Iterator[CheckpointRecord]:
        """Iterate over all checkpoints of a thread, newest first, or over those older than ``behind``."""
        after = None if behind is None else str(self._found(behind)[1].seq)
        query = EventQuery(kinds=(KIND,), scope=scope, newest_first=True, brief=True)
        revisions = Revisions(self._engine, self._space)
        yield from map(revisions.read, self._records(query, after))

    def head_at(self, scope: str, at_us: int) -> CheckpointRecord | None:
        """Return the head that a thread had at a time, also if a rewind has left it behind since; ``None``
        before its first checkpoint.
        """
        newest: list[Record] = []
        for kind in (KIND, REWIND):
            query = EventQuery(kinds=(kind,), scope=scope, until_us=at_us + 1, newest_first=True, brief=True)
            newest += self._engine.scan(self._space, query, limit=1).records
        record = max(newest, key=_seq, default=None)
        target = None if record is None or record.event.kind != REWIND else _target(record)
        if target is not None:
            return self.by_id(target)
        return None if record is None else Revisions(self._engine, self._space).read(record)

    def line(self, head: CheckpointRecord | None) -> Iterator[CheckpointRecord]:
        """Iterate over a checkpoint and its ancestors, including those before a fork."""
        return self._line(head, None)

    def line_behind(self, checkpoint_id: str) -> Iterator[CheckpointRecord]:
        """Iterate over the ancestors of a checkpoint, without itself."""
        checkpoint, record = self._found(checkpoint_id)
        return islice(self._line(checkpoint, record.seq), 1, None)

    def _line(self, head: CheckpointRecord | None, seq: int | None) -> Iterator[CheckpointRecord]:
        while head is not None:
            oldest = yield from self._line_within(head, seq)
            head, seq = self._origin(oldest) or (None, None)

    def _line_within(
        self, head: CheckpointRecord, seq: int | None
    ) -> Generator[CheckpointRecord, None, CheckpointRecord]:
        """Yield the part of a line that is in the thread of ``head`` (committed as ``seq``); return its
        oldest.
        """
        yield head
        child, child_seq = head, seq
        revisions = Revisions(self._engine, self._space)
        for record in self._records(_within(head, KIND), None if seq is None else str(seq)):
            event, wanted = record.event, child.parent
            if wanted is None:
                break
            if child_seq is None:
                child_seq = record.seq if event.id == head.id else None
            elif event.id == wanted:
                child, child_seq = revisions.read(record), record.seq
                yield child
            elif event.id < wanted and self._is_dropped(wanted, child):
                return (yield from self._line_over_gaps(child, child_seq, revisions))
        return child

    def _line_over_gaps(
        self, child: CheckpointRecord, seq: int, revisions: Revisions
    ) -> Generator[CheckpointRecord, None, CheckpointRecord]:
        """Yield what is left of a line behind ``child`` (committed as ``seq``), whose parent was dropped."""
        left_behind: str | None = None
        both = (self._records(_within(child, kind), str(seq)) for kind in (KIND, REWIND))
        for record in heapq.merge(*both, key=_seq, reverse=True):
            event, wanted = record.event, child.parent
            if wanted is None:
                break
            if event.kind == REWIND:
                # What is between a rewind and its target was left behind; rewinds in there do not count.
                left_behind = left_behind or _target(record)
                continue
            if event.id == wanted or (left_behind is not None and event.id <= left_behind):
                left_behind = None
            if event.id != wanted and (
                event.id > wanted or left_behind is not None or not self._is_dropped(wanted, child)
            ):
                continue
            child = revisions.read(record)
            yield child
        return child

    def _origin(self, child: CheckpointRecord) -> tuple[CheckpointRecord, int] | None:
        """Return the parent of a thread's first checkpoint, if it is in this namespace, and its commit."""
        if child.parent is None or self._is_dropped(child.parent, child):
            return None
        for record in self._records_of(child.parent):
            origin = Revisions(self._engine, self._space).read(record)
            if origin.namespace == self._namespace:
                return origin, record.seq
        return None

    def _is_dropped(self, checkpoint_id: str, child: CheckpointRecord) -> bool:
        """Return whether an event records that a checkpoint was removed after it had this child."""
        if self._records_of(checkpoint_id):
            return False
        after = str(self._found(child.id)[1].seq)
        for scope, kind in REMOVALS:
            for record in self._records(EventQuery(kinds=(kind,), scope=scope), after):
                if kind != RETENTION or checkpoint_id in dropped_by(self._engine, self._space, record):
                    return True
        raise Corrupt(
            f"checkpoint {child.id!r} of thread {child.thread!r} has lost its parent {checkpoint_id!r}, and "
            "no removal is recorded; run verify, then restore it from a backup"
        )

    def _found(self, checkpoint_id: str) -> tuple[CheckpointRecord, Record]:
        if len(checkpoint_id) < len(PREFIX) + ID_CHARS and checkpoint_id.startswith(PREFIX):
            found = find_by_beginning(self._engine, self._space, checkpoint_id, namespace=self._namespace)
            checkpoint_id = found.id
        for record in self._records_of(checkpoint_id):
            checkpoint = Revisions(self._engine, self._space).read(record)
            if checkpoint.namespace == self._namespace:
                return checkpoint, record
        raise NotFound(
            f"checkpoint {checkpoint_id!r} not found in this namespace; list checkpoints with history()"
        )

    def _records_of(self, checkpoint_id: str) -> tuple[Record, ...]:
        return self._engine.scan(self._space, by_id(checkpoint_id), limit=1).records

    def _records(self, query: EventQuery, after: str | None) -> Iterator[Record]:
        """Read in pages that grow: the newest few cost one small read, all of them few large ones."""
        limit = _FIRST_PAGE
        while True:
            page = self._engine.scan(self._space, query, after=after, limit=limit)
            yield from page.records
            if page.cursor is None:
                return
            after, limit = page.cursor, min(limit * 4, _LAST_PAGE)


def _within(checkpoint: CheckpointRecord, kind: str) -> EventQuery:
    """Select events of one kind in the thread of a checkpoint, newest first: a range of the scope index."""
    scope = thread_scope(checkpoint.thread, checkpoint.namespace)
    return EventQuery(kinds=(kind,), scope=scope, newest_first=True, brief=True)


def _seq(record: Record) -> int:
    return record.seq


def _target(record: Record) -> str | None:
    return decode_json(record.event.data or b"{}").get("to")


class _Orphan(msgspec.Struct, frozen=True):
    """A checkpoint whose parent is not stored."""

    id: str
    thread: str
    seq: int


def dangling(engine: Engine, space: str) -> Iterator[Problem]:
    """Find heads and parents that are missing although no removal is recorded; part of `Store.verify`.

    The engine follows addresses; only threads know that a head names a checkpoint, and a checkpoint its
    parent. One pass over the journal collects the missing parents, one over the recorded removals discards
    those that retention, `delete`, `clean` or `forget` explain.
    """
    yield from _lost_heads(engine, space)
    orphans: dict[str, list[_Orphan]] = {}
    yield from _find_orphans(engine, space, orphans)
    if orphans:
        _discard_removed(engine, space, orphans)
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
            if name in now and read_head(now[name]).checkpoint == head:  # else removed meanwhile
                yield _problem(name, f"its head is checkpoint {head!r}, which is not stored")


def _find_orphans(engine: Engine, space: str, orphans: dict[str, list[_Orphan]]) -> Iterator[Problem]:
    nearby: set[str] = set()
    for records in record_pages(engine, space, EventQuery(kinds=(KIND,))):
        own = {record.event.id for record in records}
        wanted: dict[str, list[_Orphan]] = {}
        for record in records:
            if not record.event.id.startswith(PREFIX):  # written by a batch of the user's own
                continue
            try:
                checkpoint = read_checkpoint(engine, space, record)
            except Corrupt as error:
                yield Problem(kind="corrupt", where=record.event.id, detail=str(error))
                continue
            parent = checkpoint.parent
            if parent is not None and parent not in own and parent not in nearby:
                child = _Orphan(checkpoint.id, checkpoint.thread, record.seq)
                wanted.setdefault(parent, []).append(child)
        for parent in wanted.keys() - _stored(engine, space, wanted):
            orphans.setdefault(parent, []).extend(wanted[parent])
        nearby = own


def _discard_removed(engine: Engine, space: str, orphans: dict[str, list[_Orphan]]) -> None:
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
    """Return those of these checkpoints that are stored."""
    return {record.event.id for record in _records_by_id(engine, space, ids)}


def _records_by_id(engine: Engine, space: str, ids: Iterable[str]) -> Iterator[Record]:
    """Iterate over the first rows of those of these checkpoints that are stored."""
    by_day: dict[int, list[str]] = {}
    for each in ids:
        try:
            by_day.setdefault(day_of(created_at_us(each)), []).append(each)
        except InvalidInput:  # nothing can be stored under that name
            continue
    for of_a_day in by_day.values():
        for start in range(0, len(of_a_day), _IDS_PER_QUERY):
            yield from each_record(engine, space, by_id(*of_a_day[start : start + _IDS_PER_QUERY]))


def _problem(where: str, what: str) -> Problem:
    return Problem(kind="dangling", where=where, detail=f"{what}; restore it from a backup")
