"""Follow the journal: events as any process commits them, from any sequence number on.

Every commit gives its events the next sequence numbers, so a position in the journal is one number. A
follower that resumes after the last number it has seen misses nothing and sees nothing twice. Waiting is not
polling: a commit of any process wakes the follower.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, Protocol, Self, TypeVar

import msgspec

from treering.core.batch import Usage
from treering.core.clock import to_datetime
from treering.core.content import Address
from treering.core.encoding import decode_json
from treering.core.engine import Engine
from treering.core.ids import thread_key, thread_of_key
from treering.core.query import EventQuery, last_seq
from treering.core.records import Record
from treering.errors import InvalidInput
from treering.runs.money import from_nanos

_PAGE: Final = 500
_SLICE_SECONDS: Final = 0.5
"""How long a waiting follower may take to notice that it was closed."""


class LiveEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of the journal. To resume after it, pass its ``seq``."""

    seq: int
    id: str
    kind: str
    ts_us: int
    committed_at_us: int
    run: str | None = None
    span: str | None = None
    parent: str | None = None
    thread: str | None = None
    namespace: str = ""
    """The namespace of the thread."""
    agent: str | None = None
    name: str | None = None
    model: str | None = None
    role: str | None = None
    status: str | None = None
    usage: Usage | None = None
    cost: str | None = None
    """An exact amount of ``currency``."""
    currency: str | None = None
    duration_us: int | None = None
    data: Any = None
    body: Address | None = None
    """The address of the content; `Timeline.content` fetches it."""

    @property
    def ts(self) -> datetime:
        """In UTC."""
        return to_datetime(self.ts_us)

    @property
    def committed_at(self) -> datetime:
        """When it was committed, in UTC."""
        return to_datetime(self.committed_at_us)


class LiveFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events to follow. Unset fields do not filter; set fields must all match.

    A kind is complete (``span.tool``) or only the first word (``span``). ``namespace`` is that of the thread.
    """

    run: str | None = None
    thread: str | None = None
    namespace: str = ""
    agent: str | None = None
    kinds: tuple[str, ...] = ()

    def matches(self, event: LiveEvent) -> bool:
        """Whether an event passes the filter."""
        return (
            (self.run is None or event.run == self.run)
            and (self.thread is None or (event.thread, event.namespace) == (self.thread, self.namespace))
            and (self.agent is None or event.agent == self.agent)
            and (not self.kinds or event.kind in self.kinds or event.kind.partition(".")[0] in self.kinds)
        )

    @property
    def query(self) -> EventQuery:
        """The part of the filter that an index answers; `matches` does the rest."""
        return EventQuery(run=self.run, thread=thread_key(self.thread, self.namespace), agent=self.agent)


def live_event(record: Record) -> LiveEvent:
    """Return a record as followers get it."""
    event = record.event
    thread, namespace = thread_of_key(event.thread)
    return LiveEvent(
        seq=record.seq,
        id=event.id,
        kind=event.kind,
        ts_us=event.ts_us,
        committed_at_us=record.committed_at_us,
        run=event.run,
        span=event.span,
        parent=event.parent,
        thread=thread,
        namespace=namespace,
        agent=event.agent,
        name=event.name,
        model=event.model,
        role=event.role,
        status=event.status,
        usage=event.usage,
        cost=None if event.cost_nanos is None else f"{from_nanos(event.cost_nanos):f}",
        currency=event.currency,
        duration_us=event.duration_us,
        data=None if event.data is None else decode_json(event.data),
        body=event.body,
    )


class Followed(Protocol):
    """What a follower returns: something with a sequence number to resume after."""

    @property
    def seq(self) -> int:
        """The sequence number."""
        ...


E = TypeVar("E", bound=Followed)


class Follower(Iterator[E]):
    """An endless iterator over new events. `close` ends it, from any thread, also while it waits.

    ``convert`` returns what to show of a record that passes the filter.
    """

    def __init__(
        self,
        engine: Engine,
        space: str,
        filter: LiveFilter,
        convert: Callable[[Record], Iterable[E]],
        *,
        after: int | None,
        seconds: float | None = None,
    ) -> None:
        if after is not None and after < 0:
            raise InvalidInput(f"after={after}; pass a sequence number, or None for new events")
        self._engine = engine
        self._space = space
        self._filter = filter
        self._convert = convert
        self._seconds = seconds
        self._ready: deque[E] = deque()
        self._is_closed = threading.Event()
        last = last_seq(engine, space)
        self.position = last if after is None else min(after, last)
        """The last sequence number that was returned, or where following started."""
        self._read_to = self.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> E:
        waited = 0.0
        while not self._ready:
            if self._is_closed.is_set():
                raise StopIteration
            if not self._read():
                if self._seconds is not None and waited >= self._seconds:
                    raise StopIteration
                left = _SLICE_SECONDS if self._seconds is None else self._seconds - waited
                left = min(_SLICE_SECONDS, left)
                self._engine.wait(self._space, self._read_to, seconds=left)
                waited += left
        event = self._ready.popleft()
        self.position = event.seq
        return event

    def close(self) -> None:
        """End the iteration."""
        self._is_closed.set()

    def _read(self) -> bool:
        """Read the next page; return whether there was anything new, matching or not."""
        last = last_seq(self._engine, self._space)
        if last <= self._read_to:
            return False
        page = self._engine.scan(self._space, self._filter.query, after=str(self._read_to), limit=_PAGE)
        for record in page.records:
            if self._filter.matches(live_event(record)):
                self._ready.extend(self._convert(record))
        last_read = page.records[-1].seq if page.records else 0
        self._read_to = last_read if page.cursor is not None else max(last, last_read)
        return True
