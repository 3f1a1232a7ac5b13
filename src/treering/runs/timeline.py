"""The timeline: what happened in a run or a thread, in the order in which it happened.

A span is one row, stored at the time of its start, but a timeline shows it twice: where it starts and where
it ends. Reading therefore merges the rows with the ends of spans that were already passed, and a cursor
carries the few spans whose end is still to come. **Invariant:** paging returns every event that existed at
the first page exactly once, in the order of (time, sequence number).

A `TimelineFilter` is built once, by the caller, and applied here. How a span ended and what its input was
may be in two rows, the open row and the row of its end, so the two are looked at together. **Invariant:** a
span is returned whole, start and end, or not at all.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import structs

from treering.core.clock import day_of, to_datetime, to_iso
from treering.core.content import Address
from treering.core.encoding import decode
from treering.core.ids import only_match, thread_key
from treering.core.query import EventQuery, each_record, encode_cursor, record_pages
from treering.core.rollups import MOVED
from treering.errors import InvalidInput, MissingExtra, NotFound
from treering.runs.follow import Follower, LiveEvent, LiveFilter, live_event
from treering.runs.money import from_nanos, to_nanos
from treering.runs.prices import EUR, exchange
from treering.runs.run import RUNNING, find_run, run_from_ref, run_not_found
from treering.runs.search import (
    EventIndex,
    IndexProgress,
    QueryWords,
    SearchResult,
    TimelineSearch,
    search,
    searchable,
)
from treering.runs.span import COMPACTED, FIRST_TOKEN, INPUT_SIZE, MESSAGE, OPEN, SPAN, RunRow, open_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.runs.listing import LegacyRuns

USUAL_TYPES: Final = frozenset({"agent.span.start", "agent.span.end", "message", "tool.call", "tool.result"})
"""The types of event that a timeline shows unless it is asked for everything."""
MAX_EVENTS: Final = 1000
"""The most events of a timeline report."""

RESULT: Final = ":result"
"""Follows the id of a tool call in the id of its result."""

_TYPES: Final = {
    ("agent", "start"): "agent.span.start",
    ("agent", "end"): "agent.span.end",
    ("tool", "start"): "tool.call",
    ("tool", "end"): "tool.result",
}
_IS_COMPACTED: Final = f'"{COMPACTED}":true'.encode()
_PAGE: Final = 500

Phase = Literal["start", "end", "at"]


@dataclass(frozen=True, kw_only=True)
class TimelineFilter:
    """Which events of a timeline to return. Unset fields do not filter; set fields must all match."""

    span: str | None = None
    """This span and its descendants; the beginning of its id is enough."""
    agent: str | None = None
    kind: str | None = None
    """``message``, or a kind of span: ``tool``, ``llm``, ``agent``, ..."""
    status: str | None = None
    """``ok``, ``error``, ...; ``running`` for spans that have not ended."""
    text: str | None = None
    """All words must occur in the name, input or output, compared by their stems."""


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a timeline."""

    type: str
    ts_us: int
    seq: int
    run_id: str | None
    agent: str | None
    label: str
    ref: dict[str, str]
    meta: dict[str, Any]
    body: Address | None = None
    """The address of the content: a message's text, a call's input, a result's output."""

    @property
    def ts(self) -> datetime:
        """In UTC."""
        return to_datetime(self.ts_us)


class TimelinePage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of events, and the cursor of the next page; ``None`` if there is none now."""

    events: tuple[TimelineEvent, ...]
    cursor: str | None


class Timeline:
    """The timelines of the runs and threads of one space."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def __repr__(self) -> str:
        return f"<Timeline space={self._space!r}>"

    def of_run(
        self,
        run_id: str,
        *,
        first: int = 1000,
        cursor: str | None = None,
        everything: bool = False,
        filter: TimelineFilter | None = None,
    ) -> TimelinePage:
        """Return a page of a run's timeline: the five usual types of event, or ``everything`` recorded."""
        query = EventQuery(run=run_id, order="time")
        return self._page(query, first, cursor, everything=everything, filter=filter)

    def of_thread(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        first: int = 1000,
        cursor: str | None = None,
        everything: bool = False,
        filter: TimelineFilter | None = None,
    ) -> TimelinePage:
        """Return a page of the timeline of a thread, with all its runs; see `of_run`."""
        query = EventQuery(thread=thread_key(thread_id, namespace), order="time")
        return self._page(query, first, cursor, everything=everything, filter=filter)

    def each_of_run(self, run_id: str, *, everything: bool = False) -> Iterator[TimelineEvent]:
        """Iterate over the whole timeline of a run, reading a page at a time."""
        cursor = None
        while True:
            page = self.of_run(run_id, cursor=cursor, everything=everything)
            yield from page.events
            if page.cursor is None:
                return
            cursor = page.cursor

    def since(
        self, since_us: int, *, thread_id: str | None = None, namespace: str = "", run_id: str | None = None
    ) -> Iterator[TimelineEvent]:
        """Iterate over what a thread (or else a run) recorded since a time, in the order of the starts."""
        thread = None if thread_id is None else thread_key(thread_id, namespace)
        if thread is None and run_id is None:
            return
        run = run_id if thread is None else None
        query = EventQuery(thread=thread, run=run, since_us=since_us, order="time")
        for record in each_record(self._engine, self._space, query):
            yield from timeline_events(record)

    def search(
        self,
        text: str,
        *,
        run: str | None = None,
        agent: str | None = None,
        kind: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        limit: int = 20,
    ) -> SearchResult:
        """Find messages, inputs and outputs that contain the words, those with the most of them first.

        Words are compared by their stems. ``kind`` is ``message``, ``tool``, ``llm`` or another kind of
        span. Events are found once they are in the store (`Store.flush`). The index follows the writers; the
        result says how many events are not in it yet (``not_indexed``). `index` brings it up to date.
        """
        query = TimelineSearch(
            text=text, run=run, agent=agent, kind=kind, since_us=since_us, until_us=until_us, limit=limit
        )
        return search(self._engine, self._space, query)

    def index(self, *, on_page: Callable[[IndexProgress], None] | None = None) -> int:
        """Bring the search index up to date, and return how many events were new to it.

        The newest events, less than a page of them, are not indexed yet; a search reads them directly.
        ``on_page`` is called after each page. What was indexed stays if this is interrupted.
        """
        return EventIndex(self._engine, self._space).catch_up(on_page=on_page)

    def follow(
        self,
        *,
        after: int | None = None,
        run: str | None = None,
        thread: str | None = None,
        namespace: str = "",
        agent: str | None = None,
        kinds: Sequence[str] = (),
        seconds: float | None = None,
    ) -> Iterator[LiveEvent]:
        """Iterate over events as any process commits them, from sequence number ``after`` on (default: now).

        Never ends, unless ``seconds`` pass without an event. To resume, pass the ``seq`` of the last event
        as ``after``. ``namespace`` is that of the thread.
        """
        live = LiveFilter(run=run, thread=thread, namespace=namespace, agent=agent, kinds=tuple(kinds))
        return Follower(
            self._engine, self._space, live, lambda row: (live_event(row),), after=after, seconds=seconds
        )

    def live(
        self,
        *,
        after: int | None = None,
        run: str | None = None,
        thread: str | None = None,
        namespace: str = "",
        agent: str | None = None,
        kinds: Sequence[str] = (),
        everything: bool = False,
        seconds: float | None = None,
    ) -> Iterator[TimelineEvent]:
        """Iterate over new events as `follow` does, in the form of a timeline: `of_run`, continued live.

        They come in the order of their commits. A span that was stored only when it ended gives its start and
        its end at once, with the same ``seq``.
        """
        live = LiveFilter(run=run, thread=thread, namespace=namespace, agent=agent, kinds=tuple(kinds))
        return Follower(
            self._engine,
            self._space,
            live,
            lambda row: timeline_events(row, everything=everything),
            after=after,
            seconds=seconds,
        )

    def content(self, *addresses: Address) -> list[Any]:
        """Fetch the content of events, by the addresses in `TimelineEvent.body`."""
        return [decode(each) for each in self._engine.get(self._space, list(addresses))]

    def _page(
        self,
        query: EventQuery,
        first: int,
        cursor: str | None,
        *,
        everything: bool,
        filter: TimelineFilter | None,
    ) -> TimelinePage:
        if first < 1:
            raise InvalidInput(f"first={first}; request at least one event")
        position = _decode_cursor(cursor)
        kind = None if filter is None else filter.kind
        everything = everything or kind not in (None, MESSAGE)  # asking for a kind shows all of it
        ends: list[tuple[int, int, RunRow]] = []
        for row in self._open_spans(query, position.open):
            heappush(ends, (row.end_us, row.seq, row))
        events: list[TimelineEvent] = []

        def add(row: RunRow, phase: Phase) -> None:
            event = timeline_event(row, phase)
            if everything or event.type in USUAL_TYPES:
                events.append(event)

        after = position.after
        for row in self._rows(query, after, filter):
            ts_us = row.event.ts_us
            while ends and ends[0][:2] < (ts_us, row.seq) and len(events) < first:
                add(heappop(ends)[2], "end")
            if len(events) == first:
                return TimelinePage(events=tuple(events), cursor=_encode_cursor(after, ends))
            if row.is_span:
                if not row.is_announced:
                    add(row, "start")
                heappush(ends, (row.end_us, row.seq, row))
            elif row.is_open:
                add(row, "start")
            elif row.event.kind == MESSAGE or (everything and row.event.kind != MOVED):
                add(row, "at")
            after = encode_cursor(query, ts_us, row.seq)
        while ends and len(events) < first:
            add(heappop(ends)[2], "end")
        return TimelinePage(events=tuple(events), cursor=_encode_cursor(after, ends) if ends else None)

    def _rows(self, query: EventQuery, after: str | None, filter: TimelineFilter | None) -> Iterator[RunRow]:
        """The rows that match a filter, in order of time, read a page at a time."""
        row_filter = None if filter is None else _RowFilter(self._engine, self._space, filter, query)
        indexed = query if row_filter is None else row_filter.query
        for records in record_pages(self._engine, self._space, indexed, after=after, limit=_PAGE):
            rows = [RunRow(record) for record in records]
            yield from rows if row_filter is None else row_filter.matching(rows)

    def _open_spans(self, query: EventQuery, spans: Sequence[tuple[str, int]]) -> Iterator[RunRow]:
        """The rows of spans that an earlier page showed the start of."""
        if not spans:
            return
        times = [ts_us for _, ts_us in spans]
        ids = tuple(span for span, _ in spans)
        # The time range makes this a range of the run's index instead of a walk over the journal.
        by_id = structs.replace(query, ids=ids, since_us=min(times), until_us=max(times) + 1)
        for record in each_record(self._engine, self._space, by_id, limit=_PAGE):
            yield RunRow(record)


class _RowFilter:
    """Applies a `TimelineFilter` to the rows of a run or a thread, which ``whole`` selects."""

    def __init__(self, engine: Engine, space: str, filter: TimelineFilter, whole: EventQuery) -> None:
        self._engine = engine
        self._space = space
        self._filter = filter
        self._whole = whole
        self._words = None if filter.text is None else QueryWords(filter.text)
        if self._words is not None and not self._words.stems:
            raise InvalidInput(f"text={filter.text!r} contains no words to search for")
        self._subtree = None if filter.span is None else self._descendants(filter.span)

    @property
    def query(self) -> EventQuery:
        """The part of the filter that the journal's indexes answer; `matching` does the rest."""
        kind = self._filter.kind
        kinds = () if kind is None else (kind, SPAN + kind, OPEN + kind)
        if kind == MESSAGE:  # also model calls whose output is a message
            kinds = (MESSAGE, SPAN + "llm")
        return structs.replace(self._whole, agent=self._filter.agent, kinds=kinds)

    def matching(self, rows: Sequence[RunRow]) -> Iterable[RunRow]:
        """Return the rows that match, in order."""
        if self._subtree is not None:
            rows = [row for row in rows if row.event.span in self._subtree]
        if self._filter.kind == MESSAGE:
            rows = [row for row in rows if row.event.role is not None]
        if not rows or (self._words is None and self._filter.status is None):
            return rows
        spans: dict[str, list[RunRow]] = {}
        for row in (*rows, *self._missing_halves(rows)):
            spans.setdefault(row.span_id, []).append(row)
        passing = self._with_status(spans) & self._with_text(spans)
        return [row for row in rows if row.span_id in passing]

    def _with_status(self, spans: dict[str, list[RunRow]]) -> set[str]:
        status = self._filter.status
        return {span for span, rows in spans.items() if status in (None, _status(rows))}

    def _with_text(self, spans: dict[str, list[RunRow]]) -> set[str]:
        words = self._words
        if words is None:
            return set(spans)
        found = {
            span: words.found_in(" ".join(row.event.name or "" for row in rows))
            for span, rows in spans.items()
        }
        contents = searchable(row for rows in spans.values() for row in rows)
        for content, text in EventIndex(self._engine, self._space).texts(contents):
            found[content.row.span_id] |= words.found_in(text)
        return {span for span, stems in found.items() if stems == words.stems}

    def _missing_halves(self, rows: Sequence[RunRow]) -> Sequence[RunRow]:
        """Fetch the open rows and ends of spans that are not on the page. Both have the start's time."""
        present = {row.event.id for row in rows}
        times: dict[str, int] = {}
        for row in rows:
            if row.is_open:
                times[row.span_id] = row.event.ts_us
            elif row.is_span and row.is_announced:
                times[open_id(row.span_id)] = row.event.ts_us
        missing = {row_id: ts_us for row_id, ts_us in times.items() if row_id not in present}
        if not missing:
            return ()
        query = structs.replace(
            self._whole,
            ids=tuple(missing),
            since_us=min(missing.values()),
            until_us=max(missing.values()) + 1,
        )
        found = self._engine.scan(self._space, query, limit=len(missing)).records
        return [RunRow(record) for record in found]

    def _descendants(self, span: str) -> set[str]:
        """Return a span and everything below it; clocks may put a child before its parent."""
        children: dict[str | None, set[str]] = {}
        spans: set[str] = set()
        for record in each_record(self._engine, self._space, self._whole):
            event = record.event
            if event.span is not None and event.kind.startswith((SPAN, OPEN)):
                children.setdefault(event.parent, set()).add(event.span)
                spans.add(event.span)
        match = only_match(spans, span.removesuffix(RESULT), "span")
        if match is None:
            where = f"run {self._whole.run!r}" if self._whole.run else "this thread"
            hint = self._whole.run or "--thread THREAD"
            raise NotFound(f"span {span!r} not found in {where}. List spans with: treering timeline {hint}")
        found, queue = {match}, [match]
        while queue:
            new = children.get(queue.pop(), set()) - found
            found |= new
            queue += new
        return found


def _status(rows: Sequence[RunRow]) -> str | None:
    ended = [row.event for row in rows if not row.is_open]
    return ended[0].status if ended else RUNNING


def timeline_events(record: Record, *, everything: bool = False) -> list[TimelineEvent]:
    """Return what a timeline shows of one row: of the usual five types, or of all."""
    row = RunRow(record)
    if row.is_span:
        phases: tuple[Phase, ...] = ("end",) if row.is_announced else ("start", "end")
    else:
        phases = ("start",) if row.is_open else ("at",)
    events = [timeline_event(row, phase) for phase in phases if row.event.kind != MOVED]
    return [event for event in events if everything or event.type in USUAL_TYPES]


def timeline_event(row: RunRow, phase: Phase) -> TimelineEvent:
    """Return a row as an event: a span at its start or its end, anything else at its time."""
    event = row.event
    kind = row.span_kind
    is_span = row.is_span or row.is_open
    type_ = _TYPES.get((kind, phase), f"{kind}.span.{phase}") if is_span else event.kind
    if phase == "end" and event.role is not None:
        type_ = MESSAGE  # a model call whose output is a message
    return TimelineEvent(
        type=type_,
        ts_us=row.end_us if phase == "end" else event.ts_us,
        seq=row.seq,
        run_id=event.run,
        agent=event.agent,
        label=_label(row, type_, event.name or event.agent or kind),
        ref=_ref(row, type_),
        meta=_meta(row, type_),
        body=row.input if phase == "start" else event.body,
    )


def _label(row: RunRow, type_: str, name: str) -> str:
    event = row.event
    if type_ == "message":
        return f"{event.role} message"
    if type_ == "tool.call":
        return f"call {name}"
    if type_ == "tool.result":
        return f"{name} result"
    if type_.endswith(".start"):
        return f"▶ {name}"
    if type_.endswith(".end"):
        return f"■ {name} ({(event.duration_us or 0) / 1e6:.2f}s)"
    return name


def _ref(row: RunRow, type_: str) -> dict[str, str]:
    event = row.event
    if type_ == "message":
        return {"message_id": event.id}
    if type_ == "tool.call":
        return {"tool_call_id": event.span or event.id}
    if type_ == "tool.result":
        return {"tool_result_id": event.id + RESULT}
    if type_ == "checkpoint":
        return {"checkpoint_id": event.id}
    return {"span_id": event.span or event.id}


def _meta(row: RunRow, type_: str) -> dict[str, Any]:
    event = row.event
    if type_ == "message":
        meta = {
            "model": event.model,
            "tokens": None if event.usage is None else event.usage.total,
            "cost": None if event.cost_nanos is None else float(from_nanos(event.cost_nanos)),
            "currency": event.currency,
        }
        return meta | {COMPACTED: True} if _IS_COMPACTED in (event.data or b"") else meta
    if type_ == "tool.call":
        return {}
    if type_ == "tool.result":
        return {"status": event.status}
    data = row.data
    if type_ == "checkpoint":
        return {name: data[name] for name in ("thread", "namespace", "step", "snapshot") if name in data}
    if type_.endswith(".start"):
        return {"input_size": data.get(INPUT_SIZE, 0)}
    if type_.endswith(".end"):
        meta = {"status": event.status, "duration": (event.duration_us or 0) / 1e6}
        return meta if FIRST_TOKEN not in data else meta | {"first_token": data[FIRST_TOKEN] / 1e6}
    return data


class _Position(msgspec.Struct, frozen=True, array_like=True):
    """The content of a cursor."""

    after: str | None
    open: list[tuple[str, Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]]]
    """Id and time of the spans whose start was shown and whose end was not."""


def _encode_cursor(after: str | None, ends: Sequence[tuple[int, int, RunRow]]) -> str:
    position = _Position(after, [(row.event.id, row.event.ts_us) for _, _, row in ends])
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def _decode_cursor(cursor: str | None) -> _Position:
    if cursor is None:
        return _Position(None, [])
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=_Position)
    except (ValueError, msgspec.DecodeError):
        raise InvalidInput(
            f"{cursor[:80]!r} is not a cursor of a timeline; pass the cursor of the previous page"
        ) from None


def timeline_report(
    engine: Engine,
    space: str,
    run_id: str,
    *,
    limit: int = MAX_EVENTS,
    cursor: str | None = None,
    everything: bool = False,
    filter: TimelineFilter | None = None,
    legacy: LegacyRuns | None = None,
) -> dict[str, Any]:
    """Return a page of a run's timeline as REST returns it: ``{"events": [...], "next_cursor": ...}``.

    A run that is not in the store is read from ``legacy``.
    """
    if not 1 <= limit <= MAX_EVENTS:
        raise InvalidInput(f"limit={limit}; use 1 to {MAX_EVENTS}, and continue with next_cursor")
    ref = find_run(engine, space, run_id)
    if ref is None:
        found = None if legacy is None else legacy.timeline(run_id, limit=limit, cursor=cursor)
        if found is None:
            raise run_not_found(run_id)
        return found
    page = Timeline(engine, space).of_run(
        run_from_ref(ref).id, first=limit, cursor=cursor, everything=everything, filter=filter
    )
    return page_to_dict(page)


def page_to_dict(page: TimelinePage) -> dict[str, Any]:
    """Return a page of a timeline as REST returns it."""
    return {"events": [event_to_dict(event) for event in page.events], "next_cursor": page.cursor}


def event_to_dict(event: TimelineEvent) -> dict[str, Any]:
    """Return an event as REST returns it, in a page or live."""
    meta = event.meta
    if event.type == MESSAGE:
        rest = {COMPACTED: True} if COMPACTED in meta else {}
        meta = {"model": meta["model"], "tokens": meta["tokens"], "cost_eur": _cost_eur(event), **rest}
    return {
        "type": event.type,
        "ts": to_iso(event.ts_us),
        "run_id": event.run_id,
        "agent": event.agent,
        "label": event.label,
        "ref": event.ref,
        "meta": meta,
    }


def _cost_eur(event: TimelineEvent) -> float | None:
    amount, currency = event.meta["cost"], event.meta["currency"]
    if amount is None or currency == EUR:
        return amount
    try:
        rate = exchange.rate(currency, day_of(event.ts_us))
    except MissingExtra:
        return None  # the cost report says what is missing
    return None if rate is None else float(from_nanos(rate.convert(to_nanos(amount))))
