"""Budgets: how many tool calls an agent may make, per run and per iteration, in all and per tool.

Deciding and counting are pure: a `Budget` (the limits) says of any `Counters` whether one more call fits, and
counting gives new counters. `Budgets` holds the counters of one run behind a lock. **Invariant:** a call is
counted if and only if it was allowed; a denied one leaves no trace, and of two threads that want the last
call exactly one gets it.

Counters are plain records: keep them beside a checkpoint, and give them back (`Budgets.restore`) when the
conversation goes back there.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, Self

import msgspec

from treering.errors import BudgetExceeded, InvalidInput

_STATE_KEYS: Final = {
    "run": "_tool_calls_run_total",
    "iteration": "_tool_calls_iteration",
    "run_by_tool": "_tool_calls_run_by_id",
    "iteration_by_tool": "_tool_calls_iter_by_id",
}


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Tool calls so far: of this run, and of this iteration of it."""

    run: int = 0
    iteration: int = 0
    run_by_tool: dict[str, int] = {}
    iteration_by_tool: dict[str, int] = {}

    def counted(self, tool: str) -> Counters:
        """The counters after one more call."""
        return Counters(
            run=self.run + 1,
            iteration=self.iteration + 1,
            run_by_tool={**self.run_by_tool, tool: self.run_by_tool.get(tool, 0) + 1},
            iteration_by_tool={**self.iteration_by_tool, tool: self.iteration_by_tool.get(tool, 0) + 1},
        )

    def next_iteration(self) -> Counters:
        """The counters at the start of the run's next iteration."""
        return Counters(run=self.run, run_by_tool=self.run_by_tool)

    def to_state(self) -> dict[str, Any]:
        """As attributes of a state object, under the names that Agentry Lab gives them."""
        return {name: getattr(self, field) for field, name in _STATE_KEYS.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Out of a state object's attributes; those that are missing count as zero."""
        plain = {field: state[name] for field, name in _STATE_KEYS.items() if name in state}
        return _converted(plain, cls)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on tool calls; what is left out is not limited.

    ``Budget(run=20, run_by_tool={"search": 5}, iteration_by_tool={"search": 1})`` allows 20 calls in a run,
    of which 5 may be searches, and one search in each iteration. A limit of 0 forbids.
    """

    run: int | None = None
    iteration: int | None = None
    run_by_tool: dict[str, int] = {}
    iteration_by_tool: dict[str, int] = {}

    def __post_init__(self) -> None:
        for name, limit in self.limits():
            given: Any = limit
            if type(given) is not int or given < 0:
                raise InvalidInput(f"{name}={given!r} is no limit; use a whole number from 0 on")

    def limits(self) -> list[tuple[str, int]]:
        """Every limit that is set, by the name under which errors show it."""
        totals = [("run", self.run), ("iteration", self.iteration)]
        by_tool = [
            (_named(field, tool), limit)
            for field, tools in (
                ("run_by_tool", self.run_by_tool),
                ("iteration_by_tool", self.iteration_by_tool),
            )
            for tool, limit in tools.items()
        ]
        return [(name, limit) for name, limit in totals if limit is not None] + by_tool

    def check(self, counters: Counters, tool: str) -> None:
        """Raise `BudgetExceeded` unless one more call of this tool fits."""
        for budget, limit, count in self._of(counters, tool):
            if count >= limit:
                raise _exceeded(tool, budget, limit, count)

    def remaining(self, counters: Counters, tool: str) -> int | None:
        """How many more calls of this tool fit now; ``None`` for any number."""
        return min((max(limit - count, 0) for _, limit, count in self._of(counters, tool)), default=None)

    def _of(self, counters: Counters, tool: str) -> list[tuple[str, int, int]]:
        """The limits that concern a tool, the widest first: name, limit, count."""
        every = (
            ("run", self.run, counters.run),
            (_named("run_by_tool", tool), self.run_by_tool.get(tool), counters.run_by_tool.get(tool, 0)),
            ("iteration", self.iteration, counters.iteration),
            (
                _named("iteration_by_tool", tool),
                self.iteration_by_tool.get(tool),
                counters.iteration_by_tool.get(tool, 0),
            ),
        )
        return [(name, limit, count) for name, limit, count in every if limit is not None]


class Budgets:
    """The counters of one run and the limits that they are held against; for any number of threads."""

    def __init__(self, budget: Budget | None = None, counters: Counters | None = None) -> None:
        self._budget = budget or Budget()
        self._counters = counters or Counters()
        self._lock = Lock()

    @property
    def budget(self) -> Budget:
        """The limits."""
        return self._budget

    def spend(self, tool: str) -> Counters:
        """Count one call, or raise `BudgetExceeded` and count nothing."""
        with self._lock:
            self._budget.check(self._counters, tool)
            self._counters = self._counters.counted(tool)
            return self._counters

    def remaining(self, tool: str) -> int | None:
        """How many more calls of this tool fit now; ``None`` for any number."""
        return self._budget.remaining(self.counters(), tool)

    def next_iteration(self) -> None:
        """Begin the run's next iteration: what is counted per iteration starts again."""
        with self._lock:
            self._counters = self._counters.next_iteration()

    def next_run(self) -> None:
        """Begin another run: everything starts again."""
        self.restore(Counters())

    def counters(self) -> Counters:
        """The counters as they are now; later calls do not change what was given out."""
        return self._counters

    def restore(self, counters: Counters | Mapping[str, Any]) -> None:
        """Go back to counters that `counters` gave, as they were or decoded from JSON."""
        whole = counters if isinstance(counters, Counters) else _converted(dict(counters), Counters)
        with self._lock:
            self._counters = whole


def _converted(plain: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"these are no counters of tool calls: {error}; nothing was restored") from None


def _named(field: str, tool: str) -> str:
    return f"{field}[{tool!r}]"


def _exceeded(tool: str, budget: str, limit: int, count: int) -> BudgetExceeded:
    period, what_next = (
        ("run", "start another run")
        if budget.startswith("run")
        else ("iteration", "wait for the next iteration")
    )
    what = f"calls of {tool!r}" if "[" in budget else "tool calls"
    return BudgetExceeded(
        f"{tool!r} was not called: {count} of {limit} {what} of this {period} are used up; "
        f"{what_next}, or raise {budget} of the budget",
        budget=budget,
        limit=limit,
        count=count,
    )
