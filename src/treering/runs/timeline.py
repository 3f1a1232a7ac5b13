"""The timeline: what happened in a run or a thread, in the order in which it happened.

A span is one row, filed under the time when it began, but a timeline shows it twice: where it begins and
where it ends. Reading therefore merges the rows with the ends of those that were passed already, and a
cursor carries the few spans whose end is still to come. **Invariant:** paging gives every entry that was
there at the first page exactly once, in the order of (time, sequence number).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import structs

from treering.core.clock import to_iso
from treering.core.content import Address
from treering.core.encoding import decode, decode_json
from treering.core.ids import thread_key
from treering.core.money import from_nanos
from treering.core.paging import each_record, record_pages
from treering.core.query import EventQuery, encode_cursor
from treering.errors import InvalidInput, NotFound
from treering.runs.follow import Following, LiveEvent, Selection
from treering.runs.run import RUNNING
from treering.runs.search import AskedWords, EventIndex, Found, Wanted, pieces_of, search
from treering.runs.span import FIRST_TOKEN, MESSAGE, OPEN, SPAN, input_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from treering.core.batch import Event
    from treering.core.engine import Engine
    from treering.core.records import Record


# -----------------------------------------------------------------------------------------------------------
# What of a timeline is wanted: of which span, agent and kind, how it ended, and with which words.
#
# Agent and kind are asked of the journal. How a span ended and what it was given may stand in two rows,
# that of its beginning and that of its end, so those are looked at together. **Invariant:** a span is shown
# whole, beginning and end, or not at all.


_SUFFIX: Final = ":open"


class Only(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a timeline; those that are left out do not filter, and those given must all hold."""

    span: str | None = None
    """This span, and everything below it."""
    agent: str | None = None
    kind: str | None = None
    """``message``, or the kind of a span: ``tool``, ``llm``, ``agent``, ..."""
    status: str | None = None
    """How a span ended: ``ok``, ``error``, ...; ``running`` for one that has not."""
    text: str | None = None
    """Words that all stand in its name, its input or its output, compared by their stems."""


class Sieve:
    """Lets through what is wanted of a journal's records."""

    def __init__(self, engine: Engine, space: str, only: Only, whole: EventQuery) -> None:
        self._engine = engine
        self._space = space
        self._only = only
        self._whole = whole
        self._words = None if only.text is None else AskedWords(only.text)
        if self._words is not None and not self._words.stems:
            raise InvalidInput(f"text is {only.text!r}, which has no words to look for")
        self._below = None if only.span is None else frozenset(self._subtree(only.span))

    @property
    def query(self) -> EventQuery:
        """What is asked of the journal; `pick` does the rest."""
        kind = self._only.kind
        kinds = () if kind is None else (kind, SPAN + kind, OPEN + kind)
        if kind == MESSAGE:  # also calls of models that say whose message came out of them
            kinds = (MESSAGE, SPAN + "llm")
        return msgspec.structs.replace(self._whole, agent=self._only.agent, kinds=kinds)

    def pick(self, records: Sequence[Record]) -> Iterable[Record]:
        """Those records that pass, in their order."""
        if self._below is not None:
            records = [each for each in records if each.event.span in self._below]
        if self._only.kind == MESSAGE:
            records = [each for each in records if each.event.role is not None]
        if not records or (self._words is None and self._only.status is None):
            return records
        together: dict[str, list[Record]] = {}
        for record in (*records, *self._other_halves(records)):
            together.setdefault(_name(record.event), []).append(record)
        passing = self._with_status(together) & self._with_words(together)
        return [each for each in records if _name(each.event) in passing]

    def _with_status(self, together: dict[str, list[Record]]) -> set[str]:
        wanted = self._only.status
        return {name for name, rows in together.items() if wanted in (None, _status(rows))}

    def _with_words(self, together: dict[str, list[Record]]) -> set[str]:
        asked = self._words
        if asked is None:
            return set(together)
        found = {
            name: asked.found_in(" ".join(row.event.name or "" for row in rows))
            for name, rows in together.items()
        }
        pieces = pieces_of([row for rows in together.values() for row in rows])
        for piece, text in EventIndex(self._engine, self._space).contents(pieces):
            name = _name(piece.record.event)
            found[name] |= asked.found_in(text)
        return {name for name, stems in found.items() if stems == asked.stems}

    def _other_halves(self, records: Sequence[Record]) -> Sequence[Record]:
        """The beginnings and ends of these spans that are not among them; both have the time of the start."""
        here = {each.event.id for each in records}
        spans = [each.event for each in records if _is_open(each.event) or _is_announced(each.event)]
        halves = [each for each in spans if _other(each) not in here]
        if not halves:
            return ()
        times = [each.ts_us for each in halves]
        query = msgspec.structs.replace(
            self._whole,
            ids=tuple(_other(each) for each in halves),
            since_us=min(times),
            until_us=max(times) + 1,
        )
        return self._engine.scan(self._space, query, limit=len(halves)).records

    def _subtree(self, span: str) -> Iterator[str]:
        """A span and all that are below it, whatever order their clocks give them."""
        children: dict[str | None, set[str]] = {}
        known: set[str] = set()
        for event in (each.event for each in each_record(self._engine, self._space, self._whole)):
            if event.span is not None and event.kind.startswith((SPAN, OPEN)):
                children.setdefault(event.parent, set()).add(event.span)
                known.add(event.span)
        if span not in known:
            raise NotFound(f"there is no span {span!r} here; the timeline's refs name those that there are")
        waiting, seen = [span], {span}
        while waiting:
            each = waiting.pop()
            yield each
            new = children.get(each, set()) - seen
            seen |= new
            waiting += new


def _name(event: Event) -> str:
    """What the rows of one span have in common; any other row is for itself."""
    return event.span or event.id if event.kind.startswith((SPAN, OPEN)) else event.id


def _other(event: Event) -> str:
    return _name(event) if _is_open(event) else _name(event) + _SUFFIX


def _status(rows: Sequence[Record]) -> str | None:
    ended = [each.event for each in rows if not _is_open(each.event)]
    return ended[0].status if ended else RUNNING


def _is_open(event: Event) -> bool:
    return event.kind.startswith(OPEN)


def _is_announced(event: Event) -> bool:
    """Whether a span has a row for its beginning too; at worst that is looked for in vain."""
    return event.kind.startswith(SPAN) and event.data is not None and b'"announced":true' in event.data


# -----------------------------------------------------------------------------------------------------------

FIVE: Final = frozenset({"agent.span.start", "agent.span.end", "message", "tool.call", "tool.result"})
"""What a timeline shows unless more is asked for."""

_TYPES: Final = {
    ("agent", "start"): "agent.span.start",
    ("agent", "end"): "agent.span.end",
    ("tool", "start"): "tool.call",
    ("tool", "end"): "tool.result",
}
_SCAN: Final = 500

Phase = Literal["start", "end", "at"]


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a timeline."""

    type: str
    ts_us: int
    seq: int
    run_id: str | None
    agent: str | None
    label: str
    ref: dict[str, str]
    meta: dict[str, Any]
    body: Address | None = None
    """Where the content is: a message's text, a call's input, a result's output."""

    @property
    def ts(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.ts_us)


class TimelinePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines, and where the next page begins (``None``: nothing more now)."""

    events: tuple[TimelineEvent, ...]
    cursor: str | None


class _Position(msgspec.Struct, frozen=True, array_like=True):
    after: str | None
    open: list[tuple[str, Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]]]
    """Spans whose beginning was shown and whose end was not: id and time."""


class Timeline:
    """What the journal of one space knows of runs and threads."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def of_run(
        self,
        run_id: str,
        *,
        first: int = 1000,
        cursor: str | None = None,
        everything: bool = False,
        span: str | None = None,
        agent: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        text: str | None = None,
    ) -> TimelinePage:
        """A run's timeline: the five kinds of line, or (``everything``) all that was recorded.

        ``span`` narrows it to a span and all below it, ``kind`` to ``message`` or a kind of span, ``status``
        to spans that ended so (``running``: that have not), ``text`` to what holds all these words.
        """
        query = EventQuery(run=run_id, order="time")
        only = Only(span=span, agent=agent, kind=kind, status=status, text=text)
        return self._page(query, first, cursor, everything=everything, only=only)

    def of_thread(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        first: int = 1000,
        cursor: str | None = None,
        everything: bool = False,
        span: str | None = None,
        agent: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        text: str | None = None,
    ) -> TimelinePage:
        """What happened in a thread, in all its runs; narrowed as `of_run`."""
        query = EventQuery(thread=thread_key(thread_id, namespace), order="time")
        only = Only(span=span, agent=agent, kind=kind, status=status, text=text)
        return self._page(query, first, cursor, everything=everything, only=only)

    def each_of_run(self, run_id: str, *, everything: bool = False) -> Iterator[TimelineEvent]:
        """The whole timeline of a run, read a page at a time."""
        cursor = None
        while True:
            page = self.of_run(run_id, cursor=cursor, everything=everything)
            yield from page.events
            if page.cursor is None:
                return
            cursor = page.cursor

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
    ) -> Found:
        """Messages, inputs and outputs that hold the words, those with the most of them first.

        Words are compared by their stems. ``kind`` is ``message``, ``tool``, ``llm`` or another kind of span.
        What was recorded is found when it is in the store (`Store.flush`). The first search of a long
        journal indexes it, which takes a while: `index` does that ahead.
        """
        wanted = Wanted(
            text=text, run=run, agent=agent, kind=kind, since_us=since_us, until_us=until_us, limit=limit
        )
        return search(self._engine, self._space, wanted)

    def index(self) -> int:
        """Bring the search index up to date; says how many events were new to it.

        The newest events, less than a page of them, are left for later: a search reads them as they are.
        """
        return EventIndex(self._engine, self._space).catch_up()

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
        """Events as they are committed, by any process, behind the sequence number ``after`` (or new ones).

        Goes on forever, or until nothing came for ``seconds``. The last event's ``seq`` is where to go on.
        ``namespace`` is that of the thread.
        """
        wanted = Selection(run=run, thread=thread, namespace=namespace, agent=agent, kinds=tuple(kinds))
        return Following(self._engine, self._space, wanted, after=after, seconds=seconds)

    def content(self, *addresses: Address) -> list[Any]:
        """What lies at the addresses of `TimelineEvent.body`."""
        return [decode(each) for each in self._engine.get(self._space, list(addresses))]

    def _page(
        self, query: EventQuery, first: int, cursor: str | None, *, everything: bool, only: Only
    ) -> TimelinePage:
        if first < 1:
            raise InvalidInput(f"first is {first}; ask for at least one line")
        position = _decoded(cursor)
        everything = everything or only.kind not in (None, MESSAGE)  # who asks for a kind wants to see it
        sieve = Sieve(self._engine, self._space, only, query)
        ends: list[tuple[int, int, Record]] = []
        for record in self._spans(query, position.open):
            heappush(ends, (end_us(record), record.seq, record))
        lines: list[TimelineEvent] = []
        after = position.after
        for record in self._wanted(sieve, after):
            event = record.event
            while ends and ends[0][:2] < (event.ts_us, record.seq) and len(lines) < first:
                _show(lines, heappop(ends)[2], "end", everything=everything)
            if len(lines) == first:
                return TimelinePage(events=tuple(lines), cursor=_encoded(after, ends))
            if event.kind.startswith(SPAN):
                if not is_announced(record):
                    _show(lines, record, "start", everything=everything)
                heappush(ends, (end_us(record), record.seq, record))
            elif event.kind.startswith(OPEN):
                _show(lines, record, "start", everything=everything)
            elif event.kind == MESSAGE or everything:
                _show(lines, record, "at", everything=everything)
            after = encode_cursor(query, event.ts_us, record.seq)
        while ends and len(lines) < first:
            _show(lines, heappop(ends)[2], "end", everything=everything)
        return TimelinePage(events=tuple(lines), cursor=_encoded(after, ends) if ends else None)

    def _wanted(self, sieve: Sieve, after: str | None) -> Iterator[Record]:
        for records in record_pages(self._engine, self._space, sieve.query, after=after, limit=_SCAN):
            yield from sieve.pick(records)

    def _spans(self, query: EventQuery, wanted: Sequence[tuple[str, int]]) -> Iterator[Record]:
        if not wanted:
            return
        times = [ts_us for _, ts_us in wanted]
        ids = tuple(span for span, _ in wanted)
        # In the order of time, so that this is a range of the run's index and no walk over the journal.
        some = structs.replace(query, ids=ids, since_us=min(times), until_us=max(times) + 1)
        yield from each_record(self._engine, self._space, some, limit=_SCAN)


def _show(lines: list[TimelineEvent], record: Record, phase: Phase, *, everything: bool) -> None:
    shown = line(record, phase)
    if everything or shown.type in FIVE:
        lines.append(shown)


def line(record: Record, phase: Phase) -> TimelineEvent:
    """A row of the journal as a line: a span where it begins or where it ends, anything else at its time."""
    event = record.event
    data: dict[str, Any] = decode_json(event.data) if event.data is not None else {}
    form, _, kind = event.kind.partition(".")
    is_span = form + "." in (SPAN, OPEN)
    type_ = _TYPES.get((kind, phase), f"{kind}.span.{phase}") if is_span else event.kind
    if phase == "end" and event.role is not None:
        type_ = MESSAGE  # a call of a model that says whose message came out of it
    name = event.name or event.agent or kind
    body = event.body
    if phase == "start" and form + "." == SPAN:
        body = input_of(event, data)
    return TimelineEvent(
        type=type_,
        ts_us=end_us(record) if phase == "end" else event.ts_us,
        seq=record.seq,
        run_id=event.run,
        agent=event.agent,
        label=_label(record, type_, name),
        ref=_ref(record, type_),
        meta=_meta(record, type_, data),
        body=body,
    )


def _label(record: Record, type_: str, name: str) -> str:
    event = record.event
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


def _ref(record: Record, type_: str) -> dict[str, str]:
    event = record.event
    if type_ == "message":
        return {"message_id": event.id}
    if type_ == "tool.call":
        return {"tool_call_id": event.span or event.id}
    if type_ == "tool.result":
        return {"tool_result_id": event.id + ":result"}
    if type_ == "checkpoint":
        return {"checkpoint_id": event.id}
    return {"span_id": event.span or event.id}


def _meta(record: Record, type_: str, data: dict[str, Any]) -> dict[str, Any]:
    event = record.event
    if type_ == "message":
        return {
            "model": event.model,
            "tokens": None if event.usage is None else event.usage.total,
            "cost": None if event.cost_nanos is None else float(from_nanos(event.cost_nanos)),
            "currency": event.currency,
        }
    if type_ == "tool.call":
        return {}
    if type_ == "checkpoint":
        return {name: data[name] for name in ("thread", "namespace", "step", "snapshot") if name in data}
    if type_ == "tool.result":
        return {"status": event.status}
    if type_.endswith(".start"):
        return {"input_size": data.get("input_size", 0)}
    if type_.endswith(".end"):
        told = {"status": event.status, "duration": (event.duration_us or 0) / 1e6}
        return told if FIRST_TOKEN not in data else told | {"first_token": data[FIRST_TOKEN] / 1e6}
    return data


def end_us(record: Record) -> int:
    """When what a row tells was over."""
    return record.event.ts_us + (record.event.duration_us or 0)


def is_announced(record: Record) -> bool:
    """Whether the beginning of a span has a row of its own, so that its row is only for its end."""
    data = record.event.data
    return data is not None and bool(decode_json(data).get("announced"))


def _encoded(after: str | None, ends: Sequence[tuple[int, int, Record]]) -> str:
    position = _Position(after, [(record.event.id, record.event.ts_us) for _, _, record in ends])
    return urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def _decoded(cursor: str | None) -> _Position:
    if cursor is None:
        return _Position(None, [])
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=_Position)
    except (ValueError, msgspec.DecodeError):
        raise InvalidInput(
            f"not a cursor of a timeline: {cursor[:80]!r}; pass the cursor of the page before"
        ) from None
