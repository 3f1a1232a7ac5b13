"""Batches submitted during a slow commit are committed as well, whoever else writes meanwhile."""

from __future__ import annotations

import pytest

from tests.faults.loads import fate, load, total
from tests.faults.stores import StoreLocation
from treering.core.failpoints import armed
from treering.testing.harness import at_once

MANY = 20


@pytest.mark.timeout(60)
def test_submitted_batches_do_not_wait_for_one_another(location: StoreLocation):
    """They arrive while the committing thread is busy, and no other thread commits them."""
    with location.open() as store, armed("commit.begin", "sleep:5"):
        futures = [store.submit(load(number)) for number in range(MANY)]
        receipts = [future.result(timeout=30) for future in futures]
        assert [receipt.batch for receipt in receipts] == [load(number).id for number in range(MANY)]
        assert total(store.engine) == MANY


@pytest.mark.timeout(60)
def test_submitted_and_committed_batches_join_the_same_groups(location: StoreLocation):
    with location.open() as store, armed("commit.before_commit", "sleep:2"):

        def commit(writer: str) -> None:
            for number in range(MANY):
                store.commit(load(number, writer=writer))

        def submit(writer: str) -> None:
            for future in [store.submit(load(number, writer=writer)) for number in range(MANY)]:
                future.result(timeout=30)

        outcomes = at_once(*[lambda n=n: (submit, commit)[n % 2](f"w{n}") for n in range(6)])
        assert outcomes == [None] * 6
        assert total(store.engine) == 6 * MANY
        assert fate(store.engine, load(MANY - 1, writer="w5")) == "whole"
        assert store.verify().problems == ()
