"""The OpenAI Agents SDK, recorded by its own tracing: real runners, and models behind a scripted endpoint."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal

import agents
import httpx
import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool
from agents.testing import ModelStep, ScriptedModel, assistant_message
from openai import AsyncOpenAI

import treering
from treering.adapters.openai_agents import TreeringTracingProcessor
from treering.core.batch import Usage
from treering.core.query import EventQuery

MODEL = "gpt-5"
USAGE = Usage(input=200, cache_read=800, output=30, reasoning=10)
# gpt-5: 1.25 $ a million, 0.125 from the cache, 10 of output
PRICE = (200 * Decimal("1.25") + 800 * Decimal("0.125") + 30 * Decimal(10)) / 1_000_000


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@function_tool(failure_error_function=None)
def explode() -> str:
    """Never works."""
    raise ValueError("boom")


def answer(asked):
    """The model: hand over, then add, then say it. The next step follows from what it is shown."""
    items = asked.get("input") or asked.get("messages")
    result = json.dumps(items)
    names = [tool.get("name") or tool["function"]["name"] for tool in asked.get("tools", [])]
    if "transfer_to_adder" in names:
        return "transfer_to_adder", {}
    if "explode" in names:
        return "explode", {}
    return ("add", {"a": 40, "b": 2}) if '"42"' not in result else (None, "It is 42.")


def responses_api(asked):
    name, given = answer(asked)
    if name is None:
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": given, "annotations": []}],
        }
    else:
        item = {"type": "function_call", "id": "fc_1", "call_id": f"call_{name}", "name": name}
        item["arguments"] = json.dumps(given)
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": asked["model"],
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1000,
            "input_tokens_details": {"cached_tokens": 800},
            "output_tokens": 30,
            "output_tokens_details": {"reasoning_tokens": 10},
            "total_tokens": 1030,
        },
    }


def completions_api(asked):
    name, given = answer(asked)
    message = {"role": "assistant", "content": given if name is None else None}
    if name is not None:
        function = {"name": name, "arguments": json.dumps(given)}
        message["tool_calls"] = [{"id": f"call_{name}", "type": "function", "function": function}]
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": asked["model"],
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {
            "prompt_tokens": 1000,
            "prompt_tokens_details": {"cached_tokens": 800},
            "completion_tokens": 30,
            "completion_tokens_details": {"reasoning_tokens": 10},
            "total_tokens": 1030,
        },
    }


def endpoint(request):
    api = responses_api if request.url.path.endswith("/responses") else completions_api
    return httpx.Response(200, json=api(json.loads(request.content)))


def model(kind):
    client = AsyncOpenAI(
        api_key="made-up",
        base_url="http://scripted/v1",
        http_client=httpx.AsyncClient(transport=httpx.MockTransport(endpoint)),
    )
    return kind(MODEL, client)


def team(kind, *tools):
    adder = Agent(name="adder", model=model(kind), tools=list(tools or (add,)))
    return Agent(name="triage", model=model(kind), handoffs=[adder])


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def processor(store):
    processor = TreeringTracingProcessor(store)
    agents.set_trace_processors([processor])
    yield processor
    agents.set_trace_processors([])


def run(agent, **config):
    return asyncio.run(Runner.run(agent, "40 and 2?", run_config=RunConfig(**config)))


def spans(store, run_id):
    store.flush()
    found = store.engine.scan(store.space, EventQuery(run=run_id)).records
    return [record.event for record in found if record.event.kind.startswith("span.")]


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.usefixtures("processor")
def test_a_trace_is_a_run_with_its_agents_calls_and_cost(store, kind):
    trace = "trace_" + "0" * 32
    assert run(team(kind), trace_id=trace, workflow_name="sums", group_id="alice").final_output == "It is 42."
    store.flush()
    info = store.runs.load(trace)
    assert (info.agent, info.thread, info.status) == ("sums", "alice", "ok")
    total = store.cost.of_run(trace).total
    assert total.usage == Usage(input=600, cache_read=2400, output=90, reasoning=30)
    assert total.amounts == {"USD": 3 * PRICE}
    parts = {part.key: part.amount("USD") for part in store.cost.of_run(trace).parts if part.tokens}
    assert parts == {"triage": PRICE, "adder": 2 * PRICE}
    labels = [event.label.split(" (")[0] for event in store.timeline.of_run(trace).events]
    assert labels.count("assistant message") == 3
    assert [each for each in labels if each.startswith(("▶", "call"))] == ["▶ triage", "▶ adder", "call add"]


@pytest.mark.usefixtures("processor")
def test_spans_keep_ids_nesting_inputs_and_outputs(store):
    trace = "trace_" + "1" * 32
    run(team(OpenAIResponsesModel), trace_id=trace)
    found = spans(store, trace)
    by_id = {event.id: event for event in found}
    (tool,) = [event for event in found if event.kind == "span.tool"]
    assert tool.id.startswith("span_")
    above = tool
    while above.kind != "span.agent":
        above = by_id[above.parent]
    assert above.name == "adder" == tool.agent
    given = tool.links[json.loads(tool.data)["input"]]
    assert store.timeline.content(tool.body, given) == [42, {"a": 40, "b": 2}]
    (asked,) = [event for event in store.timeline.of_run(trace).events if event.label == "user message"]
    assert store.timeline.content(asked.body) == ["40 and 2?"]
    models = {event.model for event in found if event.kind == "span.llm"}
    assert models == {MODEL}


@pytest.mark.usefixtures("processor")
def test_errors_are_recorded_and_raised(store):
    trace = "trace_" + "2" * 32
    with pytest.raises(agents.UserError, match="boom"):
        run(team(OpenAIResponsesModel, explode), trace_id=trace)
    (tool,) = [event for event in spans(store, trace) if event.kind == "span.tool"]
    assert tool.status == "error"
    assert "boom" in json.dumps(json.loads(tool.data)["error"])


@pytest.mark.usefixtures("processor")
def test_traces_that_run_at_once_stay_apart(store):
    async def both():
        await asyncio.gather(
            *(
                Runner.run(
                    team(OpenAIResponsesModel),
                    "40 and 2?",
                    run_config=RunConfig(trace_id=f"trace_{number:032}", group_id=f"user-{number}"),
                )
                for number in range(4)
            )
        )

    asyncio.run(both())
    store.flush()
    for number in range(4):
        assert store.cost.of_thread(f"user-{number}").total.amounts == {"USD": 3 * PRICE}
        assert len([e for e in spans(store, f"trace_{number:032}") if e.kind == "span.tool"]) == 1


@pytest.mark.usefixtures("processor")
def test_without_sensitive_data_only_counts_are_kept(store):
    trace = "trace_" + "3" * 32
    run(team(OpenAIResponsesModel), trace_id=trace, trace_include_sensitive_data=False)
    store.flush()
    total = store.cost.of_run(trace).total
    assert total.usage.output == 90
    assert total.is_unpriced  # the SDK does not even tell the model then
    for event in store.timeline.each_of_run(trace, everything=True):
        if event.body is not None:
            assert "42" not in str(store.timeline.content(event.body))


@pytest.mark.usefixtures("processor")
def test_a_model_that_fails_leaves_a_failed_call(store):
    trace = "trace_" + "4" * 32
    broken = ScriptedModel([ModelStep.raise_error(RuntimeError("away"))], emit_traces=True)
    with pytest.raises(RuntimeError, match="away"):
        run(Agent(name="alone", model=broken), trace_id=trace)
    (call,) = [event for event in spans(store, trace) if event.kind == "span.llm"]
    assert call.status == "error"


def test_an_error_in_recording_does_not_stop_the_agent(tmp_path):
    processor = TreeringTracingProcessor(tmp_path / "store", namespace="bad\nname")
    agents.set_trace_processors([processor])
    model = ScriptedModel([[assistant_message("Fine.")]])
    with pytest.warns(RuntimeWarning, match="could not be recorded"):
        assert run(Agent(name="a", model=model)).final_output == "Fine."
    agents.set_trace_processors([])
    processor.close()
