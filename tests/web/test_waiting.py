"""What frameworks wait for is approved, denied or edited in the dashboard, and they go on with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from google.genai import types
from playwright.sync_api import Page, expect
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.models.test import TestModel
from tests.adapters.adk import test_confirmations as adk
from tests.adapters.openai_agents import test_approvals as openai_agents

from treering.adapters.pydantic_ai import TreeringConversationStore
from treering.store import Store


def aside(work: Callable[[], Any]) -> Any:
    """Do it in a thread: the browser's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def decide(
    page: Page, url: str, thread: str, button: str, change: Callable[[Any], Any] | None = None
) -> None:
    page.goto(f"{url}/ui/#/threads")
    row = page.locator(".row").filter(has=page.get_by_text(thread, exact=True))
    expect(row).to_contain_text("pending approval")
    page.goto(f"{url}/ui/#/threads/{quote(thread, safe='')}")
    pending = page.locator(".pending")
    pending.get_by_role("button", name=button).click()
    if change is not None:
        text = pending.get_by_role("textbox")
        text.fill(json.dumps(change(json.loads(text.input_value()))))
        pending.get_by_role("button", name="Approve edited").click()
    expect(pending).to_have_count(0)


def only_the_second(payload: Any) -> Any:
    return {"approvals": [{"call_id": payload["approvals"][1]["call_id"]}]}


@pytest.mark.parametrize(
    "button, change, refunded",
    [("Approve", None, [7, 8]), ("Deny", None, []), ("Edit", only_the_second, [8])],
)
def test_the_openai_agents_sdk(page, own_store, button, change, refunded):
    store, url = own_store
    aside(lambda: openai_agents.ask(store))
    decide(page, url, "refunds", button, change)
    assert aside(lambda: openai_agents.go_on(store)) == ("Done.", refunded)


def confirmed(payload: Any) -> Any:
    return {"confirmations": [{"id": each["id"], "confirmed": True} for each in payload["confirmations"]]}


@pytest.mark.parametrize(
    "button, change, refunded", [("Approve", None, [7]), ("Deny", None, []), ("Edit", confirmed, [7])]
)
def test_google_adk(page, own_store, button, change, refunded):
    store, url = own_store
    done: list[int] = []
    asked = types.Content(role="user", parts=[types.Part(text="Refund order 7.")])
    aside(lambda: adk.run(store, done, asked))
    decide(page, url, adk.THREAD, button, change)
    assert aside(lambda: adk.run(store, done, None))
    assert done == refunded


def another_path(payload: Any) -> Any:
    (waiting,) = payload["approvals"]
    return {"approvals": [{"tool_call_id": waiting["tool_call_id"], "args": {"path": "b"}}]}


@pytest.mark.parametrize(
    "button, change, removed", [("Approve", None, ["a"]), ("Deny", None, []), ("Edit", another_path, ["b"])]
)
def test_pydantic_ai(page, own_store, button, change, removed):
    store, url = own_store
    done: list[str] = []
    agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def remove(path: str) -> str:
        done.append(path)
        return f"removed {path}"

    async def wait() -> None:
        paused = await agent.run("clean up", conversation=Conversation(conversation_id="tidy"))
        await TreeringConversationStore(store).save(paused)

    async def go_on() -> None:
        conversations = TreeringConversationStore(store)
        results = await conversations.deferred_tool_results("tidy")
        await agent.run(conversation=await conversations.load("tidy"), deferred_tool_results=results)

    aside(lambda: asyncio.run(wait()))
    decide(page, url, "tidy", button, change)
    aside(lambda: asyncio.run(go_on()))
    assert done == removed


def test_a_langchain_agent_with_human_in_the_loop(page, own_store):
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from treering.adapters.langgraph import TreeringSaver

    store, url = own_store
    paid: list[int] = []

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - LangChain's signature
            return self

    @tool
    def pay(order: int) -> str:
        """Pay."""
        paid.append(order)
        return "paid"

    def agent(store: Store, *answers: AIMessage) -> Any:
        return create_agent(
            Scripted(messages=iter(answers)),
            [pay],
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
            checkpointer=TreeringSaver(store),
        )

    where: Any = {"configurable": {"thread_id": "payments"}}
    call = AIMessage("", tool_calls=[{"name": "pay", "args": {"order": 7}, "id": "c7"}])
    aside(lambda: agent(store, call).invoke({"messages": [("user", "pay order 7")]}, where))
    decide(page, url, "payments", "Approve")
    done = aside(lambda: agent(store, AIMessage("Done.")).invoke(None, where))
    assert (paid, done["messages"][-1].content) == ([7], "Done.")
