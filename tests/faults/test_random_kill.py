"""Killed at random moments, again and again, a store with four writing threads loses no acknowledged commit.

The threads commit in groups, through `submit`, and stage packs; the moment is random. Each victim
continues in the store that the previous one left.
"""

from __future__ import annotations

import random

import pytest

from tests.faults.loads import SPACE, batch_of, fate, total
from tests.faults.stores import StoreLocation, killed_after

LONGEST = 0.4


def test_a_kill_at_any_moment_loses_nothing_acknowledged(location: StoreLocation):
    _die_often(location, 5)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_hundred_kills_lose_nothing_acknowledged(location: StoreLocation):
    _die_often(location, 100)


def _die_often(location: StoreLocation, times: int) -> None:
    moments = random.Random(times)
    whole = 0
    for life in range(times):
        account = killed_after(moments.uniform(0, LONGEST), location, writer=f"life{life}w")
        with location.open() as store:
            assert store.verify().problems == ()
            for batch_id, receipt in account.receipts.items():
                batch = batch_of(batch_id)
                assert fate(store.engine, batch) == "whole", f"{batch_id} was acknowledged in life {life}"
                assert store.commit(batch) == receipt
            fates = [fate(store.engine, batch_of(each)) for each in account.in_flight]
            whole += sum(batch_id.startswith("batch-") for batch_id in account.receipts)
            whole += _loads(account.in_flight, fates)
            assert total(store.engine) == whole
            store.gc()
    with location.open() as store:
        location.age_files()
        store.gc(grace_seconds=0)
        assert store.verify().problems == ()
        assert store.engine.stats(SPACE).commits >= whole
    assert location.pack_files() == location.pack_rows()


def _loads(in_flight: list[str], fates: list[str]) -> int:
    pairs = zip(in_flight, fates, strict=True)
    return sum(batch_id.startswith("batch-") and found == "whole" for batch_id, found in pairs)
