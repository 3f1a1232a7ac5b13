"""An agent's runs are in the timeline of the store that keeps its conversations."""

import asyncio
import json

import pytest

from treering.agent import create_agent, tool
from treering.errors import BudgetExceeded
from treering.runs.listing import run_records


def scripted(*replies):
    waiting = iter(replies)
    return lambda *_: next(waiting)


def calling(name, **arguments):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "model": "gpt-4o-mini",
        "usage": usage,
    }


DONE = {
    "role": "assistant",
    "content": "It is sunny.",
    "model": "gpt-4o-mini",
    "usage": {"prompt_tokens": 150, "completion_tokens": 5},
}


def weather(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


def records(store, run_id):
    store.flush()
    return run_records(store.engine, store.space, run_id).records


def test_a_run_is_recorded_with_messages_tools_tokens_and_cost(store):
    agent = create_agent(
        name="forecaster",
        model=scripted(calling("weather", city="Berlin"), DONE),
        tools=[weather],
        checkpointer=store,
    )
    result = agent.generate(thread_id="t", prompt="Weather?")
    found = records(store, result.run_id)
    (run,) = store.runs.page().runs
    assert (run.id, run.agent, run.thread, run.status) == (result.run_id, "forecaster", "t", "ok")
    assert [each.role for each in found if each.kind == "message"] == ["user", "assistant", "assistant"]
    (tool,) = [each for each in found if each.type == "tool"]
    assert (tool.name, tool.status) == ("weather", "ok")
    assert len([each for each in found if each.type == "llm"]) == 2
    total = store.cost.of_run(result.run_id).total
    assert (total.usage.input, total.usage.output) == (250, 25)
    assert total.amount("USD") > 0


def test_what_is_saved_in_a_run_is_linked_to_it(store):
    def remember(text: str) -> str:
        """Keep it."""
        store.memory.save("note", text)
        return "kept"

    agent = create_agent(
        model=scripted(calling("remember", text="x"), DONE), tools=[remember], checkpointer=store
    )
    result = agent.generate(thread_id="t", prompt="Remember x", checkpoint_after_tool_call=True)
    found = records(store, result.run_id)
    checkpoints = [each.id for each in found if each.kind == "checkpoint"]
    assert checkpoints[-1] == result.checkpoint.id
    assert [each.id for each in store.thread("t").history()] == checkpoints[::-1]
    (tool,) = [each for each in found if each.type == "tool"]
    (saved,) = [each for each in found if each.kind.startswith("memory")]
    assert saved.parent == tool.id


async def awaited(store):
    async def remember(text: str) -> str:
        """Keep it."""
        store.memory.save("note", text)
        return "kept"

    agent = create_agent(
        model=scripted(calling("remember", text="x"), DONE), tools=[remember], checkpointer=store
    )
    return await agent.agenerate(thread_id="t", prompt="Remember x")


def test_an_async_tool_is_linked_as_well(store):
    result = asyncio.run(awaited(store))
    found = records(store, result.run_id)
    (tool,) = [each for each in found if each.type == "tool"]
    (saved,) = [each for each in found if each.kind.startswith("memory")]
    assert saved.parent == tool.id


def test_a_failure_is_recorded_and_the_next_attempt_names_the_run_it_resumes(store):
    def broken(city: str) -> str:  # noqa: ARG001 - what the model passes
        """The weather."""
        raise RuntimeError("no network")

    broken.__name__ = "weather"
    agent = create_agent(
        model=scripted(calling("weather", city="Berlin")),
        tools=[tool(broken, replay="safe")],
        checkpointer=store,
        on_tool_error="raise",
    )
    with pytest.raises(RuntimeError):
        agent.generate(thread_id="t", prompt="Weather?")
    again = create_agent(model=scripted(DONE), tools=[weather], checkpointer=store)
    result = again.generate(thread_id="t")
    store.flush()
    second, first = store.runs.page().runs
    assert (first.id, first.status) == (result.run_id, "error")
    assert first.meta["error"]["message"] == "no network"
    assert (second.status, second.meta) == ("ok", {"resumes": first.id})


def test_a_stream_records_its_chunks_and_an_abandoned_one_is_stopped(store):
    def stream(*_):
        yield "It is "
        yield "sunny."

    agent = create_agent(model=stream, checkpointer=store)
    result = list(agent.stream(thread_id="t", prompt="Weather?"))[-1].result
    (asked,) = [each for each in records(store, result.run_id) if each.type == "llm"]
    assert asked.has_output
    left = agent.stream(thread_id="t", prompt="And now?")
    next(left)
    left.close()
    store.flush()
    assert store.runs.page().runs[0].status == "stopped"


def test_without_a_store_nothing_is_recorded():
    result = create_agent(model=scripted(DONE)).generate(prompt="Weather?")
    assert result.text == "It is sunny."


def test_a_budget_of_the_store_stops_the_model_before_its_next_call(store):
    store.budgets.set("each run", per="run", tokens=100, action="stop")
    asked = []

    def model(*_):
        asked.append(1)
        return calling("weather", city="Berlin")

    agent = create_agent(model=model, tools=[weather], checkpointer=store)
    with pytest.raises(BudgetExceeded, match="each run"):
        agent.generate(thread_id="t", prompt="Weather?")
    assert len(asked) == 1
    store.flush()
    assert store.runs.page().runs[0].status == "error"
