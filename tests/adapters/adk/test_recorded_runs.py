"""Invocations of Google ADK in the journal: agents, models, tools, tokens, cost, and their checkpoints."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

import treering
from treering.adapters.adk import TreeringPlugin, TreeringSessionService
from treering.core.query import EventQuery, each_record

USED = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=100, cached_content_token_count=40, candidates_token_count=8, thoughts_token_count=2
)


class Scripted(BaseLlm):
    """Calls the first tool, if there is one and it has not answered; then says that it is done."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts or []
        tools: Any = llm_request.tools_dict
        if tools and not any(part.function_response for part in last):
            name = next(iter(tools))
            args = {"request": "count"} if name == "helper" else {"word": "ring"}
            parts = [types.Part.from_function_call(name=name, args=args)]
        else:
            parts = [types.Part(text="done")]
            if stream:
                for piece in ("do", "ne"):
                    content = types.Content(role="model", parts=[types.Part(text=piece)])
                    yield LlmResponse(content=content, partial=True)
        yield LlmResponse(
            content=types.Content(role="model", parts=parts),
            usage_metadata=USED,
            model_version="gemini-2.5-flash",
        )


def agent(name: str, tools: Sequence[Any] = (), **more: Any) -> LlmAgent:
    return LlmAgent(name=name, model=Scripted(model="gemini-2.5-flash"), tools=list(tools), **more)


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def runner_of(store: treering.Store, root: Any) -> Runner:
    app = App(name="shop", root_agent=root, plugins=[TreeringPlugin(store)])
    return Runner(app=app, session_service=TreeringSessionService(store), auto_create_session=True)


def drive(store: treering.Store, root: Any, *, config: RunConfig | None = None) -> None:
    async def go() -> None:
        runner = runner_of(store, root)
        said = types.Content(role="user", parts=[types.Part(text="Where is it?")])
        given: dict[str, Any] = {"user_id": "alice", "session_id": "s", "new_message": said}
        async for _ in runner.run_async(**given, run_config=config):
            pass
        await runner.close()

    try:
        asyncio.run(go())
    finally:
        store.flush()


def only_run(store: treering.Store) -> Any:
    (run,) = store.runs.each()
    return run


def look_up(word: str) -> str:
    """Look a word up."""
    return word.upper()


def test_an_invocation_is_a_run_of_its_session_with_tokens_and_cost(store):
    drive(store, agent("clerk", [look_up]))
    run = only_run(store)
    assert (run.agent, run.thread, run.status) == ("clerk", "shop/alice/s", "ok")
    kinds = [event.type for event in store.timeline.of_run(run.id).events]
    assert kinds == ["message", "message", "tool.call", "tool.result", "message"]
    total = store.cost.of_run(run.id).total
    assert (total.usage.input, total.usage.cache_read, total.usage.output) == (120, 80, 20)
    assert total.amounts["USD"] > 0
    saved = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
    assert {each.event.run for each in saved} == {run.id, None}  # the session was created before it
    assert store.verify().ok


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated:DeprecationWarning")
def test_sub_agents_are_spans_of_their_parents(store):
    drive(store, SequentialAgent(name="team", sub_agents=[agent("first"), agent("second")]))
    run = only_run(store)
    assert run.agent == "team"
    by_agent = {part.key: part.usage.output for part in store.cost.of_run(run.id).parts}
    assert by_agent == {"team": 0, "first": 10, "second": 10}


@pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning")  # AgentTool passes it
def test_an_agent_that_is_a_tool_is_part_of_the_run(store):
    drive(store, agent("clerk", [AgentTool(agent("helper"))]))
    run = only_run(store)
    by_agent = {part.key: part.usage.output for part in store.cost.of_run(run.id).parts}
    assert by_agent == {"clerk": 20, "helper": 10}


def test_a_stream_is_one_message_with_its_pieces(store):
    drive(store, agent("clerk"), config=RunConfig(streaming_mode=StreamingMode.SSE))
    run = only_run(store)
    assert store.cost.of_run(run.id).total.usage.output == 10
    assert [event.type for event in store.timeline.of_run(run.id).events].count("message") == 2


def test_a_run_that_waits_is_interrupted_and_one_that_fails_says_why(store):
    def ask_a_person(word: str) -> None:
        """Ask."""

    drive(store, agent("clerk", [LongRunningFunctionTool(ask_a_person)]))
    assert only_run(store).status == "interrupted"

    def explode(word: str) -> str:
        """Fail."""
        raise RuntimeError(f"no {word}")

    with pytest.raises(RuntimeError, match="no ring"):
        drive(store, agent("bad", [explode]))
    (failed,) = [run for run in store.runs.each() if run.agent == "bad"]
    assert failed.status == "error"
    assert "no ring" in json.dumps(failed.meta)


def test_a_cancelled_invocation_ends(store):
    started = asyncio.Event()

    async def wait(word: str) -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return word

    async def go() -> None:
        runner = runner_of(store, agent("clerk", [wait]))
        said = types.Content(role="user", parts=[types.Part(text="Where is it?")])

        async def consume() -> None:
            async for _ in runner.run_async(user_id="alice", session_id="s", new_message=said):
                pass

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    gc.collect()
    store.flush()
    assert only_run(store).status in ("ok", "cancelled")
