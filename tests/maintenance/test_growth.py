"""Growth of a store by day, with its trend."""

from __future__ import annotations

import pytest

from treering.core.clock import DAY_US, ManualClock, to_iso
from treering.engines.memory.engine import MemoryEngine
from treering.errors import InvalidInput
from treering.store import Store


def test_growth_adds_up_to_what_is_stored(store):
    assert store.growth().days == ()
    for _ in range(3):
        with store.run(agent="a") as run:
            run.message("user", "x" * 500)
    store.flush()
    growth = store.growth()
    (today,) = growth.days
    assert (today.events, today.runs) == (6, 3)
    assert today.bytes == growth.total_bytes == sum(store.stats().growth_bytes.values()) > 1500
    assert growth.bytes_per_day == pytest.approx(growth.total_bytes / 7)
    assert growth.in_30_days_bytes == round(growth.total_bytes * (1 + 30 / 7))


def test_the_trend_covers_the_last_days():
    clock = ManualClock()
    store = Store(MemoryEngine(clock=clock), clock=clock)
    for size in (9000, 100):
        store.thread("t").append({"role": "user", "content": "x" * size})
        clock.advance(seconds=10 * DAY_US / 1e6)
    growth = store.growth(last_days=20)
    first, second = growth.days
    assert second.date == to_iso(clock.now_us() - 10 * DAY_US)[:10]
    assert first.bytes > second.bytes > 0
    assert second.total_bytes == growth.total_bytes
    assert growth.bytes_per_day == pytest.approx(second.bytes / 20)
    assert store.growth(last_days=5).bytes_per_day == 0
    with pytest.raises(InvalidInput, match="last_days is 0"):
        store.growth(last_days=0)
    store.close()
