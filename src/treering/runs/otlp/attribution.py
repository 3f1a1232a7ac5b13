"""Decide which agent and thread each row of a trace counts for, whatever order its spans arrive in.

A span that names no agent belongs to its nearest ancestor's, a run to the thread that any of its spans
names, and of two spans that report the same tokens the inner one counts. That may arrive after the row it
concerns, since exporters send children first. So a row is counted as far as is known, and what it added is
moved later (`core.rollups.MOVED`). **Invariant:** after each commit, every total is what it would
be if all spans so far had arrived together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import NUMBER_BITS, Event, Usage
from treering.core.clock import day_of
from treering.core.ids import new_id
from treering.core.rollups import ERROR, MOVED, Move

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_SUM: Final = (1 << NUMBER_BITS) - 1


class _Row(msgspec.Struct, gc=False):
    """What a row of the journal adds to the totals, and to which."""

    kind: str
    ts_us: int
    span: str | None
    parent: str | None
    written_agent: str | None
    agent: str | None
    thread: str | None
    model: str | None
    currency: str | None
    usage: Usage | None
    cost_nanos: int | None
    duration_us: int
    is_error: bool


class Attribution:
    """The spans of one trace, and what its rows have added to which totals."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        """The parent of each span that has arrived."""
        self.covered: set[str] = set()
        """Spans with counted tokens below them; their own token counts are the same tokens again."""
        self._agents: dict[str, str] = {}
        """The agents that spans name."""
        self._awaited: set[str] = set()
        """Spans that have not arrived, whose agent may be that of rows that have."""
        self._rows: dict[str, _Row] = {}
        self._is_settled = True

    @property
    def size(self) -> int:
        """How many rows are kept in memory."""
        return len(self._rows)

    def add_span(self, span: str, *, parent: str | None, agent: str | None) -> None:
        """Record that a span has arrived, with the agent that it names."""
        self.parents[span] = parent
        self.name_agent(span, agent)
        if span in self.covered:
            self.cover(parent)

    def name_agent(self, span: str, agent: str | None) -> None:
        """Record the agent that a span names, which may not have ended yet."""
        if agent is not None:
            self._agents[span] = agent
        if span in self._awaited:
            self._is_settled = False

    def cover(self, span: str | None) -> None:
        """Record that tokens were counted below this span."""
        while span is not None and span not in self.covered:
            self.covered.add(span)
            row = self._rows.get(span)
            if row is not None and row.usage is not None:
                self._is_settled = False
            span = self.parents.get(span)

    def agent_at(self, span: str | None) -> str | None:
        """Return the agent that a span or its nearest ancestor names; ``None`` if that is not known yet."""
        return self._find_agent(span, {})

    def add_rows(self, events: Iterable[Event]) -> bool:
        """Record what rows add to the totals; return whether any is new."""
        before = len(self._rows)
        for event in events:
            if event.id in self._rows:
                continue  # a log record that was sent again
            self._rows[event.id] = _Row(
                kind=event.kind,
                ts_us=event.ts_us,
                span=event.span,
                parent=event.parent,
                written_agent=event.agent,
                agent=event.agent,
                thread=event.thread,
                model=event.model,
                currency=event.currency,
                usage=event.usage,
                cost_nanos=event.cost_nanos,
                duration_us=event.duration_us or 0,
                is_error=event.status == ERROR,
            )
        return len(self._rows) > before

    def change_thread(self) -> None:
        """Record that the thread of the run has become known, so that `moves` looks at every row."""
        self._is_settled = False

    def moves(self, *, run: str, thread: str | None, scope: str) -> list[Event]:
        """Return the events that move what rows have added to where it belongs by now."""
        if self._is_settled:
            return []
        self._is_settled = True
        self._awaited.clear()
        groups: dict[tuple[Any, ...], list[_Row]] = {}
        known: dict[str, str | None] = {}
        for row_id, row in self._rows.items():
            place = row.agent, row.thread, row.currency
            key = day_of(row.ts_us), row.kind, row.model, place
            if row.usage is not None and row_id in self.covered:
                only_tokens = msgspec.structs.replace(row, duration_us=0, is_error=False)
                groups.setdefault((*key, None), []).append(only_tokens)
                row.usage = row.cost_nanos = row.currency = None
            row.agent, row.thread = self._agent_of(row, known), thread
            now = row.agent, row.thread, row.currency
            if now != place:
                groups.setdefault((*key, now), []).append(msgspec.structs.replace(row))
        return [
            _moved(key, part, run=run, scope=scope) for key, rows in groups.items() for part in _parts(rows)
        ]

    def settle(self, *, thread: str | None) -> None:
        """Take rows that were read from the journal as moved: every commit has moved those before it."""
        for span, row in self._rows.items():
            if row.usage is not None and span in self.parents:
                self.cover(row.parent)
        self._is_settled = False
        self.moves(run="", thread=thread, scope="")

    def _agent_of(self, row: _Row, known: dict[str, str | None]) -> str | None:
        span = row.span
        if span is None or (span not in self.parents and span not in self._agents and row.parent is not None):
            span = row.parent  # a log record, which is in its span
        return self._find_agent(span, known) or row.written_agent

    def _find_agent(self, span: str | None, known: dict[str, str | None]) -> str | None:
        path: list[str] = []
        found: str | None = None
        seen: set[str] = set()
        while span is not None and span not in seen:
            if span in known:
                found = known[span]
                break
            seen.add(span)
            path.append(span)
            found = self._agents.get(span)
            if found is not None:
                break
            if span not in self.parents:
                self._awaited.add(span)
                break
            span = self.parents[span]
        known.update(dict.fromkeys(path, found))
        return found


def _parts(rows: list[_Row]) -> Iterable[list[_Row]]:
    """Split rows so that no sum is larger than an event can hold."""
    part: list[_Row] = []
    total = 0
    for row in rows:
        size = row.duration_us + abs(row.cost_nanos or 0)
        size += 0 if row.usage is None else row.usage.total + row.usage.reasoning
        if part and total + size > _MAX_SUM:
            yield part
            part, total = [], 0
        part.append(row)
        total += size
    yield part


def _moved(key: tuple[Any, ...], rows: list[_Row], *, run: str, scope: str) -> Event:
    """Return the event that moves rows to another place, or (``None``) their tokens and cost to nowhere."""
    _, kind, model, (from_agent, from_thread, from_currency), place = key
    agent, thread, currency = place or (None, None, from_currency)
    counted = [row.usage for row in rows if row.usage is not None]
    costs = [row.cost_nanos for row in rows if row.cost_nanos is not None]
    move = Move(
        agent=from_agent,
        thread=from_thread,
        currency=from_currency,
        events=0 if place is None else len(rows),
        errors=sum(row.is_error for row in rows),
        unpriced_events=sum(row.usage is not None and row.cost_nanos is None for row in rows),
        removes=place is None,
    )
    usage = Usage(**{name: sum(getattr(each, name) for each in counted) for name in Usage.__struct_fields__})
    return Event(
        id=f"{MOVED}.{new_id()}",
        kind=MOVED,
        ts_us=max(row.ts_us for row in rows),
        scope=scope,
        run=run,
        thread=thread,
        agent=agent,
        name=kind,
        model=model,
        usage=usage if counted else None,
        cost_nanos=sum(costs) if costs else None,
        currency=currency,
        duration_us=sum(row.duration_us for row in rows) or None,
        data=msgspec.json.encode(move),
    )
