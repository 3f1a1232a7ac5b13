"""Roll-ups: running totals of the journal, updated in the same commit.

An event that describes work (it has a run, an agent, usage or a cost) counts once for its run, once for its
thread and once for its day. Bookkeeping, such as a checkpoint outside of any run, is not counted. What an
event adds is computed here, for all engines and for the recount of `check` and `reindex`, so that a total and
its recount only differ if something is broken.

An event that is a call (a finished span, the end of a run, a model's message outside of a span) also counts
in the grain ``call``, once for its day, in the `bucket_of` its duration. These totals are sketches of a
distribution: buckets grow by a constant factor, so a percentile read from them is within `RELATIVE_ERROR`
of the true one, and they can be added and subtracted like any other total.

Events never change. If it turns out later that some belong to another agent or thread, or repeat what others
count, a `MOVED` event takes what they added from one total and adds it to another.
"""

from __future__ import annotations

from math import ceil, log
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from treering.core.batch import Usage
from treering.core.clock import DAY_US
from treering.core.encoding import decode_json
from treering.core.ids import RUN_MOVED
from treering.core.records import Sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from treering.core.batch import Event
    from treering.core.query import Dimension, Grain, SumQuery

ERROR: Final = "error"
"""The ``status`` of an event that counts as an error."""
FAILED: Final = frozenset({ERROR, "crashed"})
"""The ``status`` of a call that failed."""

SPAN: Final = "span."
"""Prefix of the kind of a finished span's row."""
TOOL: Final = SPAN + "tool"
"""The kind whose calls are told apart by name."""
MESSAGE: Final = "message"
FIRST_TOKEN: Final = "first_token_us"  # noqa: S105 - a token of output
"""In a span's data: microseconds from the start to the first piece of output."""
SAID: Final = "said_tokens"
"""In the data of a model's call: output tokens that only the messages below it have in their usage."""
IN_CALL: Final = "in_call"
"""In the data of a message: it is part of a model's call, which counts instead of it."""
_FIRST_TOKEN_KEY, _SAID_KEY, _IN_CALL_KEY = (f'"{name}":'.encode() for name in (FIRST_TOKEN, SAID, IN_CALL))

RELATIVE_ERROR: Final = 0.02
"""How far a percentile from buckets may be from the true one, as a share of it."""
_GROWTH: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH: Final = log(_GROWTH)
NO_TIME: Final = -1
"""The bucket of calls whose duration is not known."""


def bucket_of(time_us: int) -> int:
    """Return the bucket of a time: 0 for none, otherwise the next power of the growth factor."""
    return 0 if time_us <= 0 else 1 + ceil(log(time_us) / _LOG_GROWTH)


def time_of_bucket(bucket: int) -> int:
    """Return the time that is closest to all times of a bucket, relative to their size."""
    return 0 if bucket <= 0 else round(2 * _GROWTH ** (bucket - 1) / (_GROWTH + 1))


MOVED: Final = "moved"
"""The kind of an event that moves what others added. Its ``name`` is their kind, its ``data`` a `Move`, and
its other columns are their sums and what these are added to."""


class Move(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a `MOVED` event takes from. With ``removes``, it is added nowhere."""

    agent: str | None = None
    thread: str | None = None
    currency: str | None = None
    events: int = 0
    errors: int = 0
    unpriced_events: int = 0
    removes: bool = False


class RollupKey(NamedTuple):
    """All dimensions of one total, ``""`` for those that an event does not have."""

    grain: Grain
    key: str
    day: int
    agent: str
    model: str
    kind: str
    currency: str
    bucket: int = 0
    """In the grains ``call`` and ``first_token``, see `bucket_of`; ``key`` is the name of a tool there."""


MEASURES: Final = (
    "events",
    "errors",
    "input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
    "other_tokens",
    "cost_nanos",
    "duration_us",
    "unpriced_events",
    "unpriced_tokens",
)
"""The measures of a total, in the order of their columns."""

Measures = list[int]
_NOTHING: Final[Measures] = [0] * len(MEASURES)


def deltas(events: Iterable[Event]) -> dict[RollupKey, Measures]:
    """Return what these events add to the totals."""
    cells: dict[RollupKey, Measures] = {}
    # Events that differ only in their measures are summed first: batches contain many of them.
    alike: dict[tuple[Any, ...], Measures] = {}
    for event in events:
        if event.run is None and event.agent is None and event.usage is None and event.cost_nanos is None:
            continue
        if event.kind == RUN_MOVED:
            continue
        day = event.ts_us // DAY_US
        if event.kind == MOVED:
            _move(alike, event, day)
            continue
        key = (event.run, event.thread, day, event.agent, event.model, event.kind, event.currency)
        total = alike.get(key)
        if total is None:
            total = alike[key] = _NOTHING.copy()
        _count(total, event)
        _count_call(cells, event, day)
    for (run, thread, day, agent, model, kind, currency), added in alike.items():
        rest = (day, agent or "", model or "", kind, currency or "")
        _add(cells, RollupKey("day", "", *rest), added)
        if run is not None:
            _add(cells, RollupKey("run", run, *rest), added)
        if thread is not None:
            _add(cells, RollupKey("thread", thread, *rest), added)
    return {cell: measures for cell, measures in cells.items() if any(measures)}


def merge(cells: dict[RollupKey, Measures], more: Mapping[RollupKey, Measures]) -> None:
    """Add ``more`` to ``cells``."""
    for cell, measures in more.items():
        _add(cells, cell, measures)


def summarise(cells: Mapping[RollupKey, Measures], query: SumQuery) -> list[Sum]:
    """Answer a query from totals in memory. SQL engines must return the same."""
    groups: dict[tuple[str | int, ...], Measures] = {}
    for cell, measures in cells.items():
        if _matches(cell, query):
            group: tuple[str | int, ...] = tuple(_dimension(cell, name) for name in query.by)
            total = groups.setdefault(group, [0] * len(MEASURES))
            for index, value in enumerate(measures):
                total[index] += value
    sums = [as_sum(group, measures) for group, measures in groups.items()]
    return order(sums, query)


def order(sums: list[Sum], query: SumQuery) -> list[Sum]:
    """Sort groups by their key, or return the ``top`` most expensive ones; empty ones are left out."""
    sums = [each for each in sums if each.events or each != _empty(each.group)]
    sums.sort(key=lambda each: each.group)
    if query.top is not None:
        sums.sort(key=lambda each: each.cost_nanos, reverse=True)
        return sums[: query.top]
    return sums


def _empty(group: tuple[str | int, ...]) -> Sum:
    return as_sum(group, _NOTHING)


def as_sum(group: tuple[str | int, ...], measures: Measures) -> Sum:
    """Build a `Sum` from the values of `MEASURES`."""
    return Sum(
        group=group,
        events=measures[0],
        errors=measures[1],
        usage=Usage(
            input=measures[2],
            cache_read=measures[3],
            cache_write=measures[4],
            cache_write_1h=measures[5],
            output=measures[6],
            reasoning=measures[7],
            other=measures[8],
        ),
        cost_nanos=measures[9],
        duration_us=measures[10],
        unpriced_events=measures[11],
        unpriced_tokens=measures[12],
    )


def _count(total: Measures, event: Event) -> None:
    total[0] += 1
    if event.status == ERROR:
        total[1] += 1
    if event.duration_us is not None:
        total[10] += event.duration_us
    if event.cost_nanos is not None:
        total[9] += event.cost_nanos
    usage = event.usage
    if usage is not None:
        total[2] += usage.input
        total[3] += usage.cache_read
        total[4] += usage.cache_write
        total[5] += usage.cache_write_1h
        total[6] += usage.output
        total[7] += usage.reasoning
        total[8] += usage.other
        if event.cost_nanos is None:
            total[11] += 1
            total[12] += usage.total


def _count_call(cells: dict[RollupKey, Measures], event: Event, day: int) -> None:
    """Count an event that is a call in the buckets of its times."""
    kind, data, usage = event.kind, event.data, event.usage
    output = 0 if usage is None else usage.output
    first_us: int | None = None
    if kind.startswith(SPAN):
        if data is not None and (_FIRST_TOKEN_KEY in data or _SAID_KEY in data):
            fields = decode_json(data)
            found, said = fields.get(FIRST_TOKEN), fields.get(SAID)
            first_us = found if isinstance(found, int) else None
            output += said if isinstance(said, int) else 0
    elif kind == MESSAGE:
        if usage is None or event.model is None or (data is not None and _IN_CALL_KEY in data):
            return
    elif event.run is None or event.id != event.run:  # the end of a run has its id
        return
    duration_us = event.duration_us
    rest = (event.name or "" if kind == TOOL else "", day, event.agent or "", event.model or "", kind, "")

    def add_to(grain: Grain, bucket: int, time_us: int, tokens: int) -> Measures:
        cell = RollupKey(grain, *rest, bucket)
        total = cells.get(cell)
        if total is None:
            total = cells[cell] = _NOTHING.copy()
        total[0] += 1
        total[6] += tokens
        total[10] += time_us
        return total

    bucket = NO_TIME if duration_us is None else bucket_of(duration_us)
    if event.status in FAILED:
        add_to("call", bucket, duration_us or 0, output)[1] += 1
    else:
        add_to("call", bucket, duration_us or 0, output)
    if first_us is not None:
        add_to("first_token", bucket_of(first_us), first_us, 0)
    if output and duration_us:
        add_to("generation", 0, max(duration_us - (first_us or 0), 0), output)


def _move(alike: dict[tuple[Any, ...], Measures], event: Event, day: int) -> None:
    move = msgspec.json.decode(event.data or b"{}", type=Move)
    moved = _NOTHING.copy()
    _count(moved, event)
    moved[0], moved[1], moved[11] = move.events, move.errors, move.unpriced_events
    source = (event.run, move.thread, day, move.agent, event.model, event.name, move.currency)
    target = (event.run, event.thread, day, event.agent, event.model, event.name, event.currency)
    for key, sign in ((source, -1),) if move.removes else ((source, -1), (target, 1)):
        total = alike.setdefault(key, _NOTHING.copy())
        total[:] = [old + sign * added for old, added in zip(total, moved, strict=True)]


def _add(cells: dict[RollupKey, Measures], cell: RollupKey, added: Measures) -> None:
    total = cells.get(cell)
    if total is None:
        cells[cell] = added.copy()
    else:
        total[:] = map(add, total, added)


def _dimension(cell: RollupKey, name: Dimension) -> str | int:
    return getattr(cell, name)


def _matches(cell: RollupKey, query: SumQuery) -> bool:
    return (
        cell.grain == query.grain
        and (query.key is None or cell.key == query.key)
        and (query.agent is None or cell.agent == query.agent)
        and (query.model is None or cell.model == query.model)
        and (query.kind is None or cell.kind == query.kind)
        and (query.since_day is None or cell.day >= query.since_day)
        and (query.until_day is None or cell.day <= query.until_day)
    )
