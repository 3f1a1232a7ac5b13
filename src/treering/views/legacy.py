"""Runs that the store does not hold, read from where they were kept before.

While a system moves to treering, its old runs are still in the old one. A store that knows a `LegacyRuns`
asks it for the timeline and the cost of a run that it does not have itself, in the shapes of the endpoints;
what neither has is `NotFound`. `Archive` makes one of another treering store: a backup, or a copy that keeps
what retention drops.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from treering.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from treering.core.engine import Engine


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

    def cost(self, run_id: str) -> dict[str, Any] | None:
        """A run's cost, if that store has it."""
        from treering.views.run_reports import cost_report

        try:
            return cost_report(self._engine, self._space, run_id)
        except NotFound:
            return None


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
