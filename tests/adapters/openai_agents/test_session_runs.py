"""Runs of agents with a session leave runs of its thread, without a tracing processor of the caller's."""

from __future__ import annotations

import asyncio

import agents
import pytest
from agents import OpenAIResponsesModel, RunConfig, Runner

import treering
from tests.adapters.openai_agents.test_tracing import PRICE, team
from treering.adapters.openai_agents import TreeringSession, TreeringTracingProcessor
from treering.core.query import EventQuery, each_record


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_other_processors():
    agents.set_tracing_disabled(False)
    agents.set_trace_processors([])
    yield
    agents.set_trace_processors([])


def ask(store, thread="alice", **options):
    session = TreeringSession(thread, store, **options)
    return asyncio.run(Runner.run(team(OpenAIResponsesModel), "40 and 2?", session=session))


def runs(store, namespace=""):
    store.flush()
    return sorted(store.runs.in_namespace(namespace).each(), key=lambda run: run.started_at_us)


def checkpoint_runs(store):
    found = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
    return {record.event.run for record in found}


def test_a_run_with_a_session_is_a_run_of_its_thread_with_its_cost(store):
    assert ask(store).final_output == "It is 42."
    (run,) = runs(store)
    assert (run.thread, run.status) == ("alice", "ok")
    assert store.cost.of_run(run.id).total.amounts == {"USD": 3 * PRICE}
    assert {"triage", "adder"} <= {event.agent for event in store.timeline.of_run(run.id).events}
    assert checkpoint_runs(store) == {run.id}


def test_nothing_that_happened_before_the_session_was_read_is_missing(store):
    ask(store)
    (run,) = runs(store)
    events = store.timeline.of_run(run.id).events
    assert next(event.agent for event in events if event.label.startswith("▶")) == "triage"


def test_each_run_of_a_session_is_a_run_of_its_own(store):
    ask(store)
    ask(store)
    assert [run.thread for run in runs(store)] == ["alice", "alice"]


def test_runs_at_the_same_time_are_kept_apart(store):
    async def main():
        sessions = [TreeringSession(f"t{number}", store) for number in range(8)]
        await asyncio.gather(
            *(Runner.run(team(OpenAIResponsesModel), "40 and 2?", session=each) for each in sessions)
        )

    asyncio.run(main())
    found = runs(store)
    assert {run.thread for run in found} == {f"t{number}" for number in range(8)}
    for run in found:
        assert store.cost.of_run(run.id).total.amounts == {"USD": 3 * PRICE}


def test_a_processor_of_the_callers_own_is_not_doubled(store):
    processor = TreeringTracingProcessor(store)
    agents.set_trace_processors([processor])
    ask(store)
    assert len(runs(store)) == 1


def test_a_session_that_is_made_inside_a_trace_records_it(store):
    async def main():
        with agents.trace("support"):
            session = TreeringSession("alice", store)
            await Runner.run(team(OpenAIResponsesModel), "40 and 2?", session=session)

    asyncio.run(main())
    (run,) = runs(store)
    assert (run.agent, run.thread) == ("support", "alice")
    assert store.cost.of_run(run.id).total.amounts == {"USD": 3 * PRICE}


def test_inside_a_run_of_ones_own_it_is_part_of_that(store):
    with store.run(agent="mine") as run:
        ask(store)
    (found,) = runs(store)
    assert found.id == run.id
    assert store.cost.of_run(run.id).total.amounts == {"USD": 3 * PRICE}
    assert checkpoint_runs(store) == {run.id}


def test_runs_are_of_the_sessions_namespace(store):
    ask(store, namespace="acme")
    (run,) = runs(store, "acme")
    assert run.thread == "alice"


def test_a_run_without_a_session_leaves_none(store):
    ask(store)
    asyncio.run(Runner.run(team(OpenAIResponsesModel), "40 and 2?"))
    assert len(runs(store)) == 1


@pytest.mark.parametrize("how", ["runs", "config"])
def test_runs_can_be_switched_off(store, how):
    session = TreeringSession("alice", store, runs=how != "runs")
    config = RunConfig(tracing_disabled=how == "config")
    asyncio.run(Runner.run(team(OpenAIResponsesModel), "40 and 2?", session=session, run_config=config))
    assert runs(store) == []
    assert checkpoint_runs(store) == {None}


def test_what_models_are_sent_is_not_stored_again(store):
    session = TreeringSession("alice", store)
    said = [{"role": "user", "content": f"CANARY {number}"} for number in range(50)]
    asyncio.run(session.add_items(said))
    agent = team(OpenAIResponsesModel)
    asyncio.run(Runner.run(agent, "CANARY again", session=session))
    (run,) = runs(store)
    found = each_record(store.engine, store.space, EventQuery(run=run.id))
    data = b"".join(each.event.data or b"" for each in found if each.event.kind != "checkpoint")
    assert data.count(b"CANARY") <= 2
