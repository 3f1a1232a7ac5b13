"""Logs: events of one kind in a thread, each with a small record and a content, in commit order."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from treering.core.batch import Event
from treering.core.draft import Draft
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import check_id
from treering.core.pages import record_pages
from treering.core.query import Erasure, EventQuery, encode_cursor
from treering.core.scopes import Scope
from treering.views.thread_keys import thread_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from treering.core.engine import Engine

_PAGE: Final = 500


class Entry:
    """One event: its columns, the record beside them, its content, and the cursor behind it."""

    __slots__ = ("content", "cursor", "data", "event", "seq")

    def __init__(self, event: Event, seq: int, cursor: str, content: Any) -> None:
        self.event = event
        self.seq = seq
        self.cursor = cursor
        self.data: dict[str, Any] = decode_json(event.data) if event.data is not None else {}
        self.content = content


class Log:
    """The events of one kind in one thread; forgotten with the thread."""

    def __init__(self, engine: Engine, space: str, thread_id: str, namespace: str, *, kind: str) -> None:
        self._engine = engine
        self._space = space
        self._kind = kind
        self._key = thread_key(check_id(thread_id, "thread id"), namespace)
        self._scope = str(Scope(namespace, "thread", thread_id))

    def append(
        self,
        content: Any,
        data: Mapping[str, Any],
        *,
        ts_us: int,
        role: str,
        agent: str | None = None,
        status: str | None = None,
    ) -> None:
        """Add an event; durable when this returns."""
        draft = Draft(self._space)
        self.put(draft, content, data, id=draft.id, ts_us=ts_us, role=role, agent=agent, status=status)
        self._engine.commit(draft.batch())

    def put(
        self,
        draft: Draft,
        content: Any,
        data: Mapping[str, Any],
        *,
        id: str,
        ts_us: int,
        role: str,
        agent: str | None = None,
        status: str | None = None,
    ) -> None:
        """Put an event into a batch; one whose id is there already will be left out."""
        body = draft.put(encode(content, keep_order=True), scope=self._scope)
        draft.event(
            Event(
                id=id,
                kind=self._kind,
                ts_us=ts_us,
                scope=self._scope,
                thread=self._key,
                data=encode_json(data, keep_order=True),
                role=role,
                agent=agent,
                status=status,
                body=body,
            )
        )

    def each(self, *, newest_first: bool = False, after: str | None = None) -> Iterator[Entry]:
        """The events in order, read a page at a time."""
        query = EventQuery(kinds=(self._kind,), thread=self._key, newest_first=newest_first)
        for records in record_pages(self._engine, self._space, query, after=after, limit=_PAGE):
            bodies = [record.event.body for record in records if record.event.body is not None]
            contents = iter(self._engine.get(self._space, bodies) if bodies else [])
            for record in records:
                event = record.event
                content = decode(next(contents)) if event.body is not None else None
                yield Entry(event, record.seq, encode_cursor(query, event.ts_us, record.seq), content)

    def last(self, count: int) -> list[Entry]:
        """The newest events, in order; what comes before them is not read."""
        return list(islice(self.each(newest_first=True), count))[::-1]

    def erase(self) -> int:
        """Remove all events for good; says how many there were."""
        seqs = tuple(entry.seq for entry in self.each())
        if seqs:
            self._engine.erase(self._space, Erasure(event_seqs=seqs, secure=True))
        return len(seqs)
