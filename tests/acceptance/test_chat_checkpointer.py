"""E1: the LangGraph checkpointer of the document, sync and async, with the whole state of each thread.

Its agent is given a checkpointer at start-up (`create_deep_agent(checkpointer=...)`), answers each message
with ``ainvoke(..., thread_id)``, and after a restart goes on with every conversation, each chat and each
reset by itself.
"""

from __future__ import annotations

import asyncio

import pytest
from deepagents import create_deep_agent
from langchain_core.messages import HumanMessage

import treering
from tests.adapters.langgraph.scripts import Scripted, config
from tests.adapters.langgraph.test_conformance import full_marks, marks_of
from treering.adapters.langgraph import TreeringSaver

CHATS = {
    "telegram_123456": ["hello", "what's the weather?"],
    "telegram_123456_s3": ["start over"],
    "scheduler_a1b2c3d4": ["Check the weather forecast"],
}


def agent_of(checkpointer):
    return create_deep_agent(model=Scripted(rounds=0), checkpointer=checkpointer)


def said(state):
    return [message.content for message in state["messages"] if message.type == "human"]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_conversations_go_on_after_a_restart_each_by_itself(engine, tmp_path, request):
    url = request.getfixturevalue("postgres_url") if engine == "postgres" else tmp_path / "data"

    async def talk(texts):
        async with treering.open_async(url) as store:
            agent = agent_of(TreeringSaver(store))
            for thread, each in texts.items():
                for text in each:
                    await agent.ainvoke({"messages": [HumanMessage(text)]}, config(thread))

    asyncio.run(talk(CHATS))
    asyncio.run(talk({"telegram_123456": ["and tomorrow?"]}))
    with treering.open(url) as store:
        agent = agent_of(TreeringSaver(store))
        kept = {thread: said(agent.get_state(config(thread)).values) for thread in CHATS}
        assert kept == {**CHATS, "telegram_123456": [*CHATS["telegram_123456"], "and tomorrow?"]}
        assert {info.id for info in store.threads()} == set(CHATS)
        more = agent.invoke(
            {"messages": [HumanMessage("in a sync process, too")]}, config("telegram_123456_s3")
        )
        assert said(more) == ["start over", "in a sync process, too"]


def test_the_frameworks_own_suite_passes_with_every_capability(tmp_path):
    assert marks_of(tmp_path / "store") == full_marks()
