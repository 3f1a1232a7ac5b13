"""Alerts: rules judge the runs that end, and raise each alert once."""

from __future__ import annotations

from contextlib import suppress

import pytest

import treering
from treering.core.clock import ManualClock
from treering.errors import InvalidInput
from treering.store import Store


def failed(store, agent="a", why="no"):
    with suppress(RuntimeError), store.run(agent=agent) as run:
        raise RuntimeError(why)
    store.flush()
    return run.id


def took(store, *, cost, agent="a"):
    with store.run(agent=agent) as run:
        run.message("assistant", "x", usage={"output": round(cost * 10)}, cost=cost)
    store.flush()
    return run.id


def test_a_failed_run_raises_one_alert(store):
    store.alerts.set_rule("failed", "failed")
    run = failed(store)
    took(store, cost=1)
    (alert,) = store.alerts.examine()
    assert (alert.run, alert.agent, alert.level) == (run, "a", "critical")
    assert alert.message == f"run {run} of 'a' ended as error: RuntimeError: no"
    assert store.alerts.examine() == []
    assert [each.id for each in store.alerts.page().alerts] == [alert.id]


def test_runs_before_the_first_rule_are_left_alone(store):
    failed(store)
    store.alerts.set_rule("failed", "failed")
    assert store.alerts.examine() == []


def test_a_run_that_costs_more_than_usual_raises_an_alert(store):
    store.alerts.set_rule("dear", "cost", times=3, at_least=5)
    for cost in (1, 1, 2, 1):
        took(store, cost=cost)
    took(store, cost=50)  # too few before it to judge
    assert store.alerts.examine() == []
    took(store, cost=3)
    odd = took(store, cost=7)
    took(store, cost=9, agent="other")
    (alert,) = store.alerts.examine()
    assert alert.run == odd
    assert alert.message == f"run {odd} of 'a' took 7 USD, usual is 1.5 USD"
    assert alert.figures["value"] == 7_000_000_000


def test_rules_about_tokens_and_duration():
    clock = ManualClock()
    with treering.open("memory:") as opened:
        store = Store(opened.engine, clock=clock)
        store.alerts.set_rule("long", "duration", times=2, at_least=2, agent="a")
        store.alerts.set_rule("many", "tokens", times=2, at_least=2)
        for seconds, tokens in ((10, 5), (10, 5), (25, 5), (10, 11)):
            with store.run(agent="a") as run:
                clock.advance(seconds=seconds)
                run.message("assistant", "x", usage={"output": tokens}, cost=0)
            store.flush()
        result = [alert.message.partition(" took ")[2] for alert in store.alerts.examine()]
        assert result == ["25.0 s, usual is 10.0 s", "11 tokens, usual is 5 tokens"]
        store.close()


def test_runs_without_an_agent_are_compared_with_each_other(store):
    store.alerts.set_rule("dear", "cost", times=3, at_least=2)
    for cost in (1, 1, 1):
        took(store, cost=cost, agent="a")
    took(store, cost=9, agent=None)
    assert store.alerts.examine() == []
    for cost in (9, 9, 90):
        took(store, cost=cost, agent=None)
    (alert,) = store.alerts.examine()
    assert "of no agent took 90 USD, usual is 9 USD" in alert.message


def test_many_failures_in_a_row_are_one_rule(store):
    store.alerts.set_rule("streak", "failures", share=0.5, runs=4, at_least=2)
    for _ in range(2):
        took(store, cost=1)
    failed(store)
    failed(store)
    assert store.alerts.examine() == []
    failed(store)
    (alert,) = store.alerts.examine()
    assert alert.message == "3 of the last 4 runs of 'a' failed"


def test_two_who_examine_raise_one_alert(store):
    store.alerts.set_rule("failed", "failed")
    failed(store)
    twin = Store(store.engine, space=store.space)
    position = store.engine.refs(store.space, ["alerts/examined"])["alerts/examined"]
    assert len(store.alerts.examine()) == 1
    draft = store.draft()
    draft.set_ref("alerts/examined", position.value, scope=position.scope)
    store.commit(draft)
    assert twin.alerts.examine() == []
    assert len(store.alerts.page().alerts) == 1


def test_rules_are_listed_and_removed(store):
    store.alerts.set_rule("b", "failed")
    store.alerts.set_rule("a", "cost", times=2)
    assert [rule.name for rule in store.alerts.rules()] == ["a", "b"]
    assert store.alerts.remove_rule("b")
    assert not store.alerts.remove_rule("b")
    with pytest.raises(InvalidInput, match="what='luck'"):
        store.alerts.set_rule("c", "luck")
    with pytest.raises(InvalidInput, match="is invalid"):
        store.alerts.set_rule("c", "cost", times=0)


def test_a_rule_after_a_time_without_rules_is_not_for_what_ended_meanwhile(store):
    store.alerts.set_rule("failed", "failed")
    assert store.alerts.remove_rule("failed")
    failed(store, why="nobody looked")
    store.alerts.set_rule("failed", "failed")
    assert store.alerts.examine() == []
    failed(store, why="now")
    (alert,) = store.alerts.examine()
    assert alert.message.endswith("now")
