"""`treering.instrument()` is one line: every call of an SDK is a run with a span, tokens and cost.

The SDKs are the real ones, sync and async, whole and streamed, against a server that speaks their wire
formats. Where an adapter records the same calls, nothing is counted twice.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import treering
from tests.replays.provider import Provider, plan
from treering.replays.wire import read_reply
from treering.runs.exchanges import read_exchanges

pytestmark = pytest.mark.filterwarnings(  # of google-genai beside aiohttp
    "ignore:Inheritance class AiohttpClientSession:DeprecationWarning"
)
ROOT = Path(__file__).resolve().parents[2]

PROMPT = plan("Seven oaks.")
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]


def openai_chat(server: Provider, *, stream: bool) -> str:
    import openai

    with openai.OpenAI(api_key="sk-1", base_url=f"{server.url}/v1", max_retries=0) as client:
        if not stream:
            return client.chat.completions.create(model="gpt-5", messages=MESSAGES).choices[0].message.content
        chunks = client.chat.completions.create(
            model="gpt-5", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        return "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)


async def openai_responses_async(server: Provider, *, stream: bool) -> str:
    import openai

    async with openai.AsyncOpenAI(api_key="sk-1", base_url=f"{server.url}/v1", max_retries=0) as client:
        if not stream:
            return (await client.responses.create(model="gpt-5", input=PROMPT)).output_text
        async with client.responses.stream(model="gpt-5", input=PROMPT) as events:
            async for _ in events:
                pass
            return (await events.get_final_response()).output_text


def anthropic_messages(server: Provider, *, stream: bool) -> str:
    import anthropic

    given: dict[str, Any] = {"model": "claude-sonnet-4-6", "max_tokens": 100, "messages": MESSAGES}
    with anthropic.Anthropic(api_key="sk-1", base_url=server.url, max_retries=0) as client:
        if not stream:
            return client.messages.create(**given).content[0].text
        with client.messages.stream(**given) as events:
            return events.get_final_text()


async def anthropic_async(server: Provider, *, stream: bool) -> str:
    import anthropic

    given: dict[str, Any] = {"model": "claude-sonnet-4-6", "max_tokens": 100, "messages": MESSAGES}
    async with anthropic.AsyncAnthropic(api_key="sk-1", base_url=server.url, max_retries=0) as client:
        if not stream:
            return (await client.messages.create(**given)).content[0].text
        async with client.messages.stream(**given) as events:
            return await events.get_final_text()


def gemini(server: Provider, *, stream: bool) -> str:
    from google import genai

    with genai.Client(api_key="k", http_options={"base_url": server.url}) as client:
        if not stream:
            return client.models.generate_content(model="gemini-2.5-flash", contents=PROMPT).text
        chunks = client.models.generate_content_stream(model="gemini-2.5-flash", contents=PROMPT)
        return "".join(each.text or "" for each in chunks)


async def gemini_async(server: Provider, *, stream: bool) -> str:
    from google import genai

    async with genai.Client(api_key="k", http_options={"base_url": server.url}).aio as client:
        if not stream:
            return (await client.models.generate_content(model="gemini-2.5-flash", contents=PROMPT)).text
        chunks = await client.models.generate_content_stream(model="gemini-2.5-flash", contents=PROMPT)
        return "".join([each.text or "" async for each in chunks])


def mistral(server: Provider, *, stream: bool, model: str = "mistral-large-latest") -> str:
    from mistralai.client import Mistral

    with Mistral(api_key="k", server_url=f"{server.url}/mistral") as client:
        if not stream:
            return mistral_text(
                client.chat.complete(model=model, messages=MESSAGES).choices[0].message.content
            )
        chunks = client.chat.stream(model=model, messages=MESSAGES)
        return "".join(mistral_text(each.data.choices[0].delta.content) for each in chunks)


async def mistral_async(server: Provider, *, stream: bool) -> str:
    from mistralai.client import Mistral

    async with Mistral(api_key="k", server_url=f"{server.url}/mistral") as client:
        given: dict[str, Any] = {"model": "magistral-medium-latest", "messages": MESSAGES}
        if not stream:
            return mistral_text((await client.chat.complete_async(**given)).choices[0].message.content)
        chunks = await client.chat.stream_async(**given)
        return "".join([mistral_text(each.data.choices[0].delta.content) async for each in chunks])


def mistral_text(content: Any) -> str:
    """What a message says, without what its model thought."""
    return content if isinstance(content, str) else "".join(getattr(each, "text", "") for each in content)


async def bare_httpx(server: Provider, *, stream: bool) -> str:
    async with httpx.AsyncClient() as client:
        body = {"model": "gpt-5", "messages": MESSAGES}
        if not stream:
            said = (await client.post(f"{server.url}/v1/chat/completions", json=body)).json()
            return said["choices"][0]["message"]["content"]
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        text = ""
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
        return text


CLIENTS = [
    *(openai_chat, openai_responses_async, anthropic_messages, anthropic_async),
    *(gemini, gemini_async, mistral, mistral_async, bare_httpx),
]


def ask(client: Callable[..., Any], server: Provider, *, stream: bool) -> str:
    said = client(server, stream=stream)
    return asyncio.run(said) if asyncio.iscoroutine(said) else said


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.__name__)
def test_a_call_is_a_run_with_tokens_and_cost(server, store, client, stream) -> None:
    with treering.instrument(store):
        assert ask(client, server, stream=stream) == "Seven oaks."
    check_recorded(store)


@pytest.mark.slow  # seconds to import
@pytest.mark.parametrize("form", ["whole", "streamed"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_of_litellm_is_a_run_with_tokens_and_cost(server, store, tmp_path, kind, form) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.replays.litellm_calls", str(tmp_path / "store")]
    done = subprocess.run(
        [*command, server.url, kind, form], capture_output=True, text=True, timeout=100, check=False, cwd=ROOT
    )
    assert done.stdout.endswith("Seven oaks."), done.stderr
    check_recorded(store)


def check_recorded(store: treering.Store) -> None:
    (run,) = store.runs.each()
    assert run.status == "ok"
    (message,) = [each for each in store.timeline.of_run(run.id).events if each.type == "message"]
    assert message.meta["model"]
    total = store.cost.of_run(run.id).total
    assert (total.usage.input, total.usage.output) == (100, 10)
    assert total.amounts["USD"] > 0
    (exchange,) = read_exchanges(store.engine, store.space, run.id)
    assert exchange.status == 200
    reply = read_reply(exchange.path, exchange.answer)
    assert reply is not None
    assert (reply.text, reply.model) == ("Seven oaks.", message.meta["model"])


def total_of(store: treering.Store) -> tuple[int, int]:
    """The tokens of the whole store."""
    store.flush()
    sums = [store.cost.of_run(run.id).total.usage for run in store.runs.each()]
    return sum(each.input for each in sums), sum(each.output for each in sums)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_graph_that_saves_to_the_store_counts_once(server, store, is_async) -> None:
    from langchain_anthropic import ChatAnthropic
    from langgraph.graph import START, MessagesState, StateGraph

    from treering.adapters.langgraph import TreeringSaver

    make: Any = ChatAnthropic
    model = make(model="claude-sonnet-4-6", api_key="sk-1", base_url=server.url, max_retries=0)

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def answer_async(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer_async if is_async else answer)
    graph.add_edge(START, "answer")
    graph = graph.compile(checkpointer=TreeringSaver(store))
    given = {"messages": [("user", PROMPT)]}
    where = {"configurable": {"thread_id": "alice"}}
    with treering.instrument(store):
        if is_async:
            asyncio.run(graph.ainvoke(given, where))
        else:
            graph.invoke(given, where)
    assert total_of(store) == (100, 10)
    (run,) = store.runs.each()
    (exchange,) = read_exchanges(store.engine, store.space, run.id)
    assert exchange.span is not None


def test_a_session_of_the_openai_agents_sdk_counts_once(server, store) -> None:
    import agents
    import openai

    from treering.adapters.openai_agents import TreeringSession

    async def talk() -> None:
        async with openai.AsyncOpenAI(api_key="sk-1", base_url=f"{server.url}/v1", max_retries=0) as client:
            agent = agents.Agent(
                name="forester", model=agents.OpenAIResponsesModel(model="gpt-5", openai_client=client)
            )
            await agents.Runner.run(agent, PROMPT, session=TreeringSession("alice", store))

    with treering.instrument(store):
        asyncio.run(talk())
    assert total_of(store) == (100, 10)


def test_checkpoints_of_pydantic_ai_count_once(server, store) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    from treering.adapters.pydantic_ai import TreeringCheckpoints, TreeringConversationStore

    model = AnthropicModel(
        "claude-sonnet-4-6", provider=AnthropicProvider(api_key="sk-1", base_url=server.url)
    )
    agent = Agent(model, name="shop", capabilities=[TreeringCheckpoints(TreeringConversationStore(store))])
    with treering.instrument(store):
        asyncio.run(agent.run(PROMPT, conversation_id="alice"))
    assert total_of(store) == (100, 10)


def test_a_failed_call_is_a_failed_run_and_the_error_is_the_sdks_own(server, store) -> None:
    import openai

    server.fails = [500]
    with treering.instrument(store), pytest.raises(openai.InternalServerError):
        openai_chat(server, stream=False)
    (run,) = store.runs.each()
    assert run.status == "error"


def test_an_answer_of_a_transport_that_had_read_it_is_recorded(store) -> None:
    used = {"prompt_tokens": 100, "completion_tokens": 10}
    said = {
        "choices": [{"message": {"role": "assistant", "content": "Seven."}}],
        "model": "gpt-5",
        "usage": used,
    }
    cached = httpx.MockTransport(lambda _: httpx.Response(200, json=said))

    async def ask_async() -> None:
        async with httpx.AsyncClient(transport=cached) as client:
            assert (await client.post("http://cached/v1/chat/completions", json={})).json() == said

    with treering.instrument(store), httpx.Client(transport=cached) as client:
        assert client.post("http://cached/v1/chat/completions", json={}).json() == said
        asyncio.run(ask_async())
    assert [run.status for run in store.runs.each()] == ["ok", "ok"]
    assert total_of(store) == (200, 20)
