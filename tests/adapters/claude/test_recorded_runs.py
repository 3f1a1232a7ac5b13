"""Messages of the Claude Agent SDK in the journal: from its own CLI, and made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ResultMessage,
    SystemMessage,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    project_key_for_directory,
    query,
)

import treering
from tests.adapters.claude import worker
from treering.adapters.claude.runs import record_messages
from treering.adapters.claude.session_store import TreeringSessionStore, thread_namespace
from treering.core.query import EventQuery, each_record

MODEL = "claude-sonnet-4-6"


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def said(block: Any, id: str, output: int, **more: Any) -> AssistantMessage:
    usage = {"input_tokens": 10, "output_tokens": output, "service_tier": "standard"}
    usage |= {"cache_read_input_tokens": 5, "cache_creation_input_tokens": 0}
    return AssistantMessage(content=[block], model=MODEL, message_id=id, session_id="s", usage=usage, **more)


def result(**more: Any) -> ResultMessage:
    fields: dict[str, Any] = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 2, "session_id": "s"}
    return ResultMessage(**{**fields, "subtype": "success", "is_error": False, "total_cost_usd": 0.5, **more})


BEGIN = SystemMessage(subtype="init", data={"session_id": "s", "cwd": "/project"})
CALL = ToolUseBlock(id="t1", name="Task", input={"prompt": "count"})


async def each(*messages: Any) -> AsyncIterator[Any]:
    for message in messages:
        yield message


def runs_in(store: treering.Store, folder: str) -> list[Any]:
    """The runs of a folder's sessions, newest first."""
    namespace = thread_namespace(project_key_for_directory(folder))
    return list(store.runs.in_namespace(namespace).each())


def record(store: treering.Store, *messages: Any, **more: Any) -> list[Any]:
    async def go() -> list[Any]:
        return [message async for message in record_messages(each(*messages), store, **more)]

    return asyncio.run(go())


def test_replies_tools_and_subagents_are_recorded_and_passed_on(store):
    given = [
        BEGIN,
        said(TextBlock(text="I will count."), "m1", 1),
        said(CALL, "m1", 20),  # the same reply, whose tokens are known now
        said(TextBlock(text="one"), "m2", 3, parent_tool_use_id="t1"),
        UserMessage(content=[ToolResultBlock(tool_use_id="t1", content="1", is_error=False)]),
        said(TextBlock(text="It is one."), "m3", 7),
        result(),
    ]
    assert record(store, *given, prompt="How many?") == given
    (run,) = runs_in(store, "/project")
    assert (run.agent, run.thread, run.status) == ("claude", "s", "ok")
    assert run.meta["reported_cost_usd"] == 0.5
    kinds = [event.type for event in store.timeline.of_run(run.id).events]
    assert sorted(kinds) == ["message"] * 4 + ["tool.call", "tool.result"]
    total = store.cost.of_run(run.id).total
    assert (total.usage.input, total.usage.cache_read, total.usage.output) == (30, 15, 30)
    assert total.amounts["USD"] > 0


def test_each_turn_of_a_client_is_a_run_and_a_failed_one_says_why(store):
    failed = result(subtype="error_max_turns", is_error=True, errors=["too many turns"])
    record(store, BEGIN, said(TextBlock(text="a"), "m1", 1), result(), said(CALL, "m2", 1), failed)
    last, first = runs_in(store, "/project")
    assert (first.status, last.status) == ("ok", "error")
    assert last.meta["error"] == {"type": "error_max_turns", "message": "too many turns"}


def test_a_stream_that_is_left_or_fails_ends_its_run(store):
    async def left() -> None:
        stream = record_messages(each(BEGIN, said(TextBlock(text="a"), "m1", 1)), store)
        await anext(stream)
        await stream.aclose()

    async def broken() -> AsyncIterator[Any]:
        yield BEGIN
        raise ConnectionError("the CLI is gone")

    async def fails() -> None:
        with pytest.raises(ConnectionError):
            async for _ in record_messages(broken(), store):
                pass

    asyncio.run(left())
    asyncio.run(fails())
    assert [run.status for run in runs_in(store, "/project")] == ["error", "cancelled"]


@pytest.mark.slow
def test_the_cli_with_a_session_store_leaves_a_run_that_its_checkpoints_belong_to(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(worker, "NUMBERS", (1, 2))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    async def go() -> None:
        with worker.scripted_api() as api:
            chosen = worker.options(
                tmp_path, tmp_path / "home", api, session_store=TreeringSessionStore(store)
            )
            messages = query(prompt="What do they add up to?", options=chosen)
            async for message in record_messages(messages, store):
                if isinstance(message, ResultMessage):
                    assert message.result == "They add up to 5."

    asyncio.run(go())
    (run,) = runs_in(store, str(tmp_path / "project"))
    assert run.status == "ok"
    kinds = [event.type for event in store.timeline.of_run(run.id).events]
    assert kinds.count("tool.call") == kinds.count("tool.result") == 2
    assert store.thread(run.thread, run.namespace).head is not None
    saved = each_record(store.engine, store.space, EventQuery(kinds=("checkpoint",)))
    assert run.id in {each.event.run for each in saved}
