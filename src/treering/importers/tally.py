"""What sessions took, by project and day: the answer that a developer wants first."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from treering.core.batch import Usage
from treering.core.clock import day_of, to_datetime
from treering.core.query import day_start_us
from treering.importers.tokens import added
from treering.views.prices import prices


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one project took on one day."""

    project: str
    day: str
    runs: int = 0
    usage: Usage = Usage()
    nanos: dict[str, int] = {}
    """Money by currency, in nano-units."""
    unpriced_tokens: int = 0


class Tally:
    """Sums that grow while sessions are read."""

    def __init__(self, given: Iterable[Spent] = ()) -> None:
        self._days: dict[tuple[str, str], Spent] = {}
        for each in given:
            self.add(each)

    def add(self, spent: Spent) -> None:
        """What was summed up elsewhere."""
        known = self._at(spent.project, spent.day)
        nanos = dict(known.nanos)
        for currency, amount in spent.nanos.items():
            nanos[currency] = nanos.get(currency, 0) + amount
        self._days[spent.project, spent.day] = Spent(
            project=spent.project,
            day=spent.day,
            runs=known.runs + spent.runs,
            usage=added(known.usage, spent.usage),
            nanos=nanos,
            unpriced_tokens=known.unpriced_tokens + spent.unpriced_tokens,
        )

    def run(self, project: str, ts_us: int) -> None:
        """A run began."""
        self.add(Spent(project=project, day=_day(ts_us), runs=1))

    def used(self, project: str, ts_us: int, model: str | None, usage: Usage) -> None:
        """Tokens of a message."""
        priced = None if model is None else prices.price(model, usage, ts_us)
        self.add(
            Spent(
                project=project,
                day=_day(ts_us),
                usage=usage,
                nanos={} if priced is None else {priced.currency: priced.nanos},
                unpriced_tokens=usage.total if priced is None else 0,
            )
        )

    @property
    def spent(self) -> tuple[Spent, ...]:
        """All of it, by day and project."""
        return tuple(sorted(self._days.values(), key=lambda each: (each.day, each.project)))

    def _at(self, project: str, day: str) -> Spent:
        return self._days.get((project, day)) or Spent(project=project, day=day)


def _day(ts_us: int) -> str:
    return to_datetime(day_start_us(day_of(ts_us))).date().isoformat()
