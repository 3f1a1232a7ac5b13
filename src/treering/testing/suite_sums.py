"""Roll-ups: sums that equal a recount, before and after a reindex (invariant 14)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from treering.core.batch import Event, Usage
from treering.core.clock import DAY_US, day_of
from treering.core.query import Erasure, SumQuery
from treering.core.records import Sum
from treering.core.rollups import deltas, summarise
from treering.testing import batches
from treering.testing.harness import EngineHarness, needs
from treering.testing.portrait import all_records, problems

if TYPE_CHECKING:
    from treering.core.engine import Engine

QUERIES = [
    SumQuery(grain="day"),
    SumQuery(grain="day", by=("day",)),
    SumQuery(grain="day", by=("agent", "model")),
    SumQuery(grain="day", by=("model", "agent"), top=2),
    SumQuery(grain="day", by=("kind", "currency")),
    SumQuery(grain="day", by=("day", "kind"), since_day=20_001, until_day=20_002),
    SumQuery(grain="day", agent="planner", kind="call"),
    SumQuery(grain="day", model="model-b", by=("agent",)),
    SumQuery(grain="run", by=("key",)),
    SumQuery(grain="run", by=("key",), top=3),
    SumQuery(grain="run", key="run-2", by=("model",)),
    SumQuery(grain="run", key="nothing"),
    SumQuery(grain="thread", by=("key", "day")),
    SumQuery(grain="thread", key="t1"),
]


class SumTests(EngineHarness):
    """What roll-ups promise."""

    @needs("sums")
    def test_14_sums_add_up_what_events_say(self, engine: Engine, space: str) -> None:
        engine.commit(
            batches.events(
                space,
                batches.call(),
                batches.call(cost_nanos=None, status="error"),
                batches.event(thread="t1", run="run-1"),
            )
        )
        usage = Usage(input=200, cache_read=20, output=100, reasoning=10)
        assert engine.sums(space, SumQuery(grain="run", key="run-1")) == [
            Sum(
                group=(),
                events=3,
                errors=1,
                usage=usage,
                cost_nanos=1_250_000,
                duration_us=3_000,
                unpriced_events=1,
                unpriced_tokens=160,
            )
        ]
        by_kind = engine.sums(space, SumQuery(grain="day", by=("day", "kind")))
        day = day_of(batches.NOON_US)
        assert [(each.group, each.events) for each in by_kind] == [((day, "call"), 2), ((day, "note"), 1)]

    @needs("sums")
    def test_14_no_events_have_no_sum(self, engine: Engine, space: str) -> None:
        """An empty total is no group at all, also when nothing is grouped."""
        assert engine.sums(space, SumQuery(grain="day")) == []
        engine.commit(batches.events(space, batches.event()))
        assert engine.sums(space, SumQuery(grain="run")) == []

    @needs("sums")
    @pytest.mark.parametrize("seed", range(3))
    def test_14_sums_equal_a_recount_and_a_reindex_changes_nothing(
        self, engine: Engine, space: str, seed: int
    ) -> None:
        chance = random.Random(seed)
        for _ in range(12):
            engine.commit(
                batches.events(space, *[_random_event(chance) for _ in range(chance.randint(1, 8))])
            )
        self._compare(engine, space)
        before = [engine.sums(space, query) for query in QUERIES]
        engine.reindex(space)
        assert [engine.sums(space, query) for query in QUERIES] == before
        assert not problems(engine, space)

    @needs("sums")
    def test_14_erased_events_leave_the_sums(self, engine: Engine, space: str) -> None:
        chance = random.Random(5)
        for _ in range(10):
            engine.commit(batches.events(space, *[_random_event(chance) for _ in range(5)]))
        engine.erase(space, Erasure(scopes=("/run/1",), event_seqs=(2, 3, 5)))
        self._compare(engine, space)
        engine.erase(space, Erasure(scopes=("/run/0", "/run/2")))
        assert engine.sums(space, SumQuery(grain="day")) == []
        assert not problems(engine, space)

    @needs("sums")
    def test_14_a_repeated_event_is_not_counted(self, engine: Engine, space: str) -> None:
        batch = batches.events(space, batches.call(id="a"), batches.call(id="a"))
        engine.commit(batch)
        engine.commit(batch)
        engine.commit(batches.events(space, batches.call(id="a", cost_nanos=5)))
        (total,) = engine.sums(space, SumQuery(grain="day"))
        assert (total.events, total.cost_nanos) == (1, 1_250_000)

    @needs("sums")
    def test_14_large_numbers_stay_exact(self, engine: Engine, space: str) -> None:
        most = (1 << 53) - 1
        engine.commit(
            batches.events(space, *[batches.call(cost_nanos=most, duration_us=most) for _ in range(100)])
        )
        (total,) = engine.sums(space, SumQuery(grain="day"))
        assert (total.cost_nanos, total.duration_us) == (100 * most, 100 * most)

    def _compare(self, engine: Engine, space: str) -> None:
        recount = deltas(record.event for record in all_records(engine, space, limit=1000))
        for query in QUERIES:
            assert engine.sums(space, query) == summarise(recount, query), query


def _random_event(chance: random.Random) -> Event:
    fields: dict[str, Any] = {
        "id": f"e{chance.randint(0, 60)}",
        "ts_us": batches.NOON_US + chance.randint(0, 3) * DAY_US,
        "scope": f"/run/{chance.randint(0, 2)}",
        "run": chance.choice([None, "run-1", "run-2"]),
        "thread": chance.choice([None, "t1", "t2"]),
        "agent": chance.choice([None, "planner", "writer"]),
        "model": chance.choice([None, "model-a", "model-b"]),
        "status": chance.choice([None, "ok", "error"]),
        "duration_us": chance.choice([None, chance.randint(0, 10**9)]),
    }
    if chance.random() < 0.7:
        fields["usage"] = Usage(input=chance.randint(0, 10**6), output=chance.randint(0, 10**5))
        # Distinct costs: the order of equally expensive groups is nobody's promise.
        fields["cost_nanos"] = chance.choice([None, chance.randint(1, 10**12)])
        fields["currency"] = chance.choice([None, "USD", "EUR"])
    return batches.event(chance.choice(["call", "tool"]), **fields)
