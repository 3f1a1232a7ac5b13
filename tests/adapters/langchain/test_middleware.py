"""Memory in LangChain's own agent loop, with a model that follows a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import treering
from treering.adapters.langchain import MemoryMiddleware
from treering.adapters.langgraph import TreeringSaver
from treering.compat.memory import AgentFiles, FilesystemMemoryStore


class Listening(BaseChatModel):
    """Remembers the system message of every call; asks for a skill when it is told to."""

    seen: list[str]
    skill: str = ""

    @property
    def _llm_type(self) -> str:
        return "listening"

    def bind_tools(self, tools, **kwargs: Any):  # noqa: ARG002
        return self

    def _generate(self, messages, *_args: Any, **_kwargs: Any) -> ChatResult:
        system = [message.text for message in messages if isinstance(message, SystemMessage)]
        self.seen.append("".join(system))
        last = messages[-1]
        answer = AIMessage(content=f"heard: {last.text}")
        if self.skill and last.type == "human":
            call = {"name": "load_skill", "args": {"name": self.skill}, "id": "1", "type": "tool_call"}
            answer = AIMessage(content="", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def ask(agent, text, thread="t"):
    result = agent.invoke(
        {"messages": [{"role": "user", "content": text}]}, {"configurable": {"thread_id": thread}}
    )
    return result["messages"]


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def test_documents_stand_behind_the_system_prompt_and_edits_count(store):
    model = Listening(seen=[])
    memory = MemoryMiddleware(store.memory, max_documents=1)
    agent = create_agent(
        model, system_prompt="Be kind.", middleware=[memory], checkpointer=TreeringSaver(store)
    )
    ask(agent, "Hi")
    store.memory.save("a", "Alice likes walnuts.", auto_load=True)
    store.memory.save("b", "One too many.", auto_load=True)
    messages = ask(agent, "Hi again")
    assert model.seen[0] == "Be kind."
    assert model.seen[1].startswith("Be kind.")
    assert "Alice likes walnuts." in model.seen[1]
    assert [each.id for each in memory.last.omitted] == ["b"]
    assert [message.type for message in messages] == ["human", "ai", "human", "ai"]


def test_files_work_without_a_system_prompt(tmp_path):
    files = FilesystemMemoryStore(tmp_path / "memory")
    files.save({"id": "a", "content": "From a file.", "metadata": {"auto_load": True}})
    model = Listening(seen=[])
    ask(create_agent(model, middleware=[MemoryMiddleware(files)]), "Hi")
    assert "From a file." in model.seen[0]


def test_skills_become_a_tool(tmp_path):
    (tmp_path / "skills" / "dance").mkdir(parents=True)
    (tmp_path / "skills" / "dance" / "SKILL.md").write_text("---\ndescription: Dances.\n---\nStep left.")
    model = Listening(seen=[], skill="dance")
    messages = ask(create_agent(model, middleware=[MemoryMiddleware(AgentFiles(tmp_path))]), "Dance!")
    assert "- dance: Dances." in model.seen[0]
    assert messages[-1].text == "heard: Step left."


def test_the_same_awaited(tmp_path):
    async def scene():
        async with treering.open_async(tmp_path / "store") as store:
            await store.memory.save("a", "Alice likes walnuts.", auto_load=True)
            model = Listening(seen=[])
            agent = create_agent(model, middleware=[MemoryMiddleware(store.memory)])
            await agent.ainvoke({"messages": [{"role": "user", "content": "Hi"}]})
            assert "walnuts" in model.seen[0]

    asyncio.run(scene())


def test_a_users_own_async_store_runs_in_the_agents_loop():
    loops = []

    class Own:
        async def query(self):
            loops.append(asyncio.get_running_loop())
            return [{"id": "a", "content": "Alice likes walnuts.", "metadata": {"auto_load": True}}]

    async def scene():
        model = Listening(seen=[])
        agent = create_agent(model, middleware=[MemoryMiddleware(Own())])
        await agent.ainvoke({"messages": [{"role": "user", "content": "Hi"}]})
        assert "walnuts" in model.seen[0]
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(scene())
