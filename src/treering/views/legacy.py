"""Runs that the store does not hold, read from where they were kept before.

While a system moves to treering, its old runs are still in the old one. A store that knows a `LegacyRuns`
asks it for the timeline and the cost of a run that it does not have itself, in the shapes of the endpoints;
what neither has is `NotFound`. How such a run stands is read off its timeline, unless the reader also has a
method ``run(run_id)`` that gives a `RunInfo` (or ``None``). `Archive` makes a reader of another treering
store: a backup, or a copy that keeps what retention drops.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from treering.core.clock import from_datetime
from treering.errors import InvalidInput, NotFound
from treering.views.recording.runs import RunInfo, run_info, run_ref

if TYPE_CHECKING:
    from treering.core.engine import Engine

MAX_LINES: Final = 1000
"""Lines of a timeline that are read at once."""
UNKNOWN: Final = "unknown"
"""How a run stands that only its timeline tells of."""


@runtime_checkable
class LegacyRuns(Protocol):
    """Whoever knows runs of before, for any thread; ``None`` for a run that it does not know either."""

    def timeline(self, run_id: str, *, limit: int, cursor: str | None) -> dict[str, Any] | None:
        """``{"events": [...], "next_cursor": ...}``, as `run_reports.timeline_report` gives it."""
        ...

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """``{"by_agent": [...], "total": {...}}``, as `run_reports.cost_report` gives it."""
        ...


class Archive:
    """Runs of another store."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def timeline(self, run_id: str, *, limit: int, cursor: str | None) -> dict[str, Any] | None:
        """A run's timeline, if that store has it."""
        from treering.views.run_reports import timeline_report

        try:
            return timeline_report(self._engine, self._space, run_id, limit=limit, cursor=cursor)
        except NotFound:
            return None

    def run(self, run_id: str) -> RunInfo | None:
        """A run as it stood, if that store has it."""
        found = self._engine.refs(self._space, [run_ref(run_id)])
        return run_info(found[run_ref(run_id)]) if found else None

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """A run's cost, if that store has it."""
        from treering.views.run_reports import cost_report

        try:
            return cost_report(self._engine, self._space, run_id)
        except NotFound:
            return None


def legacy_run(legacy: LegacyRuns, run_id: str) -> RunInfo | None:
    """A run of before, as far as it can be told; ``None`` when nobody knows it."""
    told: Callable[[str], RunInfo | None] | None = getattr(legacy, "run", None)
    if told is not None:
        return told(run_id)
    page = legacy.timeline(run_id, limit=MAX_LINES, cursor=None)
    if page is None:
        return None
    events: list[dict[str, Any]] = page["events"]
    times = [from_datetime(datetime.fromisoformat(event["ts"])) for event in events]
    return RunInfo(
        id=run_id,
        agent=next((event["agent"] for event in events if event["agent"] is not None), None),
        status=UNKNOWN,
        started_at_us=times[0] if times else 0,
        ended_at_us=times[-1] if times and page["next_cursor"] is None else None,
    )


def load_legacy(name: str) -> LegacyRuns:
    """The reader at ``package.module:attribute``; a class is called without arguments."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidInput(f"{name!r} names no reader of legacy runs; write package.module:attribute")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name!r} cannot be loaded: {error}") from error
    reader = found() if isinstance(found, type) else found
    if not isinstance(reader, LegacyRuns):
        raise InvalidInput(f"{name!r} is no reader of legacy runs; it needs timeline(...) and cost(...)")
    return reader
