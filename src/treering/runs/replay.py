"""Replay: a run step by step, as it happened, in real time if wanted.

Rows are read in order of time. A span gives a step for its start, one for each chunk that it streamed, and
one for its end. Later steps wait in a heap until their time has come, so a replay never holds more than the
spans that were open at one time.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.encoding import decode
from treering.core.query import EventQuery, record_pages
from treering.errors import InvalidInput
from treering.runs.run import RUN
from treering.runs.span import RunRow, split_chunks
from treering.runs.timeline import timeline_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.core.content import Address
    from treering.core.engine import Engine
    from treering.runs.timeline import TimelineEvent

_PAGE: Final = 200


class ReplayStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run. ``offset_us`` counts from its start, ``wait_us`` from the previous step."""

    offset_us: int
    wait_us: int
    event: TimelineEvent
    content: Any = None
    """A message's content, a call's input, a result's output."""
    chunk: str | None = None
    """A piece of a stream; its ``event`` is the start of the span."""

    @property
    def label(self) -> str:
        """A short description, or the text of a chunk."""
        return self.event.label if self.chunk is None else self.chunk


def replay(
    engine: Engine,
    space: str,
    run_id: str,
    *,
    started_at_us: int,
    speed: float | None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ReplayStep]:
    """Iterate over a run. ``speed=1`` takes as long as it did, 10 a tenth of it; ``None`` does not wait."""
    if speed is not None and not speed > 0:
        raise InvalidInput(f"speed={speed}; use a number above 0, or None for no waiting")
    return _paced(_steps(engine, space, run_id, started_at_us), speed, sleep)


def _paced(
    steps: Iterator[ReplayStep], speed: float | None, sleep: Callable[[float], None]
) -> Iterator[ReplayStep]:
    for step in steps:
        if speed is not None and step.wait_us:
            sleep(step.wait_us / 1e6 / speed)
        yield step


class _Due(msgspec.Struct, frozen=True, order=True, array_like=True):
    """When a step is due, in the order of (time, sequence number, position within the row)."""

    ts_us: int
    seq: int
    position: int


def _steps(engine: Engine, space: str, run_id: str, started_at_us: int) -> Iterator[ReplayStep]:
    heap: list[tuple[_Due, TimelineEvent, Any, str | None]] = []
    last_us = started_at_us

    def due(before: tuple[int, int] | None) -> Iterator[ReplayStep]:
        nonlocal last_us
        while heap and (before is None or (heap[0][0].ts_us, heap[0][0].seq) < before):
            at, event, content, chunk = heappop(heap)
            ts_us = max(at.ts_us, last_us)
            yield ReplayStep(
                offset_us=ts_us - started_at_us,
                wait_us=ts_us - last_us,
                event=event,
                content=content,
                chunk=chunk,
            )
            last_us = ts_us

    for row, contents in _rows(engine, space, run_id):
        yield from due((row.event.ts_us, row.seq))
        for position, (ts_us, event, content, chunk) in enumerate(_steps_of(row, contents)):
            heappush(heap, (_Due(ts_us, row.seq, position), event, content, chunk))
    yield from due(None)


def _steps_of(
    row: RunRow, contents: dict[Address, Any]
) -> Iterator[tuple[int, TimelineEvent, Any, str | None]]:
    """The steps of one row: start, chunks and end of a span, or a single one."""

    def step(event: TimelineEvent) -> tuple[int, TimelineEvent, Any, str | None]:
        return event.ts_us, event, None if event.body is None else contents[event.body], None

    if not row.is_span:
        yield step(timeline_event(row, "start" if row.is_open else "at"))
        return
    start = timeline_event(row, "start")
    if not row.is_announced:
        yield step(start)
    if row.chunk_times is not None and row.event.body is not None:
        for chunk in split_chunks(contents[row.event.body], contents[row.chunk_times]):
            yield row.event.ts_us + chunk.offset_us, start, None, chunk.text
    ts_us, end, content, _ = step(timeline_event(row, "end"))
    yield max(ts_us, row.end_us), end, content, None


def _rows(engine: Engine, space: str, run_id: str) -> Iterator[tuple[RunRow, dict[Address, Any]]]:
    """The rows of a run in order of time, with their contents; without the row of the run itself."""
    for records in record_pages(engine, space, EventQuery(run=run_id, order="time"), limit=_PAGE):
        rows = [RunRow(record) for record in records]
        addresses = {
            address: None
            for row in rows
            for address in (row.event.body, row.input, row.chunk_times)
            if address is not None
        }
        found = engine.get(space, list(addresses)) if addresses else []
        contents = dict(zip(addresses, map(decode, found), strict=True))
        yield from ((row, contents) for row in rows if row.event.kind != RUN)
