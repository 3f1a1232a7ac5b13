"""The journal of threads: how their checkpoints are named, found and followed back.

A thread's checkpoints are the events of its erasure scope. A parent is always older than its child, so the
line that leads to a head is found in one pass over a thread, newest first, and goes on in the thread that
it was forked from. Where retention dropped a parent, the line goes on with what is left of it: the rewinds
in the same scope say which checkpoints were left behind. **Invariant:** a parent that is missing without an
event that says why it was removed is `Corrupt`; a chain that was cut never passes for a short one.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.encoding import decode, decode_json
from treering.core.ids import MAINTENANCE_SCOPE, Scope, namespace_prefix, thread_scope
from treering.core.query import EventQuery
from treering.errors import Corrupt, NotFound
from treering.threads.checkpoint_record import KIND, by_id, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.threads.checkpoint_record import CheckpointRecord

HEADS: Final = "thread/"
REWIND: Final = "rewind"
DELETED: Final = "thread.deleted"
CLEANED: Final = "thread.cleaned"
CHAT_DELETED: Final = "chat.deleted"
LEDGER: Final = str(Scope("", "ledger", "threads"))
"""Where it is written that a thread was removed: a scope of its own, which no thread takes along."""

_FIRST_PAGE: Final = 20
_LAST_PAGE: Final = 1000
RETENTION: Final = "retention"
REMOVALS: Final = (
    (MAINTENANCE_SCOPE, RETENTION),
    (MAINTENANCE_SCOPE, "forget"),
    (LEDGER, DELETED),
    (LEDGER, CLEANED),
    (LEDGER, CHAT_DELETED),
)
"""Where it is written that something was removed, and as what."""


def head_ref(thread_id: str, namespace: str) -> str:
    """The name of the ref that is a thread's head; two threads never share one."""
    return heads_prefix(namespace) + thread_id


def heads_prefix(namespace: str) -> str:
    """What the heads of a namespace start with, and of no other."""
    return HEADS + namespace_prefix(namespace)


class HeadValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ref of a head holds, as JSON: its checkpoint, and what a list of threads shows.

    Retention finds the checkpoint that a head holds by the key ``checkpoint``.
    """

    checkpoint: str
    first_us: int
    """When the thread was first saved."""
    step: int
    thread: str
    namespace: str = ""


_encode_head: Final = msgspec.json.Encoder().encode
_decode_head: Final = msgspec.json.Decoder(HeadValue).decode


def encode_head(checkpoint: CheckpointRecord, first_us: int) -> bytes:
    """Return what the head of a thread holds when it is at this checkpoint."""
    return _encode_head(
        HeadValue(checkpoint.id, first_us, checkpoint.step, checkpoint.thread, checkpoint.namespace)
    )


def read_head(ref: Ref) -> HeadValue:
    """Return what a head holds. Raise `Corrupt` if it cannot be read."""
    try:
        return _decode_head(ref.value)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the head {ref.name!r} cannot be read ({error}); run `treering verify`, restore from a backup"
        ) from None


def dropped_by(engine: Engine, space: str, record: Record) -> list[str]:
    """The checkpoints that an event of retention says were dropped."""
    body = record.event.body
    dropped: Any = {} if body is None else decode(engine.get(space, [body])[0])
    return dropped.get(KIND, [])


class Journal:
    """The checkpoints of one namespace."""

    def __init__(self, engine: Engine, space: str, namespace: str) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace

    def by_id(self, checkpoint_id: str) -> CheckpointRecord:
        """One checkpoint; those of other namespaces are not there."""
        return self._found(checkpoint_id)[0]

    def all_of(self, scope: str, *, behind: str | None = None) -> Iterator[CheckpointRecord]:
        """Every checkpoint of a thread, newest first; those older than ``behind``, if that is given."""
        after = None if behind is None else str(self._found(behind)[1].seq)
        query = EventQuery(kinds=(KIND,), scope=scope, newest_first=True, brief=True)
        for record in self._records(query, after):
            yield read_checkpoint(self._engine, self._space, record)

    def line(self, head: CheckpointRecord | None) -> Iterator[CheckpointRecord]:
        """A checkpoint and its ancestors, through forks into the threads that they came from."""
        return self._line(head, None)

    def line_behind(self, checkpoint_id: str) -> Iterator[CheckpointRecord]:
        """The ancestors of a checkpoint, without itself."""
        checkpoint, record = self._found(checkpoint_id)
        return islice(self._line(checkpoint, record.seq), 1, None)

    def _line(self, head: CheckpointRecord | None, seq: int | None) -> Iterator[CheckpointRecord]:
        while head is not None:
            oldest = yield from self._line_within(head, seq)
            head, seq = self._origin(oldest) or (None, None)

    def _line_within(
        self, head: CheckpointRecord, seq: int | None
    ) -> Generator[CheckpointRecord, None, CheckpointRecord]:
        """The part of a line in the thread of its newest checkpoint (committed as ``seq``); its oldest."""
        yield head
        child, child_seq = head, seq
        for record in self._records(_within(head, KIND), None if seq is None else str(seq)):
            event, wanted = record.event, child.parent
            if wanted is None:
                break
            if child_seq is None:
                child_seq = record.seq if event.id == head.id else None
            elif event.id == wanted:
                child, child_seq = read_checkpoint(self._engine, self._space, record), record.seq
                yield child
            elif event.id < wanted and self._is_dropped(wanted, child):
                return (yield from self._line_over_gaps(child, child_seq))
        return child

    def _line_over_gaps(
        self, child: CheckpointRecord, seq: int
    ) -> Generator[CheckpointRecord, None, CheckpointRecord]:
        """What is left of a line behind a checkpoint (committed as ``seq``) whose parent was dropped."""
        left_behind: str | None = None
        both = (self._records(_within(child, kind), str(seq)) for kind in (KIND, REWIND))
        for record in heapq.merge(*both, key=_seq, reverse=True):
            event, wanted = record.event, child.parent
            if wanted is None:
                break
            if event.kind == REWIND:
                # What lies between a rewind and its target was left behind; rewinds in there do not count.
                left_behind = left_behind or _target(record)
                continue
            if event.id == wanted or (left_behind is not None and event.id <= left_behind):
                left_behind = None
            if event.id != wanted and (
                event.id > wanted or left_behind is not None or not self._is_dropped(wanted, child)
            ):
                continue
            child = read_checkpoint(self._engine, self._space, record)
            yield child
        return child

    def _origin(self, child: CheckpointRecord) -> tuple[CheckpointRecord, int] | None:
        """The parent of a thread's first checkpoint, which is in another thread; not of another namespace."""
        if child.parent is None or self._is_dropped(child.parent, child):
            return None
        for record in self._records_of(child.parent):
            origin = read_checkpoint(self._engine, self._space, record)
            if origin.namespace == self._namespace:
                return origin, record.seq
        return None

    def _is_dropped(self, checkpoint_id: str, child: CheckpointRecord) -> bool:
        """Whether a checkpoint was removed, by someone who said so, after it had this child."""
        if self._records_of(checkpoint_id):
            return False
        after = str(self._found(child.id)[1].seq)
        for scope, kind in REMOVALS:
            for record in self._records(EventQuery(kinds=(kind,), scope=scope), after):
                if kind != RETENTION or checkpoint_id in dropped_by(self._engine, self._space, record):
                    return True
        raise Corrupt(
            f"checkpoint {child.id!r} of thread {child.thread!r} has lost its parent {checkpoint_id!r}, and "
            "nothing says that it was removed; run verify, then restore it from a backup"
        )

    def _found(self, checkpoint_id: str) -> tuple[CheckpointRecord, Record]:
        for record in self._records_of(checkpoint_id):
            checkpoint = read_checkpoint(self._engine, self._space, record)
            if checkpoint.namespace == self._namespace:
                return checkpoint, record
        raise NotFound(
            f"there is no checkpoint {checkpoint_id!r} in this namespace; history() shows what there is"
        )

    def _records_of(self, checkpoint_id: str) -> tuple[Record, ...]:
        return self._engine.scan(self._space, by_id(checkpoint_id), limit=1).records

    def _records(self, query: EventQuery, after: str | None) -> Iterator[Record]:
        """In pages that grow: who wants the newest few reads few, who wants all asks seldom."""
        limit = _FIRST_PAGE
        while True:
            page = self._engine.scan(self._space, query, after=after, limit=limit)
            yield from page.records
            if page.cursor is None:
                return
            after, limit = page.cursor, min(limit * 4, _LAST_PAGE)


def _within(checkpoint: CheckpointRecord, kind: str) -> EventQuery:
    """Events of one kind in the thread of a checkpoint, newest first: one range of the scope's index."""
    scope = thread_scope(checkpoint.thread, checkpoint.namespace)
    return EventQuery(kinds=(kind,), scope=scope, newest_first=True, brief=True)


def _seq(record: Record) -> int:
    return record.seq


def _target(record: Record) -> str | None:
    return decode_json(record.event.data or b"{}").get("to")
