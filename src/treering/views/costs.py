"""Cost: what runs, threads, agents, models and days took, from the roll-ups that every commit keeps.

Amounts of different currencies are never added up: a `Cost` holds one sum for each. Usage that has no
price is counted apart and is not taken for free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.batch import Usage
from treering.core.money import from_nanos
from treering.core.query import SumQuery
from treering.views.thread_keys import thread_key

if TYPE_CHECKING:
    from decimal import Decimal

    from treering.core.engine import Engine
    from treering.core.query import Dimension, Grain
    from treering.core.records import Sum

By = Literal["agent", "model", "kind", "day"]

_NO_USAGE: Final = Usage()


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money of one group; ``key`` is its agent, model or day (``None`` for a total)."""

    key: str | int | None
    usage: Usage
    nanos: dict[str, int]
    """By currency, in nano-units."""
    events: int = 0
    errors: int = 0
    unpriced_tokens: int = 0
    unpriced_events: int = 0

    @property
    def tokens(self) -> int:
        """All tokens, each counted once."""
        return self.usage.total

    @property
    def amounts(self) -> dict[str, Decimal]:
        """The sums of money, by currency."""
        return {currency: from_nanos(nanos) for currency, nanos in self.nanos.items()}


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """A total and its parts, the most expensive first."""

    total: Cost
    parts: tuple[Cost, ...]


class Costs:
    """What the roll-ups of one space say."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    def of_run(self, run_id: str, *, by: By = "agent") -> CostReport:
        """What a run took."""
        return self._report("run", by, key=run_id)

    def of_thread(self, thread_id: str, *, namespace: str = "", by: By = "agent") -> CostReport:
        """What all runs of a thread took."""
        return self._report("thread", by, key=thread_key(thread_id, namespace))

    def of_days(
        self,
        *,
        by: By = "day",
        since_day: int | None = None,
        until_day: int | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> CostReport:
        """What everything took, over all days or some (counted from 1970-01-01, UTC)."""
        return self._report("day", by, since_day=since_day, until_day=until_day, agent=agent, model=model)

    def _report(
        self,
        grain: Grain,
        by: By,
        *,
        key: str | None = None,
        since_day: int | None = None,
        until_day: int | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> CostReport:
        dimensions: tuple[Dimension, ...] = (by, "currency")
        query = SumQuery(
            grain=grain,
            by=dimensions,
            key=key,
            since_day=since_day,
            until_day=until_day,
            agent=agent,
            model=model,
        )
        groups: dict[str | int, list[Sum]] = {}
        for each in self._engine.sums(self._space, query):
            groups.setdefault(each.group[0], []).append(each)
        parts = [_cost(name, sums) for name, sums in groups.items()]
        everything = [each for sums in groups.values() for each in sums]
        return CostReport(
            total=_cost(None, everything),
            parts=tuple(
                sorted(parts, key=lambda part: (-sum(part.nanos.values()), -part.tokens, str(part.key)))
            ),
        )


def _cost(key: str | int | None, sums: list[Sum]) -> Cost:
    usage = _NO_USAGE
    nanos: dict[str, int] = {}
    for each in sums:
        usage = Usage(
            **{name: getattr(usage, name) + getattr(each.usage, name) for name in Usage.__struct_fields__}
        )
        currency = str(each.group[1])
        if currency:
            nanos[currency] = nanos.get(currency, 0) + each.cost_nanos
    return Cost(
        key=key,
        usage=usage,
        nanos=nanos,
        events=sum(each.events for each in sums),
        errors=sum(each.errors for each in sums),
        unpriced_tokens=sum(each.unpriced_tokens for each in sums),
        unpriced_events=sum(each.unpriced_events for each in sums),
    )
