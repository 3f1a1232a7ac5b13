"""Each framework, recorded against a server and replayed without one, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treering
from tests.replays.provider import Provider, plan
from treering.agent import create_agent
from treering.agent.messages import Message
from treering.replays.replay import Diverged
from treering.runs.exchanges import read_exchanges

CALLS: list[str] = []
"""The calls of `weather` that were made for real."""
NOTES: list[Path] = []
"""The folder in which `weather` keeps what it said, if there is one."""

PROMPT = plan(
    ("I look at two cities — naïvely.", [("weather", {"city": "Köln"}), ("weather", {"city": "Rome"})]),
    ("And one more.", [("weather", {"city": "Oslo"})]),
    "It is 4, 4 and 4 degrees. ☀",
)


def weather(city: str) -> str:
    """Return the temperature in a city."""
    CALLS.append(city)
    for folder in NOTES:
        (folder / f"{city}.txt").write_text(f"{len(city)} degrees")
    return f"{len(city)} degrees in {city}"


# Each agent returns everything that it saw, as text.


def openai_chat(server: Provider, *, stream: bool, model: str = "gpt-5") -> str:
    import openai

    client = openai.OpenAI(api_key="sk-secret-key", base_url=f"{server.url}/v1", max_retries=0)

    def ask(messages: list[Message], tools: list[Any]) -> Any:
        shown: Any = [{name: value for name, value in each.items() if name != "usage"} for each in messages]
        given: Any = [each.as_openai() for each in tools]
        if not stream:
            done = client.chat.completions.create(model=model, messages=shown, tools=given)
            return {**done.choices[0].message.model_dump(exclude_none=True), "id_of_answer": done.id}
        return _pieces_of(
            client.chat.completions.create(model=model, messages=shown, tools=given, stream=True)
        )

    agent = create_agent(model=ask, tools=[weather])
    done = agent.generate(prompt=PROMPT)
    return json.dumps([done.text, done.messages], ensure_ascii=False)


def _pieces_of(chunks: Any) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for each in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    each.index, {"id": each.id, "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["function"]["name"] += each.function.name or ""
                call["function"]["arguments"] += each.function.arguments or ""
    if calls:
        message["tool_calls"] = list(calls.values())
    yield message


def langgraph(server: Provider, *, stream: bool, model: str = "claude-of-the-tests") -> str:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    make: Any = ChatAnthropic
    chat = make(model=model, api_key="sk-ant-secret", base_url=server.url, streaming=stream, max_retries=0)  # type: ignore[call-arg]
    bound = chat.bind_tools([tool(weather)])
    graph = StateGraph(MessagesState)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([tool(weather)]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    given: Any = {"messages": [("user", PROMPT)]}
    done = graph.compile().invoke(given)
    return json.dumps(
        [[each.type, each.content, getattr(each, "tool_calls", None)] for each in done["messages"]]
    )


def gemini(server: Provider, *, stream: bool, model: str = "gemini-2.5-flash") -> str:
    from google import genai
    from google.genai import types

    client: Any = genai.Client(api_key="secret-gemini-key", http_options={"base_url": server.url})
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="weather")])]
    )
    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=PROMPT)])]
    while True:
        if stream:
            chunks = list(
                client.models.generate_content_stream(model=model, contents=contents, config=config)
            )
            parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
            parts = [part for part in parts if part.text or part.function_call]
        else:
            parts = (
                client.models.generate_content(model=model, contents=contents, config=config)
                .candidates[0]
                .content.parts
            )
        contents.append(types.Content(role="model", parts=parts))
        calls = [part.function_call for part in parts if part.function_call]
        if not calls:
            return json.dumps([each.model_dump(mode="json", exclude_none=True) for each in contents])
        results = [
            types.Part.from_function_response(name=call.name, response={"result": weather(**call.args)})
            for call in calls
        ]
        contents.append(types.Content(role="user", parts=results))


def mistral(server: Provider, *, stream: bool, model: str = "mistral-large-latest") -> str:
    from mistralai.client import Mistral

    def ask(messages: list[Message], tools: list[Any]) -> Any:
        given: Any = {
            "model": model,
            "messages": [{name: each[name] for name in each if name != "usage"} for each in messages],
            "tools": [each.as_openai() for each in tools],
        }
        if not stream:
            (choice,) = client.chat.complete(**given).choices
            return choice.message.model_dump(exclude_none=True)
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for event in client.chat.stream(**given):
            (choice,) = event.data.choices
            message["content"] += choice.delta.content
            if choice.delta.tool_calls:
                message["tool_calls"] = [each.model_dump() for each in choice.delta.tool_calls]
        return message

    with Mistral(api_key="secret-mistral-key", server_url=f"{server.url}/mistral") as client:
        done = create_agent(model=ask, tools=[weather]).generate(prompt=PROMPT)
    return json.dumps([done.text, done.messages], ensure_ascii=False)


def openai_agents(server: Provider, *, stream: bool, model: str = "gpt-5") -> str:
    import agents
    import openai

    config = agents.RunConfig(tracing_disabled=True)  # of this run only: tracing is global to the process

    async def run() -> str:
        client = openai.AsyncOpenAI(api_key="sk-secret-key", base_url=f"{server.url}/v1", max_retries=0)
        agent = agents.Agent(
            name="forecaster",
            tools=[agents.function_tool(weather)],
            model=agents.OpenAIResponsesModel(model=model, openai_client=client),
        )
        if not stream:
            done: Any = await agents.Runner.run(agent, PROMPT, run_config=config)
        else:
            done = agents.Runner.run_streamed(agent, PROMPT, run_config=config)
            async for _ in done.stream_events():
                pass
        await client.close()
        return json.dumps(done.to_input_list())

    return asyncio.run(run())


def pydantic_ai(server: Provider, *, stream: bool, model: str = "claude-of-the-tests") -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async def run() -> str:
        provider = AnthropicProvider(api_key="sk-ant-secret", base_url=server.url)
        agent = Agent(AnthropicModel(model, provider=provider), tools=[weather])
        if stream:
            async with agent.run_stream(PROMPT) as streamed:
                text = await streamed.get_output()
                messages = streamed.new_messages()
        else:
            done = await agent.run(PROMPT)
            text, messages = done.output, done.new_messages()
        said = [
            [part.part_kind, getattr(part, "content", None), getattr(part, "tool_call_id", None)]
            for each in messages
            for part in each.parts
        ]
        return json.dumps([text, said], default=str)

    return asyncio.run(run())


AGENTS = [openai_chat, langgraph, gemini, mistral, openai_agents, pydantic_ai]


@pytest.fixture(params=AGENTS, ids=lambda each: each.__name__)
def agent(request) -> Callable[..., str]:
    return request.param


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_replay_sees_the_same_bytes_and_sends_nothing(server, store, agent, stream) -> None:
    with treering.record(store, agent="forecaster") as run:
        first = agent(server, stream=stream)
    asked, made = server.count, list(CALLS)
    # pydantic-ai's run_stream ends with the first text, as its documentation says.
    assert asked >= 3 or (stream and agent is pydantic_ai)
    with treering.replay(store, run.id, complete=True) as replayed:
        again = agent(server, stream=stream)
    assert again == first
    assert server.count == asked
    assert replayed.divergence is None
    tools_are_known = agent is not gemini  # where the test calls the tool itself
    assert (made == CALLS) == tools_are_known


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_another_model_diverges_where_it_answers_otherwise_and_not_before(
    server, store, agent, stream
) -> None:
    with treering.record(store, agent="forecaster") as run:
        agent(server, stream=stream)
    with pytest.raises(Diverged) as raised, treering.replay(store, run.id):
        agent(server, stream=stream, model="gpt-5-mini")
    assert raised.value.divergence.step == 1
    assert "gpt-5-mini" in str(raised.value)


def test_what_is_recorded_holds_no_credential_and_the_whole_conversation_once(server, store, agent) -> None:
    with treering.record(store, agent="forecaster") as run:
        agent(server, stream=True)
    exchanges = read_exchanges(store.engine, store.space, run.id)
    said = "".join(str(each) for each in exchanges)
    assert "secret" not in said
    assert "PLAN" in said
    assert all(each.pieces for each in exchanges if each.kind == "http")
    assert store.verify().ok


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()
