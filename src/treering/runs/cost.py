"""Costs of runs, threads, agents, models and days, from the roll-ups that every commit updates.

Amounts of different currencies are never added: a `Cost` has one sum for each, until `Costs.in_` converts
them, each amount at the rate of its day. Usage without a price is counted separately, never as free.

What counts as an event and as an error is defined here (`is_event`, `is_step`) for everything that counts:
an event is a span, a message or another record, once, although a span that was seen running has two rows; an
error is a span that failed. The run itself is neither: its row only repeats its status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import Usage
from treering.core.ids import RUN_MOVED, thread_key
from treering.core.notebook import table
from treering.core.query import SumQuery
from treering.core.rollups import MOVED
from treering.runs.money import check_currency, from_nanos
from treering.runs.prices import EUR, ExchangeRate, exchange
from treering.runs.run import RUN, find_run, run_from_ref, run_not_found, run_ref
from treering.runs.span import MESSAGE, OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from decimal import Decimal

    from treering.core.engine import Engine
    from treering.core.query import Dimension, Grain
    from treering.core.records import Sum
    from treering.runs.listing import LegacyRuns

By = Literal["agent", "model", "kind", "day"]

_NO_USAGE: Final = Usage()
_REFS: Final = 1000


def is_event(kind: str) -> bool:
    """Whether rows of this kind count as events of a run."""
    return kind not in (RUN, MOVED, RUN_MOVED) and not kind.startswith(OPEN)


def is_step(kind: str) -> bool:
    """Whether rows of this kind are messages or spans, of which only spans can fail."""
    return kind == MESSAGE or kind.startswith(SPAN)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money of one group. ``key`` is its agent, model or day; ``None`` for a total."""

    key: str | int | None
    usage: Usage
    nanos: dict[str, int]
    """By currency, in nano-units."""
    events: int = 0
    """Ended spans, messages and other records."""
    errors: int = 0
    """Spans that failed."""
    unpriced_tokens: int = 0
    unpriced_events: int = 0
    rates: tuple[ExchangeRate, ...] = ()
    """The rates used by `Costs.in_`."""
    unconverted: dict[str, int] = {}
    """Amounts by currency that have no rate; they are not in ``nanos``."""

    def _repr_html_(self) -> str:
        return _cost_table("Cost", self, ())

    @property
    def tokens(self) -> int:
        """All tokens, each counted once."""
        return self.usage.total

    @property
    def amounts(self) -> dict[str, Decimal]:
        """The amount in each currency."""
        return {currency: from_nanos(nanos) for currency, nanos in self.nanos.items()}

    @property
    def is_unpriced(self) -> bool:
        """Whether tokens were used and none of them has a price."""
        return not self.nanos and not self.unconverted and self.unpriced_tokens > 0

    def amount(self, currency: str) -> Decimal | None:
        """Return the amount in one currency; ``None`` when nothing has a price, 0 when nothing was used."""
        if currency in self.nanos:
            return from_nanos(self.nanos[currency])
        return from_nanos(0) if not self.is_unpriced and not self.unconverted else None


def _cost_table(title: str, total: Cost, parts: Iterable[tuple[object, Cost]]) -> str:
    rows = [(name, part) for name, part in (*parts, ("total", total))]
    return table(
        title,
        [
            (
                "" if name is None else name,
                f"{part.tokens:,}",
                ", ".join(f"{amount:f} {currency}" for currency, amount in part.amounts.items())
                or ("unpriced" if part.is_unpriced else ""),
            )
            for name, part in rows
        ],
        head=("", "tokens", "cost"),
    )


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """A total and its parts, the most expensive first."""

    total: Cost
    parts: tuple[Cost, ...]

    def _repr_html_(self) -> str:
        return _cost_table("Cost", self.total, [(part.key, part) for part in self.parts])


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one run, by agent and by model, the most expensive first; ``""`` for no name."""

    total: Cost
    by_agent: dict[str, Cost]
    by_model: dict[str, Cost]

    def _repr_html_(self) -> str:
        return _cost_table("Cost of the run", self.total, [*self.by_agent.items(), *self.by_model.items()])


class Costs:
    """The costs of one space."""

    def __init__(self, engine: Engine, space: str, *, currency: str | None = None) -> None:
        self._engine = engine
        self._space = space
        self._currency = currency

    def __repr__(self) -> str:
        return f"<Costs space={self._space!r}>"

    def in_(self, currency: str) -> Costs:
        """Return these costs in one currency, each amount at the reference rate of the day it was spent.

        `Cost.rates` then lists the rates used. Needs the extra ``prices``, unless every amount is in that
        currency already.
        """
        return Costs(self._engine, self._space, currency=check_currency(currency))

    def of_run(self, run_id: str, *, by: By = "agent") -> CostReport:
        """Return the cost of a run."""
        return self._report("run", by, key=run_id)

    def of_thread(self, thread_id: str, *, namespace: str = "", by: By = "agent") -> CostReport:
        """Return the cost of all runs of a thread."""
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
        """Return the cost of everything, or of a range of days (counted from 1970-01-01, UTC)."""
        return self._report("day", by, since_day=since_day, until_day=until_day, agent=agent, model=model)

    def of_runs(self, *, since_day: int | None = None, until_day: int | None = None) -> CostReport:
        """Return the cost of each run, the most expensive first."""
        return self._report("run", "key", since_day=since_day, until_day=until_day)

    def of_threads(self, *, since_day: int | None = None, until_day: int | None = None) -> CostReport:
        """Return the cost of each thread; ``key`` is ``<namespace>/<thread>``."""
        return self._report("thread", "key", since_day=since_day, until_day=until_day)

    def of_tags(self, *, since_day: int | None = None, until_day: int | None = None) -> CostReport:
        """Return the cost of the runs with each tag; ``key`` is ``""`` for runs without tags.

        A run with two tags counts for both, but only once in the total.
        """
        groups = self._groups("run", "key", since_day=since_day, until_day=until_day)
        tagged: dict[str | int, list[Sum]] = {}
        for run, tags in self._tags([str(key) for key in groups]):
            for tag in tags or ("",):
                tagged.setdefault(tag, []).extend(groups[run])
        everything = [each for sums in groups.values() for each in sums]
        return self._to_report(tagged, everything)

    def _tags(self, runs: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        for start in range(0, len(runs), _REFS):
            some = runs[start : start + _REFS]
            refs = self._engine.refs(self._space, [run_ref(run) for run in some])
            for run in some:
                ref = refs.get(run_ref(run))
                yield run, () if ref is None else run_from_ref(ref).tags

    def _report(
        self,
        grain: Grain,
        by: By | Literal["key"],
        *,
        key: str | None = None,
        since_day: int | None = None,
        until_day: int | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> CostReport:
        groups = self._groups(
            grain, by, key=key, since_day=since_day, until_day=until_day, agent=agent, model=model
        )
        return self._to_report(groups, [each for sums in groups.values() for each in sums])

    def _groups(
        self,
        grain: Grain,
        by: By | Literal["key"],
        *,
        key: str | None = None,
        since_day: int | None = None,
        until_day: int | None = None,
        agent: str | None = None,
        model: str | None = None,
    ) -> dict[str | int, list[Sum]]:
        dimensions: tuple[Dimension, ...] = (by, "currency", "kind")
        if self._currency is not None:  # rates are by day
            dimensions = (by, "currency", "kind", "day")
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
        return groups

    def _to_report(self, groups: dict[str | int, list[Sum]], everything: list[Sum]) -> CostReport:
        parts = [cost_of(name, sums, self._currency) for name, sums in groups.items()]
        return CostReport(
            total=cost_of(None, everything, self._currency),
            parts=tuple(
                sorted(parts, key=lambda part: (-sum(part.nanos.values()), -part.tokens, str(part.key)))
            ),
        )


def cost_of(key: str | int | None, sums: list[Sum], into: str | None) -> Cost:
    """Return the total of sums by ``key``, currency, kind and, to convert ``into`` a currency, day."""
    usage = _NO_USAGE
    for each in sums:
        usage = Usage(
            **{name: getattr(usage, name) + getattr(each.usage, name) for name in Usage.__struct_fields__}
        )
    nanos, rates, unconverted = _add_up(sums, into)
    return Cost(
        key=key,
        usage=usage,
        nanos=nanos,
        events=sum(each.events for each in sums if is_event(str(each.group[2]))),
        errors=sum(each.errors for each in sums if is_step(str(each.group[2]))),
        unpriced_tokens=sum(each.unpriced_tokens for each in sums),
        unpriced_events=sum(each.unpriced_events for each in sums),
        rates=rates,
        unconverted=unconverted,
    )


def _add_up(
    sums: list[Sum], into: str | None
) -> tuple[dict[str, int], tuple[ExchangeRate, ...], dict[str, int]]:
    """Return the amounts by currency, converted ``into`` one if given, with rates and what has no rate."""
    spent: dict[tuple[str, int | None], int] = {}
    for each in sums:
        currency = str(each.group[1])
        if currency:
            key = (currency, None if into is None else int(each.group[3]))
            spent[key] = spent.get(key, 0) + each.cost_nanos
    nanos: dict[str, int] = {}
    rates: dict[ExchangeRate, None] = {}
    unconverted: dict[str, int] = {}
    for (currency, day), amount in sorted(spent.items()):
        if into is None or day is None or currency == into:
            nanos[currency] = nanos.get(currency, 0) + amount
            continue
        rate = exchange.rate(currency, day, into=into)
        if rate is None:
            unconverted[currency] = unconverted.get(currency, 0) + amount
        else:
            nanos[into] = nanos.get(into, 0) + rate.convert(amount)
            rates[rate] = None
    return nanos, tuple(rates), unconverted


def cost_report(
    engine: Engine, space: str, run_id: str, *, legacy: LegacyRuns | None = None
) -> dict[str, Any]:
    """Return the cost of a run in tokens and euros as REST returns it, the most expensive agent first.

    ``cost_eur`` is the sum of all amounts in euros, each at the rate of its day; ``None`` when tokens were
    used and none has a price, 0 only when nothing was used. ``rates`` lists the rates used. A run that is not
    in the store is read from ``legacy``.
    """
    ref = find_run(engine, space, run_id)
    if ref is None:
        found = None if legacy is None else legacy.cost(run_id)
        if found is None:
            raise run_not_found(run_id)
        return found
    costs = Costs(engine, space).in_(EUR).of_run(run_from_ref(ref).id)
    report: dict[str, Any] = {
        # Agents that used nothing are only in the timeline.
        "by_agent": [
            _cost_row(part) for part in costs.parts if part.tokens or part.nanos or part.unconverted
        ],
        "total": _cost_row(costs.total),
    }
    if costs.total.rates:
        report["rates"] = [
            {"currency": rate.currency, "rate": float(rate.rate), "date": rate.date}
            for rate in costs.total.rates
        ]
    return report


def _cost_row(cost: Cost) -> dict[str, Any]:
    amount = cost.amount(EUR)
    row: dict[str, Any] = {
        "agent": cost.key or None,
        "tokens": cost.tokens,
        "cost_eur": None if amount is None else float(amount),
    }
    if cost.unpriced_tokens:
        row["unpriced"] = {"tokens": cost.unpriced_tokens, "messages": cost.unpriced_events}
    if cost.unconverted:
        row["unconverted"] = {name: float(from_nanos(nanos)) for name, nanos in cost.unconverted.items()}
    return row


def format_cost(cost: Cost) -> str:
    """Return the amounts of a cost as text; ``?`` stands for usage without a price."""
    amounts = [f"{amount.normalize():f} {currency}" for currency, amount in sorted(cost.amounts.items())]
    if cost.unpriced_tokens:
        amounts.append("?")
    return " + ".join(amounts) or "0"
