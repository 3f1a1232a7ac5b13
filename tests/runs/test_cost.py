"""What runs, threads and tags took."""

from __future__ import annotations

from decimal import Decimal

import pytest


@pytest.fixture
def spent(store):
    """Three runs: 1 for both tags, 2 for one of them, 4 for none."""
    ids = {}
    for name, cost, tags, thread in (
        ("both", 1, ("red", "blue"), "t"),
        ("one", 2, ("red",), "t"),
        ("none", 4, (), None),
    ):
        with store.run(agent="a", tags=tags, thread=thread, id=name) as run:
            run.message("assistant", "x", usage={"output": cost}, cost=cost)
        ids[name] = run.id
    store.flush()
    return store


def amounts(report):
    return {part.key: part.amount("USD") for part in report.parts}


def test_a_run_counts_for_each_of_its_tags_and_once_in_all(spent):
    report = spent.cost.of_tags()
    assert amounts(report) == {"": Decimal(4), "red": Decimal(3), "blue": Decimal(1)}
    assert report.total.amount("USD") == Decimal(7)
    assert report.total.tokens == 7
    assert [part.key for part in report.parts] == ["", "red", "blue"]


def test_runs_and_threads_are_summed_up(spent):
    assert amounts(spent.cost.of_runs()) == {"none": Decimal(4), "one": Decimal(2), "both": Decimal(1)}
    (thread,) = spent.cost.of_threads().parts
    assert thread.amount("USD") == Decimal(3)


def test_tags_of_a_period_in_one_currency(spent):
    report = spent.cost.in_("USD").of_tags(until_day=0)
    assert report.parts == ()
    assert amounts(spent.cost.in_("USD").of_tags())["red"] == Decimal(3)
