"""Memory for pydantic-ai, with a real agent and a scripted model."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

import treering
from treering.adapters.pydantic_ai.memory import TreeringMemory, memory_instructions
from treering.compat.memory import InMemoryMemoryStore
from treering.errors import InvalidInput


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        opened.memory.save("tone", "Prefers concise replies.", auto_load=True)
        opened.memory.save("allergy", "Alice is allergic to peanuts.")
        opened.memory.save("garden", "The walnut tree was planted in 1987.")
        yield opened


def ask(agent, prompt, **more):
    return asyncio.run(agent.run(prompt, **more))


class Listener:
    """A model that notes what it is shown; with a tool, it calls that once."""

    def __init__(self, *, tool=None):
        self.shown = []
        self._tool = tool
        self.model = FunctionModel(self._answer)

    def _answer(self, messages, info):
        prompts = [
            part.content for each in messages for part in each.parts if isinstance(part, UserPromptPart)
        ]
        self.shown.append((info.instructions or "", prompts))
        kinds = [part.part_kind for each in messages for part in each.parts]
        if self._tool and "tool-return" not in kinds:
            return ModelResponse(parts=[ToolCallPart(self._tool, {})])
        return ModelResponse(parts=[TextPart("ok")])


def test_documents_are_instructions_and_edits_count_from_the_next_call_on(store):
    listener = Listener(tool="edit")
    agent = Agent(listener.model, instructions=["Be kind.", memory_instructions(store.memory)])

    @agent.tool_plain
    def edit() -> str:
        store.memory.save("tone", "Wants long letters.", auto_load=True)
        return "done"

    result = ask(agent, "Hi")
    (first, _), (second, _) = listener.shown
    assert first == 'Be kind.\n\n<memory id="tone">\nPrefers concise replies.\n</memory>'
    assert "Wants long letters." in second
    assert "concise" not in second
    assert result.output == "ok"


def test_limits_and_empty_memories(store):
    listener = Listener()
    ask(Agent(listener.model, instructions=memory_instructions(store.memory, max_documents=0)), "Hi")
    ask(Agent(listener.model, instructions=memory_instructions(store.memory, auto_load=False)), "Hi")
    assert listener.shown[0][0] == ""
    assert listener.shown[1][0].count("<memory ") == 3


def test_search_results_are_sent_and_not_stored(store):
    listener = Listener()
    memory = TreeringMemory(store.memory, recall=2)
    agent = Agent(listener.model, capabilities=[memory])
    result = ask(agent, "May I bring peanuts?")
    instructions, prompts = listener.shown[0]
    assert "Prefers concise replies." in instructions
    assert len(prompts) == 2
    assert "allergic to peanuts" in prompts[0]
    assert "walnut" not in prompts[0]
    assert prompts[1] == "May I bring peanuts?"
    assert [document.id for document in memory.last.documents] == ["allergy"]
    kept = [part for each in result.all_messages() if isinstance(each, ModelRequest) for part in each.parts]
    assert [part.content for part in kept] == ["May I bring peanuts?"]
    ask(agent, "And what about the tree?", message_history=result.all_messages())
    _, prompts = listener.shown[1]
    assert len(prompts) == 3
    assert prompts[0] == "May I bring peanuts?"
    assert "planted in 1987" in prompts[1]


def test_without_documents_nothing_is_added(store):
    listener = Listener()
    agent = Agent(listener.model, capabilities=[TreeringMemory(store.memory)])
    ask(agent, "elephants?")
    ask(agent, "?!")
    assert [prompts for _, prompts in listener.shown] == [["elephants?"], ["?!"]]
    ask(Agent(listener.model, capabilities=[TreeringMemory(store.memory, recall=0)]), "peanuts")
    assert listener.shown[2][1] == ["peanuts"]


def test_async_stores_filters_and_plain_stores(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "s") as store:
            await store.memory.save("a", "peanuts one", tags=["yes"])
            await store.memory.save("b", "peanuts two", tags=["no"])
            listener = Listener()
            only = TreeringMemory(store.memory, filter=lambda document: "yes" in document.tags)
            await Agent(listener.model, capabilities=[only]).run("peanuts")
            assert "peanuts one" in listener.shown[0][1][0]
            assert "peanuts two" not in listener.shown[0][1][0]

    asyncio.run(main())
    with pytest.raises(InvalidInput, match="has no search"):
        TreeringMemory(InMemoryMemoryStore())
    with pytest.raises(InvalidInput, match="recall is -1"):
        TreeringMemory(InMemoryMemoryStore(), recall=-1)
    plain = InMemoryMemoryStore()
    plain.save({"id": "x", "content": "hello", "metadata": {"auto_load": True}})
    listener = Listener()
    ask(Agent(listener.model, capabilities=[TreeringMemory(plain, recall=0)]), "Hi")
    assert "hello" in listener.shown[0][0]
