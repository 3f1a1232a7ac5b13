"""Replay: a run step by step, as it happened, with the pauses in between if wanted.

The rows of a run are read in the order of time. A span gives a step where it began, one for each chunk that
it streamed and one where it ended; later ones wait in a heap until their time has come, so that a replay
holds no more than what was open at one moment.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.content import Address
from treering.core.encoding import decode, decode_json
from treering.core.paging import record_pages
from treering.core.query import EventQuery
from treering.errors import InvalidInput
from treering.runs.run import RUN
from treering.runs.span import CHUNKS, OPEN, SPAN, cut
from treering.runs.timeline import end_us, is_announced, line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.runs.timeline import TimelineEvent

_PAGE: Final = 200


class ReplayStep(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a run. ``offset_us`` counts from its beginning, ``wait_us`` from the step before."""

    offset_us: int
    wait_us: int
    event: TimelineEvent
    content: Any = None
    """A message's content, a call's input, a result's output."""
    chunk: str | None = None
    """A piece of a stream; its ``event`` is where its span began."""

    @property
    def label(self) -> str:
        """What happened, in a few words."""
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
    """The steps of a run. ``speed=1`` takes as long as it took, 10 a tenth, ``None`` does not wait."""
    if speed is not None and not speed > 0:
        raise InvalidInput(f"speed is {speed}; use a number above 0, or None to go through without waiting")
    return _paced(_steps(engine, space, run_id, started_at_us), speed, sleep)


def _paced(
    steps: Iterator[ReplayStep], speed: float | None, sleep: Callable[[float], None]
) -> Iterator[ReplayStep]:
    for step in steps:
        if speed is not None and step.wait_us:
            sleep(step.wait_us / 1e6 / speed)
        yield step


class _Due(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A step whose time is to come, in the order of (time, sequence number, place within the row)."""

    ts_us: int
    seq: int
    place: int


def _steps(engine: Engine, space: str, run_id: str, started_at_us: int) -> Iterator[ReplayStep]:
    heap: list[tuple[_Due, TimelineEvent, Any, str | None]] = []
    last_us = started_at_us

    def due(before: tuple[int, int] | None) -> Iterator[ReplayStep]:
        nonlocal last_us
        while heap and (before is None or (heap[0][0].ts_us, heap[0][0].seq) < before):
            moment, event, content, chunk = heappop(heap)
            ts_us = max(moment.ts_us, last_us)
            yield ReplayStep(
                offset_us=ts_us - started_at_us,
                wait_us=ts_us - last_us,
                event=event,
                content=content,
                chunk=chunk,
            )
            last_us = ts_us

    for record, contents in _records(engine, space, run_id):
        yield from due((record.event.ts_us, record.seq))
        for place, (ts_us, event, content, chunk) in enumerate(_moments(record, contents)):
            heappush(heap, (_Due(ts_us, record.seq, place), event, content, chunk))
    yield from due(None)


def _moments(
    record: Record, contents: dict[Address, Any]
) -> Iterator[tuple[int, TimelineEvent, Any, str | None]]:
    """What one row tells: its beginning, its chunks and its end, or just itself."""
    event = record.event

    def shown(told: TimelineEvent) -> tuple[int, TimelineEvent, Any, str | None]:
        return told.ts_us, told, None if told.body is None else contents[told.body], None

    if not event.kind.startswith(SPAN):
        yield shown(line(record, "start" if event.kind.startswith(OPEN) else "at"))
        return
    start = line(record, "start")
    if not is_announced(record):
        yield shown(start)
    times = _chunks_at(record)
    if times is not None and event.body is not None:
        for chunk in cut(contents[event.body], contents[times]):
            yield event.ts_us + chunk.offset_us, start, None, chunk.text
    ts_us, end, content, _ = shown(line(record, "end"))
    yield max(ts_us, end_us(record)), end, content, None


def _records(engine: Engine, space: str, run_id: str) -> Iterator[tuple[Record, dict[Address, Any]]]:
    """The rows of a run in the order of time, with everything they point at; never the run's own row."""
    for records in record_pages(engine, space, EventQuery(run=run_id, order="time"), limit=_PAGE):
        wanted = {each: None for record in records for each in _addresses(record)}
        found = engine.get(space, list(wanted)) if wanted else []
        contents = dict(zip(wanted, map(decode, found), strict=True))
        yield from ((record, contents) for record in records if record.event.kind != RUN)


def _addresses(record: Record) -> Iterator[Address]:
    event = record.event
    if event.body is not None:
        yield event.body
    if event.kind.startswith(SPAN):
        given = line(record, "start").body
        if given is not None:
            yield given
        times = _chunks_at(record)
        if times is not None:
            yield times


def _chunks_at(record: Record) -> Address | None:
    data = record.event.data
    if data is None or b'"chunks"' not in data:
        return None
    at: Any = decode_json(data).get(CHUNKS)
    return Address(at) if isinstance(at, str) and at in record.event.links else None
