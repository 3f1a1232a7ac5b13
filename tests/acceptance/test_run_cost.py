"""Orchestrator: tokens and euros of a run, by agent and in total."""

from __future__ import annotations

import pytest

import treering
from treering.compat import services
from treering.compat.services import create_run, get_run_cost, save_message, start_span
from treering.core.clock import ManualClock
from treering.errors import InvalidInput, NotFound
from treering.store import Store


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as opened:
        clocked = Store(opened.engine, clock=ManualClock(1_772_452_800_000_000))  # 2026-03-02
        services.use(clocked)
        yield clocked
        services.use(None)
        clocked.close()


def test_the_document_s_response(store):
    run_id = create_run()
    for agent, tokens, cost in (
        ("planner", 1000, 0.03),
        ("planner", 250, 0.0075),
        ("executor", 800, 0.024),
        ("writer", 2100, 0.063),
    ):
        save_message(run_id, "assistant", "x", agent, "gpt-4", {"total": tokens}, cost_eur=cost)
    cost = get_run_cost(run_id)
    assert sorted(cost["by_agent"], key=lambda row: row["agent"]) == [
        {"agent": "executor", "tokens": 800, "cost_eur": 0.024},
        {"agent": "planner", "tokens": 1250, "cost_eur": 0.0375},
        {"agent": "writer", "tokens": 2100, "cost_eur": 0.063},
    ]
    assert [row["agent"] for row in cost["by_agent"]] == ["writer", "planner", "executor"]
    assert cost["total"] == {"agent": None, "tokens": 4150, "cost_eur": 0.1245}
    assert "rates" not in cost
    assert store.cost.of_run(run_id).total.nanos == {"EUR": 124_500_000}


def test_a_given_total_is_kept_beside_its_parts(store):
    run_id = create_run()
    given = {"prompt": 100, "completion": 50, "total": 200}
    save_message(run_id, "assistant", "x", "planner", "gpt-4", given, cost_eur=1)
    save_message(run_id, "assistant", "y", "planner", "my-own-llama", {"total": 7})
    assert get_run_cost(run_id)["total"]["tokens"] == 207
    total = store.cost.of_run(run_id).total
    assert (total.usage.input, total.usage.output, total.usage.other) == (100, 50, 57)
    with pytest.raises(InvalidInput, match=r"total=120 in usage is less than the 150 tokens"):
        save_message(run_id, "assistant", "x", tokens={"prompt": 100, "completion": 50, "total": 120})
    assert store.verify().ok


@pytest.mark.usefixtures("store")
def test_an_empty_run_gives_zeros():
    run_id = create_run()
    zeros = {"by_agent": [], "total": {"agent": None, "tokens": 0, "cost_eur": 0.0}}
    assert get_run_cost(run_id) == zeros
    start_span(run_id, "planner")
    save_message(run_id, "user", "Hello")
    save_message(run_id, "assistant", "", model="my-own-llama", tokens={"total": 0})
    assert get_run_cost(run_id) == zeros
    with pytest.raises(NotFound):
        get_run_cost("nothing")


@pytest.mark.usefixtures("store")
def test_what_has_no_price_is_told_apart():
    run_id = create_run()
    save_message(run_id, "assistant", "x", "planner", "my-own-llama", {"total": 70})
    everything = get_run_cost(run_id)
    unpriced = {"tokens": 70, "messages": 1}
    assert everything["total"] == {"agent": None, "tokens": 70, "cost_eur": None, "unpriced": unpriced}
    save_message(run_id, "assistant", "x", "planner", "my-own-llama", {"total": 30}, cost_eur=1)
    assert get_run_cost(run_id)["by_agent"] == [
        {"agent": "planner", "tokens": 100, "cost_eur": 1.0, "unpriced": unpriced}
    ]


def test_amounts_are_converted_and_the_rate_is_shown(store):
    with store.run(agent="planner", id="r") as run:
        run.message("assistant", "x", usage={"input": 10}, cost=10, currency="USD")
        run.message("assistant", "x", usage={"input": 10}, cost=1, currency="EUR")
        run.message("assistant", "x", usage={"input": 10}, cost=1, currency="XXX", agent="other")
    cost = get_run_cost("r")
    (rate,) = cost["rates"]
    assert (rate["currency"], rate["date"]) == ("USD", "2026-03-02")
    assert 0.8 < rate["rate"] < 0.95
    planner, other = cost["by_agent"]
    assert planner["cost_eur"] == pytest.approx(1 + 10 * rate["rate"])
    assert (other["cost_eur"], other["unconverted"]) == (None, {"XXX": 1.0})
    assert cost["total"]["cost_eur"] == planner["cost_eur"]
    assert cost["total"]["unconverted"] == {"XXX": 1.0}
