"""Growth of a store by day, with its trend."""

from __future__ import annotations

import pytest

from treering.core.clock import DAY_US, ManualClock, to_iso
from treering.engines.memory.engine import MemoryEngine
from treering.errors import InvalidInput
from treering.maintenance import stats
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


def add(store, count):
    for number in range(count):
        store.thread(f"t{number % 3}").append({"role": "user", "content": "x" * 200})


def test_a_large_store_is_estimated_from_its_last_measurement(store, monkeypatch):
    monkeypatch.setattr(stats, "_SMALL", 40)
    add(store, 30)
    assert not store.stats().is_estimate
    add(store, 30)
    measured = store.stats()
    assert not measured.is_estimate  # nothing was remembered yet
    add(store, 10)
    estimated, exact = store.stats(), store.engine.stats(store.space)
    assert estimated.is_estimate
    assert estimated.rows["events"] == pytest.approx(exact.events, rel=0.1)
    assert estimated.rows["items"] == pytest.approx(exact.items, rel=0.1)
    assert estimated.total_bytes == pytest.approx(sum(exact.bytes.values()), rel=0.1)
    assert sum(estimated.growth_bytes.values()) == pytest.approx(sum(exact.growth_bytes.values()), rel=0.1)
    assert store.stats(exact=True).rows["events"] == exact.events
    add(store, 20)
    assert not store.stats().is_estimate  # it has grown by more than a quarter


def test_collecting_garbage_measures_a_large_store_again(store, monkeypatch):
    monkeypatch.setattr(stats, "_SMALL", 40)
    add(store, 60)
    store.stats()
    store.forget(thread="t0")
    assert store.stats().rows["events"] >= 60  # what was erased is still included
    store.gc(grace_seconds=0)
    found = store.stats()
    assert found.is_estimate
    assert found.rows["events"] == pytest.approx(store.engine.stats(store.space).events, abs=3)
